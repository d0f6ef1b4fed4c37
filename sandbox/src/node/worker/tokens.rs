//! Service account tokens for projected volumes, asked of the API server and renewed in time. A server without TokenRequest (404,
//! 405, 501) means there are none: the volume then lacks the file and the Pod gets the agent's own kubeconfig.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use super::{Happening, Worker};
use crate::controllers::act;
use crate::node::shared::Node;

/// A token and when to ask for the next (monotonic milliseconds).
#[derive(Debug, Clone)]
pub(super) struct Token {
    bytes: Vec<u8>,
    renew_at_ms: u64,
}

#[derive(Debug, Clone)]
enum Standing {
    Wanted,
    Asked,
    Held(Token),
    None,
}

/// The tokens of one Pod, by audience.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    wanted: BTreeMap<String, (Standing, Option<i64>)>,
}

/// Tokens as the volume code sees them.
#[derive(Debug, Clone, Default)]
pub(super) struct Held(BTreeMap<String, Vec<u8>>);

impl Held {
    /// The token of an audience.
    pub(super) fn get(&self, audience: &str) -> Option<Vec<u8>> {
        self.0.get(audience).cloned()
    }
}

impl Tokens {
    /// What the Pod's projected volumes ask for.
    pub(super) fn of(pod: &Pod) -> Self {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let sources =
            volumes.filter_map(|volume| volume.projected.as_ref()).flat_map(|source| source.sources.iter().flatten());
        let wanted = sources
            .filter_map(|source| source.service_account_token.as_ref())
            .map(|token| (token.audience.clone().unwrap_or_default(), (Standing::Wanted, token.expiration_seconds)));
        Self { wanted: wanted.collect() }
    }

    /// Audiences to ask for now.
    pub(super) fn wanted(&self) -> Vec<String> {
        let wanted = self.wanted.iter().filter(|(_, (standing, _))| matches!(standing, Standing::Wanted));
        wanted.map(|(audience, _)| audience.clone()).collect()
    }

    /// True while an answer is outstanding.
    pub(super) fn waiting(&self) -> bool {
        self.wanted.values().any(|(standing, _)| matches!(standing, Standing::Wanted | Standing::Asked))
    }

    /// The tokens held.
    pub(super) fn held(&self) -> Held {
        let held = self.wanted.iter().filter_map(|(audience, (standing, _))| match standing {
            Standing::Held(token) => Some((audience.clone(), token.bytes.clone())),
            _ => None,
        });
        Held(held.collect())
    }

    /// Audiences whose token must be renewed; the old one stays in use until then.
    pub(super) fn due(&self, now_ms: u64) -> Vec<String> {
        let due = self
            .wanted
            .iter()
            .filter(|(_, (standing, _))| matches!(standing, Standing::Held(token) if token.renew_at_ms <= now_ms));
        due.map(|(audience, _)| audience.clone()).collect()
    }
}

impl Worker {
    /// Asks for tokens, in tasks.
    pub(super) fn ask_for_tokens(&mut self, audiences: &[String]) {
        for audience in audiences {
            let Some((standing, seconds)) = self.tokens.wanted.get_mut(audience) else { continue };
            if let Standing::Held(token) = standing {
                token.renew_at_ms = u64::MAX;
            } else {
                *standing = Standing::Asked;
            }
            let seconds = *seconds;
            let (node, pod, happenings) = (self.node.clone(), self.pod.clone(), self.happenings.clone());
            let audience = audience.clone();
            tokio::spawn(async move {
                let token = request(&node, &pod, &audience, seconds).await;
                let _ = happenings.send(Happening::Token { audience, token }).await;
            });
        }
    }

    /// Takes an answer.
    pub(super) fn token_came(&mut self, audience: String, token: Option<Token>) {
        if let Some((standing, _)) = self.tokens.wanted.get_mut(&audience) {
            *standing = match (token, standing.clone()) {
                (Some(token), _) => Standing::Held(token),
                (None, Standing::Held(old)) => {
                    Standing::Held(Token { renew_at_ms: self.node.clock.now().mono_ms + 30_000, ..old })
                }
                (None, _) => Standing::None,
            };
        }
        if self.machine.prepared {
            self.refresh_soon();
        } else if !self.tokens.waiting() {
            self.prepare();
        }
    }

    /// The kubeconfig the Pod is given: one that uses its own token when it has one, none when the Pod declines, else the agent's.
    pub(super) fn kubeconfig(&self) -> Option<PathBuf> {
        let declines = self.pod.spec.as_ref().and_then(|spec| spec.automount_service_account_token) == Some(false);
        if declines {
            return None;
        }
        let agent = self.node.settings.kubeconfig.clone();
        if self.tokens.held().0.is_empty() {
            return Some(agent);
        }
        Some(own_kubeconfig(&self.node, &self.pod, &self.uid).unwrap_or(agent))
    }
}

async fn request(node: &Node, pod: &Pod, audience: &str, seconds: Option<i64>) -> Option<Token> {
    let account =
        pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone()).unwrap_or_else(|| "default".into());
    let api: Api<ServiceAccount> = Api::namespaced(node.client.clone(), &pod.namespace().unwrap_or_default());
    let seconds = seconds.unwrap_or(3600).max(600);
    let wish = TokenRequest {
        metadata: ObjectMeta::default(),
        spec: TokenRequestSpec {
            audiences: if audience.is_empty() { Vec::new() } else { vec![audience.to_owned()] },
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
            expiration_seconds: Some(seconds),
        },
        status: None,
    };
    for _ in 0..5 {
        match act::call("request a token", api.create_token_request(&account, &PostParams::default(), &wish)).await {
            Ok(answer) => {
                let bytes = answer.status?.token.into_bytes();
                let life_ms = seconds.unsigned_abs() * 800;
                return Some(Token { bytes, renew_at_ms: node.clock.now().mono_ms + life_ms });
            }
            Err(error) if matches!(error.code(), 404 | 405 | 501) => {
                tracing::info!(pod = %pod.name_any(), "the API server gives no service account tokens");
                return None;
            }
            Err(error) => tracing::warn!(pod = %pod.name_any(), error = %error, "token not given, will be asked again"),
        }
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    }
    None
}

/// Writes a kubeconfig that reads the token from its mounted file, so that a renewal needs nothing more.
fn own_kubeconfig(node: &Node, pod: &Pod, uid: &str) -> Option<PathBuf> {
    let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
    let (name, path) = volumes.iter().find_map(|volume| {
        let sources = volume.projected.as_ref()?.sources.as_ref()?;
        let token = sources.iter().find_map(|source| source.service_account_token.as_ref())?;
        Some((volume.name.clone(), token.path.clone()))
    })?;
    let mut config = kube::config::Kubeconfig::read_from(&node.settings.kubeconfig).ok()?;
    for user in &mut config.auth_infos {
        user.auth_info = Some(kube::config::AuthInfo {
            token_file: Some(node.mounts_folder(uid).join(&name).join(&path).display().to_string()),
            ..kube::config::AuthInfo::default()
        });
    }
    let at = node.mounts_folder(uid).join("kubeconfig");
    let text = serde_json::to_vec(&config).ok()?;
    std::fs::write(&at, text).ok()?;
    Some(at)
}
