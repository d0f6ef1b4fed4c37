//! What is known of a CQL StorageCell before connecting: the file an operator writes, checked field by field. It holds credentials and
//! never shows them.

use std::collections::BTreeMap;
use std::fmt;

use cell_store::StoreError;
use scylla::statement::{Consistency, SerialConsistency};
use serde::Deserialize;

use super::Engine;

/// The file's content. Fields not known here are ignored, so that a newer operator may add some.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// The StorageCell.
    pub name: String,
    /// Which engine it says it is.
    pub engine: Engine,
    /// host:port of nodes to start from.
    pub contact_points: Vec<String>,
    /// The keyspace of the platform's tables.
    pub keyspace: String,
    /// The datacenter whose nodes are asked; none: any.
    #[serde(default)]
    pub datacenter: Option<String>,
    /// `LocalQuorum`, `Quorum` or `EachQuorum`; by default the first when a datacenter is given, else the second.
    #[serde(default)]
    pub consistency: Option<String>,
    /// With a password.
    #[serde(default)]
    pub username: Option<String>,
    /// With a username.
    #[serde(default)]
    pub password: Option<String>,
    /// Certificates of the authority that signed the nodes': TLS is used when given.
    #[serde(default)]
    pub ca_pem: Option<String>,
    /// How the keyspace is made when it is not there.
    #[serde(default)]
    pub replication: Option<Replication>,
}

/// How many replicas must answer, by kind of statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Plain reads.
    pub read: Consistency,
    /// Plain writes, and what a condition wrote.
    pub write: Consistency,
    /// Conditions, and reads that settle them.
    pub serial: SerialConsistency,
}

/// How many copies of each row there are.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Replication {
    /// So many in the datacenter.
    Factor(u32),
    /// The keyspace's options as CQL has them; without a class, so many in each datacenter.
    Options(BTreeMap<String, OptionValue>),
}

/// A value of a replication option.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum OptionValue {
    /// A number, as for a datacenter.
    Number(u32),
    /// A word, as for the class.
    Text(String),
}

impl fmt::Display for OptionValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(formatter, "{number}"),
            Self::Text(text) => write!(formatter, "{}", text.replace('\'', "''")),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Settings")
            .field("name", &self.name)
            .field("engine", &self.engine)
            .field("contact_points", &self.contact_points)
            .field("keyspace", &self.keyspace)
            .field("datacenter", &self.datacenter)
            .field("tls", &self.ca_pem.is_some())
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Reads the file's text for a StorageCell.
    ///
    /// # Errors
    /// What is wrong, naming the field.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        // An error of the parser may quote the text, which holds a password: only its place is told.
        let settings: Self = serde_json::from_str(text)
            .map_err(|error| format!("line {} column {}: not the fields expected", error.line(), error.column()))?;
        if settings.name != name {
            return Err(format!("name is {:?}, expected {name:?}", settings.name));
        }
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> Result<(), String> {
        let word = |text: &str| {
            let mut bytes = text.bytes();
            bytes.next().is_some_and(|first| first.is_ascii_lowercase())
                && text.len() <= 48
                && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        };
        if self.contact_points.is_empty() {
            return Err("contactPoints is empty; name at least one host:port".to_owned());
        }
        if !word(&self.keyspace) {
            return Err(format!("keyspace {:?} must be 1–48 of a–z, 0–9 and _, from a letter on", self.keyspace));
        }
        if self.username.is_some() != self.password.is_some() {
            return Err("username and password go together; give both or none".to_owned());
        }
        if self.engine == Engine::Embedded {
            return Err("engine must be scylla or cassandra".to_owned());
        }
        self.levels().map(drop)
    }

    /// How many replicas must answer.
    ///
    /// # Errors
    /// When the file names a level at which reads might miss acknowledged writes.
    pub fn levels(&self) -> Result<Levels, String> {
        let level = |read, write, serial| Ok(Levels { read, write, serial });
        match (self.consistency.as_deref(), &self.datacenter) {
            (Some("LocalQuorum"), _) | (None, Some(_)) => {
                level(Consistency::LocalQuorum, Consistency::LocalQuorum, SerialConsistency::LocalSerial)
            }
            (Some("Quorum"), _) | (None, None) => {
                level(Consistency::Quorum, Consistency::Quorum, SerialConsistency::Serial)
            }
            (Some("EachQuorum"), _) => {
                level(Consistency::LocalQuorum, Consistency::EachQuorum, SerialConsistency::Serial)
            }
            (Some(other), _) => Err(format!(
                "consistency {other:?} is not supported: reads and writes must overlap; use LocalQuorum, Quorum or EachQuorum"
            )),
        }
    }

    /// A name in the keyspace, as statements have it.
    pub fn table(&self, name: &str) -> String {
        format!("\"{}\".\"{name}\"", self.keyspace)
    }

    /// The same as an error of the trait.
    pub(super) fn refused(name: &str, message: &str) -> StoreError {
        StoreError::Unavailable(format!("the settings of StorageCell {name} are wrong: {message}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"name":"main","engine":"cassandra","contactPoints":["127.0.0.1:9042"],"keyspace":"cellplane",
        "username":"u","password":"hunter2","replication":{"class":"SimpleStrategy","replication_factor":1},"later":true}"#;

    #[test]
    fn a_file_is_read_and_its_password_never_shown() {
        let settings = Settings::parse("main", FILE).unwrap();
        assert_eq!(settings.levels().unwrap().serial, SerialConsistency::Serial);
        assert!(!format!("{settings:?}").contains("hunter2"));
        assert_eq!(settings.table("heads"), "\"cellplane\".\"heads\"");
    }

    #[test]
    fn a_wrong_file_is_refused_by_field_and_not_quoted() {
        assert!(Settings::parse("other", FILE).unwrap_err().contains("name"));
        for (from, to, says) in [
            ("cellplane\"", "Bad Keyspace\"", "keyspace"),
            ("[\"127.0.0.1:9042\"]", "[]", "contactPoints"),
            ("\"password\":\"hunter2\"", "\"x\":1", "username"),
            ("\"later\":true", "\"consistency\":\"One\"", "LocalQuorum"),
            ("\"hunter2\"", "[\"hunter2\"]", "line"),
            ("cassandra", "embedded", "engine"),
        ] {
            let error = Settings::parse("main", &FILE.replace(from, to)).unwrap_err();
            assert!(error.contains(says) && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_datacenter_makes_quorums_local() {
        let file = FILE.replace("\"later\":true", "\"datacenter\":\"dc1\"");
        let settings = Settings::parse("main", &file).unwrap();
        assert_eq!(settings.levels().unwrap().serial, SerialConsistency::LocalSerial);
        let each = Settings { consistency: Some("EachQuorum".into()), ..settings };
        assert_eq!(each.levels().unwrap().write, Consistency::EachQuorum);
        assert_eq!(each.levels().unwrap().read, Consistency::LocalQuorum);
    }
}
