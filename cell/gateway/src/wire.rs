//! The client protocol's JSON: frames from clients, payloads to clients, and the objects in them. Decides no behaviour.

pub mod close;
pub mod event;
pub mod frame;
pub mod identify;
pub mod intents;
pub mod lenient;
pub mod objects;
pub mod request;
