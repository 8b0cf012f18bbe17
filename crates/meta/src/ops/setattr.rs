//! setattr: mode, owner, size, times. What namespace replicas hold of a directory (mode, owner)
//! is changed by the coordinator, through [`apply_access`] in the prepare.

use bytes::Bytes;
use saker_types::inode::SeenVersion;
use saker_types::wire::{Entry, SetattrReq};
use saker_types::{Access, Attr, Class, Errno, Error, FileKind, Inode, limits};

use super::done;
use super::truncate::Truncation;
use crate::request::{Attempt, Rq, Stop};
use crate::rows::{Located, Spot};
use crate::rules::attributes::{apply_access, apply_times};
use crate::shard::{Shard, encoded};
use crate::totals::collect::{collect, combine};

impl Shard {
    /// Serves setattr of whatever this shard may change alone.
    pub(crate) fn setattr(&mut self, rq: &Rq, msg: &SetattrReq) -> Attempt<Bytes> {
        let found = self.locate(rq, &msg.ctx.cred, &msg.at)?;
        let is_dir = found.inode.attr.is_dir();
        let mut inode = (*found.inode).clone();
        let now = self.wall_ns();
        apply_access(&mut inode, msg, now)?;
        if is_dir && replicated(&inode.attr) != replicated(&found.inode.attr) {
            return Err(Error::of_class(Class::UseCoordinator, Errno::EISDIR).into());
        }
        let sets_times = apply_times(&mut inode, msg, now)?;
        let entry = self.entry_of(&msg.at, &found);
        if is_dir && matches!(found.spot, Spot::Entry(_)) {
            if msg.size.is_some() {
                return Err(Errno::EISDIR.into());
            }
            return Err(self.set_directory(found, inode, entry, sets_times));
        }
        if let Some(size) = msg.size {
            return self.resize(rq, msg, found, inode, entry, size);
        }
        self.store_and_answer(&found.spot, inode, entry)
    }

    fn store_and_answer(&mut self, spot: &Spot, inode: Inode, mut entry: Entry) -> Attempt<Bytes> {
        entry.attr = inode.attr.clone();
        if !inode.attr.chunked {
            entry.inline = inode.inline.clone();
        }
        self.store(spot, inode);
        done(&entry)
    }

    fn resize(
        &mut self,
        rq: &Rq,
        msg: &SetattrReq,
        found: Located,
        mut inode: Inode,
        entry: Entry,
        size: u64,
    ) -> Attempt<Bytes> {
        let a = &found.inode.attr;
        match a.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        let cred = &msg.ctx.cred;
        if !msg.by_handle {
            found.inode.check(cred, Access::W)?;
        }
        if size > limits::FILE_BYTES_MAX {
            return Err(Errno::EFBIG.into());
        }
        let explicit_mtime =
            (msg.mtime_ns.is_some() || msg.mtime_now).then_some(inode.attr.mtime_ns);
        let truncation = Truncation::new(&inode.attr, size, cred)?;
        let next_gen = self.next_truncate_gen(&inode.attr);
        let job = truncation.apply(&mut inode, next_gen, self.wall_ns());
        if let Some(mtime_ns) = explicit_mtime {
            inode.attr.mtime_ns = mtime_ns;
        }
        match job {
            Some(job) => Err(self.start_cut(rq, found.spot, inode, job, entry)),
            None => self.store_and_answer(&found.spot, inode, entry),
        }
    }

    /// Times of a directory: stored with the vector that they override (rule 21).
    fn set_directory(
        &mut self,
        found: Located,
        mut inode: Inode,
        mut entry: Entry,
        sets_times: bool,
    ) -> Stop {
        let Located { spot, inode: before, .. } = found;
        self.task(|h| async move {
            let vector = collect(&h, inode.attr.id).await?;
            let mut s = h.shard();
            if s.directory_at(&spot, inode.attr.id)? != before {
                return Err(Error::retry("the directory changed meanwhile"));
            }
            if sets_times {
                inode.seen = seen(&vector);
            }
            entry.attr = combine(&inode, &vector);
            s.store(&spot, inode);
            Ok(encoded(&entry))
        })
    }
}

fn seen(vector: &[saker_types::wire::Totals]) -> Vec<SeenVersion> {
    let versions = vector.iter().enumerate().filter(|(_, t)| t.version > 0);
    versions.map(|(i, t)| SeenVersion { shard: i as u32, version: t.version }).collect()
}

/// What namespace replicas hold of a directory. It is compared after the change: a mode that is
/// asked for as it is may lose its set-group-id bit on the way.
fn replicated(a: &Attr) -> (u32, u32, u32) {
    (a.mode, a.uid, a.gid)
}

#[cfg(test)]
mod tests {
    use saker_types::wire::{Ctx, EntryReq, Op};

    use super::*;
    use crate::testing::{Tester, at, errno, user};

    fn set(t: &mut Tester, path: &str, change: SetattrReq) -> Result<Entry, Error> {
        let (ctx, at) = (t.ctx(), at(path));
        t.ask(Op::Setattr, &SetattrReq { ctx, at, ..change })
    }

    fn mode(mode: u32) -> SetattrReq {
        SetattrReq { mode: Some(mode), ..SetattrReq::default() }
    }

    fn size(size: u64) -> SetattrReq {
        SetattrReq { size: Some(size), ..SetattrReq::default() }
    }

    #[test]
    fn a_file_s_owner_changes_its_mode() {
        let mut t = Tester::new();
        let before = t.create("f").unwrap().attr;
        let after = set(&mut t, "f", mode(0o640)).unwrap().attr;
        assert_eq!((after.mode & 0o7777, after.mtime_ns), (0o640, before.mtime_ns));
        assert!(after.ctime_ns > before.ctime_ns);
        assert_eq!(t.row("f").unwrap().attr, after);
        t.cred = user(5);
        assert_eq!(errno(set(&mut t, "f", mode(0o666))), Errno::EPERM);
        assert_eq!(t.row("f").unwrap().attr, after);
    }

    #[test]
    fn what_replicas_hold_of_a_directory_is_the_coordinators() {
        let mut t = Tester::new();
        t.mkdir("d").unwrap();
        assert!(set(&mut t, "d", mode(0o700)).unwrap_err().is(Class::UseCoordinator));
        let times = SetattrReq { mtime_ns: Some(5), ..SetattrReq::default() };
        assert_eq!(set(&mut t, "d", times).unwrap().attr.mtime_ns, 5);
        // Later changes of the directory raise it again.
        t.create("d/f").unwrap();
        let ctx = Ctx { seq: 0, ..t.ctx() };
        let full = EntryReq { ctx, at: at("d"), full: true };
        assert!(t.ask::<Entry>(Op::Getattr, &full).unwrap().attr.mtime_ns > 5);
    }

    #[test]
    fn a_size_is_a_regular_file_s_and_has_a_bound() {
        let mut t = Tester::new();
        t.create("f").unwrap();
        t.mkdir("d").unwrap();
        assert_eq!(errno(set(&mut t, "d", size(0))), Errno::EISDIR);
        assert_eq!(errno(set(&mut t, "f", size(limits::FILE_BYTES_MAX + 1))), Errno::EFBIG);
        assert_eq!(set(&mut t, "f", size(10)).unwrap().attr.size, 10);
        t.cred = user(5);
        assert_eq!(errno(set(&mut t, "f", size(0))), Errno::EACCES);
        assert_eq!(t.row("f").unwrap().attr.size, 10);
    }
}
