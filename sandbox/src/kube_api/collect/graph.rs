//! Who owns whom, and what follows from it. Pure: it is told of objects and their disappearance and answers with actions.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use serde_json::Value;

use crate::kube_api::object::{self, Owner};
use crate::kube_api::verbs::delete::{FOREGROUND, ORPHAN};

/// Where an object is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Key {
    /// "" for the core group.
    pub group: String,
    pub plural: String,
    /// "" for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
}

impl Key {
    /// Takes a store key apart.
    pub fn parse(key: &[u8]) -> Self {
        let text = String::from_utf8_lossy(key);
        let mut parts = text.split('/').skip(1);
        let group = parts.next().map(|g| if g == "core" { "" } else { g }).unwrap_or_default().to_owned();
        let plural = parts.next().unwrap_or_default().to_owned();
        let rest: Vec<&str> = parts.collect();
        let (namespace, name) = match rest.as_slice() {
            [namespace, name] => (*namespace, *name),
            [name] => ("", *name),
            _ => ("", ""),
        };
        Self { group, plural, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Every owner is gone, or an owner waits for this object in a foreground deletion.
    Delete { key: Key, uid: String, foreground: bool },
    /// Some owners are gone, others live.
    DropOwners { key: Key, uid: String, owners: Vec<String> },
    /// What the finalizer stood for is done.
    DropFinalizer { key: Key, uid: String, finalizer: &'static str },
}

#[derive(Debug, Clone)]
struct Node {
    key: Key,
    owners: Vec<Owner>,
    foreground: bool,
    orphaning: bool,
    deleting: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Alive,
    Gone,
    Invalid,
}

/// The graph of everything stored.
#[derive(Debug, Default)]
pub struct Graph {
    nodes: HashMap<String, Node>,
    by_key: HashMap<Key, String>,
    dependents: HashMap<String, BTreeSet<String>>,
    /// Nothing is judged before everything is known.
    settled: bool,
    queue: VecDeque<String>,
    queued: HashSet<String>,
}

impl Graph {
    /// An object as it now is. References for which `resolvable` does not hold (a kind nobody serves, a namespaced owner of a
    /// cluster-scoped object) say nothing: they neither keep nor remove the object.
    pub fn put(&mut self, key: Key, object: &Value, resolvable: impl Fn(&Key, &Owner) -> bool) {
        let uid = object::uid(object).to_owned();
        if uid.is_empty() {
            return;
        }
        if self.by_key.get(&key).is_some_and(|old| *old != uid) {
            self.gone(&key);
        }
        // An owner this object no longer names may have waited for just that.
        let freed: Vec<String> = self.owners_of(&uid);
        self.unlink(&uid);
        let finalizers = object::finalizers(object);
        let deleting = object::deleting(object);
        let node = Node {
            owners: object::owners(object).into_iter().filter(|o| resolvable(&key, o)).collect(),
            foreground: deleting && finalizers.contains(&FOREGROUND),
            orphaning: deleting && finalizers.contains(&ORPHAN),
            deleting,
            key: key.clone(),
        };
        for owner in &node.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.clone());
        }
        let wakes_owners = node.owners.iter().map(|o| o.uid.clone()).collect::<Vec<_>>();
        let wakes_dependents = node.foreground || node.orphaning;
        self.by_key.insert(key, uid.clone());
        self.nodes.insert(uid.clone(), node);
        self.wake(&uid);
        wakes_owners.iter().chain(&freed).for_each(|o| self.wake(o));
        if wakes_dependents {
            self.wake_dependents(&uid);
        }
    }

    /// An object that is no more.
    pub fn gone(&mut self, key: &Key) {
        let Some(uid) = self.by_key.remove(key) else { return };
        let owners = self.owners_of(&uid);
        self.unlink(&uid);
        self.nodes.remove(&uid);
        self.wake_dependents(&uid);
        owners.iter().for_each(|o| self.wake(o));
    }

    /// Everything has been told: judgement may begin.
    pub fn settle_all(&mut self) {
        self.settled = true;
        let all: Vec<String> = self.nodes.keys().cloned().collect();
        all.iter().for_each(|uid| self.wake(uid));
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<Action> {
        while self.settled {
            let uid = self.queue.pop_front()?;
            self.queued.remove(&uid);
            if let Some(action) = self.judge(&uid) {
                return Some(action);
            }
        }
        None
    }

    fn judge(&self, uid: &str) -> Option<Action> {
        let node = self.nodes.get(uid)?;
        if let Some(action) = self.finish_owner(uid, node) {
            return Some(action);
        }
        if node.owners.is_empty() {
            return None;
        }
        let standing = |wanted: Standing| node.owners.iter().filter(move |o| self.standing(o, node) == wanted);
        let alive: Vec<&Owner> = standing(Standing::Alive).collect();
        let gone: Vec<&Owner> = standing(Standing::Gone).collect();
        let waiting = alive.iter().any(|o| self.nodes.get(&o.uid).is_some_and(|n| n.foreground));
        let all_waiting =
            !alive.is_empty() && alive.iter().all(|o| self.nodes.get(&o.uid).is_some_and(|n| n.foreground));
        let key = node.key.clone();
        if alive.is_empty() && gone.len() == node.owners.len() {
            return (!node.deleting).then(|| Action::Delete { key, uid: uid.to_owned(), foreground: false });
        }
        if waiting && all_waiting {
            // Its own dependents go first as well when there are any.
            let foreground = self.has_dependents(uid);
            return (!node.deleting).then(|| Action::Delete { key, uid: uid.to_owned(), foreground });
        }
        let mut drop: Vec<String> = gone.iter().map(|o| o.uid.clone()).collect();
        drop.extend(
            alive
                .iter()
                .filter(|o| self.nodes.get(&o.uid).is_some_and(|n| n.foreground || n.orphaning))
                .map(|o| o.uid.clone()),
        );
        (!drop.is_empty()).then(|| Action::DropOwners { key, uid: uid.to_owned(), owners: drop })
    }

    /// Whether an owner's own deletion can go on.
    fn finish_owner(&self, uid: &str, node: &Node) -> Option<Action> {
        let finalizer = if node.orphaning {
            ORPHAN
        } else if node.foreground {
            FOREGROUND
        } else {
            return None;
        };
        let blocked = self.dependents.get(uid).into_iter().flatten().filter_map(|d| self.nodes.get(d)).any(|d| {
            d.owners
                .iter()
                .any(|o| o.uid == uid && self.standing(o, d) == Standing::Alive && (node.orphaning || o.blocks))
        });
        (!blocked).then(|| Action::DropFinalizer { key: node.key.clone(), uid: uid.to_owned(), finalizer })
    }

    /// Whether an owner reference holds. One that points into another namespace, or names another object than its UID does, says
    /// nothing: nothing is deleted because of it.
    fn standing(&self, owner: &Owner, dependent: &Node) -> Standing {
        let Some(found) = self.nodes.get(&owner.uid) else { return Standing::Gone };
        let reachable = found.key.namespace.is_empty() || found.key.namespace == dependent.key.namespace;
        if reachable && found.key.name == owner.name { Standing::Alive } else { Standing::Invalid }
    }

    fn has_dependents(&self, uid: &str) -> bool {
        self.dependents.get(uid).is_some_and(|d| !d.is_empty())
    }

    fn owners_of(&self, uid: &str) -> Vec<String> {
        self.nodes.get(uid).map(|n| n.owners.iter().map(|o| o.uid.clone()).collect()).unwrap_or_default()
    }

    fn unlink(&mut self, uid: &str) {
        let owners = self.owners_of(uid);
        for owner in owners {
            if let Some(set) = self.dependents.get_mut(&owner) {
                set.remove(uid);
                if set.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
        }
    }

    fn wake(&mut self, uid: &str) {
        if self.queued.insert(uid.to_owned()) {
            self.queue.push_back(uid.to_owned());
        }
    }

    fn wake_dependents(&mut self, uid: &str) {
        let dependents: Vec<String> = self.dependents.get(uid).into_iter().flatten().cloned().collect();
        dependents.iter().for_each(|d| self.wake(d));
    }
}
