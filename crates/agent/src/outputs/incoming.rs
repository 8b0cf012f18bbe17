//! Files that other nodes send to this home: not visible until they are whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use saker_agent_api::{FinishOutput, OUTPUT_PART_BYTES_MAX, PutOutput};
use saker_runtime::time::{self, Time};
use tokio::sync::Mutex;

use super::path::OutputPath;
use super::store::{Store, create_new};
use crate::error::{Error, Result};

/// A file of which nothing comes for so long is dropped.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Files that come at once.
const FILES_MAX: usize = 4096;
/// Bytes after which what came begins to be written to the disk: the last part must not wait for all
/// of it.
const SYNC_BYTES: u64 = 32 << 20;

/// A file that comes.
struct Incoming {
    file: Arc<File>,
    path: PathBuf,
    /// Bytes that came, and their CRC32C.
    at: u64,
    crc: u32,
}

impl Incoming {
    fn new(store: &Store, id: u64) -> Result<Incoming> {
        let path = store.incoming()?.join(format!("{id:016x}"));
        // What is there came before, of the same file.
        let _ = std::fs::remove_file(&path);
        let file = Arc::new(create_new(&path)?);
        Ok(Incoming { file, path, at: 0, crc: 0 })
    }

    async fn append(&mut self, data: Vec<u8>) -> Result<()> {
        let (file, at) = (self.file.clone(), self.at);
        let (crc, end) = (crc32c::crc32c_append(self.crc, &data), at + data.len() as u64);
        let write = move || {
            file.write_all_at(&data, at)?;
            if at / SYNC_BYTES != end / SYNC_BYTES {
                begin_writing(&file, at / SYNC_BYTES * SYNC_BYTES, end);
            }
            Ok(())
        };
        let written = tokio::task::spawn_blocking(write).await.map_err(std::io::Error::other);
        written.flatten().map_err(|e| Error::file(&self.path, e))?;
        (self.at, self.crc) = (end, crc);
        Ok(())
    }
}

/// Has the kernel begin to write a part of a file to the disk. Errors are for the fsync at the end.
fn begin_writing(file: &File, from: u64, to: u64) {
    let (fd, len) = (file.as_raw_fd(), to - from);
    // SAFETY: touches no memory.
    unsafe { libc::sync_file_range(fd, from as i64, len as i64, libc::SYNC_FILE_RANGE_WRITE) };
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // One that has taken its place has this name no more.
        let _ = std::fs::remove_file(&self.path);
    }
}

type Shared = Arc<Mutex<Incoming>>;

/// All files that come, by the numbers of their requests.
#[derive(Default)]
pub(super) struct AllIncoming(StdMutex<BTreeMap<u64, (Time, Shared)>>);

impl AllIncoming {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (Time, Shared)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a part.
    ///
    /// # Errors
    /// EINVAL: it is too long, or does not follow what came before. ENFILE: too many files. Of the
    /// disk: the file must be sent anew.
    pub(super) async fn put(&self, store: &Store, id: u64, put: PutOutput) -> Result<()> {
        if put.data.len() > OUTPUT_PART_BYTES_MAX {
            return Err(Error::new(Errno::INVAL, "too long a part of a file"));
        }
        let touch = |(touched, file): &mut (Time, Shared)| {
            *touched = time::now();
            file.clone()
        };
        let known = self.lock().get_mut(&id).map(touch);
        let file = match known {
            Some(file) => file,
            None => self.begin(store, id)?,
        };
        let mut file = file.lock().await;
        let end = put.offset.checked_add(put.data.len() as u64);
        // It may be sent twice, if the answer was lost.
        if end == Some(file.at) {
            return Ok(());
        }
        if put.offset != file.at || end.is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(Error::new(Errno::INVAL, "a part that does not follow the one before"));
        }
        let written = file.append(put.data).await;
        if written.is_err() {
            self.lock().remove(&id);
        }
        written
    }

    /// Files are dropped of which nothing has come for long.
    fn begin(&self, store: &Store, id: u64) -> Result<Shared> {
        let (mut all, now) = (self.lock(), time::now());
        all.retain(|_, (touched, file)| {
            now.since(*touched) < IDLE_MAX || Arc::strong_count(file) > 1
        });
        if all.len() >= FILES_MAX {
            return Err(Error::new(Errno::NFILE, "too many files come at once"));
        }
        let file = Arc::new(Mutex::new(Incoming::new(store, id)?));
        all.insert(id, (now, file.clone()));
        Ok(file)
    }

    /// All parts have come: the file takes its place.
    ///
    /// # Errors
    /// EIO: they are not what was sent. As of [`Store::place`].
    pub(super) async fn finish(
        &self,
        store: Arc<Store>,
        id: u64,
        path: OutputPath,
        new: FinishOutput,
    ) -> Result<()> {
        let known = self.lock().remove(&id).map(|(_, file)| file);
        let file = match known {
            Some(file) => file,
            // One without data.
            None => Arc::new(Mutex::new(Incoming::new(&store, id)?)),
        };
        let file = file.lock().await;
        if (file.at, file.crc) != (new.size, new.crc) {
            return Err(Error::new(Errno::IO, format!("{path}: not what was sent")));
        }
        let from: PathBuf = Path::new(&file.path).to_owned();
        let place = move || store.place(&from, &path, &new);
        let placed = tokio::task::spawn_blocking(place).await;
        placed.map_err(|e| Error::new(Errno::IO, e))?
    }
}
