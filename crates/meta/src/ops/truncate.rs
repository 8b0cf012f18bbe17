//! Changing a file's size (rule 17). A file without chunks is cut in its row; chunks are cut by a
//! [job](super::store_job) that is written with the new size and generation.

use bytes::Bytes;
use saker_types::change::StoreJob;
use saker_types::time::later;
use saker_types::wire::Entry;
use saker_types::{Attr, Cred, Error, Inode, Stamp};

use super::done;
use crate::request::{Attempt, Rq};
use crate::rows::Located;
use crate::rules::attributes::{mode_after_write, next_version};
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

    /// Applies it to a row; `Some` when stores must cut, under this generation.
    pub(crate) fn apply(
        &self,
        inode: &mut Inode,
        next_gen: u64,
        now_ns: Stamp,
    ) -> Option<StoreJob> {
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
        a.data_version = next_version(a, now_ns);
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
        a.truncate_gen = next_gen;
        Some(StoreJob { truncate_gen: next_gen, cut: self.size, ..StoreJob::default() })
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
    ) -> Attempt<Bytes> {
        let mut inode = (*found.inode).clone();
        let next_gen = self.next_truncate_gen(&inode.attr);
        let job = cut.apply(&mut inode, next_gen, self.wall_ns());
        if let Some(job) = job {
            return Err(self.start_cut(rq, found.spot, inode, job, entry));
        }
        entry.attr = inode.attr.clone();
        entry.inline = inode.inline.clone();
        self.store(&found.spot, inode);
        done(&entry)
    }
}

#[cfg(test)]
mod tests {
    use saker_types::FileKind;

    use super::*;

    fn file(size: u64, chunked: bool) -> Inode {
        let mode = FileKind::Regular.bits() | 0o6777;
        let mut inode =
            Inode { attr: Attr { mode, chunked, ..Attr::default() }, ..Inode::default() };
        if !chunked {
            inode.inline = vec![1; size as usize].into();
        }
        inode.attr.set_size(size, size);
        inode
    }

    fn cut(inode: &mut Inode, size: u64) -> Option<StoreJob> {
        let truncation = Truncation::new(&inode.attr, size, &Cred::root()).unwrap();
        let next_gen = inode.attr.truncate_gen + 1;
        truncation.apply(inode, next_gen, 5)
    }

    #[test]
    fn a_small_file_is_cut_in_its_row() {
        let mut inode = file(100, false);
        assert_eq!(cut(&mut inode, 30), None);
        assert_eq!((inode.attr.size, inode.inline.len()), (30, 30));
        assert_eq!(cut(&mut inode, 70), None);
        assert_eq!((inode.attr.size, inode.inline.len(), inode.attr.data_version), (70, 30, 2));
        assert_eq!((inode.attr.mtime_ns, inode.attr.ctime_ns), (6, 6), "later than before");
    }

    #[test]
    fn stores_hear_of_what_is_cut_under_a_new_generation() {
        let mut inode = file(1 << 20, true);
        let job = cut(&mut inode, 1000).unwrap();
        assert_eq!((job.cut, job.truncate_gen, inode.attr.truncate_gen), (1000, 1, 1));
        // Longer: there is nothing to be cut.
        assert_eq!(cut(&mut inode, 5000), None);
        assert_eq!((inode.attr.size, inode.attr.truncate_gen), (5000, 1));
        // What is being appended is not in the size yet.
        inode.append_end = 9000;
        assert_eq!(cut(&mut inode, 6000).unwrap().truncate_gen, 2);
        assert_eq!(inode.append_end, 0);
    }

    #[test]
    fn who_is_not_the_superuser_takes_privileges_away() {
        let user = Cred { uid: 5, gid: 5, groups_known: true, ..Cred::default() };
        for (cred, left) in [(Cred::root(), 0o6000), (user, 0)] {
            let mut inode = file(10, false);
            Truncation::new(&inode.attr, 0, &cred).unwrap().apply(&mut inode, 1, 5);
            assert_eq!(inode.attr.mode & 0o6000, left);
        }
    }
}
