//! The Cluster service: there is one member, and there will not be another.

use std::net::SocketAddr;

use etcd_client::proto::{
    PbClusterService, PbMember, PbMemberAddRequest, PbMemberAddResponse, PbMemberListRequest, PbMemberListResponse,
    PbMemberPromoteRequest, PbMemberPromoteResponse, PbMemberRemoveRequest, PbMemberRemoveResponse,
    PbMemberUpdateRequest, PbMemberUpdateResponse,
};
use tonic::{Request, Response, Status};

use super::convert;
use super::refusal::unimplemented;
use crate::store::Store;

pub(super) struct ClusterService {
    pub store: Store,
    pub address: SocketAddr,
}

#[tonic::async_trait]
impl PbClusterService for ClusterService {
    async fn member_list(
        &self,
        _request: Request<PbMemberListRequest>,
    ) -> Result<Response<PbMemberListResponse>, Status> {
        let url = format!("http://{}", self.address);
        let member = PbMember {
            id: convert::MEMBER_ID,
            name: "sandbox".to_owned(),
            peer_ur_ls: vec![url.clone()],
            client_ur_ls: vec![url],
            is_learner: false,
        };
        let header = convert::header(self.store.revision());
        Ok(Response::new(PbMemberListResponse { header, members: vec![member] }))
    }

    async fn member_add(&self, _request: Request<PbMemberAddRequest>) -> Result<Response<PbMemberAddResponse>, Status> {
        Err(unimplemented("a second member"))
    }

    async fn member_remove(
        &self,
        _request: Request<PbMemberRemoveRequest>,
    ) -> Result<Response<PbMemberRemoveResponse>, Status> {
        Err(unimplemented("members to remove"))
    }

    async fn member_update(
        &self,
        _request: Request<PbMemberUpdateRequest>,
    ) -> Result<Response<PbMemberUpdateResponse>, Status> {
        Err(unimplemented("members to update"))
    }

    async fn member_promote(
        &self,
        _request: Request<PbMemberPromoteRequest>,
    ) -> Result<Response<PbMemberPromoteResponse>, Status> {
        Err(unimplemented("learners to promote"))
    }
}
