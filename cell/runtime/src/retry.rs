//! When and where a request to an owner is tried again: what a refusal teaches of a log's place, redirects followed at once but not in
//! circles, pauses that double. It sends nothing and never changes what is asked.

use std::time::Duration;

use cell_proto::directory::{Role, RouteHint};
use cell_proto::unit::Unit;
use cell_proto::v1::{Reason, Refusal};

use crate::directory::Directory;

/// Redirects followed without a pause.
const MAX_HOPS: u32 = 4;
const FIRST_PAUSE_MS: u64 = 10;
const LONGEST_PAUSE_MS: u64 = 500;
/// An owner's hint is heeded up to here, so that a request looks around again within its deadline.
const LONGEST_HINT_MS: u64 = 1000;

/// What to do after a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Try there at once.
    At(String),
    /// Wait, then try what the directory says.
    Pause(Duration),
}

/// The tries of one request.
#[derive(Debug)]
pub struct Retry {
    hops: u32,
    pause_ms: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Self { hops: 0, pause_ms: FIRST_PAUSE_MS }
    }
}

impl Retry {
    /// After a refusal that may pass; `elsewhere` is where [`redirect`] found that it may be served.
    pub fn refused(&mut self, refusal: &Refusal, elsewhere: Option<String>) -> Step {
        match elsewhere {
            Some(address) if self.hops < MAX_HOPS => {
                self.hops += 1;
                Step::At(address)
            }
            // In circles: the directory may know better by now.
            _ => Step::Pause(self.pause(refusal.retry_after_ms)),
        }
    }

    /// The next pause, jittered: the owner's hint in milliseconds if it gave one, else the last doubled.
    pub fn pause(&mut self, hint_ms: u32) -> Duration {
        self.hops = 0;
        let pause_ms = match u64::from(hint_ms) {
            0 => {
                let pause_ms = self.pause_ms;
                self.pause_ms = (self.pause_ms * 2).min(LONGEST_PAUSE_MS);
                pause_ms
            }
            hint_ms => hint_ms.min(LONGEST_HINT_MS),
        };
        Duration::from_millis(pause_ms).mul_f64(rand::random_range(0.5..1.5))
    }
}

/// Takes over what a refusal says of a log's place; `log` changes when its guild went to another one. Answers where the owner of this
/// role is, if the refusal says so.
pub fn redirect(directory: &Directory, log: &mut String, refusal: &Refusal, role: Role) -> Option<String> {
    learn(directory, log, refusal);
    let route = refusal.route.as_ref()?;
    let why = refusal.why();
    if why == Reason::OtherLog && !route.log.is_empty() {
        log.clone_from(&route.log);
    }
    let address = if role == Role::Guild { &route.guild_address } else { &route.data_address };
    let elsewhere = matches!(why, Reason::NotOwner | Reason::OtherLog | Reason::StaleTerm);
    (elsewhere && !address.is_empty()).then(|| address.clone())
}

/// Takes over what a refusal says of a log's place. A guild back in its bucket is remembered as merged.
pub fn learn(directory: &Directory, asked_log: &str, refusal: &Refusal) {
    let Some(route) = refusal.route.as_ref().filter(|route| !route.log.is_empty()) else {
        return;
    };
    directory.correct(route);
    let back_in_bucket =
        matches!(route.log.parse(), Ok(Unit::Bucket(_))) && matches!(asked_log.parse(), Ok(Unit::Guild(_)));
    if back_in_bucket && refusal.why() == Reason::OtherLog {
        directory.change(|view| {
            if let Some(place) = view.place(asked_log).cloned() {
                let hint = RouteHint { cell: place.cell, term: place.term, merged: true, ..RouteHint::default() };
                view.set_route(asked_log, hint);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use cell_proto::v1::Route;

    use super::*;
    use crate::directory::{DirectoryConfig, View};
    use crate::route;

    fn directory() -> Directory {
        let config = DirectoryConfig { endpoints: vec![], prefix: "/t/".into(), state_dir: None };
        Directory::with_view(config, View::default())
    }

    #[test]
    fn redirects_are_followed_at_once_but_not_in_circles() {
        let mut retry = Retry::default();
        let refusal = Refusal::new(Reason::NotOwner, "");
        for _ in 0..MAX_HOPS {
            assert_eq!(retry.refused(&refusal, Some("a:1".into())), Step::At("a:1".into()));
        }
        assert!(matches!(retry.refused(&refusal, Some("a:1".into())), Step::Pause(_)));
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_heed_a_bounded_hint() {
        let mut retry = Retry::default();
        let longest = Duration::from_millis(LONGEST_PAUSE_MS).mul_f64(1.5);
        assert!(retry.pause(0) <= Duration::from_millis(15));
        assert!((0..20).all(|_| retry.pause(0) <= longest));
        assert!(retry.pause(0) >= Duration::from_millis(LONGEST_PAUSE_MS / 2));
        assert!(retry.pause(u32::MAX) <= Duration::from_millis(LONGEST_HINT_MS).mul_f64(1.5));
    }

    #[test]
    fn a_redirect_names_the_owner_of_the_role_and_the_log_the_guild_went_to() {
        let directory = directory();
        let route = Route {
            log: "g7".into(),
            term: 3,
            data_address: "d:1".into(),
            guild_address: "g:1".into(),
            cell: "b".into(),
        };
        let refusal = Refusal::new(Reason::OtherLog, "").with_route(route);
        let mut log = "b0007".to_owned();
        assert_eq!(redirect(&directory, &mut log, &refusal, Role::Guild).as_deref(), Some("g:1"));
        assert_eq!((log.as_str(), &*directory.view().place("g7").unwrap().cell), ("g7", "b"));
        assert_eq!(redirect(&directory, &mut log, &refusal, Role::Data).as_deref(), Some("d:1"));
        let waits = Refusal { reason: Reason::Wait.into(), ..refusal };
        assert_eq!(redirect(&directory, &mut log, &waits, Role::Data), None);
    }

    #[test]
    fn a_guild_that_went_back_is_looked_for_in_its_bucket() {
        let directory = directory();
        let hint = RouteHint { cell: "b".into(), term: 4, ..RouteHint::default() };
        directory.change(|view| view.set_route("g7", hint));
        assert_eq!(route::unit_of_guild(&directory.view(), 7), Unit::Guild(7));
        let route = Route { log: Unit::bucket(7).log(), term: 9, cell: "a".into(), ..Route::default() };
        learn(&directory, "g7", &Refusal::new(Reason::OtherLog, "").with_route(route));
        assert_eq!(route::unit_of_guild(&directory.view(), 7), Unit::bucket(7));
    }
}
