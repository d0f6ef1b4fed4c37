//! The checker is fed each fault and must catch it, and must find nothing in what is right.

use proptest::prelude::*;

use super::*;

const CHANNELS: [i64; 2] = [100, 200];

fn message(number: SendNumber) -> Seen {
    let channel_id = CHANNELS[number as usize % CHANNELS.len()];
    Seen { number, message_id: 1000 + i64::from(number), channel_id, at_ms: u64::from(number) }
}

/// A run of `count` messages in which everything went right for one client.
struct Run {
    ledger: Ledger,
    client: Client,
}

impl Run {
    fn clean(count: SendNumber) -> Self {
        Self::without_delivery(count, |_| false)
    }

    fn without_delivery(count: SendNumber, missing: impl Fn(SendNumber) -> bool) -> Self {
        let mut run = Self { ledger: Ledger::default(), client: Client::new("u1", CHANNELS, 0) };
        run.client.identified();
        for number in 0..count {
            run.ledger.acknowledged(message(number));
            run.ledger.stored(message(number));
            if !missing(number) {
                run.client.live(message(number));
            }
        }
        run
    }

    fn verdict(&self) -> Verdict {
        self.ledger.judge([&self.client])
    }

    fn fault(&self) -> (Fault, SendNumber) {
        let first = self.verdict().first.unwrap();
        (first.fault, first.message.number)
    }
}

#[test]
fn a_clean_run_is_clean() {
    let verdict = Run::clean(10).verdict();
    assert!(verdict.is_clean());
    assert_eq!(verdict.sums, Sums { sent: 10, stored: 10, delivered: 10, ..Sums::default() });
}

#[test]
fn a_message_that_never_arrives_is_lost() {
    let run = Run::without_delivery(10, |number| number == 4);
    assert_eq!(run.fault(), (Fault::Lost, 4));
    assert_eq!(run.verdict().sums.lost, 1);
    assert!(!run.verdict().is_clean());
    assert_eq!(run.ledger.missing(&run.client), 1);
}

#[test]
fn a_loss_says_what_the_client_had_read_and_how_the_losses_lie() {
    let mut run = Run::without_delivery(10, |number| number >= 6);
    run.client.identified();
    let mark = ReadMark { from_id: 1005, to_id: 1009, at_ms: 30 };
    run.client.has_read(CHANNELS[0], mark);
    [6, 7, 9].into_iter().for_each(|number| run.client.history(message(number)));
    let verdict = run.verdict();
    assert_eq!(verdict.first.unwrap().read, Some(mark));
    assert_eq!(verdict.losses, Some(Spread { clients: 1, messages: 1, from_ms: 8, to_ms: 8 }));
    assert_eq!(Run::clean(3).verdict().losses, None);
}

#[test]
fn a_message_read_in_history_after_identifying_anew_is_not_lost() {
    let mut run = Run::without_delivery(10, |number| number >= 6);
    run.client.identified();
    (6..10).for_each(|number| run.client.history(message(number)));
    assert!(run.verdict().is_clean());
}

#[test]
fn history_does_not_excuse_a_session_that_was_never_lost() {
    let mut run = Run::without_delivery(10, |number| number == 4);
    run.client.history(message(4));
    assert_eq!(run.fault(), (Fault::Lost, 4));
}

#[test]
fn an_acknowledged_message_that_is_not_stored_is_lost() {
    let mut run = Run::clean(3);
    run.ledger.acknowledged(message(3));
    run.client.live(message(3));
    assert_eq!(run.fault(), (Fault::NotStored, 3));
    assert_eq!(run.verdict().sums, Sums { sent: 4, stored: 3, delivered: 4, lost: 1, ..Sums::default() });
}

#[test]
fn a_message_stored_under_another_id_than_acknowledged_is_lost() {
    let mut run = Run::clean(3);
    run.ledger.acknowledged(message(3));
    run.ledger.stored(Seen { message_id: 7777, ..message(3) });
    run.client.live(message(3));
    assert_eq!(run.fault(), (Fault::NotStored, 3));
}

#[test]
fn the_same_message_twice_in_history_is_duplicated() {
    let mut run = Run::clean(5);
    run.ledger.stored(message(2));
    assert_eq!(run.fault(), (Fault::StoredTwice, 2));
    assert_eq!(run.verdict().sums.duplicated, 1);
}

#[test]
fn one_send_stored_under_two_ids_is_duplicated() {
    let mut run = Run::clean(5);
    run.ledger.stored(Seen { message_id: 5000, ..message(2) });
    assert_eq!(run.fault(), (Fault::StoredTwice, 2));
}

#[test]
fn one_send_acknowledged_with_two_ids_is_duplicated() {
    let mut run = Run::clean(5);
    run.ledger.acknowledged(message(2));
    assert!(run.verdict().is_clean(), "the same answer again is what a retry should get");
    run.ledger.acknowledged(Seen { message_id: 5000, ..message(2) });
    assert_eq!(run.fault(), (Fault::StoredTwice, 2));
}

#[test]
fn the_same_message_twice_in_one_session_is_duplicated() {
    let mut run = Run::clean(5);
    run.client.live(message(3));
    assert_eq!(run.fault(), (Fault::DeliveredTwice, 3));
    assert_eq!(run.verdict().sums, Sums { sent: 5, stored: 5, delivered: 5, duplicated: 1, ..Sums::default() });
}

#[test]
fn the_same_message_under_another_id_in_one_session_is_duplicated() {
    let mut run = Run::clean(5);
    run.client.live(Seen { message_id: 9000, ..message(3) });
    assert_eq!(run.fault(), (Fault::DeliveredTwice, 3));
}

#[test]
fn the_same_message_in_two_sessions_is_no_duplicate() {
    let mut run = Run::clean(5);
    run.client.identified();
    run.client.live(message(3));
    run.client.history(message(4));
    assert!(run.verdict().is_clean());
}

#[test]
fn a_message_out_of_channel_order_is_reordered() {
    let mut run = Run::without_delivery(6, |number| number >= 2);
    for number in [4, 2, 3, 5] {
        run.client.live(message(number));
    }
    assert_eq!(run.fault(), (Fault::Reordered, 2));
    assert_eq!(run.verdict().first.unwrap().after, Some(1004));
    assert_eq!(run.verdict().sums.reordered, 1, "only channel order counts: 3 and 5 are in order");
    assert_eq!(run.verdict().sums.lost, 0);
}

#[test]
fn order_starts_anew_with_a_session() {
    let mut run = Run::without_delivery(6, |number| number < 4);
    run.client.identified();
    (0..4).for_each(|number| run.client.live(message(number)));
    assert!(run.verdict().is_clean());
}

#[test]
fn a_client_is_entitled_to_nothing_before_it_came_nor_in_other_channels() {
    let run = Run::clean(10);
    let mut late = Client::new("late", CHANNELS, 6);
    late.identified();
    (6..10).for_each(|number| late.live(message(number)));
    let mut narrow = Client::new("narrow", [CHANNELS[0]], 0);
    narrow.identified();
    (0..10).filter(|number| number % 2 == 0).for_each(|number| narrow.live(message(number)));
    let verdict = run.ledger.judge([&run.client, &late, &narrow]);
    assert!(verdict.is_clean(), "{verdict:?}");
    assert_eq!(verdict.sums.delivered, 10 + 4 + 5);
}

#[test]
fn a_message_without_acknowledgement_is_nobodys_loss() {
    let mut run = Run::clean(4);
    run.ledger.stored(message(9));
    let verdict = run.verdict();
    assert!(verdict.is_clean());
    assert_eq!(verdict.sums.stored, 4);
}

#[test]
fn the_first_offence_in_time_is_shown() {
    let mut run = Run::without_delivery(20, |number| number == 7 || number == 15);
    run.client.live(Seen { at_ms: 3, ..message(11) });
    assert_eq!(run.fault(), (Fault::DeliveredTwice, 11));
}

#[test]
fn a_client_reads_on_from_the_last_message_it_saw_in_each_channel() {
    let mut run = Run::clean(5);
    assert_eq!((run.client.last_seen(100), run.client.last_seen(200)), (Some(1004), Some(1003)));
    run.client.identified();
    assert_eq!(run.client.last_seen(100), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_single_fault_in_any_run_is_caught(count in 4_u32..200, at in 0_u32..200, kind in 0_usize..5) {
        let at = at % count;
        let mut run = Run::without_delivery(count, |number| kind == 0 && number == at);
        match kind {
            0 => {}
            1 => run.client.live(message(at)),
            2 => run.ledger.stored(message(at)),
            3 => run.ledger.acknowledged(message(count)),
            _ => {
                // One message arrives behind its successor in the channel.
                let late = at.min(count - 3);
                run.client.identified();
                (0..count).filter(|number| *number != late).for_each(|number| {
                    run.client.live(message(number));
                    if number == late + 2 {
                        run.client.live(message(late));
                    }
                });
            }
        }
        prop_assert!(!run.verdict().is_clean());
    }

    #[test]
    fn any_split_of_a_run_into_live_and_history_is_clean(count in 1_u32..200, cut in 0_u32..200, overlap in 0_u32..20) {
        let cut = cut % count;
        let mut run = Run::without_delivery(count, |number| number >= cut);
        run.client.identified();
        (cut.saturating_sub(overlap)..count).for_each(|number| run.client.history(message(number)));
        (cut..count).skip(overlap as usize).for_each(|number| run.client.live(message(number)));
        prop_assert!(run.verdict().is_clean());
    }
}
