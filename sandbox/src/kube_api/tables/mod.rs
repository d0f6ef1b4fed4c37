//! How answers look: plain, as a Table, or as metadata only, by the `Accept` header. It decides columns, never content.

pub mod built_in;
pub mod cells;
mod jobs;

use std::sync::Arc;

use serde_json::{Value, json};

use super::kinds::{Model, Resource};
use super::object;
use super::status::{Reason, Refusal};

/// A form of answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Plain,
    /// `as=Table`, with whole objects, their metadata or nothing in each row.
    Table(Include),
    /// `as=PartialObjectMetadata` or its list.
    Metadata,
    /// The aggregated form of discovery.
    Discovery,
}

/// What a table's rows carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    Object,
}

/// The form an `Accept` header asks for.
pub fn format(accept: &str, include: &str) -> Result<Format, Refusal> {
    if accept.trim().is_empty() {
        return Ok(Format::Plain);
    }
    for media in accept.split(',') {
        let mut parts = media.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        if !matches!(kind, "application/json" | "*/*" | "application/*" | "text/plain") {
            continue;
        }
        let parameters: Vec<(&str, &str)> = parts.filter_map(|p| p.split_once('=')).collect();
        let find = |key: &str| parameters.iter().find(|(k, _)| *k == key).map(|(_, v)| *v).unwrap_or_default();
        match (find("as"), find("g"), find("v")) {
            ("", ..) => return Ok(Format::Plain),
            ("Table", "meta.k8s.io", "v1") => {
                let include = match include {
                    "None" => Include::None,
                    "Object" => Include::Object,
                    _ => Include::Metadata,
                };
                return Ok(Format::Table(include));
            }
            ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1") => {
                return Ok(Format::Metadata);
            }
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => return Ok(Format::Discovery),
            _ => {}
        }
    }
    let message = "only the following media types are accepted: application/json, application/json;as=Table;v=v1;g=meta.k8s.io, \
                   application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    Err(Refusal::new(Reason::NotAcceptable, message))
}

/// A column of a table.
#[derive(Debug, Clone)]
pub struct Heading {
    pub name: String,
    pub kind: String,
    pub format: String,
    pub description: String,
    pub priority: i64,
}

/// Renders objects of one resource in one form.
pub struct Renderer {
    resource: Arc<Resource>,
    format: Format,
    headings_sent: bool,
}

impl Renderer {
    /// For one answer or one watch.
    pub fn new(resource: Arc<Resource>, format: Format) -> Self {
        Self { resource, format, headings_sent: false }
    }

    /// One object; within a watch only the first table names its columns.
    pub fn one(&mut self, object: Value) -> Value {
        match self.format {
            Format::Plain | Format::Discovery => object,
            Format::Metadata => partial(&object),
            Format::Table(include) => {
                let version = object::resource_version(&object).to_owned();
                self.table(json!({"resourceVersion": version}), &[object], include)
            }
        }
    }

    /// A bookmark, whose object has only metadata.
    pub fn bookmark(&mut self, object: Value) -> Value {
        match self.format {
            Format::Plain | Format::Discovery => object,
            Format::Metadata => partial(&object),
            Format::Table(_) => json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
                "columnDefinitions": null, "rows": []}),
        }
    }

    /// A list.
    pub fn list(&mut self, mut list: Value) -> Value {
        match self.format {
            Format::Plain | Format::Discovery => {
                // The items of a built-in kind's list do not say what they are: the list does.
                if self.resource.custom().is_none() {
                    for item in list["items"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
                        item.retain(|name, _| !matches!(name.as_str(), "apiVersion" | "kind"));
                    }
                }
                list
            }
            Format::Metadata => {
                let items: Vec<Value> = object::list(&list, &["items"]).iter().map(partial).collect();
                json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": list["metadata"], "items": items})
            }
            Format::Table(include) => self.table(list["metadata"].clone(), object::list(&list, &["items"]), include),
        }
    }

    fn table(&mut self, metadata: Value, objects: &[Value], include: Include) -> Value {
        let now = object::now();
        let headings =
            if self.headings_sent { Value::Null } else { headings(&self.resource).iter().map(heading).collect() };
        self.headings_sent = true;
        let rows: Vec<Value> = objects
            .iter()
            .map(|o| {
                let cells = match &self.resource.model {
                    Model::BuiltIn(_) => built_in::row(&self.resource, o, now),
                    Model::Custom(custom) => cells::custom_row(custom, o, now),
                };
                let carried = match include {
                    Include::None => Value::Null,
                    Include::Metadata => partial(o),
                    Include::Object => o.clone(),
                };
                json!({"cells": cells, "object": carried})
            })
            .collect();
        json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": headings, "rows": rows})
    }
}

fn heading(h: &Heading) -> Value {
    json!({"name": h.name, "type": h.kind, "format": h.format, "description": h.description, "priority": h.priority})
}

fn headings(resource: &Resource) -> Vec<Heading> {
    match &resource.model {
        Model::BuiltIn(_) => built_in::headings(resource),
        Model::Custom(custom) => cells::custom_headings(custom),
    }
}

fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}
