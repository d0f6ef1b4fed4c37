//! Label selectors. It decides whether labels match; an unknown operator matches nothing.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Labels as the API carries them.
pub type Labels = BTreeMap<String, String>;

/// True when `labels` meet every requirement of `selector`. An empty selector matches everything.
pub fn matches(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let none = Labels::new();
    let labels = labels.unwrap_or(&none);
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|requirement| {
            meets(&requirement.operator, labels.get(&requirement.key), requirement.values.as_deref().unwrap_or(&[]))
        })
}

/// True when every pair of `wanted` is among `labels`.
pub fn contains_all(wanted: &Labels, labels: Option<&Labels>) -> bool {
    wanted.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

/// One requirement of a label or node selector.
pub fn meets(operator: &str, value: Option<&String>, wanted: &[String]) -> bool {
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    match operator {
        "In" => value.is_some_and(|value| wanted.contains(value)),
        "NotIn" => value.is_none_or(|value| !wanted.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => matches!((number(value), number(wanted.first())), (Some(have), Some(than)) if have > than),
        "Lt" => matches!((number(value), number(wanted.first())), (Some(have), Some(than)) if have < than),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operator_decides_as_its_name_says() {
        let a = "5".to_owned();
        let five = Some(&a);
        let wanted = ["4".to_owned()];
        assert!(!meets("In", five, &wanted) && meets("NotIn", five, &wanted) && meets("Gt", five, &wanted));
        assert!(meets("Exists", five, &[]) && !meets("DoesNotExist", five, &[]) && !meets("Lt", five, &wanted));
        assert!(!meets("Near", five, &wanted), "an unknown operator matches nothing");
    }
}
