//! A dataset on this node: what is to be there, and what is there.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;
use saker_agent_api::{DatasetStatus, Stored};
use saker_dataset::{
    Broadcast, MANIFEST, Manifest, Stage, Staged, TABLE, partition_name, write_whole,
};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::error::{Error, Result};
use crate::origin::{self, Origin};

/// Missing files that a status names.
const MISSING_MAX: usize = 16;

/// A file that this node is to keep.
pub(crate) struct Part {
    /// Its name, also at the origin.
    pub(crate) name: String,
    /// Its bytes; 0 while that is not known.
    total: AtomicU64,
    /// Bytes from its beginning that can be read.
    there: AtomicU64,
    whole: AtomicBool,
    /// Has these bytes, under whatever name.
    file: Mutex<Option<Arc<File>>>,
}

impl Part {
    fn new(name: String) -> Part {
        let (total, there) = (AtomicU64::new(0), AtomicU64::new(0));
        Part { name, total, there, whole: AtomicBool::new(false), file: Mutex::default() }
    }

    /// Takes over a file that is whole, if there is one.
    fn find(&self, dir: &Path) {
        let Ok(file) = File::open(dir.join(&self.name)) else { return };
        let Ok(len) = file.metadata().map(|meta| meta.len()) else { return };
        if ![0, len].contains(&self.total()) {
            return;
        }
        self.set_total(len);
        self.set_file(file, len);
        self.set_whole();
    }

    /// What the manifest says.
    pub(crate) fn set_total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Bytes from its beginning that can be read.
    pub(crate) fn there(&self) -> u64 {
        self.there.load(Ordering::Acquire)
    }

    /// As many can be read now.
    pub(crate) fn set_there(&self, bytes: u64) {
        self.there.store(bytes, Ordering::Release);
    }

    /// It is whole, checked, and under its own name.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Acquire)
    }

    pub(crate) fn set_whole(&self) {
        self.whole.store(true, Ordering::Release);
    }

    /// The file that has the first `there` bytes.
    pub(crate) fn set_file(&self, file: File, there: u64) -> Arc<File> {
        let file = Arc::new(file);
        *lock(&self.file) = Some(file.clone());
        self.set_there(there);
        file
    }

    pub(crate) fn file(&self) -> Option<Arc<File>> {
        lock(&self.file).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A dataset on this node.
pub(crate) struct StagedDataset {
    /// Its number in this process: another one after it was staged anew.
    pub(crate) id: u64,
    pub(crate) dir: PathBuf,
    pub(crate) stage: Stage,
    /// Number of this node among the stage's.
    pub(crate) node: usize,
    /// The manifest, and the bytes of its file.
    manifest: OnceLock<(Manifest, Vec<u8>)>,
    /// It is on the disk.
    manifest_written: AtomicBool,
    /// The table, and the broadcast files if they are there.
    opened: Mutex<Option<Arc<Staged>>>,
    pub(crate) table: Part,
    /// Partitions that this node is to keep, by number.
    pub(crate) parts: BTreeMap<u32, Part>,
    /// Bytes of broadcast files that are to be there (0 while unknown), and those that are.
    pub(crate) broadcast_bytes: AtomicU64,
    pub(crate) broadcast_there: AtomicU64,
    broadcast_whole: AtomicBool,
    origin: Mutex<Option<Arc<dyn Origin>>>,
    /// Grows while staging goes on.
    pub(crate) progress: AtomicU64,
    error: Mutex<Option<Error>>,
    /// Ends the wait before the next try.
    pub(crate) retry: Notify,
    task: Mutex<Option<AbortHandle>>,
    stopped: AtomicBool,
    /// No output file is on this node whose home is another one.
    outputs_at_home: AtomicBool,
}

impl StagedDataset {
    /// What is in `dir`, for node `node` of the stage.
    pub(crate) fn new(id: u64, dir: PathBuf, stage: Stage, node: usize) -> StagedDataset {
        let kept = (0..stage.partitions).filter(|p| stage.keepers(*p).any(|keeper| keeper == node));
        let parts = kept.map(|p| (p, Part::new(partition_name(p)))).collect();
        let dataset = StagedDataset {
            id,
            dir,
            stage,
            node,
            manifest: OnceLock::new(),
            manifest_written: AtomicBool::new(false),
            opened: Mutex::default(),
            table: Part::new(TABLE.to_owned()),
            parts,
            broadcast_bytes: AtomicU64::new(0),
            broadcast_there: AtomicU64::new(0),
            broadcast_whole: AtomicBool::new(false),
            origin: Mutex::default(),
            progress: AtomicU64::new(0),
            error: Mutex::default(),
            retry: Notify::new(),
            task: Mutex::default(),
            stopped: AtomicBool::new(false),
            outputs_at_home: AtomicBool::new(false),
        };
        dataset.find();
        dataset
    }

    /// Takes over what an earlier agent has staged.
    fn find(&self) {
        if let Ok(bytes) = std::fs::read(self.dir.join(MANIFEST)) {
            // One that cannot be read is fetched again.
            let is_good = self.set_manifest(bytes).is_ok();
            self.manifest_written.store(is_good, Ordering::Release);
        }
        self.parts.values().for_each(|part| part.find(&self.dir));
        let opened = self.reopen().or_else(|_| {
            Broadcast::remove(&self.dir)?;
            self.reopen()
        });
        // A table that cannot be used is fetched again.
        if opened.is_ok() {
            self.table.find(&self.dir);
        }
        if Broadcast::is_there(&self.dir) {
            self.set_broadcast_whole();
        }
    }

    /// The manifest, when it is known.
    pub(crate) fn manifest(&self) -> Option<&Manifest> {
        self.manifest.get().map(|(manifest, _)| manifest)
    }

    /// The bytes of its file.
    pub(crate) fn manifest_bytes(&self) -> Option<&[u8]> {
        self.manifest.get().map(|(_, bytes)| &bytes[..])
    }

    /// Takes the manifest.
    ///
    /// # Errors
    /// ESTALE: it is of another dataset. It is no manifest.
    pub(crate) fn set_manifest(&self, bytes: Vec<u8>) -> Result<()> {
        let manifest = Manifest::parse(&bytes, Path::new(MANIFEST))?;
        let stage = &self.stage;
        let same = manifest.digest == stage.digest
            && manifest.table_digest == stage.table_digest
            && manifest.partitions.len() == stage.partitions as usize;
        if !same {
            let what = format!("{MANIFEST}: of another dataset ({})", manifest.digest);
            return Err(Error::new(Errno::STALE, what));
        }
        self.table.set_total(manifest.table_bytes);
        for (number, part) in &self.parts {
            part.set_total(manifest.partitions[*number as usize].stored);
        }
        let _ = self.manifest.set((manifest, bytes));
        Ok(())
    }

    /// Writes the manifest, unless it is on the disk: the table must be there.
    ///
    /// # Errors
    /// Of the disk.
    pub(crate) fn write_manifest(&self) -> Result<()> {
        let Some((_, bytes)) = self.manifest.get() else { return Ok(()) };
        if !self.manifest_written.load(Ordering::Acquire) {
            write_whole(&self.dir.join(MANIFEST), bytes)?;
            self.manifest_written.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The dataset as processes see it.
    ///
    /// # Errors
    /// EAGAIN: the table is not there yet.
    pub(crate) fn opened(&self) -> Result<Arc<Staged>> {
        lock(&self.opened).clone().ok_or_else(|| {
            let what = format!("{}: its table is not there yet", self.stage.name);
            Error::new(Errno::AGAIN, what)
        })
    }

    /// Maps the table and the broadcast files that are there now.
    ///
    /// # Errors
    /// Of the files.
    pub(crate) fn reopen(&self) -> Result<()> {
        let staged = Arc::new(Staged::open(&self.dir)?);
        *lock(&self.opened) = Some(staged);
        Ok(())
    }

    /// Files are to be kept by every node, and this one has not all anyhow.
    pub(crate) fn wants_broadcast(&self) -> bool {
        !self.stage.broadcast.is_empty() && self.parts.len() < self.stage.partitions as usize
    }

    pub(crate) fn has_broadcast(&self) -> bool {
        self.broadcast_whole.load(Ordering::Acquire)
    }

    pub(crate) fn set_broadcast_whole(&self) {
        self.broadcast_whole.store(true, Ordering::Release);
    }

    /// The file that agents read of each other.
    ///
    /// # Errors
    /// ENOENT: this node does not keep it.
    pub(crate) fn part(&self, what: Stored, partition: u32) -> Result<&Part> {
        let part = match what {
            Stored::Table => Some(&self.table),
            Stored::Partition => self.parts.get(&partition),
            Stored::Manifest => None,
        };
        part.ok_or_else(|| {
            let what = format!("{}: partition {partition} is not kept here", self.stage.name);
            Error::new(Errno::NOENT, what)
        })
    }

    /// Where the dataset comes from.
    ///
    /// # Errors
    /// Of the origin.
    pub(crate) fn origin(&self) -> Result<Arc<dyn Origin>> {
        let mut origin = lock(&self.origin);
        if let Some(origin) = &*origin {
            return Ok(origin.clone());
        }
        Ok(origin.insert(origin::open(&self.stage.origin)?).clone())
    }

    /// Ends connections to where it comes from: the next read makes new ones. May block.
    pub(crate) fn leave_origin(&self) {
        let origin = lock(&self.origin).take();
        drop(origin);
    }

    /// Staging of it has come further.
    pub(crate) fn advance(&self, by: u64) {
        self.progress.fetch_add(by, Ordering::Relaxed);
    }

    /// Why the last try failed.
    pub(crate) fn set_error(&self, error: Option<Error>) {
        *lock(&self.error) = error;
    }

    /// The task that stages it; ended by [`StagedDataset::stop`].
    pub(crate) fn set_task(&self, task: AbortHandle) {
        *lock(&self.task) = Some(task);
    }

    /// Ends staging.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }

    /// What runs on a thread of its own must end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// All that this node is to keep is there.
    pub(crate) fn is_complete(&self) -> bool {
        let has_parts = self.parts.values().all(Part::is_whole);
        let has_broadcast = !self.wants_broadcast() || self.has_broadcast();
        has_parts && has_broadcast && self.is_usable()
    }

    /// Output files of it are where the list of nodes says.
    pub(crate) fn set_outputs_at_home(&self) {
        self.outputs_at_home.store(true, Ordering::Release);
    }

    /// Processes can use it.
    fn is_usable(&self) -> bool {
        let is_listed = self.manifest_written.load(Ordering::Acquire);
        self.table.is_whole() && is_listed && lock(&self.opened).is_some()
    }

    /// For those who ask.
    pub(crate) fn status(&self) -> DatasetStatus {
        let parts = || self.parts.values().chain([&self.table]);
        let [bytes, there] = match (self.wants_broadcast(), self.has_broadcast()) {
            (false, _) => [0, 0],
            (true, has) => {
                let bytes = self.broadcast_bytes.load(Ordering::Relaxed);
                let there = self.broadcast_there.load(Ordering::Relaxed);
                [bytes, if has { bytes } else { there }]
            }
        };
        let complete = self.is_complete() && self.outputs_at_home.load(Ordering::Acquire);
        let error = lock(&self.error).as_ref().map(Error::to_string);
        DatasetStatus {
            name: self.stage.name.clone(),
            digest: self.stage.digest.to_string(),
            node: self.node as u32,
            complete,
            usable: self.is_usable(),
            partitions: self.parts.len() as u32,
            partitions_whole: self.parts.values().filter(|part| part.is_whole()).count() as u32,
            bytes: bytes + parts().map(Part::total).sum::<u64>(),
            bytes_there: there + parts().map(Part::there).sum::<u64>(),
            missing: self.missing(),
            error: error.filter(|_| !complete).unwrap_or_default(),
            outgoing: 0,
        }
    }

    fn missing(&self) -> Vec<String> {
        let parts = self.parts.values().chain([&self.table]).filter(|part| !part.is_whole());
        let mut missing: Vec<String> = parts
            .take(MISSING_MAX)
            .map(|part| match part.total() {
                0 => part.name.clone(),
                total => format!("{}: {} of {total} bytes", part.name, part.there()),
            })
            .collect();
        if self.wants_broadcast() && !self.has_broadcast() {
            missing.push("broadcast.saker".to_owned());
        }
        if !self.outputs_at_home.load(Ordering::Acquire) {
            missing.push("output files that are at another node".to_owned());
        }
        missing
    }
}
