//! gRPC channels to other processes, one per address, connected lazily and bounded in number.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint};

/// Most channels kept; the least recently used goes first.
const MAX_CHANNELS: usize = 1024;

/// The address is not `host:port`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("address {0:?} is not host:port")]
pub struct InvalidAddress(pub String);

/// A pool of lazily connected channels.
#[derive(Debug, Default)]
pub struct Channels {
    open: Mutex<HashMap<String, (Channel, Instant)>>,
}

impl Channels {
    /// The channel to `address` (host:port). Connects at first use; a dead peer makes requests fail within 2 s, not hang.
    ///
    /// # Errors
    /// [`InvalidAddress`].
    pub fn get(&self, address: &str) -> Result<Channel, InvalidAddress> {
        let now = Instant::now();
        let mut open = self.open.lock();
        if let Some((channel, used)) = open.get_mut(address) {
            *used = now;
            return Ok(channel.clone());
        }
        let channel = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|_| InvalidAddress(address.chars().take(128).collect()))?
            .connect_timeout(Duration::from_secs(2))
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_timeout(Duration::from_secs(5))
            .keep_alive_while_idle(true)
            .initial_stream_window_size(Some(1 << 20))
            .initial_connection_window_size(Some(8 << 20))
            .connect_lazy();
        if open.len() >= MAX_CHANNELS
            && let Some(oldest) = open.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone())
        {
            open.remove(&oldest);
        }
        open.insert(address.to_owned(), (channel.clone(), now));
        Ok(channel)
    }

    /// Forgets a channel, so that the next use connects anew.
    pub fn forget(&self, address: &str) {
        self.open.lock().remove(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_pool_is_bounded() {
        let channels = Channels::default();
        for port in 1..=(MAX_CHANNELS + 10) {
            channels.get(&format!("127.0.0.1:{port}")).unwrap();
        }
        assert_eq!(channels.open.lock().len(), MAX_CHANNELS);
        assert!(channels.get("not an address").is_err());
    }
}
