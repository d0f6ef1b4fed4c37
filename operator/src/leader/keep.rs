//! Takes the Lease and keeps it, with a client of its own that neither retries nor waits long. When renewing fails for too long the
//! process must end: only then can no loop of an old leader still run under a new one.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use cell_runtime::CancellationToken;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};

use super::{LEASE_DURATION, Memory, RENEW_DEADLINE, REQUEST_TIMEOUT, RETRY_PERIOD, Seen, Verdict, evaluate, has_lost};
use crate::names::LEASE;

/// The Lease could not be renewed in time, or another holds it.
#[derive(Debug, thiserror::Error)]
#[error("leadership was lost: {0}; the process ends so that nothing of it runs under another leader")]
pub struct LostLeadership(String);

/// Held leadership. Clones share it.
#[derive(Clone, Debug)]
pub struct Leadership {
    token: Arc<AtomicI32>,
    wanted: Arc<AtomicI32>,
}

impl Leadership {
    /// With a token that is already held; the keeper raises it where [`Leadership::raise_above`] asks.
    pub fn new(token: i32) -> Self {
        Self { token: Arc::new(AtomicI32::new(token)), wanted: Arc::new(AtomicI32::new(token)) }
    }

    /// The fencing token: the Lease's transitions, as written.
    pub fn token(&self) -> i32 {
        self.token.load(Ordering::Acquire)
    }

    /// Asks for a token above `stored`: the Lease was made anew, while what it fences remembers the older one's number.
    pub fn raise_above(&self, stored: i32) {
        self.wanted.fetch_max(stored.saturating_add(1), Ordering::AcqRel);
    }
}

/// Waits until this process leads. Ends early, with `None`, at `shutdown`. `standing_by` is told who holds the Lease at every look that
/// the API server answered.
pub async fn acquire(
    client: Client,
    namespace: &str,
    id: &str,
    standing_by: impl Fn(&str),
    shutdown: CancellationToken,
) -> Option<Keeper> {
    let api: Api<Lease> = Api::namespaced(client, namespace);
    let started = Instant::now();
    let mut memory: Option<Memory> = None;
    loop {
        match look(&api, id, &mut memory, started).await {
            Ok(Some(lease)) => {
                let token = transitions(&lease);
                tracing::info!(id, token, "leading");
                let leadership = Leadership::new(token);
                return Some(Keeper { api, id: id.to_owned(), lease, leadership, renewed: Instant::now() });
            }
            Ok(None) => standing_by(memory.as_ref().map_or("", |memory| memory.seen.holder.as_str())),
            Err(error) => tracing::warn!(error, "failed to read or take the Lease; looking again"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return None,
            () = tokio::time::sleep(RETRY_PERIOD) => {}
        }
    }
}

/// One look; the Lease if it is this process's now.
async fn look(
    api: &Api<Lease>,
    id: &str,
    memory: &mut Option<Memory>,
    started: Instant,
) -> Result<Option<Lease>, String> {
    let lease = bounded(api.get_opt(LEASE)).await?;
    let seen = lease.as_ref().map(seen);
    let (verdict, remembered) = evaluate(seen.as_ref(), memory.as_ref(), id, started.elapsed());
    *memory = remembered;
    match (verdict, lease) {
        (Verdict::Wait, _) => Ok(None),
        (Verdict::Create, _) | (_, None) => {
            let metadata = ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(spec(id, 1, None)) };
            bounded(api.create(&PostParams::default(), &lease)).await.map(Some)
        }
        (Verdict::Renew, Some(lease)) => {
            // Held by an earlier life of this very process id: take it as a new life.
            let next = transitions(&lease).saturating_add(1);
            replace(api, &lease, spec(id, next, None)).await.map(Some)
        }
        (Verdict::Take(next), Some(lease)) => replace(api, &lease, spec(id, next, None)).await.map(Some),
    }
}

/// Renews the Lease of a leader.
pub struct Keeper {
    api: Api<Lease>,
    id: String,
    lease: Lease,
    leadership: Leadership,
    renewed: Instant,
}

impl Keeper {
    /// What the rest of the process sees of the leadership.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Renews until `released`, then gives the Lease up; or ends because leadership was lost.
    ///
    /// # Errors
    /// [`LostLeadership`]: the process must end at once.
    pub async fn keep(mut self, released: CancellationToken) -> Result<(), LostLeadership> {
        loop {
            tokio::select! {
                () = released.cancelled() => {
                    self.release().await;
                    return Ok(());
                }
                () = tokio::time::sleep(self.pause()) => {}
            }
            // A renewal that hangs is not waited for beyond the deadline: another may lead soon after.
            let left = RENEW_DEADLINE.saturating_sub(self.renewed.elapsed());
            match tokio::time::timeout(left, self.renew()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(error, "failed to renew the Lease"),
                Err(_) => tracing::warn!("the Lease was not renewed before the deadline"),
            }
            if has_lost(Duration::ZERO, self.renewed.elapsed()) {
                return Err(LostLeadership("the Lease could not be renewed in time".into()));
            }
        }
    }

    /// Until the next renewal, but not beyond the deadline.
    fn pause(&self) -> Duration {
        RETRY_PERIOD.min(RENEW_DEADLINE.saturating_sub(self.renewed.elapsed()))
    }

    async fn renew(&mut self) -> Result<(), String> {
        // Where an answer was lost and the Lease is still ours, once more at once: a pause is what the deadline cannot spare then.
        for _ in 0..2 {
            let started = Instant::now();
            let wanted = self.leadership.wanted.load(Ordering::Acquire).max(transitions(&self.lease));
            let acquired = self.lease.spec.as_ref().and_then(|spec| spec.acquire_time.clone());
            match replace(&self.api, &self.lease, spec(&self.id, wanted, acquired)).await {
                Ok(lease) => {
                    self.lease = lease;
                    self.renewed = started;
                    self.leadership.token.store(transitions(&self.lease), Ordering::Release);
                    return Ok(());
                }
                Err(error) => {
                    // Somebody wrote it meanwhile, or the answer was lost: what it says now decides.
                    let found = bounded(self.api.get(LEASE)).await.map_err(|_| error)?;
                    if seen(&found).holder != self.id {
                        self.renewed = Instant::now().checked_sub(RENEW_DEADLINE).unwrap_or(self.renewed);
                        return Err(format!("{} holds it", seen(&found).holder));
                    }
                    self.lease = found;
                }
            }
        }
        Err("it was written by somebody else; trying again".into())
    }

    /// Lets another take over without waiting. Best effort.
    async fn release(&self) {
        let mut spec = spec("", transitions(&self.lease), None);
        spec.holder_identity = None;
        if let Err(error) = replace(&self.api, &self.lease, spec).await {
            tracing::debug!(error, "the Lease was left to run out");
        }
    }
}

async fn replace(api: &Api<Lease>, lease: &Lease, spec: LeaseSpec) -> Result<Lease, String> {
    let mut next = lease.clone();
    next.metadata.managed_fields = None;
    next.spec = Some(spec);
    // The resource version in the metadata makes this a compare-and-set.
    bounded(api.replace(&lease.name_any(), &PostParams::default(), &next)).await
}

async fn bounded<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())),
    }
}

fn spec(id: &str, transitions: i32, acquired: Option<MicroTime>) -> LeaseSpec {
    let now = MicroTime(Timestamp::from_millisecond(cell_runtime::unix_ms()).unwrap_or(Timestamp::UNIX_EPOCH));
    LeaseSpec {
        acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
        holder_identity: Some(id.to_owned()),
        lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
        lease_transitions: Some(transitions),
        renew_time: Some(now),
        ..LeaseSpec::default()
    }
}

fn transitions(lease: &Lease) -> i32 {
    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default()
}

fn seen(lease: &Lease) -> Seen {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Seen {
        holder: spec.holder_identity.unwrap_or_default(),
        transitions: spec.lease_transitions.unwrap_or_default(),
        renewal: format!("{:?} {:?}", spec.renew_time, lease.metadata.resource_version),
        duration: seconds.map_or(LEASE_DURATION, Duration::from_secs),
    }
}
