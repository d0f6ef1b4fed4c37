//! What the demo's messages say: their number, then filler of seeded length. Pure.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::ledger::SendNumber;

const MARK: &str = "demo #";
const WORDS: [&str; 12] =
    ["cells", "move", "while", "people", "talk", "nothing", "is", "lost", "and", "order", "stays", "kept"];

/// The text of message `number`.
pub fn text(seed: u64, number: SendNumber) -> String {
    let mut random = StdRng::seed_from_u64(seed ^ (u64::from(number) << 20));
    let mut text = format!("{MARK}{number}");
    for _ in 0..random.random_range(2..30) {
        text.push(' ');
        text.push_str(WORDS[random.random_range(0..WORDS.len())]);
    }
    text
}

/// The nonce of message `number`: the same in every retry, and short enough for the protocol.
pub fn nonce(seed: u64, number: SendNumber) -> String {
    format!("{:08x}-{number}", seed as u32)
}

/// The number in a text; `None` when it is no message of the demo.
pub fn number(text: &str) -> Option<SendNumber> {
    text.strip_prefix(MARK)?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_carries_its_number_and_follows_its_seed() {
        for sent in [0, 1, 77, SendNumber::MAX] {
            assert_eq!(number(&text(7, sent)), Some(sent));
            assert_eq!(text(7, sent), text(7, sent));
            assert!(text(7, sent).len() <= 2000 && nonce(u64::MAX, sent).len() <= 25);
        }
        assert_ne!(text(7, 1)[8..], text(8, 1)[8..]);
        assert_eq!(number("hello"), None);
        assert_eq!(number("demo #x y"), None);
    }
}
