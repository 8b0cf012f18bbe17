//! Putting a packed dataset into the cluster under a name.

#![allow(clippy::disallowed_methods, reason = "reads files of the machine that freezes")]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use saker_dataset::{Dataset, Digest};
use saker_runtime::time;
use saker_types::{Errno, Error, Result};

use super::files::{PIECE_BYTES, local};
use super::{Datasets, FORMAT, FrozenDataset, check_name, name_at, object_at};
use crate::{Caller, File};

/// How far freezing has come, in bytes; of these, what the cluster had already.
#[derive(Debug, Default)]
pub struct FreezeProgress {
    /// Stored so far.
    pub bytes: AtomicU64,
    /// Found to be there.
    pub shared_bytes: AtomicU64,
}

impl Datasets<'_> {
    /// Stores a packed dataset under a name. What other versions have of it already is not stored
    /// again. Going on after a crash is doing it again.
    ///
    /// # Errors
    /// EEXIST if the name has other data; the same data is fine. EINVAL for a name that is none. EIO
    /// for a packed dataset that cannot be read. Of the cluster.
    pub async fn freeze(
        &self,
        who: &Caller,
        packed: &Dataset,
        name: &str,
        progress: &FreezeProgress,
    ) -> Result<FrozenDataset> {
        check_name(name)?;
        let freeze = async |lock: &File| self.freeze_alone(lock, who, packed, name, progress).await;
        self.files.alone(freeze).await
    }

    async fn freeze_alone(
        &self,
        lock: &File,
        who: &Caller,
        packed: &Dataset,
        name: &str,
        progress: &FreezeProgress,
    ) -> Result<FrozenDataset> {
        let manifest = packed.manifest().clone();
        if let Some(there) = self.find(name).await? {
            if there.manifest.digest != manifest.digest {
                let text =
                    format!("{name} is there already, with other data ({})", there.manifest.digest);
                return Err(Error::new(Errno::EEXIST).with_text(text));
            }
            if there.manifest == manifest {
                // Whoever froze it may have lost the lock, and somebody collected what it needs.
                self.store_all(packed, progress).await?;
            }
            return Ok(there);
        }
        self.store_all(packed, progress).await?;
        let number = self.next_number().await?;
        let frozen_at = (time::wall_ns() / 1_000_000_000) as u64;
        let (format, name, owner) = (FORMAT, name.to_owned(), who.uid);
        let record = FrozenDataset { format, name, number, frozen_at, owner, manifest };
        let text = serde_json::to_vec_pretty(&record)
            .map_err(|e| Error::new(Errno::EIO).with_text(e.to_string()))?;
        let mut text = Some(Bytes::from(text));
        // Without it somebody may have collected what is about to be named.
        lock.still_holds_locks().await?;
        self.files.write(&name_at(&record.name), async || Ok(text.take())).await?;
        Ok(record)
    }

    /// Stores what a packed dataset is made of.
    async fn store_all(&self, packed: &Dataset, progress: &FreezeProgress) -> Result<()> {
        let (manifest, dir) = (packed.manifest(), packed.dir());
        let table = dir.join(saker_dataset::TABLE);
        self.store(&manifest.table_digest, &table, manifest.table_bytes, progress).await?;
        for part in &manifest.partitions {
            self.store(&part.digest, &dir.join(&part.name), part.stored, progress).await?;
        }
        Ok(())
    }

    /// Stores a local file under its digest, if it is not there.
    async fn store(
        &self,
        digest: &Digest,
        path: &Path,
        bytes: u64,
        progress: &FreezeProgress,
    ) -> Result<()> {
        let place = object_at(digest);
        if self.files.size(&place).await? == Some(bytes) {
            progress.bytes.fetch_add(bytes, Ordering::Relaxed);
            progress.shared_bytes.fetch_add(bytes, Ordering::Relaxed);
            return Ok(());
        }
        let file = std::fs::File::open(path).map_err(|e| local(path, &e))?;
        let mut offset = 0;
        let next = async || {
            let len = (bytes - offset).min(PIECE_BYTES as u64) as usize;
            let mut piece = vec![0; len];
            file.read_exact_at(&mut piece, offset).map_err(|e| local(path, &e))?;
            offset += len as u64;
            progress.bytes.fetch_add(len as u64, Ordering::Relaxed);
            Ok((len > 0).then(|| piece.into()))
        };
        self.files.write(&place, next).await
    }

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
