//! Server-side apply with a comparison before it: what is already as wanted is not written. It owns only the fields it sends.

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::ReconcileError;
use crate::metrics::Metrics;
use crate::names::HASH_ANNOTATION;

/// A kind that can be applied: namespaced, typed.
pub trait Object:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug
{
}
impl<K> Object for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Serialize
        + DeserializeOwned
        + Clone
        + std::fmt::Debug
{
}

/// Writes objects of one namespace.
#[derive(Clone)]
pub struct Applier {
    client: Client,
    namespace: String,
    metrics: Metrics,
}

impl Applier {
    /// For one namespace.
    pub fn new(client: Client, namespace: &str, metrics: Metrics) -> Self {
        Self { client, namespace: namespace.to_owned(), metrics }
    }

    /// The API of a kind.
    pub fn api<K: Object>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Reads one object.
    ///
    /// # Errors
    /// [`ReconcileError::Request`].
    pub async fn get<K: Object>(&self, name: &str) -> Result<Option<K>, ReconcileError> {
        self.api::<K>().get_opt(name).await.map_err(ReconcileError::request("read", &K::kind(&()), name))
    }

    /// Makes the object as wanted, under `manager`. Writes only on a difference; answers the object as it is now.
    ///
    /// # Errors
    /// [`ReconcileError`].
    pub async fn apply<K: Object>(&self, manager: &str, wanted: &K) -> Result<K, ReconcileError> {
        let (kind, name) = (K::kind(&()), wanted.name_any());
        let encode = |error: serde_json::Error| ReconcileError::Encode {
            kind: kind.to_string(),
            name: name.clone(),
            message: error.to_string(),
        };
        let mut body = serde_json::to_value(wanted).map_err(encode)?;
        prune(&mut body);
        let hash = hash_of(&body);
        body["metadata"]["annotations"][HASH_ANNOTATION] = json!(hash);
        if let Some(live) = self.get::<K>(&name).await? {
            let same_hash = live.annotations().get(HASH_ANNOTATION) == Some(&hash);
            if same_hash && covers(&serde_json::to_value(&live).map_err(encode)?, &body) {
                return Ok(live);
            }
        }
        self.metrics.wrote(&kind, "apply");
        tracing::info!(kind = %kind, name, manager, "applying");
        self.api::<K>()
            .patch(&name, &PatchParams::apply(manager).force(), &Patch::Apply(&body))
            .await
            .map_err(ReconcileError::request("apply", &kind, &name))
    }

    /// The API of a kind that another operator brings.
    pub fn dynamic(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, resource)
    }

    /// Whether the API server serves a kind that another operator brings.
    ///
    /// # Errors
    /// [`ReconcileError::Request`].
    pub async fn serves(&self, group_version: &str, plural: &str) -> Result<bool, ReconcileError> {
        match self.client.list_api_group_resources(group_version).await {
            Ok(list) => Ok(list.resources.iter().any(|resource| resource.name == plural)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(ReconcileError::request("look for", plural, group_version)(error)),
        }
    }

    /// Makes the object as wanted where its kind is served; a cluster without the kind goes without it.
    ///
    /// # Errors
    /// [`ReconcileError`].
    pub async fn apply_if_served<K: Object>(&self, manager: &str, wanted: &K) -> Result<(), ReconcileError> {
        let there = self.get::<K>(&wanted.name_any()).await?.is_some();
        if there || self.serves(&K::api_version(&()), &K::plural(&())).await? {
            self.apply(manager, wanted).await?;
        }
        Ok(())
    }

    /// Sends a partial object under `manager`. The caller has compared.
    ///
    /// # Errors
    /// [`ReconcileError::Request`].
    pub async fn patch<K: Object>(&self, manager: &str, name: &str, mut body: Value) -> Result<K, ReconcileError> {
        let kind = K::kind(&());
        body["apiVersion"] = json!(K::api_version(&()));
        body["kind"] = json!(kind);
        body["metadata"]["name"] = json!(name);
        self.metrics.wrote(&kind, "apply");
        self.api::<K>()
            .patch(name, &PatchParams::apply(manager).force(), &Patch::Apply(&body))
            .await
            .map_err(ReconcileError::request("apply", &kind, name))
    }

    /// Sends fields of a spec that people own too, under a `manager` that sends nothing else. Takes no field over: one that another
    /// manager set to another value is [`ReconcileError::Request`] with Kubernetes' conflict.
    ///
    /// # Errors
    /// [`ReconcileError::Request`].
    pub async fn share<K: Object>(&self, manager: &str, name: &str, mut body: Value) -> Result<K, ReconcileError> {
        let kind = K::kind(&());
        body["apiVersion"] = json!(K::api_version(&()));
        body["kind"] = json!(kind);
        body["metadata"]["name"] = json!(name);
        let sent = self.api::<K>().patch(name, &PatchParams::apply(manager), &Patch::Apply(&body)).await;
        let object = sent.map_err(ReconcileError::request("apply", &kind, name))?;
        self.metrics.wrote(&kind, "apply");
        Ok(object)
    }

    /// Creates the object if there is none of its name; `false` when there was one.
    ///
    /// # Errors
    /// [`ReconcileError::Request`].
    pub async fn create<K: Object>(&self, manager: &str, wanted: &K) -> Result<bool, ReconcileError> {
        let (kind, name) = (K::kind(&()), wanted.name_any());
        let params = kube::api::PostParams { field_manager: Some(manager.to_owned()), ..Default::default() };
        match self.api::<K>().create(&params, wanted).await {
            Ok(_) => {
                self.metrics.wrote(&kind, "create");
                tracing::info!(kind = %kind, name, "created");
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(ReconcileError::request("create", &kind, &name)(error)),
        }
    }

    /// Deletes this very object; one that is gone or was replaced is left alone.
    ///
    /// # Errors
    /// [`ReconcileError::Request`].
    pub async fn delete<K: Object>(&self, object: &K) -> Result<(), ReconcileError> {
        let (kind, name) = (K::kind(&()), object.name_any());
        let preconditions = Preconditions { uid: object.uid(), resource_version: object.resource_version() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.api::<K>().delete(&name, &params).await {
            Ok(_) => {
                self.metrics.wrote(&kind, "delete");
                tracing::info!(kind = %kind, name, "deleted");
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
            Err(error) => Err(ReconcileError::request("delete", &kind, &name)(error)),
        }
    }

    /// Sends a status. The caller has compared. Answers the object as it is now; none if it is gone, or another has its name.
    ///
    /// # Errors
    /// [`ReconcileError`].
    pub async fn status<K: Object>(
        &self,
        manager: &str,
        object: &K,
        status: Value,
    ) -> Result<Option<K>, ReconcileError> {
        let (kind, name) = (K::kind(&()), object.name_any());
        let body = json!({
            "apiVersion": K::api_version(&()),
            "kind": kind,
            "metadata": {"name": name, "uid": object.uid()},
            "status": status,
        });
        let params = PatchParams::apply(manager).force();
        match self.api::<K>().patch_status(&name, &params, &Patch::Apply(&body)).await {
            Ok(written) => {
                self.metrics.wrote(&kind, "status");
                Ok(Some(written))
            }
            // Deleted meanwhile, or another object of that name.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(ReconcileError::request("write status of", &kind, &name)(error)),
        }
    }

    /// Takes fields out of a status that somebody else put there: an apply leaves alone what it never owned.
    ///
    /// # Errors
    /// [`ReconcileError`].
    pub async fn clear_status<K: Object>(&self, object: &K, fields: &[String]) -> Result<(), ReconcileError> {
        let (kind, name) = (K::kind(&()), object.name_any());
        let cleared: serde_json::Map<String, Value> = fields.iter().map(|field| (field.clone(), Value::Null)).collect();
        let body = json!({"metadata": {"uid": object.uid()}, "status": cleared});
        match self.api::<K>().patch_status(&name, &PatchParams::default(), &Patch::Merge(&body)).await {
            Ok(_) => {
                self.metrics.wrote(&kind, "status");
                tracing::warn!(kind = %kind, name, ?fields, "status fields that somebody else had set were removed");
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(ReconcileError::request("write status of", &kind, &name)(error)),
        }
    }

    /// Puts the finalizer on, or takes it off; writes only on a difference.
    ///
    /// # Errors
    /// [`ReconcileError::Request`].
    pub async fn finalizer<K: Object>(&self, object: &K, wanted: Finalizer) -> Result<(), ReconcileError> {
        let present = object.finalizers().iter().any(|finalizer| finalizer == cell_crds::FINALIZER);
        let held = wanted == Finalizer::Held;
        if present == held {
            return Ok(());
        }
        let name = object.name_any();
        let finalizers: &[&str] = if held { &[cell_crds::FINALIZER] } else { &[] };
        let body = json!({"metadata": {"uid": object.uid(), "finalizers": finalizers}});
        let manager = format!("{}/finalizer", crate::names::MANAGER);
        match self.patch::<K>(&manager, &name, body).await {
            Err(ReconcileError::Request { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.code == 404) => {
                Ok(())
            }
            other => other.map(|_| ()),
        }
    }
}

/// Whether a finalizer is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finalizer {
    /// The object may not go yet.
    Held,
    /// It may.
    Released,
}

/// Leaves out what is empty and what the server fills: nulls, `status`, empty objects that only exist for the types' sake.
fn prune(body: &mut Value) {
    if let Value::Object(fields) = body {
        fields.remove("status");
        fields.retain(|_, value| !value.is_null());
    }
}

fn hash_of(body: &Value) -> String {
    // serde_json's maps are sorted, so equal content gives equal text.
    let digest = Sha256::digest(body.to_string());
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Whether everything in `wanted` is in `live`; fields that the server added do not matter, nor that it drops a field which is empty.
pub fn covers(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            let same =
                |(key, value): (&String, &Value)| live.get(key).map_or(is_empty(value), |live| covers(live, value));
            wanted.iter().all(same)
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| covers(live, wanted))
        }
        _ => live == wanted,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_is_empty_is_as_good_as_none() {
        // kube-apiserver stores none of these.
        let wanted = json!({"metadata": {"labels": {}}, "data": {}, "spec": {"tolerations": []}});
        assert!(covers(&json!({"metadata": {"name": "a"}, "spec": {"replicas": 1}}), &wanted));
        assert!(!covers(&json!({"metadata": {}}), &wanted), "spec is not empty");
        assert!(!covers(&json!({"spec": {"tolerations": [{"key": "a"}]}}), &json!({"spec": {"tolerations": []}})));
        assert!(!covers(&json!({}), &json!({"data": {"a": ""}})));
    }

    #[test]
    fn what_the_server_adds_is_no_difference_and_what_is_changed_is() {
        let wanted = json!({"spec": {"replicas": 2, "containers": [{"name": "a"}]}});
        let live = json!({"spec": {"replicas": 2, "containers": [{"name": "a", "policy": "File"}]}, "status": {}});
        assert!(covers(&live, &wanted));
        assert!(!covers(&json!({"spec": {"replicas": 3, "containers": [{"name": "a"}]}}), &wanted));
        assert!(!covers(&json!({"spec": {"replicas": 2, "containers": []}}), &wanted));
    }

    #[test]
    fn equal_content_has_equal_hashes_whatever_the_order() {
        let one: Value = serde_json::from_str(r#"{"a":1,"b":2}"#).unwrap();
        let other: Value = serde_json::from_str(r#"{"b":2,"a":1}"#).unwrap();
        assert_eq!(hash_of(&one), hash_of(&other));
        assert_ne!(hash_of(&one), hash_of(&json!({"a": 1})));
    }
}
