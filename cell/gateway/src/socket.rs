//! Connections: websockets of clients and resumes proxied from other gateways, driven alike.

pub mod compress;
pub mod driver;
pub mod handshake;
pub mod members;
pub mod peer;
pub mod proxy;
pub mod transport;
pub mod upgrade;
