//! Holes: fallocate(2), lseek(2) for data and holes; and copies within the cluster.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use prost::Message;
use saker_runtime::time;
use saker_types::limits::FILE_BYTES_MAX;
use saker_types::wire::{ChunkSeekReply, ChunkSeekReq, Op};
use saker_types::{Class, Errno, InodeId, NodeId, Result, StoreNo};

use crate::core::Core;
use crate::data::file::Handle;
use crate::net::cluster::{Backoff, Fail, decode};
use crate::net::route::Routes;
use crate::{Fallocate, File, Seek};

/// A store is asked where data is for this long before it counts as silent.
const SEEK_ATTEMPT_MAX: Duration = Duration::from_secs(5);
/// Bytes that a copy reads and writes at a time.
const COPY_BYTES: u64 = 1 << 20;

/// Data and holes are told in units of this, as by other file systems: programs would gain
/// nothing by smaller ones.
const BLOCK_BYTES: u64 = 4096;

/// A run, made larger to whole blocks.
fn in_blocks(start: u64, end: u64) -> (u64, u64) {
    (start - start % BLOCK_BYTES, end.next_multiple_of(BLOCK_BYTES))
}

impl File {
    /// fallocate(2). Space is not reserved: what is asked for is refused when it is not there
    /// now, but a later write may still fail for want of it.
    ///
    /// # Errors
    /// EBADF when it is not open for writing; EFBIG; ENOSPC; those of earlier writes.
    pub async fn fallocate(&self, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        let handle = self.writable()?;
        handle.still_holds().await?;
        handle.core.fallocate(handle, how, offset, len).await
    }

    /// copy_file_range(2): copies up to `len` bytes to another file, or elsewhere in this one.
    /// Returns how many; fewer at the end of this file, and 0 behind it.
    ///
    /// # Errors
    /// EBADF when this is not open for reading, or the other not for writing or for appending;
    /// EFBIG. After a part of the copy an error ends it without being told.
    pub async fn copy_to(&self, from: u64, other: &File, at: u64, len: u64) -> Result<u64> {
        if other.writable()?.flags.append {
            return Err(Errno::EBADF.into());
        }
        let mut copied = 0;
        while copied < len {
            let part = match self.read(from + copied, (len - copied).min(COPY_BYTES) as usize).await
            {
                Ok(part) if part.is_empty() => break,
                Ok(part) => part,
                Err(error) if copied == 0 => return Err(error),
                Err(_) => break,
            };
            match other.write(at + copied, &part).await {
                Ok(_) => copied += part.len() as u64,
                Err(error) if copied == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(copied)
    }
}

impl Core {
    async fn fallocate(
        self: &Arc<Core>,
        handle: &Handle,
        how: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(Errno::EFBIG)?;
        let inode = &handle.inode;
        let mut writer = inode.writer.lock().await;
        handle.take_failure()?;
        // What others have written and closed since this file was opened is not beyond its end.
        self.refresh(&handle.who, inode).await?;
        let size = inode.with(|s| s.attr().size);
        if how.reserves() && end > size {
            // What is before that stays a hole.
            self.stat_cache.must_have_room(&self.cluster, end - size.max(offset)).await?;
        }
        if how.clears() {
            let end = if how.grows() { end } else { end.min(size) };
            self.load_inline(&handle.who, inode).await?;
            inode.with(|s| {
                if s.attr().chunked {
                    writer.put_hole(offset, end);
                    s.cleared(end, end.saturating_sub(offset), writer.range(), &handle.who);
                } else {
                    s.clear_inline(offset, end, &handle.who);
                }
            });
        }
        if how.grows() {
            inode.with(|s| s.grown(end, &handle.who));
        }
        self.write_back(inode, &mut writer).await;
        handle.take_failure()
    }

    pub(crate) async fn seek(
        self: &Arc<Core>,
        handle: &Handle,
        want: Seek,
        offset: u64,
    ) -> Result<u64> {
        let inode = &handle.inode;
        {
            let mut writer = inode.writer.lock().await;
            self.pump(inode, &mut writer, true).await;
            handle.take_failure()?;
        }
        self.refresh(&handle.who, inode).await?;
        self.catch_up(handle).await?;
        self.load_inline(&handle.who, inode).await?;
        let (size, inline) = inode.with(|s| {
            let inline = s.inline().map_or(0, Bytes::len) as u64;
            (s.attr().size, (!s.attr().chunked).then_some(inline))
        });
        if offset >= size {
            return Err(Errno::ENXIO.into());
        }
        let (start, end) = match inline {
            Some(end) if offset < in_blocks(0, end).1 => (offset, in_blocks(0, end).1),
            Some(_) => (size, size),
            None => self.next_data(inode.id, offset, want).await?.unwrap_or((size, size)),
        };
        match want {
            Seek::Data if start < size => Ok(start),
            Seek::Data => Err(Errno::ENXIO.into()),
            Seek::Hole if start > offset => Ok(offset),
            Seek::Hole => Ok(end.min(size)),
        }
    }

    /// The first run of blocks with data at or behind `offset`, as far as its end is wanted.
    async fn next_data(&self, id: InodeId, offset: u64, want: Seek) -> Result<Option<(u64, u64)>> {
        let Some((start, end)) = self.first_run(id, offset).await? else { return Ok(None) };
        let (start, mut end) = in_blocks(start, end);
        let start = start.max(offset);
        if want == Seek::Data || start > offset {
            return Ok(Some((start, end)));
        }
        while let Some((next, next_end)) = self.first_run(id, end).await? {
            let (next, next_end) = in_blocks(next, next_end);
            if next > end {
                break;
            }
            end = next_end;
        }
        Ok(Some((start, end)))
    }

    /// The first run of data at or behind `offset` that a store has. As many stores may be
    /// silent as each chunk has spare copies.
    async fn first_run(&self, id: InodeId, offset: u64) -> Result<Option<(u64, u64)>> {
        let body = Bytes::from(ChunkSeekReq { id, offset }.encode_to_vec());
        let mut backoff = Backoff::until(self.cluster.deadline());
        loop {
            let routes = self.cluster.routes();
            let stores = 0..routes.map.stores.len() as StoreNo;
            let copies = routes.map.replicas.max(1) as usize;
            let now = time::now();
            let (silent, asked): (Vec<_>, Vec<_>) =
                stores.clone().partition(|store| self.failing_stores.has(*store, now));
            let asked = if silent.len() < copies { asked } else { stores.collect() };
            let (runs, failures) = self.runs_of(&routes, asked, &body).await?;
            let missing = routes.map.stores.len() - runs.len();
            if missing < copies {
                let runs = runs.into_iter().filter(|run| run.end > run.start);
                return Ok(runs.map(|run| (run.start, run.end)).min());
            }
            let Some((to, fail)) = failures.into_iter().next() else { continue };
            if let Fail::Answer(error) = &fail
                && error.is(Class::Final)
            {
                return Err(error.clone());
            }
            self.cluster.pause(&mut backoff, to, Op::ChunkSeek, &routes, &fail).await?;
        }
    }

    /// What these stores answer, and why the others do not.
    async fn runs_of(
        &self,
        routes: &Routes,
        stores: Vec<StoreNo>,
        body: &Bytes,
    ) -> Result<(Vec<ChunkSeekReply>, Vec<(NodeId, Fail)>)> {
        let (trace, until) = (self.cluster.trace(), time::now() + SEEK_ATTEMPT_MAX);
        let ask = |store: &StoreNo| {
            let (to, body) = (NodeId::Store(*store), body.clone());
            self.cluster.send(routes, to, Op::ChunkSeek, trace, body, Bytes::new(), until)
        };
        let answers = join_all(stores.iter().map(ask)).await;
        let (mut runs, mut failures) = (Vec::new(), Vec::new());
        for (store, answer) in stores.into_iter().zip(answers) {
            match answer {
                Ok(reply) => runs.push(decode::<ChunkSeekReply>(Op::ChunkSeek, reply.body)?),
                Err(fail) => {
                    if let Fail::Call(_) = &fail {
                        self.failing_stores.add(store, time::now());
                    }
                    failures.push((NodeId::Store(store), fail));
                }
            }
        }
        Ok((runs, failures))
    }
}

#[cfg(test)]
mod tests;
