//! What goes wrong in one run, and when: steps in words, made from a seed, and taken away one by one while the run still fails. Pure.

use std::fmt;
use std::str::FromStr;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// What goes wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    /// The operator dies, and another life of it begins.
    Crash,
    /// The server refuses with this code and does nothing.
    Refuse(u16),
    /// The server does it and answers with this code.
    Lose(u16),
    /// A child (`plural/name`) is deleted by somebody.
    Delete(String),
    /// Watch events of a kind wait so many milliseconds.
    Hold(String, u64),
    /// The same, and of what waited only the last of each object is told.
    Collapse(String, u64),
    /// Every watch is cut.
    Cut,
    /// Every watch ends with 410: the caches are listed anew.
    Gone,
    /// So many reads of a kind are answered as the first one ever was.
    Stale(String, u32),
    /// Another operator takes the Lease while this one lives.
    Steal,
    /// The same, and this very request reaches the server only after the other has written.
    Late,
    /// No request about the Lease is answered any more, until another operator leads.
    Freeze,
}

/// Before the server hears of a request, or after it did what was asked and before the operator hears of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    Before,
    After,
}

/// One thing that goes wrong at the `nth` request that has this effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    pub act: Act,
    pub when: When,
    pub effect: String,
    pub nth: u32,
}

/// All that goes wrong in a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan(pub Vec<Step>);

impl fmt::Display for Act {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crash => out.write_str("crash"),
            Self::Refuse(code) => write!(out, "refuse={code}"),
            Self::Lose(code) => write!(out, "lose={code}"),
            Self::Delete(child) => write!(out, "delete={child}"),
            Self::Hold(kind, ms) => write!(out, "hold={kind}:{ms}"),
            Self::Collapse(kind, ms) => write!(out, "collapse={kind}:{ms}"),
            Self::Cut => out.write_str("cut"),
            Self::Gone => out.write_str("gone"),
            Self::Stale(kind, reads) => write!(out, "stale={kind}:{reads}"),
            Self::Steal => out.write_str("steal"),
            Self::Late => out.write_str("late"),
            Self::Freeze => out.write_str("freeze"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = if self.when == When::Before { "before" } else { "after" };
        write!(out, "{}@{when} {}#{}", self.act, self.effect, self.nth)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.0.iter().map(Step::to_string).collect();
        out.write_str(if steps.is_empty() { "nothing" } else { "" })?;
        out.write_str(&steps.join("; "))
    }
}

fn act(text: &str) -> Option<Act> {
    let (word, argument) = text.split_once('=').unwrap_or((text, ""));
    let kind = || argument.split_once(':').map(|(kind, _)| kind.to_owned());
    let number = || argument.rsplit(':').next()?.parse::<u64>().ok();
    Some(match word {
        "crash" => Act::Crash,
        "refuse" => Act::Refuse(argument.parse().ok()?),
        "lose" => Act::Lose(argument.parse().ok()?),
        "delete" => Act::Delete(argument.to_owned()),
        "hold" => Act::Hold(kind()?, number()?),
        "collapse" => Act::Collapse(kind()?, number()?),
        "cut" => Act::Cut,
        "gone" => Act::Gone,
        "stale" => Act::Stale(kind()?, u32::try_from(number()?).ok()?),
        "steal" => Act::Steal,
        "late" => Act::Late,
        "freeze" => Act::Freeze,
        _ => return None,
    })
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (what, rest) = text.split_once('@')?;
            let (when, rest) = rest.split_once(' ')?;
            let (effect, nth) = rest.rsplit_once('#')?;
            let when = if when == "before" { When::Before } else { When::After };
            Some(Self { act: act(what)?, when, effect: effect.to_owned(), nth: nth.parse().ok()? })
        };
        read().ok_or_else(|| format!("{text:?} is no step: write it as the harness prints it"))
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let steps = text.split(';').map(str::trim).filter(|step| !step.is_empty() && *step != "nothing");
        steps.map(Step::from_str).collect::<Result<Vec<_>, _>>().map(Self)
    }
}

impl Plan {
    /// Whether what is said may for a moment be behind what is: a child went, or reads are old.
    pub fn blinds(&self) -> bool {
        self.0.iter().any(|step| matches!(step.act, Act::Delete(_) | Act::Stale(..)))
    }

    /// Whether objects are made or deleted once more than without it.
    pub fn makes_work(&self) -> bool {
        self.0.iter().any(|step| matches!(step.act, Act::Delete(_) | Act::Steal | Act::Late | Act::Freeze))
    }

    /// One step less, in every way.
    pub fn smaller(&self) -> Vec<Self> {
        let without = |index: usize| {
            let mut steps = self.0.clone();
            steps.remove(index);
            Self(steps)
        };
        (0..self.0.len()).map(without).collect()
    }
}

/// What a seed chooses from: the effects of an undisturbed run in order, and the children that stand after it.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    pub effects: Vec<(String, u32)>,
    pub children: Vec<String>,
    pub kinds: Vec<String>,
    /// Kinds that are read directly.
    pub read: Vec<String>,
    /// Leadership may be lost: such runs take long.
    pub leaders: bool,
}

/// One to three steps. The same seed and choice give the same plan.
pub fn generate(seed: u64, choice: &Choice) -> Plan {
    let mut random = StdRng::seed_from_u64(seed);
    let count = *[1, 1, 2, 2, 3].choose(&mut random).unwrap();
    let mut steps = Vec::new();
    for _ in 0..count {
        let Some((effect, nth)) = choice.effects.choose(&mut random).cloned() else { break };
        let when = if random.random_bool(0.5) { When::Before } else { When::After };
        let one = |list: &[String], random: &mut StdRng| list.choose(random).cloned();
        let act = match random.random_range(0..if choice.leaders { 13 } else { 11 }) {
            0..3 => Act::Crash,
            3 => Act::Refuse(*[409, 429, 500, 503].choose(&mut random).unwrap()),
            4 => Act::Lose(*[500, 503, 504].choose(&mut random).unwrap()),
            5 => match one(&choice.children, &mut random) {
                Some(child) => Act::Delete(child),
                None => Act::Crash,
            },
            6 => match one(&choice.kinds, &mut random) {
                Some(kind) => Act::Hold(kind, random.random_range(200..1_500)),
                None => Act::Crash,
            },
            7 => match one(&choice.kinds, &mut random) {
                Some(kind) => Act::Collapse(kind, random.random_range(200..1_500)),
                None => Act::Crash,
            },
            8 => Act::Cut,
            9 => Act::Gone,
            10 => match one(&choice.read, &mut random) {
                Some(kind) => Act::Stale(kind, random.random_range(1..4)),
                None => Act::Crash,
            },
            11 => Act::Steal,
            _ => Act::Late,
        };
        let when = if matches!(act, Act::Refuse(_) | Act::Late) { When::Before } else { when };
        let when = if matches!(act, Act::Lose(_)) { When::After } else { when };
        steps.push(Step { act, when, effect, nth });
    }
    Plan(steps)
}

#[test]
fn a_plan_reads_back_as_it_was_printed() {
    let effects = vec![("apply statefulsets/a".to_owned(), 2), ("etcd put ops/*".to_owned(), 1)];
    let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let choice = Choice {
        effects,
        children: list(&["secrets/x"]),
        kinds: list(&["cells"]),
        read: list(&["pods"]),
        leaders: true,
    };
    for seed in 0..500 {
        let plan = generate(seed, &choice);
        assert_eq!(plan.to_string().parse::<Plan>().unwrap(), plan, "seed {seed}");
        assert_eq!(generate(seed, &choice), plan);
        assert!(plan.smaller().iter().all(|less| less.0.len() + 1 == plan.0.len()));
    }
    assert!("explode@before apply x#1".parse::<Plan>().is_err());
}
