//! The KV service.

use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbKvService, PbPutRequest,
    PbPutResponse, PbRangeRequest, PbRangeResponse, PbRangeStreamResponse, PbTxnRequest, PbTxnResponse,
};
use tonic::{Request, Response, Status};

use super::refusal::{status, unimplemented};
use super::{convert, range, txn};
use crate::store::{Op, OpResult, PutLease, Store, StoreError, Txn};

pub(super) struct KvService {
    pub store: Store,
}

impl KvService {
    /// Runs one operation as a transaction; answers its revision and result.
    async fn one(&self, op: Op) -> Result<(i64, OpResult), Status> {
        let mut result = self.store.txn(Txn::always(vec![op])).await.map_err(status)?;
        match result.responses.pop() {
            Some(response) => Ok((result.revision, response)),
            None => Err(Status::internal("the store did not answer the operation")),
        }
    }
}

#[tonic::async_trait]
impl PbKvService for KvService {
    type RangeStreamStream = tokio_stream::Empty<Result<PbRangeStreamResponse, Status>>;

    async fn range(&self, request: Request<PbRangeRequest>) -> Result<Response<PbRangeResponse>, Status> {
        let (range, shape) = range::parse(request.get_ref())?;
        let found = self.store.range(&range).map_err(status)?;
        Ok(Response::new(shape.answer(found)))
    }

    async fn range_stream(
        &self,
        _request: Request<PbRangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        Err(unimplemented("streamed ranges"))
    }

    async fn put(&self, request: Request<PbPutRequest>) -> Result<Response<PbPutResponse>, Status> {
        let put = txn::parse_put(request.into_inner())?;
        // Outside a transaction etcd looks for the lease before the key.
        if let PutLease::Attach(id) = put.lease
            && self.store.lease(id).is_none()
        {
            return Err(status(StoreError::LeaseNotFound { id }));
        }
        match self.one(Op::Put(put)).await? {
            (revision, OpResult::Put(result)) => Ok(Response::new(txn::put_response(revision, &result))),
            _ => Err(Status::internal("the store answered another operation")),
        }
    }

    async fn delete_range(&self, request: Request<PbDeleteRequest>) -> Result<Response<PbDeleteResponse>, Status> {
        let delete = txn::parse_delete(request.get_ref())?;
        match self.one(Op::Delete(delete)).await? {
            (revision, OpResult::Delete(result)) => Ok(Response::new(txn::delete_response(revision, &result))),
            _ => Err(Status::internal("the store answered another operation")),
        }
    }

    async fn txn(&self, request: Request<PbTxnRequest>) -> Result<Response<PbTxnResponse>, Status> {
        let (txn, answers) = txn::parse(request.into_inner())?;
        let result = self.store.txn(txn).await.map_err(status)?;
        Ok(Response::new(txn::response(result, &answers)))
    }

    async fn compact(&self, request: Request<PbCompactionRequest>) -> Result<Response<PbCompactionResponse>, Status> {
        let revision = self.store.compact(request.get_ref().revision).await.map_err(status)?;
        Ok(Response::new(PbCompactionResponse { header: convert::header(revision) }))
    }
}
