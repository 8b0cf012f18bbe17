//! Changing a file's size (rule 17). A file without chunks is cut in its row. Chunks are cut by
//! a job that is written with the new size and generation, so that a crash cannot forget it; the
//! inode is held until the stores have done it, and only then the caller hears.

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use saker_runtime::failpoint;
use saker_types::change::StoreJob;
use saker_types::wire::{ChunkTruncateReq, ChunkWriteReq, Empty, Entry, Op};
use saker_types::{Attr, Cred, Error, Inode, InodeId, Locator, NodeId, access, limits};

use super::done;
use crate::request::{Rq, Step};
use crate::rows::{Located, Spot};
use crate::shard::{Handle, Shard, encoded};

/// A change of size.
pub(crate) struct Truncation {
    size: u64,
    /// Mode bits without privileges that the change takes away.
    mode: u32,
}

impl Truncation {
    /// Of this file to `size`, by this user.
    pub(crate) fn new(a: &Attr, size: u64, cred: &Cred) -> Result<Truncation, Error> {
        Ok(Truncation { size, mode: mode_after_write(a, cred)? })
    }

    /// Applies it to a row; `Some` when stores must cut.
    pub(crate) fn apply(&self, inode: &mut Inode, now_ns: i64) -> Option<StoreJob> {
        let a: &mut Attr = &mut inode.attr;
        let cuts = self.size < a.size;
        a.size = self.size;
        a.data_version += 1;
        a.mtime_ns = now_ns.max(a.mtime_ns);
        a.ctime_ns = now_ns.max(a.ctime_ns);
        a.mode = self.mode;
        if !a.chunked {
            let keep = inode.inline.len().min(self.size as usize);
            inode.inline = inode.inline.slice(..keep);
            return None;
        }
        if !cuts && self.size > 0 {
            return None;
        }
        a.truncate_gen += 1;
        let (truncate_gen, cut) = (a.truncate_gen, self.size);
        Some(StoreJob { truncate_gen, cut, ..StoreJob::default() })
    }
}

/// The mode of a file after this user changed its data.
pub(crate) fn mode_after_write(a: &Attr, cred: &Cred) -> Result<u32, Error> {
    if cred.uid == 0 { Ok(a.mode) } else { access::mode_without_privilege(a, cred) }
}

impl Shard {
    /// Truncates and answers with the entry.
    pub(crate) fn truncate(
        &mut self,
        rq: &Rq,
        found: Located,
        mut entry: Entry,
        cut: Truncation,
    ) -> Step<Bytes> {
        let mut inode = (*found.inode).clone();
        let job = cut.apply(&mut inode, self.wall_ns());
        if let Some(job) = job {
            return Err(self.start_cut(rq, found.spot, inode, job, entry));
        }
        entry.attr = inode.attr.clone();
        entry.inline = inode.inline.clone();
        self.store(&found.spot, inode);
        done(&entry)
    }

    /// Writes the row and the job, holds the inode, and goes on when the stores have cut.
    pub(crate) fn start_cut(
        &mut self,
        rq: &Rq,
        spot: Spot,
        inode: Inode,
        mut job: StoreJob,
        mut entry: Entry,
    ) -> crate::request::Stop {
        let id = inode.attr.id;
        (job.session, job.seq) = rq.mutation().map_or((0, 0), |ctx| (ctx.session, ctx.seq));
        job.loc = Some(entry.loc.clone());
        self.store(&spot, inode);
        self.put_job(id, &job);
        self.hold(id);
        failpoint!("truncate.job_written");
        self.task(move |h| async move {
            cut_chunks(&h, id, &job).await;
            failpoint!("truncate.cut");
            let mut s = h.shard();
            s.end_cut(&spot, id, &job)?;
            entry.attr = s.reload(&spot)?.attr.clone();
            Ok(encoded(&entry))
        })
    }

    /// The stores have cut: the job goes, and a file without data may live in its row again.
    fn end_cut(&mut self, spot: &Spot, id: InodeId, job: &StoreJob) -> Result<(), Error> {
        self.delete_job(id);
        self.release(id);
        let inode = self.reload(spot)?;
        if job.cut == 0 && inode.attr.id == id {
            let mut inode = (*inode).clone();
            inode.attr.chunked = false;
            inode.attr.data_version += 1;
            self.store(spot, inode);
        }
        Ok(())
    }

    /// After a restart: a cut that was under way is done again. Its inode is held, and copies of
    /// the request wait for it: run anew it would cut what others wrote since the first time.
    pub(crate) fn resume_cut(&mut self, id: InodeId, job: StoreJob) {
        self.hold(id);
        self.sessions.resume(job.session, job.seq);
        let h = self.handle();
        self.hub.spawn(async move {
            failpoint!("truncate.resumed");
            cut_chunks(&h, id, &job).await;
            failpoint!("truncate.cut_again");
            let mut s = h.shard();
            let result = s.end_resumed(id, &job);
            s.finish_mutation(job.session, job.seq, result);
        });
    }

    fn end_resumed(&mut self, id: InodeId, job: &StoreJob) -> Result<Bytes, Error> {
        let loc = job.loc.clone().unwrap_or_default();
        // A row that cannot be read must not hold the inode for ever: then the reload fails.
        let spot = self.spot_of(id, &loc).unwrap_or(Spot::Orphan(id));
        self.end_cut(&spot, id, job)?;
        let attr = self.reload(&spot)?.attr.clone();
        Ok(encoded(&Entry { attr, loc, ..Entry::default() }))
    }

    /// Where the attributes of an inode are that was last seen at a locator.
    fn spot_of(&mut self, id: InodeId, loc: &Locator) -> Result<Spot, Error> {
        if let Some(slot) = loc.home_slot {
            let is_here = self.attr_row(id)?.is_some();
            return Ok(if is_here { Spot::Attr(id, slot) } else { Spot::Orphan(id) });
        }
        let key = self.map.key(loc.pid, &loc.name);
        let is_here = self.entry(&key)?.is_some_and(|row| row.attr.id == id);
        Ok(if is_here { Spot::Entry(key) } else { Spot::Orphan(id) })
    }
}

/// Tells every store, until all have done it.
async fn cut_chunks(h: &Handle, id: InodeId, job: &StoreJob) {
    let StoreJob { truncate_gen, cut, .. } = *job;
    let request = ChunkTruncateReq { id, truncate_gen, cut };
    let stores = h.shard().map.stores.len() as u16;
    let calls = (0..stores).map(|n| {
        let to = NodeId::Store(n);
        h.hub.ask_until::<Empty>(to, Op::ChunkTruncate, 0, &request, Bytes::new())
    });
    for result in join_all(calls).await {
        if let Err(e) = result {
            tracing::error!("cut of inode {id:#x} at {cut} refused: {e}");
        }
    }
}

/// Writes a small file's data to chunk 0, flushed, on all its stores; with zeros up to the
/// largest that a row can hold: a spill that a crash cut short may have left data there, which
/// the row has truncated since.
pub(crate) async fn write_first_chunk(h: &Handle, attr: &Attr, data: Bytes) -> Result<(), Error> {
    let mut padded = BytesMut::from(&data[..]);
    padded.resize(data.len().max(limits::INLINE_BYTES_MAX as usize), 0);
    let data = padded.freeze();
    let stores = h.shard().map.stores_of_chunk(attr.id, 0);
    let request = ChunkWriteReq {
        id: attr.id,
        truncate_gen: attr.truncate_gen,
        replicas: stores.iter().map(|n| u32::from(*n)).collect(),
        sync: true,
        crc: saker_engine::crc32c(&data),
        ..Default::default()
    };
    let calls = stores.into_iter().map(|n| {
        let to = NodeId::Store(n);
        h.hub.ask_until::<Empty>(to, Op::ChunkWrite, 0, &request, data.clone())
    });
    join_all(calls).await.into_iter().try_for_each(|r| r.map(|_| ()))
}
