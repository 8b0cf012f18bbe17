//! Datasets whose records or tables this client has read.
//!
//! What asks the cluster is boxed: it goes through [`Fs`] again, whose futures have those of this
//! namespace in them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    pub(super) record: Arc<FrozenDataset>,
    pub(super) table: Table,
    /// Its partitions, once they are open.
    parts: Vec<Mutex<Option<Arc<File>>>>,
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

/// A record, and when its name was last seen to lead to it.
struct Named {
    record: Arc<FrozenDataset>,
    seen: Time,
}

/// Records and tables that were read.
#[derive(Default)]
pub(crate) struct Cache {
    by_name: Mutex<HashMap<String, Named>>,
    by_number: Mutex<HashMap<u32, Arc<LoadedDataset>>>,
    /// Held while a table is read: who comes meanwhile waits for it.
    loading: AsyncMutex<()>,
}

impl Cache {
    fn by_name(&self) -> MutexGuard<'_, HashMap<String, Named>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn by_number(&self) -> MutexGuard<'_, HashMap<u32, Arc<LoadedDataset>>> {
        self.by_number.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The dataset of a number, if its table was read.
    pub(super) fn numbered(&self, number: u32) -> Option<Arc<LoadedDataset>> {
        self.by_number().get(&number).cloned()
    }

    /// The record of a name. Whether the name still leads to it is asked once in [`NAME_HOLDS`].
    pub(super) async fn named(&self, fs: &Fs, name: &str) -> Result<Option<Arc<FrozenDataset>>> {
        let now = time::now();
        let fresh = |known: &&Named| now.since(known.seen) < NAME_HOLDS;
        let known = self.by_name().get(name).filter(fresh).map(|known| known.record.clone());
        if known.is_some() {
            return Ok(known);
        }
        let found = find(fs, name).await?.map(Arc::new);
        let before = match &found {
            Some(record) => {
                let named = Named { record: record.clone(), seen: now };
                self.by_name().insert(name.to_owned(), named)
            }
            None => self.by_name().remove(name),
        };
        let number = |record: &Arc<FrozenDataset>| record.number;
        if let Some(before) = before.map(|named| named.record.number)
            && found.as_ref().map(number) != Some(before)
        {
            self.by_number().remove(&before);
        }
        Ok(found)
    }

    /// The record of a number, of a dataset that had this name.
    pub(super) async fn record_of(
        &self,
        fs: &Fs,
        number: u32,
        name: &str,
    ) -> Result<Option<Arc<FrozenDataset>>> {
        let known = self.by_name().get(name).map(|known| known.record.clone());
        if let Some(record) = known.filter(|record| record.number == number) {
            return Ok(Some(record));
        }
        if let Some(record) = self.named(fs, name).await?
            && record.number == number
        {
            return Ok(Some(record));
        }
        let found = list(fs).await?.into_iter().find(|record| record.number == number);
        Ok(found.map(Arc::new))
    }

    /// A dataset with its table, which is read if it was not yet.
    pub(super) async fn load(
        &self,
        fs: &Fs,
        record: &Arc<FrozenDataset>,
    ) -> Result<Arc<LoadedDataset>> {
        if let Some(dataset) = self.numbered(record.number) {
            return Ok(dataset);
        }
        let _alone = self.loading.lock().await;
        if let Some(dataset) = self.numbered(record.number) {
            if dataset.record != *record {
                let [a, b] = [&dataset.record.name, &record.name];
                let text = format!("datasets {a} and {b} have the same number {}", record.number);
                return Err(Error::new(Errno::EIO).with_text(text));
            }
            return Ok(dataset);
        }
        let table = read_table(fs, record).await?;
        let parts = record.manifest.partitions.iter().map(|_| Mutex::default()).collect();
        let dataset = Arc::new(LoadedDataset { table, parts, record: record.clone() });
        self.by_number().insert(record.number, dataset.clone());
        Ok(dataset)
    }
}

/// Reads a dataset's table.
async fn read_table(fs: &Fs, record: &FrozenDataset) -> Result<Table> {
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
    table.map_err(|e| wrong(e.to_string()))
}
