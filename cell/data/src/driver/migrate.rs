//! Storage migrations, log by log, as the operator orders them: keep a copy, cut over to it or back, release it (LOG.md rules 10–15).

use std::sync::Arc;
use std::time::Duration;

use cell_proto::v1::{
    CopyStatusReply, CopyStatusRequest, CutOverReply, CutOverRequest, EndCopyRequest, Head, Reason, Refusal, RunReply,
    ShipReply, ShipRequest,
};
use cell_runtime::clock::unix_us;
use cell_store::{CURSOR_APPLIED, Store};
use tokio::time::Instant;

use super::handle::{LogHandle, Message};
use super::logs::{Turn, parse, unavailable};
use super::service::DataServer;
use crate::machine::{CURSOR_RESTARTS, CopyStatus, kept_since_cut, started_cursor};

/// Bounds of the hold limit, in milliseconds.
const HOLD_MS: std::ops::RangeInclusive<u32> = 50..=60_000;
/// A copy further behind is not waited for with commands held.
const MOST_BACKLOG: u64 = 5000;
/// How long a lost store is given to show that it is not.
const LOST: Duration = Duration::from_secs(2);
/// A cutover that was not begun this long after it arrived is refused: whoever sent it counts on its being over soon.
const TOO_LATE: Duration = Duration::from_secs(5);
/// How long a release may take.
const RELEASE: Duration = Duration::from_secs(15);

fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(Reason::Invalid, message)
}

fn check_run(run_id: &str, source: &str, target: &str) -> Result<(), Refusal> {
    if run_id.is_empty() || source.is_empty() || target.is_empty() || source == target {
        return Err(invalid("run_id and two different StorageCells must be named"));
    }
    Ok(())
}

/// `arrived`: before anything was waited for, another move of the log included.
fn in_time(arrived: Instant) -> Result<(), Refusal> {
    if arrived.elapsed() < TOO_LATE {
        return Ok(());
    }
    let message = "the cutover could not be begun soon after it arrived; nothing was done, ask again";
    Err(Refusal::new(Reason::Wait, message).retry_after_ms(500))
}

fn lag_seconds(copy: &CopyStatus) -> u32 {
    match copy.behind_since_us {
        0 => 0,
        since => u32::try_from((unix_us() - since).max(0) / 1_000_000).unwrap_or(u32::MAX),
    }
}

impl DataServer {
    pub(super) async fn ship_log(&self, request: ShipRequest) -> Result<ShipReply, Refusal> {
        check_run(&request.run_id, &request.source, &request.target)?;
        parse(&request.log)?;
        if self.logs.context.copies.has_ended(&request.run_id, &request.log) {
            return Err(invalid("this run released its copy of the log; start another migration"));
        }
        let handle = self.logs.owner(&request.log, Turn::Ours).await?;
        let head = handle.owned().await?;
        let serving = handle.serving()?.name;
        let target = match &serving {
            serving if *serving == request.source => &request.target,
            serving if *serving == request.target => &request.source,
            serving => {
                let message = format!("{} is served by {serving}, which is neither of the two", request.log);
                return Err(invalid(message));
            }
        };
        // Known to be reachable at all, so that a wrong name is told and not only lagged behind.
        self.logs.store(target)?;
        let message = Message::Ship { target: target.clone(), run_id: request.run_id.clone() };
        if handle.messages.send(message).await.is_err() {
            return Err(Refusal::new(Reason::NotOwner, "the log was given up here; retry"));
        }
        let inspection = handle.ask(|answer| Message::Inspect { answer }).await?;
        let copy = inspection.copy.unwrap_or_default();
        Ok(ShipReply {
            serving,
            term: head.term,
            last: inspection.last,
            shipped: copy.shipped,
            started_at: copy.started_at,
            restarts: u32::try_from(copy.restarts).unwrap_or(u32::MAX),
            refusal: None,
            lag_seconds: lag_seconds(&copy),
            blocked_by: copy.blocked_by,
        })
    }

    pub(super) async fn cut_over_log(
        &self,
        request: CutOverRequest,
        arrived: Instant,
    ) -> Result<CutOverReply, Refusal> {
        check_run(&request.run_id, &request.from, &request.to)?;
        parse(&request.log)?;
        if !HOLD_MS.contains(&request.hold_limit_ms) {
            return Err(invalid("hold_limit_ms must be 50–60000"));
        }
        if request.accept_loss {
            return self.fail_over(request, arrived).await;
        }
        let located = self.logs.locate(&request.log).await?;
        let head = located.serving_head();
        let head =
            head.ok_or_else(|| Refusal::new(Reason::NotFound, format!("there is no head of {}", request.log)))?;
        // Asked again after it was done; whoever sealed it may have died before it claimed.
        if located.place.store == request.to && head.term > request.expected_term {
            return self.claim_there(&request, 0, 0).await;
        }
        self.is_as_planned(&request, &located.place.store, &head)?;
        let handle = self.logs.owner(&request.log, Turn::Ours).await?;
        // It may have claimed the log just now: at another term than the order was given for, nothing is cut over.
        let owned = handle.owned().await?;
        self.is_as_planned(&request, &handle.serving()?.name, &owned)?;
        self.copy_is_ready(&handle, &request).await?;
        in_time(arrived)?;
        self.hold_and_cut(&handle, &request).await
    }

    fn is_as_planned(&self, request: &CutOverRequest, serving: &str, head: &Head) -> Result<(), Refusal> {
        if serving == request.from && head.term == request.expected_term {
            return Ok(());
        }
        let message = format!(
            "planned against {} term {}, it is {serving} term {}; inspect and plan again",
            request.from, request.expected_term, head.term
        );
        Err(Refusal::new(Reason::StaleTerm, message).with_route(self.logs.routes.of_head(head)))
    }

    /// Nothing is held for a copy that is far behind, or not there.
    async fn copy_is_ready(&self, handle: &LogHandle, request: &CutOverRequest) -> Result<(), Refusal> {
        let inspection = handle.ask(|answer| Message::Inspect { answer }).await?;
        if !inspection.closed_by_run.is_empty() && inspection.closed_by_run != request.run_id {
            let message = format!("admission is closed by run {}", inspection.closed_by_run);
            return Err(Refusal::new(Reason::OtherRun, message));
        }
        let wait = |message: String| Refusal::new(Reason::Wait, message).retry_after_ms(500);
        let copy = inspection.copy.filter(|copy| copy.target == request.to && copy.run_id == request.run_id);
        let copy =
            copy.ok_or_else(|| wait(format!("no copy is kept in {} for this run; Ship comes first", request.to)))?;
        if !copy.blocked_by.is_empty() {
            return Err(wait(format!("the copy in {} does not go on: {}", request.to, copy.blocked_by)));
        }
        self.is_as_verified(request, copy.restarts, copy.kept_since_cut)?;
        if copy.backlog > MOST_BACKLOG {
            return Err(wait(format!("the copy in {} lacks {} entries", request.to, copy.backlog)));
        }
        Ok(())
    }

    /// How often the copy may have been begun anew; none on the way back, where it must hold everything since the log was cut over.
    fn restarts_wanted(&self, request: &CutOverRequest) -> Option<u64> {
        let view = self.logs.context.directory.view();
        let is_back = view.migrations().any(|run| run.run_id == request.run_id && run.target == request.from);
        (!is_back).then_some(u64::from(request.expected_restarts))
    }

    fn is_as_verified(&self, request: &CutOverRequest, restarts: u64, kept_since_cut: bool) -> Result<(), Refusal> {
        let message = match self.restarts_wanted(request) {
            Some(wanted) if wanted != restarts => format!(
                "the copy in {} was begun anew {restarts} times, expected_restarts is {wanted}; backfill and verify it again",
                request.to
            ),
            None if !kept_since_cut => format!(
                "the copy in {} lacks what {} acknowledged before it was begun anew; finish this run and migrate back by another",
                request.to, request.from
            ),
            _ => return Ok(()),
        };
        Err(Refusal::new(Reason::CopyNotReady, message))
    }

    async fn hold_and_cut(&self, handle: &LogHandle, request: &CutOverRequest) -> Result<CutOverReply, Refusal> {
        let since_us = unix_us();
        let limit = Duration::from_millis(request.hold_limit_ms.into());
        let deadline = Instant::now() + limit;
        let run_id = request.run_id.clone();
        // Waits for room in the mailbox: were it lost, admission would stay closed.
        let undo = || async {
            let _gone = handle.messages.send(Message::Reopen { run_id: run_id.clone() }).await;
        };
        let close = handle.ask(|answer| Message::Close { run_id: run_id.clone(), answer });
        match tokio::time::timeout_at(deadline, close).await {
            Ok(last) => last?,
            Err(_) => {
                undo().await;
                let message = "what is in flight did not settle in time; nothing was cut over";
                return Err(Refusal::new(Reason::Wait, message));
            }
        };
        let (to, run, restarts) = (request.to.clone(), run_id.clone(), self.restarts_wanted(request));
        let cut = handle.ask(|answer| Message::CutOver { to, run_id: run, restarts, answer });
        let (head, at) = match tokio::time::timeout_at(deadline, cut).await {
            Ok(cut) => cut.map_err(|refusal| Refusal { reason: Reason::UnknownOutcome.into(), ..refusal })?,
            Err(_) => {
                // Undone if nothing was sealed yet; else the machine settles by itself. The next call tells.
                undo().await;
                let message = "the copy did not reach the end, or a store did not answer, in time; ask again";
                return Err(Refusal::new(Reason::UnknownOutcome, message).retry_after_ms(500));
            }
        };
        self.logs.context.metrics.cutovers.inc();
        let reply = self.claim_there(request, at, since_us).await;
        reply.or_else(|refusal| {
            tracing::warn!(log = %request.log, reason = refusal.why().label(), "cut over, but not claimed yet");
            Ok(CutOverReply { cut: true, at, new_term: head.term, held_us: 0, ..CutOverReply::default() })
        })
    }

    /// The log is claimed where it is served now, so that commands go on at once.
    async fn claim_there(&self, request: &CutOverRequest, at: u64, since_us: i64) -> Result<CutOverReply, Refusal> {
        let handle = self.logs.owner(&request.log, Turn::Ordered).await?;
        let head = handle.owned().await?;
        let held_us = if since_us == 0 { 0 } else { u64::try_from(unix_us() - since_us).unwrap_or(0) };
        if since_us != 0 {
            self.logs.context.metrics.held_seconds.observe(held_us as f64 / 1e6);
        }
        let at = if at == 0 { *handle.shared.applied.borrow() } else { at };
        Ok(CutOverReply { cut: true, at, new_term: head.term, held_us, ..CutOverReply::default() })
    }

    /// `accept_loss`: only when the origin's store does not answer.
    async fn fail_over(&self, request: CutOverRequest, arrived: Instant) -> Result<CutOverReply, Refusal> {
        let origin = self.logs.store(&request.from);
        if let Ok(origin) = origin
            && let Ok(Ok(_)) = tokio::time::timeout(LOST, origin.read_head(&request.log)).await
        {
            let message = format!("{} answers: cut over without accept_loss", request.from);
            return Err(invalid(message));
        }
        let copy = self.logs.store(&request.to)?;
        let head = copy.read_head(&request.log).await.map_err(|error| unavailable(&error))?;
        if head.as_ref().is_none_or(|head| head.moved_to.is_empty() && head.term <= request.expected_term) {
            return Err(invalid(format!("{} holds no copy of {}", request.to, request.log)));
        }
        if let Some(head) = head.filter(|head| !head.moved_to.is_empty()) {
            self.unsealed_is_as_verified(&request, &copy, &head).await?;
        }
        in_time(arrived)?;
        let (at_risk, own) = self.at_risk(&request, &copy).await?;
        let term = request.expected_term.max(own);
        tracing::error!(log = %request.log, from = %request.from, to = %request.to, ?at_risk, "fails over to the copy");
        let handle = self.logs.fail_over(&request.log, request.to.clone(), term).await?;
        let head = handle.owned().await?;
        let at = *handle.shared.applied.borrow();
        let known = CutOverReply { at_risk: at_risk.unwrap_or(0), ..CutOverReply::default() };
        Ok(CutOverReply { cut: true, at, new_term: head.term, at_risk_unknown: at_risk.is_none(), ..known })
    }

    /// Entries committed at the lost store that the copy lacks, and the term they were owned at. Only the log's owner knows how far it
    /// went: without it the number is not known, which is not the same as none.
    async fn at_risk(&self, request: &CutOverRequest, copy: &Arc<dyn Store>) -> Result<(Option<u64>, u64), Refusal> {
        let Some(handle) = self.logs.get(&request.log).filter(|handle| handle.serves(&request.from)) else {
            return Ok((None, 0));
        };
        let inspection = handle.ask(|answer| Message::Inspect { answer }).await?;
        let at_risk = match inspection.copy {
            Some(shipping) => shipping.backlog,
            None => {
                let there =
                    copy.read_cursor(&request.log, CURSOR_APPLIED).await.map_err(|error| unavailable(&error))?;
                inspection.last.saturating_sub(there)
            }
        };
        Ok((Some(at_risk), handle.owned().await.map_or(0, |head: Head| head.term)))
    }

    async fn unsealed_is_as_verified(
        &self,
        request: &CutOverRequest,
        copy: &Arc<dyn Store>,
        head: &Head,
    ) -> Result<(), Refusal> {
        let restarts = copy.read_cursor(&request.log, CURSOR_RESTARTS).await.map_err(|error| unavailable(&error))?;
        let started_at = copy.read_cursor(&request.log, &started_cursor(restarts)).await;
        let started_at = started_at.map_err(|error| unavailable(&error))?;
        // One that was begun anew may follow an earlier failover, which the lost store alone could tell.
        self.is_as_verified(request, restarts, kept_since_cut(head, started_at, restarts > 0))
    }

    pub(super) async fn end_copy_of(&self, request: EndCopyRequest) -> Result<RunReply, Refusal> {
        check_run(&request.run_id, &request.source, &request.target)?;
        parse(&request.log)?;
        let unchanged = self.logs.context.copies.has_ended(&request.run_id, &request.log);
        self.logs.context.copies.end(&request.run_id, &request.log);
        let deadline = Instant::now() + RELEASE;
        // Twice at most: an owner that shipped gives the log up first, and the next claim raises the term.
        for _ in 0..3 {
            let handle = self.logs.owner(&request.log, Turn::Ours).await?;
            handle.owned().await?;
            let serving = handle.serving()?.name;
            let target = if serving == request.source { request.target.clone() } else { request.source.clone() };
            if serving != request.source && serving != request.target {
                return Err(invalid(format!("{} is served by {serving}, which is neither of the two", request.log)));
            }
            let run_id = request.run_id.clone();
            let ended = handle.ask(|answer| Message::EndCopy { target, run_id, answer });
            match tokio::time::timeout_at(deadline, ended).await {
                Ok(Ok(())) => return Ok(RunReply { done: true, unchanged, refusal: None }),
                Ok(Err(_)) => handle.messages.closed().await,
                Err(_) => break,
            }
        }
        let message = "the copy's head was not marked in time; ask again";
        Err(Refusal::new(Reason::UnknownOutcome, message).retry_after_ms(500))
    }

    pub(super) fn status_of_copies(&self, request: &CopyStatusRequest) -> CopyStatusReply {
        let mut reply = CopyStatusReply::default();
        for handle in self.logs.all() {
            let Some(copy) = handle.copy().filter(|copy| request.run_id.is_empty() || copy.run_id == request.run_id)
            else {
                continue;
            };
            reply.logs += 1;
            reply.behind += u32::from(copy.backlog > 0 || !copy.blocked_by.is_empty());
            reply.backlog += copy.backlog;
            reply.lag_seconds = reply.lag_seconds.max(lag_seconds(&copy));
        }
        reply.shipped = self.logs.context.metrics.shipped.get();
        reply.failures = self.logs.context.metrics.ship_failures.get();
        self.shadow.fill(&request.run_id, &mut reply);
        reply
    }

    /// Owners keep the copies that the directory's migrations want, and stop those whose migration has ended.
    pub fn tend_copies(&self) {
        let view = self.logs.context.directory.view();
        let running = |run_id: &str| view.migrations().any(|migration| migration.run_id == run_id && migration.ship);
        let known = |run_id: &str| view.migrations().any(|migration| migration.run_id == run_id);
        for handle in self.logs.all() {
            let Ok(serving) = handle.serving() else { continue };
            let message = match (self.logs.context.copies.wanted(&view, &handle.log, &serving.name), handle.copy()) {
                (Some((target, run_id)), copy) if copy.as_ref().is_none_or(|copy| copy.run_id != run_id) => {
                    Message::Ship { target, run_id }
                }
                (None, Some(copy)) if known(&copy.run_id) && !running(&copy.run_id) => Message::StopShipping,
                _ => continue,
            };
            drop(handle.messages.try_send(message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cutover_that_waited_too_long_is_not_begun() {
        assert!(in_time(Instant::now()).is_ok());
        let refused = Instant::now().checked_sub(TOO_LATE).map(in_time);
        assert!(refused.is_none_or(|late| late.is_err_and(|refusal| refusal.why() == Reason::Wait)));
    }
}
