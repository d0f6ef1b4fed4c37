//! Doing what a guild's machine wants: each effect becomes a frame, an answer or a task of its own. Nothing here waits.

use std::sync::Arc;

use cell_proto::directory::RouteHint;
use cell_proto::v1::link_down::Kind;
use cell_proto::v1::{LinkDown, MemberInfo, Moved, Position};

use super::actor::ActorTask;
use super::ask::{Envelope, Waiter};
use super::feed::FeedTask;
use super::history;
use super::memberships::{MembershipChange, Order, OrderKind};
use super::node::Decision;
use crate::machine::{Effect, GuildView, Input, LinkId, Reply, Ticket, Whereto, member_info};

impl ActorTask {
    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Load { epoch, log } => self.load(epoch, log),
            Effect::OpenFeed { epoch, log, from } => self.open_feed(epoch, log, from),
            Effect::ReadLog { ticket, log, from } => self.read_log(ticket, log, from),
            Effect::FindStart { ticket, log, after_us } => self.find_start(ticket, log, after_us),
            Effect::FindJunctions { ticket, since } => self.find_junctions(ticket, since),
            Effect::Claim { attempt, request } => {
                let data = self.node.data.clone();
                self.in_background(async move {
                    let outcome = Box::new(data.submit(*request).await);
                    Input::Claimed { attempt, outcome }
                });
            }
            Effect::Submit { ticket, request } => {
                let data = self.node.data.clone();
                self.in_background(async move {
                    let outcome = Box::new(data.submit(*request).await);
                    Input::Submitted { ticket, outcome }
                });
            }
            Effect::BuildSnapshot { link, ticket, view, user_ids, position, term } => self.off_the_loop(move || {
                let snapshot = Box::new(view.snapshot(&user_ids, position, term));
                Input::SnapshotBuilt { link, ticket, snapshot }
            }),
            Effect::SendMembers { link, view, user_ids, position } => self.send_members(link, view, user_ids, position),
            Effect::Send { link, frame, paced } => self.send(link, frame, paced),
            Effect::SendMoved { link, to } => self.send_moved(link, to),
            Effect::Reply { ticket, reply } => self.reply(ticket, reply),
            Effect::FeedMembership { log, number, users, joined } => {
                let change = MembershipChange { log, number, guild_id: self.guild_id, users, joined };
                self.order(OrderKind::Tell(change));
            }
            Effect::CompareMemberships { log, until } => {
                self.order(OrderKind::Compare { log, guild_id: self.guild_id, until });
            }
            Effect::AckFeed { log, number } => self.ack_feed(log, number),
            Effect::Reconsider => self.reconsider(),
            Effect::Owned { log, at, guild_term, term } => self.announce_ownership(log, at, guild_term, term),
            Effect::Stop => self.stopped = true,
        }
    }

    /// Runs a task whose outcome is an input.
    fn in_background(&self, work: impl Future<Output = Input> + Send + 'static) {
        let mailbox = self.mailbox.clone();
        tokio::spawn(async move {
            let input = work.await;
            // A task that has ended needs no outcome.
            let _gone = mailbox.send(Envelope::Input(input)).await;
        });
    }

    /// Computes an input on a thread for slow work.
    fn off_the_loop(&self, work: impl FnOnce() -> Input + Send + 'static) {
        let mailbox = self.mailbox.clone();
        tokio::task::spawn_blocking(move || {
            let input = work();
            let _gone = mailbox.blocking_send(Envelope::Input(input));
        });
    }

    fn load(&mut self, epoch: u64, log: String) {
        if let Some(feed) = self.feed.take() {
            feed.abort();
        }
        let (data, guild_id) = (self.node.data.clone(), self.guild_id);
        self.in_background(async move {
            let outcome = data.read_guild(&log, guild_id).await.map(Box::new);
            Input::Loaded { epoch, outcome }
        });
    }

    fn open_feed(&mut self, epoch: u64, log: String, from: u64) {
        if let Some(feed) = self.feed.take() {
            feed.abort();
        }
        let feed = FeedTask {
            data: self.node.data.clone(),
            mailbox: self.mailbox.clone(),
            guild_id: self.guild_id,
            follower: self.node.member_id.clone(),
            epoch,
            log,
            from,
        };
        self.feed = Some(tokio::spawn(feed.run()));
    }

    fn read_log(&self, ticket: Ticket, log: String, from: u64) {
        let data = self.node.data.clone();
        self.in_background(async move {
            let outcome = data.read_log(&log, from).await;
            Input::LogRead { ticket, outcome }
        });
    }

    fn find_start(&self, ticket: Ticket, log: String, after_us: i64) {
        let data = self.node.data.clone();
        self.in_background(async move {
            let outcome = history::find_start(&data, &log, after_us).await;
            Input::StartFound { ticket, outcome }
        });
    }

    fn find_junctions(&self, ticket: Ticket, since: Position) {
        let (data, guild_id) = (self.node.data.clone(), self.guild_id);
        self.in_background(async move {
            let outcome = history::find_junctions(&data, guild_id, &since).await;
            Input::JunctionsFound { ticket, outcome }
        });
    }

    fn send(&self, link: LinkId, frame: Arc<LinkDown>, paced: bool) {
        if let Some(queue) = self.links.get(&link) {
            self.node.metrics.frames.inc();
            queue.push(frame, paced.then(|| self.mailbox.clone()));
        }
    }

    fn send_members(&self, link: LinkId, view: Box<GuildView>, user_ids: Vec<i64>, position: Position) {
        let Some(queue) = self.links.get(&link).cloned() else { return };
        let guild_id = self.guild_id;
        tokio::task::spawn_blocking(move || {
            for part in user_ids.chunks(1000) {
                let info =
                    MemberInfo { position: Some(position.clone()), ..member_info(guild_id, &view.members, part) };
                queue.push(Arc::new(LinkDown { kind: Some(Kind::Members(info)) }), None);
            }
        });
    }

    fn send_moved(&mut self, link: LinkId, to: Whereto) {
        let Some(queue) = self.links.remove(&link) else { return };
        let route = match to {
            Whereto::Route(route) => Some(route),
            Whereto::Node(member_id) => self.node.route_to(self.guild_id, &member_id),
            Whereto::Unknown => None,
        };
        let elsewhere = || match self.node.decide(self.guild_id, "") {
            Decision::Elsewhere(route) => Some(route),
            Decision::Here(_) | Decision::Unknown => None,
        };
        let moved = Moved { guild_id: self.guild_id, route: route.or_else(elsewhere) };
        queue.push(Arc::new(LinkDown { kind: Some(Kind::Moved(moved)) }), None);
    }

    fn reply(&mut self, ticket: Ticket, reply: Reply) {
        // Callers that went away need no answer.
        let _gone = match (self.waiters.remove(&ticket), reply) {
            (Some(Waiter::Mutate(answer)), Reply::Mutate(reply)) => answer.send(*reply).is_err(),
            (Some(Waiter::Warm(answer)), Reply::Warm(reply)) => answer.send(reply).is_err(),
            (Some(Waiter::Run(answer)), Reply::Run(reply)) => answer.send(reply).is_err(),
            (Some(Waiter::Reach(answer)), Reply::Reach(reply)) => answer.send(reply).is_err(),
            (Some(Waiter::Inspect(answer)), Reply::Inspect(reply)) => answer.send(reply).is_err(),
            (Some(Waiter::View(answer)), Reply::View(reply)) => answer.send(reply).is_err(),
            _ => true,
        };
    }

    /// What finds no room is left out, and found again by the next comparison.
    fn order(&mut self, kind: OrderKind) {
        let order = Order { kind, ownership: self.ownership.clone() };
        if let Err(refused) = self.orders.try_send(order) {
            let (log, number) = refused.into_inner().names();
            self.node.metrics.memberships_left_out.inc();
            tracing::warn!(guild_id = self.guild_id, log, number, "too many memberships wait to be told");
            self.step(Input::MembershipLeftOut { log, number });
        }
    }

    fn ack_feed(&self, log: String, number: u64) {
        let (data, guild_id) = (self.node.data.clone(), self.guild_id);
        tokio::spawn(async move {
            if let Err(refusal) = data.ack_feed(&log, number, guild_id).await {
                tracing::debug!(
                    log,
                    number,
                    reason = refusal.why().label(),
                    "the feed's acknowledgement was not taken"
                );
            }
        });
    }

    fn reconsider(&mut self) {
        let input = match self.node.decide(self.guild_id, "") {
            Decision::Here(_) => Input::Own,
            Decision::Elsewhere(route) => Input::Yield(Some(route)),
            // Nobody else is known: those who wait go on waiting until their own limits.
            Decision::Unknown => return,
        };
        self.step(input);
    }

    fn announce_ownership(&self, log: String, at: u64, guild_term: u64, term: u64) {
        tracing::info!(guild_id = self.guild_id, log, at, guild_term, term, "guild taken over");
        if !log.starts_with('g') {
            return;
        }
        let directory = self.node.directory.clone();
        let member_id = self.node.member_id.clone();
        tokio::spawn(async move {
            let known = directory.view().place(&log).cloned();
            let Some(place) = known.filter(|place| place.term == term) else { return };
            let hint = RouteHint {
                cell: place.cell,
                term,
                data_owner: place.data_owner,
                guild_owner: member_id,
                merged: place.merged,
            };
            if let Err(error) = directory.publish_route(&log, &hint).await {
                tracing::debug!(log, %error, "the route hint was not published");
            }
        });
    }
}
