//! One link to etcd: the shared view, and reads and fenced writes with a deadline. A write succeeds only while `fencing` holds this
//! leader's token, so an old leader's late write changes nothing.

use std::sync::Arc;
use std::time::Duration;

use cell_proto::directory::Keys;
use cell_runtime::directory::{DirectoryConfig, DirectoryError};
use cell_runtime::{CancellationToken, Channels, Directory};
use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};
use tokio::sync::Mutex;

use crate::leader::Leadership;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// Why a read or write of the directory failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No answer, or a refusal.
    #[error("failed to reach etcd at {endpoints}: {message}")]
    Unavailable {
        /// The endpoints tried.
        endpoints: String,
        /// etcd's words.
        message: String,
    },
    /// A newer leader has written.
    #[error("etcd was written by a leader with fencing token {stored}; this one holds {ours} and writes nothing")]
    Fenced {
        /// What etcd holds.
        stored: i32,
        /// This leader's token.
        ours: i32,
    },
    /// A value is not what this version writes.
    #[error("failed to read {key}: {message}")]
    Malformed {
        /// The key.
        key: String,
        /// What is wrong.
        message: String,
    },
}

impl From<DirectoryError> for LinkError {
    fn from(error: DirectoryError) -> Self {
        match error {
            DirectoryError::Unavailable { endpoints, message } => Self::Unavailable { endpoints, message },
            DirectoryError::Malformed { key, message } => Self::Malformed { key, message },
        }
    }
}

/// A value and the revision that wrote it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// The key.
    pub key: String,
    /// The bytes.
    pub value: Vec<u8>,
    /// Guards the next write.
    pub revision: i64,
}

fn held_by(stored: &Stored, uid: &str) -> Result<(), String> {
    let holder = String::from_utf8_lossy(&stored.value).into_owned();
    if holder == uid { Ok(()) } else { Err(holder) }
}

/// A link to one etcd and prefix.
pub struct Link {
    config: DirectoryConfig,
    /// The view every role sees.
    pub directory: Directory,
    /// gRPC channels to the cells.
    pub channels: Arc<Channels>,
    leadership: Leadership,
    client: Mutex<Option<Client>>,
    stop: CancellationToken,
}

impl Link {
    pub(super) fn start(
        endpoints: Vec<String>,
        prefix: String,
        leadership: Leadership,
        channels: Arc<Channels>,
        stop: CancellationToken,
    ) -> Self {
        let config = DirectoryConfig { endpoints, prefix, state_dir: None };
        let directory = Directory::start(config.clone(), stop.clone());
        Self { config, directory, channels, leadership, client: Mutex::default(), stop }
    }

    pub(super) fn is_to(&self, endpoints: &[String], prefix: &str) -> bool {
        self.config.endpoints == endpoints && self.config.prefix == prefix
    }

    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// The fleet's keys.
    pub fn keys(&self) -> &Keys {
        self.directory.keys()
    }

    fn unavailable(&self, message: impl std::fmt::Display) -> LinkError {
        LinkError::Unavailable { endpoints: self.config.endpoints.join(","), message: message.to_string() }
    }

    /// The kept client; a failed request drops it.
    async fn client(&self) -> Result<Client, LinkError> {
        let mut kept = self.client.lock().await;
        if let Some(client) = &*kept {
            return Ok(client.clone());
        }
        let client = self.directory.connect().await?;
        *kept = Some(client.clone());
        Ok(client)
    }

    async fn bounded<T>(&self, work: impl Future<Output = Result<T, LinkError>>) -> Result<T, LinkError> {
        let ended = match tokio::time::timeout(REQUEST_TIMEOUT, work).await {
            Ok(ended) => ended,
            Err(_) => Err(self.unavailable(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()))),
        };
        if matches!(ended, Err(LinkError::Unavailable { .. })) {
            *self.client.lock().await = None;
        }
        ended
    }

    /// Reads one key.
    ///
    /// # Errors
    /// [`LinkError`], for this and every further call.
    pub async fn read(&self, key: &str) -> Result<Option<Stored>, LinkError> {
        Ok(self.read_with(key, None).await?.pop())
    }

    /// Reads everything below a prefix.
    ///
    /// # Errors
    /// See [`Link::read`].
    pub async fn read_below(&self, prefix: &str) -> Result<Vec<Stored>, LinkError> {
        self.read_with(prefix, Some(GetOptions::new().with_prefix())).await
    }

    async fn read_with(&self, key: &str, options: Option<GetOptions>) -> Result<Vec<Stored>, LinkError> {
        self.bounded(async {
            let mut client = self.client().await?;
            let found = client.get(key, options).await.map_err(|error| self.unavailable(error))?;
            let stored = |pair: &etcd_client::KeyValue| Stored {
                key: String::from_utf8_lossy(pair.key()).into_owned(),
                value: pair.value().to_vec(),
                revision: pair.mod_revision(),
            };
            Ok(found.kvs().iter().map(stored).collect())
        })
        .await
    }

    /// Writes under the leader's token and further guards; `false` when a guard did not hold and nothing was written.
    ///
    /// # Errors
    /// See [`Link::read`]; [`LinkError::Fenced`] when a newer leader has written.
    pub async fn write(&self, guards: Vec<Compare>, writes: Vec<TxnOp>) -> Result<bool, LinkError> {
        self.bounded(async {
            // Once to write, once more after the token was put in place, and once more for a race about the token.
            for _ in 0..3 {
                let ours = self.leadership.token();
                if self.attempt(ours, guards.clone(), writes.clone()).await? {
                    return Ok(true);
                }
                if self.fence(ours).await? {
                    return Ok(false);
                }
            }
            Ok(false)
        })
        .await
    }

    async fn attempt(&self, ours: i32, mut guards: Vec<Compare>, writes: Vec<TxnOp>) -> Result<bool, LinkError> {
        guards.push(Compare::value(self.keys().fencing(), CompareOp::Equal, ours.to_string()));
        let mut client = self.client().await?;
        let txn = Txn::new().when(guards).and_then(writes);
        Ok(client.txn(txn).await.map_err(|error| self.unavailable(error))?.succeeded())
    }

    /// Puts the token in place; `true` when it was there already, so that another guard failed.
    async fn fence(&self, ours: i32) -> Result<bool, LinkError> {
        let key = self.keys().fencing();
        let mut client = self.client().await?;
        let found = client.get(key.as_str(), None).await.map_err(|error| self.unavailable(error))?;
        let pair = found.kvs().first();
        let stored = pair.and_then(|pair| pair.value_str().ok()?.parse::<i32>().ok());
        match stored {
            Some(stored) if stored == ours => return Ok(true),
            Some(stored) if stored > ours => {
                self.leadership.raise_above(stored);
                return Err(LinkError::Fenced { stored, ours });
            }
            _ => {}
        }
        let revision = pair.map_or(0, etcd_client::KeyValue::mod_revision);
        let txn = Txn::new()
            .when([Compare::mod_revision(key.as_str(), CompareOp::Equal, revision)])
            .and_then([TxnOp::put(key.as_str(), ours.to_string(), None)]);
        client.txn(txn).await.map_err(|error| self.unavailable(error))?;
        Ok(false)
    }

    /// Claims the prefix for a fleet, or says who has it. One that is another fleet's is only read.
    ///
    /// # Errors
    /// See [`Link::read`]; [`LinkError::Fenced`] when a newer leader has written.
    pub async fn claim_prefix(&self, uid: &str) -> Result<Result<(), String>, LinkError> {
        let key = self.keys().fleet();
        if let Some(stored) = self.read(&key).await? {
            return Ok(held_by(&stored, uid));
        }
        let guard = Compare::version(key.as_str(), CompareOp::Equal, 0);
        self.write(vec![guard], vec![TxnOp::put(key.as_str(), uid, None)]).await?;
        // Read back in every case: an attempt whose answer was lost may have succeeded, and another fleet may have been first.
        match self.read(&key).await? {
            Some(stored) => Ok(held_by(&stored, uid)),
            None => Err(self.unavailable(format!("{key} was neither claimed nor held; trying again"))),
        }
    }

    /// Gives the prefix up if it is this fleet's.
    ///
    /// # Errors
    /// See [`Link::read`].
    pub async fn release_prefix(&self, uid: &str) -> Result<bool, LinkError> {
        let key = self.keys().fleet();
        let guard = Compare::value(key.as_str(), CompareOp::Equal, uid);
        self.write(vec![guard], vec![TxnOp::delete(key.as_str(), None)]).await
    }
}
