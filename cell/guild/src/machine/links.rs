//! The gateways attached to a guild: what each has, what it gets. Every attached gateway is sent exactly the entries after its position, in
//! order, with no hole; soft events go to those that are live and are shed first.

use std::collections::BTreeSet;
use std::sync::Arc;

use cell_proto::v1::link_down::Kind;
use cell_proto::v1::{
    AttachRefused, GuildEvent, GuildEvents, GuildSnapshot, LinkDown, MemberInfo, Moved, Position, Reason, Refusal,
    Typing,
};

use super::input::{Effect, LinkId, Now, Pressure, Ticket, Whereto};
use super::replay::Next;
use super::walk::Walk;
use super::{GuildActor, members};

/// How long a gateway waits for this node to own the guild before it is refused, in milliseconds.
const WAIT_LIMIT_MS: u64 = 10_000;

/// One attached gateway.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) users: BTreeSet<i64>,
    pub(super) sessions: i32,
    pub(super) phase: Phase,
    /// Asked for before the guild was loaded.
    unanswered: Vec<i64>,
}

/// What a gateway is being sent.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing before this node owns the guild; then what follows the position, if it has one.
    Standby { position: Option<Position> },
    /// Attached; this node is taking the guild over.
    Waiting { position: Option<Position>, since_ms: u64 },
    /// A worker builds its snapshot; the entries from `next` on follow it.
    Building { ticket: Ticket, next: u64 },
    /// A page of a log is being read for it.
    Reading { ticket: Ticket, walk: Box<Walk> },
    /// A frame is in its queue; when it left, this follows.
    Pausing(Next),
    /// It gets everything as it happens.
    Live,
}

impl GuildActor {
    pub(super) fn attach(
        &mut self,
        link: LinkId,
        position: Option<Position>,
        user_ids: Vec<i64>,
        standby: bool,
        now: Now,
    ) {
        self.last_used_ms = now.mono_ms;
        if self.links.len() >= self.limits.links && !self.links.contains_key(&link) {
            let refusal = Refusal::new(Reason::Overloaded, "too many gateways are attached to this guild; retry later");
            return self.refuse_link(link, refusal.retry_after_ms(1000));
        }
        let phase = match (standby, position) {
            (true, position) => Phase::Standby { position },
            (false, position) => Phase::Waiting { position, since_ms: now.mono_ms },
        };
        let sessions = i32::try_from(user_ids.len()).unwrap_or(i32::MAX);
        let users = user_ids.into_iter().collect();
        self.links.insert(link, Link { users, sessions, phase, unanswered: Vec::new() });
        self.serve(link);
    }

    pub(super) fn detach(&mut self, link: LinkId, now: Now) {
        if self.links.remove(&link).is_some() {
            self.last_used_ms = now.mono_ms;
        }
    }

    /// Begins to send what follows the link's position, when this node owns the guild.
    pub(super) fn serve(&mut self, link: LinkId) {
        if !self.is_serving() {
            return;
        }
        if self.view.deleted {
            return self.refuse_link(link, Refusal::new(Reason::NotFound, "guild was deleted"));
        }
        let position = match self.links.get(&link).map(|link| &link.phase) {
            Some(Phase::Waiting { position, .. }) => position.clone(),
            // Without a position a standby link says nothing yet: the gateway attaches anew when the guild has moved.
            Some(Phase::Standby { position: Some(position) }) => Some(position.clone()),
            _ => return,
        };
        match position {
            Some(position) => self.resume_at(link, position),
            None => self.build_snapshot(link),
        }
        let unanswered = self.links.get_mut(&link).map(|link| std::mem::take(&mut link.unanswered)).unwrap_or_default();
        self.answer_members(link, unanswered);
        self.send_standby_target(link);
    }

    pub(super) fn serve_all(&mut self) {
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        links.into_iter().for_each(|link| self.serve(link));
    }

    pub(super) fn build_snapshot(&mut self, link: LinkId) {
        let ticket = self.ticket();
        let next = self.ring.end();
        let position = self.position();
        let Some(state) = self.links.get_mut(&link) else { return };
        state.phase = Phase::Building { ticket, next };
        let user_ids = state.users.iter().copied().collect();
        let view = Box::new(self.view.clone());
        self.out.push(Effect::BuildSnapshot { link, ticket, view, user_ids, position, term: self.term });
    }

    pub(super) fn snapshot_built(&mut self, link: LinkId, ticket: Ticket, snapshot: GuildSnapshot) {
        let next = match self.links.get(&link).map(|link| &link.phase) {
            Some(Phase::Building { ticket: asked, next }) if *asked == ticket => *next,
            _ => return,
        };
        if !self.ring.holds(next) {
            return self.build_snapshot(link);
        }
        self.counters.snapshots += 1;
        self.send(link, Kind::Snapshot(snapshot), false);
        self.continue_from_memory(link, next);
    }

    /// Puts every gateway that was being sent entries back to where it stands, after the state was read anew.
    pub(super) fn reanchor_links(&mut self, stood_at: &Position) {
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for id in links {
            let Some(link) = self.links.get(&id) else { continue };
            match &link.phase {
                Phase::Standby { .. } => {}
                Phase::Waiting { .. } => self.serve(id),
                Phase::Building { .. } => self.build_snapshot(id),
                Phase::Reading { walk, .. } | Phase::Pausing(Next::Log(walk)) => {
                    let at = walk.delivered().clone();
                    self.resume_at(id, at);
                }
                Phase::Pausing(Next::Memory { at, .. }) => {
                    let at = at.clone();
                    self.resume_at(id, at);
                }
                Phase::Live => self.resume_at(id, stood_at.clone()),
            }
        }
    }

    /// Sends new entries to the live gateways: one frame, shared by all.
    pub(super) fn broadcast(&mut self, events: &[Arc<GuildEvent>]) {
        let live: Vec<LinkId> = self.live_links();
        if events.is_empty() || live.is_empty() {
            return;
        }
        for part in events.chunks(self.limits.frame_entries.max(1)) {
            let events = part.iter().map(|event| GuildEvent::clone(event)).collect();
            let frame = Arc::new(self.events_frame(events));
            let sends = live.iter().map(|link| Effect::Send { link: *link, frame: frame.clone(), paced: false });
            self.out.extend(sends);
        }
    }

    fn live_links(&self) -> Vec<LinkId> {
        self.links.iter().filter(|(_, link)| matches!(link.phase, Phase::Live)).map(|(id, _)| *id).collect()
    }

    pub(super) fn events_frame(&self, events: Vec<GuildEvent>) -> LinkDown {
        // The term belongs to the log followed now. For entries of a log left behind by a split or merge none is claimed.
        let here = |event: &GuildEvent| event.position.as_ref().is_some_and(|at| at.log == self.log);
        let term = if events.iter().all(here) { self.term } else { 0 };
        let events = GuildEvents { guild_id: self.identity.guild_id, events, term };
        LinkDown { kind: Some(Kind::Events(events)) }
    }

    pub(super) fn send(&mut self, link: LinkId, kind: Kind, paced: bool) {
        self.out.push(Effect::Send { link, frame: Arc::new(LinkDown { kind: Some(kind) }), paced });
    }

    pub(super) fn interest(&mut self, link: LinkId, add: Vec<i64>, remove: &[i64], sessions: i32) {
        let loaded = self.is_serving();
        let Some(state) = self.links.get_mut(&link) else { return };
        state.sessions = sessions.max(0);
        for user_id in remove {
            state.users.remove(user_id);
        }
        state.users.extend(add.iter().copied());
        if loaded {
            self.answer_members(link, add);
        } else {
            state.unanswered.extend(add);
        }
    }

    fn answer_members(&mut self, link: LinkId, user_ids: Vec<i64>) {
        if user_ids.is_empty() {
            return;
        }
        if user_ids.len() > self.limits.inline_members {
            let (view, position) = (Box::new(self.view.clone()), self.position());
            return self.out.push(Effect::SendMembers { link, view, user_ids, position });
        }
        let info = MemberInfo {
            position: Some(self.position()),
            ..member_info(self.identity.guild_id, &self.view.members, &user_ids)
        };
        self.send(link, Kind::Members(info), false);
    }

    /// Where a standby gateway stands by now; what is live needs no telling.
    pub(super) fn ack(&mut self, link: LinkId, acknowledged: Position) {
        if let Some(Link { phase: Phase::Standby { position } | Phase::Waiting { position, .. }, .. }) =
            self.links.get_mut(&link)
        {
            *position = Some(acknowledged);
        }
    }

    pub(super) fn typing(&mut self, channel_id: i64, user_id: i64, at_ms: i64) {
        if self.pressure == Pressure::Alarm {
            self.counters.shed_typing += 1;
            return;
        }
        if !self.is_owner() || !self.view.channels.contains_key(&channel_id) {
            return;
        }
        let typing = Typing { guild_id: self.identity.guild_id, channel_id, user_id, at_ms };
        let frame = Arc::new(LinkDown { kind: Some(Kind::Typing(typing)) });
        for link in self.live_links() {
            self.out.push(Effect::Send { link, frame: frame.clone(), paced: false });
        }
    }

    pub(super) fn send_standby_target(&mut self, link: LinkId) {
        if let Some(target) = self.standby_target.clone() {
            let moved = Moved { guild_id: self.identity.guild_id, route: Some(target) };
            self.send(link, Kind::Standby(moved), false);
        }
    }

    pub(super) fn move_links(&mut self, to: &Whereto) {
        for link in std::mem::take(&mut self.links).into_keys() {
            self.out.push(Effect::SendMoved { link, to: to.clone() });
        }
    }

    pub(super) fn refuse_link(&mut self, link: LinkId, refusal: Refusal) {
        self.links.remove(&link);
        let refused = AttachRefused { guild_id: self.identity.guild_id, refusal: Some(refusal) };
        self.send(link, Kind::Refused(refused), false);
    }

    /// Refuses the gateways that wait for this node to own the guild.
    pub(super) fn refuse_waiting_links(&mut self, refusal: &Refusal, waited_since: impl Fn(u64) -> bool) {
        let waiting = |link: &Link| matches!(link.phase, Phase::Waiting { since_ms, .. } if waited_since(since_ms));
        let refused: Vec<LinkId> = self.links.iter().filter(|(_, link)| waiting(link)).map(|(id, _)| *id).collect();
        refused.into_iter().for_each(|link| self.refuse_link(link, refusal.clone()));
    }

    pub(super) fn expire_waiting_links(&mut self, now: Now) {
        let refusal = Refusal::new(Reason::Wait, "the guild is being taken over; attach again").retry_after_ms(200);
        let limit = now.mono_ms.saturating_sub(WAIT_LIMIT_MS);
        if now.mono_ms >= WAIT_LIMIT_MS {
            self.refuse_waiting_links(&refusal, |since_ms| since_ms <= limit);
        }
    }
}

/// Who of these users are members, and who not.
pub fn member_info(guild_id: i64, members: &members::Members, user_ids: &[i64]) -> MemberInfo {
    let mut info = MemberInfo { guild_id, ..MemberInfo::default() };
    for user_id in user_ids {
        match members.get(*user_id) {
            Some(member) => info.members.push(member.as_ref().clone()),
            None => info.not_members.push(*user_id),
        }
    }
    info
}
