//! Output files: what programs write below `NAME@VERSION.out` (FanStore §5.4, decision 62).
//!
//! ```text
//! process ──> process ──┬─ private (being written) ─> publish ─> deliver ──> home of the path
//!                       ├─ fetch (reading) <─────────────────────────────── home
//!                       └─ place (names, attributes) ────────────────────> home
//! agents ──> home ─ store (files and directories of this home), incoming
//! ```
//!
//! The home of a path is a node by the hash of the path.

mod ask;
mod attributes;
mod deliver;
mod fetch;
mod home;
mod incoming;
mod jobs;
pub(crate) mod moved;
mod path;
mod place;
mod private;
mod process;
mod publish;
mod store;
pub(crate) mod tend;
mod writers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use saker_agent_api::KeptOutputs;

pub(crate) use self::home::answer_peer;
pub(crate) use self::process::{Answer, answer};
use self::publish::Privates;
use self::store::Store;
use crate::error::{Error, Result};

/// The output files of all datasets on this node.
pub(crate) struct Outputs {
    dir: PathBuf,
    stores: Mutex<BTreeMap<String, Arc<Store>>>,
    incoming: incoming::AllIncoming,
    jobs: jobs::Jobs,
    /// Files that are not at their homes.
    pub(crate) private: Privates,
}

impl Outputs {
    /// In a directory, which need not be there.
    pub(crate) fn new(dir: PathBuf) -> Outputs {
        Outputs {
            dir,
            stores: Mutex::default(),
            incoming: incoming::AllIncoming::default(),
            jobs: jobs::Jobs::default(),
            private: Privates::default(),
        }
    }

    /// Those of a dataset, which has a checked name.
    pub(crate) fn store(&self, name: &str) -> Arc<Store> {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || Arc::new(Store::new(self.dir.join(name)));
        stores.entry(name.to_owned()).or_insert_with(make).clone()
    }

    /// Takes up what an earlier agent has left.
    ///
    /// # Errors
    /// Of the directory.
    pub(crate) fn load(&self) -> Result<()> {
        let about = |e| Error::file(&self.dir, e);
        let entries = match std::fs::read_dir(&self.dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(about)?,
        };
        for entry in entries {
            let name = entry.map_err(about)?.file_name().to_string_lossy().into_owned();
            if crate::dir::check_name(&name).is_err() {
                tracing::error!("{name} among the outputs is left alone");
                continue;
            }
            let store = self.store(&name);
            store.clean();
            for private in private::load(&name, &store)? {
                self.private.insert(private)?;
            }
        }
        Ok(())
    }

    /// What of a dataset stays on this node when it is unstaged.
    pub(crate) fn kept(&self, name: &str) -> KeptOutputs {
        let store = self.store(name);
        KeptOutputs { files: store.count(), dir: store.dir().display().to_string() }
    }

    /// Removes all output files of a dataset from this node.
    ///
    /// # Errors
    /// ENOENT: there are none. Of the disk.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        self.private.end_all(name);
        let store = self.store(name);
        std::fs::remove_dir_all(store.dir()).map_err(|e| Error::file(store.dir(), e))
    }
}
