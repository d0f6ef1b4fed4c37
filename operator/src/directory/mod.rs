//! The fleet's etcd as the operator uses it: the view every role sees, and writes that only the present leader can make.

mod link;
mod migration_wire;
mod migrations;
mod runs;
mod wire;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use cell_crds::EtcdSpec;
use cell_runtime::{CancellationToken, Channels};

use crate::leader::Leadership;
pub use link::{Link, LinkError};
pub use migrations::{MigrationBegun, StoredMigration, migration_content};
pub use runs::{Begun, StoredRun, content_of, differences};

/// Holds the link to the fleet's etcd, and makes it anew when the fleet names another.
pub struct Hub {
    current: ArcSwapOption<Link>,
    channels: Arc<Channels>,
    leadership: Leadership,
    endpoints_override: Vec<String>,
    shutdown: CancellationToken,
}

impl Hub {
    /// Without a link until the fleet is known. `endpoints_override`, if not empty, is used in place of what the fleet names.
    pub fn new(leadership: Leadership, endpoints_override: Vec<String>, shutdown: CancellationToken) -> Self {
        Self { current: ArcSwapOption::empty(), channels: Arc::default(), leadership, endpoints_override, shutdown }
    }

    /// The link to what the fleet names.
    pub fn link_to(&self, etcd: &EtcdSpec) -> Arc<Link> {
        let endpoints =
            if self.endpoints_override.is_empty() { etcd.endpoints.clone() } else { self.endpoints_override.clone() };
        if let Some(link) = self.current.load_full() {
            if link.is_to(&endpoints, &etcd.prefix) {
                return link;
            }
            link.stop();
        }
        let link = Link::start(
            endpoints,
            etcd.prefix.clone(),
            self.leadership.clone(),
            self.channels.clone(),
            self.shutdown.child_token(),
        );
        let link = Arc::new(link);
        self.current.store(Some(link.clone()));
        link
    }

    /// The link, once there is a fleet.
    pub fn link(&self) -> Option<Arc<Link>> {
        self.current.load_full()
    }
}

#[cfg(test)]
mod tests;
