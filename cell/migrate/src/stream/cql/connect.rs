//! Reaching a CQL cluster: the address as people write it, credentials from files or the environment, TLS by a CA of one's own. A secret
//! never comes from the command line and never goes into an error.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::statement::Consistency;

/// `cql://host:port[,host:port…]/keyspace[.table]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// host:port.
    pub contact_points: Vec<String>,
    /// Keyspace.
    pub keyspace: String,
    /// Table, where the address names one.
    pub table: Option<String>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Not an address.
    #[error("{flag} {text:?} is not an address: {why}; it looks like cql://host:9042/keyspace.table")]
    Address {
        /// Flag.
        flag: String,
        /// As given, without anything secret.
        text: String,
        /// Why.
        why: String,
    },
    /// A file of credentials or certificates.
    #[error("failed to read {path}: {why}")]
    File {
        /// File.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Nobody answers, or not to us.
    #[error("failed to connect to {contact_points}: {why}")]
    Refused {
        /// Where.
        contact_points: String,
        /// Why.
        why: String,
    },
}

impl Address {
    /// Reads an address; `flag` names it in errors.
    ///
    /// # Errors
    /// [`ConnectError::Address`].
    pub fn parse(flag: &str, text: &str) -> Result<Self, ConnectError> {
        let wrong = |text: &str, why: &str| ConnectError::Address {
            flag: flag.to_owned(),
            text: text.to_owned(),
            why: why.to_owned(),
        };
        if text.contains('@') {
            // Everybody on the machine sees a command line; what stands before the @ is not repeated here either.
            return Err(wrong(
                "cql://…@…",
                "credentials do not belong on a command line; give a credentials file or the environment",
            ));
        }
        let rest = text.strip_prefix("cql://").ok_or_else(|| wrong(text, "it does not begin with cql://"))?;
        let (hosts, path) = rest.split_once('/').ok_or_else(|| wrong(text, "the keyspace is missing"))?;
        let contact_points: Vec<String> = hosts
            .split(',')
            .map(|host| if host.contains(':') { host.to_owned() } else { format!("{host}:9042") })
            .collect();
        let bad_host = |host: &String| {
            host.rsplit_once(':').is_none_or(|(name, port)| name.is_empty() || port.parse::<u16>().is_err())
        };
        if contact_points.iter().any(bad_host) {
            return Err(wrong(text, "a host is not host:port"));
        }
        let (keyspace, table) = match path.split_once('.') {
            Some((keyspace, table)) => (keyspace, Some(table.to_owned())),
            None => (path, None),
        };
        let bad_name = |name: &str| {
            name.is_empty()
                || name.len() > 222
                || !name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        };
        if bad_name(keyspace) || table.as_deref().is_some_and(bad_name) {
            return Err(wrong(text, "keyspace and table are letters, digits and underscores"));
        }
        Ok(Self { contact_points, keyspace: keyspace.to_owned(), table })
    }
}

/// User and password.
#[derive(Clone, serde::Deserialize)]
pub struct Credentials {
    username: String,
    password: String,
}

impl Credentials {
    /// From a JSON file `{"username", "password"}`, else from the environment (`<prefix>_USERNAME`, `<prefix>_PASSWORD`), else none.
    ///
    /// # Errors
    /// [`ConnectError::File`].
    pub fn find(file: Option<&Path>, prefix: &str) -> Result<Option<Self>, ConnectError> {
        if let Some(path) = file {
            let failed = |why: String| ConnectError::File { path: path.to_owned(), why };
            let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
            let wrong = "it is not a JSON object with username and password";
            return serde_json::from_str(&text).map(Some).map_err(|_| failed(wrong.to_owned()));
        }
        let variable = |name: &str| std::env::var(format!("{prefix}_{name}")).ok().filter(|value| !value.is_empty());
        Ok(variable("USERNAME").zip(variable("PASSWORD")).map(|(username, password)| Self { username, password }))
    }
}

/// How to reach a cluster.
#[derive(Clone)]
pub struct Link {
    /// host:port.
    pub contact_points: Vec<String>,
    /// Keyspace.
    pub keyspace: String,
    /// User.
    pub credentials: Option<Credentials>,
    /// Certificates to trust; with them TLS is used.
    pub ca: Option<PathBuf>,
    /// Of reads and writes.
    pub consistency: Consistency,
    /// Preferred datacenter.
    pub datacenter: Option<String>,
}

/// Requests the server has not answered in this time have an unknown outcome.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Connects.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect(link: &Link) -> Result<Session, ConnectError> {
    let profile =
        ExecutionProfile::builder().consistency(link.consistency).request_timeout(Some(REQUEST_TIMEOUT)).build();
    let mut builder = SessionBuilder::new()
        .known_nodes(&link.contact_points)
        .connection_timeout(Duration::from_secs(10))
        .keyspaces_to_fetch([link.keyspace.as_str()])
        .default_execution_profile_handle(profile.into_handle());
    if let Some(datacenter) = &link.datacenter {
        builder = builder.prefer_datacenter(datacenter.clone());
    }
    if let Some(Credentials { username, password }) = &link.credentials {
        builder = builder.user(username, password);
    }
    if let Some(path) = &link.ca {
        builder = builder.tls_context(Some(trusted(path)?));
    }
    builder.build().await.map_err(|error| ConnectError::Refused {
        contact_points: link.contact_points.join(","),
        why: error.to_string(),
    })
}

fn trusted(path: &Path) -> Result<Arc<rustls::ClientConfig>, ConnectError> {
    let failed = |why: String| ConnectError::File { path: path.to_owned(), why };
    let pem = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    cell_data::cql::tls(&pem).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_hosts_keyspace_and_perhaps_a_table() {
        let address = Address::parse("--from", "cql://a,b:1234/ks.t_1").unwrap();
        assert_eq!(address.contact_points, ["a:9042", "b:1234"]);
        assert_eq!((address.keyspace.as_str(), address.table.as_deref()), ("ks", Some("t_1")));
        assert_eq!(Address::parse("--from", "cql://a/ks").unwrap().table, None);
        for wrong in [
            "a/ks.t",
            "cql://a",
            "cql:///ks",
            "cql://a:x/ks",
            "cql://a/",
            "cql://a/k s",
            "cql://a/ks.",
            "cql://a/ks.t;drop",
        ] {
            let error = Address::parse("--from", wrong).unwrap_err().to_string();
            assert!(error.starts_with("--from"), "{error}");
        }
    }

    #[test]
    fn a_password_on_the_command_line_is_refused_and_not_repeated() {
        let error = Address::parse("--to", "cql://me:hunter2@a/ks.t").unwrap_err().to_string();
        assert!(error.contains("credentials") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_broken_credentials_file_is_named_without_its_content() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "username: me\npassword: hunter2").unwrap();
        let error = Credentials::find(Some(file.path()), "NONE").err().unwrap().to_string();
        assert!(error.contains("username and password") && !error.contains("hunter2"), "{error}");
    }
}
