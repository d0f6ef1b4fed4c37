//! The role end to end in one process: real data services over a store in memory, guild nodes over gRPC, a gateway that holds a position.

mod fleet;
mod gateway;
mod moving;
mod serving;
