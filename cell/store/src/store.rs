//! The trait every engine implements: one operation at a time, each answered or failed with a [`StoreError`]. Retries and settling of
//! unknown outcomes are the caller's.

use async_trait::async_trait;
use cell_proto::v1::{
    AppendRequest, CasHeadReply, CasHeadRequest, CasSegmentRequest, DescribeReply, DescribeRequest, DropSegmentRequest,
    Head, ListHeadsReply, ListHeadsRequest, OpenSegmentRequest, ReadCursorRequest, ReadHeadRequest, ReadRowsReply,
    ReadRowsRequest, ReadSegmentRequest, ScanRowsReply, ScanRowsRequest, SegmentReply, WriteCursorRequest,
    WriteRequest,
};

use crate::{Reply, Request, StoreError};

/// A StorageCell's store.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Does one operation.
    ///
    /// # Errors
    /// [`StoreError`]; after [`StoreError::UnknownOutcome`] the operation may still take effect later.
    async fn call(&self, request: Request) -> Result<Reply, StoreError>;

    /// The engine's name, format and StorageCell.
    async fn describe(&self) -> Result<DescribeReply, StoreError> {
        match self.call(DescribeRequest {}.into()).await? {
            Reply::Describe(reply) => Ok(reply),
            other => Err(mismatched(&other)),
        }
    }

    /// Serial read of a log's head; none when there is no such head.
    async fn read_head(&self, log: &str) -> Result<Option<Head>, StoreError> {
        match self.call(ReadHeadRequest { log: log.to_owned() }.into()).await? {
            Reply::Head(reply) => Ok(reply.head),
            other => Err(mismatched(&other)),
        }
    }

    /// Compare-and-set of a head's whole row; expected none = create.
    async fn cas_head(&self, expected: Option<Head>, new: Head) -> Result<CasHeadReply, StoreError> {
        match self.call(CasHeadRequest { log: new.log.clone(), expected, new: Some(new) }.into()).await? {
            Reply::CasHead(reply) => Ok(reply),
            other => Err(mismatched(&other)),
        }
    }

    /// Heads by log name.
    async fn list_heads(&self, request: ListHeadsRequest) -> Result<ListHeadsReply, StoreError> {
        match self.call(request.into()).await? {
            Reply::Heads(reply) => Ok(reply),
            other => Err(mismatched(&other)),
        }
    }

    /// Creates a segment if absent; the reply's statics are what is there afterwards.
    async fn open_segment(&self, request: OpenSegmentRequest) -> Result<SegmentReply, StoreError> {
        segment(self.call(request.into()).await?)
    }

    /// Compare-and-set of a segment's statics.
    async fn cas_segment(&self, request: CasSegmentRequest) -> Result<SegmentReply, StoreError> {
        segment(self.call(request.into()).await?)
    }

    /// The conditional append.
    async fn append(&self, request: AppendRequest) -> Result<SegmentReply, StoreError> {
        segment(self.call(request.into()).await?)
    }

    /// Serial read of a segment's statics and of entries from a number on; long answers stop early.
    async fn read_segment(&self, request: ReadSegmentRequest) -> Result<SegmentReply, StoreError> {
        segment(self.call(request.into()).await?)
    }

    /// Drops a segment whole; an absent one is no error.
    async fn drop_segment(&self, log: &str, number: u64) -> Result<(), StoreError> {
        match self.call(DropSegmentRequest { log: log.to_owned(), segment: number }.into()).await? {
            Reply::DropSegment(_) => Ok(()),
            other => Err(mismatched(&other)),
        }
    }

    /// A cursor's value; 0 when it was never written.
    async fn read_cursor(&self, log: &str, name: &str) -> Result<u64, StoreError> {
        match self.call(ReadCursorRequest { log: log.to_owned(), name: name.to_owned() }.into()).await? {
            Reply::ReadCursor(reply) => Ok(reply.value),
            other => Err(mismatched(&other)),
        }
    }

    /// Raises a cursor and answers its value afterwards.
    async fn write_cursor(&self, log: &str, name: &str, value: u64) -> Result<u64, StoreError> {
        let request = WriteCursorRequest { log: log.to_owned(), name: name.to_owned(), value };
        match self.call(request.into()).await? {
            Reply::WriteCursor(reply) => Ok(reply.value),
            other => Err(mismatched(&other)),
        }
    }

    /// Writes cells, rows' and ranges' tombstones, all or nothing on this engine.
    async fn write(&self, request: WriteRequest) -> Result<(), StoreError> {
        match self.call(request.into()).await? {
            Reply::Write(_) => Ok(()),
            other => Err(mismatched(&other)),
        }
    }

    /// Live rows of one partition, in clustering order.
    async fn read_rows(&self, request: ReadRowsRequest) -> Result<ReadRowsReply, StoreError> {
        match self.call(request.into()).await? {
            Reply::Rows(reply) => Ok(reply),
            other => Err(mismatched(&other)),
        }
    }

    /// Live rows of a table by token.
    async fn scan_rows(&self, request: ScanRowsRequest) -> Result<ScanRowsReply, StoreError> {
        match self.call(request.into()).await? {
            Reply::Scan(reply) => Ok(reply),
            other => Err(mismatched(&other)),
        }
    }
}

fn segment(reply: Reply) -> Result<SegmentReply, StoreError> {
    match reply {
        Reply::Segment(reply) => Ok(reply),
        other => Err(mismatched(&other)),
    }
}

/// The answer is of another kind than the question; for a write nothing is known then.
pub(crate) fn mismatched(reply: &Reply) -> StoreError {
    let kind = match reply {
        Reply::Describe(_) => "describe",
        Reply::Head(_) => "head",
        Reply::CasHead(_) => "cas-head",
        Reply::Heads(_) => "heads",
        Reply::Segment(_) => "segment",
        Reply::DropSegment(_) => "drop-segment",
        Reply::ReadCursor(_) => "read-cursor",
        Reply::WriteCursor(_) => "write-cursor",
        Reply::Write(_) => "write",
        Reply::Rows(_) => "rows",
        Reply::Scan(_) => "scan",
    };
    StoreError::UnknownOutcome(format!("the answer is of the wrong kind ({kind})"))
}
