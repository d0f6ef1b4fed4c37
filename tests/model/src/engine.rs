//! Explores a model breadth first, whole states compared. It says whether an invariant is broken, with the shortest way there, and
//! whether every state can still come to a good end. It knows nothing of logs.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// What is explored.
pub trait Model {
    /// Everything that matters at one moment.
    type State: Clone + Eq + Hash;
    /// What leads from one state to the next; its text is a line of a trace.
    type Step: Clone + Display;

    /// Where every execution starts.
    fn initial(&self) -> Self::State;
    /// Everything that can happen next.
    fn steps(&self, state: &Self::State, next: &mut Vec<(Self::Step, Self::State)>);
    /// What is wrong with a state, if anything.
    fn violation(&self, state: &Self::State) -> Option<String>;
    /// A good end: from every state one must be within reach.
    fn is_done(&self, state: &Self::State) -> bool;
}

/// What an exploration found.
#[derive(Debug)]
pub enum Verdict<Step> {
    /// Every state was seen, none is wrong, each can come to a good end.
    Holds {
        /// States seen.
        states: usize,
        /// Steps between them.
        transitions: usize,
        /// Good ends among the states.
        ends: usize,
    },
    /// An invariant is broken.
    Violated {
        /// Which.
        what: String,
        /// The shortest way there.
        trace: Vec<Step>,
    },
    /// From some states no good end can be reached.
    Stuck {
        /// How many states.
        states: usize,
        /// The shortest way to one.
        trace: Vec<Step>,
    },
    /// More states than allowed; nothing wrong among those seen.
    TooMany {
        /// States seen.
        states: usize,
    },
}

impl<Step: Display> Verdict<Step> {
    /// Whether everything was seen and nothing is wrong.
    pub fn holds(&self) -> bool {
        matches!(self, Self::Holds { .. })
    }

    /// Whether something is wrong.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Violated { .. } | Self::Stuck { .. })
    }

    /// The way to what is wrong.
    pub fn trace(&self) -> &[Step] {
        match self {
            Self::Violated { trace, .. } | Self::Stuck { trace, .. } => trace,
            Self::Holds { .. } | Self::TooMany { .. } => &[],
        }
    }

    /// One line, without the trace.
    pub fn summary(&self) -> String {
        match self {
            Self::Holds { states, transitions, ends } => {
                format!("holds: {states} states, {transitions} transitions, {ends} good ends")
            }
            Self::Violated { what, trace } => format!("broken after {} steps: {what}", trace.len()),
            Self::Stuck { states, trace } => {
                format!("stuck after {} steps: {states} states cannot come to a good end", trace.len())
            }
            Self::TooMany { states } => format!("not finished: more than {states} states, nothing wrong among them"),
        }
    }

    /// The summary and the trace, a line each.
    pub fn report(&self) -> String {
        let lines = self.trace().iter().map(|step| format!("\n    {step}"));
        lines.fold(self.summary(), |text, line| text + &line)
    }
}

/// A multiply-rotate hash: states are small and compared whole, so that a collision costs time only.
#[derive(Default, Clone, Copy)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

/// States in the order they were found, each with the state it was found from.
struct Found<State> {
    states: Vec<State>,
    parents: Vec<u32>,
    by_hash: HashMap<u64, u32, BuildHasherDefault<Mixer>>,
}

impl<State: Eq + Hash> Found<State> {
    fn start(first: State) -> Self {
        let mut found = Self { states: Vec::new(), parents: Vec::new(), by_hash: HashMap::default() };
        found.insert(first, 0);
        found
    }

    /// The state's index; colliding hashes are told apart by trying the next.
    fn insert(&mut self, state: State, parent: u32) -> u32 {
        let mut hasher = Mixer(0x51);
        state.hash(&mut hasher);
        let mut key = hasher.finish();
        loop {
            match self.by_hash.get(&key) {
                Some(index) if self.states[*index as usize] == state => return *index,
                Some(_) => key = key.wrapping_add(1),
                None => break,
            }
        }
        let index = self.states.len() as u32;
        self.states.push(state);
        self.parents.push(parent);
        self.by_hash.insert(key, index);
        index
    }

    fn way_to(&self, index: u32) -> Vec<u32> {
        let mut way = vec![index];
        while let Some(last) = way.last().copied()
            && last != 0
        {
            way.push(self.parents[last as usize]);
        }
        way.reverse();
        way
    }
}

fn trace<M: Model>(model: &M, found: &Found<M::State>, index: u32) -> Vec<M::Step> {
    let way = found.way_to(index);
    let mut steps = Vec::new();
    for pair in way.windows(2) {
        let (from, to) = (&found.states[pair[0] as usize], &found.states[pair[1] as usize]);
        let mut next = Vec::new();
        model.steps(from, &mut next);
        steps.extend(next.into_iter().find(|(_, state)| state == to).map(|(step, _)| step));
    }
    steps
}

/// Explores every state within reach, or `most` of them.
pub fn explore<M: Model>(model: &M, most: usize) -> Verdict<M::Step> {
    let mut found = Found::start(model.initial());
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut next = Vec::new();
    let mut at = 0;
    while at < found.states.len() {
        let index = at as u32;
        let state = found.states[at].clone();
        if let Some(what) = model.violation(&state) {
            return Verdict::Violated { what, trace: trace(model, &found, index) };
        }
        model.steps(&state, &mut next);
        for (_, after) in next.drain(..) {
            let to = found.insert(after, index);
            if to != index {
                edges.push((to, index));
            }
        }
        at += 1;
        if found.states.len() > most {
            return Verdict::TooMany { states: found.states.len() };
        }
    }
    ends(model, &found, edges)
}

/// Searches backwards from the good ends.
fn ends<M: Model>(model: &M, found: &Found<M::State>, mut edges: Vec<(u32, u32)>) -> Verdict<M::Step> {
    edges.sort_unstable();
    let transitions = edges.len();
    let states = found.states.len();
    let mut first = vec![0; states + 1];
    for (to, _) in &edges {
        first[*to as usize + 1] += 1;
    }
    for index in 0..states {
        first[index + 1] += first[index];
    }
    let mut reaches = vec![false; states];
    let mut open: Vec<u32> = (0..states as u32).filter(|index| model.is_done(&found.states[*index as usize])).collect();
    let ends = open.len();
    open.iter().for_each(|index| reaches[*index as usize] = true);
    while let Some(to) = open.pop() {
        for (_, from) in &edges[first[to as usize]..first[to as usize + 1]] {
            if !reaches[*from as usize] {
                reaches[*from as usize] = true;
                open.push(*from);
            }
        }
    }
    match reaches.iter().position(|reaches| !reaches) {
        None => Verdict::Holds { states, transitions, ends },
        Some(index) => Verdict::Stuck {
            states: reaches.iter().filter(|reaches| !**reaches).count(),
            trace: trace(model, found, index as u32),
        },
    }
}

/// Follows a model at random: at each state `choose` picks one of so many steps. Ends where nothing can happen, or after `most` steps.
pub fn stroll<M: Model>(
    model: &M,
    most: usize,
    mut choose: impl FnMut(usize) -> usize,
) -> (Vec<M::Step>, Vec<M::State>) {
    let mut states = vec![model.initial()];
    let mut steps = Vec::new();
    let mut next = Vec::new();
    while steps.len() < most {
        let Some(state) = states.last() else { break };
        model.steps(state, &mut next);
        if next.is_empty() {
            break;
        }
        let (step, state) = next.swap_remove(choose(next.len()));
        next.clear();
        steps.push(step);
        states.push(state);
    }
    (steps, states)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter up to a limit, which may jump into a trap.
    struct Counter {
        wrong_at: u8,
        trap: bool,
    }

    impl Model for Counter {
        type State = u8;
        type Step = u8;

        fn initial(&self) -> u8 {
            0
        }

        fn steps(&self, state: &u8, next: &mut Vec<(u8, u8)>) {
            if *state < 10 {
                next.push((1, state + 1));
                next.push((2, state + 2));
            }
            if self.trap && *state == 4 {
                next.push((100, 200));
            }
        }

        fn violation(&self, state: &u8) -> Option<String> {
            (*state == self.wrong_at).then(|| "wrong".to_owned())
        }

        fn is_done(&self, state: &u8) -> bool {
            *state == 10 || *state == 11
        }
    }

    #[test]
    fn every_state_is_seen_once() {
        let verdict = explore(&Counter { wrong_at: 99, trap: false }, 100);
        assert!(matches!(verdict, Verdict::Holds { states: 12, ends: 2, .. }), "{}", verdict.summary());
    }

    #[test]
    fn the_shortest_way_to_a_violation_is_told() {
        let verdict = explore(&Counter { wrong_at: 7, trap: false }, 100);
        assert!(verdict.is_damage());
        assert_eq!(verdict.trace().len(), 4);
        assert_eq!(verdict.trace().iter().sum::<u8>(), 7);
    }

    #[test]
    fn a_state_without_a_good_end_is_told() {
        let verdict = explore(&Counter { wrong_at: 99, trap: true }, 100);
        assert!(
            matches!(&verdict, Verdict::Stuck { states: 1, trace } if trace == &[2, 2, 100]),
            "{}",
            verdict.report()
        );
    }

    #[test]
    fn too_many_states_are_no_success() {
        let verdict = explore(&Counter { wrong_at: 99, trap: false }, 5);
        assert!(matches!(verdict, Verdict::TooMany { .. }) && !verdict.holds() && !verdict.is_damage());
    }
}
