//! The operations of a store as values, so that a pure machine can ask for them and a simulation can delay, lose or repeat them.

use cell_proto::v1::{
    AppendRequest, CasHeadReply, CasHeadRequest, CasSegmentRequest, DescribeReply, DescribeRequest, DropSegmentReply,
    DropSegmentRequest, ListHeadsReply, ListHeadsRequest, OpenSegmentRequest, ReadCursorReply, ReadCursorRequest,
    ReadHeadReply, ReadHeadRequest, ReadRowsReply, ReadRowsRequest, ReadSegmentRequest, ScanRowsReply, ScanRowsRequest,
    SegmentReply, WriteCursorReply, WriteCursorRequest, WriteReply, WriteRequest,
};

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($request:ty) -> $reply:ident($reply_type:ty), $label:literal;)*) => {
        /// One operation of a store.
        #[derive(Clone, PartialEq, Debug)]
        pub enum Request {
            $($(#[$doc])* $name($request),)*
        }

        impl Request {
            /// A stable word for metrics and logs.
            pub fn label(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $label,)*
                }
            }
        }

        $(impl From<$request> for Request {
            fn from(request: $request) -> Self {
                Self::$name(request)
            }
        })*
    };
}

operations! {
    /// What engine this is.
    Describe(DescribeRequest) -> Describe(DescribeReply), "describe";
    /// Serial read of a head.
    ReadHead(ReadHeadRequest) -> Head(ReadHeadReply), "read-head";
    /// Compare-and-set of a whole head row.
    CasHead(CasHeadRequest) -> CasHead(CasHeadReply), "cas-head";
    /// Heads by log name.
    ListHeads(ListHeadsRequest) -> Heads(ListHeadsReply), "list-heads";
    /// Create a segment if absent.
    OpenSegment(OpenSegmentRequest) -> Segment(SegmentReply), "open-segment";
    /// Compare-and-set of a segment's whole statics.
    CasSegment(CasSegmentRequest) -> Segment(SegmentReply), "cas-segment";
    /// The conditional append.
    Append(AppendRequest) -> Segment(SegmentReply), "append";
    /// Serial read of a segment.
    ReadSegment(ReadSegmentRequest) -> Segment(SegmentReply), "read-segment";
    /// Drop a segment whole.
    DropSegment(DropSegmentRequest) -> DropSegment(DropSegmentReply), "drop-segment";
    /// Read a cursor; 0 when never written.
    ReadCursor(ReadCursorRequest) -> ReadCursor(ReadCursorReply), "read-cursor";
    /// Raise a cursor; never lowers it.
    WriteCursor(WriteCursorRequest) -> WriteCursor(WriteCursorReply), "write-cursor";
    /// Plain writes with their write times.
    Write(WriteRequest) -> Write(WriteReply), "write";
    /// Rows of one partition.
    ReadRows(ReadRowsRequest) -> Rows(ReadRowsReply), "read-rows";
    /// Rows of a table by token.
    ScanRows(ScanRowsRequest) -> Scan(ScanRowsReply), "scan-rows";
}

/// The answer to a [`Request`].
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// To `Describe`.
    Describe(DescribeReply),
    /// To `ReadHead`.
    Head(ReadHeadReply),
    /// To `CasHead`.
    CasHead(CasHeadReply),
    /// To `ListHeads`.
    Heads(ListHeadsReply),
    /// To `OpenSegment`, `CasSegment`, `Append`, `ReadSegment`.
    Segment(SegmentReply),
    /// To `DropSegment`.
    DropSegment(DropSegmentReply),
    /// To `ReadCursor`.
    ReadCursor(ReadCursorReply),
    /// To `WriteCursor`.
    WriteCursor(WriteCursorReply),
    /// To `Write`.
    Write(WriteReply),
    /// To `ReadRows`.
    Rows(ReadRowsReply),
    /// To `ScanRows`.
    Scan(ScanRowsReply),
}
