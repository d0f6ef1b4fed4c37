//! Fan-out over real sockets: messages sent through REST, committed by real roles, delivered to websocket sessions of one gateway process.
//! The figure is deliveries for a second of the gateway's own processor time, which a busy machine stretches less than wall time; the peer
//! is the same gateway with a compression context for each connection and, where its program is given, Centrifugo.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::centrifugo;
use crate::crowd::{Beats, Crowd};
use crate::fleet::Fleet;
use crate::measure;
use crate::process::{Gateway, token};

/// Messages that are counted, after one that is not.
pub const MESSAGES: u32 = 30;

/// What one server did.
pub struct Delivered {
    /// Its processor time for one delivery.
    pub each: Duration,
    /// Until the last session had it, of one message.
    pub took: Vec<Duration>,
    /// Mean bytes of a payload.
    pub payload: u64,
}

pub async fn run(sessions: usize, centrifugo: Option<&Path>) -> anyhow::Result<()> {
    let fleet = Fleet::start(&["a"]).await?;
    let (users, channel_id) = fleet.populate("a", sessions).await?;
    let plain = deliver(&fleet, &users, channel_id, false).await?;
    let compressed = deliver(&fleet, &users, channel_id, true).await?;
    beside(sessions, &plain, &compressed, "zlib-stream");
    if let Some(program) = centrifugo {
        // Not beside our fleet: it would share the processor with it.
        drop(fleet);
        beside(sessions, &plain, &centrifugo::deliver(program, sessions, plain.payload).await?, "Centrifugo");
    }
    Ok(())
}

fn beside(sessions: usize, plain: &Delivered, other: &Delivered, name: &str) {
    measure::row(
        &format!("sockets, {sessions}, {} B, deliveries/CPU-s", plain.payload),
        &measure::per_second(plain.each),
        &format!("{} ({name}, {} B)", measure::per_second(other.each), other.payload),
        other.each.as_secs_f64() / plain.each.as_secs_f64(),
    );
    let quantiles = |took: &[Duration]| {
        format!("{:.0}/{:.0} ms", millis(measure::quantile(took, 50)), millis(measure::quantile(took, 99)))
    };
    measure::row(
        &format!("sockets, {sessions}, send to last session, p50/p99"),
        &quantiles(&plain.took),
        &format!("{} ({name})", quantiles(&other.took)),
        millis(measure::quantile(&other.took, 50)) / millis(measure::quantile(&plain.took, 50)),
    );
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

async fn deliver(fleet: &Fleet, users: &[i64], channel_id: i64, compressed: bool) -> anyhow::Result<Delivered> {
    let gateway = Gateway::start(fleet, "a", if compressed { "compressed" } else { "plain" }).await?;
    let token = token(users[0])?;
    // The gateway follows the guild before the crowd comes, as in any fleet that has run for a while.
    gateway.send(&token, channel_id).await?;
    let mut crowd = Crowd::gather(&gateway, users, compressed, Beats::Late).await?;
    let (sessions, before) = (users.len() as u64, crowd.received());
    gateway.send(&token, channel_id).await?;
    crowd.wait_received(before + sessions).await?;
    let (cpu, bytes, mut took) = (measure::processor_time(gateway.pid)?, crowd.bytes(), Vec::new());
    for number in 2..=u64::from(MESSAGES) + 1 {
        let began = Instant::now();
        gateway.send(&token, channel_id).await?;
        crowd.wait_received(before + number * sessions).await?;
        took.push(began.elapsed());
    }
    let used = measure::processor_time(gateway.pid)?.saturating_sub(cpu);
    let deliveries = MESSAGES * u32::try_from(users.len())?;
    let payload = (crowd.bytes() - bytes) / u64::from(deliveries);
    Ok(Delivered { each: used / deliveries, took, payload })
}
