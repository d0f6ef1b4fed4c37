//! Planted bugs: what an operator with a bug of a class would send or overlook, done to the requests of the right one on their way. They
//! live here alone; the operator knows nothing of them.

use std::collections::{BTreeMap, BTreeSet};

use etcd_client::proto::{PbCompare, PbTxnRequest};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::effect::Asked;

/// A class of bugs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bug {
    #[default]
    None,
    /// After a restart, what was not made before is not made any more: progress was kept in memory.
    ForgetsAfterCrash,
    /// A child that was made once is never made again.
    NeverHeals,
    /// It finds a difference in every object at every look.
    RewritesAlways,
    /// It says Ready although it never made a child.
    SaysReady,
    /// `observedGeneration` names a generation that was not seen.
    ObservesAhead,
    /// A set is never made smaller.
    NeverShrinks,
    /// Sets whose cell is not in a list are deleted, however old the list is.
    TrustsOldLists,
    /// A generation is acted on only if the one before it was seen.
    NeedsEveryEvent,
    /// Writes to etcd ask neither who leads nor what was there before.
    Unfenced,
    /// It goes on although its Lease is not renewed.
    IgnoresItsLease,
}

/// A bug and what it remembers.
#[derive(Default)]
pub struct Mutant {
    pub bug: Bug,
    made: Mutex<BTreeSet<String>>,
    seen: Mutex<BTreeMap<String, i64>>,
    blind: Mutex<BTreeSet<String>>,
}

/// What the bug does with a request.
pub enum Twist {
    Pass,
    /// Not sent; taken for done.
    Swallow,
}

impl Mutant {
    pub fn of(bug: Bug) -> Self {
        Self { bug, ..Self::default() }
    }

    /// A request with an effect, about to be sent by a life; `exists` says whether its object is there.
    pub fn request(&self, life: u32, effect: &str, exists: bool, live: &Value, body: &mut Value) -> Twist {
        let budget = effect.starts_with("apply poddisruptionbudgets/");
        match self.bug {
            Bug::ForgetsAfterCrash if budget && life > 1 && !exists => return Twist::Swallow,
            Bug::NeverHeals if budget && !exists && !self.made.lock().insert(effect.to_owned()) => {
                return Twist::Swallow;
            }
            Bug::SaysReady if budget && !exists => return Twist::Swallow,
            Bug::ObservesAhead if effect.starts_with("status cells/") => {
                body["status"]["observedGeneration"] =
                    json!(live["metadata"]["generation"].as_i64().unwrap_or_default() + 1);
            }
            Bug::NeverShrinks if effect.starts_with("apply statefulsets/") => {
                let replicas = |set: &Value| set["spec"]["replicas"].as_i64();
                if let (Some(wanted), Some(there)) = (replicas(body), replicas(live)) {
                    body["spec"]["replicas"] = json!(wanted.max(there));
                }
            }
            Bug::NeedsEveryEvent if effect.starts_with("apply statefulsets/") => {
                let set = effect.trim_start_matches("apply statefulsets/");
                let blind = self.blind.lock();
                if exists && blind.iter().any(|cell| set.starts_with(&format!("{cell}-"))) {
                    return Twist::Swallow;
                }
            }
            _ => {}
        }
        Twist::Pass
    }

    /// An answer to a read, before the operator sees it.
    pub fn answer(&self, asked: &Asked, body: &mut Value) -> bool {
        if self.bug == Bug::RewritesAlways && asked.plural == "statefulsets" && !asked.name.is_empty() {
            let annotations = body["metadata"]["annotations"].as_object_mut();
            return annotations.is_some_and(|annotations| annotations.remove("cellplane.dev/applied-hash").is_some());
        }
        false
    }

    /// A watch event that the operator is told.
    pub fn told(&self, plural: &str, event: &Value) {
        if self.bug != Bug::NeedsEveryEvent || plural != "cells" || event["type"] != "MODIFIED" {
            return;
        }
        let metadata = &event["object"]["metadata"];
        let (Some(name), Some(generation)) = (metadata["name"].as_str(), metadata["generation"].as_i64()) else {
            return;
        };
        let before = self.seen.lock().insert(name.to_owned(), generation);
        if before.is_some_and(|before| generation > before + 1) {
            self.blind.lock().insert(name.to_owned());
        }
    }

    /// Whether sets that this list of cells does not account for are deleted.
    pub fn deletes_by(&self, asked: &Asked, old: bool) -> bool {
        self.bug == Bug::TrustsOldLists && old && asked.plural == "cells" && asked.name.is_empty()
    }

    pub fn transaction(&self, txn: &mut PbTxnRequest, fencing: &str) -> bool {
        let guards = |compare: &PbCompare| compare.key == fencing.as_bytes();
        let guarded = self.bug == Bug::Unfenced && txn.compare.iter().any(guards);
        if guarded {
            // All of it: of two leaders' writes of one key, the one that comes later would else be refused for what it replaces.
            txn.compare.clear();
        }
        guarded
    }
}
