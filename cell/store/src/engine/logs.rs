//! Heads, segments and cursors: whether a condition holds, and what changes if it does (LOG.md rules 1–5).

use cell_proto::v1::{
    AppendRequest, CasHeadReply, CasHeadRequest, CasSegmentRequest, DropSegmentReply, DropSegmentRequest, Head,
    ListHeadsReply, ListHeadsRequest, OpenSegmentRequest, ReadCursorReply, ReadCursorRequest, ReadHeadReply,
    ReadHeadRequest, ReadSegmentRequest, SegmentReply, Statics, StoredEntry, WriteCursorReply, WriteCursorRequest,
};
use prost::Message;

use super::{ANSWER_BYTES, Change, Kv, SMALL_BODY, Scan, Space, keys};
use crate::{Reply, StoreError};

type Outcome = Result<(Reply, Vec<Change>), StoreError>;

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, StoreError> {
    M::decode(bytes).map_err(|error| StoreError::Damaged(error.to_string()))
}

fn head(kv: &dyn Kv, log: &str) -> Result<Option<Head>, StoreError> {
    kv.get(Space::Heads, log.as_bytes())?.map(|bytes| decode(&bytes)).transpose()
}

fn statics(kv: &dyn Kv, log: &str, segment: u64) -> Result<Option<Statics>, StoreError> {
    kv.get(Space::Segments, &keys::segment(log, segment))?.map(|bytes| decode(&bytes)).transpose()
}

pub(super) fn read_head(kv: &dyn Kv, request: &ReadHeadRequest) -> Outcome {
    let log = keys::name("log", &request.log)?;
    Ok((Reply::Head(ReadHeadReply { head: head(kv, log)? }), Vec::new()))
}

pub(super) fn cas_head(kv: &dyn Kv, request: CasHeadRequest) -> Outcome {
    let log = keys::name("log", &request.log)?;
    let new = request.new.ok_or_else(|| StoreError::Invalid("new head is missing".to_owned()))?;
    if new.log != log {
        return Err(StoreError::Invalid(format!("the new head names log {:?}, not {log:?}", new.log)));
    }
    let current = head(kv, log)?;
    if current != request.expected {
        return Ok((Reply::CasHead(CasHeadReply { applied: false, current }), Vec::new()));
    }
    if let Some(current) = current.as_ref().filter(|current| current.term > new.term) {
        return Err(StoreError::Invalid(format!("the head of {log:?} has term {}, above {}", current.term, new.term)));
    }
    let change = (Space::Heads, log.as_bytes().to_vec(), Some(new.encode_to_vec()));
    Ok((Reply::CasHead(CasHeadReply { applied: true, current: Some(new) }), vec![change]))
}

pub(super) fn list_heads(kv: &dyn Kv, request: &ListHeadsRequest) -> Outcome {
    let limit = usize::try_from(request.limit).ok().filter(|limit| (1..=5000).contains(limit));
    let limit = limit.ok_or_else(|| StoreError::Invalid("limit must be 1–5000".to_owned()))?;
    let mut from = request.after.as_bytes().to_vec();
    if !from.is_empty() {
        from.push(0);
    }
    let (mut heads, mut more) = (Vec::new(), false);
    // Names are printable ASCII, so this is above all of them.
    let scan = Scan { space: Space::Heads, from, to: vec![0x7f], reverse: false };
    kv.scan(scan, &mut |_, value| {
        let head: Head = decode(value)?;
        if !request.cell.is_empty() && head.cell != request.cell {
            return Ok(true);
        }
        more = heads.len() == limit;
        if !more {
            heads.push(head);
        }
        Ok(!more)
    })?;
    Ok((Reply::Heads(ListHeadsReply { heads, more, refusal: None }), Vec::new()))
}

fn segment_reply(applied: bool, statics: Option<Statics>) -> Reply {
    Reply::Segment(SegmentReply { applied, statics, entries: Vec::new() })
}

pub(super) fn open_segment(kv: &dyn Kv, request: OpenSegmentRequest) -> Outcome {
    let log = keys::name("log", &request.log)?;
    let new = request.statics.ok_or_else(|| StoreError::Invalid("statics are missing".to_owned()))?;
    if request.segment == 0 {
        return Err(StoreError::Invalid("segments are numbered from 1".to_owned()));
    }
    if let Some(current) = statics(kv, log, request.segment)? {
        return Ok((segment_reply(false, Some(current)), Vec::new()));
    }
    let change = (Space::Segments, keys::segment(log, request.segment), Some(new.encode_to_vec()));
    Ok((segment_reply(true, Some(new)), vec![change]))
}

pub(super) fn cas_segment(kv: &dyn Kv, request: CasSegmentRequest) -> Outcome {
    let log = keys::name("log", &request.log)?;
    let new = request.new.ok_or_else(|| StoreError::Invalid("new statics are missing".to_owned()))?;
    let current = statics(kv, log, request.segment)?;
    if current.is_none() || current != request.expected {
        return Ok((segment_reply(false, current), Vec::new()));
    }
    let change = (Space::Segments, keys::segment(log, request.segment), Some(new.encode_to_vec()));
    Ok((segment_reply(true, Some(new)), vec![change]))
}

pub(super) fn append(kv: &dyn Kv, request: AppendRequest) -> Outcome {
    let log = keys::name("log", &request.log)?;
    let numbers = request.last.saturating_add(1)..u64::MAX;
    let consecutive = request.entries.len()
        == request.entries.iter().zip(numbers).take_while(|(entry, number)| entry.number == *number).count();
    if request.entries.is_empty() || !consecutive {
        return Err(StoreError::Invalid("entries must be numbered from last + 1 on, without holes".to_owned()));
    }
    let current = statics(kv, log, request.segment)?;
    let holds = |row: &Statics| row.term == request.term && !row.sealed && row.last == request.last;
    if !current.as_ref().is_some_and(holds) {
        return Ok((segment_reply(false, current), Vec::new()));
    }
    let new = Statics {
        term: request.term,
        sealed: false,
        last: request.last + request.entries.len() as u64,
        last_timestamp_us: request.last_timestamp_us,
        last_snowflake: request.last_snowflake,
    };
    let mut changes = vec![(Space::Segments, keys::segment(log, request.segment), Some(new.encode_to_vec()))];
    changes.extend(
        request.entries.iter().map(|entry| {
            (Space::Entries, keys::entry(log, request.segment, entry.number), Some(entry.encode_to_vec()))
        }),
    );
    Ok((segment_reply(true, Some(new)), changes))
}

pub(super) fn read_segment(kv: &dyn Kv, request: &ReadSegmentRequest) -> Outcome {
    let log = keys::name("log", &request.log)?;
    let row = statics(kv, log, request.segment)?;
    let limit = usize::try_from(request.limit.max(0)).unwrap_or(0);
    let mut entries: Vec<StoredEntry> = Vec::new();
    if row.is_some() && limit > 0 {
        let scan = Scan {
            space: Space::Entries,
            from: keys::entry(log, request.segment, request.from),
            to: keys::entry(log, request.segment, u64::MAX),
            reverse: false,
        };
        let mut bytes = 0;
        kv.scan(scan, &mut |_, value| {
            let mut entry: StoredEntry = decode(value)?;
            if entry.number < request.bodies_from && entry.body.len() > SMALL_BODY {
                entry.body = Vec::new();
            }
            bytes += entry.encoded_len();
            if !entries.is_empty() && bytes > ANSWER_BYTES {
                return Ok(false);
            }
            entries.push(entry);
            Ok(entries.len() < limit)
        })?;
    }
    Ok((Reply::Segment(SegmentReply { applied: false, statics: row, entries }), Vec::new()))
}

pub(super) fn drop_segment(kv: &dyn Kv, request: &DropSegmentRequest) -> Outcome {
    let log = keys::name("log", &request.log)?;
    let mut changes = vec![(Space::Segments, keys::segment(log, request.segment), None)];
    let scan = Scan {
        space: Space::Entries,
        from: keys::entry(log, request.segment, 0),
        to: keys::entry(log, request.segment, u64::MAX),
        reverse: false,
    };
    kv.scan(scan, &mut |key, _| {
        changes.push((Space::Entries, key.to_vec(), None));
        Ok(true)
    })?;
    Ok((Reply::DropSegment(DropSegmentReply {}), changes))
}

fn cursor(kv: &dyn Kv, key: &[u8]) -> Result<u64, StoreError> {
    let Some(bytes) = kv.get(Space::Cursors, key)? else { return Ok(0) };
    let bytes: [u8; 8] =
        bytes.as_slice().try_into().map_err(|_| StoreError::Damaged("a cursor is not 8 bytes".to_owned()))?;
    Ok(u64::from_be_bytes(bytes))
}

pub(super) fn read_cursor(kv: &dyn Kv, request: &ReadCursorRequest) -> Outcome {
    let key = keys::cursor(keys::name("log", &request.log)?, keys::name("cursor", &request.name)?);
    Ok((Reply::ReadCursor(ReadCursorReply { value: cursor(kv, &key)? }), Vec::new()))
}

pub(super) fn write_cursor(kv: &dyn Kv, request: &WriteCursorRequest) -> Outcome {
    let key = keys::cursor(keys::name("log", &request.log)?, keys::name("cursor", &request.name)?);
    let current = cursor(kv, &key)?;
    if request.value <= current {
        return Ok((Reply::WriteCursor(WriteCursorReply { value: current }), Vec::new()));
    }
    let change = (Space::Cursors, key, Some(request.value.to_be_bytes().to_vec()));
    Ok((Reply::WriteCursor(WriteCursorReply { value: request.value }), vec![change]))
}
