//! A store in memory, for tests and simulations: the same operations on the same engine code, without durability.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::engine::{Change, Kv, Scan, Space, Visit, execute, sweep_step};
use crate::{Reply, Request, Store, StoreError};

/// What is stored; a simulation drives it directly.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct MemoryState {
    map: BTreeMap<(Space, Vec<u8>), Vec<u8>>,
}

impl MemoryState {
    /// Does one operation at once. `now_s` is only used for expiry.
    ///
    /// # Errors
    /// [`StoreError::Invalid`].
    pub fn handle(&mut self, request: Request, now_s: i64) -> Result<Reply, StoreError> {
        let (reply, mut changes) = execute(self, request, now_s)?;
        // Where there is a disk, what is left to be dropped goes between requests; here it goes at once.
        while !changes.is_empty() {
            let more = changes.iter().any(|(space, ..)| *space == Space::Sweeps);
            self.apply(changes);
            changes = if more { sweep_step(self)? } else { Vec::new() };
        }
        Ok(reply)
    }

    pub(crate) fn apply(&mut self, changes: Vec<Change>) {
        for (space, key, value) in changes {
            match value {
                Some(value) => self.map.insert((space, key), value),
                None => self.map.remove(&(space, key)),
            };
        }
    }
}

#[cfg(test)]
impl MemoryState {
    /// How many keys of a kind there are.
    pub(crate) fn count(&self, space: Space) -> usize {
        self.map.keys().filter(|(kind, _)| *kind == space).count()
    }
}

impl Kv for MemoryState {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.map.get(&(space, key.to_vec())).cloned())
    }

    fn scan(&self, scan: Scan, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        if scan.from >= scan.to {
            return Ok(());
        }
        let mut range = self.map.range((scan.space, scan.from)..(scan.space, scan.to));
        loop {
            let next = if scan.reverse { range.next_back() } else { range.next() };
            let Some(((_, key), value)) = next else { return Ok(()) };
            if !visit(key, value)? {
                return Ok(());
            }
        }
    }
}

/// [`MemoryState`] behind the trait.
#[derive(Default, Debug)]
pub struct MemoryStore {
    state: Mutex<MemoryState>,
}

impl MemoryStore {
    /// A copy of what is stored.
    pub fn snapshot(&self) -> MemoryState {
        self.state.lock().clone()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        self.state.lock().handle(request, cell_runtime::unix_ms() / 1000)
    }
}
