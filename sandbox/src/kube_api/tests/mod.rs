//! Tests of the pure parts, and of the API against an in-process server.

mod pure;
mod server;
