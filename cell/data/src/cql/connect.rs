//! Connecting: addresses, TLS, credentials, and how statements are sent by their kind. It waits at most a bound and never retries.

use std::sync::Arc;
use std::time::Duration;

use cell_store::StoreError;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use scylla::client::execution_profile::{ExecutionProfile, ExecutionProfileHandle};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::retry::{DefaultRetryPolicy, FallthroughRetryPolicy};
use scylla::policies::speculative_execution::SimpleSpeculativeExecutionPolicy;

use super::capability::{Capabilities, NoAnswer};
use super::settings::Settings;

/// The longest wait for one statement.
pub(super) const STATEMENT: Duration = Duration::from_secs(5);
/// The longest wait for one page of a scan.
pub(super) const PAGE: Duration = Duration::from_secs(30);
/// The longest wait for a connection and what is asked first.
const CONNECT: Duration = Duration::from_secs(15);
/// After so long without an answer, another replica is asked the same; only what may be repeated.
const SPECULATE: Duration = Duration::from_millis(250);

/// A session, and what its server can do.
pub struct Connection {
    /// The driver's session.
    pub session: Session,
    /// What the server can do.
    pub capabilities: Capabilities,
    /// What was connected to.
    pub settings: Settings,
    /// For statements that must be sent once.
    pub(super) once: ExecutionProfileHandle,
    /// For statements that may be repeated when they failed, but not raced.
    pub(super) steady: ExecutionProfileHandle,
}

/// TLS that trusts these certificates and no others.
///
/// # Errors
/// What is wrong with the PEM text, in words.
pub fn tls(pem: &str) -> Result<Arc<rustls::ClientConfig>, String> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| format!("{error:?}"))?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("it holds no certificate; give PEM text".to_owned());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

fn builder(settings: &Settings) -> Result<(SessionBuilder, [ExecutionProfileHandle; 2]), String> {
    let levels = settings.levels()?;
    let mut policy = DefaultPolicy::builder().token_aware(true);
    if let Some(datacenter) = &settings.datacenter {
        policy = policy.prefer_datacenter(datacenter.clone()).permit_dc_failover(false);
    }
    let policy = policy.build();
    let base = ExecutionProfile::builder()
        .consistency(levels.read)
        .serial_consistency(Some(levels.serial))
        .request_timeout(Some(STATEMENT))
        .load_balancing_policy(policy);
    let once = base.clone().retry_policy(Arc::new(FallthroughRetryPolicy::new())).build().into_handle();
    // The driver repeats only statements marked as idempotent.
    let speculate = SimpleSpeculativeExecutionPolicy { max_retry_count: 1, retry_interval: SPECULATE };
    let base = base.retry_policy(Arc::new(DefaultRetryPolicy::new()));
    let steady = base.clone().build().into_handle();
    let usual = base.speculative_execution_policy(Some(Arc::new(speculate))).build().into_handle();
    let mut builder = SessionBuilder::new()
        .known_nodes(&settings.contact_points)
        .keyspaces_to_fetch([settings.keyspace.clone()])
        .connection_timeout(Duration::from_secs(5))
        .tcp_nodelay(true)
        .schema_agreement_timeout(Duration::from_secs(30))
        .default_execution_profile_handle(usual);
    if let (Some(username), Some(password)) = (&settings.username, &settings.password) {
        builder = builder.user(username, password);
    }
    if let Some(pem) = &settings.ca_pem {
        builder = builder.tls_context(Some(tls(pem).map_err(|error| format!("caPem: {error}"))?));
    }
    Ok((builder, [once, steady]))
}

/// Connects and asks what the server can do.
///
/// # Errors
/// [`StoreError::Unavailable`], naming the StorageCell and what is wrong.
pub async fn connect(settings: Settings) -> Result<Connection, StoreError> {
    let (builder, [once, steady]) =
        builder(&settings).map_err(|message| Settings::refused(&settings.name, &message))?;
    let failed = |text: String| StoreError::Unavailable(format!("StorageCell {}: {text}", settings.name));
    let work = async {
        let session = builder.build().await.map_err(|error| failed(refused(&settings, &error.to_string())))?;
        if let Some(wanted) = &settings.datacenter {
            let mut there: Vec<_> = session
                .get_cluster_state()
                .get_nodes_info()
                .iter()
                .filter_map(|node| node.datacenter.clone())
                .collect();
            there.sort();
            there.dedup();
            // The driver would only say that it has nobody to ask.
            if !there.contains(wanted) {
                return Err(failed(format!("no node is in datacenter {wanted}; there are: {}", there.join(", "))));
            }
        }
        let sharded = session.get_cluster_state().get_nodes_info().iter().any(|node| node.sharder().is_some());
        let capabilities = Capabilities::of(&session, sharded).await.map_err(|error| match error {
            NoAnswer::Unknown => failed("the server does not know its own version".to_owned()),
            NoAnswer::Unreachable(text) => failed(text),
        })?;
        Ok::<_, StoreError>((session, capabilities))
    };
    let (session, capabilities) = tokio::time::timeout(CONNECT, work)
        .await
        .map_err(|_| failed(format!("failed to connect within {} s", CONNECT.as_secs())))??;
    Ok(Connection { session, capabilities, settings, once, steady })
}

/// Who was asked and what came of it in the end; what the driver says before that is about itself.
fn refused(settings: &Settings, said: &str) -> String {
    let cause = said.rsplit_once("Last connection failed with: ").map_or(said, |(_, cause)| cause);
    format!("failed to connect to {}: {cause}", settings.contact_points.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_that_are_none_are_refused() {
        assert!(tls("no certificate here").unwrap_err().contains("no certificate"));
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(tls(broken).is_err());
    }
}
