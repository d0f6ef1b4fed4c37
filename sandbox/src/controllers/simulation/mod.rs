//! A tiny API server in memory for driver tests: it stores objects, gives versions, honours preconditions, and can lose an answer
//! after it acted. Watch events are kept until a test delivers them, so that mirrors can be as late as the test wants.

mod server;
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use kube::runtime::events::Recorder;
use kube::runtime::watcher::Event;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use server::{Change, Server};

use super::Options;
use super::mirror::Mirror;
use super::world::World;

/// The server, and how far each mirror has read.
pub struct Simulated {
    /// The server.
    pub server: Arc<Server>,
    read: usize,
}

impl Simulated {
    /// A world whose mirrors are empty and whose client talks to the server.
    pub fn new() -> (Self, World) {
        let server = Arc::new(Server::default());
        let answering = server.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = answering.clone();
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body.collect().await.unwrap().to_bytes();
                let (code, value) = server.answer(&parts.method, &parts.uri, &bytes);
                let body = Full::new(Bytes::from(serde_json::to_vec(&value).unwrap()));
                let response = Response::builder().status(code).header("content-type", "application/json");
                Ok::<_, std::convert::Infallible>(response.body(body).unwrap())
            }
        });
        let client = Client::new(service, "default");
        let recorder = Recorder::new(client.clone(), "test".to_owned().into());
        let (world, _never_fed) = World::new(client, Options::default(), recorder);
        let mut simulated = Self { server, read: 0 };
        simulated.relist(&world);
        (simulated, world)
    }

    /// Delivers the next event to its mirror; false when all were delivered.
    pub fn deliver(&mut self, world: &World) -> bool {
        let Some(change) = self.server.change(self.read) else { return false };
        self.read += 1;
        match change.plural.as_str() {
            "pods" => feed(&world.pods, change),
            "statefulsets" => feed(&world.sets, change),
            "replicasets" => feed(&world.replica_sets, change),
            "jobs" => feed(&world.jobs, change),
            "persistentvolumeclaims" => feed(&world.claims, change),
            _ => {}
        }
        true
    }

    /// A whole new list for every mirror, as after a lost watch or a restart.
    pub fn relist(&mut self, world: &World) {
        self.read = self.server.changes();
        list(&world.pods, self.server.all("pods"));
        list(&world.sets, self.server.all("statefulsets"));
        list(&world.replica_sets, self.server.all("replicasets"));
        list(&world.jobs, self.server.all("jobs"));
        list(&world.claims, self.server.all("persistentvolumeclaims"));
    }
}

fn feed<K: Resource + Clone + DeserializeOwned>(mirror: &Mirror<K>, change: Change) {
    let object: K = serde_json::from_value(change.object).unwrap();
    mirror.take(if change.deleted { Event::Delete(object) } else { Event::Apply(object) });
}

fn list<K: Resource + Clone + DeserializeOwned>(mirror: &Mirror<K>, objects: Vec<serde_json::Value>) {
    mirror.take(Event::Init);
    for object in objects {
        mirror.take(Event::InitApply(serde_json::from_value(object).unwrap()));
    }
    mirror.take(Event::InitDone);
}
