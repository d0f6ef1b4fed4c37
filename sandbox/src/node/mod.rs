//! The node agent: registers a Node and runs the Pods bound to it as local processes, each Pod on its own loopback address. Processes
//! outlive the agent and are adopted again. It isolates nothing: a Pod's folder is its working directory, mount paths are taken
//! relative to it, and readOnly, security contexts and resource limits are not enforced.

pub mod addresses;
pub mod agent;
pub mod clock;
pub mod entry;
pub mod environment;
pub mod images;
pub mod logs;
pub mod machine;
pub mod options;
pub mod probing;
pub mod process;
pub mod register;
pub mod shared;
pub mod status;
pub mod volume;
pub mod worker;
