//! Listening: which addresses are allowed without TLS, and errors that name the flag.

use std::net::SocketAddr;

use tokio::net::TcpListener;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Something else has the port, or the address is not this host's.
    #[error("failed to listen on {address} ({flag}): {source}; give another port or stop what holds it")]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// The flag it came from.
        flag: String,
        /// The system's words.
        source: std::io::Error,
    },
    /// Mutual TLS does not exist yet, so a role listens beyond loopback only when told to.
    #[error(
        "{address} ({flag}) is not a loopback address and roles speak plaintext; pass --plaintext if the network is trusted"
    )]
    Plaintext {
        /// What was asked for.
        address: SocketAddr,
        /// The flag it came from.
        flag: String,
    },
}

/// Opens a listener.
///
/// # Errors
/// [`ListenError::Bind`] when the system refuses.
pub async fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|source| ListenError::Bind { address, flag: flag.to_owned(), source })
}

/// Refuses addresses beyond loopback unless `plaintext` was given.
///
/// # Errors
/// [`ListenError::Plaintext`].
pub fn check_plaintext(address: SocketAddr, plaintext: bool, flag: &str) -> Result<(), ListenError> {
    if plaintext || address.ip().is_loopback() {
        return Ok(());
    }
    Err(ListenError::Plaintext { address, flag: flag.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_loopback_needs_the_flag() {
        let outside = SocketAddr::from(([10, 0, 0, 1], 9000));
        assert!(check_plaintext(outside, false, "--grpc-port").unwrap_err().to_string().contains("--plaintext"));
        assert!(check_plaintext(outside, true, "--grpc-port").is_ok());
        assert!(check_plaintext(SocketAddr::from(([127, 3, 0, 1], 9000)), false, "--grpc-port").is_ok());
    }

    #[tokio::test]
    async fn a_port_in_use_names_the_flag() {
        let held = bind(SocketAddr::from(([127, 0, 0, 1], 0)), "--admin-port").await.unwrap();
        let error = bind(held.local_addr().unwrap(), "--admin-port").await.unwrap_err();
        assert!(error.to_string().contains("--admin-port"), "{error}");
    }
}
