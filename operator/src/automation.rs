//! Whether automation is paused: one key in etcd, read by whoever is about to start something unasked.

use cell_api::Automation;
use etcd_client::TxnOp;

use crate::directory::{Link, LinkError};

/// Reads it; absent means running.
///
/// # Errors
/// [`LinkError`]. A value that cannot be read counts as an error, never as running.
pub async fn read(link: &Link) -> Result<Automation, LinkError> {
    let key = link.keys().automation();
    let Some(stored) = link.read(&key).await? else { return Ok(Automation::default()) };
    serde_json::from_slice(&stored.value).map_err(|error| LinkError::Malformed { key, message: error.to_string() })
}

/// Sets it.
///
/// # Errors
/// [`LinkError`].
pub async fn write(link: &Link, wanted: &Automation) -> Result<(), LinkError> {
    let key = link.keys().automation();
    let value = serde_json::to_vec(wanted)
        .map_err(|error| LinkError::Malformed { key: key.clone(), message: error.to_string() })?;
    link.write(Vec::new(), vec![TxnOp::put(key, value, None)]).await.map(|_| ())
}
