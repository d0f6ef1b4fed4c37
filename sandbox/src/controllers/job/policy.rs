//! What a Pod's failure means by the Job's podFailurePolicy: the first rule that fits decides, and without one it counts. Pure.

use k8s_openapi::api::batch::v1::{JobSpec, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;

use crate::controllers::pods;

/// What a failure means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It counts towards the back-off limit.
    Count,
    /// It does not count.
    Ignore,
    /// It ends the Job: the message.
    FailJob(String),
}

/// Judges a failed Pod.
pub(super) fn judge(spec: &JobSpec, pod: &Pod) -> Judgement {
    let rules = spec.pod_failure_policy.as_ref().map(|policy| policy.rules.as_slice()).unwrap_or(&[]);
    for (index, rule) in rules.iter().enumerate() {
        let Some(why) = fits(rule, pod) else { continue };
        return match rule.action.as_str() {
            "Ignore" => Judgement::Ignore,
            "FailJob" => Judgement::FailJob(format!("{why} matching FailJob rule at index {index}")),
            _ => Judgement::Count,
        };
    }
    Judgement::Count
}

/// The words for why a rule fits.
fn fits(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    if let Some(codes) = &rule.on_exit_codes {
        let status = pod.status.as_ref()?;
        let all = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
        return all
            .filter(|status| codes.container_name.as_ref().is_none_or(|wanted| *wanted == status.name))
            .find_map(|status| Some((status, failed_with(status)?)))
            .filter(|(_, code)| code_fits(codes, *code))
            .map(|(status, code)| format!("Container {} for pod {name} failed with exit code {code}", status.name));
    }
    rule.on_pod_conditions.iter().flatten().find_map(|pattern| {
        let wanted = if pattern.status.is_empty() { "True" } else { pattern.status.as_str() };
        let found = pods::condition(pod, &pattern.type_)?;
        (found.status == wanted).then(|| format!("Pod {name} has condition {}", pattern.type_))
    })
}

fn failed_with(status: &ContainerStatus) -> Option<i32> {
    let code = status.state.as_ref()?.terminated.as_ref()?.exit_code;
    (code != 0).then_some(code)
}

fn code_fits(codes: &PodFailurePolicyOnExitCodesRequirement, code: i32) -> bool {
    codes.values.contains(&code) == (codes.operator == "In")
}
