//! `cellctl describe KIND [NAME]`: everything about a resource: spec, status, what it waits for, what to do next, events.

use clap::Args;
use serde_json::{Value, json};

use super::{events, list, name_of, one};
use crate::args::Global;
use crate::blocked;
use crate::connect::Connection;
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::{Format, View, write_out, yaml};

/// Flags of `describe`.
#[derive(Args, Debug)]
pub struct DescribeArgs {
    /// fleets, cells, guilds, moves, storagecells, storagemigrations or pods
    #[arg(value_name = "KIND")]
    pub kind: Kind,
    /// One resource; a guild also by its bare id. Without it, all of them
    pub name: Option<String>,
}

/// Describes resources.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: DescribeArgs, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    let objects = match &args.name {
        Some(name) => vec![one(&connection, args.kind, name).await?],
        None => list(&connection, args.kind).await?,
    };
    if global.output != Format::Table {
        let names = objects.iter().map(|object| args.kind.qualified(name_of(object))).collect();
        let value = match (&args.name, objects.first()) {
            (Some(_), Some(object)) => object.clone(),
            _ => json!({"apiVersion": "v1", "kind": "List", "items": objects}),
        };
        View { value, names, ..View::default() }.print(global.output)?;
        return Ok(Exit::Done);
    }
    for (number, object) in objects.iter().enumerate() {
        let events = events::of(&connection, args.kind, Some(name_of(object))).await?;
        let text = text(args.kind, object, &events)?;
        write_out(&if number == 0 { text } else { format!("\n{text}") })?;
    }
    Ok(Exit::Done)
}

fn text(kind: Kind, object: &Value, events: &[Value]) -> Result<String, CommandError> {
    let metadata = &object["metadata"];
    let blocked = if kind == Kind::Pods { blocked::of_pod(object) } else { blocked::of_resource(object) };
    let mut text = format!(
        "Name:        {}\nNamespace:   {}\nKind:        {}\n",
        name_of(object),
        metadata["namespace"].as_str().unwrap_or("-"),
        kind.singular()
    );
    text.push_str(&format!(
        "Created:     {}\nGeneration:  {}\n",
        metadata["creationTimestamp"].as_str().unwrap_or("-"),
        metadata["generation"].as_i64().unwrap_or(0)
    ));
    if let Some(since) = metadata["deletionTimestamp"].as_str() {
        text.push_str(&format!("Deleting:    since {since}, held by {}\n", metadata["finalizers"]));
    }
    text.push_str(&format!("Blocked by:  {blocked}\n"));
    if let Some(next) = next(kind, object, &blocked) {
        text.push_str(&format!("Next:        {next}\n"));
    }
    for section in ["spec", "status"] {
        if object[section].is_object() {
            text.push_str(&format!(
                "\n{}:\n{}",
                section[..1].to_uppercase() + &section[1..],
                indented(&yaml(&object[section])?)
            ));
        }
    }
    text.push_str("\nEvents:\n");
    let listed = View { table: events::table(events), ..View::default() }.render(Format::Table)?;
    text.push_str(&if events.is_empty() { "  none\n".to_owned() } else { indented(&listed) });
    Ok(text)
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// The command that helps next.
fn next(kind: Kind, object: &Value, blocked: &str) -> Option<String> {
    let name = name_of(object);
    let waits = blocked != blocked::NOTHING;
    match kind {
        Kind::Moves if object["status"]["result"].is_null() => Some(format!("cellctl guild move watch {name}")),
        Kind::Moves => None,
        Kind::StorageMigrations if object["status"]["result"].is_null() => {
            Some(crate::commands::migration::next_step(name, &object["status"]))
        }
        Kind::StorageMigrations => None,
        Kind::Guilds if object["status"]["moveRef"].is_string() && waits => {
            Some(format!("cellctl guild move watch {}", object["status"]["moveRef"].as_str().unwrap_or_default()))
        }
        _ if !waits => None,
        Kind::Pods => Some(format!("cellctl logs pods {name}")),
        Kind::Cells => Some(format!("cellctl get pods; cellctl logs cells {name}")),
        Kind::Fleets => Some("cellctl get cells; cellctl get storagecells".to_owned()),
        Kind::StorageCells => Some(format!("cellctl storage doctor {name}")),
        Kind::Guilds => Some("cellctl get moves".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_says_what_is_waited_for_and_what_to_do() {
        let object = json!({
            "metadata": {"name": "a", "namespace": "n", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"weight": 100},
            "status": {"observedGeneration": 1, "blockedBy": "PodsNotReady: gateway 1/2"},
        });
        assert_eq!(
            text(Kind::Cells, &object, &[]).unwrap(),
            "\
Name:        a
Namespace:   n
Kind:        Cell
Created:     2026-01-01T00:00:00Z
Generation:  1
Blocked by:  PodsNotReady: gateway 1/2
Next:        cellctl get pods; cellctl logs cells a

Spec:
  weight: 100

Status:
  blockedBy: \"PodsNotReady: gateway 1/2\"
  observedGeneration: 1

Events:
  none
"
        );
    }
}
