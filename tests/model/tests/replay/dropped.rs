//! What the model found beyond the rules as written: a segment dropped while somebody claims or rolls. The schedules are the model's traces for
//! `verify-retained` and `verify-roll`, with the times that the code's retention needs.

use cell_data::machine::Input;
use cell_model::log::state::Operation;
use cell_store::Request;

use super::world::World;

const HOURS_US: i64 = 3 * 3_600_000_000;

fn looks_at_a_segment(request: &Request) -> bool {
    matches!(request, Request::ReadSegment(_))
}

fn appends(request: &Request) -> bool {
    matches!(request, Request::Append(_))
}

/// A log idle for hours. Process 0 has rolled for a write, while its head was its own; process 1 has raised the head's term since and
/// read the cursors, and is about to look at the first segment.
fn with_a_claim_under_way() -> World {
    let mut world = World::start();
    world.now_us += HOURS_US;
    world.submit(0, Operation::Create);
    assert!(world.until(0, appends), "an old segment is left at the next append");
    world.input(1, Input::Claim);
    assert!(world.until(1, looks_at_a_segment));
    world
}

/// Process 0, unaware of the claim, appends, and drops what is old.
fn the_former_owner_appends_and_drops(world: &mut World) {
    for _ in 0..60 {
        world.turn(0);
        world.now_us += 2_000_000;
    }
    assert!(world.ghost.committed.len() == 2, "the former owner's append was taken");
}

#[test]
fn a_segment_dropped_during_a_claim_is_not_taken_for_one_that_never_was() {
    let mut world = with_a_claim_under_way();
    the_former_owner_appends_and_drops(&mut world);
    (0..40).for_each(|_| world.turn(1));
    if world.processes[1].machine.head().is_some() {
        let position = world.processes[1].machine.position();
        assert_eq!(position.map(|(last, _)| last), Some(2), "the claimant serves a log whose end it has not seen");
    }
    world.submit(1, Operation::Create);
    (0..20).for_each(|_| world.turn(1));
    assert_eq!(world.ghost.violation, None, "\n    {}", world.trace.join("\n    "));
}

fn opens_a_segment(request: &Request) -> bool {
    matches!(request, Request::OpenSegment(_))
}

#[test]
fn a_segment_dropped_during_a_roll_is_not_taken_for_one_that_never_was() {
    let mut world = World::start();
    world.now_us += HOURS_US;
    world.submit(0, Operation::Create);
    assert!(world.until(0, opens_a_segment), "an old segment is left at the next append");
    // Two claims while the owner waits: the segment it means to open comes, stays empty, and goes with the older ones.
    for (turns, pause_us) in [(30, 0), (90, 1_000_000)] {
        world.crash(1);
        world.input(1, Input::Claim);
        for _ in 0..turns {
            world.turn(1);
            world.now_us += pause_us;
        }
        assert!(world.processes[1].machine.head().is_some());
    }
    let position = world.processes[1].machine.position();
    (0..20).for_each(|_| world.turn(0));
    let seen = position.map(|(last, _)| last);
    assert_eq!(seen, Some(world.ghost.committed.len() as u64), "an append is taken that the owner never sees");
    assert_eq!(world.ghost.violation, None);
}
