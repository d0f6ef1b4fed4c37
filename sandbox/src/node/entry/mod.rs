//! Entry: for each NodePort of each Service the agent listens on the node's address and copies bytes to a ready Pod, on whichever node
//! it is. Nothing else of a Service's data path exists here.

pub mod forward;
pub mod ports;
#[cfg(test)]
mod tests;
