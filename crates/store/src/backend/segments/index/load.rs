//! Entries of the index in memory: from the table, if it must be.

use std::ops::ControlFlow;

use bytes::Bytes;
use saker_types::{InodeId, Result};

use super::{
    CHUNK_OVERHEAD_BYTES, Cached, ChunkKey, Index, Inode, NOTHING_VOID, State, bytes_of, failed,
    rows,
};
use crate::backend::segments::extent::Chunk;
use crate::wait::{WaitPolicy, would_wait};

impl Index {
    /// The chunk, if there is one; from the table if need be.
    pub(super) fn load<'a>(
        &self,
        state: &'a mut State,
        key: ChunkKey,
        wait: WaitPolicy,
    ) -> Result<Option<&'a mut Chunk>> {
        if !state.chunks.contains_key(&key) {
            let void = state.inodes.get(&key.0).is_some_and(|inode| key.1 >= inode.void_from);
            if void {
                return Ok(None);
            }
            let Some(row) = self.row(&rows::chunk_key(key), wait)? else { return Ok(None) };
            let chunk = rows::decode_chunk(&row)?;
            state.bytes += bytes_of(&chunk);
            state.chunks.insert(key, Cached { chunk, ..Cached::default() });
        }
        Ok(state.chunks.get_mut(&key).map(|cached| {
            cached.used = true;
            &mut cached.chunk
        }))
    }

    /// The inode's entry; from the table if need be.
    pub(super) fn inode<'a>(
        &self,
        state: &'a mut State,
        id: InodeId,
        wait: WaitPolicy,
    ) -> Result<&'a mut Inode> {
        if !state.inodes.contains_key(&id) {
            let row = self.row(&rows::inode_key(id), wait)?;
            let truncate_gen = row.map_or(Ok(0), |row| rows::decode_inode(&row))?;
            state.bytes += CHUNK_OVERHEAD_BYTES;
            let inode = Inode {
                truncate_gen,
                void_from: NOTHING_VOID,
                writers: 0,
                exclusive: false,
                dirty: false,
                writing: false,
            };
            state.inodes.insert(id, inode);
        }
        state.inodes.get_mut(&id).ok_or_else(|| failed("read", "the inode is gone"))
    }

    /// A row of the table.
    fn row(&self, key: &[u8], wait: WaitPolicy) -> Result<Option<Bytes>> {
        let row = match wait {
            WaitPolicy::May => self.table.get(key),
            WaitPolicy::Never => match self.table.get_cached(key) {
                Ok(None) => return Err(would_wait()),
                Ok(Some(row)) => Ok(row),
                Err(error) => Err(error),
            },
        };
        row.map_err(|e| failed("read", e))
    }

    /// Calls `f` with the table's chunks of an inode, from an index to another (exclusive).
    pub(super) fn scan_chunks(
        &self,
        id: InodeId,
        from: u64,
        to: u64,
        f: &mut dyn FnMut(u64, Chunk),
    ) -> Result<()> {
        let (start, end) = (rows::chunk_key((id, from)), rows::chunk_key((id, to)));
        let mut result = Ok(());
        self.table
            .scan(&start, &end, &mut |key, row| {
                match rows::decode_key(key).and_then(|key| Ok((key, rows::decode_chunk(row)?))) {
                    Ok(((_, index), chunk)) => f(index, chunk),
                    Err(error) => result = Err(error),
                }
                if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .map_err(|e| failed("read", e))?;
        result
    }
}
