//! Field ownership: which manager set which field of an object, in the `fieldsV1` notation. `fieldset` is the notation, `shape` says
//! how lists and maps merge, `walk` reads and edits objects by path, `apply` and `update` are the two ways to write.

pub mod apply;
pub mod entries;
pub mod fieldset;
pub mod shape;
pub mod typed;
pub mod update;
pub mod walk;

#[cfg(test)]
mod tests;

pub use apply::{Applied, apply, duplicate};
pub use entries::{Entry, Operation, disown, owned};
pub use fieldset::{FieldSet, Step};
pub use shape::Shape;
pub use update::track_update;

/// Who writes, and through which door.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// `fieldManager`.
    pub manager: &'a str,
    /// `group/version` the writer speaks.
    pub api_version: &'a str,
    /// `status`, `scale`, or "" for the object itself.
    pub subresource: &'a str,
    /// RFC 3339 time of the write.
    pub time: &'a str,
}
