//! A Pod's volumes as folders: what is in them, where they are, and how mounts become links in the Pod's folder.

pub mod content;
pub mod place;
pub mod provision;
pub mod source;
#[cfg(test)]
mod tests;
