//! ReplicaSets and Deployments: keep a number of interchangeable Pods, and replace them when the template changes.

pub mod deployment;
pub mod deployment_drive;
mod deployment_status;
pub mod replica_set;
pub mod replica_set_drive;
#[cfg(test)]
mod tests;
