//! The gRPC side of a store: one method per operation, a bound on how many run at once, and counters.

use std::sync::Arc;
use std::time::Instant;

use cell_proto::v1::store_service_server::{StoreService, StoreServiceServer};
use cell_proto::v1::{
    AppendRequest, CasHeadReply, CasHeadRequest, CasSegmentRequest, DescribeReply, DescribeRequest, DropSegmentReply,
    DropSegmentRequest, ListHeadsReply, ListHeadsRequest, OpenSegmentRequest, ReadCursorReply, ReadCursorRequest,
    ReadHeadReply, ReadHeadRequest, ReadRowsReply, ReadRowsRequest, ReadSegmentRequest, ScanRowsReply, ScanRowsRequest,
    SegmentReply, WriteCursorReply, WriteCursorRequest, WriteReply, WriteRequest,
};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tonic::{Request as Call, Response, Status};

use super::to_status;
use crate::store::mismatched;
use crate::{Reply, Request, Store, StoreError};

/// Requests in the store at once, over all connections; more are refused at once with `unavailable`.
const MAX_CONCURRENT: usize = 2048;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    operation: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation: &'static str,
}

#[derive(Clone)]
struct Metrics {
    requests: Family<Outcome, Counter>,
    seconds: Family<Operation, Histogram, fn() -> Histogram>,
}

fn buckets() -> Histogram {
    // From a cached read to a stalled disk.
    Histogram::new([0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0])
}

/// Serves a store.
#[derive(Clone)]
pub struct StoreServer {
    store: Arc<dyn Store>,
    permits: Arc<Semaphore>,
    metrics: Metrics,
}

impl StoreServer {
    /// Registers its metrics in `registry`.
    pub fn new(store: Arc<dyn Store>, registry: &mut Registry) -> Self {
        let metrics = Metrics {
            requests: Family::default(),
            seconds: Family::new_with_constructor(buckets as fn() -> Histogram),
        };
        registry.register(
            "store_requests",
            "Requests by operation and outcome; `ok` includes conditions that did not hold",
            metrics.requests.clone(),
        );
        registry.register("store_request_seconds", "Time in the store, sync included", metrics.seconds.clone());
        Self { store, permits: Arc::new(Semaphore::new(MAX_CONCURRENT)), metrics }
    }

    /// The tonic service.
    pub fn into_service(self) -> StoreServiceServer<Self> {
        StoreServiceServer::new(self)
            .max_decoding_message_size(cell_proto::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(cell_proto::MAX_MESSAGE_BYTES)
    }

    #[allow(clippy::disallowed_methods)]
    async fn run(&self, request: Request) -> Result<Reply, Status> {
        let operation = request.label();
        let started = Instant::now();
        let result = match self.permits.try_acquire() {
            Ok(_permit) => self.store.call(request).await,
            Err(_) => Err(StoreError::Unavailable(format!("{MAX_CONCURRENT} requests are in the store; retry"))),
        };
        let outcome = result.as_ref().map_or_else(StoreError::label, |_| "ok");
        self.metrics.requests.get_or_create(&Outcome { operation, outcome }).inc();
        self.metrics.seconds.get_or_create(&Operation { operation }).observe(started.elapsed().as_secs_f64());
        result.map_err(|error| to_status(&error))
    }
}

macro_rules! serve {
    ($($method:ident($request:ty) -> $variant:ident($reply:ty);)*) => {
        #[tonic::async_trait]
        impl StoreService for StoreServer {
            $(async fn $method(&self, call: Call<$request>) -> Result<Response<$reply>, Status> {
                match self.run(call.into_inner().into()).await? {
                    Reply::$variant(reply) => Ok(Response::new(reply)),
                    other => Err(to_status(&mismatched(&other))),
                }
            })*
        }
    };
}

serve! {
    describe(DescribeRequest) -> Describe(DescribeReply);
    read_head(ReadHeadRequest) -> Head(ReadHeadReply);
    cas_head(CasHeadRequest) -> CasHead(CasHeadReply);
    list_heads(ListHeadsRequest) -> Heads(ListHeadsReply);
    open_segment(OpenSegmentRequest) -> Segment(SegmentReply);
    cas_segment(CasSegmentRequest) -> Segment(SegmentReply);
    append(AppendRequest) -> Segment(SegmentReply);
    read_segment(ReadSegmentRequest) -> Segment(SegmentReply);
    drop_segment(DropSegmentRequest) -> DropSegment(DropSegmentReply);
    read_cursor(ReadCursorRequest) -> ReadCursor(ReadCursorReply);
    write_cursor(WriteCursorRequest) -> WriteCursor(WriteCursorReply);
    write(WriteRequest) -> Write(WriteReply);
    read_rows(ReadRowsRequest) -> Rows(ReadRowsReply);
    scan_rows(ScanRowsRequest) -> Scan(ScanRowsReply);
}
