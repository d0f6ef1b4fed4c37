//! Explores the model by hand: larger bounds, single scenarios, rules left out. `cargo test -p cell-model` explores the small ones.

use std::time::Instant;

use anyhow::{Context, bail};
use cell_model::rules::{Rule, Rules};
use cell_model::suite::{self, Finding};
use clap::{Parser, ValueEnum};

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bounds {
    Small,
    Large,
}

/// Explores the log protocol state by state.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Only scenarios whose name begins so
    scenario: Option<String>,
    /// How large the scenarios are
    #[arg(long, value_enum, default_value = "small")]
    bounds: Bounds,
    /// A rule to leave out; may be given several times
    #[arg(long, value_name = "RULE")]
    without: Vec<String>,
    /// Show for every rule the shortest execution that needs it
    #[arg(long)]
    ablations: bool,
    /// List the rules and their names
    #[arg(long)]
    rules: bool,
    /// States to explore at most, per scenario
    #[arg(long, default_value_t = 60_000_000)]
    most: usize,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if arguments.rules {
        Rule::ALL.iter().for_each(|rule| println!("{rule}"));
        return Ok(());
    }
    if arguments.ablations {
        return show_ablations(arguments.most);
    }
    let mut rules = Rules::ALL;
    for name in &arguments.without {
        rules = rules.without(Rule::named(name).with_context(|| format!("no rule {name}; --rules lists them"))?);
    }
    let scenarios = match arguments.bounds {
        Bounds::Small => suite::small(),
        Bounds::Large => suite::large(),
    };
    let wanted = arguments.scenario.unwrap_or_default();
    let mut damage = 0;
    for scenario in scenarios.iter().filter(|scenario| scenario.name.starts_with(&wanted)) {
        let begun = Instant::now();
        let finding = scenario.explore(rules, arguments.most);
        println!("{:28} {:6.1} s  {}", scenario.name, begun.elapsed().as_secs_f32(), finding.report());
        damage += usize::from(!finding.holds());
    }
    if damage > 0 {
        bail!("{damage} scenarios do not hold, or are not finished");
    }
    Ok(())
}

fn show_ablations(most: usize) -> anyhow::Result<()> {
    let mut missed = 0;
    for ablation in suite::ablations() {
        let names: Vec<String> = ablation.rules.iter().map(Rule::to_string).collect();
        let finding: Finding = ablation.explore(most);
        println!("without {}\n  {}\n", names.join("\n  and ").as_str(), finding.report());
        missed += usize::from(!finding.is_damage());
    }
    if missed > 0 {
        bail!("{missed} rules are not shown to be needed");
    }
    Ok(())
}
