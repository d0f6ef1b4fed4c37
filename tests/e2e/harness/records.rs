//! The records of a run in the fleet's etcd: the operator stores one before each request, so that whoever waits for one is there when the
//! request is sent.

use std::time::Duration;

use cellctl::sandbox::objects::NAMESPACE;
use etcd_client::{Client, EventType, WatchOptions, WatchStream};
use serde_json::Value;
use tokio::time::timeout;

use super::Sandbox;

const RUN_WITHIN: Duration = Duration::from_secs(120);

/// The records of a run, as they are stored.
pub struct Records {
    stream: WatchStream,
    _client: Client,
}

impl Records {
    /// Of the run that begins next.
    pub async fn open(sandbox: &Sandbox) -> Self {
        let mut client = Client::connect([&sandbox.etcd], None).await.unwrap();
        let prefix = format!("/cellplane/{NAMESPACE}/operations/");
        let stream = client.watch(prefix, Some(WatchOptions::new().with_prefix())).await.unwrap();
        Self { stream, _client: client }
    }

    /// Steps of the records until they are enough, or until the run has ended; whether they were enough.
    pub async fn until(mut self, enough: impl Fn(&[String]) -> bool) -> (Vec<String>, bool) {
        let mut steps = Vec::new();
        let mut run_id = None;
        let reading = async {
            while let Ok(Some(answer)) = self.stream.message().await {
                for event in answer.events().iter().filter(|event| event.event_type() == EventType::Put) {
                    let record: Value = serde_json::from_slice(event.kv().unwrap().value()).unwrap();
                    let record = &record["record"];
                    let id = record["runId"].as_str().unwrap().to_owned();
                    if *run_id.get_or_insert_with(|| id.clone()) != id {
                        continue;
                    }
                    steps.push(record["step"].as_str().unwrap().to_owned());
                    if enough(&steps) {
                        return true;
                    }
                    if !record["outcome"].is_null() {
                        return false;
                    }
                }
            }
            false
        };
        let reached = timeout(RUN_WITHIN, reading).await.expect("records of the run");
        (steps, reached)
    }

    /// Until the run is at a step.
    pub async fn reach(self, step: &str) {
        let (steps, reached) = self.until(|steps| steps.last().is_some_and(|last| last == step)).await;
        assert!(reached, "the run ended without {step}: {steps:?}");
    }
}
