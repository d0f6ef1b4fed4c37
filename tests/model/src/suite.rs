//! Every part of the model under one roof: scenarios by name, and for each rule what is left out of which scenario.

use crate::engine::{Model, Verdict, explore};
use crate::rules::{Rule, Rules};
use crate::{log, rows, split, window};

/// What an exploration found, its steps as text.
pub type Finding = Verdict<String>;

/// One scenario of any part of the model.
pub struct Scenario {
    /// Its name.
    pub name: String,
    run: Box<dyn Fn(Rules, usize) -> Finding + Send + Sync>,
}

impl Scenario {
    fn new<M: Model + Send + Sync + 'static>(
        name: impl Into<String>,
        with: impl Fn(Rules) -> M + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), run: Box::new(move |rules, most| as_text(explore(&with(rules), most))) }
    }

    /// Explores it under some rules, up to so many states.
    pub fn explore(&self, rules: Rules, most: usize) -> Finding {
        (self.run)(rules, most)
    }
}

fn as_text<Step: std::fmt::Display>(verdict: Verdict<Step>) -> Finding {
    let text = |trace: Vec<Step>| trace.iter().map(Step::to_string).collect();
    match verdict {
        Verdict::Holds { states, transitions, ends } => Verdict::Holds { states, transitions, ends },
        Verdict::Violated { what, trace } => Verdict::Violated { what, trace: text(trace) },
        Verdict::Stuck { states, trace } => Verdict::Stuck { states, trace: text(trace) },
        Verdict::TooMany { states } => Verdict::TooMany { states },
    }
}

fn of_log((name, model): (&'static str, log::LogModel)) -> Scenario {
    Scenario::new(name, move |rules| log::LogModel { rules, ..model })
}

fn of_rows((name, model): (&'static str, rows::RowsModel)) -> Scenario {
    Scenario::new(name, move |rules| rows::RowsModel { rules, ..model })
}

fn of_split((name, model): (&'static str, split::SplitModel)) -> Scenario {
    Scenario::new(name, move |rules| split::SplitModel { rules, ..model })
}

fn of_window((name, model): (&'static str, window::WindowModel)) -> Scenario {
    Scenario::new(name, move |rules| window::WindowModel { rules, ..model })
}

/// What every test run explores.
pub fn small() -> Vec<Scenario> {
    let mut all: Vec<Scenario> = log::scenarios::small().into_iter().map(of_log).collect();
    all.extend(rows::scenarios::small().into_iter().map(of_rows));
    all.extend(split::scenarios::small().into_iter().map(of_split));
    all.extend(window::scenarios().into_iter().map(of_window));
    all
}

/// What is explored by hand: minutes, and gigabytes.
pub fn large() -> Vec<Scenario> {
    let mut all: Vec<Scenario> = log::scenarios::large().into_iter().map(of_log).collect();
    all.extend(rows::scenarios::large().into_iter().map(of_rows));
    all.extend(split::scenarios::large().into_iter().map(of_split));
    all
}

/// Rules left out, and a scenario in which that does damage.
pub struct Ablation {
    /// What is left out: one rule, or two that cover for each other.
    pub rules: Vec<Rule>,
    scenario: Scenario,
}

impl Ablation {
    /// Explores without the rules.
    pub fn explore(&self, most: usize) -> Finding {
        self.scenario.explore(self.rules.iter().fold(Rules::ALL, |rules, rule| rules.without(*rule)), most)
    }

    /// Explores with every rule: what the damage must be compared with.
    pub fn control(&self, most: usize) -> Finding {
        self.scenario.explore(Rules::ALL, most)
    }

    /// What it is explored in: equal ones need only one control.
    pub fn setting(&self) -> &str {
        &self.scenario.name
    }
}

/// For every rule what shows that it is needed.
pub fn ablations() -> Vec<Ablation> {
    let mut all = Vec::new();
    for (rules, model) in log::scenarios::ablations() {
        let scenario = Scenario::new(format!("{model:?}"), move |rules| log::LogModel { rules, ..model });
        all.push(Ablation { rules: rules.to_vec(), scenario });
    }
    for (rules, model) in rows::scenarios::ablations() {
        let scenario = Scenario::new(format!("{model:?}"), move |rules| rows::RowsModel { rules, ..model });
        all.push(Ablation { rules: rules.to_vec(), scenario });
    }
    for (rules, model) in split::scenarios::ablations() {
        let scenario = Scenario::new(format!("{model:?}"), move |rules| split::SplitModel { rules, ..model });
        all.push(Ablation { rules: rules.to_vec(), scenario });
    }
    for (rules, model) in window::ablations() {
        let scenario = Scenario::new(format!("{model:?}"), move |rules| window::WindowModel { rules, ..model });
        all.push(Ablation { rules: rules.to_vec(), scenario });
    }
    all
}
