//! The switch of one log to another cell, run by its data owner (DESIGN §7, LOG.md rule 16): close admission, finish what is in flight,
//! have the target's guild node acknowledge the last number, then one compare-and-set of the head.

use std::time::Duration;

use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::guild_service_client::GuildServiceClient;
use cell_proto::v1::{ClaimRequest, Head, ReachRequest, Reason, Refusal, SwitchReply, SwitchRequest};
use cell_runtime::clock::unix_us;

use super::handle::{LogHandle, Message};
use super::logs::Turn;
use super::service::DataServer;

/// Bounds of the hold limit, in milliseconds.
const HOLD_MS: std::ops::RangeInclusive<u32> = 50..=60_000;

impl DataServer {
    pub(super) async fn switch_log(&self, request: SwitchRequest) -> Result<SwitchReply, Refusal> {
        if request.run_id.is_empty() || request.to_cell.is_empty() || request.to_cell == request.from_cell {
            return Err(Refusal::new(Reason::Invalid, "run_id and two different cells must be named"));
        }
        if !HOLD_MS.contains(&request.hold_limit_ms) {
            return Err(Refusal::new(Reason::Invalid, "hold_limit_ms must be 50–60000"));
        }
        let head = self.logs.locate(&request.log).await?.serving_head();
        let head =
            head.ok_or_else(|| Refusal::new(Reason::NotFound, format!("there is no head of {}", request.log)))?;
        // Asked again after it was done: the term was raised by the switch, and perhaps by the target's claim.
        if head.cell == request.to_cell && head.term > request.expected_term {
            return Ok(SwitchReply { switched: true, new_term: head.term, ..SwitchReply::default() });
        }
        if head.cell != request.from_cell || head.term != request.expected_term {
            let message = format!(
                "planned against cell {} term {}, the head names {} term {}; inspect and plan again",
                request.from_cell, request.expected_term, head.cell, head.term
            );
            let refusal = Refusal::new(Reason::StaleTerm, message);
            return Err(refusal.with_route(self.logs.routes.of_head(&head)));
        }
        let handle = self.logs.owner(&request.log, Turn::Ours).await?;
        handle.owned().await?;
        self.hold_and_switch(&handle, &request).await
    }

    async fn hold_and_switch(&self, handle: &LogHandle, request: &SwitchRequest) -> Result<SwitchReply, Refusal> {
        let inspected = handle.ask(|answer| Message::Inspect { answer }).await?;
        if !inspected.closed_by_run.is_empty() && inspected.closed_by_run != request.run_id {
            let message = format!("admission is closed by run {}", inspected.closed_by_run);
            return Err(Refusal::new(Reason::OtherRun, message));
        }
        let since_us = unix_us();
        let limit = Duration::from_millis(request.hold_limit_ms.into());
        let deadline = tokio::time::Instant::now() + limit;
        let run_id = request.run_id.clone();
        // Waits for room in the mailbox: were it lost, admission would stay closed.
        let undo = || async {
            let _gone = handle.messages.send(Message::Reopen { run_id: run_id.clone() }).await;
        };
        let close = handle.ask(|answer| Message::Close { run_id: run_id.clone(), answer });
        let last = match tokio::time::timeout_at(deadline, close).await {
            Ok(last) => last?,
            Err(_) => {
                undo().await;
                return Err(Refusal::new(
                    Reason::Wait,
                    "what is in flight did not settle in time; nothing was switched",
                ));
            }
        };
        if !request.target_guild_address.is_empty() {
            let reached = tokio::time::timeout_at(deadline, self.reach(request, last)).await;
            let reached = reached.unwrap_or_else(|_| Err(Refusal::new(Reason::Wait, "no answer in time")));
            if let Err(refusal) = reached {
                undo().await;
                let message = format!("the target's guild node has not reached entry {last}: {}", refusal.message);
                return Err(Refusal::new(Reason::Wait, message).retry_after_ms(500));
            }
        }
        let to_cell = request.to_cell.clone();
        let switch = handle.ask(|answer| Message::Switch { to_cell, answer });
        let (head, at) = match tokio::time::timeout_at(deadline + limit, switch).await {
            Ok(switched) => switched.map_err(|refusal| self.doubted(refusal))?,
            Err(_) => {
                // The machine settles by itself, and reopens if nothing was switched; the caller asks again.
                undo().await;
                return Err(Refusal::new(Reason::UnknownOutcome, "the head did not answer in time; ask again"));
            }
        };
        let held_us = u64::try_from(unix_us() - since_us).unwrap_or(0);
        self.logs.context.metrics.held_seconds.observe(held_us as f64 / 1e6);
        self.ask_to_claim(&head, request).await;
        Ok(SwitchReply { switched: true, at, new_term: head.term, held_us, refusal: None })
    }

    /// The task ended without saying that it switched: the head tells on the next call.
    fn doubted(&self, refusal: Refusal) -> Refusal {
        Refusal { reason: Reason::UnknownOutcome.into(), ..refusal }
    }

    async fn reach(&self, request: &SwitchRequest, at: u64) -> Result<(), Refusal> {
        let failed = |message: String| Refusal::new(Reason::Wait, message);
        let address = &request.target_guild_address;
        let channel = self.channels.get(address).map_err(|error| failed(error.to_string()))?;
        let reach = ReachRequest {
            guild_id: request.guild_id,
            log: request.log.clone(),
            at,
            wait_ms: request.hold_limit_ms,
            run_id: request.run_id.clone(),
        };
        let reply = GuildServiceClient::new(channel).reach(reach).await;
        let reply = reply.map_err(|status| failed(format!("{address}: {status}")))?.into_inner();
        match reply.refusal {
            Some(refusal) => Err(refusal),
            None if reply.reached => Ok(()),
            None => Err(failed(format!("it is at {}", reply.position))),
        }
    }

    /// Saves the first caller at the target the wait; losing it is harmless.
    async fn ask_to_claim(&self, head: &Head, request: &SwitchRequest) {
        let address = request.target_data_address.clone();
        let Ok(channel) = self.channels.get(&address) else { return };
        let claim = ClaimRequest { log: head.log.clone(), force: false, run_id: request.run_id.clone() };
        tokio::spawn(async move {
            if let Err(status) = DataServiceClient::new(channel).claim(claim).await {
                tracing::debug!(address, %status, "the target was not asked to claim; it will at its first request");
            }
        });
    }
}
