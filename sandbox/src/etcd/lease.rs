//! The Lease service. It shows and touches only leases of the etcd API.

use std::pin::Pin;

use etcd_client::proto::{
    PbLeaseGrantRequest, PbLeaseGrantResponse, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse, PbLeaseLeasesRequest,
    PbLeaseLeasesResponse, PbLeaseRevokeRequest, PbLeaseRevokeResponse, PbLeaseService, PbLeaseStatus,
    PbLeaseTimeToLiveRequest, PbLeaseTimeToLiveResponse,
};
use futures::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::refusal::status;
use super::{convert, keys};
use crate::store::{LeaseGrant, LeaseOwner, Store, StoreError};

pub(super) struct LeaseService {
    pub store: Store,
    pub shutdown: CancellationToken,
}

/// The id, if it can be one of the etcd API's.
pub(super) fn own(id: i64) -> Result<i64, Status> {
    if id > 0 { Ok(id) } else { Err(status(StoreError::LeaseNotFound { id })) }
}

fn keep_alive(store: &Store, id: i64) -> PbLeaseKeepAliveResponse {
    // A lease that is gone is told by a time to live of zero, not by an error: the stream carries other leases too.
    let ttl = own(id).ok().and_then(|id| store.lease_keep_alive(id).ok()).unwrap_or(0);
    PbLeaseKeepAliveResponse { header: convert::header(store.revision()), id, ttl }
}

#[tonic::async_trait]
impl PbLeaseService for LeaseService {
    type LeaseKeepAliveStream = Pin<Box<dyn Stream<Item = Result<PbLeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_grant(
        &self,
        request: Request<PbLeaseGrantRequest>,
    ) -> Result<Response<PbLeaseGrantResponse>, Status> {
        let request = request.get_ref();
        let id = Some(request.id).filter(|id| *id != 0);
        let grant = LeaseGrant { id, ttl_seconds: request.ttl, owner: LeaseOwner::Etcd };
        let (id, ttl) = self.store.lease_grant(grant).await.map_err(status)?;
        let header = convert::header(self.store.revision());
        Ok(Response::new(PbLeaseGrantResponse { header, id, ttl, error: String::new() }))
    }

    async fn lease_revoke(
        &self,
        request: Request<PbLeaseRevokeRequest>,
    ) -> Result<Response<PbLeaseRevokeResponse>, Status> {
        let revision = self.store.lease_revoke(own(request.get_ref().id)?).await.map_err(status)?;
        Ok(Response::new(PbLeaseRevokeResponse { header: convert::header(revision) }))
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<PbLeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let store = self.store.clone();
        let answers = request
            .into_inner()
            .map(move |request| request.map(|request| keep_alive(&store, request.id)))
            .take_until(self.shutdown.clone().cancelled_owned());
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<PbLeaseTimeToLiveRequest>,
    ) -> Result<Response<PbLeaseTimeToLiveResponse>, Status> {
        let request = request.get_ref();
        let header = convert::header(self.store.revision());
        let response = match self.store.lease(request.id).filter(|lease| lease.id > 0) {
            None => PbLeaseTimeToLiveResponse { header, id: request.id, ttl: -1, granted_ttl: 0, keys: Vec::new() },
            Some(lease) => {
                let keys = lease.keys.iter().filter(|_| request.keys);
                let keys = keys.filter_map(|key| keys::outer(key).map(<[u8]>::to_vec)).collect();
                let (ttl, granted_ttl) = (lease.remaining_seconds, lease.granted_seconds);
                PbLeaseTimeToLiveResponse { header, id: request.id, ttl, granted_ttl, keys }
            }
        };
        Ok(Response::new(response))
    }

    async fn lease_leases(
        &self,
        _request: Request<PbLeaseLeasesRequest>,
    ) -> Result<Response<PbLeaseLeasesResponse>, Status> {
        let leases = self.store.leases(LeaseOwner::Etcd).into_iter().map(|id| PbLeaseStatus { id }).collect();
        Ok(Response::new(PbLeaseLeasesResponse { header: convert::header(self.store.revision()), leases }))
    }
}
