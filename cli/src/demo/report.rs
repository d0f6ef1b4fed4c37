//! What the demo says at the end: the ledger, the moves, what clients went through, and the first offence if there is one. Pure.

use serde::Serialize;

use super::crowd::Tempers;
use super::ledger::{Offence, Spread, Sums};
use super::moves::Moved;
use super::storage::Migrated;
use crate::exit::CommandError;
use crate::output::{Table, View};

/// The report. This is the shape of `demo -o json`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Of everything random.
    pub seed: u64,
    /// Websocket sessions.
    pub sessions: usize,
    /// How clients behaved.
    pub tempers: Tempers,
    /// Messages a second that were wanted.
    pub rate: u32,
    /// The guild.
    pub guild_id: String,
    /// The sums.
    pub ledger: Sums,
    /// The moves, in order.
    pub moves: Vec<Moved>,
    /// The storage migrations, in order: the first is rolled back, the second completed.
    pub migrations: Vec<Migrated>,
    /// Pods whose process was killed.
    pub killed: Vec<String>,
    /// Sessions resumed.
    pub resumes: u64,
    /// Sessions lost for good; their clients identified anew and read history.
    pub sessions_lost: u64,
    /// Histories read after that.
    pub histories_read: u64,
    /// Sends without an acknowledgement within their time.
    pub sends_unknown: u64,
    /// Sends refused.
    pub sends_refused: u64,
    /// Messages that were due and never begun: the wanted rate was not reached.
    pub sends_held_back: u64,
    /// Dispatches whose sequence did not follow the last one.
    pub sequence_gaps: u64,
    /// Milliseconds to an acknowledgement.
    pub send_ms: SendTimes,
    /// The first offence; absent when the ledger is clean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_offence: Option<Offence>,
    /// How the losses lie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub losses: Option<Spread>,
    /// The first trouble that the ledger cannot know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Milliseconds to an acknowledgement.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SendTimes {
    /// Half of them were quicker.
    pub p50: u32,
    /// 99 of 100 were quicker.
    pub p99: u32,
    /// The slowest.
    pub max: u32,
}

/// The promotion, and the move that is disturbed.
const MOVES: usize = 2;
/// How the storage migrations must end.
const MIGRATIONS: [&str; 2] = ["RolledBack", "Completed"];

impl Report {
    /// What is wrong; `None` when the demo showed what it promises.
    pub fn fault(&self) -> Option<String> {
        if let Some(offence) = &self.first_offence {
            return Some(format!(
                "the ledger has {} lost, {} duplicated, {} reordered; the first: {}",
                self.ledger.lost,
                self.ledger.duplicated,
                self.ledger.reordered,
                describe(offence)
            ));
        }
        if self.ledger.sent == 0 {
            return Some("nothing was acknowledged, so nothing is proven".to_owned());
        }
        if self.sequence_gaps > 0 {
            return Some(format!("{} dispatches did not follow their session's sequence", self.sequence_gaps));
        }
        if self.moves.len() < MOVES {
            return Some(format!("{} of {MOVES} moves ended", self.moves.len()));
        }
        let refused = self.moves.iter().find(|moved| moved.outcome == "Refused");
        if let Some(moved) = refused {
            return Some(format!("move {} was refused", moved.name));
        }
        if self.migrations.len() != MIGRATIONS.len() {
            return Some(format!("{} of {} storage migrations ended", self.migrations.len(), MIGRATIONS.len()));
        }
        self.migrations.iter().zip(MIGRATIONS).find_map(|(migrated, wanted)| migrated.fault(wanted))
    }

    /// The report in every format.
    ///
    /// # Errors
    /// [`CommandError::Failed`].
    pub fn view(&self) -> Result<View, CommandError> {
        let ledger = &self.ledger;
        let mut table = Table::fields([
            ("Sent", format!("{} acknowledged, {} stored", ledger.sent, ledger.stored)),
            ("Delivered", format!("{} to {} sessions", ledger.delivered, self.sessions)),
            ("Lost", ledger.lost.to_string()),
            ("Duplicated", ledger.duplicated.to_string()),
            ("Reordered", ledger.reordered.to_string()),
        ]);
        let mut add = |label: &str, value: String| table.rows.push(vec![format!("{label}:"), value]);
        for moved in &self.moves {
            let pause = moved.pause_ms.map(|pause| format!(", commands held {pause:.1} ms")).unwrap_or_default();
            add("Move", format!("{} → {} ({}): {}{pause}", moved.from, moved.to, moved.cause, moved.outcome));
        }
        for migrated in &self.migrations {
            let pause = migrated.pause_ms.map(|pause| format!(", commands held {pause:.1} ms")).unwrap_or_default();
            let receipt = if migrated.receipt.clean { "clean" } else { "NOT clean" };
            let (from, to, outcome) = (&migrated.from, &migrated.to, &migrated.outcome);
            let rows = migrated.receipt.rows;
            add("Storage", format!("{from} → {to}: {outcome}{pause}; receipt {receipt}, {rows} rows compared"));
        }
        add("Killed", if self.killed.is_empty() { "nothing".to_owned() } else { self.killed.join(", ") });
        add("Resumes", self.resumes.to_string());
        add(
            "Sessions lost",
            format!("{} (identified anew; {} histories read)", self.sessions_lost, self.histories_read),
        );
        add(
            "Send time",
            format!("p50 {} ms, p99 {} ms, max {} ms", self.send_ms.p50, self.send_ms.p99, self.send_ms.max),
        );
        add("Not acknowledged", format!("{} unknown, {} refused", self.sends_unknown, self.sends_refused));
        if self.sends_held_back > 0 {
            add(
                "Held back",
                format!("{} messages: this machine does not carry {} a second", self.sends_held_back, self.rate),
            );
        }
        add("Seed", self.seed.to_string());
        if let Some(losses) = &self.losses {
            add(
                "Losses",
                format!(
                    "{} messages acknowledged from {} to {} ms, {} clients",
                    losses.messages, losses.from_ms, losses.to_ms, losses.clients
                ),
            );
        }
        if let Some(trouble) = &self.trouble {
            add("Trouble", trouble.clone());
        }
        add("Verdict", self.fault().unwrap_or_else(|| "nothing lost, nothing twice, nothing out of order".to_owned()));
        View::of(self, table, vec![format!("demo/{}", self.seed)])
    }
}

/// An offence in one line.
pub fn describe(offence: &Offence) -> String {
    let message = &offence.message;
    let place = if offence.client.is_empty() {
        "the history".to_owned()
    } else {
        format!("{} in its session {}", offence.client, offence.session)
    };
    let after = offence.after.map(|after| format!(", after message {after}")).unwrap_or_default();
    let read = offence.read.map(|read| {
        format!("; it read the history at {} ms from message {} to {}", read.at_ms, read.from_id, read.to_id)
    });
    format!(
        "{:?}: message {} (number {}) of channel {} at {} ms, {place}{after}{}",
        offence.fault,
        message.message_id,
        message.number,
        message.channel_id,
        message.at_ms,
        read.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::ledger::{Fault, Seen};
    use crate::demo::storage::Receipt;
    use crate::output::Format;

    fn moved() -> Moved {
        Moved {
            name: "m".into(),
            from: "a".into(),
            to: "b".into(),
            cause: "Promotion".into(),
            outcome: "Completed".into(),
            pause_ms: Some(4.25),
        }
    }

    fn migrated(outcome: &str) -> Migrated {
        Migrated {
            name: "there".into(),
            from: "main".into(),
            to: "second".into(),
            unit: "b0001".into(),
            outcome: outcome.into(),
            receipt: Receipt { clean: true, rows: 9 },
            shadow_samples: 20,
            pause_ms: None,
        }
    }

    fn report() -> Report {
        Report {
            seed: 7,
            sessions: 50,
            tempers: Tempers { dropping: 5, slow: 2 },
            rate: 10,
            guild_id: "5".into(),
            ledger: Sums { sent: 10, stored: 10, delivered: 500, ..Sums::default() },
            moves: vec![moved(), moved()],
            migrations: vec![migrated("RolledBack"), migrated("Completed")],
            killed: vec!["b-gateway-0".into()],
            resumes: 3,
            sessions_lost: 2,
            histories_read: 2,
            sends_unknown: 0,
            sends_refused: 0,
            sends_held_back: 0,
            sequence_gaps: 0,
            send_ms: SendTimes { p50: 3, p99: 9, max: 20 },
            first_offence: None,
            losses: None,
            trouble: None,
        }
    }

    #[test]
    fn the_json_has_the_names_that_scripts_read() {
        let value = serde_json::to_value(report()).unwrap();
        for field in ["sent", "stored", "delivered", "lost", "duplicated", "reordered"] {
            assert!(value["ledger"][field].is_u64(), "{field}");
        }
        assert_eq!(value["moves"][0]["pauseMs"], 4.25);
        for field in ["from", "to", "outcome"] {
            assert!(value["moves"][0][field].is_string(), "{field}");
        }
        assert_eq!((&value["resumes"], &value["sessionsLost"], &value["seed"]), (&3.into(), &2.into(), &7.into()));
    }

    #[test]
    fn a_clean_run_has_no_fault_and_every_other_has_one() {
        assert_eq!(report().fault(), None);
        let message = Seen { number: 4, message_id: 40, channel_id: 100, at_ms: 9 };
        let offence =
            Offence { fault: Fault::Reordered, client: "u1".into(), session: 2, message, after: Some(44), read: None };
        let dirty =
            Report { first_offence: Some(offence), ledger: Sums { reordered: 1, ..report().ledger }, ..report() };
        assert_eq!(
            dirty.fault().unwrap(),
            "the ledger has 0 lost, 0 duplicated, 1 reordered; the first: Reordered: message 40 (number 4) of channel 100 \
             at 9 ms, u1 in its session 2, after message 44"
        );
        assert!(Report { ledger: Sums::default(), ..report() }.fault().is_some());
        assert!(Report { sequence_gaps: 1, ..report() }.fault().is_some());
        let mut refused = report();
        refused.moves[0].outcome = "Refused".into();
        assert!(refused.fault().is_some());
        assert!(
            Report { moves: vec![moved()], ..report() }.fault().is_some(),
            "an act that did not happen shows nothing"
        );
        for migrations in [vec![], vec![migrated("RolledBack")], vec![migrated("Completed"), migrated("RolledBack")]] {
            assert!(Report { migrations, ..report() }.fault().is_some());
        }
        assert!(report().view().unwrap().render(Format::Table).unwrap().contains("nothing lost, nothing twice"));
    }
}
