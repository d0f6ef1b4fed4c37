//! Which StorageCell's store is where: a CQL one by the file of its name in a folder, any other by the directory. A file is read again when
//! it changes; what is in flight on the connection before ends there.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use cell_runtime::{Channels, Directory};
use cell_store::{RemoteStore, Reply, Request, Store, StoreError};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::settings::Settings;
use super::store::CqlStore;

/// How often a file is looked at while its store is used.
const LOOK: Duration = Duration::from_secs(2);

/// Stores remembered; more StorageCells than this in one fleet are refused.
const MAX_STORES: usize = 256;

/// The stores of a fleet by StorageCell.
#[derive(Clone)]
pub struct StoreSet {
    inner: Arc<Inner>,
}

struct Inner {
    directory: Directory,
    channels: Arc<Channels>,
    folder: Option<PathBuf>,
    known: Mutex<HashMap<String, Arc<NamedStore>>>,
}

impl StoreSet {
    /// Embedded stores by `directory`, dialled through `channels`; CQL ones by the files in `storage_dir`.
    pub fn new(directory: Directory, channels: Arc<Channels>, storage_dir: Option<PathBuf>) -> Self {
        Self { inner: Arc::new(Inner { directory, channels, folder: storage_dir, known: Mutex::default() }) }
    }

    /// The store of a StorageCell: the same one at every call. It connects when it is first used, and finds out then where it is.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when that cannot be a StorageCell's name.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Store>, StoreError> {
        let mut known = self.inner.known.lock();
        if let Some(store) = known.get(name) {
            return Ok(Arc::new(Handle(store.clone())));
        }
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
        if name.is_empty() || name.len() > 253 || name.starts_with('.') || !name.bytes().all(plain) {
            return Err(StoreError::Invalid(format!("{name:?} is no name of a StorageCell")));
        }
        if known.len() >= MAX_STORES {
            return Err(StoreError::Unavailable(format!("{MAX_STORES} StorageCells are in use already")));
        }
        let Inner { directory, channels, folder, .. } = &*self.inner;
        let store = Arc::new(NamedStore {
            name: name.to_owned(),
            file: folder.as_ref().map(|folder| folder.join(format!("{name}.json"))),
            elsewhere: RemoteStore::of_storage_cell(name, directory.clone(), channels.clone()),
            current: ArcSwapOption::empty(),
            looked: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(None),
            renewing: AtomicBool::new(false),
        });
        known.insert(name.to_owned(), store.clone());
        Ok(Arc::new(Handle(store)))
    }
}

/// A connection and the text it was made from.
struct Current {
    text: String,
    store: CqlStore,
}

/// A failed try: the text it was made from, when, and what came of it.
type Failed = Option<(String, Instant, StoreError)>;

struct NamedStore {
    name: String,
    file: Option<PathBuf>,
    elsewhere: RemoteStore,
    current: ArcSwapOption<Current>,
    looked: Mutex<Option<Instant>>,
    connecting: tokio::sync::Mutex<Failed>,
    renewing: AtomicBool,
}

/// Resets the mark of a renewal however it ends.
struct Renewing(Arc<NamedStore>);

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.renewing.store(false, Ordering::Release);
    }
}

impl NamedStore {
    async fn read(&self) -> Result<Option<String>, StoreError> {
        let Some(file) = &self.file else { return Ok(None) };
        match tokio::fs::read_to_string(file).await {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::Unavailable(format!("failed to read {}: {error}", file.display()))),
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let mut looked = self.looked.lock();
        let due = looked.is_none_or(|looked| now.duration_since(looked) >= LOOK);
        if due {
            *looked = Some(now);
        }
        due
    }

    async fn connect(&self, text: &str) -> Result<CqlStore, StoreError> {
        let settings = Settings::parse(&self.name, text).map_err(|message| Settings::refused(&self.name, &message))?;
        CqlStore::open(settings).await
    }

    /// The CQL store of the file; none when there is no file.
    async fn current(self: &Arc<Self>) -> Result<Option<Arc<Current>>, StoreError> {
        let current = self.current.load_full();
        match current {
            Some(current) => {
                if self.is_due(Instant::now())
                    && let Ok(Some(text)) = self.read().await
                    && text != current.text
                {
                    self.renew(text);
                }
                Ok(Some(current))
            }
            None => self.first().await,
        }
    }

    /// The first connection: callers wait for it together, and a failed one is not tried again at once.
    async fn first(&self) -> Result<Option<Arc<Current>>, StoreError> {
        let Some(text) = self.read().await? else { return Ok(None) };
        let mut failed = self.connecting.lock().await;
        if let Some(current) = self.current.load_full() {
            return Ok(Some(current));
        }
        if let Some((of, when, error)) = &*failed
            && *of == text
            && when.elapsed() < LOOK
        {
            return Err(error.clone());
        }
        match self.connect(&text).await {
            Ok(store) => {
                *failed = None;
                let current = Arc::new(Current { text, store });
                self.current.store(Some(current.clone()));
                Ok(Some(current))
            }
            Err(error) => {
                *failed = Some((text, Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Connects anew beside the connection in use and takes its place; a failure leaves that one in use.
    fn renew(self: &Arc<Self>, text: String) {
        if self.renewing.swap(true, Ordering::AcqRel) {
            return;
        }
        let mark = Renewing(self.clone());
        tokio::spawn(async move {
            match mark.0.connect(&text).await {
                Ok(store) => {
                    mark.0.current.store(Some(Arc::new(Current { text, store })));
                    tracing::info!(storage_cell = %mark.0.name, "the settings changed; connected anew");
                }
                Err(error) => {
                    tracing::warn!(storage_cell = %mark.0.name, %error, "the settings changed, but connecting failed");
                }
            }
        });
    }
}

/// What callers hold.
struct Handle(Arc<NamedStore>);

#[async_trait]
impl Store for Handle {
    async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        match self.0.current().await? {
            Some(current) => current.store.call(request).await,
            None => self.0.elsewhere.call(request).await,
        }
    }
}
