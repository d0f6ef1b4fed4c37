//! REST of the client protocol: what a bot needs. Each route reads and checks its input, judges permissions by the replica, and asks
//! the owners; nothing is changed here.

pub mod access;
pub mod auth;
pub mod body;
pub mod bulk;
pub mod channels;
pub mod commands;
pub mod embeds;
pub mod error;
pub mod form;
pub mod guilds;
pub mod invites;
pub mod limit;
pub mod members;
pub mod mentions;
pub mod message_input;
pub mod messages;
pub mod meta;
pub mod reading;
pub mod roles;
pub mod router;
pub mod users;
