//! Registration of this process as a member: a lease kept alive, the member's key under it, registered anew whenever the lease is
//! lost, withdrawn at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use cell_proto::directory::Member;
use etcd_client::{Client, PutOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Directory, DirectoryError, REQUEST_TIMEOUT};

/// Time to live of a member's lease, in seconds: how long a dead process looks alive.
pub const LEASE_SECONDS: i64 = 5;

/// A kept registration.
pub struct Registration {
    directory: Directory,
    member: watch::Sender<Member>,
    lease: Arc<AtomicI64>,
    task: JoinHandle<()>,
}

impl Registration {
    /// The lease, when registered.
    pub fn lease(&self) -> Option<i64> {
        Some(self.lease.load(Ordering::Acquire)).filter(|lease| *lease != 0)
    }

    /// Whether the lease is held, as far as known.
    pub fn is_registered(&self) -> bool {
        self.lease().is_some()
    }

    /// Says to everyone that this process is finishing.
    pub fn set_draining(&self) {
        self.member.send_modify(|member| member.draining = true);
    }

    /// Withdraws the registration; bounded, best effort: the lease ends it otherwise.
    pub async fn withdraw(&self) {
        self.task.abort();
        let Some(lease) = self.lease() else { return };
        let work = async {
            self.directory.connect().await?.lease_revoke(lease).await.map_err(|e| self.directory.unavailable(e))
        };
        if let Ok(Err(error)) | Err(error) =
            tokio::time::timeout(REQUEST_TIMEOUT, work).await.map_err(|e| self.directory.unavailable(e))
        {
            tracing::debug!(%error, "the registration was left to its lease");
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Directory {
    /// Registers this process and keeps it registered.
    pub fn register(&self, member: Member) -> Registration {
        let lease = Arc::new(AtomicI64::new(0));
        let (sender, receiver) = watch::channel(member);
        let task = tokio::spawn(keep(self.clone(), receiver, lease.clone()));
        Registration { directory: self.clone(), member: sender, lease, task }
    }
}

async fn keep(directory: Directory, mut member: watch::Receiver<Member>, lease: Arc<AtomicI64>) {
    let mut pause = Duration::from_millis(100);
    loop {
        match hold(&directory, &mut member, &lease).await {
            Ok(()) => return,
            Err(error) => {
                let had = lease.swap(0, Ordering::AcqRel) != 0;
                if had {
                    tracing::warn!(%error, "the registration was lost; registering anew");
                    pause = Duration::from_millis(100);
                } else {
                    tracing::debug!(%error, "failed to register; trying again");
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Holds one lease as long as it lives. Ends without error when nobody holds the registration any more.
async fn hold(
    directory: &Directory,
    member: &mut watch::Receiver<Member>,
    lease: &AtomicI64,
) -> Result<(), DirectoryError> {
    let unavailable = |error: etcd_client::Error| directory.unavailable(error);
    let mut client = directory.connect().await?;
    let id = client.lease_grant(LEASE_SECONDS, None).await.map_err(unavailable)?.id();
    put(directory, &mut client, member, id).await?;
    lease.store(id, Ordering::Release);
    let (mut keeper, mut answers) = client.lease_keep_alive(id).await.map_err(unavailable)?;
    let mut beat = tokio::time::interval(Duration::from_millis(1200));
    loop {
        tokio::select! {
            _ = beat.tick() => {
                let one = async {
                    keeper.keep_alive().await.map_err(unavailable)?;
                    answers.message().await.map_err(unavailable)
                };
                let answer = tokio::time::timeout(REQUEST_TIMEOUT, one).await.map_err(|error| directory.unavailable(error))??;
                if answer.is_none_or(|answer| answer.ttl() <= 0) {
                    return Err(directory.unavailable("the lease has expired"));
                }
            }
            changed = member.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                put(directory, &mut client, member, id).await?;
            }
        }
    }
}

async fn put(
    directory: &Directory,
    client: &mut Client,
    member: &mut watch::Receiver<Member>,
    lease: i64,
) -> Result<(), DirectoryError> {
    let member = member.borrow_and_update().clone();
    let key = directory.keys().member(member.role, &member.cell, &member.id);
    let value = serde_json::to_vec(&member)
        .map_err(|error| DirectoryError::Malformed { key: key.clone(), message: error.to_string() })?;
    client
        .put(key, value, Some(PutOptions::new().with_lease(lease)))
        .await
        .map_err(|error| directory.unavailable(error))?;
    Ok(())
}
