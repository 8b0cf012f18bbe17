//! Rows of a merge in files of the cluster, from which the shards read them (Cudele section 3.1, "Nonvolatile
//! Apply").

use std::sync::Arc;

use prost::Message;
use saker_types::limits::CHUNK_BYTES;
use saker_types::wire::{At, StageReq, StoredAt, StoredRows};
use saker_types::{Locator, Result, ShardNo};

use super::{Kept, Part, SavedJournals, copy, directory};
use crate::core::Core;
use crate::namespace::api::Namespace;
use crate::namespace::strict::Strict;
use crate::{Caller, OpenFlags};

/// The files of one attempt.
pub(crate) struct StoredMerge<'a> {
    core: &'a Arc<Core>,
    dir: Locator,
    attempt: u32,
}

impl<'a> StoredMerge<'a> {
    /// Files for the merge of a client that began to serve the subtree in the epoch `began`.
    ///
    /// # Errors
    /// As [`SavedJournals::of`].
    pub(crate) async fn begin(
        core: &'a Arc<Core>,
        policy: u64,
        began: u64,
        attempt: u32,
    ) -> Result<StoredMerge<'a>> {
        let saved = SavedJournals::of(core, policy).await?;
        let dir = directory(core, &saved.at(Kept { epoch: began, part: Part::Merge })).await?;
        Ok(StoredMerge { core, dir, attempt })
    }

    /// Removes all of them: they were merged, or will be written anew.
    pub(crate) async fn remove(core: &'a Arc<Core>, policy: u64, began: u64) {
        let removed = match SavedJournals::of(core, policy).await {
            Ok(saved) => saved.remove_merges(began).await,
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            tracing::warn!("rows of a merge under policy {policy:#x} are there yet: {error}");
        }
    }

    /// Writes what is for a shard, durably. Says where each request's rows are.
    ///
    /// # Errors
    /// Of the cluster.
    pub(crate) async fn put(
        &self,
        shard: ShardNo,
        requests: impl Iterator<Item = StageReq>,
    ) -> Result<Vec<StoredAt>> {
        let mut requests = requests.peekable();
        if requests.peek().is_none() {
            return Ok(Vec::new());
        }
        let (names, root) = (Strict(self.core), Caller::root());
        let name = format!("{:08x}-{shard}", self.attempt);
        let at = At::child(self.dir.clone(), name.as_bytes());
        let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
        let (file, entry) = names.create(&root, &at, 0o600, flags, false).await?;
        // Not what may stay in the row of a small file.
        let mut end = self.core.cluster.routes().map.inline_max.next_multiple_of(4096);
        file.write(end.max(1) - 1, &[0]).await?;
        let mut places = Vec::new();
        for StageReq { rows, dirs, .. } in requests {
            let rows = StoredRows { rows, dirs }.encode_to_vec();
            let len = rows.len() as u64;
            if end / CHUNK_BYTES != (end + len) / CHUNK_BYTES {
                end = end.next_multiple_of(CHUNK_BYTES);
            }
            file.write(end, &rows).await?;
            places.push(StoredAt {
                id: entry.attr.id,
                index: end / CHUNK_BYTES,
                offset: end % CHUNK_BYTES,
                len,
                crc: crc32c::crc32c(&rows),
            });
            end += len;
        }
        file.fsync().await?;
        file.release().await;
        Ok(places)
    }
}

impl SavedJournals<'_> {
    /// Removes what was for merges up to this epoch, also those of a client that is gone.
    async fn remove_merges(&self, epoch: u64) -> Result<()> {
        let is_over = |kept: &Kept| kept.part == Part::Merge && kept.epoch <= epoch;
        for kept in self.all().await?.into_iter().filter(is_over) {
            copy::remove_tree(self.core, &self.at(kept)).await?;
        }
        self.remove_if_empty().await
    }
}
