//! All datasets on this node.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::staged::StagedDataset;

/// Staged datasets, by name.
#[derive(Default)]
pub(crate) struct Datasets {
    all: Mutex<BTreeMap<String, Arc<StagedDataset>>>,
    next_id: AtomicU64,
}

impl Datasets {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<StagedDataset>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no dataset of this process has.
    pub(crate) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The one of a name.
    ///
    /// # Errors
    /// ENOENT.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<StagedDataset>> {
        self.find(name).ok_or_else(|| {
            Error::new(Errno::NOENT, format!("{name:?}: no dataset of this name is staged here"))
        })
    }

    /// The same, if there is one.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<StagedDataset>> {
        self.lock().get(name).cloned()
    }

    /// In place of one of the same name.
    pub(crate) fn insert(&self, dataset: Arc<StagedDataset>) {
        self.lock().insert(dataset.stage.name.clone(), dataset);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.lock().remove(name);
    }

    /// All, by name.
    pub(crate) fn list(&self) -> Vec<Arc<StagedDataset>> {
        self.lock().values().cloned().collect()
    }
}
