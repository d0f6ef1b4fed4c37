//! Feed cursors: how far guilds' owners have processed a log. They are kept where the log is served; a copy gets them too, as far as it
//! answers, and the highest one found counts, so that a cutover sends nobody back.

use cell_proto::v1::{AckFeedReply, AckFeedRequest, Refusal};

use super::handle::LogHandle;
use super::logs::{Located, unavailable};
use super::service::DataServer;
use crate::machine::{feed_cursor, pointer_of};

/// How long another StorageCell may take to say what it knows; it is not waited for longer.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

impl DataServer {
    pub(super) async fn ack(&self, request: &AckFeedRequest) -> Result<AckFeedReply, Refusal> {
        super::logs::parse(&request.log)?;
        let name = feed_cursor(request.guild_id);
        let handle = self.logs.get(&request.log);
        if let (Some(handle), true) = (&handle, request.number > 0)
            && let Ok(store) = handle.store()
        {
            let cursor = store.write_cursor(&request.log, &name, request.number).await;
            self.ack_at_copy(handle, request, name);
            return Ok(AckFeedReply { cursor: cursor.map_err(|error| unavailable(&error))?, refusal: None });
        }
        let located = self.logs.locate(&request.log).await?;
        let cursor = match request.number {
            0 => located.store.read_cursor(&request.log, &name).await,
            number => located.store.write_cursor(&request.log, &name, number).await,
        };
        let mut cursor = cursor.map_err(|error| unavailable(&error))?;
        if request.number == 0 {
            for other in self.other_stores(&located, handle.as_ref()) {
                let Ok(store) = self.logs.store(&other) else { continue };
                let read = tokio::time::timeout(PATIENCE, store.read_cursor(&request.log, &name)).await;
                cursor = cursor.max(read.ok().and_then(Result::ok).unwrap_or(0));
            }
        }
        Ok(AckFeedReply { cursor, refusal: None })
    }

    /// Nobody waits for the copy.
    fn ack_at_copy(&self, handle: &LogHandle, request: &AckFeedRequest, name: String) {
        let Some(copy) = handle.copy().filter(|copy| copy.blocked_by.is_empty()) else { return };
        let Ok(store) = self.logs.store(&copy.target) else { return };
        let (log, number) = (request.log.clone(), request.number);
        tokio::spawn(async move {
            let written = tokio::time::timeout(PATIENCE, store.write_cursor(&log, &name, number)).await;
            if !matches!(written, Ok(Ok(_))) {
                tracing::debug!(%log, %name, "a feed cursor was not written to the copy; the serving store has it");
            }
        });
    }

    /// StorageCells that may know a log's feed cursors: it was served there, or is copied there.
    fn other_stores(&self, located: &Located, handle: Option<&LogHandle>) -> Vec<String> {
        let serving = &located.place.store;
        let context = &self.logs.context;
        let mut others = context.copies.peers(&context.directory.view(), &located.log, serving);
        others.extend(handle.and_then(LogHandle::copy).map(|copy| copy.target));
        others.extend(located.place.head.as_ref().and_then(pointer_of).map(str::to_owned));
        others.push(context.stores.home().to_owned());
        others.retain(|other| other != serving);
        others.sort();
        others.dedup();
        others
    }
}
