//! The directory as one process sees it: members, bootstrap assignment, route hints and corrections. Pure and cheap to clone: a
//! driver publishes a new version, readers hold the old one as long as they like.

use std::collections::HashMap;
use std::sync::Arc;

use cell_proto::directory::{Buckets, Member, Migration, Role, RouteHint};
use serde::{Deserialize, Serialize};

use crate::route::Place;

/// Most route hints kept in memory; further ones are counted and dropped (a redirect serves instead).
pub const MAX_ROUTES: usize = 200_000;

/// One version of the directory.
#[derive(Clone, Debug, Default)]
pub struct View {
    members: Arc<HashMap<String, Member>>,
    buckets: Arc<Buckets>,
    /// One place per bootstrapped cell, so that a lookup allocates nothing.
    bucket_places: Arc<Vec<Place>>,
    routes: Arc<HashMap<String, Place>>,
    migrations: Arc<HashMap<String, Migration>>,
    /// Hints dropped because [`MAX_ROUTES`] was reached.
    pub dropped_routes: u64,
}

impl View {
    /// Where a log is, as far as known: the hint or correction with the highest term, else the bootstrap assignment.
    pub fn place(&self, log: &str) -> Option<&Place> {
        if let Some(place) = self.routes.get(log) {
            return Some(place);
        }
        let bucket: usize = log.strip_prefix('b')?.parse().ok()?;
        self.bucket_places.get(usize::from(*self.buckets.assignment.get(bucket)?))
    }

    /// A member by id.
    pub fn member(&self, id: &str) -> Option<&Member> {
        self.members.get(id)
    }

    /// All members.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// The members of a cell in a role.
    pub fn members_of<'a>(&'a self, role: Role, cell: &'a str) -> impl Iterator<Item = &'a Member> {
        self.members.values().filter(move |member| member.role == role && member.cell == cell)
    }

    /// The bootstrap assignment.
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// Storage migrations under way.
    pub fn migrations(&self) -> impl Iterator<Item = &Migration> {
        self.migrations.values()
    }

    /// Adds or replaces a migration.
    pub fn set_migration(&mut self, migration: Migration) {
        Arc::make_mut(&mut self.migrations).insert(migration.run_id.clone(), migration);
    }

    /// Removes a migration: it has ended.
    pub fn remove_migration(&mut self, run_id: &str) {
        if self.migrations.contains_key(run_id) {
            Arc::make_mut(&mut self.migrations).remove(run_id);
        }
    }

    /// Adds or replaces a member.
    pub fn set_member(&mut self, member: Member) {
        Arc::make_mut(&mut self.members).insert(member.id.clone(), member);
    }

    /// Removes a member.
    pub fn remove_member(&mut self, id: &str) {
        if self.members.contains_key(id) {
            Arc::make_mut(&mut self.members).remove(id);
        }
    }

    /// Takes over the bootstrap assignment.
    pub fn set_buckets(&mut self, buckets: Buckets) {
        let place = |cell: &String| Place { cell: cell.clone(), ..Place::default() };
        self.bucket_places = Arc::new(buckets.cells.iter().map(place).collect());
        self.buckets = Arc::new(buckets);
    }

    /// Takes over a hint or a correction unless a higher term is known. An equal term fills in what was not known.
    pub fn set_route(&mut self, log: &str, hint: RouteHint) {
        let known = self.routes.get(log);
        if known.is_some_and(|known| known.term > hint.term) {
            return;
        }
        if known.is_none() && self.routes.len() >= MAX_ROUTES {
            self.dropped_routes += 1;
            return;
        }
        let same = known.filter(|known| known.term == hint.term);
        let pick =
            |new: String, old: Option<&String>| if new.is_empty() { old.cloned().unwrap_or_default() } else { new };
        let place = Place {
            data_owner: pick(hint.data_owner, same.map(|same| &same.data_owner)),
            guild_owner: pick(hint.guild_owner, same.map(|same| &same.guild_owner)),
            // A sealed log opens again only at a higher term, so a redirect that does not say it is no news.
            merged: hint.merged || same.is_some_and(|same| same.merged),
            term: hint.term,
            cell: hint.cell,
        };
        if known != Some(&place) {
            Arc::make_mut(&mut self.routes).insert(log.to_owned(), place);
        }
    }

    /// What goes to disk.
    pub fn to_snapshot(&self) -> Snapshot {
        let hint = |place: &Place| RouteHint {
            cell: place.cell.clone(),
            term: place.term,
            data_owner: place.data_owner.clone(),
            guild_owner: place.guild_owner.clone(),
            merged: place.merged,
        };
        Snapshot {
            version: SNAPSHOT_VERSION,
            members: self.members.values().cloned().collect(),
            buckets: (*self.buckets).clone(),
            routes: self.routes.iter().map(|(log, place)| (log.clone(), hint(place))).collect(),
            migrations: self.migrations.values().cloned().collect(),
        }
    }

    /// The view a snapshot describes.
    pub fn from_snapshot(snapshot: Snapshot) -> Self {
        let mut view = Self::default();
        snapshot.members.into_iter().for_each(|member| view.set_member(member));
        view.set_buckets(snapshot.buckets);
        snapshot.routes.into_iter().for_each(|(log, hint)| view.set_route(&log, hint));
        snapshot.migrations.into_iter().for_each(|migration| view.set_migration(migration));
        view
    }
}

/// The version of the snapshot's format.
pub const SNAPSHOT_VERSION: u32 = 1;

/// The last known good copy of the directory, as JSON on the process's disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`SNAPSHOT_VERSION`]; another is ignored.
    pub version: u32,
    /// Who was live.
    pub members: Vec<Member>,
    /// The bootstrap assignment.
    pub buckets: Buckets,
    /// Hints by log.
    pub routes: HashMap<String, RouteHint>,
    /// Storage migrations under way.
    #[serde(default)]
    pub migrations: Vec<Migration>,
}
