//! Datasets whose tables this client has read.
//!
//! What asks the cluster is boxed: it goes through [`Fs`] again, whose futures have those of this
//! namespace in them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_lock::Mutex as AsyncMutex;
use futures_util::future::BoxFuture;
use saker_dataset::{Digest, Table};
use saker_runtime::time::{self, Time};
use saker_types::{Errno, Error, Result};

use crate::datasets::{FrozenDataset, object_at};
use crate::{Caller, File, Fs, OpenFlags};

/// For so long a name leads where it led. It may be removed, and given to another dataset.
const NAME_HOLDS: Duration = Duration::from_secs(10);
/// Bytes of a table that are read at once.
const PIECE_BYTES: u64 = 4 << 20;

/// A dataset.
pub(crate) struct LoadedDataset {
    pub(super) record: FrozenDataset,
    pub(super) table: Table,
    /// Its partitions, once they are open.
    parts: Vec<Mutex<Option<Arc<File>>>>,
    /// When its name was last seen to lead to it.
    seen: Mutex<Time>,
}

impl LoadedDataset {
    /// Whether what only the superuser may make counts in it: anybody may freeze what he says that he
    /// has packed.
    pub(super) fn is_the_superusers(&self) -> bool {
        self.record.owner == 0
    }

    /// A partition, opened by the first that wants it.
    pub(super) async fn part(&self, fs: &Fs, number: u32) -> Result<Arc<File>> {
        let damaged = || {
            let text = format!("{} has no partition {number}", self.record.name);
            Error::new(Errno::EIO).with_text(text)
        };
        let part = self.parts.get(number as usize).ok_or_else(damaged)?;
        let known = part.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(file) = known {
            return Ok(file);
        }
        let info = &self.record.manifest.partitions[number as usize];
        let file = match open(fs, &info.digest).await {
            // It was removed, and its partitions were collected.
            Err(error) if error.errno() == Errno::ENOENT => return Err(Errno::ESTALE.into()),
            opened => Arc::new(opened?),
        };
        // Two that came at once have opened it twice, and keep one.
        let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(part.get_or_insert(file).clone())
    }
}

fn open<'a>(fs: &'a Fs, digest: &'a Digest) -> BoxFuture<'a, Result<File>> {
    Box::pin(async move {
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let (file, _) = fs.open(&Caller::root(), &object_at(digest), flags).await?;
        Ok(file)
    })
}

fn find<'a>(fs: &'a Fs, name: &'a str) -> BoxFuture<'a, Result<Option<FrozenDataset>>> {
    Box::pin(async move { fs.datasets().find(name).await })
}

fn list(fs: &Fs) -> BoxFuture<'_, Result<Vec<FrozenDataset>>> {
    Box::pin(async move { fs.datasets().list().await })
}

/// Names of all datasets, in order.
pub(super) fn names(fs: &Fs) -> BoxFuture<'_, Result<Vec<String>>> {
    Box::pin(async move { fs.datasets().names().await })
}

/// Datasets that were read.
#[derive(Default)]
pub(crate) struct Cache {
    by_number: Mutex<HashMap<u32, Arc<LoadedDataset>>>,
    /// Held while a table is read: who comes meanwhile waits for it.
    loading: AsyncMutex<()>,
}

impl Cache {
    /// The dataset of a number, if it was read.
    pub(super) fn numbered(&self, number: u32) -> Option<Arc<LoadedDataset>> {
        self.by_number.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// The dataset of a name. Whether the name still leads to it is asked once in [`NAME_HOLDS`].
    pub(super) async fn named(&self, fs: &Fs, name: &str) -> Result<Option<Arc<LoadedDataset>>> {
        let known = {
            let all = self.by_number.lock().unwrap_or_else(PoisonError::into_inner);
            all.values().find(|dataset| dataset.record.name == name).cloned()
        };
        let Some(known) = known else {
            let found = find(fs, name).await?;
            return self.load_found(fs, found).await;
        };
        let seen = *known.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = time::now();
        if now.since(seen) < NAME_HOLDS {
            return Ok(Some(known));
        }
        match find(fs, name).await? {
            Some(record) if record.number == known.record.number => {
                *known.seen.lock().unwrap_or_else(PoisonError::into_inner) = now;
                Ok(Some(known))
            }
            other => {
                self.forget(known.record.number);
                self.load_found(fs, other).await
            }
        }
    }

    fn forget(&self, number: u32) {
        self.by_number.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    async fn load_found(
        &self,
        fs: &Fs,
        found: Option<FrozenDataset>,
    ) -> Result<Option<Arc<LoadedDataset>>> {
        match found {
            Some(record) => self.load(fs, record).await.map(Some),
            None => Ok(None),
        }
    }

    /// The dataset of a number, whatever its name is.
    pub(super) async fn find_numbered(
        &self,
        fs: &Fs,
        number: u32,
    ) -> Result<Option<Arc<LoadedDataset>>> {
        let found = list(fs).await?.into_iter().find(|record| record.number == number);
        self.load_found(fs, found).await
    }

    /// Reads a dataset's table.
    async fn load(&self, fs: &Fs, record: FrozenDataset) -> Result<Arc<LoadedDataset>> {
        let _alone = self.loading.lock().await;
        if let Some(dataset) = self.numbered(record.number) {
            if dataset.record != record {
                let [a, b] = [&dataset.record.name, &record.name];
                let text = format!("datasets {a} and {b} have the same number {}", record.number);
                return Err(Error::new(Errno::EIO).with_text(text));
            }
            return Ok(dataset);
        }
        let wrong = |why: String| {
            let text = format!("the table of dataset {} cannot be read: {why}", record.name);
            Error::new(Errno::EIO).with_text(text)
        };
        let manifest = &record.manifest;
        let file = open(fs, &manifest.table_digest).await?;
        let mut words = vec![0u64; manifest.table_bytes.div_ceil(8) as usize];
        let bytes = zerocopy::IntoBytes::as_mut_bytes(&mut words[..]);
        let mut offset = 0;
        while offset < manifest.table_bytes {
            let len = (manifest.table_bytes - offset).min(PIECE_BYTES) as usize;
            let piece = file.read(offset, len).await?;
            if piece.len() != len {
                return Err(wrong("it is cut short".to_owned()));
            }
            bytes[offset as usize..][..len].copy_from_slice(&piece);
            offset += len as u64;
        }
        file.release().await;
        if Digest::of(&bytes[..manifest.table_bytes as usize]) != manifest.table_digest {
            return Err(wrong("it does not have its digest".to_owned()));
        }
        let table = Table::of_words(Path::new(&record.name), words);
        let table = table.map_err(|e| wrong(e.to_string()))?;
        let seen = Mutex::new(time::now());
        let parts = manifest.partitions.iter().map(|_| Mutex::default()).collect();
        let dataset = Arc::new(LoadedDataset { table, parts, record, seen });
        let mut all = self.by_number.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(dataset.record.number, dataset.clone());
        Ok(dataset)
    }
}
