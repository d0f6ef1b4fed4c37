//! Random schedules of crashes, failovers, moves, splits, merges, resets and late answers. Every gateway must get every entry exactly once, in
//! order; the lower guild term must never get in.

use cell_proto::v1::{MemberPut, RolePut};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::world::World;
use super::*;

fn small() -> Limits {
    Limits {
        ring: RingLimits { entries: 6, bytes: 1 << 20 },
        frame_entries: 2,
        frame_bytes: 200,
        remembered_operations: 8,
        ..Limits::default()
    }
}

fn random_kind(rng: &mut StdRng) -> (i64, Kind) {
    let user = rng.random_range(2..12);
    if rng.random_bool(0.6) {
        let put =
            MemberPut { member: Some(member(user)), joined: true, invite_code: "code".into(), ..MemberPut::default() };
        return (user, Kind::MemberPut(put));
    }
    if rng.random_bool(0.5) {
        return (user, Kind::MemberRemoved(cell_proto::v1::MemberRemoved { guild_id: GUILD, user_id: user }));
    }
    let role = Role { id: GUILD, name: "@everyone".into(), permissions: bits::DEFAULT_EVERYONE, ..Role::default() };
    (OWNER, Kind::RolePut(RolePut { guild_id: GUILD, role: Some(role), created: false }))
}

fn step(world: &mut World, rng: &mut StdRng, tickets: &mut u64) {
    let node = rng.random_range(0..world.nodes.len());
    let gateway = rng.random_range(0..world.gateways.len());
    match rng.random_range(0..100) {
        0..14 => world.logs.say(),
        14..18 => world.logs.noise(),
        18..40 => {
            let pick = rng.random_range(0..8);
            world.work(node, pick);
        }
        40..58 => world.feed(node, rng.random_range(1..5)),
        58..74 => {
            world.deliver(gateway);
        }
        74..78 => {
            *tickets += 1;
            let (actor_id, kind) = random_kind(rng);
            let target = world.owner().unwrap_or(node);
            world.give(target, Input::Mutate { ticket: *tickets, request: mutate(actor_id, *tickets, kind) });
        }
        78..81 => world.give(node, Input::Own),
        81..86 => {
            let target = if rng.random_bool(0.8) { world.owner().unwrap_or(node) } else { node };
            let standby = rng.random_bool(0.2) && world.gateways[gateway].position.is_some();
            world.attach(gateway, target, standby);
        }
        86..88 => world.reset(gateway),
        88..90 => world.crash(node),
        90 => world.logs.split(),
        91 => world.logs.merge(),
        92 => world.give(node, Input::Yield(None)),
        93 => world.give(node, Input::Warm { ticket: 0, run_id: "run".into(), route: Route::default() }),
        94 => {
            let claim = rng.random_bool(0.5);
            world.give(node, Input::TakeOver { ticket: 0, run_id: "run".into(), claim, route: None });
        }
        95 => world.give(node, Input::Forget { ticket: 0, run_id: "run".into(), route: Route::default() }),
        96 => world.logs.raise_term(),
        97 => {
            if let Some((epoch, log, _)) = world.nodes[node].feed.clone() {
                world.nodes[node].feed = Some((epoch, log.clone(), 1));
            }
        }
        _ => {
            world.mono_ms += rng.random_range(0..400);
            if world.nodes[node].actor.is_some() {
                world.give(node, Input::Tick);
            }
        }
    }
}

fn run(seed: u64, steps: usize) {
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut world = World::new(3, 3, small());
    let mut tickets = 0;
    for _ in 0..steps {
        step(&mut world, &mut rng, &mut tickets);
    }
    let node = rng.random_range(0..world.nodes.len());
    world.settle(node);
    for gateway in &world.gateways {
        assert_eq!(gateway.skipped, 0, "nothing was dropped from the logs, so no snapshot may skip entries");
        assert_eq!(gateway.policy_version, world.logs.truth.guild.policy_version);
    }
    check_state(&world, node);
    check_answers(&world);
}

fn check_state(world: &World, node: usize) {
    let (view, truth) = (world.nodes[node].actor.as_ref().unwrap().view(), &world.logs.truth);
    assert_eq!((&view.guild, view.guild_term), (&truth.guild, truth.guild_term));
    assert_eq!((&view.channels, &view.roles, &view.invites), (&truth.channels, &truth.roles, &truth.invites));
    assert!(view.members.iter().eq(truth.members.iter()), "members differ");
}

/// What was answered as committed is in the log once; what was refused for good is not.
fn check_answers(world: &World) {
    for (ticket, reply) in &world.answers {
        let in_logs =
            |log: &str| world.logs.entries[log].iter().filter(|entry| entry.operation_id == operation(*ticket)).count();
        let count = in_logs(&bucket()) + in_logs(&own());
        match reply.outcome.as_ref().unwrap() {
            Outcome::Committed(_) => assert_eq!(count, 1, "operation {ticket}"),
            Outcome::Refusal(refusal) if !refusal.why().is_retryable() => {
                assert_eq!(count, 0, "operation {ticket}: {refusal:?}")
            }
            Outcome::Refusal(_) => {}
        }
    }
}

#[test]
fn every_gateway_gets_every_entry_once_and_in_order_whatever_happens() {
    for seed in 0..300 {
        run(seed, 600);
    }
}

#[test]
fn long_runs_with_fresh_seeds_end_well_too() {
    for _ in 0..10 {
        run(rand::random(), 3000);
    }
}
