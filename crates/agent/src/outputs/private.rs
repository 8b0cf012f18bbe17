//! Files that are being written, and those that have not come to their homes yet.
//!
//! A file is private until its creator says that it is finished and nobody has it open for writing
//! any more. Then it leaves: it has a number that says when, and files of one path are delivered in
//! this order. A record beside the data says how far it has come, so that an agent that is started
//! again goes on.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use saker_runtime::time::Time;
use serde::{Deserialize, Serialize};

use super::path::OutputPath;
use super::store::{Store, create_new, open_owned};
use super::writers::has_writers;
use crate::error::{Error, Result};

/// A bit of a private file's mode: the library sets it right before it closes the last descriptor of
/// the file's creator. So an agent that is away, or has no room for the record, loses nothing.
const CLOSED: u32 = libc::S_ISVTX;
/// Ends the name of a record.
const RECORD: &str = "record";

/// How far a file has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    /// Its creator has not said that it is finished.
    Written,
    /// He has; somebody may still write.
    Committed,
    /// It goes to its home. The number says in which order: when it was closed, in nanoseconds since
    /// 1970, and after those that were closed before.
    Leaving(u64),
}

/// The record of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    path: Vec<u8>,
    exclusive: bool,
    phase: Phase,
}

/// Dataset and path of a file.
pub(super) type Key = (String, OutputPath);

/// A file that is not at its home.
pub(super) struct Private {
    pub(super) token: u64,
    pub(super) key: Key,
    /// It must not take another file's place.
    pub(super) exclusive: bool,
    /// The data; not there any more when it has been put in its place on this node.
    pub(super) data: PathBuf,
    /// For reading.
    pub(super) file: Arc<File>,
    phase: Mutex<Phase>,
    /// Since when nobody writes it, as seen by who looks.
    pub(super) idle_since: Mutex<Option<Time>>,
    /// It was closed before: by now another may be at its home.
    pub(super) is_late: AtomicBool,
    /// It is being delivered in the background.
    pub(super) is_tended: AtomicBool,
}

impl Private {
    /// Makes an empty one. `file` is then opened for its writer.
    ///
    /// # Errors
    /// Of the disk.
    pub(super) fn create(store: &Store, key: Key, exclusive: bool) -> Result<(Private, File)> {
        let token = saker_runtime::rand::u64().max(1);
        let data = store.outgoing()?.join(format!("{token:016x}"));
        let writer = create_new(&data)?;
        let file = Arc::new(File::open(&data).map_err(|e| Error::file(&data, e))?);
        let new = Private::new(token, key, exclusive, data, file, Phase::Written);
        if let Err(error) = new.note(Phase::Written) {
            new.remove();
            return Err(error);
        }
        Ok((new, writer))
    }

    fn new(
        token: u64,
        key: Key,
        exclusive: bool,
        data: PathBuf,
        file: Arc<File>,
        phase: Phase,
    ) -> Private {
        let (phase, idle_since) = (Mutex::new(phase), Mutex::default());
        let (is_late, is_tended) = (AtomicBool::new(false), AtomicBool::new(false));
        Private { token, key, exclusive, data, file, phase, idle_since, is_late, is_tended }
    }

    /// One for a published file whose home is another node now. It must not replace a newer one.
    ///
    /// # Errors
    /// Of the disk.
    pub(super) fn take_out(store: &Store, key: Key) -> Result<Private> {
        let token = saker_runtime::rand::u64().max(1);
        let data = store.outgoing()?.join(format!("{token:016x}"));
        let number = store.look(&key.1)?.closed_ns;
        let file = Arc::new(
            open_owned(&store.files().join(key.1.as_path())).map_err(|e| Error::io(&key.1, e))?,
        );
        let new = Private::new(token, key, false, data, file, Phase::Leaving(number));
        new.set_late();
        // The record comes first: data without one would be removed at the next start.
        new.note(Phase::Leaving(number))?;
        store.take_out(&new.key.1, &new.data)?;
        Ok(new)
    }

    /// Takes up what an earlier agent has left.
    fn load(dataset: &str, record: &Path) -> Result<Private> {
        let about = |e: std::io::Error| Error::file(record, e);
        let text = std::fs::read(record).map_err(about)?;
        let parsed: Record = serde_json::from_slice(&text).map_err(|e| about(e.into()))?;
        let data = record.with_extension("");
        let name = data.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let token = u64::from_str_radix(&name, 16).map_err(|e| {
            Error::new(rustix::io::Errno::INVAL, format!("{}: {e}", record.display()))
        })?;
        let key = (dataset.to_owned(), OutputPath::parse(&parsed.path)?);
        let file = Arc::new(open_owned(&data).map_err(|e| Error::file(&data, e))?);
        let private = Private::new(token, key, parsed.exclusive, data, file, parsed.phase);
        private.set_late();
        Ok(private)
    }

    fn record(&self) -> PathBuf {
        self.data.with_extension(RECORD)
    }

    fn note(&self, phase: Phase) -> Result<()> {
        let record =
            Record { path: self.key.1.as_bytes().to_vec(), exclusive: self.exclusive, phase };
        let text = serde_json::to_vec(&record).map_err(|e| Error::file(&self.data, e))?;
        // Whole after a kill. After a loss of power it may be gone, as the data may be.
        let (record, new) = (self.record(), self.data.with_extension("new"));
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &record));
        written.map_err(|e| Error::file(&record, e))
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn phase(&self) -> Phase {
        *self.lock()
    }

    /// When it has left.
    pub(super) fn number(&self) -> Option<u64> {
        match self.phase() {
            Phase::Leaving(number) => Some(number),
            _ => None,
        }
    }

    /// It goes on to a phase, unless it has come further.
    ///
    /// # Errors
    /// Of the disk: it is in that phase, but there is no record of it.
    pub(super) fn advance(&self, to: Phase) -> Result<()> {
        let mut phase = self.lock();
        if !matches!((*phase, to), (Phase::Leaving(_), _) | (Phase::Committed, Phase::Committed)) {
            // Without a record, an agent that is started again finds it in the phase before.
            *phase = to;
            self.note(to)?;
        }
        Ok(())
    }

    /// Somebody writes it.
    pub(super) fn has_writers(&self) -> bool {
        has_writers(&self.file).unwrap_or_else(|error| {
            tracing::warn!("{}: {error}", self.data.display());
            false
        })
    }

    /// Attributes of its data: permissions, time in nanoseconds and size.
    ///
    /// # Errors
    /// Of the disk.
    pub(super) fn attributes(&self) -> Result<(u32, i64, u64)> {
        let meta = self.file.metadata().map_err(|e| Error::file(&self.data, e))?;
        let mtime_ns = meta.mtime().saturating_mul(1_000_000_000) + meta.mtime_nsec();
        Ok((meta.mode(), mtime_ns, meta.size()))
    }

    /// Takes its data and record off the disk.
    pub(super) fn remove(&self) {
        let _ = std::fs::remove_file(&self.data);
        let _ = std::fs::remove_file(self.record());
    }

    /// From now on it must not replace what was closed after it.
    pub(super) fn set_late(&self) {
        self.is_late.store(true, Ordering::Release);
    }

    /// Its creator closed it, which the agent was not told of ([`CLOSED`]).
    pub(super) fn is_closed(&self) -> bool {
        self.attributes().is_ok_and(|(mode, ..)| mode & CLOSED != 0)
    }

    pub(super) fn begin_tending(&self) -> bool {
        !self.is_tended.swap(true, Ordering::AcqRel)
    }

    pub(super) fn end_tending(&self) {
        self.is_tended.store(false, Ordering::Release);
    }
}

/// What an earlier agent has left of a dataset. What cannot be used is removed.
pub(super) fn load(dataset: &str, store: &Store) -> Result<Vec<Private>> {
    let dir = store.outgoing()?;
    let about = |e| Error::file(&dir, e);
    let (mut found, mut used) = (Vec::new(), std::collections::BTreeSet::new());
    let names = || -> Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(&dir).map_err(about)?;
        entries.map(|entry| Ok(entry.map_err(about)?.path())).collect()
    };
    for record in names()?.iter().filter(|path| path.extension().is_some_and(|e| e == RECORD)) {
        match Private::load(dataset, record) {
            Ok(private) => {
                used.extend([private.data.clone(), private.record()]);
                found.push(private);
            }
            Err(error) => tracing::warn!("{dataset}: an unfinished output is dropped: {error}"),
        }
    }
    for path in names()?.iter().filter(|path| !used.contains(*path)) {
        let _ = std::fs::remove_file(path);
    }
    Ok(found)
}
