//! Random scenarios played step by step on a real API server and on ours; whatever the answers, the stored objects and the watch histories
//! say must be equal, but for `known`. A scenario that differs is shrunk and printed as text, which CELL_SCENARIO replays.
//!
//! CELL_REAL_KUBECONFIG names the real server. CELL_SEED chooses the first scenario, CELL_SCENARIOS how many follow one another.
//! CELL_KEEP_GOING collects differences, one of each sort, instead of ending at the first; CELL_NO_SHRINK leaves them as long as they are.

mod bodies;
mod definition;
mod generate;
mod known;
mod scenario;
mod shrink;
mod side;
mod tell;

use std::collections::BTreeMap;

use rand::Rng;
use serde_json::{Value, json};

use self::scenario::{Act, Kind, Op, Scenario, Verb};
use self::side::{Server, Side};
use super::Sandbox;

const LENGTH: usize = 30;
/// The seed that every run begins with.
const SEED: u64 = 20_261_130;
/// Scenarios from the fixed seed and, again, from a random one.
const SCENARIOS: u64 = 16;

/// What differs.
struct Difference {
    /// The same for differences of one kind, whatever the names and numbers.
    sort: String,
    text: String,
}

impl Difference {
    /// None if both said the same, but for what is known.
    fn between(place: &str, op: Option<&Op>, mut real: Value, mut ours: Value) -> Option<Self> {
        let said = [&mut real, &mut ours].map(|told| told.as_object_mut().and_then(|told| told.remove(tell::MESSAGE)));
        known::forgive(op, &mut real, &mut ours);
        if real == ours {
            return None;
        }
        let mut lines = Vec::new();
        tell::differences("", &real, &ours, &mut lines);
        // Values are in the sort only where they are few: codes and causes.
        let telling = |line: &String| {
            let few = line.starts_with(".CODE") || line.starts_with(".causes") || line.starts_with(".reason");
            let line = if few { line.as_str() } else { line.split(": real").next().unwrap_or_default() };
            line.replace(|c: char| c.is_ascii_digit(), "")
        };
        let what = op.map(|op| match &op.act {
            Act::Send { verb, kind, sub, .. } => format!("{verb:?} {kind:?} {sub}"),
            Act::Edit { kind, sub, .. } => format!("Edit {kind:?} {sub}"),
            other => format!("{other:?}"),
        });
        let sort = format!("{what:?} {}", lines.iter().map(telling).collect::<Vec<_>>().join(" "));
        let [real, ours] = said.map(|said| said.unwrap_or(Value::Null));
        let text = format!("{place}\n    {}\n    real says {real}\n    ours says {ours}", lines.join("\n    "));
        Some(Self { sort, text })
    }
}

/// Plays a scenario on both; the first difference.
async fn play(scenario: &Scenario, real: &mut Server, ours: &mut Server) -> Option<Difference> {
    let namespace = format!("diff-{}", uuid::Uuid::new_v4().simple());
    let kinds = kinds(scenario);
    let (mut a, mut b) = tokio::join!(Side::begin(real, &namespace), Side::begin(ours, &namespace));
    tokio::join!(a.mark_all(&kinds), b.mark_all(&kinds));
    let mut differing = None;
    for (i, op) in scenario.0.iter().enumerate() {
        let (theirs, mine) = tokio::join!(a.take(op), b.take(op));
        differing = Difference::between(&format!("step {i} {}", json!(op)), Some(op), theirs, mine);
        if differing.is_some() {
            break;
        }
    }
    if differing.is_none() && known::has_one_history(scenario) {
        let (theirs, mine) = tokio::join!(a.histories(), b.histories());
        let mut pairs = theirs.into_iter().zip(mine);
        differing = pairs.find_map(|(theirs, mine)| {
            Difference::between(&format!("history {}", theirs["watch"]), None, theirs, mine)
        });
    }
    tokio::join!(a.end(&kinds), b.end(&kinds));
    differing
}

fn kinds(scenario: &Scenario) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = scenario
        .0
        .iter()
        .filter_map(|op| match &op.act {
            Act::Send { kind, .. } | Act::Edit { kind, .. } | Act::Pages { kind, .. } | Act::Mark { kind, .. } => {
                Some(*kind)
            }
            Act::Define { .. } => None,
        })
        .collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// Plays scenarios from a seed on; the differences found, one of each sort, each shrunk.
async fn hunt(first: u64, count: u64, real: &mut Server, ours: &mut Server) -> Vec<String> {
    let keep_going = std::env::var_os("CELL_KEEP_GOING").is_some();
    let mut sorts: BTreeMap<String, (u64, Scenario, String, usize)> = BTreeMap::new();
    for seed in first..first + count {
        let scenario = generate::scenario(seed, LENGTH);
        if let Some(difference) = play(&scenario, real, ours).await {
            sorts.entry(difference.sort).or_insert((seed, scenario, difference.text, 0)).3 += 1;
            if !keep_going {
                break;
            }
        }
    }
    let mut found = Vec::new();
    for (sort, (seed, scenario, text, times)) in sorts {
        if std::env::var_os("CELL_NO_SHRINK").is_some() {
            found.push(format!("{times} times, first by CELL_SEED={seed}: {text}"));
            println!("{}", found[found.len() - 1]);
            continue;
        }
        let same = |d: Option<Difference>| d.is_some_and(|d| d.sort == sort);
        let smallest = shrink::smallest(scenario, async |s| same(play(s, real, ours).await)).await;
        let shown = play(&smallest, real, ours).await.map_or_else(|| "not seen again".to_owned(), |d| d.text);
        let report =
            format!("{times} times, first by CELL_SEED={seed}\n  CELL_SCENARIO='{}'\n  {shown}", smallest.text());
        println!("{report}");
        found.push(report);
    }
    found
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

fn server(client: kube::Client) -> Server {
    Server { client, schema: None, plant: None }
}

#[tokio::test]
#[ignore = "needs a real kube-apiserver, its kubeconfig named in CELL_REAL_KUBECONFIG"]
async fn a_real_server_plays_every_random_scenario_the_same() {
    let real = std::env::var_os("CELL_REAL_KUBECONFIG").expect("CELL_REAL_KUBECONFIG names a kubeconfig");
    let s = Sandbox::start().await;
    let (mut real, mut ours) = (server(super::client(real.into()).await), server(s.client.clone()));
    for known in known::KNOWN {
        println!("known: {}: {}", known.what, known.reason);
    }
    let mut found = Vec::new();
    if let Ok(text) = std::env::var("CELL_SCENARIO") {
        let scenario: Scenario = serde_json::from_str(&text).expect("CELL_SCENARIO is a scenario as printed");
        found.extend(play(&scenario, &mut real, &mut ours).await.map(|difference| difference.text));
    } else {
        let count = number("CELL_SCENARIOS").unwrap_or(SCENARIOS);
        let seeds = match number("CELL_SEED") {
            Some(seed) => vec![seed],
            None => vec![SEED, u64::from(rand::rng().random::<u32>())],
        };
        for seed in seeds {
            println!("CELL_SEED={seed} CELL_SCENARIOS={count}");
            found.extend(hunt(seed, count, &mut real, &mut ours).await);
        }
    }
    let at = format!("{}/{}", super::DEFINITIONS, definition::NAME);
    super::send(&real.client, http::Request::delete(at).body(Vec::new()).unwrap()).await;
    s.stop().await;
    assert!(found.is_empty(), "{} scenarios differ:\n{}", found.len(), found.join("\n"));
}

#[tokio::test]
async fn a_planted_difference_is_found_and_shrunk_to_the_step_that_shows_it() {
    let (one, other) = (Sandbox::start().await, Sandbox::start().await);
    let (mut real, mut ours) = (server(one.client.clone()), server(other.client.clone()));
    assert_eq!(hunt(SEED, 12, &mut real, &mut ours).await, Vec::<String>::new(), "a server differs from itself");
    // A server that forgets who owns the label once it was set by apply.
    ours.plant = Some(|op, told| {
        if matches!(&op.act, Act::Send { verb: Verb::Apply, .. }) && told["metadata"]["labels"]["l"].is_string() {
            told["metadata"]["managedFields"] = json!([]);
        }
    });
    let mut differing = None;
    for seed in SEED..SEED + 200 {
        let scenario = generate::scenario(seed, LENGTH);
        if play(&scenario, &mut real, &mut ours).await.is_some() {
            differing = Some(shrink::smallest(scenario, async |s| play(s, &mut real, &mut ours).await.is_some()).await);
            break;
        }
    }
    let smallest = differing.expect("the difference is found");
    assert!(smallest.0.len() <= 3, "{}", smallest.text());
    let replayed: Scenario = serde_json::from_str(&smallest.text()).unwrap();
    assert!(play(&replayed, &mut real, &mut ours).await.is_some(), "what is printed replays");
    one.stop().await;
    other.stop().await;
}
