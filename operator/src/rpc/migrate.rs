//! Requests of migrations to data services and coordinators. One call each; the machine retries.

use std::collections::BTreeSet;
use std::time::Duration;

use cell_plan::migrations::{CopyFact, CutFact, Log, Phase, RefusalKind, Response, ShipFact, Side, Spec};
use cell_proto::MAX_MESSAGE_BYTES;
use cell_proto::directory::{Member, Role};
use cell_proto::unit::Unit;
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::migrate_service_client::MigrateServiceClient;
use cell_proto::v1::{
    CopyStatusRequest, CutOverRequest, EndCopyRequest, MigrateControlRequest, MigratePhase, MigrateState, RangeRow,
    RangesRequest, Reason, Refusal, ShipRequest,
};
use cell_runtime::View;
use tonic::transport::Channel;

use super::call::data_in_cell;
use super::facts::fact;
use super::heads::all_heads;
use crate::directory::Link;
use crate::error::ReconcileError;

const DEADLINE: Duration = Duration::from_secs(5);
/// How long commits may be held in a cutover before its owner undoes it.
const HOLD_LIMIT_MS: u32 = 3_000;
/// A cutover settles within its hold limit, or says that it does not know.
const CUT_DEADLINE: Duration = Duration::from_secs(8);
/// Most ranges read for a report.
const MOST_RANGES: usize = 20_000;

/// One run, and the cells that may hold its logs.
#[derive(Clone, Copy)]
pub struct MigrateCaller<'a> {
    /// The link.
    pub link: &'a Link,
    /// What the run was asked.
    pub spec: &'a Spec,
    /// The StorageMigration's name.
    pub name: &'a str,
    /// Names of the cells on either StorageCell.
    pub cells: &'a [String],
}

fn of_refusal(refusal: &Refusal) -> Response {
    let reason = refusal.why();
    let kind = match reason {
        Reason::UnknownOutcome => return Response::Unknown { message: refusal.message.clone() },
        Reason::StaleTerm => RefusalKind::Stale,
        Reason::CopyNotReady | Reason::BehindRetention => RefusalKind::NotReady,
        Reason::StoreUnavailable => RefusalKind::Unavailable,
        Reason::OtherRun | Reason::Migrating => RefusalKind::OtherRun,
        Reason::NotFound => RefusalKind::Missing,
        Reason::Invalid | Reason::Unsupported | Reason::Forbidden | Reason::TooLarge => RefusalKind::Permanent,
        _ => RefusalKind::Retry,
    };
    Response::Refused {
        kind,
        reason: reason.label().to_owned(),
        message: refusal.message.clone(),
        retry_after_ms: refusal.retry_after_ms,
    }
}

async fn bounded<T>(
    address: &str,
    deadline: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, Response> {
    let Ok(answer) = tokio::time::timeout(deadline, call).await else {
        let message = format!("{address}: no answer within {} s", deadline.as_secs());
        return Err(Response::Unknown { message });
    };
    answer.map(tonic::Response::into_inner).map_err(|status| match status.code() {
        tonic::Code::Unimplemented | tonic::Code::InvalidArgument => Response::Refused {
            kind: RefusalKind::Permanent,
            reason: "Unsupported".into(),
            message: format!("{address}: {}", status.message()),
            retry_after_ms: 0,
        },
        _ => Response::Unknown { message: format!("{address}: {}", status.message()) },
    })
}

/// The bucket that a log is copied with; none for a log of another kind.
fn unit_of(log: &str) -> Option<String> {
    match log.parse::<Unit>().ok()? {
        Unit::Bucket(_) => Some(log.to_owned()),
        Unit::Guild(guild_id) => Some(Unit::bucket(guild_id).log()),
    }
}

impl MigrateCaller<'_> {
    fn owner(&self, view: &View, log: &str) -> Result<Member, Response> {
        let placed = view.place(log).and_then(|place| data_in_cell(view, &place.cell, log));
        // Whoever is asked answers with a redirect if it is another's.
        let any = || self.cells.iter().find_map(|cell| data_in_cell(view, cell, log));
        placed.or_else(any).cloned().ok_or_else(|| Response::Nobody {
            message: format!("no data service of cells {} is live", self.cells.join(", ")),
        })
    }

    fn channel(&self, address: &str) -> Result<Channel, Response> {
        self.link.channels.get(address).map_err(|error| Response::Unknown { message: error.to_string() })
    }

    fn data(&self, log: &str) -> Result<(DataServiceClient<Channel>, String), Response> {
        let view = self.link.directory.view();
        let address = self.owner(&view, log)?.grpc_address;
        let client = DataServiceClient::new(self.channel(&address)?).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok((client, address))
    }

    fn learn(&self, refusal: Option<&Refusal>) {
        if let Some(route) = refusal.and_then(|refusal| refusal.route.as_ref()) {
            self.link.directory.correct(route);
        }
    }

    /// Ships a log.
    pub async fn ship(&self, log: &str) -> Result<Response, Response> {
        let (mut client, address) = self.data(log)?;
        let call = ShipRequest {
            log: log.to_owned(),
            run_id: self.spec.run_id.clone(),
            source: self.spec.source.clone(),
            target: self.spec.target.clone(),
        };
        let reply = bounded(&address, DEADLINE, client.ship(call)).await?;
        self.learn(reply.refusal.as_ref());
        if let Some(refusal) = &reply.refusal {
            return Ok(of_refusal(refusal));
        }
        Ok(Response::Shipped(ShipFact {
            serving: reply.serving,
            term: reply.term,
            restarts: reply.restarts,
            lag_seconds: reply.lag_seconds,
            backlog: reply.last.saturating_sub(reply.shipped),
            last: reply.last,
            blocked_by: reply.blocked_by,
        }))
    }

    /// Cuts a log over.
    pub async fn cut_over(
        &self,
        log: &str,
        from: Side,
        (term, restarts): (u64, u32),
        accept_loss: bool,
    ) -> Result<Response, Response> {
        let (mut client, address) = self.data(log)?;
        let to = if from == Side::Source { Side::Target } else { Side::Source };
        let call = CutOverRequest {
            log: log.to_owned(),
            run_id: self.spec.run_id.clone(),
            from: self.spec.name_of(from).to_owned(),
            to: self.spec.name_of(to).to_owned(),
            expected_term: term,
            hold_limit_ms: HOLD_LIMIT_MS,
            accept_loss,
            expected_restarts: restarts,
        };
        let reply = bounded(&address, CUT_DEADLINE, client.cut_over(call)).await?;
        self.learn(reply.refusal.as_ref());
        Ok(match &reply.refusal {
            _ if reply.cut => {
                let at_risk = (!reply.at_risk_unknown).then_some(reply.at_risk);
                Response::Cut(CutFact { term: reply.new_term, held_us: reply.held_us, at_risk })
            }
            Some(refusal) => of_refusal(refusal),
            None => Response::Unknown { message: "the cutover was neither done nor refused".into() },
        })
    }

    /// Releases a log's copy.
    pub async fn end_copy(&self, log: &str) -> Result<Response, Response> {
        let (mut client, address) = self.data(log)?;
        let call = EndCopyRequest {
            log: log.to_owned(),
            run_id: self.spec.run_id.clone(),
            source: self.spec.source.clone(),
            target: self.spec.target.clone(),
        };
        let reply = bounded(&address, DEADLINE, client.end_copy(call)).await?;
        self.learn(reply.refusal.as_ref());
        Ok(match &reply.refusal {
            Some(refusal) => of_refusal(refusal),
            None if reply.done => Response::Done,
            None => Response::Pending { message: "the copy is being released".into() },
        })
    }

    /// All logs in scope, or nothing: a part of them is no answer.
    pub async fn logs(&self) -> Result<Response, Response> {
        let view = self.link.directory.view().clone();
        let mut logs = BTreeSet::new();
        for cell in self.cells {
            let members = super::data_members_of(&view, cell);
            let Some(member) = members.first() else {
                return Err(Response::Nobody {
                    message: format!("cell {cell} has no live data service to list heads"),
                });
            };
            let heads = all_heads(self.link, &member.grpc_address, cell).await;
            let heads = heads.map_err(|error| Response::Unknown { message: error.to_string() })?;
            for head in heads.iter().filter(|head| head.cell == *cell && !head.moved_to.starts_with("log:")) {
                let Some(unit) = unit_of(&head.log) else { continue };
                if self.spec.units.is_empty() || self.spec.units.contains(&unit) {
                    logs.insert(Log { name: head.log.clone(), unit });
                }
            }
        }
        Ok(Response::Logs(logs.into_iter().collect()))
    }

    /// The copies and shadow reads of all data services together.
    pub async fn copies(&self) -> Result<Response, Response> {
        let view = self.link.directory.view().clone();
        let members = self.cells.iter().flat_map(|cell| super::data_members_of(&view, cell));
        let asked = members.map(|member| async move {
            let address = member.grpc_address;
            let mut client = DataServiceClient::new(self.channel(&address)?);
            let call = CopyStatusRequest { run_id: self.spec.run_id.clone() };
            let reply = bounded(&address, DEADLINE, client.copy_status(call)).await?;
            Ok::<_, Response>((format!("{}/{}", member.id, member.incarnation), reply))
        });
        let mut sum = CopyFact::default();
        for answer in futures::future::join_all(asked).await {
            let Some((process, reply)) = answer.ok().filter(|(_, reply)| reply.refusal.is_none()) else {
                sum.silent += 1;
                continue;
            };
            sum.shadows.insert(process, (reply.shadow_samples, reply.shadow_mismatches.values().sum()));
            sum.answered += 1;
            sum.behind += u64::from(reply.behind);
            sum.backlog += reply.backlog;
            sum.lag_seconds = sum.lag_seconds.max(reply.lag_seconds);
            sum.samples += reply.shadow_samples;
            sum.skipped += reply.shadow_skipped;
            for (class, count) in reply.shadow_mismatches {
                *sum.mismatches.entry(class).or_default() += count;
            }
        }
        Ok(Response::Copies(sum))
    }

    fn coordinator(&self) -> Result<(MigrateServiceClient<Channel>, String), Response> {
        let view = self.link.directory.view();
        let found = view.members_of(Role::Migrate, self.name).map(|member| member.grpc_address.clone()).next();
        let address = found.ok_or_else(|| Response::Nobody {
            message: format!("the coordinator of migration {} is not live", self.name),
        })?;
        let client = MigrateServiceClient::new(self.channel(&address)?).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok((client, address))
    }

    /// Tells the coordinator what to do.
    pub async fn control(&self, wanted: Control) -> Result<Response, Response> {
        let (mut client, address) = self.coordinator()?;
        let phase = match wanted.phase {
            Phase::Backfill => MigratePhase::Backfill,
            Phase::Verify => MigratePhase::Verify,
            Phase::Repair => MigratePhase::Repair,
        };
        let call = MigrateControlRequest {
            run_id: self.spec.run_id.clone(),
            phase: phase.into(),
            round: wanted.round,
            rows_per_second: wanted.rows_per_second,
            paused: wanted.paused,
            again: wanted.again,
            source: self.spec.source.clone(),
            target: self.spec.target.clone(),
        };
        let state = bounded(&address, DEADLINE, client.control(call)).await?;
        Ok(match &state.refusal {
            Some(refusal) => of_refusal(refusal),
            None => Response::Coordinator(Box::new(fact(&state))),
        })
    }

    /// How the coordinator is, without telling it anything.
    ///
    /// # Errors
    /// [`ReconcileError::Rpc`].
    pub async fn state(&self) -> Result<MigrateState, ReconcileError> {
        let failed = |response| failed("read the coordinator's state", self.name, &response);
        let (mut client, address) = self.coordinator().map_err(failed)?;
        let call = MigrateControlRequest { run_id: self.spec.run_id.clone(), ..MigrateControlRequest::default() };
        bounded(&address, DEADLINE, client.control(call)).await.map_err(failed)
    }

    /// All ranges, up to a bound.
    ///
    /// # Errors
    /// [`ReconcileError::Rpc`].
    pub async fn ranges(&self) -> Result<Vec<RangeRow>, ReconcileError> {
        let failed = |response| failed("read the ranges", self.name, &response);
        let (mut client, address) = self.coordinator().map_err(failed)?;
        let (mut rows, mut after) = (Vec::new(), String::new());
        while rows.len() < MOST_RANGES {
            let call = RangesRequest { run_id: self.spec.run_id.clone(), after: after.clone(), limit: 1000 };
            let reply = bounded(&address, DEADLINE, client.ranges(call)).await.map_err(failed)?;
            if let Some(refusal) = &reply.refusal {
                return Err(failed(of_refusal(refusal)));
            }
            rows.extend(reply.ranges);
            if reply.next.is_empty() || reply.next == after {
                break;
            }
            after = reply.next;
        }
        Ok(rows)
    }
}

fn failed(verb: &'static str, name: &str, response: &Response) -> ReconcileError {
    let message = match response {
        Response::Unknown { message } | Response::Nobody { message } | Response::Refused { message, .. } => message,
        _ => "an answer to another question",
    };
    ReconcileError::Rpc { verb, address: format!("migration {name}"), message: message.to_owned() }
}

/// What a coordinator is told.
#[derive(Clone, Debug)]
pub struct Control {
    /// What to do.
    pub phase: Phase,
    /// A higher one begins anew.
    pub round: u32,
    /// Units to be copied again.
    pub again: Vec<String>,
    /// 0 for no bound.
    pub rows_per_second: u32,
    /// Begin nothing.
    pub paused: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_kind_and_what_may_have_happened_is_unknown() {
        let kind = |reason| match of_refusal(&Refusal::new(reason, "")) {
            Response::Refused { kind, .. } => Some(kind),
            _ => None,
        };
        assert_eq!(kind(Reason::UnknownOutcome), None);
        assert_eq!(kind(Reason::StoreUnavailable), Some(RefusalKind::Unavailable));
        assert_eq!(kind(Reason::CopyNotReady), Some(RefusalKind::NotReady));
        assert_eq!(kind(Reason::StaleTerm), Some(RefusalKind::Stale));
        assert_eq!(kind(Reason::Wait), Some(RefusalKind::Retry));
        assert_eq!(kind(Reason::Unsupported), Some(RefusalKind::Permanent));
    }

    #[test]
    fn a_guilds_log_is_copied_with_its_bucket() {
        assert_eq!(unit_of("b0042").as_deref(), Some("b0042"));
        assert_eq!(unit_of("g7"), Some(Unit::bucket(7).log()));
        assert_eq!(unit_of("x"), None);
    }
}
