//! Copies one leased range: reads pages ahead, writes rows as they were in batches of one partition, many in flight. A batch that was read
//! more than a minute ago is read again, never written. It says how far everything before is written, and nothing beyond.

mod heavy;

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::job::Job;
use crate::ranges::{FailureKind, Tokens};
use crate::row::Row;
use crate::stream::{Cursor, Page, Source, StreamError, Target};
use heavy::PartitionWatch;
pub(crate) use heavy::culprit;

/// The two sides of a table.
#[derive(Clone)]
pub struct Pair {
    /// Read.
    pub source: Arc<dyn Source>,
    /// Written.
    pub target: Arc<dyn Target>,
}

/// Why a range was not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkError {
    /// What it means.
    pub kind: FailureKind,
    /// In words.
    pub text: String,
    /// The partition, where it is known.
    pub failing_token: Option<i64>,
}

impl From<StreamError> for WorkError {
    fn from(error: StreamError) -> Self {
        Self { kind: error.kind(), text: error.to_string(), failing_token: None }
    }
}

/// What was read longer ago is not written: since then it may have been deleted, and the deletion forgotten.
pub const FRESH: Duration = Duration::from_secs(60);

const BATCH_ROWS: usize = 100;
const BATCH_BYTES: usize = 48 * 1024;
const IN_FLIGHT: usize = 24;
const PAGES_AHEAD: usize = 1;
const WRITE_TRIES: u32 = 6;

/// Copies the job's tokens.
///
/// # Errors
/// [`WorkError`]; the job says how far it was.
pub async fn copy(pair: &Pair, job: &Job) -> Result<(), WorkError> {
    let (sender, receiver) = mpsc::channel(PAGES_AHEAD);
    let read = read_pages(pair, job, sender);
    let write = write_pages(pair, job, receiver);
    tokio::try_join!(read, write).map(|_| ())
}

async fn read_pages(pair: &Pair, job: &Job, pages: mpsc::Sender<Page>) -> Result<(), WorkError> {
    let mut cursor = if job.after.is_empty() { Cursor::default() } else { pair.source.after(&job.after) };
    let mut watch = PartitionWatch::default();
    let mut seen = job.tokens.first;
    let by_token = pair.source.is_by_token();
    loop {
        let tokens = Tokens { first: job.tokens.first, last: job.tokens.last };
        let mut page = match pair.source.scan(tokens, cursor, job.page_rows()).await {
            Ok(page) => page,
            Err(StreamError::Refused(text)) => return Err(culprit(&*pair.source, job, seen, text).await),
            Err(error) => return Err(error.into()),
        };
        job.read(page.took);
        job.count(|counts| counts.read += page.read);
        let suspects = watch.look(&*pair.source, job, &page);
        // The range may have become shorter meanwhile.
        let last = job.last_token();
        let beyond = by_token && page.rows.last().is_some_and(|row| row.token > last);
        page.rows.retain(|row| row.token <= last);
        seen = page.rows.last().filter(|_| by_token).map_or(seen, |row| row.token);
        let next = page.next.take().filter(|_| !beyond);
        if pages.send(page).await.is_err() {
            return Ok(());
        }
        if let Some(suspects) = suspects {
            watch.search(&*pair.source, job, suspects).await;
        }
        let Some(next) = next else { return Ok(()) };
        cursor = next;
    }
}

/// Which pages are wholly written, in order: how far everything is.
#[derive(Default)]
struct Watermark {
    first: u64,
    pages: VecDeque<Written>,
}

/// A page on its way.
struct Written {
    /// Batches not written yet.
    left: usize,
    /// Its last token, where rows come by token.
    last: Option<i64>,
    /// Its mark, where they do not.
    mark: Option<Bytes>,
}

impl Watermark {
    fn open(&mut self, page: Written, job: &Job) -> u64 {
        let number = self.first + self.pages.len() as u64;
        self.pages.push_back(page);
        self.settle(job);
        number
    }

    fn close(&mut self, page: u64, job: &Job) {
        if let Some(page) = usize::try_from(page - self.first).ok().and_then(|index| self.pages.get_mut(index)) {
            page.left -= 1;
        }
        self.settle(job);
    }

    fn settle(&mut self, job: &Job) {
        while let Some(page) = self.pages.pop_front_if(|page| page.left == 0) {
            // The partition of the last row may go on in the next page.
            if let Some(before) = page.last.and_then(|last| last.checked_sub(1)) {
                job.set_done_until(before);
            }
            if let Some(mark) = page.mark {
                job.set_mark(&mark);
            }
            self.first += 1;
        }
    }
}

/// Waits for something while writes go on: one that is not looked at does not end, and would be taken for a slow target.
async fn while_writing<T, W: Future<Output = Result<u64, WorkError>>>(
    wait: impl Future<Output = T>,
    in_flight: &mut FuturesUnordered<W>,
    mark: &mut Watermark,
    job: &Job,
) -> Result<T, WorkError> {
    let mut wait = std::pin::pin!(wait);
    loop {
        tokio::select! {
            biased;
            Some(done) = in_flight.next() => mark.close(done?, job),
            waited = &mut wait => return Ok(waited),
        }
    }
}

async fn write_pages(pair: &Pair, job: &Job, mut pages: mpsc::Receiver<Page>) -> Result<(), WorkError> {
    let mut in_flight = FuturesUnordered::new();
    let mut mark = Watermark::default();
    while let Some(page) = while_writing(pages.recv(), &mut in_flight, &mut mark, job).await? {
        let last = page.rows.last().filter(|_| pair.source.is_by_token()).map(|row| row.token);
        let read_at = page.read_at;
        let without_cells = page.rows.iter().filter(|row| row.cells.is_empty()).count() as u64;
        job.count(|counts| counts.without_cells += without_cells);
        let batches = batches(page.rows);
        let number = mark.open(Written { left: batches.len(), last, mark: page.mark }, job);
        for batch in batches {
            while_writing(job.pass(batch.len()), &mut in_flight, &mut mark, job).await?;
            while in_flight.len() >= IN_FLIGHT {
                if let Some(done) = in_flight.next().await {
                    mark.close(done?, job);
                }
            }
            in_flight.push(async move { write_fresh(pair, job, batch, read_at).await.map(|()| number) });
        }
    }
    while let Some(done) = in_flight.next().await {
        mark.close(done?, job);
    }
    Ok(())
}

/// Consecutive rows of one partition, bounded in rows and bytes.
fn batches(rows: Vec<Row>) -> Vec<Vec<Row>> {
    let mut batches: Vec<Vec<Row>> = Vec::new();
    let mut bytes = 0;
    for row in rows {
        let size = row.bytes();
        match batches.last_mut() {
            Some(batch)
                if batch.len() < BATCH_ROWS
                    && bytes + size <= BATCH_BYTES
                    && batch.last().is_some_and(|last| last.partition == row.partition) =>
            {
                batch.push(row);
                bytes += size;
            }
            _ => {
                batches.push(vec![row]);
                bytes = size;
            }
        }
    }
    batches
}

async fn write_fresh(pair: &Pair, job: &Job, batch: Vec<Row>, read_at: Instant) -> Result<(), WorkError> {
    let mut tries = 0;
    loop {
        if read_at.elapsed() >= FRESH {
            job.count(|counts| counts.reread += 1);
            let text = "what was read has grown too old to be written; it is read again".to_owned();
            return Err(WorkError { kind: FailureKind::Stale, text, failing_token: None });
        }
        let began = Instant::now();
        match pair.target.write(&batch).await {
            Ok(()) => {
                job.wrote(began.elapsed());
                job.count(|counts| counts.rows += batch.len() as u64);
                return Ok(());
            }
            Err(StreamError::Unavailable(_)) if tries < WRITE_TRIES => {
                job.wrote(began.elapsed());
                tokio::time::sleep(Duration::from_millis(100 << tries)).await;
                tries += 1;
            }
            Err(error) => {
                let failing_token = batch.first().map(|row| row.token).filter(|_| error.kind() == FailureKind::Range);
                let named = batch.first().map(|row| pair.source.partition_text(row)).unwrap_or_default();
                let text = format!("partition {named}: {error}");
                return Err(WorkError { kind: error.kind(), text, failing_token });
            }
        }
    }
}

#[cfg(test)]
mod tests;
