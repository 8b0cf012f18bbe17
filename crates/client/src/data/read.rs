//! Reading.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use saker_runtime::time;
use saker_types::wire::*;
use saker_types::{Errno, Error, Result};

use crate::Caller;
use crate::core::Core;
use crate::data::file::Handle;
use crate::data::open_inode::{InodeState, OpenInode, inline_of};
use crate::net::request::To;

/// A read that meets the end of a file, or needs data that is kept here, asks whether that is
/// still so, when the last answer is older than this.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(1);
/// Times that the inline data may change while it is asked for.
const LOADS_MAX: u32 = 100;

/// What a read finds out without asking anybody.
enum Plan {
    /// This is the data.
    Data(Bytes),
    /// A directory has no data.
    NoFile,
    /// The size, or a small file's data, may be out of date.
    AskSize,
    /// The small file's data is not known.
    AskInline,
    /// Some of it waits to be written out.
    WriteOut,
    /// Some of it was written over data that somebody else has changed.
    CatchUp,
    /// Read these bytes of chunks.
    Chunks(Chunks),
}

/// Bytes to be read from chunks.
#[derive(Clone)]
struct Chunks {
    range: Range<u64>,
    /// To read ahead of them.
    window: usize,
    generation: u64,
    /// Of the file, when this was planned.
    size: u64,
    truncate_gen: u64,
}

impl Core {
    /// Reads up to `len` bytes at `offset`; less only at the end of the file. Somebody else may cut the file
    /// meanwhile: then what is returned is from before, or ends where the file does.
    pub(crate) async fn read(
        self: &Arc<Core>,
        handle: &Handle,
        offset: u64,
        len: usize,
    ) -> Result<Bytes> {
        let inode = &handle.inode;
        let window_max = self.options.read_ahead_bytes;
        loop {
            match inode.with(|s| plan(s, offset, len, window_max)) {
                Plan::Data(data) => return Ok(data),
                Plan::NoFile => return Err(Errno::EISDIR.into()),
                Plan::AskSize => _ = self.refresh(&handle.who, inode).await?,
                Plan::AskInline => self.load_inline(&handle.who, inode).await?,
                Plan::WriteOut => {
                    let mut writer = inode.writer.lock().await;
                    self.pump(inode, &mut writer, true).await;
                    drop(writer);
                    handle.take_failure()?;
                }
                Plan::CatchUp => self.catch_up(handle).await?,
                Plan::Chunks(chunks) => {
                    let read = match chunks.window {
                        0 => self.read_planned(inode, &chunks).await?,
                        _ => self.read_ahead(inode, &chunks).await?,
                    };
                    if let Some(data) = read {
                        return Ok(data);
                    }
                }
            }
        }
    }

    /// Puts unsaved bytes over what the owner has now, which tells the owner of them.
    pub(crate) async fn catch_up(self: &Arc<Core>, handle: &Handle) -> Result<()> {
        let inode = &handle.inode;
        let mut writer = inode.writer.lock().await;
        if inode.with(|s| s.is_overtaken()) {
            self.write_back(inode, &mut writer).await;
        }
        drop(writer);
        handle.take_failure()
    }

    async fn read_planned(&self, inode: &Arc<OpenInode>, chunks: &Chunks) -> Result<Option<Bytes>> {
        let (range, truncate_gen) = (chunks.range.clone(), chunks.truncate_gen);
        self.read_chunks(&Arc::downgrade(inode), inode.id, range, truncate_gen).await
    }

    /// Reads chunks of a sequential reader; see [`Core::read_chunks`].
    async fn read_ahead(
        self: &Arc<Core>,
        inode: &Arc<OpenInode>,
        chunks: &Chunks,
    ) -> Result<Option<Bytes>> {
        let Chunks { range, window, generation, size, truncate_gen } = chunks.clone();
        let (weak, id) = (Arc::downgrade(inode), inode.id);
        let mut ahead = inode.ahead.lock().await;
        ahead.validate(generation, time::now(), AGE_MAX);
        match window.min(self.room_to_read_ahead()) {
            0 => ahead.forget_before(range.start),
            window => ahead.extend(&range, window, size, &self.ahead, |part| {
                let (core, inode) = (self.clone(), weak.clone());
                Box::pin(async move {
                    // What was cut is missing.
                    Ok(core.read_chunks(&inode, id, part, truncate_gen).await?.unwrap_or_default())
                })
            }),
        }
        ahead.nudge().await;
        let data = ahead.take(&range).await;
        self.cluster.net.flush();
        drop(ahead);
        match data {
            Some(data) => Ok(Some(data)),
            None => self.read_planned(inode, chunks).await,
        }
    }

    /// Asks the owner for the attributes of an open file.
    pub(crate) async fn refresh(&self, who: &Caller, inode: &OpenInode) -> Result<Entry> {
        let mut request = EntryReq { at: inode.at(), ..EntryReq::default() };
        let entry: Entry = self.cluster.ask(who, Op::Getattr, To::Owner, &mut request).await?;
        inode.with(|s| s.answered(&entry, None));
        Ok(entry)
    }

    /// Asks for a small file's data, unless it is known. The file may be chunked afterwards.
    pub(crate) async fn load_inline(&self, who: &Caller, inode: &OpenInode) -> Result<()> {
        for _ in 0..LOADS_MAX {
            if inode.with(|s| s.attr().chunked || s.inline().is_some()) {
                return Ok(());
            }
            let opening = self.inodes.holds.begin();
            let (at, hold) = (inode.at(), opening.hold());
            let mut request = OpenReq { at, hold, ..OpenReq::default() };
            let entry: Entry = self.cluster.ask(who, Op::Open, To::Owner, &mut request).await?;
            let inline = inline_of(&entry);
            inode.with(|s| s.answered(&entry, inline));
        }
        Err(Error::new(Errno::EIO).with_text("the file changes without a pause"))
    }
}

/// How to serve a read.
fn plan(s: &mut InodeState, offset: u64, len: usize, window_max: usize) -> Plan {
    if s.attr().is_dir() {
        return Plan::NoFile;
    }
    if s.is_overtaken() {
        return Plan::CatchUp;
    }
    let size = s.attr().size;
    let end = offset.saturating_add(len as u64);
    let trusts = end > size || !s.attr().chunked;
    if trusts && !s.is_dirty() && time::now() - s.asked_at() > AGE_MAX {
        return Plan::AskSize;
    }
    let range = offset.min(size)..end.min(size);
    if range.is_empty() {
        return Plan::Data(Bytes::new());
    }
    if !s.attr().chunked {
        return match s.inline() {
            Some(data) => Plan::Data(cut(data, &range)),
            None => Plan::AskInline,
        };
    }
    if s.waits(&range) {
        return Plan::WriteOut;
    }
    let window = s.reader.reads(offset, len, &range, size, window_max);
    // Nothing lies ahead of a read of the whole rest, unless earlier reads fetched it.
    let lone = range.end == size && range.start == 0;
    // What waits to be written out its store does not have yet, and would not be fetched again.
    let waits = s.waits(&(range.start..range.end + window as u64));
    let window = if lone || waits { 0 } else { window };
    let (generation, truncate_gen) = (s.generation(), s.attr().truncate_gen);
    Plan::Chunks(Chunks { range, window, generation, size, truncate_gen })
}

/// A range of a small file: zeros beyond its data.
fn cut(data: &Bytes, range: &Range<u64>) -> Bytes {
    let (start, end) = (range.start as usize, range.end as usize);
    if end <= data.len() {
        return data.slice(start..end);
    }
    let mut out = BytesMut::zeroed(end - start);
    if start < data.len() {
        out[..data.len() - start].copy_from_slice(&data[start..]);
    }
    out.freeze()
}

#[cfg(test)]
mod tests;
