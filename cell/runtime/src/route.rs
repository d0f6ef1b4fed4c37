//! Which process serves a log or a guild, as far as the directory's view and the corrections learnt from redirects tell. Pure. A
//! wrong answer costs a redirect, never a wrong write.

use cell_proto::directory::{Member, Role};
use cell_proto::unit::{Unit, rendezvous};
use cell_proto::v1::Route;

use crate::directory::View;

/// What is known of a log's place: from a hint, or a redirect read from the head.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The cell the head named.
    pub cell: String,
    /// Its term; the higher wins.
    pub term: u64,
    /// Member id or host:port of the data owner, when known.
    pub data_owner: String,
    /// Member id or host:port of the guild owner, when known.
    pub guild_owner: String,
    /// The guild of this log went back to its bucket.
    pub merged: bool,
}

/// The unit a guild lives in: its own log if the view says that it was split out and not merged back, else its bucket.
pub fn unit_of_guild(view: &View, guild_id: i64) -> Unit {
    let own = Unit::Guild(guild_id);
    match view.place(&own.log()) {
        Some(place) if !place.merged => own,
        _ => Unit::bucket(guild_id),
    }
}

/// The member that should own a log: the hinted owner while it lives in the log's cell, else the rendezvous winner of the cell.
pub fn data_member<'a>(view: &'a View, log: &str) -> Option<&'a Member> {
    let place = view.place(log)?;
    let live = |member: &&Member| member.role == Role::Data && member.cell == place.cell;
    let hinted = view.member(&place.data_owner).filter(live).filter(|member| !member.draining);
    hinted.or_else(|| winner(view, Role::Data, &place.cell, log))
}

/// The guild node that should own a guild whose log is `log`.
pub fn guild_member<'a>(view: &'a View, log: &str, guild_id: i64) -> Option<&'a Member> {
    guild_winner(view, &view.place(log)?.cell, guild_id)
}

/// The guild node of a cell that should own a guild.
pub fn guild_winner<'a>(view: &'a View, cell: &str, guild_id: i64) -> Option<&'a Member> {
    winner(view, Role::Guild, cell, &format!("guild:{guild_id}"))
}

/// The rendezvous winner for a key among a cell's live members of a role that are not draining.
pub fn winner<'a>(view: &'a View, role: Role, cell: &str, key: &str) -> Option<&'a Member> {
    let fits = |member: &&Member| member.role == role && member.cell == cell && !member.draining;
    let candidates: Vec<&Member> = view.members().filter(fits).collect();
    let first = *rendezvous(key, candidates.iter().map(|member| (member.id.as_str(), 1))).first()?;
    candidates.into_iter().find(|member| member.id == first)
}

/// The route to tell a caller, from the view: where a log and, if `guild_id` is not 0, its guild are served.
pub fn describe(view: &View, log: &str, guild_id: i64) -> Route {
    let place = view.place(log).cloned().unwrap_or_default();
    let address = |member: Option<&Member>| member.map(|member| member.grpc_address.clone()).unwrap_or_default();
    Route {
        log: log.to_owned(),
        term: place.term,
        data_address: address(data_member(view, log)),
        guild_address: if guild_id == 0 { String::new() } else { address(guild_member(view, log, guild_id)) },
        cell: place.cell,
    }
}

#[cfg(test)]
mod tests {
    use cell_proto::directory::{Buckets, RouteHint};

    use super::*;

    fn member(id: &str, role: Role, cell: &str) -> Member {
        Member {
            id: id.into(),
            role,
            cell: cell.into(),
            storage_cell: "main".into(),
            incarnation: 1,
            grpc_address: format!("{id}:9000"),
            http_address: None,
            admin_address: format!("{id}:9090"),
            draining: false,
        }
    }

    fn view() -> View {
        let mut view = View::default();
        for cell in ["a", "b"] {
            for number in 0..3 {
                view.set_member(member(&format!("{cell}-data-{number}"), Role::Data, cell));
                view.set_member(member(&format!("{cell}-guild-{number}"), Role::Guild, cell));
            }
        }
        view.set_buckets(Buckets {
            cells: vec!["a".into(), "b".into()],
            assignment: (0..4096).map(|n| n % 2).collect(),
        });
        view
    }

    #[test]
    fn a_bucket_without_a_hint_is_where_it_was_bootstrapped() {
        let view = view();
        assert_eq!(data_member(&view, "b0002").unwrap().cell, "a");
        assert_eq!(data_member(&view, "b0003").unwrap().cell, "b");
        assert!(data_member(&view, "g77").is_none());
    }

    #[test]
    fn a_draining_or_dead_owner_is_passed_over() {
        let mut view = view();
        let hint = RouteHint { cell: "a".into(), term: 3, data_owner: "a-data-1".into(), ..RouteHint::default() };
        view.set_route("b0002", hint);
        assert_eq!(data_member(&view, "b0002").unwrap().id, "a-data-1");
        view.set_member(Member { draining: true, ..member("a-data-1", Role::Data, "a") });
        assert_ne!(data_member(&view, "b0002").unwrap().id, "a-data-1");
        view.remove_member("a-data-1");
        assert_ne!(data_member(&view, "b0002").unwrap().id, "a-data-1");
    }

    #[test]
    fn a_hint_with_a_lower_term_never_replaces_a_higher_one() {
        let mut view = view();
        view.set_route("g7", RouteHint { cell: "b".into(), term: 5, ..RouteHint::default() });
        view.set_route("g7", RouteHint { cell: "a".into(), term: 4, ..RouteHint::default() });
        assert_eq!(view.place("g7").unwrap().cell, "b");
        assert_eq!(unit_of_guild(&view, 7), Unit::Guild(7));
        view.set_route("g7", RouteHint { cell: "b".into(), term: 6, merged: true, ..RouteHint::default() });
        assert_eq!(unit_of_guild(&view, 7), Unit::bucket(7));
    }
}
