//! Earlier answers to reads, so that one can be given again. Bounded by count and bytes; what does not fit is forgotten, oldest first.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

/// Answers remembered per question.
const DEPTH: usize = 8;
/// Bytes of all answers remembered.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub kind: String,
    pub body: Bytes,
}

/// What was answered.
#[derive(Default)]
pub(super) struct Memory {
    answers: HashMap<String, VecDeque<(u64, Answer)>>,
    order: BTreeMap<u64, String>,
    bytes: usize,
    clock: u64,
}

impl Memory {
    /// Remembers an answer, unless it is the one given last.
    pub(super) fn keep(&mut self, question: &str, answer: Answer) {
        let known = self.answers.entry(question.to_owned()).or_default();
        if answer.body.len() > MAX_BYTES / 4 || known.back().is_some_and(|(_, last)| *last == answer) {
            return;
        }
        self.clock += 1;
        self.bytes += answer.body.len();
        known.push_back((self.clock, answer));
        self.order.insert(self.clock, question.to_owned());
        if known.len() > DEPTH
            && let Some((at, old)) = known.pop_front()
        {
            self.bytes -= old.body.len();
            self.order.remove(&at);
        }
        while self.bytes > MAX_BYTES && self.forget_oldest() {}
    }

    fn forget_oldest(&mut self) -> bool {
        let Some((_, question)) = self.order.pop_first() else { return false };
        if let Some(known) = self.answers.get_mut(&question) {
            if let Some((_, old)) = known.pop_front() {
                self.bytes -= old.body.len();
            }
            if known.is_empty() {
                self.answers.remove(&question);
            }
        }
        true
    }

    /// The oldest answer remembered to this question.
    pub(super) fn oldest(&self, question: &str) -> Option<Answer> {
        self.answers.get(question).and_then(|known| known.front()).map(|(_, answer)| answer.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_answer_kept_is_given_and_memory_stays_bounded() {
        let mut memory = Memory::default();
        let answer = |text: &str| Answer { kind: String::new(), body: Bytes::copy_from_slice(text.as_bytes()) };
        for number in 0..20 {
            memory.keep("q", answer(&number.to_string()));
            memory.keep("q", answer(&number.to_string()));
        }
        assert_eq!(memory.oldest("q"), Some(answer("12")));
        let large = "x".repeat(MAX_BYTES / 5);
        for number in 0..20 {
            memory.keep(&format!("large {number}"), answer(&large));
            assert!(memory.bytes <= MAX_BYTES && memory.order.len() <= 20);
        }
        assert!(
            memory.oldest("q").is_none() && memory.oldest("large 0").is_none() && memory.oldest("large 19").is_some()
        );
    }
}
