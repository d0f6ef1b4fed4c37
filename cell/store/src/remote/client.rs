//! A store elsewhere: finds its address at every request, waits at most a bound, and never repeats a request by itself.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cell_proto::directory::Role;
use cell_proto::v1::store_service_client::StoreServiceClient;
use cell_runtime::{Channels, Directory};
use tonic::transport::Channel;

use super::from_status;
use crate::{Reply, Request, Store, StoreError};

/// The longest wait for one answer; after it the outcome is unknown.
const TIMEOUT: Duration = Duration::from_secs(5);

type Resolve = dyn Fn() -> Option<String> + Send + Sync;

/// A store reached over gRPC.
#[derive(Clone)]
pub struct RemoteStore {
    resolve: Arc<Resolve>,
    channels: Arc<Channels>,
    what: String,
}

impl RemoteStore {
    /// The store of a StorageCell, by the directory.
    pub fn of_storage_cell(storage_cell: &str, directory: Directory, channels: Arc<Channels>) -> Self {
        let name = storage_cell.to_owned();
        let resolve = move || {
            let view = directory.view();
            view.members_of(Role::Store, &name).map(|member| member.grpc_address.clone()).next()
        };
        Self { resolve: Arc::new(resolve), channels, what: format!("StorageCell {storage_cell}") }
    }

    /// The store at a fixed address (host:port).
    pub fn at(address: &str, channels: Arc<Channels>) -> Self {
        let fixed = address.to_owned();
        Self { resolve: Arc::new(move || Some(fixed.clone())), channels, what: address.to_owned() }
    }

    fn client(&self) -> Result<StoreServiceClient<Channel>, StoreError> {
        let address = (self.resolve)()
            .ok_or_else(|| StoreError::Unavailable(format!("no live store of {} is known", self.what)))?;
        let channel = self.channels.get(&address).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(StoreServiceClient::new(channel)
            .max_decoding_message_size(cell_proto::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(cell_proto::MAX_MESSAGE_BYTES))
    }
}

macro_rules! dispatch {
    ($client:expr, $request:expr, $($name:ident => $method:ident -> $reply:ident,)*) => {
        match $request {
            $(Request::$name(request) => $client.$method(request).await.map(|reply| Reply::$reply(reply.into_inner())),)*
        }
    };
}

#[async_trait]
impl Store for RemoteStore {
    async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        let mut client = self.client()?;
        let work = async move {
            dispatch!(client, request,
                Describe => describe -> Describe,
                ReadHead => read_head -> Head,
                CasHead => cas_head -> CasHead,
                ListHeads => list_heads -> Heads,
                OpenSegment => open_segment -> Segment,
                CasSegment => cas_segment -> Segment,
                Append => append -> Segment,
                ReadSegment => read_segment -> Segment,
                DropSegment => drop_segment -> DropSegment,
                ReadCursor => read_cursor -> ReadCursor,
                WriteCursor => write_cursor -> WriteCursor,
                Write => write -> Write,
                ReadRows => read_rows -> Rows,
            )
        };
        match tokio::time::timeout(TIMEOUT, work).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(status)) => Err(from_status(&status)),
            Err(_) => Err(StoreError::UnknownOutcome(format!("no answer within {} s", TIMEOUT.as_secs()))),
        }
    }
}
