//! Puts the definitions, the operator and the fleet into a sandbox. What is the sandbox's own (definitions, operator) is applied at
//! every start; resources a person may have changed since are made only when absent.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::core::discovery::Scope;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

use super::network::Network;
use super::objects;
use super::state::Settings;
use crate::connect::within;
use crate::exit::CommandError;
use crate::ownership::MANAGER;

const ESTABLISHED: Duration = Duration::from_secs(30);

/// Installs everything; harmless when it is there already. `operator_written_ms` is when the operator's program was written, `storage`
/// the spec of a new fleet's StorageCell.
///
/// # Errors
/// [`CommandError`].
pub async fn install(
    client: &Client,
    network: Network,
    settings: &Settings,
    operator_written_ms: u64,
    storage: &Value,
) -> Result<(), CommandError> {
    definitions(client).await?;
    apply(client, &objects::namespace()).await?;
    for object in objects::operator(operator_written_ms) {
        apply(client, &object).await?;
    }
    for object in objects::fleet(network, settings, storage) {
        create(client, &object).await?;
    }
    follow_network(client, network, settings).await
}

async fn definitions(client: &Client) -> Result<(), CommandError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let names: Vec<String> = cell_crds::all().into_iter().filter_map(|definition| definition.metadata.name).collect();
    for definition in cell_crds::all() {
        let mut value = encode(&definition)?;
        value["apiVersion"] = "apiextensions.k8s.io/v1".into();
        value["kind"] = "CustomResourceDefinition".into();
        apply(client, &value).await?;
    }
    let deadline = Instant::now() + ESTABLISHED;
    for name in names {
        while !is_established(&within(api.get(&name)).await?) {
            if Instant::now() > deadline {
                return Err(CommandError::TimedOut {
                    waited_for: format!("definition {name}"),
                    blocked_by: "it is not Established".to_owned(),
                    next: "cellctl sandbox logs sandbox".to_owned(),
                });
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

async fn apply(client: &Client, object: &Value) -> Result<(), CommandError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let parameters = PatchParams::apply(MANAGER).force();
    within(api_of(client, object)?.patch(name, &parameters, &Patch::Apply(object))).await.map(|_| ())
}

async fn create(client: &Client, object: &Value) -> Result<(), CommandError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let api = api_of(client, object)?;
    if within(api.get_opt(name)).await?.is_some() {
        return Ok(());
    }
    let parsed: DynamicObject =
        serde_json::from_value(object.clone()).map_err(|error| anyhow::Error::from(error).context("build object"))?;
    let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    within(api.create(&parameters, &parsed)).await.map(|_| ())
}

/// A sandbox that lost its network to another has new addresses: the Fleet must name them.
async fn follow_network(client: &Client, network: Network, settings: &Settings) -> Result<(), CommandError> {
    let fleets: Api<cell_crds::Fleet> = Api::namespaced(client.clone(), objects::NAMESPACE);
    let fleet = encode(&within(fleets.get(objects::FLEET)).await?)?;
    let wanted = objects::fleet_network(network, settings);
    let same = fleet["spec"]["etcd"]["endpoints"] == wanted["etcd"]["endpoints"]
        && fleet["spec"]["entry"]["host"] == wanted["entry"]["host"]
        && fleet["spec"]["entry"]["port"] == wanted["entry"]["port"];
    if same {
        return Ok(());
    }
    let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({"spec": wanted}));
    within(fleets.patch(objects::FLEET, &parameters, &patch)).await.map(|_| ())
}

fn api_of(client: &Client, object: &Value) -> Result<Api<DynamicObject>, CommandError> {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let kind = object["kind"].as_str().unwrap_or_default();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Ok(match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::dynamic(client.clone(), &resource, &Scope::Cluster),
    })
}

fn encode<T: serde::Serialize>(object: &T) -> Result<Value, CommandError> {
    serde_json::to_value(object).map_err(|error| anyhow::Error::from(error).context("encode object").into())
}
