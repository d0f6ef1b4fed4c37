//! Storage migrations: copies tables between two stores, proves it, mends it. `ranges` decides what is done; the streams read and
//! write rows; nothing here serves a read of anybody else.

pub mod compare;
pub mod copy;
pub mod desk;
pub mod job;
pub mod ledger;
pub mod ranges;
pub mod row;
pub mod service;
pub mod standalone;
pub mod stream;
pub mod worker;
