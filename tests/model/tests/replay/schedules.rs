//! Traces as schedules: whatever the machine makes of them, the model's invariants hold.

use cell_model::engine::{Verdict, explore, stroll};
use cell_model::log::Step;
use cell_model::log::scenarios;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::world::World;

/// Replays what can be replayed, lets everything settle, and looks.
fn hold(steps: &[Step]) -> Result<Moved, String> {
    let mut world = World::start();
    for step in steps {
        world.replay(*step);
    }
    world.settle();
    world.compare();
    match world.ghost.violation {
        None => Ok(Moved { shipped: world.ghost.shipped, cutovers: world.ghost.cutovers }),
        Some(what) => Err(format!("{what}\n    {}", world.trace.join("\n    "))),
    }
}

/// How much was moved to copies: schedules that move nothing prove nothing about them.
#[derive(Default, Debug)]
struct Moved {
    shipped: u64,
    cutovers: u64,
}

impl Moved {
    fn add(&mut self, other: &Self) {
        self.shipped += other.shipped;
        self.cutovers += other.cutovers;
    }
}

#[test]
fn what_does_damage_without_a_rule_does_none_to_the_machine() {
    let (mut replayed, mut moved) = (0, Moved::default());
    for (rules, model) in scenarios::ablations() {
        let (Verdict::Violated { trace, .. } | Verdict::Stuck { trace, .. }) =
            explore(&model.without(rules), 2_000_000)
        else {
            panic!("{rules:?} are not shown to be needed");
        };
        match hold(&trace) {
            Ok(more) => moved.add(&more),
            Err(what) => panic!("the trace that needs {rules:?}: {what}"),
        }
        replayed += 1;
    }
    println!("{replayed} traces, {moved:?}");
    assert!(replayed >= 30, "only {replayed} traces were replayed");
    assert!(moved.shipped >= 5 && moved.cutovers >= 5, "{moved:?}");
}

#[test]
fn random_executions_of_the_model_do_no_damage_to_the_machine() {
    let mut moved = Moved::default();
    for (name, model) in scenarios::small() {
        for seed in 0..150 {
            let mut rng = StdRng::seed_from_u64(seed);
            let (steps, _) = stroll(&model, 50, |count| rng.random_range(0..count));
            match hold(&steps) {
                Ok(more) => moved.add(&more),
                Err(what) => panic!("{name}, seed {seed}: {what}"),
            }
        }
    }
    println!("{moved:?}");
    assert!(moved.shipped >= 50 && moved.cutovers >= 50, "{moved:?}");
}
