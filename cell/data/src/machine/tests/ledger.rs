//! The demo's ledger judges a simulation as it judges a demo: by what clients were told, what the tables hold, and what a session hears that
//! follows the log by its positions. With every rule it finds nothing; with the store's term check off it must find what that costs.

use std::collections::HashSet;

use cell_ledger::{Client, Ledger, Seen, SendNumber, Verdict};
use cell_proto::v1::change::Kind;
use cell_proto::v1::{Entry, Message, ReadRowsRequest};
use cell_store::Reply;
use prost::Message as _;

use super::clients::State;
use super::schedule::Schedule;
use super::world::HOME;
use super::{Faults, Plan, Protections, StoreRules};
use crate::domain::tables::{self, MESSAGES, mutations};

const FAULTS: Faults = Faults {
    crash: 10,
    unknown: 60,
    late: 15,
    claim: 40,
    switch: 0,
    split: 0,
    jump: 0,
    copy: 0,
    bulk: 0,
    skew_us: 300_000,
};

fn plan(append_checks_term: bool) -> Plan {
    let store = StoreRules { append_checks_term, ..StoreRules::ALL };
    Plan { owners: 3, steps: 900, faults: FAULTS, rules: Protections::ALL, store }
}

/// The message that an entry made, as a client knows it: by the number its sender gave it.
fn seen(message: &Message) -> Option<Seen> {
    let number: SendNumber = message.content.strip_prefix("message ")?.parse().ok()?;
    Some(Seen { number, message_id: message.id, channel_id: message.channel_id, at_ms: u64::from(number) })
}

fn created(entry: &Entry) -> Option<&Message> {
    match entry.change.as_ref()?.kind.as_ref()? {
        Kind::MessageCreated(created) => created.message.as_ref(),
        _ => None,
    }
}

impl Schedule {
    /// The whole run, whatever the ghost thinks of it.
    fn judged(mut self) -> Verdict {
        self.start();
        let mut session = Client::new("a session", [self.clients.channel_id], 0);
        session.identified();
        let (mut heard, mut position) = (0, 0);
        for _ in 0..self.world.plan.steps {
            self.step();
            self.carry_out();
            // A session follows by position: what has a number that it had is dropped, as after a link's reset.
            for (_, entry) in &self.world.ghost.committed[heard..] {
                if entry.number > position {
                    position = entry.number;
                    created(entry).and_then(seen).into_iter().for_each(|seen| session.live(seen));
                }
            }
            heard = self.world.ghost.committed.len();
        }
        let mut ledger = Ledger::default();
        let deletes = self.clients.operations.iter().filter(|operation| operation.deletes && operation.sent);
        let deleted: HashSet<i64> = deletes.map(|operation| operation.message_id).collect();
        for (index, operation) in self.clients.operations.iter().enumerate() {
            let makes = matches!(operation.command.change.kind, Some(Kind::MessageCreated(_)));
            if makes && operation.state == State::Acknowledged && !deleted.contains(&operation.message_id) {
                let number = index as SendNumber + 1;
                let (message_id, channel_id) = (operation.message_id, self.clients.channel_id);
                ledger.acknowledged(Seen { number, message_id, channel_id, at_ms: u64::from(number) });
            }
        }
        for message in self.history() {
            seen(&message).into_iter().for_each(|seen| ledger.stored(seen));
        }
        ledger.judge([&session])
    }

    /// Every message that the tables hold.
    fn history(&mut self) -> Vec<Message> {
        let made = self.world.ghost.committed.iter().filter(|(_, entry)| created(entry).is_some());
        let rows = made.flat_map(|(_, entry)| mutations(entry)).filter(|row| row.table == MESSAGES);
        let partitions: HashSet<Vec<u8>> = rows.map(|row| row.partition.to_vec()).collect();
        let mut found = Vec::new();
        for partition in partitions {
            let request =
                ReadRowsRequest { table: MESSAGES.into(), partition, limit: 1_000_000, ..ReadRowsRequest::default() };
            let Ok(Reply::Rows(reply)) = self.world.side(HOME).tables.handle(request.into(), 0) else { panic!("rows") };
            let bodies = reply.rows.iter().flat_map(|row| row.cells.iter().filter(|cell| cell.column == tables::BODY));
            found.extend(bodies.map(|cell| Message::decode(cell.value.as_slice()).unwrap()));
        }
        found
    }
}

#[test]
fn the_demos_ledger_finds_nothing_while_every_rule_holds() {
    let mut sums = cell_ledger::Sums::default();
    for seed in 0..40 {
        let verdict = Schedule::new(plan(true), seed).judged();
        assert!(verdict.is_clean(), "seed {seed}: {verdict:?}");
        sums.sent += verdict.sums.sent;
        sums.delivered += verdict.sums.delivered;
    }
    assert!(sums.sent > 150 && sums.delivered >= sums.sent, "hardly anything was sent: {sums:?}");
}

#[test]
fn the_demos_ledger_catches_a_store_that_takes_appends_of_a_lower_term() {
    let caught =
        (0..100).map(|seed| (seed, Schedule::new(plan(false), seed).judged())).find(|(_, found)| !found.is_clean());
    let (seed, verdict) = caught.expect("no seed shows it to the ledger");
    println!("seed {seed}: {:?}, first {:?}", verdict.sums, verdict.first);
    assert!(verdict.first.is_some(), "it names the first offence");
}
