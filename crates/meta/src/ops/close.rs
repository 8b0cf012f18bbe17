//! What writers report: close and fsync (size, small-file data), append, spill (rule 17).

use bytes::{Bytes, BytesMut};
use saker_types::time::later;
use saker_types::wire::{AppendReply, AppendReq, At, CloseReply, CloseReq, EntryReq};
use saker_types::{Attr, Cred, Errno, Error, FileKind, Inode, limits};

use super::done;
use crate::request::{Attempt, Rq};
use crate::rows::Located;
use crate::rules::attributes::{mode_after_write, next_version};
use crate::shard::{Shard, encoded};

impl Shard {
    /// Size and data of a file that was written. The handle carries the right to write; it was
    /// checked when the file was opened.
    pub(crate) fn close(&mut self, rq: &Rq, msg: &CloseReq) -> Attempt<Bytes> {
        let found = self.locate_file(rq, &msg.ctx.cred, &msg.at)?;
        let a = &found.inode.attr;
        if msg.size > limits::FILE_BYTES_MAX {
            return Err(Errno::EFBIG.into());
        }
        let mut inode = (*found.inode).clone();
        let tells = inode.note_flushes(msg.flushed, &msg.unflushed);
        check_unflushed(&inode)?;
        let mut writes = !msg.is_clean;
        if let Some(data) = &msg.inline {
            if a.chunked || a.data_version != msg.base_version {
                return self.conflict(&found, msg);
            }
            if data.len() as u64 > self.map.inline_max {
                return Err(Errno::EFBIG.into());
            }
            if data.len() > inode.inline.len() {
                self.may_grow()?;
            }
            inode.inline = data.clone();
            let stored = data.len() as u64;
            inode.attr.set_size(msg.size.max(stored).max(a.size), stored);
        } else if msg.truncate_gen != a.truncate_gen {
            // Written before a truncation, which has told of the last change since.
            writes = false;
        } else if writes {
            let stored = a.stored_bytes().saturating_sub(msg.cleared_bytes);
            inode.attr.set_size(a.size.max(msg.size), stored.saturating_add(msg.written_bytes));
        }
        if writes {
            self.written(&mut inode.attr, &msg.ctx.cred)?;
        }
        let mut entry = self.entry_of(&msg.at, &found);
        (entry.attr, entry.unflushed) = (inode.attr.clone(), inode.unflushed.clone());
        if writes || tells {
            self.store(&found.spot, inode);
        }
        Ok(encoded(&CloseReply { entry, conflict: false }))
    }

    fn conflict(&mut self, found: &Located, msg: &CloseReq) -> Attempt<Bytes> {
        let mut entry = self.entry_of(&msg.at, found);
        if !entry.attr.chunked {
            entry.inline = found.inode.inline.clone();
        }
        Ok(encoded(&CloseReply { entry, conflict: true }))
    }

    /// Data changed: mode, version and times.
    fn written(&mut self, a: &mut Attr, cred: &Cred) -> Attempt<()> {
        a.mode = mode_after_write(a, cred)?;
        self.data_changed(a);
        Ok(())
    }

    fn data_changed(&self, a: &mut Attr) {
        let now = self.wall_ns();
        a.data_version = next_version(a, now);
        a.mtime_ns = later(a.mtime_ns, now);
        a.ctime_ns = later(a.ctime_ns, now);
    }

    fn locate_file(&mut self, rq: &Rq, cred: &Cred, at: &At) -> Attempt<Located> {
        let found = self.locate(rq, cred, at)?;
        match found.inode.attr.kind() {
            FileKind::Regular => Ok(found),
            FileKind::Directory => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// O_APPEND: the owner gives the offset and, where it fits, takes the data into the row. Else
    /// the size stays until the writer says that the data is there: who opens the file meanwhile
    /// must not read zeros in its place.
    pub(crate) fn append(&mut self, rq: &Rq, msg: &AppendReq) -> Attempt<Bytes> {
        let found = self.locate_file(rq, &msg.ctx.cred, &msg.at)?;
        let mut inode = (*found.inode).clone();
        inode.note_flushes(None, &msg.unflushed);
        check_unflushed(&inode)?;
        if msg.size > 0 && msg.truncate_gen == inode.attr.truncate_gen {
            // What the writer appended before is there: others' appends may have grown the file
            // beyond it.
            let (old, size) = (&inode.attr, msg.size.min(limits::FILE_BYTES_MAX));
            if size > old.size {
                let stored = old.stored_bytes() + (size - old.size);
                inode.attr.set_size(size, stored);
            }
            self.data_changed(&mut inode.attr);
        }
        let offset = inode.attr.size.max(inode.append_end);
        let end = offset.checked_add(msg.len).filter(|end| *end <= limits::FILE_BYTES_MAX);
        let end = end.ok_or(Errno::EFBIG)?;
        inode.attr.mode = mode_after_write(&inode.attr, &msg.ctx.cred)?;
        let stored =
            !inode.attr.chunked && end <= self.map.inline_max && msg.data.len() as u64 == msg.len;
        let mut entry = self.entry_of(&msg.at, &found);
        if !stored && !inode.attr.chunked && self.may_have_chunks(&inode, &entry.loc)? {
            return Err(self.start_spill(found, entry.loc.clone(), move |s, mut inode| {
                inode.append_end = end;
                s.data_changed(&mut inode.attr);
                entry.attr = inode.attr.clone();
                (inode, encoded(&AppendReply { offset, stored, entry }))
            }));
        }
        if stored {
            self.may_grow()?;
            inode.inline = appended(&inode.inline, offset, &msg.data);
            inode.attr.set_size(end, inode.inline.len() as u64);
            self.data_changed(&mut inode.attr);
            entry.inline = inode.inline.clone();
        } else {
            if !inode.attr.chunked {
                // No store has anything of the file.
                inode.attr.chunked = true;
                inode.attr.data_version = next_version(&inode.attr, self.wall_ns());
            }
            inode.append_end = end;
        }
        entry.attr = inode.attr.clone();
        self.store(&found.spot, inode);
        Ok(encoded(&AppendReply { offset, stored, entry }))
    }

    /// The file's data moves from the row to chunks, because it grows beyond the row.
    pub(crate) fn spill(&mut self, rq: &Rq, msg: &EntryReq) -> Attempt<Bytes> {
        let found = self.locate_file(rq, &msg.ctx.cred, &msg.at)?;
        let mut entry = self.entry_of(&msg.at, &found);
        if found.inode.attr.chunked {
            return done(&entry);
        }
        if !self.may_have_chunks(&found.inode, &entry.loc)? {
            // There is nothing to ask the stores for.
            let mut inode = (*found.inode).clone();
            inode.attr.chunked = true;
            inode.attr.data_version += 1;
            entry.attr = inode.attr.clone();
            self.store(&found.spot, inode);
            return done(&entry);
        }
        Err(self.start_spill(found, entry.loc.clone(), move |_, inode| {
            entry.attr = inode.attr.clone();
            (inode, encoded(&entry))
        }))
    }
}

/// A row is bounded. Nothing of this may be forgotten: an fsync would succeed for what is lost.
fn check_unflushed(inode: &Inode) -> Result<(), Error> {
    if inode.unflushed.len() <= limits::UNFLUSHED_MAX {
        return Ok(());
    }
    Err(Error::new(Errno::ENOSPC).with_text("too many stores hold what no fsync has flushed"))
}

fn appended(old: &Bytes, offset: u64, data: &Bytes) -> Bytes {
    let mut out = BytesMut::with_capacity(offset as usize + data.len());
    out.extend_from_slice(old);
    // The row may hold less than the size: the rest is zeros.
    out.resize(offset as usize, 0);
    out.extend_from_slice(data);
    out.freeze()
}
