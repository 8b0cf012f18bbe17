//! Putting a dataset into the cluster under a name.

#![allow(clippy::disallowed_methods, reason = "reads files of the machine that freezes")]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use saker_dataset::pack::Objects;
use saker_dataset::{Dataset, Digest, Manifest, Table};
use saker_runtime::time;
use saker_types::{Errno, Error, Result};

use super::files::{PIECE_BYTES, local};
use super::lock::{Held, LockFile};
use super::{Datasets, FORMAT, FrozenDataset, Link, RootAttr, check_name, name_at, object_at};
use crate::Caller;

/// How far storing has come, in bytes; for those who watch it, and who stop it.
#[derive(Debug, Default)]
pub struct FreezeProgress {
    /// Stored so far, or found to be there.
    pub bytes: AtomicU64,
    /// Of these, found to be there.
    pub shared_bytes: AtomicU64,
    /// Set to stop.
    pub stop: AtomicBool,
}

impl FreezeProgress {
    fn check(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Errno::EINTR.into()) } else { Ok(()) }
    }
}

/// What a frozen dataset is called.
#[derive(Clone, Copy, Debug)]
pub struct FreezeName<'a> {
    /// NAME@VERSION.
    pub name: &'a str,
    /// Path in the cluster at which it shall also be seen, by a symbolic link.
    pub at: Option<&'a [u8]>,
}

/// A dataset on its way into the cluster: its objects are stored one by one, its record at the end.
/// Nothing is collected meanwhile. To be ended by [`Freezing::finish`] or [`Freezing::abandon`].
pub struct Freezing<'a> {
    datasets: Datasets<'a>,
    who: &'a Caller,
    name: &'a str,
    link: Option<Link>,
    lock: Held,
    /// The dataset that has the name already. Then nothing is stored, only compared.
    there: Option<FrozenDataset>,
    progress: &'a FreezeProgress,
}

impl<'a> Datasets<'a> {
    /// Begins to freeze a dataset under a name. `waits` is called again and again while somebody
    /// collects, and ends that by an error.
    ///
    /// # Errors
    /// EINVAL for a name that is none. EEXIST if anything is where the link shall be, or the name is
    /// taken by a dataset without that link. ENOENT without the directory of the link. Of `waits`, of
    /// the cluster.
    pub async fn begin(
        &self,
        who: &'a Caller,
        FreezeName { name, at }: FreezeName<'a>,
        progress: &'a FreezeProgress,
        waits: impl FnMut() -> Result<()>,
    ) -> Result<Freezing<'a>> {
        check_name(name)?;
        let link = match at {
            Some(path) => Some(Link::plan(self.files.fs, who, path, name).await?),
            None => None,
        };
        let lock = self.files.lock(LockFile::Objects, false, waits).await?;
        let there = match self.find(name).await {
            Ok(there) => there,
            Err(error) => return lock.end_with(Err(error)).await,
        };
        if let (Some(there), Some(link)) = (&there, &link)
            && there.at.as_ref() != Some(&link.path)
        {
            return lock.end_with(Err(elsewhere(there))).await;
        }
        Ok(Freezing { datasets: *self, who, name, link, lock, there, progress })
    }
}

/// A dataset has the name, and another link or none.
fn elsewhere(there: &FrozenDataset) -> Error {
    let at = there.at.as_deref().map_or_else(String::new, |path| format!(", at {path}"));
    let text = format!("{} is there already{at}; its link cannot be changed", there.name);
    Error::new(Errno::EEXIST).with_text(text)
}

impl Freezing<'_> {
    /// Stores all objects of a packed dataset, and its record. What other versions have of it
    /// already is not stored again. Going on after a crash is doing it again.
    ///
    /// # Errors
    /// As [`Freezing::finish`]; EIO for a packed dataset that cannot be read.
    pub async fn freeze(self, packed: &Dataset) -> Result<FrozenDataset> {
        let manifest = packed.manifest();
        match self.store_all(packed).await {
            Ok(()) => self.finish(manifest.clone(), packed.table()).await,
            Err(error) => self.lock.end_with(Err(error)).await,
        }
    }

    async fn store_all(&self, packed: &Dataset) -> Result<()> {
        let (dir, manifest) = (packed.dir(), packed.manifest());
        for part in &manifest.partitions {
            self.store(&part.digest, &dir.join(&part.name), part.stored).await?;
        }
        let table = dir.join(saker_dataset::TABLE);
        self.store(&manifest.table_digest, &table, manifest.table_bytes).await
    }

    /// Makes the link and writes the record of a dataset whose objects are stored.
    ///
    /// # Errors
    /// EEXIST if the name has other data, or if anything is where the link shall be; the same data is
    /// fine. EIO if this client was away for so
    /// long that objects may have been collected. Of the cluster.
    pub async fn finish(self, manifest: Manifest, table: &Table) -> Result<FrozenDataset> {
        let root = RootAttr::of(table);
        let record = async |_: &Held| self.record(manifest, root).await;
        let named = self.datasets.files.change_names(record).await;
        self.lock.end_with(named).await
    }

    /// Ends it without a record. What was stored goes with the next [`Datasets::collect`].
    ///
    /// # Errors
    /// Of the cluster.
    pub async fn abandon(self) -> Result<()> {
        self.lock.end().await
    }

    async fn record(&self, manifest: Manifest, root: RootAttr) -> Result<FrozenDataset> {
        let (datasets, name) = (&self.datasets, self.name);
        let failed = |errno, text| Err(Error::new(errno).with_text(text));
        match (&self.there, datasets.find(name).await?) {
            (_, Some(there)) if there.manifest.digest == manifest.digest => {
                return self.same(there).await;
            }
            (_, Some(there)) => {
                let digest = there.manifest.digest;
                let text = format!("{name} is there already, with other data ({digest})");
                return failed(Errno::EEXIST, text);
            }
            (Some(_), None) => {
                let text = format!("{name} was removed meanwhile; freeze it again");
                return failed(Errno::EAGAIN, text);
            }
            (None, None) => {}
        }
        let number = datasets.next_number().await?;
        let frozen_at = (time::wall_ns() / 1_000_000_000) as u64;
        let record = FrozenDataset {
            format: FORMAT,
            name: name.to_owned(),
            number,
            frozen_at,
            owner: self.who.uid,
            at: self.link.as_ref().map(|link| link.path.clone()),
            root: Some(root),
            manifest,
        };
        let text = serde_json::to_vec_pretty(&record)
            .map_err(|e| Error::new(Errno::EIO).with_text(e.to_string()))?;
        let mut text = Some(Bytes::from(text));
        // Without it somebody may have collected what is about to be named.
        self.lock.check().await?;
        self.make_link().await?;
        datasets.files.write(&name_at(&record.name), async || Ok(text.take())).await?;
        Ok(record)
    }

    /// The data is there under the name already.
    async fn same(&self, there: FrozenDataset) -> Result<FrozenDataset> {
        if self.link.is_some() && self.link.as_ref().map(|link| &link.path) != there.at.as_ref() {
            return Err(elsewhere(&there));
        }
        self.make_link().await?;
        Ok(there)
    }

    async fn make_link(&self) -> Result<()> {
        match &self.link {
            Some(link) => link.make(self.datasets.files.fs, self.who).await,
            None => Ok(()),
        }
    }

    async fn is_there(&self, digest: &Digest, bytes: u64) -> Result<bool> {
        // A name that is taken is compared with what has it. What that dataset has lost is stored
        // again, nothing else.
        if self.there.as_ref().is_some_and(|there| there.objects().all(|object| object != *digest))
        {
            return Ok(true);
        }
        Ok(self.datasets.files.size(&object_at(digest)).await? == Some(bytes))
    }

    /// Stores a local file under its digest, if it is not there.
    async fn store(&self, digest: &Digest, path: &Path, bytes: u64) -> Result<()> {
        self.progress.check()?;
        self.lock.check().await?;
        if self.is_there(digest, bytes).await? {
            self.add_shared(bytes);
            return Ok(());
        }
        let file = std::fs::File::open(path).map_err(|e| local(path, &e))?;
        let mut offset = 0;
        let next = async || {
            self.progress.check()?;
            let len = (bytes - offset).min(PIECE_BYTES as u64) as usize;
            let mut piece = vec![0; len];
            file.read_exact_at(&mut piece, offset).map_err(|e| local(path, &e))?;
            offset += len as u64;
            self.progress.bytes.fetch_add(len as u64, Ordering::Relaxed);
            Ok((len > 0).then(|| piece.into()))
        };
        self.datasets.files.write(&object_at(digest), next).await
    }

    fn add_shared(&self, bytes: u64) {
        self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.progress.shared_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// An error of the cluster, as the packer has it.
    fn failed(&self, path: &Path, error: Error) -> saker_dataset::Error {
        match error.errno() {
            Errno::EINTR => saker_dataset::Error::Interrupted,
            _ => saker_dataset::Error::io(path, std::io::Error::other(error.to_string())),
        }
    }
}

/// Blocks, on the packer's threads.
impl Objects for Freezing<'_> {
    fn has(&self, digest: &Digest, bytes: u64) -> saker_dataset::Result<bool> {
        let found = self.datasets.files.fs.block_on(self.is_there(digest, bytes));
        if let Ok(true) = found {
            self.add_shared(bytes);
        }
        found.map_err(|error| self.failed(Path::new(self.name), error))
    }

    fn put(&self, digest: &Digest, path: &Path, bytes: u64) -> saker_dataset::Result<()> {
        let stored = self.datasets.files.fs.block_on(self.store(digest, path, bytes));
        stored.map_err(|error| self.failed(path, error))
    }
}

impl Datasets<'_> {
    /// A number that no dataset has had.
    async fn next_number(&self) -> Result<u32> {
        let place = super::at(&["counter"]);
        let text = self.files.read(&place).await?;
        let last = match &text {
            None => 0,
            Some(text) => std::str::from_utf8(text)
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .ok_or_else(|| {
                    Error::new(Errno::EIO).with_text("the counter of datasets cannot be read")
                })?,
        };
        let next: u32 = last + 1;
        if next > saker_types::FROZEN_DATASETS_MAX {
            return Err(Error::new(Errno::ENOSPC).with_text("too many datasets were frozen"));
        }
        let mut text = Some(Bytes::from(format!("{next}\n")));
        self.files.write(&place, async || Ok(text.take())).await?;
        Ok(next)
    }
}
