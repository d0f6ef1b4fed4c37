//! Compares one leased range on both sides: both are read side by side, rows that do not match are looked at again after they have had
//! time to settle, then classed, and where write times allow mended.

mod classify;
mod join;
mod mend;

use std::time::Duration;

use futures::StreamExt;

use crate::copy::{Pair, WorkError, culprit};
use crate::job::Job;
use crate::ranges::{FindingKind, Tokens};
use crate::row::Row;
use crate::stream::{Cursor, Source, StreamError};

pub use classify::{Class, classify};
use join::{Candidate, Join, Side};

/// How long a row gets to settle before it is looked at again.
pub const SETTLE: Duration = Duration::from_secs(2);
/// A row written more recently is looked at once more.
const RECENT_US: i64 = 60_000_000;
/// Rows of a range that are looked at one by one; what is beyond is counted by what was seen first.
const MAX_CANDIDATES: usize = 10_000;
const EXAMPLES: usize = 5;
const RECHECKS: usize = 32;

/// How a comparison goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Comparison {
    /// Mend what can be.
    pub mend: bool,
    /// Time to settle.
    pub settle: Duration,
}

struct Reader<'a> {
    source: &'a dyn Source,
    /// What it reads is counted.
    counts: bool,
    cursor: Option<Cursor>,
}

impl Reader<'_> {
    /// Fills a side of the join with the next page; nothing at the end.
    async fn fill(&mut self, job: &Job, begin: tokio::time::Instant, side: &mut Side) -> Result<(), StreamError> {
        while side.wants() {
            let Some(cursor) = self.cursor.take() else {
                side.end();
                return Ok(());
            };
            let page = self.source.scan(job.tokens, cursor, u32::MAX).await?;
            job.read(page.took);
            if self.counts {
                job.count(|counts| counts.read += page.read);
            }
            let read_s = page.read_at.duration_since(begin).as_secs();
            self.cursor = page.next;
            side.push(page.rows, read_s, page.took.as_secs() + 1);
        }
        Ok(())
    }
}

/// Compares the job's tokens.
///
/// # Errors
/// [`WorkError`]. Mismatches are no errors; they are counted when the whole range was compared.
pub async fn compare(pair: &Pair, job: &Job, how: Comparison) -> Result<(), WorkError> {
    let begin = tokio::time::Instant::now();
    let mut join = Join::default();
    let target: &dyn Source = &*pair.target;
    let mut source = Reader { source: &*pair.source, counts: true, cursor: Some(Cursor::default()) };
    let mut target = Reader { source: target, counts: false, cursor: Some(Cursor::default()) };
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut seen = job.tokens.first;
    loop {
        let (left, right) = join.sides();
        let read = tokio::try_join!(source.fill(job, begin, left), target.fill(job, begin, right));
        match read {
            Ok(_) => {}
            Err(StreamError::Refused(text)) => return Err(culprit(&*pair.source, job, seen, text).await),
            Err(error) => return Err(error.into()),
        }
        let compared = join.step(&mut candidates).map_err(StreamError::Refused)?;
        job.pass(usize::try_from(compared).unwrap_or(0)).await;
        job.count(|counts| counts.rows += compared);
        seen = join.token().unwrap_or(seen);
        if candidates.len() > MAX_CANDIDATES {
            count_as_seen(job, candidates.split_off(MAX_CANDIDATES));
        }
        if join.has_ended() {
            break;
        }
    }
    let (source, target) = join.digests();
    job.set_digests(source, target);
    recheck(pair, job, how, candidates).await
}

fn count_as_seen(job: &Job, candidates: Vec<Candidate>) {
    job.count(|counts| {
        for candidate in candidates {
            *counts.mismatches.entry(candidate.class.label().to_owned()).or_default() += 1;
        }
    });
}

async fn recheck(pair: &Pair, job: &Job, how: Comparison, candidates: Vec<Candidate>) -> Result<(), WorkError> {
    if candidates.is_empty() {
        return Ok(());
    }
    tokio::time::sleep(how.settle).await;
    let looks = futures::stream::iter(candidates)
        .map(|candidate| look_again(pair, how, candidate.key))
        .buffer_unordered(RECHECKS);
    futures::pin_mut!(looks);
    let mut examples = 0;
    while let Some(look) = looks.next().await {
        let Look { class, repaired, key, foreign } = look?;
        job.count(|counts| {
            *counts.mismatches.entry(class.label().to_owned()).or_default() += 1;
            counts.repaired += u64::from(repaired);
        });
        let at = Tokens { first: key.token, last: key.token };
        if foreign {
            let message = "the target's row is newer than the source's: somebody else writes to the target; stop that, then verify again";
            job.find(FindingKind::ForeignWrites, at, pair.source.partition_text(&key), message.to_owned());
        }
        if examples < EXAMPLES && !class.is_harmless() && !repaired {
            examples += 1;
            let message = format!("a row is {}", class.words());
            job.find(FindingKind::Mismatch, at, pair.source.partition_text(&key), message);
        }
    }
    Ok(())
}

struct Look {
    class: Class,
    repaired: bool,
    key: Row,
    foreign: bool,
}

async fn look_again(pair: &Pair, how: Comparison, key: Row) -> Result<Look, StreamError> {
    let mut class = None;
    let (mut ours, mut theirs) = (None, None);
    for look in 1..=3_u32 {
        // The target first: what it has not yet when it is asked, the source may lose only afterwards.
        theirs = pair.target.read(&key).await?;
        ours = pair.source.read(&key).await?;
        class = classify(ours.as_ref(), theirs.as_ref(), 3);
        let newest = ours.iter().chain(&theirs).filter_map(Row::newest_us).max().unwrap_or(0);
        let recent = newest > cell_runtime::unix_ms() * 1000 - RECENT_US;
        if class.is_none() || !recent || look == 3 {
            break;
        }
        tokio::time::sleep(how.settle * look).await;
    }
    let Some(class) = class else { return Ok(Look { class: Class::WriteRace, repaired: false, key, foreign: false }) };
    let newest = |row: &Option<Row>| row.as_ref().and_then(Row::newest_us);
    let foreign = ours.is_some() && newest(&theirs) > newest(&ours);
    if !how.mend {
        return Ok(Look { class, repaired: false, key, foreign });
    }
    let (class, repaired) = mend::mend(&*pair.target, class, ours, theirs).await?;
    Ok(Look { class, repaired, key, foreign })
}
