//! Step by step: the machine does what the model does.

use cell_model::engine::Model;
use cell_model::log::state::{Budget, OPERATIONS, Phase, State};
use cell_model::log::{LogModel, Step};
use cell_model::rules::Rules;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::steps::Replayed;
use super::world::World;

/// Claims, crashes, batches, switches and late writes; nothing that the machine would decide for itself, as when to try an append of
/// unknown outcome again, or when to leave a segment.
const MODEL: LogModel = LogModel {
    rules: Rules::ALL,
    owners: 3,
    operations: OPERATIONS.len(),
    copies: false,
    budget: Budget {
        crashes: 2,
        unknowns: 2,
        claims: 3,
        late_writes: 1,
        late_ships: 0,
        rolls: 0,
        switches: 2,
        cutovers: 0,
        drops: 0,
        retentions: 0,
        batches: 1,
    },
};

fn is_decided_by_the_machine(step: &Step) -> bool {
    matches!(step, Step::AppendUnknown { .. } | Step::AppendRefused { .. } | Step::ApplyUnknown { .. })
}

/// Head, owner and log of the machine against the model's.
fn difference(world: &mut World, state: &State) -> Option<String> {
    let head = world.head();
    let expected = state.stores[0].head;
    let appender = expected.appender.map(|process| format!("p{process}")).unwrap_or_default();
    let cell = ["a", "b"][usize::from(expected.cell)];
    if (head.term, head.cell.as_str(), &head.appender) != (u64::from(expected.term), cell, &appender) {
        return Some(format!("the head is {head:?}, the model's {expected:?}"));
    }
    let log: Vec<u64> = world.ghost.committed.iter().skip(1).map(|entry| u64::from(entry.operation_id[15])).collect();
    let wanted: Vec<u64> = state.history.iter().flatten().map(|entry| entry.operation as u64 + 1).collect();
    if log != wanted {
        return Some(format!("committed are {log:?}, in the model {wanted:?}"));
    }
    for (process, owner) in state.owners.iter().enumerate() {
        let owns = world.processes[process].machine.head().is_some();
        let serves = matches!(owner.phase, Phase::Serving | Phase::Switching | Phase::SwitchUnknown);
        if owns != serves && owner.phase != Phase::Verifying {
            return Some(format!("p{process} owns the log: {owns}, in the model it is {:?}", owner.phase));
        }
    }
    None
}

/// A random walk of the model and the machine side by side.
fn walk(seed: u64, counts: &mut std::collections::BTreeMap<String, u64>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut world = World::start();
    let mut state = MODEL.initial();
    for _ in 0..60 {
        let mut next = Vec::new();
        MODEL.steps(&state, &mut next);
        next.retain(|(step, _)| !is_decided_by_the_machine(step));
        if next.is_empty() {
            break;
        }
        let (step, after) = next.swap_remove(rng.random_range(0..next.len()));
        let replayed = world.replay(step);
        let name = format!("{step:?}").split([' ', '{']).next().unwrap_or_default().to_owned();
        *counts.entry(name).or_default() += 1;
        state = after;
        let wrong = match replayed {
            Replayed::Elsewhere => Some("the machine does not come to this step".to_owned()),
            Replayed::Done => difference(&mut world, &state),
        };
        let wrong = wrong.or(world.ghost.violation.clone());
        if let Some(wrong) = wrong {
            panic!("seed {seed}: {wrong}\n    {}", world.trace.join("\n    "));
        }
    }
}

#[test]
fn the_machine_follows_the_model_step_by_step() {
    let mut counts = std::collections::BTreeMap::new();
    for seed in 0..1500 {
        walk(seed, &mut counts);
    }
    println!("{counts:?}");
    for step in
        ["Claims", "Seals", "Opens", "StepsBack", "Appends", "Applies", "Switches", "Crashes", "Lands", "Refuses"]
    {
        assert!(counts.get(step).is_some_and(|count| *count >= 10), "{step} hardly happened: {counts:?}");
    }
}
