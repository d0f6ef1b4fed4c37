//! Why a reconcile failed and is tried again. What needs a person is not an error but a condition.

use cell_runtime::directory::DirectoryError;

use crate::directory::LinkError;

/// A failed reconcile.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// Kubernetes refused or did not answer.
    #[error("failed to {verb} {kind} {name}: {source}")]
    Request {
        /// What was tried.
        verb: &'static str,
        /// Kind of the object.
        kind: String,
        /// Its name.
        name: String,
        /// Kubernetes' words.
        source: Box<kube::Error>,
    },
    /// The fleet's etcd refused or did not answer.
    #[error(transparent)]
    Directory(#[from] LinkError),
    /// An object that should encode does not.
    #[error("failed to encode {kind} {name}: {message}")]
    Encode {
        /// Kind of the object.
        kind: String,
        /// Its name.
        name: String,
        /// The encoder's words.
        message: String,
    },
    /// A data service refused or did not answer.
    #[error("failed to {verb} at {address}: {message}")]
    Rpc {
        /// What was tried.
        verb: &'static str,
        /// Whom was asked.
        address: String,
        /// What it said.
        message: String,
    },
}

impl ReconcileError {
    /// The bounded label for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Request { .. } => "kubernetes",
            Self::Directory(_) => "directory",
            Self::Encode { .. } => "encode",
            Self::Rpc { .. } => "rpc",
        }
    }

    /// Makes the constructor for a failed request.
    pub fn request(verb: &'static str, kind: &str, name: &str) -> impl FnOnce(kube::Error) -> Self {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        move |source| Self::Request { verb, kind, name, source: Box::new(source) }
    }
}

impl From<DirectoryError> for ReconcileError {
    fn from(error: DirectoryError) -> Self {
        Self::Directory(error.into())
    }
}
