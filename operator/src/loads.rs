//! The load of guilds as guild nodes report it, and whether automation is paused: read from etcd at most once a second, however many
//! guilds ask.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cell_plan::promotion::Sample;
use cell_proto::directory::Load;
use tokio::sync::Mutex;

use crate::automation;
use crate::directory::{Link, LinkError};

/// How old a reading may be.
const FRESH: Duration = Duration::from_millis(900);

/// One reading.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Load by decimal guild id.
    pub guilds: HashMap<String, Sample>,
    /// Automation is paused.
    pub paused: bool,
}

/// The last reading.
#[derive(Debug, Default)]
pub struct Loads(Mutex<Option<(Instant, Arc<Reading>)>>);

impl Loads {
    /// The last reading if it is fresh, else a new one. Callers that wait meanwhile share it.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn read(&self, link: &Link) -> Result<Arc<Reading>, LinkError> {
        let mut last = self.0.lock().await;
        if let Some((at, reading)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(reading.clone());
        }
        let paused = automation::read(link).await?.paused;
        let stored = link.read_below(&link.keys().loads()).await?;
        let loads = stored.iter().filter_map(|stored| serde_json::from_slice::<Load>(&stored.value).ok());
        let reading = Arc::new(Reading { guilds: merge(loads), paused });
        *last = Some((Instant::now(), reading.clone()));
        Ok(reading)
    }
}

/// During a move two nodes may report a guild: the busier one has the sessions.
fn merge(loads: impl Iterator<Item = Load>) -> HashMap<String, Sample> {
    let mut guilds: HashMap<String, Sample> = HashMap::new();
    for load in loads.flat_map(|load| load.guilds) {
        let sample = guilds.entry(load.guild_id).or_default();
        sample.sessions = sample.sessions.max(load.sessions);
        sample.messages_per_second = sample.messages_per_second.max(load.messages_per_second);
    }
    guilds
}

#[cfg(test)]
mod tests {
    use cell_proto::directory::GuildLoad;

    use super::*;

    #[test]
    fn the_busier_of_two_reports_counts() {
        let report = |sessions| Load {
            guilds: vec![GuildLoad { guild_id: "7".into(), sessions, messages_per_second: 10 - sessions }],
        };
        let merged = merge([report(3), report(9)].into_iter());
        assert_eq!(merged["7"], Sample { sessions: 9, messages_per_second: 7 });
    }
}
