//! Follows one guild: finds its owner, attaches with the position held, passes frames to the replica, and starts again, jittered, when
//! the link breaks, the guild moves or the owner refuses.

use std::sync::Arc;
use std::time::Duration;

use cell_proto::unit::Unit;
use cell_proto::v1::link_down::Kind as Down;
use cell_proto::v1::link_up::Kind as Up;
use cell_proto::v1::{Attach, Interest, LinkAck, Position, Reason, Refusal, Route};
use cell_runtime::{CancellationToken, retry, route};
use tokio::sync::mpsc::Receiver;

use super::hosted::{Hosted, Next};
use super::hub::Hub;
use super::link::Link;

/// How often acknowledgements and interest go up.
const REPORT_EVERY: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Why following ended.
enum End {
    /// Nobody needs the guild.
    Idle,
    /// The link broke or was reset.
    LinkLost,
    /// The guild is elsewhere.
    Elsewhere {
        address: String,
    },
    /// The owner cannot serve it now.
    Refused(Refusal),
    Shutdown,
}

/// Follows a guild until it is idle or the process ends.
pub async fn run(hub: Arc<Hub>, hosted: Arc<Hosted>, shutdown: CancellationToken) {
    let mut pause = FIRST_PAUSE;
    let mut told: Option<String> = None;
    let mut hops = 0;
    loop {
        let address = told.take().or_else(|| owner_address(&hub, &hosted));
        let had = hosted.position();
        let end = match &address {
            Some(address) => follow(&hub, &hosted, &hub.links.get(address, hosted.id), &shutdown).await,
            None => wait_for_owner(&hub, &shutdown).await,
        };
        if hosted.position() != had {
            (pause, hops) = (FIRST_PAUSE, 0);
        }
        match end {
            End::Idle | End::Shutdown => return,
            End::Elsewhere { address } => {
                hops += 1;
                if !address.is_empty() && hops <= MAX_HOPS {
                    told = Some(address);
                    continue;
                }
            }
            End::LinkLost => {}
            End::Refused(refusal) => {
                pause = pause.max(Duration::from_millis(u64::from(refusal.retry_after_ms)).min(LONGEST_PAUSE));
            }
        }
        if hub.close_idle(&hosted, cell_runtime::unix_ms()) {
            return;
        }
        let jittered = pause.mul_f64(rand::random_range(0.5..1.5));
        tokio::select! {
            () = tokio::time::sleep(jittered) => {}
            () = owner_changes(&hub, &hosted, address.as_deref()) => {}
            () = shutdown.cancelled() => return,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        if hops > MAX_HOPS {
            hops = 0;
        }
    }
}

/// Redirects followed without a pause.
const MAX_HOPS: u32 = 4;

/// The log this process believes the guild lives in.
pub fn log_of(hub: &Hub, hosted: &Hosted) -> String {
    hosted.position().map_or_else(|| route::unit_of_guild(&hub.directory.view(), hosted.id).log(), |held| held.log)
}

fn owner_address(hub: &Hub, hosted: &Hosted) -> Option<String> {
    let view = hub.directory.view();
    // The directory knows of a split or merge before this process does when it was cut off meanwhile.
    let log = route::unit_of_guild(&view, hosted.id).log();
    route::guild_member(&view, &log, hosted.id)
        .or_else(|| route::guild_member(&view, &log_of(hub, hosted), hosted.id))
        .map(|member| member.grpc_address.clone())
}

/// Completes when the directory names another owner than the one just tried: after a failover nobody sits out a long pause.
async fn owner_changes(hub: &Hub, hosted: &Hosted, tried: Option<&str>) {
    let mut changes = hub.directory.changes();
    let before = owner_address(hub, hosted);
    loop {
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
        let now = owner_address(hub, hosted);
        if now.is_some() && now != before && now.as_deref() != tried {
            return;
        }
    }
}

async fn wait_for_owner(hub: &Hub, shutdown: &CancellationToken) -> End {
    let mut changes = hub.directory.changes();
    tokio::select! {
        _ = changes.changed() => End::LinkLost,
        () = tokio::time::sleep(LONGEST_PAUSE) => End::LinkLost,
        () = shutdown.cancelled() => End::Shutdown,
    }
}

fn attach(hub: &Hub, hosted: &Hosted, standby: bool) -> Attach {
    Attach {
        guild_id: hosted.id,
        log: log_of(hub, hosted),
        position: hosted.position(),
        user_ids: hosted.attach_users(),
        standby,
    }
}

/// One attachment, and what it has told its owner.
struct Following<'a> {
    hub: &'a Hub,
    hosted: &'a Arc<Hosted>,
    link: Arc<Link>,
    asked: Vec<i64>,
    acknowledged: Option<Position>,
    sessions: usize,
    /// Where the guild is about to go.
    standby: Option<Standby>,
}

/// A link that waits for its node to own the guild, and its frames.
struct Standby {
    link: Arc<Link>,
    frames: Receiver<Down>,
    asked: Vec<i64>,
}

async fn follow(hub: &Arc<Hub>, hosted: &Arc<Hosted>, link: &Arc<Link>, shutdown: &CancellationToken) -> End {
    let request = attach(hub, hosted, false);
    let asked = request.user_ids.clone();
    let Some(mut frames) = link.attach(request) else {
        return End::LinkLost;
    };
    let mut following =
        Following { hub, hosted, link: link.clone(), asked, acknowledged: None, sessions: usize::MAX, standby: None };
    following.ask_unknown();
    let mut report = tokio::time::interval(REPORT_EVERY);
    let mut rounds = 0_u32;
    loop {
        let link = following.link.clone();
        let end = tokio::select! {
            biased;
            () = shutdown.cancelled() => Some(End::Shutdown),
            frame = frames.recv() => match frame {
                Some(Down::Moved(moved)) => following.moved(moved.route.unwrap_or_default(), &mut frames),
                Some(frame) => following.take(frame),
                None => following.promote(&mut frames),
            },
            frame = standby_frame(&mut following.standby) => following.on_standby(frame, &mut frames),
            () = link.closed() => following.promote(&mut frames),
            () = hosted.poke.notified() => { following.send_pending(); None }
            _ = report.tick() => {
                rounds = rounds.wrapping_add(1);
                following.report(rounds)
            }
        };
        if let Some(end) = end {
            if let Some(standby) = following.standby.take() {
                standby.link.detach(hosted.id);
            }
            return end;
        }
    }
}

async fn standby_frame(standby: &mut Option<Standby>) -> Option<Down> {
    match standby {
        Some(standby) => standby.frames.recv().await,
        None => std::future::pending().await,
    }
}

impl Following<'_> {
    fn take(&mut self, frame: Down) -> Option<End> {
        let next = match frame {
            Down::Snapshot(snapshot) => {
                snapshot.channels.iter().for_each(|channel| self.hub.learn_channel(channel.id, self.hosted.id));
                self.hosted.on_snapshot(snapshot, &self.asked)
            }
            Down::Events(events) => self.hosted.on_events(&events),
            Down::Members(info) => {
                self.hosted.on_members(info);
                Next::GoOn
            }
            Down::Typing(typing) => {
                self.hosted.on_typing(&typing);
                Next::GoOn
            }
            Down::Standby(moved) => {
                self.open_standby(moved.route.map(|route| route.guild_address).unwrap_or_default());
                Next::GoOn
            }
            Down::Moved(moved) => return Some(self.elsewhere(moved.route.unwrap_or_default())),
            Down::Refused(refused) => return Some(self.refused(refused.refusal.unwrap_or_default())),
        };
        match next {
            Next::GoOn => None,
            Next::AttachAnew => {
                // Frames of this attachment may still be on their way: only a fresh link starts without them.
                self.link.reset();
                Some(End::LinkLost)
            }
        }
    }

    /// The guild left this node. The standby link there is used with its frames: none of them may be lost.
    fn moved(&mut self, route: Route, frames: &mut Receiver<Down>) -> Option<End> {
        if self.standby.as_ref().is_none_or(|standby| standby.link.address != route.guild_address) {
            return Some(self.elsewhere(route));
        }
        self.hub.directory.correct(&route);
        self.link.ended(self.hosted.id);
        self.promote(frames)
    }

    fn elsewhere(&self, route: Route) -> End {
        self.hub.directory.correct(&route);
        self.link.ended(self.hosted.id);
        End::Elsewhere { address: route.guild_address }
    }

    fn refused(&self, refusal: Refusal) -> End {
        self.link.ended(self.hosted.id);
        match refusal.why() {
            Reason::NotFound => self.hosted.on_gone(),
            Reason::BehindRetention => self.hosted.on_behind_retention(),
            _ => {}
        }
        match &refusal.route {
            Some(route) if !route.log.is_empty() => {
                retry::learn(&self.hub.directory, &Unit::Guild(self.hosted.id).log(), &refusal);
                End::Elsewhere { address: route.guild_address.clone() }
            }
            _ => End::Refused(refusal),
        }
    }

    fn open_standby(&mut self, address: String) {
        // The standby link there is goes on: attached twice, its frames would overtake each other.
        let there_already = self.standby.as_ref().is_some_and(|standby| standby.link.address == address);
        if address.is_empty() || address == self.link.address || there_already {
            return;
        }
        if let Some(former) = self.standby.take() {
            former.link.detach(self.hosted.id);
        }
        let link = self.hub.links.get(&address, self.hosted.id);
        let request = attach(self.hub, self.hosted, true);
        let asked = request.user_ids.clone();
        if let Some(frames) = link.attach(request) {
            self.standby = Some(Standby { link, frames, asked });
        }
    }

    /// The standby link speaks: its node owns the guild now.
    fn on_standby(&mut self, frame: Option<Down>, frames: &mut Receiver<Down>) -> Option<End> {
        match frame {
            Some(Down::Refused(_)) | None => {
                if let Some(standby) = self.standby.take() {
                    standby.link.ended(self.hosted.id);
                }
                None
            }
            Some(frame) => {
                self.link.detach(self.hosted.id);
                let end = self.promote(frames);
                end.or_else(|| self.take(frame))
            }
        }
    }

    /// Goes on with the standby link, stating the position anew; without one, the attachment is lost.
    fn promote(&mut self, frames: &mut Receiver<Down>) -> Option<End> {
        let Some(standby) = self.standby.take() else {
            return Some(End::LinkLost);
        };
        (*frames, self.link, self.asked) = (standby.frames, standby.link, standby.asked);
        (self.acknowledged, self.sessions) = (None, usize::MAX);
        let request = attach(self.hub, self.hosted, false);
        if !self.link.send(Up::Attach(request)) {
            return Some(End::LinkLost);
        }
        self.ask_unknown();
        None
    }

    /// With a position no snapshot comes, and so no members: they are asked for.
    fn ask_unknown(&mut self) {
        if self.hosted.position().is_some() {
            self.ask(self.hosted.unknown_users());
        }
    }

    fn ask(&mut self, users: Vec<i64>) {
        if !users.is_empty() {
            let sessions = self.hosted.sessions() as i32;
            let interest =
                Interest { guild_id: self.hosted.id, add_user_ids: users, remove_user_ids: vec![], sessions };
            self.link.send(Up::Interest(interest));
        }
    }

    fn send_pending(&mut self) {
        let (users, typing) = self.hosted.take_pending();
        self.ask(users);
        for notice in typing {
            self.link.send(Up::Typing(notice));
        }
    }

    /// Every 2 s: acknowledge, tell the number of sessions; every minute: withdraw interest, end when idle.
    fn report(&mut self, rounds: u32) -> Option<End> {
        let guild_id = self.hosted.id;
        let position = self.hosted.position();
        if position != self.acknowledged {
            self.acknowledged.clone_from(&position);
            self.link.send(Up::Ack(LinkAck { guild_id, position }));
        }
        let now_ms = cell_runtime::unix_ms();
        let remove_user_ids = if rounds.is_multiple_of(30) { self.hosted.take_unneeded(now_ms) } else { Vec::new() };
        let sessions = self.hosted.sessions();
        if sessions != self.sessions || !remove_user_ids.is_empty() {
            self.sessions = sessions;
            let sessions = sessions as i32;
            self.link.send(Up::Interest(Interest { guild_id, add_user_ids: vec![], remove_user_ids, sessions }));
        }
        if self.hub.close_idle(self.hosted, now_ms) {
            self.link.detach(guild_id);
            return Some(End::Idle);
        }
        None
    }
}
