//! Rules of copies whose absence needs one exact order of events: each played by hand, with the rule and without it.

use cell_proto::v1::change::Kind;
use cell_proto::v1::{ChannelDeleted, MessageDeleted, MessagesDeleted};
use cell_store::Request;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::super::types::Input;
use super::clients::GUILD;
use super::schedule::Schedule;
use super::world::logs;
use super::{Faults, Plan, Protections, StoreRules};

const STILL: Faults =
    Faults { crash: 0, unknown: 0, late: 0, claim: 0, switch: 0, split: 0, jump: 0, copy: 1, bulk: 0, skew_us: 0 };

fn schedule_of(owners: usize, rules: Protections, store: StoreRules) -> Schedule {
    let mut schedule = Schedule::new(Plan { owners, steps: 0, faults: STILL, rules, store }, 1);
    schedule.start();
    schedule
}

fn schedule(rules: Protections, store: StoreRules) -> Schedule {
    schedule_of(1, rules, store)
}

impl Schedule {
    fn calm(&mut self) {
        (0..80).for_each(|_| self.deliver_all());
    }

    fn ship_first(&mut self) {
        let run_id = self.run_id();
        self.world.input(0, &logs()[0], Input::Ship { target: "B".into(), run_id });
        self.calm();
    }

    fn commit(&mut self, kind: Kind) {
        self.own_entry(0, &logs()[0], kind, None);
        self.calm();
    }

    fn write_message(&mut self) {
        let mut rng = StdRng::seed_from_u64(self.runs);
        let index = self.clients.create(&mut rng, self.world.now_us / 1000 + 1500, 0);
        self.send_to(0, &logs()[0], index);
    }

    fn fill(&mut self) {
        (0..200).for_each(|_| self.backfill(0, &logs()[0]));
    }

    /// Delivers to the log alone until it asks for such a thing.
    fn until(&mut self, wanted: impl Fn(&Request) -> bool) {
        let log = logs()[0].clone();
        for _ in 0..200 {
            let place = self.world.machine(0, &log);
            if place.asked.iter().flatten().any(|(_, request)| wanted(request)) {
                return;
            }
            self.world.now_us += 1000;
            self.deliver(0, &log, 0);
            self.world.input(0, &log, Input::Tick);
            self.carry_out();
        }
        panic!("it is never asked");
    }

    fn copy_asks(&mut self, wanted: impl Fn(&Request) -> bool) {
        let log = logs()[0].clone();
        for _ in 0..200 {
            let place = self.world.machine(0, &log);
            if place.copy_asked.iter().flat_map(|(_, requests)| requests).any(|(_, request)| wanted(request)) {
                return;
            }
            self.world.now_us += 1000;
            self.deliver_copy(0, &log, 0);
            self.deliver(0, &log, 0);
            self.world.input(0, &log, Input::Tick);
            self.carry_out();
        }
        panic!("the copy never asks");
    }

    fn close_for_cutover(&mut self) {
        self.runs += 1;
        self.always_switch = true;
        self.world.input(0, &logs()[0], Input::Close { run_id: format!("cut-{}", self.runs) });
    }

    /// One process goes on, its copy too, while the others wait.
    fn only(&mut self, process: usize) {
        let log = &logs()[0];
        for _ in 0..80 {
            self.world.now_us += 1000;
            self.deliver(process, log, 0);
            self.deliver_copy(process, log, 0);
            self.world.input(process, log, Input::Tick);
            self.carry_out();
        }
    }

    fn serving(&self) -> Option<&str> {
        self.world.ghost.serving.get(&logs()[0]).map(String::as_str)
    }

    fn end(mut self) -> Result<(), String> {
        self.quiet = true;
        self.settle();
        self.verdict()
    }
}

/// Else nobody would fence an origin that comes back after its log was failed over.
#[test]
fn an_owner_whose_copy_cannot_be_gone_on_with_is_not_given_up() {
    let mut schedule = schedule(Protections::ALL, StoreRules::ALL);
    let log = logs()[0].clone();
    schedule.calm();
    let run_id = schedule.run_id();
    schedule.world.input(0, &log, Input::Ship { target: "B".into(), run_id });
    for _ in 0..40 {
        schedule.world.now_us += 100_000;
        schedule.deliver(0, &log, 0);
        schedule.world.input(0, &log, Input::Tick);
        schedule.carry_out();
    }
    let machine = &schedule.world.machine(0, &log).machine;
    assert!(machine.is_idle() && !machine.may_be_given_up());
    for _ in 0..40 {
        schedule.world.now_us += 100_000;
        schedule.deliver_all();
    }
    assert!(schedule.world.machine(0, &log).machine.may_be_given_up());
}

#[test]
fn rule_11_a_ship_that_is_lost_and_not_settled_is_caught() {
    for settles in [true, false] {
        let mut schedule = schedule(Protections { ship_settles: settles, ..Protections::ALL }, StoreRules::ALL);
        schedule.ship_first();
        schedule.fill();
        schedule.write_message();
        schedule.copy_asks(|request| matches!(request, Request::Append(_)));
        schedule.deliver_copy(0, &logs()[0], 2);
        schedule.world.late.clear();
        schedule.calm();
        schedule.close_for_cutover();
        schedule.calm();
        assert_eq!(schedule.world.ghost.serving.get(&logs()[0]).map(String::as_str), Some("B"), "settles: {settles}");
        // The number of the lost entry is used again.
        schedule.write_message();
        schedule.calm();
        let verdict = schedule.verdict();
        assert_eq!(verdict.is_ok(), settles, "{verdict:?}");
    }
}

/// An owner's attach to the copy sleeps while another owner cuts the log over to it. What the sleeper opens there, behind the segment that
/// serves, would be the log's end for the next claimant.
#[test]
fn rule_11_a_copy_that_is_attached_to_below_its_term_is_caught() {
    for ship_term in [true, false] {
        let mut schedule = schedule_of(2, Protections { ship_term, ..Protections::ALL }, StoreRules::ALL);
        schedule.ship_first();
        schedule.fill();
        schedule.write_message();
        schedule.calm();
        let log = logs()[0].clone();
        schedule.world.input(0, &log, Input::Ship { target: "B".into(), run_id: "another".into() });
        schedule.deliver_copy(0, &log, 0);
        schedule.world.input(1, &log, Input::Claim);
        schedule.only(1);
        let run_id = schedule.run_id();
        schedule.world.input(1, &log, Input::Ship { target: "B".into(), run_id });
        schedule.only(1);
        schedule.always_switch = true;
        schedule.world.input(1, &log, Input::Close { run_id: "cut-1".into() });
        schedule.only(1);
        assert_eq!(schedule.serving(), Some("B"));
        // The sleeper looks at the copy's segments, which are the log's own by now.
        let opens = |(_, request): &(String, Request)| matches!(request, Request::OpenSegment(_));
        let mut means_to_open = false;
        for _ in 0..10 {
            let place = schedule.world.machine(0, &log);
            means_to_open = place.copy_asked.iter().flat_map(|(_, requests)| requests).any(opens);
            if means_to_open {
                break;
            }
            schedule.deliver_copy(0, &log, 0);
        }
        assert_eq!(means_to_open, !ship_term);
        schedule.write_at(1);
        schedule.only(1);
        schedule.deliver_copy(0, &log, 0);
        schedule.world.crash(1, || 2);
        schedule.world.input(1, &log, Input::Claim);
        schedule.only(1);
        // One of them takes the number that is taken.
        for _ in 0..4 {
            schedule.write_at(1);
            schedule.only(1);
        }
        let verdict = schedule.end();
        assert_eq!(verdict.is_ok(), ship_term, "{verdict:?}");
    }
}

/// An append nobody waits for any more lands after the cutover: in a sealed segment it cannot. Either seal is enough, the one before
/// anything is handed over or the cutover's own; the origin's last segment must not stay open under both.
#[test]
fn rule_13_a_cutover_that_leaves_the_origins_segment_open_is_caught() {
    for (cutover_seals_segment, settle_before_handover) in [(true, false), (false, true), (false, false)] {
        let rules = Protections { cutover_seals_segment, settle_before_handover, ..Protections::ALL };
        let mut schedule = schedule(rules, StoreRules::ALL);
        schedule.ship_first();
        schedule.fill();
        schedule.write_message();
        schedule.until(|request| matches!(request, Request::Append(_)));
        schedule.deliver(0, &logs()[0], 2);
        // Its client gives up before the owner has settled it.
        schedule.world.now_us += 2_000_000;
        schedule.calm();
        schedule.close_for_cutover();
        schedule.calm();
        assert_eq!(schedule.serving(), Some("B"));
        schedule.land();
        let verdict = schedule.end();
        let sealed = cutover_seals_segment || settle_before_handover;
        assert_eq!(verdict.is_ok(), sealed, "{verdict:?}");
    }
}

#[test]
fn rule_15_a_release_without_a_new_term_is_caught() {
    for raises in [true, false] {
        let mut schedule = schedule(Protections { release_raises_term: raises, ..Protections::ALL }, StoreRules::ALL);
        schedule.ship_first();
        schedule.fill();
        schedule.close_for_cutover();
        schedule.until(|request| matches!(request, Request::CasHead(_)));
        schedule.deliver(0, &logs()[0], 2);
        let run_id = schedule.run_id();
        schedule.world.input(0, &logs()[0], Input::EndCopy { target: "B".into(), run_id });
        (0..20).for_each(|_| schedule.deliver_copy(0, &logs()[0], 0));
        schedule.land();
        assert_eq!(schedule.world.place(&logs()[0]).is_some(), raises, "the log is served by somebody: {raises}");
        if raises {
            schedule.end().unwrap();
        }
    }
}

#[test]
fn a_backfill_that_writes_what_it_read_long_ago_is_caught() {
    for backfill_rereads in [true, false] {
        let mut schedule = schedule(Protections::ALL, StoreRules { backfill_rereads, ..StoreRules::ALL });
        schedule.write_message();
        schedule.calm();
        schedule.world.now_us += 10_000_000;
        schedule.write_message();
        schedule.calm();
        schedule.ship_first();
        schedule.read_batch(0, "messages");
        let message_id = schedule.clients.operations[0].message_id;
        let channel_id = schedule.clients.channel_id;
        schedule.commit(Kind::MessageDeleted(MessageDeleted { guild_id: GUILD, channel_id, message_id }));
        schedule.world.now_us += 1_000_000;
        schedule.calm();
        schedule.world.now_us += 1_000_000;
        schedule.compact("B");
        schedule.fill_without_verifying();
        let mut tables = schedule.world.side("B").tables.clone();
        schedule.world.ghost.compare("B", &mut tables);
        let verdict = schedule.verdict();
        assert_eq!(verdict.is_ok(), backfill_rereads, "{verdict:?}");
    }
}

#[test]
fn a_verification_that_does_not_wait_until_things_settle_is_caught() {
    for verify_settles in [true, false] {
        let mut schedule = schedule(Protections::ALL, StoreRules { verify_settles, ..StoreRules::ALL });
        schedule.ship_first();
        schedule.write_message();
        schedule.until(|request| matches!(request, Request::Write(_)));
        (0..20).for_each(|_| {
            schedule.world.now_us += 1000;
            schedule.deliver_copy(0, &logs()[0], 0);
        });
        schedule.fill();
        schedule.calm();
        let mut tables = schedule.world.side("B").tables.clone();
        schedule.world.ghost.compare("B", &mut tables);
        let verdict = schedule.verdict();
        assert_eq!(verdict.is_ok(), verify_settles, "{verdict:?}");
    }
}

/// A worker has read a channel's messages; they are deleted by ranges, which are shipped; only then it writes what it has read.
fn backfill_around(delete: impl Fn(i64, Vec<i64>) -> Kind, store: StoreRules) -> Result<(), String> {
    let mut schedule = schedule(Protections::ALL, store);
    while schedule.clients.operations.iter().filter(|operation| operation.message_id != 0).count() < 4 {
        schedule.write_message();
        schedule.runs += 1;
        schedule.calm();
    }
    schedule.ship_first();
    schedule.read_batch(0, "messages");
    let mut ids: Vec<i64> = schedule.clients.operations.iter().map(|operation| operation.message_id).collect();
    ids.sort_unstable();
    ids.dedup();
    let before = schedule.world.ghost.committed.len();
    schedule.commit(delete(schedule.clients.channel_id, ids));
    assert_eq!(schedule.world.ghost.committed.len(), before + 1, "one entry, whatever it deletes");
    schedule.calm();
    schedule.fill_without_verifying();
    let mut tables = schedule.world.side("B").tables.clone();
    schedule.world.ghost.compare("B", &mut tables);
    schedule.verdict()
}

fn delete_by_run(channel_id: i64, message_ids: Vec<i64>) -> Kind {
    Kind::MessagesDeleted(MessagesDeleted { guild_id: GUILD, channel_id, message_ids, ..MessagesDeleted::default() })
}

fn delete_the_channel(channel_id: i64, _: Vec<i64>) -> Kind {
    Kind::ChannelDeleted(ChannelDeleted { guild_id: GUILD, channel_id })
}

#[test]
fn a_backfill_brings_nothing_back_that_a_range_deleted_while_it_was_on_its_way() {
    backfill_around(delete_by_run, StoreRules::ALL).unwrap();
    backfill_around(delete_the_channel, StoreRules::ALL).unwrap();
}

#[test]
fn a_backfill_that_does_not_keep_write_times_brings_back_what_a_range_deleted() {
    let careless = StoreRules { backfill_keeps_times: false, ..StoreRules::ALL };
    for delete in [delete_by_run, delete_the_channel] {
        let verdict = backfill_around(delete, careless).unwrap_err();
        assert!(verdict.contains("differs from its log's fold"), "{verdict}");
    }
}
