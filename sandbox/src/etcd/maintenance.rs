//! The Maintenance service: status, and the alarms a client may list. The rest belongs to a real etcd.

use etcd_client::proto::{
    PbAlarmRequest, PbAlarmResponse, PbDefragmentRequest, PbDefragmentResponse, PbDowngradeRequest,
    PbDowngradeResponse, PbHashKvRequest, PbHashKvResponse, PbHashRequest, PbHashResponse, PbMaintenanceService,
    PbMoveLeaderRequest, PbMoveLeaderResponse, PbSnapshotRequest, PbSnapshotResponse, PbStatusRequest,
    PbStatusResponse,
};
use tonic::{Request, Response, Status};

use super::convert;
use super::refusal::unimplemented;
use crate::store::Store;

/// The version whose API this is.
const ETCD_VERSION: &str = "3.6.0";

pub(super) struct MaintenanceService {
    pub store: Store,
}

#[tonic::async_trait]
impl PbMaintenanceService for MaintenanceService {
    type SnapshotStream = tokio_stream::Empty<Result<PbSnapshotResponse, Status>>;

    async fn status(&self, _request: Request<PbStatusRequest>) -> Result<Response<PbStatusResponse>, Status> {
        let stats = self.store.stats();
        let bytes = i64::try_from(stats.bytes).unwrap_or(i64::MAX);
        let index = u64::try_from(stats.revision).unwrap_or(0);
        Ok(Response::new(PbStatusResponse {
            header: convert::header(stats.revision),
            version: ETCD_VERSION.to_owned(),
            db_size: bytes,
            db_size_in_use: bytes,
            leader: convert::MEMBER_ID,
            raft_index: index,
            raft_applied_index: index,
            raft_term: convert::RAFT_TERM,
            errors: stats.trouble.iter().map(ToString::to_string).collect(),
            ..PbStatusResponse::default()
        }))
    }

    async fn alarm(&self, request: Request<PbAlarmRequest>) -> Result<Response<PbAlarmResponse>, Status> {
        // Listing is all there is: nothing here raises an alarm that an operator would have to clear.
        if request.get_ref().action != 0 {
            return Err(unimplemented("alarms to raise or clear"));
        }
        Ok(Response::new(PbAlarmResponse { header: convert::header(self.store.revision()), alarms: Vec::new() }))
    }

    async fn defragment(
        &self,
        _request: Request<PbDefragmentRequest>,
    ) -> Result<Response<PbDefragmentResponse>, Status> {
        Err(unimplemented("defragmentation"))
    }

    async fn hash(&self, _request: Request<PbHashRequest>) -> Result<Response<PbHashResponse>, Status> {
        Err(unimplemented("hashes of the store"))
    }

    async fn hash_kv(&self, _request: Request<PbHashKvRequest>) -> Result<Response<PbHashKvResponse>, Status> {
        Err(unimplemented("hashes of the store"))
    }

    async fn snapshot(&self, _request: Request<PbSnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        Err(unimplemented("snapshots"))
    }

    async fn move_leader(
        &self,
        _request: Request<PbMoveLeaderRequest>,
    ) -> Result<Response<PbMoveLeaderResponse>, Status> {
        Err(unimplemented("leaders to move: it has one member"))
    }

    async fn downgrade(&self, _request: Request<PbDowngradeRequest>) -> Result<Response<PbDowngradeResponse>, Status> {
        Err(unimplemented("downgrades"))
    }
}
