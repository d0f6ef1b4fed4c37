//! Which fault strikes which request or event. Pure: the same seed, rules and questions give the same answers, however the questions of
//! different clients interleave, because each kind of question is counted by itself.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::rule::{Fault, Rule, RuleReport};

/// Questions counted by themselves; beyond that they share one count, and it is told.
const MAX_COUNTED: usize = 65_536;
/// Rules at once.
pub const MAX_RULES: usize = 256;

/// What is asked of the server, or told by it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Asked {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// API group.
    pub group: String,
    /// Plural, with `/status` and the like.
    pub resource: String,
    /// Namespace, empty for all.
    pub namespace: String,
    /// Name, empty for collections.
    pub name: String,
    /// The client's user agent.
    pub agent: String,
}

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Pass,
    /// One of the faults of requests that end it or change its answer.
    Strike(Fault),
}

struct Kept {
    id: u64,
    rule: Rule,
    matched: u64,
    struck: u64,
}

/// The rules and what they have done.
pub struct Plan {
    seed: u64,
    next_id: u64,
    rules: Vec<Kept>,
    counts: HashMap<(u64, u64), u64>,
    /// Questions that had to share a count.
    pub uncounted: u64,
}

impl Plan {
    /// No rules yet.
    pub fn new(seed: u64) -> Self {
        Self { seed, next_id: 1, rules: Vec::new(), counts: HashMap::new(), uncounted: 0 }
    }

    /// Adds a rule; its number, or none when there are too many.
    pub fn add(&mut self, rule: Rule) -> Option<u64> {
        if self.rules.len() >= MAX_RULES {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.rules.push(Kept { id, rule, matched: 0, struck: 0 });
        Some(id)
    }

    /// Removes every rule, or the one of a number; how many went.
    pub fn clear(&mut self, id: Option<u64>) -> usize {
        let before = self.rules.len();
        self.rules.retain(|kept| id.is_some_and(|id| kept.id != id));
        let rules = &self.rules;
        self.counts.retain(|(id, _), _| rules.iter().any(|kept| kept.id == *id));
        before - self.rules.len()
    }

    /// The rules in order.
    pub fn report(&self) -> Vec<RuleReport> {
        let shown = |kept: &Kept| RuleReport {
            id: kept.id,
            rule: kept.rule.to_string(),
            matched: kept.matched,
            struck: kept.struck,
        };
        self.rules.iter().map(shown).collect()
    }

    /// Whether a rule freezes this now.
    pub fn frozen(&self, asked: &Asked) -> bool {
        self.rules.iter().any(|kept| kept.rule.fault == Fault::Freeze && fits(&kept.rule, asked))
    }

    /// What happens to a request: how long it waits first, in milliseconds, and then. Of several faults the first rule's strikes.
    pub fn request(&mut self, asked: &Asked) -> (u64, Fate) {
        let (mut wait, mut fate) = (0_u64, Fate::Pass);
        for index in 0..self.rules.len() {
            let Some(fault) = self.rules.get(index).map(|kept| kept.rule.fault) else { break };
            let done = fate != Fate::Pass && !matches!(fault, Fault::Delay(_));
            if fault.is_of_events() || fault == Fault::Freeze || done || !self.strikes(index, asked) {
                continue;
            }
            match fault {
                Fault::Delay(ms) => wait = wait.saturating_add(ms),
                other => fate = Fate::Strike(other),
            }
        }
        (wait, fate)
    }

    /// What happens to a watch event; `asked` names its object.
    pub fn event(&mut self, asked: &Asked) -> Option<Fault> {
        let mut found = None;
        for index in 0..self.rules.len() {
            let of_events = self.rules.get(index).is_some_and(|kept| kept.rule.fault.is_of_events());
            if of_events && found.is_none() && self.strikes(index, asked) {
                found = self.rules.get(index).map(|kept| kept.rule.fault);
            }
        }
        found
    }

    /// Whether one rule strikes this question; counts it.
    fn strikes(&mut self, index: usize, asked: &Asked) -> bool {
        let (seed, full) = (self.seed, self.counts.len() >= MAX_COUNTED);
        let Some(kept) = self.rules.get_mut(index) else { return false };
        if !fits(&kept.rule, asked) || kept.rule.limit.is_some_and(|limit| kept.struck >= limit) {
            return false;
        }
        kept.matched += 1;
        if kept.matched <= kept.rule.after {
            return false;
        }
        let question = question(asked);
        let mut key = (kept.id, question);
        if full && !self.counts.contains_key(&key) {
            self.uncounted += 1;
            key.1 = 0;
        }
        let count = self.counts.entry(key).or_insert(0);
        *count += 1;
        let mut words = [0_u8; 24];
        words[..8].copy_from_slice(&kept.id.to_le_bytes());
        words[8..16].copy_from_slice(&question.to_le_bytes());
        words[16..].copy_from_slice(&count.to_le_bytes());
        let drawn = xxh3_64_with_seed(&words, seed) >> 11;
        // 53 bits fit a fraction exactly.
        let strikes = (drawn as f64) / ((1_u64 << 53) as f64) < kept.rule.share;
        kept.struck += u64::from(strikes);
        strikes
    }
}

/// The same question has the same number in every run.
fn question(asked: &Asked) -> u64 {
    let parts = [&asked.verb, &asked.group, &asked.resource, &asked.namespace, &asked.name, &asked.agent];
    xxh3_64_with_seed(parts.map(String::as_str).join("\n").as_bytes(), 0)
}

fn fits(rule: &Rule, asked: &Asked) -> bool {
    let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
    is(&rule.verb, &asked.verb)
        && is(&rule.group, &asked.group)
        && is(&rule.resource, &asked.resource)
        && is(&rule.namespace, &asked.namespace)
        && is(&rule.name, &asked.name)
        && rule.agent.as_deref().is_none_or(|agent| asked.agent.starts_with(agent))
}
