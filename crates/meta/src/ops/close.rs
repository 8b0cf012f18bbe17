//! What writers report: close and fsync (size, small-file data), append, spill (rule 17).

use bytes::{Bytes, BytesMut};
use saker_runtime::failpoint;
use saker_types::wire::{AppendReply, AppendReq, At, CloseReply, CloseReq, Entry, EntryReq};
use saker_types::{Attr, Cred, Errno, FileKind, Inode, limits};

use super::{done, truncate};
use crate::request::{Rq, Step};
use crate::rows::Located;
use crate::shard::{Shard, encoded};

impl Shard {
    /// Size and data of a file that was written. The handle carries the right to write; it was
    /// checked when the file was opened.
    pub(crate) fn close(&mut self, rq: &Rq, msg: &CloseReq) -> Step<Bytes> {
        let found = self.locate_file(rq, &msg.ctx.cred, &msg.at)?;
        let a = &found.inode.attr;
        if msg.size > limits::FILE_BYTES_MAX {
            return Err(Errno::EFBIG.into());
        }
        let mut inode = (*found.inode).clone();
        if let Some(data) = &msg.inline {
            if a.chunked || a.data_version != msg.base_version {
                return self.conflict(&found, msg);
            }
            if data.len() as u64 > self.map.inline_max {
                return Err(Errno::EFBIG.into());
            }
            inode.inline = data.clone();
            inode.attr.size = msg.size.max(data.len() as u64).max(a.size);
        } else if msg.truncate_gen == a.truncate_gen {
            inode.attr.size = a.size.max(msg.size);
        }
        self.written(&mut inode.attr, &msg.ctx.cred)?;
        let mut entry = self.entry_of(&msg.at, &found);
        entry.attr = inode.attr.clone();
        self.store(&found.spot, inode);
        Ok(encoded(&CloseReply { entry, conflict: false }))
    }

    fn conflict(&mut self, found: &Located, msg: &CloseReq) -> Step<Bytes> {
        let mut entry = self.entry_of(&msg.at, found);
        if !entry.attr.chunked {
            entry.inline = found.inode.inline.clone();
        }
        Ok(encoded(&CloseReply { entry, conflict: true }))
    }

    /// Data changed: mode, version and times.
    fn written(&mut self, a: &mut Attr, cred: &Cred) -> Step<()> {
        a.mode = truncate::mode_after_write(a, cred)?;
        self.data_changed(a);
        Ok(())
    }

    fn data_changed(&self, a: &mut Attr) {
        let now = self.wall_ns();
        a.data_version += 1;
        a.mtime_ns = now.max(a.mtime_ns);
        a.ctime_ns = now.max(a.ctime_ns);
    }

    fn locate_file(&mut self, rq: &Rq, cred: &Cred, at: &At) -> Step<Located> {
        let found = self.locate(rq, cred, at)?;
        match found.inode.attr.kind() {
            FileKind::Regular => Ok(found),
            FileKind::Directory => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// O_APPEND: the owner gives the offset and, where it fits, takes the data into the row.
    pub(crate) fn append(&mut self, rq: &Rq, msg: &AppendReq) -> Step<Bytes> {
        let found = self.locate_file(rq, &msg.ctx.cred, &msg.at)?;
        let offset = found.inode.attr.size;
        let end = offset.checked_add(msg.len).filter(|end| *end <= limits::FILE_BYTES_MAX);
        let end = end.ok_or(Errno::EFBIG)?;
        let mut inode = (*found.inode).clone();
        let fits = end <= self.map.inline_max && msg.data.len() as u64 == msg.len;
        if !inode.attr.chunked && !fits {
            let mode = truncate::mode_after_write(&inode.attr, &msg.ctx.cred)?;
            return Err(self.move_to_chunks(found, &msg.at, move |s, mut inode, mut entry| {
                inode.attr.size = inode.attr.size.max(end);
                inode.attr.mode = mode;
                s.data_changed(&mut inode.attr);
                entry.attr = inode.attr.clone();
                (inode, encoded(&AppendReply { offset, stored: false, entry }))
            }));
        }
        if !inode.attr.chunked {
            inode.inline = appended(&inode.inline, offset, &msg.data);
        }
        let stored = !inode.attr.chunked;
        inode.attr.size = end;
        self.written(&mut inode.attr, &msg.ctx.cred)?;
        let mut entry = self.entry_of(&msg.at, &found);
        entry.attr = inode.attr.clone();
        if stored {
            entry.inline = inode.inline.clone();
        }
        self.store(&found.spot, inode);
        Ok(encoded(&AppendReply { offset, stored, entry }))
    }

    /// The file's data moves from the row to chunks, because it grows beyond the row.
    pub(crate) fn spill(&mut self, rq: &Rq, msg: &EntryReq) -> Step<Bytes> {
        let found = self.locate_file(rq, &msg.ctx.cred, &msg.at)?;
        let entry = self.entry_of(&msg.at, &found);
        if found.inode.attr.chunked {
            return done(&entry);
        }
        if found.inode.inline.is_empty() {
            let mut inode = (*found.inode).clone();
            to_chunks(&mut inode);
            let entry = Entry { attr: inode.attr.clone(), ..entry };
            self.store(&found.spot, inode);
            return done(&entry);
        }
        Err(self.move_to_chunks(found, &msg.at, |_, inode, mut entry| {
            entry.attr = inode.attr.clone();
            (inode, encoded(&entry))
        }))
    }

    /// Writes the row's data to chunk 0, flushed, holding the inode; then the row says so.
    fn move_to_chunks<F>(&mut self, found: Located, at: &At, finish: F) -> crate::request::Stop
    where
        F: FnOnce(&mut Shard, Inode, Entry) -> (Inode, Bytes) + 'static,
    {
        let entry = self.entry_of(at, &found);
        let Located { spot, inode, .. } = found;
        let id = inode.attr.id;
        self.hold(id);
        failpoint!("spill.begun");
        self.task(move |h| async move {
            let written = match inode.inline.is_empty() {
                true => Ok(()),
                false => truncate::write_first_chunk(&h, &inode.attr, inode.inline.clone()).await,
            };
            failpoint!("spill.chunk_written");
            let mut s = h.shard();
            s.release(id);
            written?;
            let mut inode = (*s.reload(&spot)?).clone();
            to_chunks(&mut inode);
            let (inode, reply) = finish(&mut s, inode, entry);
            s.store(&spot, inode);
            failpoint!("spill.stored");
            Ok(reply)
        })
    }
}

fn to_chunks(inode: &mut Inode) {
    inode.attr.chunked = true;
    inode.attr.data_version += 1;
    inode.inline = Bytes::new();
}

fn appended(old: &Bytes, offset: u64, data: &Bytes) -> Bytes {
    let mut out = BytesMut::with_capacity(offset as usize + data.len());
    out.extend_from_slice(old);
    // The row may hold less than the size: the rest is zeros.
    out.resize(offset as usize, 0);
    out.extend_from_slice(data);
    out.freeze()
}
