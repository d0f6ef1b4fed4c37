//! Questions about where a guild lived: where its stay in its own log begins, its splits and merges after a position. Answered by
//! reading logs back from their ends, as far as they are retained.

use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{Entry, Position, Reason, Refusal};

use super::data::DataClient;
use crate::machine::Junction;

/// A number above every entry: a read from there tells the last number alone.
const BEYOND: u64 = u64::MAX / 4;
/// The first step back from the end.
const STEP: u64 = 500;

async fn last(data: &DataClient, log: &str) -> Result<u64, Refusal> {
    Ok(data.read_page(log, BEYOND, 1).await?.last)
}

/// What is behind the retention is not there.
fn retained<T>(outcome: Result<T, Refusal>) -> Result<Option<T>, Refusal> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(refusal) if refusal.why() == Reason::BehindRetention => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// The guild's entries in a range of a log.
async fn between(data: &DataClient, log: &str, range: (u64, u64), guild_id: i64) -> Result<Vec<Entry>, Refusal> {
    let (mut from, until) = range;
    let mut found = Vec::new();
    while from <= until {
        let page = data.read_log(log, from).await?;
        found.extend(page.entries.into_iter().filter(|entry| entry.number <= until && junction(entry, guild_id)));
        if page.scanned_to < from {
            break;
        }
        from = page.scanned_to + 1;
    }
    Ok(found)
}

fn junction(entry: &Entry, guild_id: i64) -> bool {
    match entry.change.as_ref().and_then(|change| change.kind.as_ref()) {
        Some(Kind::Split(split)) => split.guild_id == guild_id,
        Some(Kind::Merge(merge)) => merge.guild_id == guild_id,
        _ => false,
    }
}

fn sealed_at(entry: &Entry) -> Option<u64> {
    match entry.change.as_ref()?.kind.as_ref()? {
        Kind::Merge(merge) => Some(merge.sealed_at),
        _ => None,
    }
}

/// The last number of a guild's own log that is not younger than `after_us`.
pub(super) async fn find_start(data: &DataClient, log: &str, after_us: i64) -> Result<u64, Refusal> {
    let mut until = last(data, log).await?;
    while until > 0 {
        let start = until.saturating_sub(STEP) + 1;
        // All that is retained is younger.
        let Some(page) = retained(data.read_log(log, start).await)? else { return Ok(until) };
        if let Some(entry) = page.entries.iter().rfind(|entry| entry.timestamp_us <= after_us) {
            return Ok(entry.number);
        }
        until = start - 1;
    }
    Ok(0)
}

/// The guild's splits and merges after a position, in order; and the split that the position names.
pub(super) async fn find_junctions(
    data: &DataClient,
    guild_id: i64,
    since: &Position,
) -> Result<Vec<Junction>, Refusal> {
    let bucket_log = Unit::bucket(guild_id).log();
    if since.number == 0 && since.log != bucket_log {
        return junctions_of_all_stays(data, guild_id, &bucket_log).await;
    }
    let at = data.read_page(&since.log, since.number.max(1), 1).await?.entries.into_iter().next();
    let Some(at) = at else { return Ok(Vec::new()) };
    let end = last(data, &bucket_log).await?;
    let start = if since.log == bucket_log {
        since.number
    } else {
        number_before(data, &bucket_log, end, at.timestamp_us).await?
    };
    let mut entries = between(data, &bucket_log, (start.max(1), end), guild_id).await?;
    let named = |entry: &Entry| since.log == bucket_log && entry.number == since.number && sealed_at(entry).is_none();
    entries.retain(|entry| entry.timestamp_us > at.timestamp_us || named(entry));
    with_starts(data, guild_id, entries).await
}

/// Right after a split no number tells which one it was: the first is meant, unless it is the only one.
async fn junctions_of_all_stays(data: &DataClient, guild_id: i64, bucket_log: &str) -> Result<Vec<Junction>, Refusal> {
    let (mut until, mut width) = (last(data, bucket_log).await?, STEP);
    let mut entries: Vec<Entry> = Vec::new();
    while until > 0 && !entries.first().is_some_and(opens_first_stay) {
        let start = until.saturating_sub(width) + 1;
        let Some(mut found) = retained(between(data, bucket_log, (start, until), guild_id).await)? else { break };
        found.append(&mut entries);
        entries = found;
        until = start - 1;
        width *= 2;
    }
    let first_split = entries.iter().position(|entry| sealed_at(entry).is_none());
    entries.drain(..first_split.map_or(0, |index| index + 1));
    with_starts(data, guild_id, entries).await
}

/// A split into a log that did not exist before.
fn opens_first_stay(entry: &Entry) -> bool {
    matches!(entry.change.as_ref().and_then(|change| change.kind.as_ref()), Some(Kind::Split(split)) if split.log_term == 0)
}

/// For each split the number its stay begins after.
async fn with_starts(data: &DataClient, guild_id: i64, entries: Vec<Entry>) -> Result<Vec<Junction>, Refusal> {
    let mut junctions: Vec<Junction> = Vec::with_capacity(entries.len());
    for entry in entries {
        let merged_at = junctions.iter().rev().find_map(|junction| sealed_at(&junction.entry));
        let start_after = match (sealed_at(&entry), merged_at) {
            (Some(_), _) => 0,
            (None, Some(merged_at)) => merged_at,
            (None, None) => find_start(data, &Unit::Guild(guild_id).log(), entry.timestamp_us).await?,
        };
        junctions.push(Junction { entry, start_after });
    }
    Ok(junctions)
}

/// A retained number of a log whose entry, with all before it, is not younger than `since_us`; or the first retained one.
async fn number_before(data: &DataClient, log: &str, end: u64, since_us: i64) -> Result<u64, Refusal> {
    let (mut number, mut width) = (end, STEP);
    while number > 1 {
        let back = number.saturating_sub(width).max(1);
        let Some(page) = retained(data.read_page(log, back, 1).await)? else {
            // The first retained one lies in between: come closer until the step is small.
            if width <= STEP / 10 {
                break;
            }
            width /= 4;
            continue;
        };
        number = back;
        if page.entries.first().is_none_or(|entry| entry.timestamp_us <= since_us) {
            break;
        }
        width *= 2;
    }
    Ok(number)
}
