//! One served version of a CustomResourceDefinition: compiled from the definition, it prunes, defaults and judges objects. It never
//! reads the store; whether the definition itself is sound is decided by `compile`.

use std::sync::Arc;

use serde_json::Value;

use super::jsonpath::JsonPath;
use super::kinds::{Model, Resource};
use super::object::{self, list, text};
use super::schema::{self, Schema};
use super::status::{Fault, FieldError};

/// A served version.
#[derive(Debug)]
pub struct CustomVersion {
    pub schema: Schema,
    pub columns: Vec<Column>,
    pub scale: Option<ScalePaths>,
    /// Whether status has its own door.
    pub status: bool,
    /// Name of the definition.
    pub definition: String,
    /// The definition is being deleted: nothing may be created.
    pub terminating: bool,
}

/// An `additionalPrinterColumns` entry.
#[derive(Debug)]
pub struct Column {
    pub name: String,
    pub kind: String,
    pub format: String,
    pub description: String,
    pub priority: i64,
    pub path: JsonPath,
}

/// What becomes of nulls a schema forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nulls {
    /// They count as absent: a client sent the object as a whole.
    Drop,
    /// They are judged: a client applied them.
    Judge,
}

/// Where replicas live.
#[derive(Debug, Clone)]
pub struct ScalePaths {
    pub spec_replicas: Vec<String>,
    pub status_replicas: Vec<String>,
    pub selector: Option<Vec<String>>,
}

impl ScalePaths {
    /// What is found where a scale is to be read must be countable.
    fn judge(&self, object: &Value) -> Vec<FieldError> {
        let find = |path: &[String]| path.iter().try_fold(object, |v, key| v.get(key)).cloned();
        let mut errors = Vec::new();
        for path in [&self.spec_replicas, &self.status_replicas] {
            let Some(found) = find(path) else { continue };
            let detail = match found.as_i64() {
                Some(n) if n < 0 => "should be a non-negative integer",
                Some(n) if n > i64::from(i32::MAX) => "should be less than or equal to 2147483647",
                Some(_) => continue,
                None => "accessor error: expected int64",
            };
            errors.push(FieldError::invalid(format!(".{}", path.join(".")), &found, detail));
        }
        if let Some(path) = &self.selector
            && let Some(found) = find(path).filter(|found| !found.is_string())
        {
            errors.push(FieldError::invalid(format!(".{}", path.join(".")), &found, "accessor error: expected string"));
        }
        errors
    }
}

/// The resources a definition serves: one for each served version, the storage version's data model for all.
pub fn resources(definition: &Value) -> Result<Vec<Resource>, Vec<FieldError>> {
    let mut out = Vec::new();
    let mut errors = Vec::new();
    for (i, version) in list(definition, &["spec", "versions"]).iter().enumerate() {
        match compile(definition, version, &format!("spec.versions[{i}]")) {
            Ok(custom) => {
                if version.get("served").and_then(Value::as_bool).unwrap_or_default() {
                    out.push(resource(definition, version, custom));
                }
            }
            Err(more) => errors.extend(more),
        }
    }
    if errors.is_empty() { Ok(out) } else { Err(errors) }
}

fn resource(definition: &Value, version: &Value, custom: CustomVersion) -> Resource {
    let names = |key: &str| -> Vec<String> {
        list(definition, &["spec", "names", key]).iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    let name = |key: &str| text(definition, &["spec", "names", key]).to_owned();
    let group = text(definition, &["spec", "group"]).to_owned();
    let singular = Some(name("singular")).filter(|s| !s.is_empty()).unwrap_or_else(|| name("kind").to_lowercase());
    let mut subresources = Vec::new();
    if custom.status {
        subresources.push("status".to_owned());
    }
    if custom.scale.is_some() {
        subresources.push("scale".to_owned());
    }
    let selectable = list(version, &["selectableFields"])
        .iter()
        .map(|f| text(f, &["jsonPath"]).trim_start_matches('.').to_owned())
        .collect();
    Resource {
        version: text(version, &["name"]).to_owned(),
        kind: name("kind"),
        plural: name("plural"),
        singular,
        short_names: names("shortNames"),
        categories: names("categories"),
        namespaced: text(definition, &["spec", "scope"]) == "Namespaced",
        subresources,
        selectable,
        stored_as: (group.clone(), name("plural")),
        group,
        model: Model::Custom(Arc::new(custom)),
    }
}

fn compile(definition: &Value, version: &Value, path: &str) -> Result<CustomVersion, Vec<FieldError>> {
    let schema_path = format!("{path}.schema.openAPIV3Schema");
    let Some(root) = object::at(version, &["schema", "openAPIV3Schema"]) else {
        return Err(vec![FieldError::required(schema_path, "schemas are required")]);
    };
    let schema = schema::compile::compile(&schema_path, root)?;
    let mut errors = Vec::new();
    let mut columns = Vec::new();
    for (i, raw) in list(version, &["additionalPrinterColumns"]).iter().enumerate() {
        let source = text(raw, &["jsonPath"]);
        match JsonPath::parse(source) {
            Ok(path) => columns.push(Column {
                name: text(raw, &["name"]).to_owned(),
                kind: text(raw, &["type"]).to_owned(),
                format: text(raw, &["format"]).to_owned(),
                description: text(raw, &["description"]).to_owned(),
                priority: raw.get("priority").and_then(Value::as_i64).unwrap_or_default(),
                path,
            }),
            Err(why) => {
                let field = format!("{path}.additionalPrinterColumns[{i}].jsonPath");
                errors.push(FieldError::invalid(field, &Value::from(source), why));
            }
        }
    }
    let dotted = |key: &str| -> Option<Vec<String>> {
        let path = text(version, &["subresources", "scale", key]);
        (!path.is_empty()).then(|| path.trim_start_matches('.').split('.').map(str::to_owned).collect())
    };
    let scale = match (dotted("specReplicasPath"), dotted("statusReplicasPath")) {
        (Some(spec_replicas), Some(status_replicas)) => {
            Some(ScalePaths { spec_replicas, status_replicas, selector: dotted("labelSelectorPath") })
        }
        (None, None) => None,
        _ => {
            let field = format!("{path}.subresources.scale");
            errors.push(FieldError::required(field, "specReplicasPath and statusReplicasPath must both be set"));
            None
        }
    };
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok(CustomVersion {
        schema,
        columns,
        scale,
        status: object::at(version, &["subresources", "status"]).is_some(),
        definition: object::name(definition).to_owned(),
        terminating: object::deleting(definition),
    })
}

impl CustomVersion {
    /// Prunes and defaults in place; the paths pruned are returned.
    pub fn fill(&self, object: &mut Value, nulls: Nulls) -> Vec<String> {
        let pruned = schema::fill::prune(&self.schema, object);
        if nulls == Nulls::Drop {
            schema::fill::drop_nulls(&self.schema, object);
        }
        schema::fill::default(&self.schema, object);
        pruned
    }

    /// Every fault of the object; what did not change since `old` is excused.
    pub fn judge(&self, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = schema::validate::validate(&self.schema, new, old);
        // Rules may rely on what the schema promises: they are asked only where that holds.
        let blocking = [Fault::NotSupported, Fault::Required, Fault::TooLong, Fault::TooMany, Fault::TypeInvalid];
        if errors.iter().all(|e| !blocking.contains(&e.fault)) {
            errors.extend(schema::rules::check(&self.schema, new, old));
        } else if schema::rules::has_rules(&self.schema) {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to \
                          complete validation";
            errors.push(FieldError::invalid("", &Value::Null, detail));
        }
        errors.extend(self.scale.iter().flat_map(|scale| scale.judge(new)));
        errors
    }
}

/// What is wrong with a definition beyond its schemas: names, versions, scope.
pub fn judge_definition(definition: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = |key: &str| text(definition, &["spec", "names", key]);
    let group = text(definition, &["spec", "group"]);
    let wanted = format!("{}.{group}", name("plural"));
    if object::name(definition) != wanted {
        let found = Value::from(object::name(definition));
        errors.push(FieldError::invalid(
            "metadata.name",
            &found,
            format!("must be spec.names.plural+\".\"+spec.group: {wanted}"),
        ));
    }
    if !super::names::dns_subdomain(group) || !group.contains('.') {
        errors.push(FieldError::invalid("spec.group", &Value::from(group), "should be a domain with at least one dot"));
    }
    for key in ["plural", "kind"] {
        if !super::names::dns_1035(&name(key).to_lowercase()) {
            let found = Value::from(name(key));
            errors.push(FieldError::invalid(format!("spec.names.{key}"), &found, "must be a DNS-1035 label"));
        }
    }
    let scope = text(definition, &["spec", "scope"]);
    if !matches!(scope, "Namespaced" | "Cluster") {
        let value = Value::from(scope);
        errors.push(FieldError::new(
            Fault::NotSupported,
            "spec.scope",
            Some(&value),
            "supported values: \"Cluster\", \"Namespaced\"",
        ));
    }
    let versions = list(definition, &["spec", "versions"]);
    let storage = versions.iter().filter(|v| v.get("storage").and_then(Value::as_bool).unwrap_or_default()).count();
    if storage != 1 {
        let found = Value::from(versions.len());
        errors.push(FieldError::invalid(
            "spec.versions",
            &found,
            "must have exactly one version marked as storage version",
        ));
    }
    for (i, version) in versions.iter().enumerate() {
        let found = text(version, &["name"]);
        if !super::names::dns_1035(found) {
            errors.push(FieldError::invalid(
                format!("spec.versions[{i}].name"),
                &Value::from(found),
                "must be a DNS-1035 label",
            ));
        }
        if versions[..i].iter().any(|v| text(v, &["name"]) == found) {
            errors.push(FieldError::new(
                Fault::Duplicate,
                format!("spec.versions[{i}].name"),
                Some(&Value::from(found)),
                "",
            ));
        }
    }
    let strategy = text(definition, &["spec", "conversion", "strategy"]);
    if !matches!(strategy, "" | "None") {
        let detail = "conversion webhooks are not offered by the sandbox: use strategy None";
        errors.push(FieldError::new(
            Fault::NotSupported,
            "spec.conversion.strategy",
            Some(&Value::from(strategy)),
            detail,
        ));
    }
    errors
}
