//! The stores this process may reach: its own StorageCell's, and others by name while logs are served or copied there.

use std::sync::Arc;

use cell_store::{Reply, Request, Store, StoreError};

/// Opens the store of a StorageCell by its name. It is asked often and must answer at once: whoever opens keeps what it opened.
pub type OpenStore = Arc<dyn Fn(&str) -> Result<Arc<dyn Store>, StoreError> + Send + Sync>;

/// The stores of one process.
#[derive(Clone)]
pub struct Stores {
    home: String,
    own: Arc<dyn Store>,
    open: OpenStore,
}

impl Stores {
    /// Only one store, of a StorageCell without a name: pointers to others are refused.
    pub fn single(own: Arc<dyn Store>) -> Self {
        let refuse = |name: &str| Err(StoreError::Unavailable(format!("no store {name} is known here")));
        Self { home: String::new(), own, open: Arc::new(refuse) }
    }

    /// The own StorageCell's store, and how to open others.
    pub fn new(home: impl Into<String>, own: Arc<dyn Store>, open: OpenStore) -> Self {
        Self { home: home.into(), own, open }
    }

    /// The own StorageCell.
    pub fn home(&self) -> &str {
        &self.home
    }

    /// The own StorageCell's store.
    pub fn own(&self) -> &Arc<dyn Store> {
        &self.own
    }

    /// The store of a StorageCell.
    ///
    /// # Errors
    /// What the opener says; nothing was asked then.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Store>, StoreError> {
        if name == self.home { Ok(self.own.clone()) } else { (self.open)(name) }
    }

    pub(super) async fn call(&self, name: &str, request: Request) -> Result<Reply, StoreError> {
        self.get(name)?.call(request).await
    }
}
