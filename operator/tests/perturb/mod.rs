//! The operator held against perturbations: one scenario is played undisturbed and then, again and again, with something going wrong at
//! a request of its own. Every run must come to the same end, with the same creates and deletes, without a status that lies, and an
//! operator that begins anew then must find nothing to do. README.md says how to repeat one run.

pub mod dedicated;
pub mod effect;
pub mod ground;
pub mod grpc_wire;
pub mod kube_wire;
pub mod lives;
pub mod migrate;
pub mod mutant;
pub mod plan;
pub mod scenario;
pub mod schema;
pub mod snapshot;
pub mod stage;
pub mod truth;
pub mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use ground::Ground;
use mutant::Bug;
use plan::{Choice, Plan};
use scenario::Scenario;
use snapshot::{Snapshot, differences};
use stage::Stage;

/// How a scenario ends when nothing goes wrong.
#[derive(Clone, Debug)]
pub struct Reference {
    end: Snapshot,
    outcomes: BTreeMap<String, u32>,
    pub effects: Vec<(String, u32)>,
}

/// A scenario with a stage to play it on.
pub struct Theatre<'a> {
    ground: &'a Ground,
    pub scenario: Scenario,
    bug: Bug,
    stage: Option<Stage>,
    pub reference: Reference,
}

impl<'a> Theatre<'a> {
    /// Plays it undisturbed first.
    ///
    /// # Errors
    /// What went wrong although nothing was done.
    pub async fn open(ground: &'a Ground, scenario: Scenario) -> Result<Self, String> {
        // Every test of this process needs it once.
        static KNOWN: Mutex<BTreeMap<String, Arc<OnceCell<Reference>>>> = Mutex::new(BTreeMap::new());
        let known = KNOWN.lock().entry(format!("{scenario:?}")).or_default().clone();
        let reference = Reference { end: Snapshot::new(), outcomes: BTreeMap::new(), effects: Vec::new() };
        let mut theatre = Self { ground, scenario, bug: Bug::None, stage: None, reference };
        let first = known.get_or_try_init(async || {
            let (end, outcomes, effects) = theatre.play(&Plan::default()).await?;
            Ok::<_, String>(Reference { end, outcomes, effects })
        });
        let reference = first.await?.clone();
        theatre.reference = reference;
        Ok(theatre)
    }

    /// The same play by an operator with a bug, judged by the right one's end.
    pub fn with(&self, bug: Bug) -> Self {
        Self { ground: self.ground, scenario: self.scenario, bug, stage: None, reference: self.reference.clone() }
    }

    /// What a seed may choose from.
    pub fn choice(&self, leaders: bool) -> Choice {
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
        Choice {
            effects: self.reference.effects.clone(),
            children: words(self.scenario.children()),
            kinds: words(self.scenario.kinds()),
            read: words(self.scenario.read()),
            leaders,
        }
    }

    async fn take_stage(&mut self) -> Result<Stage, String> {
        match self.stage.take() {
            Some(stage) => Ok(stage),
            None if self.scenario.begins_empty() => Ok(Stage::empty(self.ground, self.bug).await),
            None => Stage::ready(self.ground, self.bug).await,
        }
    }

    async fn play(&mut self, plan: &Plan) -> Result<(Snapshot, BTreeMap<String, u32>, Vec<(String, u32)>), String> {
        let stage = self.take_stage().await?;
        stage.wire.begin(plan);
        let end = self.scenario.play(&stage).await?;
        if plan.0.iter().any(|step| matches!(step.act, plan::Act::Steal | plan::Act::Late | plan::Act::Freeze)) {
            stage.alone().await;
        }
        stage.wire.calm();
        let (outcomes, effects) = (stage.wire.outcomes(), stage.wire.effects());
        let again = stage.looks_again().await?;
        let mut wrong = stage.wire.violations();
        wrong.extend(truth::untruths(&stage.user, &stage.namespace).await);
        if !again.is_empty() {
            wrong.push(format!("another life of the operator changed something: {}", again.join(", ")));
        }
        if !wrong.is_empty() {
            return Err(wrong.join("\n"));
        }
        if !self.scenario.uses_up() {
            self.stage = Some(stage);
        }
        Ok((end, outcomes, effects))
    }

    /// One run.
    ///
    /// # Errors
    /// In what it differs from the undisturbed one, or what else is wrong.
    pub async fn run(&mut self, plan: &Plan) -> Result<(), String> {
        let (end, outcomes, _) = self.play(plan).await?;
        let mut wrong = differences(&self.reference.end, &end);
        let expected = self.reference.outcomes.clone();
        if !plan.makes_work() && outcomes != expected {
            let seen = |counts: &BTreeMap<String, u32>, other: &BTreeMap<String, u32>| {
                let apart = counts.iter().filter(|(what, count)| other.get(*what) != Some(count));
                apart.map(|(what, count)| format!("{what} ×{count}")).collect::<Vec<_>>().join(", ")
            };
            wrong.push(format!("undisturbed: {}; here: {}", seen(&expected, &outcomes), seen(&outcomes, &expected)));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    /// One run; if it fails, the smallest plan that still does, in a message that says how to repeat it.
    ///
    /// # Errors
    /// That message.
    pub async fn hold(&mut self, seed: u64, plan: &Plan) -> Result<(), String> {
        let Err(mut why) = self.run(plan).await else { return Ok(()) };
        let mut smallest = plan.clone();
        'shrink: loop {
            for less in smallest.smaller().into_iter().filter(|less| !less.0.is_empty()) {
                if let Err(still) = self.run(&less).await {
                    (smallest, why) = (less, still);
                    continue 'shrink;
                }
            }
            break;
        }
        Err(format!(
            "{:?}, seed {seed}: {why}\nthe smallest plan that fails: {smallest}\nagain: CELLPLANE_HARNESS_SCENARIO={:?} CELLPLANE_HARNESS_PLAN='{smallest}' cargo test -p cell-operator --test perturbed one_plan",
            self.scenario, self.scenario
        ))
    }
}
