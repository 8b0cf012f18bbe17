//! Writing, and what makes writes durable: stores first, then the owner.

use std::sync::Arc;

use async_lock::MutexGuard;
use bytes::Bytes;
use saker_runtime::time;
use saker_types::limits::FILE_BYTES_MAX;
use saker_types::policy::PolicyId;
use saker_types::wire::*;
use saker_types::{Class, Errno, Error, Result, Unflushed};
use std::time::Duration;

use crate::Caller;
use crate::core::Core;
use crate::data::chunk_io::ChunkOffset;
use crate::data::file::Handle;
use crate::data::open_inode::OpenInode;
use crate::data::write::writer::{Landed, Piece, Writer};
use crate::net::request::To;

/// A piece that is refused this often because of a truncation, and whose owner knows of none,
/// is lost.
const REFUSALS_MAX: u32 = 40;
const REFUSAL_PAUSE: Duration = Duration::from_millis(25);
/// Conflicts in a row before a report gives up: each means that somebody else won.
const CONFLICTS_MAX: u32 = 100;

type Held<'a> = MutexGuard<'a, Writer>;

/// How a report to the owner ended.
enum Report {
    /// The owner knows all, and this; `None`: it had nothing to hear.
    Done(Option<Known>),
    /// The file is chunked now: data must go to stores before the owner can be told.
    ToChunks,
}

/// What the owner knows to be unflushed, at a version of the data.
struct Known {
    unflushed: Vec<Unflushed>,
    version: u64,
}

impl Known {
    fn of(entry: &Entry) -> Known {
        Known { unflushed: entry.unflushed.clone(), version: entry.attr.data_version }
    }
}

impl Core {
    /// Writes at `offset`, or at the end for a handle that appends. Returns where it went.
    pub(crate) async fn write(
        self: &Arc<Core>,
        handle: &Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<u64> {
        let inode = &handle.inode;
        if data.is_empty() {
            return Ok(offset);
        }
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(Errno::EFBIG)?;
        let mut writer = inode.writer.lock().await;
        lose_written(inode, &mut writer);
        handle.take_failure()?;
        if handle.flags.append {
            return self.append(handle, &mut writer, data).await;
        }
        if !inode.with(|s| s.attr().chunked) {
            if end <= self.cluster.routes().map.inline_max {
                self.load_inline(&handle.who, inode).await?;
                let written = inode.with(|s| {
                    let fits = !s.attr().chunked && s.inline().is_some();
                    if fits {
                        s.write_inline(offset, data, &handle.who);
                    }
                    fits
                });
                if written {
                    return Ok(offset);
                }
            }
            if !inode.with(|s| s.attr().chunked) {
                self.spill(&handle.who, inode, &mut writer).await?;
            }
        }
        self.write_behind(inode, &mut writer, &handle.who, offset, data).await;
        handle.take_failure()?;
        Ok(offset)
    }

    /// Hands data to the writer, and waits while too much of this file is in flight, or of all files anywhere here.
    async fn write_behind(
        self: &Arc<Core>,
        inode: &Arc<OpenInode>,
        writer: &mut Held<'_>,
        who: &Caller,
        mut offset: u64,
        mut data: &[u8],
    ) {
        while !data.is_empty() {
            let taken = writer.put(offset, data, self.options.write_buffer_bytes);
            offset += taken as u64;
            data = &data[taken..];
            inode.with(|s| s.wrote(offset, taken as u64, writer.range(), who));
            if !writer.is_queue_empty() {
                self.pump(inode, writer, false).await;
            }
        }
        writer.weigh(&self.unwritten);
        if !self.room_to_write().await {
            self.pump(inode, writer, true).await;
        }
    }

    /// Sends queued pieces to their stores. `drain`: the buffer, too, and returns when all have
    /// landed; else returns when the last piece has taken off. Failures are noted in the inode.
    pub(crate) async fn pump(
        self: &Arc<Core>,
        inode: &Arc<OpenInode>,
        writer: &mut Held<'_>,
        drain: bool,
    ) {
        if drain {
            writer.seal();
        }
        loop {
            lose_written(inode, writer);
            if writer.is_idle() {
                break;
            }
            if writer.waits_to_append() && !inode.with(|s| s.attr().chunked) {
                writer.displace();
            }
            if !writer.is_queue_empty() && !inode.with(|s| s.attr().chunked) {
                // Truncated to nothing by somebody else, which brings a file back to its row.
                if let Err(error) = self.spill(&writer_of(inode), inode, writer).await {
                    self.lose(inode, writer, error);
                    continue;
                }
            }
            let mut started = false;
            while let Some(piece) = writer.next_to_fly() {
                self.take_off(inode, writer, piece);
                started = true;
            }
            let landed = if drain || !writer.is_queue_empty() {
                writer.next_landed().await
            } else {
                if started {
                    writer.nudge().await;
                    self.cluster.net.flush();
                }
                writer.take_landed()
            };
            match landed {
                Some(landed) => self.land(inode, writer, landed).await,
                None if drain => {}
                None => break,
            }
        }
        writer.weigh(&self.unwritten);
        inode.with(|s| s.sent(writer.range()));
    }

    /// Sends what a file holds, unless the owner has to be asked before, and takes note of what stores have accepted.
    /// Waits for neither; only for what a truncation has made a store refuse.
    pub(crate) async fn send_on(self: &Arc<Core>, inode: &Arc<OpenInode>, writer: &mut Held<'_>) {
        lose_written(inode, writer);
        if inode.with(|s| !s.attr().chunked) {
            return;
        }
        if writer.is_landed() {
            writer.seal();
        }
        while let Some(piece) = writer.next_to_fly() {
            self.take_off(inode, writer, piece);
        }
        writer.nudge().await;
        self.cluster.net.flush();
        while let Some(landed) = writer.take_landed() {
            self.land(inode, writer, landed).await;
        }
        writer.weigh(&self.unwritten);
        inode.with(|s| s.sent(writer.range()));
    }

    /// What has not taken off is lost.
    fn lose(&self, inode: &OpenInode, writer: &mut Held<'_>, error: Error) {
        writer.clear();
        inode.with(|s| s.fail(error));
    }

    /// Asks the stores to take a piece.
    fn take_off(self: &Arc<Core>, inode: &Arc<OpenInode>, writer: &mut Held<'_>, piece: Piece) {
        let routes = self.cluster.routes();
        let place = match ChunkOffset::of(&routes, inode.id, piece.offset) {
            Ok(place) => place,
            Err(error) => return inode.with(|s| s.fail(error)),
        };
        let (known_gen, losses) = inode.with(|s| (s.attr().truncate_gen, s.losses()));
        let truncate_gen = piece.placed.unwrap_or(known_gen);
        let under = (Arc::downgrade(inode), losses);
        let write = self.clone().write_chunk(inode.id, truncate_gen, place, piece.clone(), under);
        let landed = piece.clone();
        let landing =
            async move { Landed { result: write.await, truncate_gen, losses, piece: landed } };
        writer.fly(&piece, landing);
    }

    /// A piece has landed: done, to be sent again after a truncation, or lost.
    async fn land(
        self: &Arc<Core>,
        inode: &Arc<OpenInode>,
        writer: &mut Held<'_>,
        Landed { mut piece, truncate_gen, losses, result }: Landed,
    ) {
        if losses != inode.with(|s| s.losses()) {
            // That is known, and it is not sent again.
            return;
        }
        let known_gen = inode.with(|s| s.attr().truncate_gen);
        match result {
            Ok(accepted) => {
                inode.with(|s| s.accepted(&accepted));
                // Accepted before a truncation that is known by now, it may have been cut: as an
                // append should be that came before.
                if truncate_gen == known_gen || piece.placed.is_some() {
                    return;
                }
            }
            Err(error) if error.errno() == Errno::ESTALE && piece.placed.is_some() => {
                return writer.displace();
            }
            Err(error) if error.errno() == Errno::ESTALE && piece.refusals < REFUSALS_MAX => {}
            Err(error) => return inode.with(|s| s.fail(error)),
        }
        // The write counts as later than the truncation and is sent again.
        piece.refusals += 1;
        let again = piece.refusals > 1;
        writer.put_back(piece);
        inode.with(|s| s.sent(writer.range()));
        if truncate_gen != known_gen {
            return;
        }
        if again {
            self.cluster.net.sleep_until(time::now() + REFUSAL_PAUSE).await;
        }
        if let Err(error) = self.refresh(&writer_of(inode), inode).await {
            self.lose(inode, writer, error);
        }
    }

    /// Makes a small file chunked; its unsaved bytes go to the writer.
    async fn spill(
        self: &Arc<Core>,
        who: &Caller,
        inode: &Arc<OpenInode>,
        writer: &mut Held<'_>,
    ) -> Result<()> {
        let mut request = EntryReq { at: inode.at(), ..EntryReq::default() };
        let entry: Entry = self.cluster.ask(who, Op::Spill, To::Owner, &mut request).await?;
        inode.with(|s| {
            let pieces = s.take_unsaved();
            let end = pieces.last().map_or(0, |(offset, data)| offset + data.len() as u64);
            let bytes = queue_all(writer, pieces);
            s.unsaved_go_to_chunks(end, bytes, writer.range());
            s.spilled(&entry);
        });
        Ok(())
    }

    /// Appends; the owner says where, and hears on the same way of the appends before. What a
    /// truncation overtakes is appended anew: others may have been given its place since.
    async fn append(
        self: &Arc<Core>,
        handle: &Handle,
        writer: &mut Held<'_>,
        data: &[u8],
    ) -> Result<u64> {
        let inode = &handle.inode;
        if inode.with(|s| s.holds_data()) {
            self.write_back(inode, writer).await;
            handle.take_failure()?;
        }
        let bytes = Bytes::copy_from_slice(data);
        let small = data.len() as u64 <= self.cluster.routes().map.inline_max;
        let inline = if small { bytes.clone() } else { Bytes::new() };
        for _ in 0..REFUSALS_MAX {
            let (at, len) = (inode.at(), data.len() as u64);
            let mut request = inode.with(|s| AppendReq {
                at,
                len,
                data: inline.clone(),
                size: s.written_end(),
                truncate_gen: s.attr().truncate_gen,
                unflushed: s.unflushed().to_vec(),
                ..AppendReq::default()
            });
            let losses = inode.with(|s| s.losses());
            let may_send = || self.may_send(Arc::downgrade(inode), losses);
            let (who, deadline) = (&handle.who, self.cluster.deadline());
            let asked = self.cluster.ask_while(
                who,
                Op::Append,
                To::Owner,
                &mut request,
                deadline,
                may_send,
            );
            let reply: AppendReply = asked.await?;
            let offset = reply.offset;
            let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
            let beyond = || Error::new(Errno::EPROTO).with_text("append beyond the largest file");
            let end = end.ok_or_else(beyond)?;
            self.reports.note(inode.id);
            inode.with(|s| {
                let inline = reply.stored.then(|| Bytes::copy_from_slice(&reply.entry.inline));
                s.append_placed(&reply.entry, inline);
            });
            if reply.stored {
                return Ok(offset);
            }
            let placed = reply.entry.attr.truncate_gen;
            writer.put_placed(offset, bytes.clone(), placed);
            writer.weigh(&self.unwritten);
            inode.with(|s| s.append_began(end, writer.range(), &handle.who));
            self.pump(inode, writer, true).await;
            let result = handle.take_failure();
            let is_there = inode.with(|s| {
                let is_there = result.is_ok() && s.attr().truncate_gen == placed;
                if !is_there || writer.is_displaced() {
                    s.append_gone();
                }
                is_there
            });
            if writer.is_displaced() && result.is_ok() {
                self.cluster.net.sleep_until(time::now() + REFUSAL_PAUSE).await;
                continue;
            }
            if !is_there {
                // How long the file is, the owner knows.
                self.refresh(&handle.who, inode).await?;
            }
            return result.map(|()| offset);
        }
        Err(Error::new(Errno::EIO).with_text("others truncate the file without a pause"))
    }

    /// Writes all data to stores and tells the owner, as close does. Failures are noted in the
    /// inode.
    pub(crate) async fn write_back(
        self: &Arc<Core>,
        inode: &Arc<OpenInode>,
        writer: &mut Held<'_>,
    ) {
        loop {
            self.pump(inode, writer, true).await;
            match self.report(inode, writer, Op::Close, None).await {
                Ok(Report::Done(Some(known))) if known.unflushed.len() > self.unflushed_max() => {
                    let who = writer_of(inode);
                    if let Err(error) = self.write_back_and_flush(&who, inode, writer).await {
                        inode.with(|s| s.fail(error));
                    }
                    return;
                }
                Ok(Report::Done(_)) => return,
                Ok(Report::ToChunks) => {}
                Err(error) => return refused(inode, error),
            }
        }
    }

    /// Entries of a row for what is unflushed; more, and it is flushed. They have one for each
    /// store, and one more for each time that its power was lost meanwhile.
    fn unflushed_max(&self) -> usize {
        4 * self.cluster.routes().map.stores.len()
    }

    /// As [`Core::write_back`], and has the stores flush before the owner hears. Not only what came
    /// through this handle: an earlier one, or another client, may have left data that no store
    /// was told to flush.
    ///
    /// # Errors
    /// What keeps the owner from being asked.
    async fn write_back_and_flush(
        self: &Arc<Core>,
        who: &Caller,
        inode: &Arc<OpenInode>,
        writer: &mut Held<'_>,
    ) -> Result<()> {
        let mut known = None;
        if !inode.is_dirty() {
            // Nothing will be told to the owner, which may know of data by others.
            known = Some(Known::of(&self.refresh(who, inode).await?));
        }
        let in_chunks = || inode.with(|s| s.attr().chunked.then_some(s.attr().size));
        let (mut may_repeat, mut is_lost) = (true, false);
        loop {
            self.pump(inode, writer, true).await;
            let flushed = in_chunks();
            if let Some(size) = flushed {
                let stores = self.cluster.routes().map.stores_of_file(inode.id, size);
                let mut unflushed = known.as_ref().map_or(Vec::new(), |k| k.unflushed.clone());
                inode.with(|s| {
                    s.unflushed().iter().for_each(|w| Unflushed::add(&mut unflushed, *w))
                });
                match self.sync_stores(stores, &unflushed).await {
                    Ok(true) if !is_lost => {
                        is_lost = true;
                        // At once: what follows may fail otherwise, and the next fsync knows nothing.
                        let text = "a store lost unflushed data of this file (its power or its disk failed)";
                        inode.with(|s| s.fail(Error::new(Errno::EIO).with_text(text)));
                    }
                    Ok(_) => {}
                    Err(error) => {
                        inode.with(|s| s.fail(error));
                        return Ok(());
                    }
                }
            }
            // While the writer is held nothing is accepted. A file in its row has nothing on stores.
            inode.with(|s| s.flushed());
            let told = known.take().filter(|known| !known.unflushed.is_empty());
            match self.report(inode, writer, Op::Fsync, told.map(|known| known.version)).await {
                // The owner knew of more, by others, which is to be flushed as well.
                Ok(Report::Done(Some(more)))
                    if may_repeat && (in_chunks() != flushed || !more.unflushed.is_empty()) =>
                {
                    may_repeat = false;
                    known = Some(more);
                }
                Ok(Report::ToChunks) => {}
                Ok(Report::Done(_)) => return Ok(()),
                Err(error) => {
                    refused(inode, error);
                    return Ok(());
                }
            }
        }
    }

    /// Tells the owner what it has not heard of, and that what it called unflushed at the version
    /// `flushed` is not any more.
    async fn report(
        self: &Arc<Core>,
        inode: &Arc<OpenInode>,
        writer: &mut Held<'_>,
        op: Op,
        flushed: Option<u64>,
    ) -> Result<Report> {
        for _ in 0..CONFLICTS_MAX {
            let request = inode.with(|s| {
                // What the owner has answered before may not be durable: it is when this is answered.
                let policy = PolicyId(s.loc().policy);
                let must_tell = op == Op::Fsync && policy.is_durable_on_demand();
                if must_tell { Some(s.report_anyway(flushed)) } else { s.report(flushed) }
            });
            let Some(mut request) = request else { return Ok(Report::Done(None)) };
            let who = writer_of(inode);
            let losses = inode.with(|s| s.losses());
            let may_send = || self.may_send(Arc::downgrade(inode), losses);
            let deadline = self.cluster.deadline();
            let asked =
                self.cluster.ask_while(&who, op, To::Owner, &mut request, deadline, may_send);
            let reply: CloseReply = asked.await?;
            self.reports.note(inode.id);
            if !reply.conflict {
                inode.with(|s| s.reported(&reply.entry, request.inline.is_some()));
                return Ok(Report::Done(Some(Known::of(&reply.entry))));
            }
            let to_chunks = inode.with(|s| {
                let pieces = s.rebase(&reply.entry);
                let Some((offset, data)) = pieces.last() else { return false };
                let end = offset + data.len() as u64;
                let bytes = queue_all(writer, pieces);
                s.unsaved_go_to_chunks(end, bytes, writer.range());
                true
            });
            if to_chunks {
                return Ok(Report::ToChunks);
            }
        }
        Err(Error::new(Errno::EIO).with_text("others change the file without a pause"))
    }

    /// What close(2) and fsync(2) do; `op` says which.
    pub(crate) async fn flush(self: &Arc<Core>, handle: &Handle, op: Op) -> Result<()> {
        if op == Op::Close && !handle.flags.write {
            return Ok(());
        }
        let mut writer = handle.inode.writer.lock().await;
        if op == Op::Fsync {
            self.write_back_and_flush(&handle.who, &handle.inode, &mut writer).await?;
        } else if handle.inode.is_dirty() {
            self.write_back(&handle.inode, &mut writer).await;
        }
        handle.take_failure()
    }

    /// Lets the owner know of everything that was written through this client. The entry as of a time
    /// since this was called, if the inode is not dirty any more.
    pub(crate) async fn settle(self: &Arc<Core>, inode: &Arc<OpenInode>) -> Option<Entry> {
        let mut writer = inode.writer.lock().await;
        if !inode.is_dirty() {
            // Another call has told the owner, whose answer may be older than this call.
            let entry = self.refresh(&writer_of(inode), inode).await.ok()?;
            return Some(inode.with(|s| s.newest(entry)));
        }
        self.write_back(inode, &mut writer).await;
        inode.with(|s| {
            let entry =
                || Entry { attr: s.attr().clone(), loc: s.loc().clone(), ..Entry::default() };
            (!s.is_dirty()).then(entry)
        })
    }

    /// Forgets unsaved data of a file that was truncated to nothing meanwhile.
    pub(crate) async fn abandon(self: &Arc<Core>, inode: &Arc<OpenInode>) {
        let mut writer = inode.writer.lock().await;
        writer.clear();
        while writer.next_landed().await.is_some() {}
        writer.weigh(&self.unwritten);
        inode.with(|s| s.discard());
    }
}

/// The owner refused a report.
fn refused(inode: &OpenInode, error: Error) {
    // What it refuses for good it will refuse again.
    let lost = error.is(Class::Final) && !is_timeout(&error);
    inode.with(|s| {
        if lost {
            s.discard();
        }
        s.fail(error);
    });
}

/// Forgets what was written before a lock was lost.
fn lose_written(inode: &OpenInode, writer: &mut Writer) {
    inode.with(|s| {
        if writer.lose(s.losses()) {
            s.sent(writer.range());
        }
    });
}

/// Who wrote what is dirty.
fn writer_of(inode: &OpenInode) -> Caller {
    inode.with(|s| s.writer().cloned()).unwrap_or_else(Caller::root)
}

/// Queues pieces; how many bytes they have.
fn queue_all(writer: &mut Writer, pieces: Vec<(u64, Bytes)>) -> u64 {
    let bytes = pieces.iter().map(|(_, data)| data.len() as u64).sum();
    for (offset, data) in pieces {
        writer.put_all(offset, data);
    }
    bytes
}

/// Did it fail only because it took too long?
fn is_timeout(error: &Error) -> bool {
    error.errno() == Errno::ETIMEDOUT
}
