//! The two ways an object comes to be stored: made, or changed by compare-and-set. It decides identity, isolation of status, no-op
//! writes, and when a finished deletion removes the object. How it is asked for (PUT, PATCH, apply) is decided in `verbs`.

use serde_json::Value;

use super::api::{Call, Door, Strictness};
use super::custom::Nulls;
use super::managed::{track_update, typed};
use super::objects::Stored;
use super::status::{Cause, Fault, FieldError, Reason, Refusal};
use super::{admit, object, present};

/// Attempts of a change against concurrent writers.
const ATTEMPTS: usize = 24;
/// Attempts to find a free generated name.
const NAME_ATTEMPTS: usize = 8;

/// What a write did.
#[derive(Debug)]
pub struct Written {
    /// In the form the caller's version shows.
    pub object: Value,
    pub created: bool,
    pub warnings: Vec<String>,
}

/// An object as a verb wants it.
pub struct Edited {
    pub object: Value,
    /// `managedFields` are already right (apply).
    pub tracked: bool,
}

/// Makes an object.
pub async fn create(call: &Call<'_>, edited: Edited) -> Result<Written, Refusal> {
    let resource = &call.resource;
    let mut sent = edited.object;
    check_kind(call, &mut sent)?;
    if !object::resource_version(&sent).is_empty() {
        return Err(Refusal::bad_request("resourceVersion should not be set on objects to be created"));
    }
    if resource.namespaced {
        check_namespace(call)?;
    }
    if resource.custom().is_some_and(|c| c.terminating) {
        return Err(Refusal::new(
            Reason::MethodNotAllowed,
            "create not allowed while custom resource definition is terminating",
        ));
    }
    let managed = edited.tracked.then(|| object::at(&sent, &["metadata", "managedFields"]).cloned()).flatten();
    let generated = object::name(&sent).is_empty();
    let typed = fits_types(call, &sent);
    for _ in 0..NAME_ATTEMPTS {
        let mut new = present::store(resource, sent.clone());
        if generated {
            generate_name(&mut new);
        }
        admit::begin(resource, &mut new, call.time);
        let unknown = admit::fit(resource, &mut new, nulls(edited.tracked))?;
        let warnings = weigh_unknown(call, unknown)?;
        admit::judge(resource, &new, None).map_err(|refusal| refusal.warning(&warnings))?;
        let _ports = finish(call, &mut new, None).await?;
        match &managed {
            Some(managed) => object::set_meta(&mut new, "managedFields", managed.clone()),
            // Who applies nothing owns nothing.
            None if edited.tracked || !typed => object::remove_meta(&mut new, "managedFields"),
            None => track_creation(call, &mut new),
        }
        let name = object::name(&new).to_owned();
        let key = call.key(&name);
        if call.dry_run {
            if call.api.objects.get(&key)?.is_some() {
                return Err(Refusal::already_exists(&resource.group, &resource.plural, &name));
            }
            return Ok(Written { object: present::show(resource, new), created: true, warnings });
        }
        if let Some(stored) = call.api.objects.create(&key, &new).await? {
            after(call)?;
            return Ok(Written { object: present::show(resource, stored.object), created: true, warnings });
        }
        if !generated {
            return Err(Refusal::already_exists(&resource.group, &resource.plural, &name));
        }
    }
    Err(Refusal::new(Reason::AlreadyExists, "no free name was found for generateName: try again"))
}

/// Whether every value has the type that the schema of a custom resource names, the parts behind other doors included.
fn fits_types(call: &Call<'_>, sent: &Value) -> bool {
    call.resource.custom().is_none_or(|custom| typed::misfit(&custom.schema, sent).is_none())
}

/// The creator owns what it could set: not a status that has its own door.
fn track_creation(call: &Call<'_>, new: &mut Value) {
    let separate = call.resource.has("status") && !call.resource.is("", "nodes");
    let status = if separate { object::as_map(new).remove("status") } else { None };
    call.as_writer(|w| track_update(None, new, w, call.resource.shape()));
    if let Some(status) = status {
        object::as_map(new).insert("status".into(), status);
    }
}

/// Changes an object: `edit` turns what is shown into what is wanted, again for every attempt.
pub async fn change<F>(call: &Call<'_>, name: &str, mut edit: F) -> Result<Written, Refusal>
where
    F: FnMut(&Value) -> Result<Edited, Refusal>,
{
    for _ in 0..ATTEMPTS {
        let current = call.api.objects.get(&call.key(name))?.ok_or_else(|| call.not_found(name))?;
        let shown = present::show(&call.resource, current.object.clone());
        let edited = edit(&shown)?;
        if let Some(written) = attempt(call, name, &current, edited).await? {
            return Ok(written);
        }
    }
    Err(call.conflict(name, "the object kept changing: try again"))
}

async fn attempt(call: &Call<'_>, name: &str, current: &Stored, edited: Edited) -> Result<Option<Written>, Refusal> {
    let resource = &call.resource;
    let mut sent = edited.object;
    check_kind(call, &mut sent)?;
    check_identity(call, name, current, &sent)?;
    // What a patch made must be readable as a whole, whatever of it is behind this door.
    let typed = fits_types(call, &sent);
    let by_client = !edited.tracked && call.door != Door::Server;
    let seen = if by_client { Some(admit::read(resource, &sent)?) } else { None };
    let mut new = isolate(call, present::store(resource, sent), &current.object);
    keep_identity(&mut new, &current.object);
    check_new_finalizers(call, &new, &current.object)?;
    // The server itself may change what clients may not; a custom resource's unchanged parts are excused all the same.
    let old = (call.door != Door::Server || resource.custom().is_some()).then_some(&current.object);
    let unknown = admit::fit(resource, &mut new, nulls(edited.tracked && call.door != Door::Server))?;
    let warnings = weigh_unknown(call, seen.unwrap_or(unknown))?;
    admit::judge(resource, &new, old).map_err(|refusal| refusal.warning(&warnings))?;
    if call.door == Door::Main {
        admit::count_generation(resource, &mut new, &current.object);
    }
    let _ports = finish(call, &mut new, Some(&current.object)).await?;
    if !edited.tracked && !typed {
        // Who owns what cannot be told of values that are not what the schema says: it stays as it was.
        match object::at(&current.object, &["metadata", "managedFields"]) {
            Some(managed) => object::set_meta(&mut new, "managedFields", managed.clone()),
            None => object::remove_meta(&mut new, "managedFields"),
        }
    } else if !edited.tracked {
        call.as_writer(|w| track_update(Some(&current.object), &mut new, w, resource.shape()));
    }
    let written =
        |object: Value| Written { object: present::show(resource, object), created: false, warnings: warnings.clone() };
    object::set_meta(&mut new, "resourceVersion", object::resource_version(&current.object).to_owned());
    if call.dry_run {
        return Ok(Some(written(new)));
    }
    if object::same_but_for_times(&new, &current.object) {
        return Ok(Some(written(current.object.clone())));
    }
    if finished(&new) {
        let Some(_) = call.api.objects.delete(&current.key, current.revision).await? else { return Ok(None) };
        after(call)?;
        return Ok(Some(written(new)));
    }
    let Some(stored) = call.api.objects.replace(&current.key, &new, current.revision).await? else { return Ok(None) };
    after(call)?;
    Ok(Some(written(stored.object)))
}

fn nulls(applied: bool) -> Nulls {
    if applied { Nulls::Judge } else { Nulls::Drop }
}

/// Whether nothing holds a deleting object back any more.
pub fn finished(object: &Value) -> bool {
    let grace =
        object::at(object, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64).unwrap_or_default();
    let namespace = object::text(object, &["kind"]) == "Namespace" && object::text(object, &["apiVersion"]) == "v1";
    let holds_content = namespace && !object::list(object, &["spec", "finalizers"]).is_empty();
    object::deleting(object) && object::finalizers(object).is_empty() && grace == 0 && !holds_content
}

/// What must be done once a write of this resource is stored.
pub fn after(call: &Call<'_>) -> Result<(), Refusal> {
    if call.resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        call.api.reload_definitions()?;
    }
    Ok(())
}

/// What only the server can fill in, with what must be held until the write is stored.
async fn finish<'a>(
    call: &Call<'a>,
    new: &mut Value,
    old: Option<&Value>,
) -> Result<Option<tokio::sync::MutexGuard<'a, ()>>, Refusal> {
    if call.resource.is("apiextensions.k8s.io", "customresourcedefinitions") && call.door != Door::Status {
        admit::settle_definition(new, &call.api.registry.served(), call.time)?;
    }
    if call.resource.is("", "services") {
        let guard = call.api.node_ports.lock().await;
        super::verbs::node_ports::assign(call.api, new, old)?;
        return Ok(Some(guard));
    }
    Ok(None)
}

fn check_kind(call: &Call<'_>, sent: &mut Value) -> Result<(), Refusal> {
    if !sent.is_object() {
        return Err(Refusal::bad_request("the object must be a map"));
    }
    let (kind, api_version) = (call.resource.kind.clone(), call.resource.api_version());
    for (field, wanted) in [("kind", kind), ("apiVersion", api_version)] {
        let found = object::text(sent, &[field]);
        if found.is_empty() && call.resource.custom().is_some() {
            let kind = &call.resource.kind;
            let what = format!("the object provided is unrecognized (must be of type {kind}): {field} is missing");
            return Err(Refusal::bad_request(what));
        }
        if !found.is_empty() && found != wanted {
            return Err(Refusal::bad_request(format!(
                "{field} in the object ({found}) does not match the expected {field} ({wanted})"
            )));
        }
        object::as_map(sent).insert(field.into(), wanted.into());
    }
    let namespace = object::namespace(sent);
    if call.resource.namespaced {
        if !namespace.is_empty() && namespace != call.target.namespace {
            return Err(Refusal::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        object::set_meta(sent, "namespace", call.target.namespace.clone());
    } else if !namespace.is_empty() {
        return Err(Refusal::bad_request("namespace may not be set on a cluster-scoped object"));
    }
    Ok(())
}

fn check_identity(call: &Call<'_>, name: &str, current: &Stored, sent: &Value) -> Result<(), Refusal> {
    if object::name(sent) != name {
        return Err(Refusal::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({name})",
            object::name(sent)
        )));
    }
    let (uid, found) = (object::uid(sent), object::uid(&current.object));
    if !uid.is_empty() && uid != found {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
        return Err(call.conflict(name, &why));
    }
    let version = object::resource_version(sent);
    if !version.is_empty() && version != "0" && version != object::resource_version(&current.object) {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        return Err(call.conflict(name, why));
    }
    Ok(())
}

/// Lets a door change only what is behind it.
fn isolate(call: &Call<'_>, mut new: Value, current: &Value) -> Value {
    match call.door {
        Door::Main if call.resource.has("status") => {
            let map = object::as_map(&mut new);
            match current.get("status") {
                Some(status) => map.insert("status".into(), status.clone()),
                None => map.remove("status"),
            };
            new
        }
        Door::Main | Door::Server => new,
        Door::Status
            if call.resource.custom().is_none()
                && !call.resource.is("apiextensions.k8s.io", "customresourcedefinitions") =>
        {
            keep_behind_other_doors(call, &mut new, current);
            new
        }
        Door::Status => {
            let mut out = current.clone();
            let map = object::as_map(&mut out);
            match new.get("status") {
                Some(status) => map.insert("status".into(), status.clone()),
                None => map.remove("status"),
            };
            if let Some(managed) = object::at(&new, &["metadata", "managedFields"]) {
                object::set_meta(&mut out, "managedFields", managed.clone());
            }
            out
        }
    }
}

/// Through the status door of a built-in kind metadata can be changed as well, but nothing else that has another door.
fn keep_behind_other_doors(call: &Call<'_>, new: &mut Value, current: &Value) {
    let map = object::as_map(new);
    map.retain(|name, _| matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
    for (name, value) in current.as_object().into_iter().flatten() {
        map.entry(name.clone()).or_insert_with(|| value.clone());
    }
    if !new.get("status").is_some_and(Value::is_object) {
        object::as_map(new).remove("status");
    }
    let kept: &[&str] = match call.resource.kind.as_str() {
        "Deployment" => &["labels"],
        "Pod" => &["ownerReferences"],
        _ => &[],
    };
    for field in kept {
        match object::at(current, &["metadata", field]) {
            Some(value) => object::set_meta(new, field, value.clone()),
            None => object::remove_meta(new, field),
        }
    }
}

fn keep_identity(new: &mut Value, current: &Value) {
    let fields =
        ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "generateName"];
    for field in fields {
        match object::at(current, &["metadata", field]) {
            Some(value) => object::set_meta(new, field, value.clone()),
            None => object::remove_meta(new, field),
        }
    }
    object::remove_meta(new, "selfLink");
    object::remove_meta(new, "resourceVersion");
}

fn check_new_finalizers(call: &Call<'_>, new: &Value, current: &Value) -> Result<(), Refusal> {
    if !object::deleting(current) || call.door == Door::Server {
        return Ok(());
    }
    let before = object::finalizers(current);
    match object::finalizers(new).iter().find(|f| !before.contains(f)) {
        None => Ok(()),
        Some(added) => {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
            );
            let error = FieldError::new(Fault::Forbidden, "metadata.finalizers", None, detail);
            Err(Refusal::invalid(&call.resource.group, &call.resource.kind, object::name(current), vec![error]))
        }
    }
}

fn check_namespace(call: &Call<'_>) -> Result<(), Refusal> {
    let name = &call.target.namespace;
    if name.is_empty() {
        return Err(Refusal::no_such_verb("POST over all namespaces"));
    }
    let mut key = super::objects::prefix("", "namespaces", "");
    key.extend_from_slice(name.as_bytes());
    let found = call.api.objects.get(&key)?.ok_or_else(|| Refusal::not_found("", "namespaces", name))?;
    if object::deleting(&found.object) {
        let message = format!("unable to create new content in namespace {name} because it is being terminated");
        let field = "metadata.namespace".to_owned();
        let cause =
            Cause { reason: "NamespaceTerminating", message: format!("namespace {name} is being terminated"), field };
        return Err(Refusal::new(Reason::Forbidden, message)
            .about(&call.resource.group, &call.resource.plural, &call.target.name)
            .because(vec![cause]));
    }
    Ok(())
}

/// Makes a name of `generateName`; without that the name stays empty, which is judged with the rest.
fn generate_name(new: &mut Value) {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let base: String = object::text(new, &["metadata", "generateName"]).chars().take(58).collect();
    if !base.is_empty() {
        let suffix: String = (0..5).map(|_| char::from(LETTERS[rand::random_range(0..LETTERS.len())])).collect();
        object::set_meta(new, "name", format!("{base}{suffix}"));
    }
}

/// Warnings about fields nobody knows, or a refusal if the caller asked to be strict.
pub fn weigh_unknown(call: &Call<'_>, unknown: Vec<String>) -> Result<Vec<String>, Refusal> {
    if unknown.is_empty() {
        return Ok(Vec::new());
    }
    let words: Vec<String> = unknown.iter().map(|path| format!("unknown field \"{path}\"")).collect();
    match call.strictness {
        Strictness::Ignore => Ok(Vec::new()),
        Strictness::Warn => Ok(words),
        Strictness::Strict => Err(Refusal::unreadable(format!("strict decoding error: {}", words.join(", ")))),
    }
}
