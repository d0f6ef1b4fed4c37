//! Route lookup: a log's place in the published view, against the same map behind a lock with an owned answer.

use std::collections::HashMap;
use std::hint::black_box;

use cell_proto::directory::{Buckets, RouteHint};
use cell_runtime::View;
use cell_runtime::route::Place;
use parking_lot::Mutex;

use crate::measure;

const LOGS: usize = 10_000;
const LOOKUPS: u32 = 100_000;

pub fn run() -> anyhow::Result<()> {
    let mut view = View::default();
    view.set_buckets(Buckets { cells: vec!["a".into(), "b".into()], assignment: (0..4096).map(|n| n % 2).collect() });
    let mut locked = HashMap::new();
    let logs: Vec<String> = (1..=LOGS).map(|number| format!("g{}", number * 7_919)).collect();
    for log in &logs {
        let hint = RouteHint { cell: "b".into(), term: 3, data_owner: "b-data-0".into(), ..RouteHint::default() };
        view.set_route(log, hint);
        locked.insert(log.clone(), view.place(log).cloned().unwrap_or_default());
    }
    let published = arc_swap::ArcSwap::from_pointee(view);
    let locked = Mutex::new(locked);
    let pair = measure::interleaved(
        31,
        LOOKUPS,
        || {
            for number in 0..LOOKUPS as usize {
                black_box(published.load().place(&logs[number % LOGS]).map(|place| place.term));
            }
        },
        || {
            for number in 0..LOOKUPS as usize {
                let place: Option<Place> = locked.lock().get(&logs[number % LOGS]).cloned();
                black_box(place);
            }
        },
    );
    measure::row(
        "route lookup, 10,000 logs",
        &format!("{:?}", pair.ours),
        &format!("{:?} (locked)", pair.other),
        pair.ratio(),
    );
    Ok(())
}
