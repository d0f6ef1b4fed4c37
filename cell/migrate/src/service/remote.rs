//! The desk as a worker sees it over the network: found anew at every call, never waited for beyond a bound.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cell_proto::v1::LeaseRequest;
use cell_proto::v1::migrate_service_client::MigrateServiceClient;
use cell_runtime::Channels;
use tonic::Status;
use tonic::transport::Channel;

use super::wire;
use crate::desk::{DeskError, Leases};
use crate::ranges::{Grant, Progress, Verdict};

const TIMEOUT: Duration = Duration::from_secs(5);

/// A coordinator elsewhere.
pub struct RemoteDesk {
    resolve: Box<dyn Fn() -> Option<String> + Send + Sync>,
    channels: Arc<Channels>,
    run_id: String,
}

impl RemoteDesk {
    /// `resolve` says at every call where it is.
    pub fn new(
        resolve: impl Fn() -> Option<String> + Send + Sync + 'static,
        channels: Arc<Channels>,
        run_id: &str,
    ) -> Self {
        Self { resolve: Box::new(resolve), channels, run_id: run_id.to_owned() }
    }

    fn client(&self) -> Result<MigrateServiceClient<Channel>, DeskError> {
        let address = (self.resolve)()
            .ok_or_else(|| DeskError::Away("no coordinator of this migration is registered".to_owned()))?;
        let channel = self.channels.get(&address).map_err(|error| DeskError::Away(error.to_string()))?;
        Ok(MigrateServiceClient::new(channel))
    }
}

async fn within<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, DeskError> {
    match tokio::time::timeout(TIMEOUT, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(DeskError::Away(status.message().to_owned())),
        Err(_) => Err(DeskError::Away(format!("no answer within {} s", TIMEOUT.as_secs()))),
    }
}

#[async_trait]
impl Leases for RemoteDesk {
    async fn lease(&self, worker: &str) -> Result<Option<Grant>, DeskError> {
        let request = LeaseRequest { worker: worker.to_owned(), run_id: self.run_id.clone() };
        let reply = within(self.client()?.lease(request)).await?;
        if let Some(refusal) = reply.refusal {
            return Err(DeskError::Away(refusal.message));
        }
        Ok(if reply.lease_id == 0 { None } else { wire::grant_of_wire(reply) })
    }

    async fn report(&self, progress: Progress) -> Result<Verdict, DeskError> {
        let report = wire::progress_to_wire(progress, &self.run_id);
        within(self.client()?.report(report)).await.map(wire::verdict_of_wire)
    }
}
