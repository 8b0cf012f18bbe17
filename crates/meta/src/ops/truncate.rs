//! Changing a file's size (rule 17). A file without chunks is cut in its row; chunks are cut by a
//! [job](super::store_job) that is written with the new size and generation.

use bytes::Bytes;
use saker_types::change::StoreJob;
use saker_types::time::later;
use saker_types::wire::Entry;
use saker_types::{Attr, Cred, Error, Inode, Stamp};

use super::done;
use crate::request::{Rq, Step};
use crate::rows::Located;
use crate::rules::attributes::mode_after_write;
use crate::shard::Shard;

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
    pub(crate) fn apply(&self, inode: &mut Inode, now_ns: Stamp) -> Option<StoreJob> {
        let a: &mut Attr = &mut inode.attr;
        // Also what is being appended, and is not told of yet: it comes before.
        let cuts = self.size < a.size.max(inode.append_end);
        if cuts {
            inode.append_end = 0;
        }
        if self.size == 0 {
            inode.unflushed.clear();
        }
        a.set_size(self.size, a.stored_bytes());
        a.data_version += 1;
        a.mtime_ns = later(a.mtime_ns, now_ns);
        a.ctime_ns = later(a.ctime_ns, now_ns);
        a.mode = self.mode;
        if !a.chunked {
            let keep = inode.inline.len().min(self.size as usize);
            inode.inline = inode.inline.slice(..keep);
            a.set_size(self.size, keep as u64);
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
}
