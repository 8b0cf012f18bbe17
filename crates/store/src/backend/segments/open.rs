//! Opening a store of segments.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

use saker_engine::table::Table;
use saker_runtime::fs::Dir;
use saker_types::{Errno, Error, Result};

use super::format::StoreIdentity;
use super::metrics::Metrics;
use super::options::Options;
use super::recover;
use super::state::SegmentStore;
use crate::backend::io_error;

/// Keeps other processes out of a data directory; the same handle may do so again.
fn lock(dir: &dyn Dir) -> Result<()> {
    dir.lock()
        .map_err(|e| Error::new(Errno::EBUSY).with_text(format!("{} is in use: {e}", dir.label())))
}

impl SegmentStore {
    /// Opens the store in `dir` (its segments are in the sub-directory `segments`), with its
    /// index in `table`, and brings the index up to the end of the log.
    ///
    /// # Errors
    /// EBUSY when another process has it, EIO with words for all that is wrong on disk: foreign,
    /// newer, damaged.
    pub fn open(
        dir: Arc<dyn Dir>,
        table: Arc<dyn Table>,
        identity: StoreIdentity,
        options: Options,
    ) -> Result<Arc<SegmentStore>> {
        lock(&*dir)?;
        let segments = dir.sub_dir("segments").map_err(|e| io_error("segments", &e))?;
        let metrics = Metrics::new(&options.registry);
        let recovered = recover::recover(segments, table, identity, &options, &metrics)?;
        let store = SegmentStore {
            segments: recovered.segments,
            log: recovered.log,
            index: recovered.index,
            options,
            metrics,
            rounds: Arc::default(),
            epoch: recovered.epochs.current(),
            epochs: Mutex::new(recovered.epochs),
            is_start_saved: AtomicBool::new(recovered.is_saved),
            rewrites: Mutex::new(BTreeSet::new()),
            fetches: OnceLock::new(),
            damage_logged: AtomicU64::new(0),
            _dir: dir,
        };
        if !store.log.poisoned().is_empty()
            && let Err(error) = store.checkpoint()
        {
            // Tried again in the background; no flush succeeds until then.
            store.log_once(&error);
        }
        store.update_gauges();
        Ok(Arc::new(store))
    }
}
