//! Chunks of file data, to and from stores.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};
use prost::Message;
use saker_rpc::CallError;
use saker_runtime::time::{self, Time};
use saker_types::limits::CHUNK_BYTES;
use saker_types::wire::{
    ChunkPlace, ChunkReadReply, ChunkReadReq, ChunkSyncReply, ChunkSyncReq, ChunkWriteReply,
    ChunkWriteReq, LocalDir, Op,
};
use saker_types::{Attr, Class, Errno, Error, InodeId, NodeId, Result, StoreNo, Unflushed};
use std::time::Duration;

use crate::Caller;
use crate::core::Core;
use crate::data::open_inode::OpenInode;
use crate::data::write::writer::{Piece, left_in_chunk};
use crate::net::cluster::{Backoff, Fail, all, decode};
use crate::net::route::Routes;

/// One attempt at a read or write of a chunk waits this long.
const ATTEMPT_MAX: Duration = Duration::from_secs(20);
/// A flush may have to wait for a disk that is busy.
const SYNC_ATTEMPT_MAX: Duration = Duration::from_secs(600);
/// After this many rounds in which each replica failed for good, a read fails.
const READ_ROUNDS: u32 = 2;

/// Where the bytes from `offset` on, all in one chunk, belong.
pub(crate) struct ChunkOffset {
    index: u64,
    within: u64,
    /// First choice first.
    pub(crate) stores: Vec<StoreNo>,
}

impl ChunkOffset {
    /// The place of `offset` in the file.
    ///
    /// # Errors
    /// EIO when the cluster has no stores.
    pub(crate) fn of(routes: &Routes, id: InodeId, offset: u64) -> Result<ChunkOffset> {
        let index = offset / CHUNK_BYTES;
        let stores = routes.map.stores_of_chunk(id, index);
        if stores.is_empty() {
            return Err(Error::new(Errno::EIO).with_text("the cluster has no stores"));
        }
        Ok(ChunkOffset { index, within: offset % CHUNK_BYTES, stores })
    }
}

impl Core {
    /// Writes a piece, which lies in one chunk, to all its replicas, as long as no more locks are lost than those of
    /// `under` ([`Core::may_send`]). Returns what they call it.
    ///
    /// # Errors
    /// ESTALE when the file was truncated since `truncate_gen`; EIO when a lock was lost.
    pub(crate) async fn write_chunk(
        self: Arc<Core>,
        id: InodeId,
        truncate_gen: u64,
        place: ChunkOffset,
        piece: Piece,
        (inode, losses): (Weak<OpenInode>, u64),
    ) -> Result<Vec<Unflushed>> {
        let Piece { data, hole, .. } = piece;
        let (writer, seq) = self.next_chunk_write();
        let message = ChunkWriteReq {
            id,
            index: place.index,
            offset: place.within,
            truncate_gen,
            replicas: place.stores.iter().map(|n| u32::from(*n)).collect(),
            sync: false,
            crc: crc32c::crc32c(&data),
            writer,
            seq,
            attempt: 0,
            hole,
        };
        let deadline = self.cluster.deadline();
        let write = async |store: &StoreNo| {
            let attempt =
                |attempt| Bytes::from(ChunkWriteReq { attempt, ..message.clone() }.encode_to_vec());
            let (to, op) = (NodeId::Store(*store), Op::ChunkWrite);
            let may_send = || self.may_send(inode.clone(), losses);
            let data = data.clone();
            let call =
                self.cluster.call_while(to, op, attempt, data, ATTEMPT_MAX, deadline, may_send);
            let ChunkWriteReply { epoch, seq } = decode(op, call.await?.body)?;
            Ok(Unflushed { store: u32::from(*store), epoch, first: seq, more: 0 })
        };
        let mut written = match place.stores.as_slice() {
            [only] => vec![write(only).await?],
            stores => all(stores.iter().map(write)).await?,
        };
        written.retain(|writes| writes.epoch > 0);
        Ok(written)
    }

    /// Everything that these stores have accepted is on disk when it returns. True if some of
    /// `unflushed` was lost, with the power of a store's machine or by its disk.
    pub(crate) async fn sync_stores(
        &self,
        mut stores: BTreeSet<StoreNo>,
        unflushed: &[Unflushed],
    ) -> Result<bool> {
        let deadline = self.cluster.deadline();
        stores.extend(unflushed.iter().map(|writes| writes.store as StoreNo));
        let sync = async |store: StoreNo| -> Result<bool> {
            let its = unflushed.iter().filter(|writes| writes.store == u32::from(store));
            let request = ChunkSyncReq { unflushed: its.copied().collect() };
            let (to, op) = (NodeId::Store(store), Op::ChunkSync);
            let call =
                self.cluster.call(to, op, &request, Bytes::new(), SYNC_ATTEMPT_MAX, deadline);
            let ChunkSyncReply { lost } = decode(op, call.await?.body)?;
            Ok(lost)
        };
        Ok(all(stores.into_iter().map(sync)).await?.contains(&true))
    }

    /// Reads a range of a file from its chunks; what was never written reads as zeros. `None`: the file
    /// was cut after this truncate generation, and what is missing may be what was cut. Keeps the file open
    /// no longer than it is.
    ///
    /// # Errors
    /// ESTALE when it was removed, and its lease has ended.
    pub(crate) async fn read_chunks(
        &self,
        inode: &Weak<OpenInode>,
        id: InodeId,
        range: Range<u64>,
        truncate_gen: u64,
    ) -> Result<Option<Bytes>> {
        let len = range.end - range.start;
        if len <= left_in_chunk(range.start) {
            let part = self.read_chunk(id, range.start, len as usize).await?;
            if part.has_holes(len as usize)
                && !self.are_holes(inode, range.end, truncate_gen).await?
            {
                return Ok(None);
            }
            return Ok(Some(pad(part.data, len as usize)));
        }
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let part = (range.end - at).min(left_in_chunk(at)) as usize;
            parts.push((at, part));
            at += part as u64;
        }
        let read = parts.iter().map(|(at, len)| self.read_chunk(id, *at, *len));
        let read = all(read).await?;
        let has_holes = parts.iter().zip(&read).any(|((_, len), part)| part.has_holes(*len));
        if has_holes && !self.are_holes(inode, range.end, truncate_gen).await? {
            return Ok(None);
        }
        let mut out = BytesMut::zeroed(len as usize);
        for ((at, _), Part { data, .. }) in parts.iter().zip(read) {
            let at = (at - range.start) as usize;
            out[at..at + data.len()].copy_from_slice(&data);
        }
        Ok(Some(out.freeze()))
    }

    /// Where a store has nothing, nothing was written; or the file was cut, by a truncation after this
    /// generation; or it was removed while nobody heard of this client, and its chunks are deleted
    /// (docs/protocol.md, rule 16). Its owner knows: whom a truncation that stores have begun makes wait.
    async fn are_holes(
        &self,
        inode: &Weak<OpenInode>,
        end: u64,
        truncate_gen: u64,
    ) -> Result<bool> {
        let inode = inode.upgrade().ok_or(Errno::EBADF)?;
        self.refresh(&Caller::root(), &inode).await?;
        let Attr { chunked, size, truncate_gen: newest, .. } = inode.with(|s| s.attr().clone());
        Ok(chunked && size >= end && newest == truncate_gen)
    }

    /// Reads up to `len` bytes of one chunk, from the first replica that gives them intact.
    async fn read_chunk(&self, id: InodeId, offset: u64, len: usize) -> Result<Part> {
        let deadline = self.cluster.deadline();
        let (trace, mut backoff) = (self.cluster.trace(), Backoff::until(deadline));
        let mut bad_rounds = 0;
        loop {
            let routes = self.cluster.routes();
            let mut place = ChunkOffset::of(&routes, id, offset)?;
            let now = time::now();
            place.stores.sort_by_key(|store| self.failing_stores.has(*store, now));
            let (index, offset, len) = (place.index, place.within, len as u64);
            let request = ChunkReadReq { id, index, offset, len, ..ChunkReadReq::default() };
            let mut last = Fail::Answer(Error::new(Errno::EIO));
            let mut all_bad = true;
            for store in &place.stores {
                let until = deadline.min(time::now() + ATTEMPT_MAX);
                let fail = match self.read_from(&routes, *store, request, trace, until).await {
                    Ok(data) => return Ok(data),
                    Err(fail) => fail,
                };
                if let Fail::Call(_) = &fail {
                    self.failing_stores.add(*store, time::now());
                }
                tracing::debug!(trace, id, offset, store, "chunk_read: {fail}");
                all_bad &= matches!(&fail, Fail::Answer(e) if !retryable(e));
                last = fail;
            }
            if let (true, Fail::Answer(error)) = (all_bad, &last) {
                bad_rounds += 1;
                if bad_rounds == READ_ROUNDS {
                    return Err(error.clone());
                }
            }
            if let Fail::Answer(error) = &last
                && error.is(Class::RefreshMap)
            {
                self.cluster.refresh_map(&routes).await;
            }
            let to = NodeId::Store(place.stores[0]);
            self.cluster.pause(&mut backoff, to, Op::ChunkRead, &routes, &last).await?;
        }
    }

    /// Reads a range of a chunk from one store, or from its file.
    async fn read_from(
        &self,
        routes: &Routes,
        store: StoreNo,
        request: ChunkReadReq,
        trace: u64,
        until: Time,
    ) -> std::result::Result<Part, Fail> {
        let len = request.len as usize;
        let ask = async |request: ChunkReadReq| {
            let (to, body) = (NodeId::Store(store), Bytes::from(request.encode_to_vec()));
            let sent =
                self.cluster.send(routes, to, Op::ChunkRead, trace, body, Bytes::new(), until);
            let reply = sent.await?;
            answer(reply.body, reply.payload, len).map_err(Fail::Answer)
        };
        if let Some(local) = &self.local {
            let mut request = request;
            local.ask(store, &mut request);
            let (dir, places) = match ask(request).await? {
                Answer::Data(part) => return Ok(part),
                Answer::Places(dir, places) => (dir, places),
            };
            match local.read(&self.cluster.net, store, &dir, &places, until).await {
                Ok(Some(data)) => return Ok(Part { data, holes: false }),
                Ok(None) => {}
                // As if the store did not answer.
                Err(_) => return Err(Fail::Call(CallError::Timeout)),
            }
        }
        match ask(request).await? {
            Answer::Data(part) => Ok(part),
            Answer::Places(..) => Err(Fail::Answer(Errno::EPROTO.into())),
        }
    }
}

/// What was read of a chunk, up to the last byte that is there.
#[derive(Debug)]
struct Part {
    data: Bytes,
    /// Some of it was never written, or cleared.
    holes: bool,
}

impl Part {
    /// Was any of the `len` bytes that were asked for in no record?
    fn has_holes(&self, len: usize) -> bool {
        self.holes || self.data.len() < len
    }
}

/// What a store answers a read with.
#[derive(Debug)]
enum Answer {
    Data(Part),
    /// At least one place.
    Places(LocalDir, Vec<ChunkPlace>),
}

/// May the same request succeed later?
fn retryable(error: &Error) -> bool {
    error.is(Class::Retry) || error.is(Class::RefreshMap)
}

/// The answer to a read of `len` bytes, if it is what the store sent and not more.
fn answer(body: Bytes, payload: Bytes, len: usize) -> Result<Answer> {
    let reply: ChunkReadReply = decode(Op::ChunkRead, body)?;
    let placed: usize = reply.places.iter().map(|place| place.len as usize).sum();
    if payload.len() + placed > len {
        return Err(Error::new(Errno::EPROTO).with_text("a store sent more than was asked for"));
    }
    if !reply.places.is_empty() {
        let nowhere = || Error::new(Errno::EPROTO).with_text("places in no directory");
        return Ok(Answer::Places(reply.dir.ok_or_else(nowhere)?, reply.places));
    }
    if crc32c::crc32c(&payload) != reply.crc {
        return Err(Error::new(Errno::EIO).with_text("data was damaged on its way from a store"));
    }
    Ok(Answer::Data(Part { data: payload, holes: reply.holes }))
}

/// `data` followed by zeros up to `len`.
fn pad(data: Bytes, len: usize) -> Bytes {
    if data.len() == len {
        return data;
    }
    let mut out = BytesMut::zeroed(len);
    out[..data.len()].copy_from_slice(&data);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_or_overlong_data_is_refused() {
        let payload = Bytes::from_static(b"data");
        let reply = |crc, places, dir| {
            Bytes::from(ChunkReadReply { crc, places, dir, holes: false }.encode_to_vec())
        };
        let body = |crc, places| reply(crc, places, Some(LocalDir::default()));
        let good = crc32c::crc32c(&payload);
        let said = answer(body(good, vec![]), payload.clone(), 4).unwrap();
        assert!(matches!(said, Answer::Data(part) if part.data == payload));
        let damaged = answer(body(good ^ 1, vec![]), payload.clone(), 4).unwrap_err();
        assert_eq!(damaged.errno(), Errno::EIO);
        let long = answer(body(good, vec![]), payload, 3).unwrap_err();
        assert_eq!(long.errno(), Errno::EPROTO);
        let place = ChunkPlace { len: 2, ..ChunkPlace::default() };
        let at = |len| answer(body(0, vec![place.clone(); 2]), Bytes::new(), len);
        assert!(matches!(at(4).unwrap(), Answer::Places(..)));
        assert_eq!(at(3).unwrap_err().errno(), Errno::EPROTO);
        let nowhere = answer(reply(0, vec![place.clone()], None), Bytes::new(), 4);
        assert_eq!(nowhere.unwrap_err().errno(), Errno::EPROTO);
    }

    #[test]
    fn short_data_is_padded() {
        assert_eq!(pad(Bytes::from_static(b"ab"), 4), &b"ab\0\0"[..]);
        assert_eq!(pad(Bytes::from_static(b"ab"), 2), &b"ab"[..]);
    }
}
