//! Work on stores that a crash must not forget: the cut of a truncation, and a spill, which moves
//! a small file's data from its row to chunk 0.
//!
//! The job is written with the row, and the inode is busy until the stores have done it. Both end
//! with a cut under a new truncate generation: so whatever was sent to stores before, by this
//! process or one that died, changes nothing when it is executed late.
//!
//! A client that held the subtree of a file gave generations, too, of which the row knows nothing if
//! the client died before a merge. The stores tell of them, and the job begins again beyond them.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use saker_runtime::failpoint;
use saker_types::change::StoreJob;
use saker_types::wire::{
    ChunkTruncateReply, ChunkTruncateReq, ChunkWriteReq, Empty, Entry, Hold, Op,
};
use saker_types::{Attr, Class, Errno, Error, Inode, InodeId, Locator, NodeId};

use crate::request::{Rq, Stop};
use crate::rows::{Located, Spot};
use crate::shard::{Shard, ShardHandle, encoded};

/// By how much generations differ at most that are given where others may give some, too.
const GEN_JUMP: u64 = 1 << 32;

/// A generation beyond another one that nobody else gives.
fn gen_beyond(known: u64) -> u64 {
    known + 1 + saker_runtime::rand::u64() % GEN_JUMP
}

impl Shard {
    /// The generation of the next cut of a file.
    pub(crate) fn next_truncate_gen(&self, attr: &Attr) -> u64 {
        match self.limits.private {
            true => gen_beyond(attr.truncate_gen),
            false => attr.truncate_gen + 1,
        }
    }

    /// May stores have something of a file without chunks: data that its row has, or what a client that
    /// held the subtree wrote, and never merged?
    ///
    /// # Errors
    /// EIO when rows cannot be read.
    pub(crate) fn may_have_chunks(&self, inode: &Inode, loc: &Locator) -> Result<bool, Error> {
        let is_shared = match self.limits.private {
            true => self.is_of_cluster(inode.attr.id)?,
            false => loc.policy != 0,
        };
        Ok(is_shared || !inode.inline.is_empty())
    }

    /// Writes the row and the job, marks the inode busy, and goes on when the stores have cut.
    pub(crate) fn start_cut(
        &mut self,
        rq: &Rq,
        spot: Spot,
        inode: Inode,
        mut job: StoreJob,
        mut entry: Entry,
    ) -> Stop {
        let id = inode.attr.id;
        (job.session, job.seq) = rq.mutation().map_or((0, 0), |ctx| (ctx.session, ctx.seq));
        job.loc = Some(entry.loc.clone());
        self.store(&spot, inode);
        self.put_job(id, &job);
        self.set_busy(id);
        failpoint!("truncate.job_written");
        self.task(move |h| async move {
            cut_chunks(&h, id, &mut job).await;
            failpoint!("truncate.cut");
            let mut s = h.shard();
            s.end_cut(&spot, id, &job)?;
            let inode = s.reload(&spot)?;
            (entry.attr, entry.unflushed) = (inode.attr.clone(), inode.unflushed.clone());
            Ok(encoded(&entry))
        })
    }

    /// The stores have cut: the job goes, and a file without data may live in its row again.
    fn end_cut(&mut self, spot: &Spot, id: InodeId, job: &StoreJob) -> Result<(), Error> {
        self.delete_job(id);
        self.clear_busy(id);
        let inode = self.reload(spot)?;
        let is_newer = inode.attr.truncate_gen != job.truncate_gen;
        if inode.attr.id == id && (job.cut == 0 || is_newer) {
            let mut inode = (*inode).clone();
            inode.attr.truncate_gen = job.truncate_gen;
            if job.cut == 0 {
                inode.attr.chunked = false;
                inode.attr.data_version += 1;
            }
            self.store(spot, inode);
        }
        Ok(())
    }

    /// Moves a small file's data to chunk 0, then goes on with `finish` in the same step.
    pub(crate) fn start_spill<F>(&mut self, found: Located, loc: Locator, finish: F) -> Stop
    where
        F: FnOnce(&mut Shard, Inode) -> (Inode, Bytes) + 'static,
    {
        let Located { spot, inode, .. } = found;
        let id = inode.attr.id;
        let mut job = StoreJob {
            truncate_gen: self.next_truncate_gen(&inode.attr),
            cut: inode.inline.len() as u64,
            loc: Some(loc),
            spill: true,
            ..StoreJob::default()
        };
        self.put_job(id, &job);
        self.set_busy(id);
        failpoint!("spill.job_written");
        self.task(move |h| async move {
            let written = spill_chunks(&h, id, inode.inline.clone(), &mut job).await;
            failpoint!("spill.chunks_written");
            let mut s = h.shard();
            let inode = s.end_spill(&spot, id, &job, written)?;
            let (inode, reply) = finish(&mut s, inode);
            s.store(&spot, inode);
            Ok(reply)
        })
    }

    /// The stores have the data, or one of them refuses it: then it stays in the row, and what
    /// others have is cut.
    fn end_spill(
        &mut self,
        spot: &Spot,
        id: InodeId,
        job: &StoreJob,
        written: Result<(), Error>,
    ) -> Result<Inode, Error> {
        self.delete_job(id);
        self.clear_busy(id);
        let mut inode = (*self.reload(spot)?).clone();
        if inode.attr.id != id {
            return Err(Errno::ESTALE.into());
        }
        inode.attr.truncate_gen = job.truncate_gen;
        if let Err(error) = written {
            self.store(spot, inode);
            return Err(error);
        }
        inode.attr.chunked = true;
        inode.attr.data_version += 1;
        inode.inline = Bytes::new();
        Ok(inode)
    }

    /// After a restart: work that was under way is done again, and the inode is busy.
    pub(crate) fn resume_job(&mut self, id: InodeId, mut job: StoreJob) {
        self.set_busy(id);
        // Copies of a truncation wait for its end: run anew it would cut what others wrote since
        // the first time. What a spill was part of has not begun.
        self.sessions.resume(job.session, job.seq);
        let h = self.handle();
        self.hub.spawn(async move {
            if job.spill {
                failpoint!("spill.resumed");
                resume_spill(&h, id, job).await;
                return;
            }
            failpoint!("truncate.resumed");
            cut_chunks(&h, id, &mut job).await;
            failpoint!("truncate.cut_again");
            let mut s = h.shard();
            let result = s.end_resumed(id, &job);
            let slot = job.loc.as_ref().map(|loc| s.map.slot_at(loc));
            s.finish_mutation(job.session, job.seq, slot, result, Bytes::new());
        });
    }

    fn end_resumed(&mut self, id: InodeId, job: &StoreJob) -> Result<Bytes, Error> {
        let loc = job.loc.clone().unwrap_or_default();
        let spot = self.spot_of(id, &loc);
        self.end_cut(&spot, id, job)?;
        let attr = self.reload(&spot)?.attr.clone();
        // It may have been an open whose answer somebody waits for.
        self.note_opened(&attr, Hold::default());
        Ok(encoded(&Entry { attr, loc, ..Entry::default() }))
    }

    /// Where the attributes of an inode are that was last seen at a locator. A row that cannot be
    /// read must not keep the inode busy for ever: then nothing is found where this says.
    fn spot_of(&mut self, id: InodeId, loc: &Locator) -> Spot {
        let slot = self.map.slot_at(loc);
        if loc.home_slot.is_some() {
            let is_here = matches!(self.attr_row(slot, id), Ok(Some(_)));
            return if is_here { Spot::Attr(slot, id) } else { Spot::Orphan(slot, id) };
        }
        let key = self.map.key(loc.pid, &loc.name);
        let is_here = matches!(self.entry(&key), Ok(Some(row)) if row.attr.id == id);
        if is_here { Spot::Entry(key) } else { Spot::Orphan(slot, id) }
    }
}

async fn resume_spill(h: &ShardHandle, id: InodeId, mut job: StoreJob) {
    let found = {
        let mut s = h.shard();
        let spot = s.spot_of(id, job.loc.as_ref().unwrap_or(&Locator::default()));
        s.reload(&spot).map(|inode| (spot, inode))
    };
    let ended = match found {
        Ok((spot, inode)) => {
            let written = spill_chunks(h, id, inode.inline.clone(), &mut job).await;
            let mut s = h.shard();
            s.end_spill(&spot, id, &job, written).map(|inode| s.store(&spot, inode))
        }
        Err(error) => {
            let mut s = h.shard();
            s.delete_job(id);
            s.clear_busy(id);
            Err(error)
        }
    };
    if let Err(error) = ended {
        tracing::warn!("the spill of inode {id:#x} that a restart interrupted: {error}");
    }
}

/// Writes the row's data to chunk 0, flushed, on all its stores; then all stores cut what is
/// behind it, and refuse late copies of the write. If one refuses the data, all of it is cut.
async fn spill_chunks(
    h: &ShardHandle,
    id: InodeId,
    data: Bytes,
    job: &mut StoreJob,
) -> Result<(), Error> {
    loop {
        let written = match data.is_empty() {
            true => Ok(()),
            false => write_first_chunk(h, id, job.truncate_gen - 1, data.clone()).await,
        };
        let cut = if written.is_ok() { job.cut } else { 0 };
        let Some(newest) = cut_once(h, id, &StoreJob { cut, ..job.clone() }).await else {
            return written;
        };
        begin_beyond(h, id, job, newest);
    }
}

async fn write_first_chunk(
    h: &ShardHandle,
    id: InodeId,
    truncate_gen: u64,
    data: Bytes,
) -> Result<(), Error> {
    let stores = h.shard().map.stores_of_chunk(id, 0);
    let request = ChunkWriteReq {
        id,
        truncate_gen,
        replicas: stores.iter().map(|n| u32::from(*n)).collect(),
        sync: true,
        crc: saker_engine::crc32c(&data),
        ..Default::default()
    };
    let calls = stores.into_iter().map(|n| {
        let to = NodeId::Store(n);
        h.hub.ask_until::<Empty>(to, Op::ChunkWrite, 0, &request, data.clone())
    });
    join_all(calls).await.into_iter().try_for_each(|result| match result {
        // It has cut already, which is asked of it when all have written; or it knows a newer generation,
        // and says so when it is asked to cut.
        Err(error) if error.errno() == Errno::ESTALE => Ok(()),
        other => other.map(|_| ()),
    })
}

/// After a store could not cut.
const CUT_PAUSE: Duration = Duration::from_secs(1);

/// Has all stores cut, beyond every generation that they know.
async fn cut_chunks(h: &ShardHandle, id: InodeId, job: &mut StoreJob) {
    while let Some(newest) = cut_once(h, id, job).await {
        begin_beyond(h, id, job, newest);
    }
}

/// Stores know a newer generation: the job is written anew, before they hear of it.
fn begin_beyond(h: &ShardHandle, id: InodeId, job: &mut StoreJob, newest: u64) {
    tracing::info!("stores know generation {newest} of inode {id:#x}, which nobody has merged");
    job.truncate_gen = gen_beyond(newest);
    h.shard().put_job(id, job);
}

/// Tells every store, until all have done it: also one whose disk is full, or damaged. One that has
/// not would bring the data back, and take late writes. `Some`: one has not, as it knows this newer
/// generation.
async fn cut_once(h: &ShardHandle, id: InodeId, job: &StoreJob) -> Option<u64> {
    let StoreJob { truncate_gen, cut, .. } = *job;
    let request = ChunkTruncateReq { id, truncate_gen, cut };
    let stores = h.shard().map.stores.len() as u16;
    let cut_at = async |n| {
        let to = NodeId::Store(n);
        let mut logged = false;
        loop {
            let cut = h.hub.ask_until(to, Op::ChunkTruncate, 0, &request, Bytes::new());
            let error = match cut.await {
                Ok(ChunkTruncateReply { truncate_gen }) => return truncate_gen,
                Err(error) => error,
            };
            if !logged {
                tracing::error!("store {n} does not cut inode {id:#x} at {}: {error}", job.cut);
            }
            if error.is(Class::Fatal) {
                // It will never understand.
                return 0;
            }
            logged = true;
            h.hub.sleep(CUT_PAUSE).await;
        }
    };
    let known = join_all((0..stores).map(cut_at)).await.into_iter();
    // Nothing is written to one that was deleted.
    known.filter(|known| (truncate_gen + 1..u64::MAX).contains(known)).max()
}
