//! setattr: mode, owner, size, times. What namespace replicas hold of a directory (mode, owner)
//! is changed by the coordinator, through [`apply_access`] in the prepare.

use bytes::Bytes;
use saker_types::inode::SeenVersion;
use saker_types::wire::{Entry, SetattrReq};
use saker_types::{Access, Attr, Class, Errno, Error, FileKind, Inode, limits};

use super::done;
use super::truncate::Truncation;
use crate::changelog::collect::{collect, combine};
use crate::request::{Rq, Step, Stop};
use crate::rows::{Located, Spot};
use crate::rules::attributes::{apply_access, apply_times};
use crate::shard::{Shard, encoded};

impl Shard {
    /// Serves setattr of whatever this shard may change alone.
    pub(crate) fn setattr(&mut self, rq: &Rq, msg: &SetattrReq) -> Step<Bytes> {
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

    fn store_and_answer(&mut self, spot: &Spot, inode: Inode, mut entry: Entry) -> Step<Bytes> {
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
    ) -> Step<Bytes> {
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
        let job = Truncation::new(&inode.attr, size, cred)?.apply(&mut inode, self.wall_ns());
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
