//! What every request of an operator passes: it is named, counted and noted, and what the plan says happens to it. It never invents an
//! answer that a server could not give.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use cell_runtime::CancellationToken;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use super::mutant::Mutant;
use super::plan::{Act, Plan, Step, When};

/// A leader must have stopped this long after its last renewal; a busy machine is given a little more.
const STOPPED: Duration = Duration::from_secs(7 + 2);
/// Milliseconds that this process was once too late for a timer, at most: a machine that stands still is no fault of the operator's.
pub static LATE_MS: AtomicU64 = AtomicU64::new(0);

/// In place of an effect: a step that strikes at the start of a run.
pub const START: &str = "start";

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gate {
    Go,
    /// Answered with this code.
    Answer(u16),
    /// The operator that sent it hears nothing more.
    Never,
}

/// What whoever runs the operators is told.
#[derive(Debug)]
pub enum Order {
    /// This life dies; another of the same name begins.
    Crash(u32),
    /// Another operator, of this name, begins beside it.
    Second(String),
}

#[derive(Default)]
struct State {
    plan: Vec<(Step, bool)>,
    counts: BTreeMap<String, u32>,
    effects: Vec<(String, u32)>,
    outcomes: BTreeMap<String, u32>,
    violations: Vec<String>,
    holds: BTreeMap<String, (Instant, bool)>,
    stale: BTreeMap<String, u32>,
    reads: HashMap<String, Bytes>,
    frozen: Option<u32>,
    in_flight: u32,
    last: Option<Instant>,
    /// By life: the revision of its first write to etcd.
    first_write: BTreeMap<u32, i64>,
    checks_standing: bool,
}

impl State {
    fn hold(&mut self, kind: &str, ms: u64, collapses: bool) {
        self.holds.insert(kind.to_owned(), (Instant::now() + Duration::from_millis(ms), collapses));
    }
}

/// Shared by all lives of the operators of one namespace.
pub struct Wire {
    /// Reaches the API server without this wire.
    pub user: kube::Client,
    pub namespace: String,
    /// Prefix of the fleet's keys in etcd.
    pub prefix: String,
    pub mutant: Mutant,
    state: Mutex<State>,
    orders: mpsc::UnboundedSender<Order>,
    cut: Mutex<CancellationToken>,
    gone: watch::Sender<u64>,
}

/// One life of an operator.
pub struct Life {
    pub number: u32,
    pub wire: Arc<Wire>,
    dead: AtomicBool,
    renewed: Mutex<Instant>,
}

impl Wire {
    pub fn new(
        user: kube::Client,
        namespace: &str,
        prefix: &str,
        mutant: Mutant,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Order>) {
        let (orders, received) = mpsc::unbounded_channel();
        let wire = Self {
            user,
            namespace: namespace.to_owned(),
            prefix: prefix.to_owned(),
            mutant,
            state: Mutex::default(),
            orders,
            cut: Mutex::default(),
            gone: watch::Sender::new(0),
        };
        (Arc::new(wire), received)
    }

    /// From here on `plan` holds, and effects are counted from one.
    pub fn begin(&self, plan: &Plan) {
        let mut state = self.state.lock();
        state.checks_standing = !plan.blinds();
        state.plan = plan.0.iter().map(|step| (step.clone(), false)).collect();
        (state.counts, state.effects, state.outcomes) = Default::default();
        state.violations.clear();
        (state.holds, state.stale, state.frozen) = Default::default();
        for step in plan.0.iter().filter(|step| step.effect == START) {
            match &step.act {
                Act::Hold(kind, ms) => state.hold(kind, *ms, false),
                Act::Collapse(kind, ms) => state.hold(kind, *ms, true),
                other => panic!("{other} cannot happen at the start"),
            }
        }
    }

    /// Nothing goes wrong any more; what was noted stays.
    pub fn calm(&self) {
        let mut state = self.state.lock();
        state.plan.clear();
        (state.holds, state.stale) = Default::default();
    }

    /// Every effect so far with its number, in order.
    pub fn effects(&self) -> Vec<(String, u32)> {
        self.state.lock().effects.clone()
    }

    /// What was created and deleted, and how often.
    pub fn outcomes(&self) -> BTreeMap<String, u32> {
        self.state.lock().outcomes.clone()
    }

    pub fn violations(&self) -> Vec<String> {
        self.state.lock().violations.clone()
    }

    pub fn violate(&self, what: String) {
        self.state.lock().violations.push(what);
    }

    /// Nobody has changed anything for so long.
    pub fn quiet_for(&self, pause: Duration) -> bool {
        let state = self.state.lock();
        state.in_flight == 0 && state.last.is_none_or(|last| last.elapsed() >= pause)
    }

    pub fn note(&self, outcome: String) {
        *self.state.lock().outcomes.entry(outcome).or_default() += 1;
    }

    /// Whether a `Ready` that is written must be true at that moment.
    pub fn checks_standing(&self) -> bool {
        self.state.lock().checks_standing
    }

    /// Until when events of a kind wait, and whether only the last of each object is told then.
    pub fn hold(&self, plural: &str) -> Option<(Instant, bool)> {
        self.state.lock().holds.get(plural).copied().filter(|(until, _)| *until > Instant::now())
    }

    /// Cancelled to cut the watches that began under it.
    pub fn cut(&self) -> CancellationToken {
        let mut cut = self.cut.lock();
        if cut.is_cancelled() {
            *cut = CancellationToken::new();
        }
        cut.clone()
    }

    pub fn gone(&self) -> watch::Receiver<u64> {
        self.gone.subscribe()
    }

    /// An old answer to this question, if the plan asks for one now.
    pub fn old_answer(&self, plural: &str, question: &str) -> Option<Bytes> {
        let mut state = self.state.lock();
        let left = state.stale.get(plural).copied().filter(|left| *left > 0)?;
        let old = state.reads.get(question).cloned()?;
        state.stale.insert(plural.to_owned(), left - 1);
        Some(old)
    }

    pub fn remember(&self, question: &str, answer: &Bytes) {
        self.state.lock().reads.entry(question.to_owned()).or_insert_with(|| answer.clone());
    }

    /// A life's write to etcd went through at this revision: no later one of an older life may.
    pub fn wrote_etcd(&self, life: u32, revision: i64) {
        let mut state = self.state.lock();
        state.first_write.entry(life).or_insert(revision);
        let newer = state.first_write.range(life + 1..).find(|(_, first)| **first < revision).map(|(life, _)| *life);
        if let Some(newer) = newer {
            let what = format!("operator {life} wrote to etcd after operator {newer}, which leads, had written");
            state.violations.push(what);
        }
    }

    fn has_written(&self, after: u32) -> bool {
        self.state.lock().first_write.range(after + 1..).next().is_some()
    }

    pub fn is_frozen(&self, life: u32) -> bool {
        self.state.lock().frozen == Some(life)
    }

    /// Somebody deletes a child.
    async fn delete(&self, child: &str) {
        let Some((plural, name)) = child.split_once('/') else { return };
        let api: Api<DynamicObject> = Api::namespaced_with(self.user.clone(), &self.namespace, &resource(plural));
        let _gone_already = api.delete(name, &DeleteParams::default()).await;
    }

    /// Gives the Lease to an operator that begins now.
    async fn steal(&self, by: &str) {
        let leases: Api<DynamicObject> = Api::namespaced_with(self.user.clone(), &self.namespace, &resource("leases"));
        let transitions = leases.get("cellplane-operator").await.ok();
        let transitions = transitions.and_then(|lease| lease.data["spec"]["leaseTransitions"].as_i64());
        let taken = json!({"spec": {"holderIdentity": by, "leaseTransitions": transitions.unwrap_or_default() + 1}});
        let _asked_again = leases.patch("cellplane-operator", &PatchParams::default(), &Patch::Merge(&taken)).await;
    }
}

/// The kinds that an operator's children are of.
pub fn resource(plural: &str) -> ApiResource {
    let (group, version, kind) = match plural {
        "statefulsets" => ("apps", "v1", "StatefulSet"),
        "deployments" => ("apps", "v1", "Deployment"),
        "poddisruptionbudgets" => ("policy", "v1", "PodDisruptionBudget"),
        "networkpolicies" => ("networking.k8s.io", "v1", "NetworkPolicy"),
        "leases" => ("coordination.k8s.io", "v1", "Lease"),
        "jobs" => ("batch", "v1", "Job"),
        "services" => ("", "v1", "Service"),
        "secrets" => ("", "v1", "Secret"),
        "pods" => ("", "v1", "Pod"),
        "persistentvolumeclaims" => ("", "v1", "PersistentVolumeClaim"),
        "configmaps" => ("", "v1", "ConfigMap"),
        "fleets" => ("cellplane.dev", "v1alpha1", "Fleet"),
        "cells" => ("cellplane.dev", "v1alpha1", "Cell"),
        "storagecells" => ("cellplane.dev", "v1alpha1", "StorageCell"),
        "guilds" => ("cellplane.dev", "v1alpha1", "Guild"),
        "moves" => ("cellplane.dev", "v1alpha1", "Move"),
        "storagemigrations" => ("cellplane.dev", "v1alpha1", "StorageMigration"),
        other => panic!("{other} is no kind of the harness"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

impl Life {
    pub fn new(number: u32, wire: Arc<Wire>) -> Arc<Self> {
        Arc::new(Self { number, wire, dead: AtomicBool::new(false), renewed: Mutex::new(Instant::now()) })
    }

    /// The Lease was taken or renewed.
    pub fn renew(&self) {
        *self.renewed.lock() = Instant::now();
    }

    pub fn kill(&self) {
        self.dead.store(true, Ordering::Release);
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// A request with an effect arrives; answers its number too.
    pub async fn before(&self, effect: &str) -> (Gate, u32) {
        if self.is_dead() {
            return (Gate::Never, 0);
        }
        let nth = {
            let mut state = self.wire.state.lock();
            let count = state.counts.entry(effect.to_owned()).or_default();
            *count += 1;
            let nth = *count;
            state.effects.push((effect.to_owned(), nth));
            state.last = Some(Instant::now());
            let late = Duration::from_millis(2 * LATE_MS.load(Ordering::Relaxed));
            if self.renewed.lock().elapsed() > STOPPED + late {
                let what = format!("operator {} did {effect:?} although its Lease had run out", self.number);
                state.violations.push(what);
            }
            nth
        };
        (self.strike(effect, nth, When::Before).await, nth)
    }

    /// The server did what was asked.
    pub async fn after(&self, effect: &str, nth: u32) -> Gate {
        let gate = self.strike(effect, nth, When::After).await;
        self.wire.state.lock().last = Some(Instant::now());
        gate
    }

    async fn strike(&self, effect: &str, nth: u32, when: When) -> Gate {
        let due: Vec<Act> = {
            let mut state = self.wire.state.lock();
            let fits = |step: &Step| step.when == when && step.nth == nth && step.effect == effect;
            let due = state.plan.iter_mut().filter(|(step, struck)| !struck && fits(step));
            due.map(|(step, struck)| {
                *struck = true;
                step.act.clone()
            })
            .collect()
        };
        let mut gate = Gate::Go;
        for act in due {
            let next = self.perform(act).await;
            gate = if gate == Gate::Go { next } else { gate };
        }
        if self.is_dead() { Gate::Never } else { gate }
    }

    async fn perform(&self, act: Act) -> Gate {
        let wire = &self.wire;
        match act {
            Act::Crash => {
                self.kill();
                let _stage_is_gone = wire.orders.send(Order::Crash(self.number));
                return Gate::Never;
            }
            Act::Refuse(code) | Act::Lose(code) => return Gate::Answer(code),
            Act::Delete(child) => wire.delete(&child).await,
            Act::Hold(kind, ms) => wire.state.lock().hold(&kind, ms, false),
            Act::Collapse(kind, ms) => wire.state.lock().hold(&kind, ms, true),
            Act::Cut => {
                let cut = std::mem::take(&mut *wire.cut.lock());
                cut.cancel();
            }
            Act::Gone => wire.gone.send_modify(|count| *count += 1),
            Act::Stale(kind, reads) => {
                wire.state.lock().stale.insert(kind, reads);
            }
            Act::Steal | Act::Late => {
                let by = self.other();
                wire.steal(&by).await;
                let _stage_is_gone = wire.orders.send(Order::Second(by));
                let deadline = Instant::now() + Duration::from_secs(20);
                while act == Act::Late && !wire.has_written(self.number) && Instant::now() < deadline {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            Act::Freeze => {
                wire.state.lock().frozen = Some(self.number);
                let _stage_is_gone = wire.orders.send(Order::Second(self.other()));
            }
        }
        Gate::Go
    }

    /// The name of the operator after this one.
    fn other(&self) -> String {
        format!("cellplane-operator-{}", self.number)
    }

    /// Counts a request while it is under way, however it ends.
    pub fn enter(self: &Arc<Self>) -> UnderWay {
        self.wire.state.lock().in_flight += 1;
        UnderWay(self.wire.clone())
    }
}

/// A request under way.
pub struct UnderWay(Arc<Wire>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.state.lock().in_flight -= 1;
    }
}
