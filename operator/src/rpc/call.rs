//! One request, one call. A redirect corrects the directory's view, so that the next try goes to the right process.

use std::time::Duration;

use cell_plan::moves::{Request, Response, Role as PlanRole};
use cell_proto::MAX_MESSAGE_BYTES;
use cell_proto::directory::{Member, Role};
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::guild_service_client::GuildServiceClient;
use cell_proto::v1::{
    AnnounceStandbyRequest, ClaimReply, ClaimRequest, ForgetRequest, InspectRequest, MergeGuildRequest, ReachReply,
    ReachRequest, Reason, Refusal, Route, SplitGuildRequest, SwitchReply, SwitchRequest, TakeOverRequest, WarmReply,
    WarmRequest,
};
use cell_runtime::View;
use cell_runtime::route::winner;
use tonic::transport::Channel;

use super::answer::{of_inspect, of_refusal, of_run, of_status};
use crate::directory::Link;

/// How long most requests may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long admission may stay closed in a switch before its owner undoes it.
const HOLD_LIMIT_MS: u32 = 3_000;
/// A switch settles within its hold limit, or says that it does not know.
const SWITCH_DEADLINE: Duration = Duration::from_secs(8);
/// How long a target may take to reach a number before it is asked again.
const REACH_WAIT_MS: u32 = 2_000;

/// Asks once.
pub async fn perform(link: &Link, run_id: &str, request: &Request) -> Response {
    let caller = Caller { link, run_id };
    match request {
        Request::Inspect { .. }
        | Request::Split { .. }
        | Request::Merge { .. }
        | Request::Switch { .. }
        | Request::Failover { .. }
        | Request::Fence { .. } => caller.ask_data(request).await,
        _ => caller.ask_guild(request).await,
    }
    .unwrap_or_else(|response| response)
}

struct Caller<'a> {
    link: &'a Link,
    run_id: &'a str,
}

/// The data service that should own a log in a cell: the hinted owner while it lives there, else the cell's rendezvous winner.
pub(super) fn data_in_cell<'a>(view: &'a View, cell: &str, log: &str) -> Option<&'a Member> {
    let hinted = view.place(log).and_then(|place| view.member(&place.data_owner));
    hinted
        .filter(|member| member.role == Role::Data && member.cell == cell && !member.draining)
        .or_else(|| winner(view, Role::Data, cell, log))
}

fn guild_in_cell(view: &View, cell: &str, guild_id: i64) -> Option<String> {
    winner(view, Role::Guild, cell, &format!("guild:{guild_id}")).map(|member| member.grpc_address.clone())
}

/// Any data service on the StorageCell of `cell`, for reading a head whose cell has none.
fn data_beside<'a>(view: &'a View, cell: &str) -> Option<&'a Member> {
    let storage = view.members().find(|member| member.cell == cell).map(|member| member.storage_cell.as_str());
    let mut others: Vec<&Member> = view.members().filter(|member| member.role == Role::Data).collect();
    others.retain(|member| !member.draining && storage.is_none_or(|storage| member.storage_cell == storage));
    others.into_iter().min_by(|a, b| a.id.cmp(&b.id))
}

impl Caller<'_> {
    fn data_address(&self, cell: &str, log: &str) -> Result<String, Response> {
        let nobody = Response::NoMember { cell: cell.to_owned(), role: PlanRole::Data };
        data_in_cell(&self.link.directory.view(), cell, log).map(|member| member.grpc_address.clone()).ok_or(nobody)
    }

    fn guild_address(&self, cell: &str, guild_id: i64) -> Result<String, Response> {
        let nobody = Response::NoMember { cell: cell.to_owned(), role: PlanRole::Guild };
        guild_in_cell(&self.link.directory.view(), cell, guild_id).ok_or(nobody)
    }

    fn channel(&self, address: &str) -> Result<Channel, Response> {
        self.link.channels.get(address).map_err(|error| Response::Unknown { message: error.to_string() })
    }

    fn data(&self, address: &str) -> Result<DataServiceClient<Channel>, Response> {
        Ok(DataServiceClient::new(self.channel(address)?).max_decoding_message_size(MAX_MESSAGE_BYTES))
    }

    fn guild(&self, address: &str) -> Result<GuildServiceClient<Channel>, Response> {
        Ok(GuildServiceClient::new(self.channel(address)?).max_decoding_message_size(MAX_MESSAGE_BYTES))
    }

    /// Waits for a reply; learns from a redirect.
    async fn reply<T: MayRefuse>(
        &self,
        address: &str,
        deadline: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, Response> {
        let Ok(answer) = tokio::time::timeout(deadline, call).await else {
            let message = format!("{address}: no answer within {} s", deadline.as_secs());
            return Err(Response::Unknown { message });
        };
        let reply = answer.map_err(|status| of_status(&status, address))?.into_inner();
        if let Some(route) = reply.refusal().and_then(|refusal| refusal.route.as_ref()) {
            self.link.directory.correct(route);
        }
        Ok(reply)
    }

    async fn ask_data(&self, request: &Request) -> Result<Response, Response> {
        let run_id = self.run_id.to_owned();
        match request {
            Request::Inspect { log, cell } => {
                let address = self.data_address(cell, log).or_else(|nobody| {
                    let view = self.link.directory.view();
                    data_beside(&view, cell).map(|member| member.grpc_address.clone()).ok_or(nobody)
                })?;
                let call = InspectRequest { log: log.clone() };
                let mut client = self.data(&address)?;
                Ok(of_inspect(&self.reply(&address, DEADLINE, client.inspect(call)).await?))
            }
            Request::Split { bucket, guild_id, cell } => {
                let address = self.data_address(cell, bucket)?;
                let call = SplitGuildRequest { bucket_log: bucket.clone(), guild_id: *guild_id, run_id };
                let mut client = self.data(&address)?;
                Ok(of_run(&self.reply(&address, DEADLINE, client.split_guild(call)).await?))
            }
            Request::Merge { bucket, guild_id, cell } => {
                let address = self.data_address(cell, bucket)?;
                let call = MergeGuildRequest { bucket_log: bucket.clone(), guild_id: *guild_id, run_id };
                let mut client = self.data(&address)?;
                Ok(of_run(&self.reply(&address, DEADLINE, client.merge_guild(call)).await?))
            }
            Request::Switch { log, guild_id, from, to, term } => {
                let guild_id = guild_id.unwrap_or_default();
                let target_guild = if guild_id == 0 { String::new() } else { self.guild_address(to, guild_id)? };
                let call = SwitchRequest {
                    log: log.clone(),
                    run_id,
                    from_cell: from.clone(),
                    to_cell: to.clone(),
                    expected_term: *term,
                    target_guild_address: target_guild,
                    guild_id,
                    hold_limit_ms: HOLD_LIMIT_MS,
                    target_data_address: self.data_address(to, log)?,
                };
                let address = self.data_address(from, log)?;
                let mut client = self.data(&address)?;
                Ok(of_switch(&self.reply(&address, SWITCH_DEADLINE, client.switch(call)).await?))
            }
            Request::Failover { log, to: cell } | Request::Fence { log, cell } => {
                let address = self.data_address(cell, log)?;
                let call = ClaimRequest { log: log.clone(), force: true, run_id };
                let mut client = self.data(&address)?;
                Ok(of_claim(&self.reply(&address, DEADLINE, client.claim(call)).await?))
            }
            other => Err(unfit(other)),
        }
    }

    async fn ask_guild(&self, request: &Request) -> Result<Response, Response> {
        let run_id = self.run_id.to_owned();
        match request {
            Request::Warm { guild_id, log, bucket, from, to } => {
                let address = self.guild_address(to, *guild_id)?;
                let call = WarmRequest {
                    guild_id: *guild_id,
                    log: log.clone(),
                    run_id,
                    data_address: self.data_address(from, log)?,
                    bucket_log: bucket.clone(),
                    term: self.term(log),
                };
                let mut client = self.guild(&address)?;
                let mut reply = self.reply(&address, DEADLINE, client.warm(call.clone())).await?;
                if let Some(term) = newer_term(reply.refusal.as_ref()) {
                    reply = self.reply(&address, DEADLINE, client.warm(WarmRequest { term, ..call })).await?;
                }
                Ok(of_warm(&reply))
            }
            Request::AnnounceStandby { guild_id, log, from, to } => {
                let address = self.guild_address(from, *guild_id)?;
                // The head does not name the target yet: a route without a term overrules nothing.
                let target = Some(self.route_in(to, log, *guild_id, 0)?);
                let call = AnnounceStandbyRequest { guild_id: *guild_id, run_id, target };
                let mut client = self.guild(&address)?;
                Ok(of_run(&self.reply(&address, DEADLINE, client.announce_standby(call)).await?))
            }
            Request::Reach { guild_id, log, at, to } => {
                let address = self.guild_address(to, *guild_id)?;
                let call =
                    ReachRequest { guild_id: *guild_id, log: log.clone(), at: *at, wait_ms: REACH_WAIT_MS, run_id };
                let mut client = self.guild(&address)?;
                Ok(of_reach(&self.reply(&address, DEADLINE, client.reach(call)).await?))
            }
            Request::TakeOver { guild_id, log, to, term } => {
                let address = self.guild_address(to, *guild_id)?;
                let route = Some(self.route_in(to, log, *guild_id, *term)?);
                let call = TakeOverRequest { guild_id: *guild_id, log: log.clone(), run_id, claim: true, route };
                let mut client = self.guild(&address)?;
                Ok(of_run(&self.reply(&address, DEADLINE, client.take_over(call)).await?))
            }
            Request::PointAway { guild_id, log, from, to, term } => {
                let address = self.guild_address(from, *guild_id)?;
                let route = Some(self.route_in(to, log, *guild_id, *term)?);
                let call = TakeOverRequest { guild_id: *guild_id, log: log.clone(), run_id, claim: false, route };
                let mut client = self.guild(&address)?;
                Ok(of_run(&self.reply(&address, DEADLINE, client.take_over(call)).await?))
            }
            Request::Forget { guild_id, cell, log } => {
                let address = self.guild_address(cell, *guild_id)?;
                let mut client = self.guild(&address)?;
                let call = ForgetRequest { guild_id: *guild_id, run_id, log: log.clone(), term: self.term(log) };
                let mut reply = self.reply(&address, DEADLINE, client.forget(call.clone())).await?;
                if let Some(term) = newer_term(reply.refusal.as_ref()) {
                    reply = self.reply(&address, DEADLINE, client.forget(ForgetRequest { term, ..call })).await?;
                }
                Ok(of_run(&reply))
            }
            other => Err(unfit(other)),
        }
    }

    /// The head's term as the directory has it: a copy of the request that is late is refused by it.
    fn term(&self, log: &str) -> u64 {
        self.link.directory.view().place(log).map_or(0, |place| place.term)
    }

    /// Where a guild is, or will be, in `cell`, by the head's `term`, or the higher one by which its owner there has claimed it since.
    fn route_in(&self, cell: &str, log: &str, guild_id: i64, term: u64) -> Result<Route, Response> {
        let claimed = self.link.directory.view().place(log).filter(|place| place.cell == cell).map(|place| place.term);
        let term = term.max(claimed.unwrap_or_default());
        Ok(Route {
            log: log.to_owned(),
            cell: cell.to_owned(),
            term,
            data_address: self.data_address(cell, log)?,
            guild_address: self.guild_address(cell, guild_id)?,
        })
    }
}

/// The directory may be behind the node; its word is taken once. A late copy of a request has nobody to do so.
fn newer_term(refusal: Option<&Refusal>) -> Option<u64> {
    let stale = refusal.filter(|refusal| refusal.why() == Reason::StaleTerm)?;
    stale.route.as_ref().map(|route| route.term)
}

fn unfit(request: &Request) -> Response {
    Response::Unknown { message: format!("{} has no call of this kind", request.label()) }
}

fn of_switch(reply: &SwitchReply) -> Response {
    match &reply.refusal {
        _ if reply.switched => Response::Switched { term: reply.new_term, at: reply.at, held_us: reply.held_us },
        Some(refusal) => of_refusal(refusal),
        None => Response::Unknown { message: "the switch was neither done nor refused".into() },
    }
}

fn of_claim(reply: &ClaimReply) -> Response {
    match (&reply.refusal, &reply.head) {
        (Some(refusal), _) => of_refusal(refusal),
        (None, Some(head)) => Response::Claimed { cell: head.cell.clone(), term: head.term },
        (None, None) => Response::Unknown { message: "the claim answered without a head".into() },
    }
}

fn of_warm(reply: &WarmReply) -> Response {
    match &reply.refusal {
        Some(refusal) => of_refusal(refusal),
        None => Response::Warmed { ready: reply.ready, position: reply.position },
    }
}

fn of_reach(reply: &ReachReply) -> Response {
    match &reply.refusal {
        Some(refusal) => of_refusal(refusal),
        None => Response::Reached { reached: reply.reached, position: reply.position },
    }
}

/// A reply that may hold a refusal.
trait MayRefuse {
    fn refusal(&self) -> Option<&Refusal>;
}

macro_rules! may_refuse {
    ($($reply:ty),*) => {
        $(impl MayRefuse for $reply {
            fn refusal(&self) -> Option<&Refusal> {
                self.refusal.as_ref()
            }
        })*
    };
}

may_refuse!(SwitchReply, ClaimReply, WarmReply, ReachReply, cell_proto::v1::RunReply, cell_proto::v1::InspectReply);
