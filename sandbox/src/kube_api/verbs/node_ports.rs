//! What a Service's type decides: node ports, kept when given and free, chosen when needed; and fields that go with another type. The
//! caller holds the lock until the Service is stored.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::kube_api::api::Api;
use crate::kube_api::object::{self, list, text};
use crate::kube_api::objects::prefix;
use crate::kube_api::status::{FieldError, Refusal};

const RANGE: std::ops::RangeInclusive<i64> = 30_000..=32_767;

/// Fills in the node ports of a Service, or removes those its type does not have.
pub fn assign(api: &Api, service: &mut Value, old: Option<&Value>) -> Result<(), Refusal> {
    let wants = is_reached_from_outside(service);
    if let Some(old) = old {
        drop_what_another_type_had(service, old);
    }
    let own = (object::namespace(service).to_owned(), object::name(service).to_owned());
    let mut taken = BTreeSet::new();
    for other in api.objects.all(&prefix("", "services", ""))?.items {
        if (object::namespace(&other.object), object::name(&other.object)) != (own.0.as_str(), own.1.as_str()) {
            taken.extend(list(&other.object, &["spec", "ports"]).iter().filter_map(node_port));
        }
    }
    let before: Vec<Value> = old.map(|o| list(o, &["spec", "ports"]).to_vec()).unwrap_or_default();
    let mut errors = Vec::new();
    let Some(ports) = service.pointer_mut("/spec/ports").and_then(Value::as_array_mut) else { return Ok(()) };
    for (i, port) in ports.iter_mut().enumerate() {
        if !wants {
            object::as_map(port).remove("nodePort");
            continue;
        }
        let field = format!("spec.ports[{i}].nodePort");
        let wanted = node_port(port).or_else(|| {
            let same = before
                .iter()
                .find(|b| b.get("port") == port.get("port") && b.get("protocol") == port.get("protocol"))?;
            node_port(same).filter(|p| !taken.contains(p))
        });
        let number = match wanted {
            Some(number) if !RANGE.contains(&number) => {
                errors.push(FieldError::invalid(
                    field,
                    &Value::from(number),
                    "provided port is not in the valid range 30000-32767",
                ));
                continue;
            }
            Some(number) if taken.contains(&number) => {
                errors.push(FieldError::invalid(field, &Value::from(number), "provided port is already allocated"));
                continue;
            }
            Some(number) => number,
            None => match free(&taken) {
                Some(number) => number,
                None => return Err(Refusal::internal("no node port is free: delete a Service of type NodePort")),
            },
        };
        taken.insert(number);
        object::as_map(port).insert("nodePort".into(), number.into());
    }
    if errors.is_empty() { Ok(()) } else { Err(Refusal::invalid("", "Service", &own.1, errors)) }
}

fn is_reached_from_outside(service: &Value) -> bool {
    matches!(text(service, &["spec", "type"]), "NodePort" | "LoadBalancer")
}

/// A field that only the old type has goes with it, unless the same change gave it a value: whoever changes the type need not know it.
fn drop_what_another_type_had(service: &mut Value, old: &Value) {
    let balanced = |service: &Value| text(service, &["spec", "type"]) == "LoadBalancer";
    let gone = [
        ("externalTrafficPolicy", is_reached_from_outside(old) && !is_reached_from_outside(service)),
        ("allocateLoadBalancerNodePorts", balanced(old) && !balanced(service)),
        ("loadBalancerClass", balanced(old) && !balanced(service)),
    ];
    let Some(spec) = service.pointer_mut("/spec").and_then(Value::as_object_mut) else { return };
    for (field, _) in gone.into_iter().filter(|(_, gone)| *gone) {
        if spec.get(field) == old.pointer(&format!("/spec/{field}")) {
            spec.remove(field);
        }
    }
}

fn node_port(port: &Value) -> Option<i64> {
    port.get("nodePort").and_then(Value::as_i64).filter(|p| *p != 0)
}

/// A free port, from a random place on, so that a deleted Service's port is not at once another's.
fn free(taken: &BTreeSet<i64>) -> Option<i64> {
    let (low, high) = (*RANGE.start(), *RANGE.end());
    let start = rand::random_range(low..=high);
    (start..=high).chain(low..start).find(|p| !taken.contains(p))
}
