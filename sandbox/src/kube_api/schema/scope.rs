//! Whether a rule names only fields its schema has. Kubernetes refuses other rules when the definition is made; so does this, as far as
//! fields can be followed (through selection, indexing and comprehensions over `self` and `oldSelf`). What cannot be followed is let
//! pass and judged when the rule runs.

use kube_cel::cel::Program;
use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr};

use super::{Additional, Schema, cel_value::escape};

/// What an expression stands for.
#[derive(Clone, Copy)]
enum Known<'a> {
    Node {
        schema: &'a Schema,
        root: bool,
    },
    /// The metadata of an object, of which rules see only the name.
    Metadata,
    Nothing,
}

/// The first field named that the schema does not have.
pub fn undefined_field(program: &Program, schema: &Schema, root: bool, old_is_optional: bool) -> Option<String> {
    let mut walk = Walk { schema, root, old_is_optional, scope: Vec::new(), undefined: None };
    walk.follow(program.expression());
    walk.undefined
}

struct Walk<'a> {
    schema: &'a Schema,
    root: bool,
    old_is_optional: bool,
    scope: Vec<(String, Known<'a>)>,
    undefined: Option<String>,
}

impl<'a> Walk<'a> {
    fn follow(&mut self, expression: &IdedExpr) -> Known<'a> {
        match &expression.expr {
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => {
                let operand = self.follow(&select.operand);
                self.select(operand, &select.field)
            }
            Expr::Call(call) => {
                let target = call.target.as_deref().map(|t| self.follow(t));
                let arguments: Vec<Known<'a>> = call.args.iter().map(|a| self.follow(a)).collect();
                match (call.func_name.as_str(), target, arguments.as_slice()) {
                    ("_[_]", None, [container, _]) => item(*container),
                    _ => Known::Nothing,
                }
            }
            Expr::Comprehension(comprehension) => {
                let range = self.follow(&comprehension.iter_range);
                self.follow(&comprehension.accu_init);
                let depth = self.scope.len();
                self.scope.push((comprehension.iter_var.clone(), element(range)));
                self.scope.push((comprehension.accu_var.clone(), Known::Nothing));
                if let Some(second) = &comprehension.iter_var2 {
                    self.scope.push((second.clone(), Known::Nothing));
                }
                for inner in [&comprehension.loop_cond, &comprehension.loop_step, &comprehension.result] {
                    self.follow(inner);
                }
                self.scope.truncate(depth);
                Known::Nothing
            }
            Expr::List(list) => {
                list.elements.iter().for_each(|e| {
                    self.follow(e);
                });
                Known::Nothing
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.follow(&entry.key);
                        self.follow(&entry.value);
                    }
                }
                Known::Nothing
            }
            Expr::Struct(_) | Expr::Literal(_) | Expr::Unspecified => Known::Nothing,
        }
    }

    fn variable(&self, name: &str) -> Known<'a> {
        if let Some((_, known)) = self.scope.iter().rev().find(|(n, _)| n == name) {
            return *known;
        }
        match name {
            "self" => Known::Node { schema: self.schema, root: self.root },
            "oldSelf" if !self.old_is_optional => Known::Node { schema: self.schema, root: self.root },
            _ => Known::Nothing,
        }
    }

    fn select(&mut self, operand: Known<'a>, field: &str) -> Known<'a> {
        let (schema, root) = match operand {
            Known::Nothing => return Known::Nothing,
            Known::Metadata => {
                if !matches!(field, "name" | "generateName") {
                    self.undefined.get_or_insert_with(|| format!("metadata.{field}"));
                }
                return Known::Nothing;
            }
            Known::Node { schema, root } => (schema, root),
        };
        if root || schema.embedded {
            match field {
                "metadata" => return Known::Metadata,
                "apiVersion" | "kind" => return Known::Nothing,
                _ => {}
            }
        }
        if let Some((_, property)) = schema.properties.iter().find(|(name, _)| escape(name) == field) {
            return Known::Node { schema: property, root: false };
        }
        match &schema.additional {
            Additional::Schema(values) => Known::Node { schema: values, root: false },
            Additional::Any => Known::Nothing,
            Additional::None if schema.preserve || schema.int_or_string => Known::Nothing,
            Additional::None => {
                self.undefined.get_or_insert_with(|| field.to_owned());
                Known::Nothing
            }
        }
    }
}

/// What indexing a container gives.
fn item(container: Known<'_>) -> Known<'_> {
    let Known::Node { schema, .. } = container else { return Known::Nothing };
    match (&schema.items, &schema.additional) {
        (Some(items), _) => Known::Node { schema: items, root: false },
        (None, Additional::Schema(values)) => Known::Node { schema: values, root: false },
        _ => Known::Nothing,
    }
}

/// What a comprehension's variable stands for: an item of a list; the keys of a map are texts.
fn element(range: Known<'_>) -> Known<'_> {
    match range {
        Known::Node { schema, .. } if schema.items.is_some() => item(range),
        _ => Known::Nothing,
    }
}
