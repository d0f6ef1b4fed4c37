//! Where to send a caller: the head's cell, and the member of it that owns or should own the log.

use cell_proto::directory::Role;
use cell_proto::unit::Unit;
use cell_proto::v1::{Head, Reason, Refusal, Route};
use cell_runtime::{Directory, route};

/// Completes routes and judges whose turn it is to claim.
#[derive(Clone)]
pub(super) struct Routes {
    pub(super) directory: Directory,
    pub(super) cell: String,
    pub(super) member_id: String,
    pub(super) address: String,
}

impl Routes {
    /// host:port of the member that owns or should own a log of a cell.
    fn data_address(&self, log: &str, cell: &str, appender: &str) -> String {
        let view = self.directory.view();
        let live =
            view.member(appender).filter(|member| member.role == Role::Data && member.cell == cell && !member.draining);
        let winner = || route::winner(&view, Role::Data, cell, log);
        live.or_else(winner).map(|member| member.grpc_address.clone()).unwrap_or_default()
    }

    /// The route a head tells.
    pub(super) fn of_head(&self, head: &Head) -> Route {
        Route {
            log: head.log.clone(),
            cell: head.cell.clone(),
            term: head.term,
            data_address: self.data_address(&head.log, &head.cell, &head.appender),
            guild_address: self.guild_address(&head.log, &head.cell),
        }
    }

    fn guild_address(&self, log: &str, cell: &str) -> String {
        let Ok(Unit::Guild(guild_id)) = log.parse::<Unit>() else { return String::new() };
        let view = self.directory.view();
        let winner = route::guild_winner(&view, cell, guild_id);
        winner.map(|member| member.grpc_address.clone()).unwrap_or_default()
    }

    /// Fills in what a machine cannot know: addresses, and the place of another log.
    pub(super) fn complete(&self, mut refusal: Refusal) -> Refusal {
        let Some(route) = refusal.route.as_mut() else { return refusal };
        if route.cell.is_empty() {
            let view = self.directory.view();
            let place = view.place(&route.log).cloned().unwrap_or_default();
            // A guild is split out in its bucket's cell: this one.
            route.cell = if place.cell.is_empty() { self.cell.clone() } else { place.cell };
            route.term = place.term;
        }
        if route.data_address.is_empty() {
            route.data_address = if refusal.reason == i32::from(Reason::StaleTerm) {
                self.address.clone()
            } else {
                self.data_address(&route.log, &route.cell, "")
            };
        }
        if route.guild_address.is_empty() {
            route.guild_address = self.guild_address(&route.log, &route.cell);
        }
        refusal
    }

    /// The member whose turn it is to claim a log of this cell: the appender while it lives, else the rendezvous winner. None when it
    /// is this one.
    pub(super) fn elsewhere(&self, log: &str, appender: &str) -> Option<String> {
        // Others send callers here while this member lives, so it must not send them on.
        if appender == self.member_id {
            return None;
        }
        let view = self.directory.view();
        if let Some(member) = view.member(appender)
            && member.role == Role::Data
            && member.cell == self.cell
            && !member.draining
        {
            return Some(member.grpc_address.clone());
        }
        let winner = route::winner(&view, Role::Data, &self.cell, log)?;
        (winner.id != self.member_id).then(|| winner.grpc_address.clone())
    }
}
