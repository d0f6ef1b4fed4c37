//! A store elsewhere: finds its address at every request, asks once who is there, waits at most a bound, and never repeats a
//! request by itself.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cell_proto::directory::Role;
use cell_proto::v1::DescribeRequest;
use cell_proto::v1::store_service_client::StoreServiceClient;
use cell_runtime::{Channels, Directory};
use parking_lot::Mutex;
use tonic::transport::Channel;

use super::from_status;
use crate::{Reply, Request, Store, StoreError};

/// The longest wait for one answer; after it the outcome is unknown.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Addresses remembered as checked.
const MAX_CHECKED: usize = 64;

type Resolve = dyn Fn() -> Option<String> + Send + Sync;

/// A store reached over gRPC.
#[derive(Clone)]
pub struct RemoteStore {
    resolve: Arc<Resolve>,
    channels: Arc<Channels>,
    what: String,
    /// The StorageCell that must be there; none for a fixed address.
    expected: Option<String>,
    /// Addresses that said so since they last failed.
    checked: Arc<Mutex<HashSet<String>>>,
}

impl RemoteStore {
    /// The store of a StorageCell, by the directory.
    pub fn of_storage_cell(storage_cell: &str, directory: Directory, channels: Arc<Channels>) -> Self {
        let name = storage_cell.to_owned();
        let resolve = move || {
            let view = directory.view();
            view.members_of(Role::Store, &name).map(|member| member.grpc_address.clone()).next()
        };
        Self {
            resolve: Arc::new(resolve),
            channels,
            what: format!("StorageCell {storage_cell}"),
            expected: Some(storage_cell.to_owned()),
            checked: Arc::default(),
        }
    }

    /// The store at a fixed address (host:port).
    pub fn at(address: &str, channels: Arc<Channels>) -> Self {
        let fixed = address.to_owned();
        Self {
            resolve: Arc::new(move || Some(fixed.clone())),
            channels,
            what: address.to_owned(),
            expected: None,
            checked: Arc::default(),
        }
    }

    /// The store at a fixed address (host:port), if it is that of this StorageCell.
    pub fn expecting(storage_cell: &str, address: &str, channels: Arc<Channels>) -> Self {
        Self { expected: Some(storage_cell.to_owned()), ..Self::at(address, channels) }
    }

    /// Asks once who is there: an address may have been given to another StorageCell's store, which would take this one's writes.
    async fn check(&self, address: &str, client: &mut StoreServiceClient<Channel>) -> Result<(), StoreError> {
        let Some(expected) = &self.expected else { return Ok(()) };
        if self.checked.lock().contains(address) {
            return Ok(());
        }
        let describe = tokio::time::timeout(TIMEOUT, client.describe(DescribeRequest {}));
        let reply = match describe.await {
            Ok(Ok(reply)) => reply.into_inner(),
            // Nothing was asked of the store yet, so nothing can have been done.
            Ok(Err(status)) => return Err(StoreError::Unavailable(format!("{address}: {}", status.message()))),
            Err(_) => return Err(StoreError::Unavailable(format!("{address} did not say who it is in time"))),
        };
        if reply.storage_cell != *expected {
            let found = reply.storage_cell;
            return Err(StoreError::Unavailable(format!(
                "{address} is the store of StorageCell {found}, not {expected}"
            )));
        }
        let mut checked = self.checked.lock();
        if checked.len() >= MAX_CHECKED {
            checked.clear();
        }
        checked.insert(address.to_owned());
        Ok(())
    }

    fn client(&self) -> Result<(StoreServiceClient<Channel>, String), StoreError> {
        let address = (self.resolve)()
            .ok_or_else(|| StoreError::Unavailable(format!("no live store of {} is known", self.what)))?;
        let channel = self.channels.get(&address).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let client = StoreServiceClient::new(channel)
            .max_decoding_message_size(cell_proto::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(cell_proto::MAX_MESSAGE_BYTES);
        Ok((client, address))
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
        let (mut client, address) = self.client()?;
        self.check(&address, &mut client).await?;
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
                ScanRows => scan_rows -> Scan,
            )
        };
        match tokio::time::timeout(TIMEOUT, work).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(status)) => {
                self.checked.lock().remove(&address);
                Err(from_status(&status))
            }
            Err(_) => Err(StoreError::UnknownOutcome(format!("no answer within {} s", TIMEOUT.as_secs()))),
        }
    }
}
