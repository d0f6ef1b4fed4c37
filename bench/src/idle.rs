//! What an idle session costs in a real gateway process: resident memory, and processor time with heartbeats at the interval the gateway
//! asks for. TLS is not in it: gateways serve plain HTTP behind an entry. The peer is a session with a zlib-stream context.

use std::time::Duration;

use anyhow::bail;

use crate::crowd::{Beats, Crowd};
use crate::fleet::Fleet;
use crate::measure;
use crate::process::Gateway;

/// Sessions there before the first reading, so that what the process needs once is not counted.
const FIRST: usize = 20;
const WATCHED: Duration = Duration::from_secs(15);
const SETTLE: Duration = Duration::from_secs(2);

/// Of one session.
struct Cost {
    bytes: i64,
    per_second: Duration,
}

pub async fn run(sessions: usize) -> anyhow::Result<()> {
    let fleet = Fleet::start(&["a"]).await?;
    let (users, _) = fleet.populate("a", FIRST + sessions).await?;
    let plain = cost(&fleet, &users, false).await?;
    let compressed = cost(&fleet, &users, true).await?;
    measure::row(
        &format!("idle session of {sessions}, resident memory"),
        &format!("{:.1} KiB", plain.bytes as f64 / 1024.0),
        &format!("{:.1} KiB (zlib-stream)", compressed.bytes as f64 / 1024.0),
        compressed.bytes as f64 / plain.bytes as f64,
    );
    measure::row(
        &format!("idle session of {sessions}, processor time"),
        &format!("{:.1} µs/s", plain.per_second.as_secs_f64() * 1e6),
        &format!("{:.1} µs/s (zlib-stream)", compressed.per_second.as_secs_f64() * 1e6),
        compressed.per_second.as_secs_f64() / plain.per_second.as_secs_f64(),
    );
    Ok(())
}

async fn cost(fleet: &Fleet, users: &[i64], compressed: bool) -> anyhow::Result<Cost> {
    let gateway = Gateway::start(fleet, "a", if compressed { "compressed" } else { "plain" }).await?;
    let (first, rest) = users.split_at(FIRST);
    let early = Crowd::gather(&gateway, first, compressed, Beats::Spread).await?;
    tokio::time::sleep(SETTLE).await;
    let before = measure::resident_bytes(gateway.pid)?;
    let crowd = Crowd::gather(&gateway, rest, compressed, Beats::Spread).await?;
    tokio::time::sleep(SETTLE).await;
    let grown = measure::resident_bytes(gateway.pid)? - before;
    let used = measure::processor_time(gateway.pid)?;
    tokio::time::sleep(WATCHED).await;
    let used = measure::processor_time(gateway.pid)?.saturating_sub(used);
    if early.lost() + crowd.lost() > 0 {
        bail!("{} idle sessions were lost", early.lost() + crowd.lost());
    }
    let all = u32::try_from(users.len())?;
    Ok(Cost { bytes: grown / i64::try_from(rest.len())?, per_second: used / all / u32::try_from(WATCHED.as_secs())? })
}
