//! lookup, getattr, readlink, access.

use std::rc::Rc;

use bytes::Bytes;
use saker_types::wire::{AccessReq, Empty, Entry, EntryReq};
use saker_types::{Access, Errno, Error, FileKind, Inode, InodeId};

use super::done;
use crate::request::{Attempt, Rq};
use crate::rows::Spot;
use crate::shard::{Shard, encoded};
use crate::totals::collect::{collect, combine};

impl Shard {
    /// Attributes of an inode. Those of a directory are exact if `full` is set; that asks all
    /// shards.
    pub(crate) fn getattr(&mut self, rq: &Rq, msg: &EntryReq) -> Attempt<Bytes> {
        let found = self.locate(rq, &msg.ctx.cred, &msg.at)?;
        let mut entry = self.entry_of(&msg.at, &found);
        if found.inode.attr.kind() == FileKind::Symlink {
            entry.inline = found.inode.inline.clone();
        }
        let whole = matches!(found.spot, Spot::Entry(_));
        if found.inode.attr.is_dir() && whole {
            if msg.full {
                let spot = found.spot;
                return Err(self.task(|h| full_directory(h, spot, entry)));
            }
            entry.attr.nlink = 2;
        }
        done(&entry)
    }

    /// Target of a symbolic link.
    pub(crate) fn readlink(&mut self, rq: &Rq, msg: &EntryReq) -> Attempt<Bytes> {
        let found = self.locate(rq, &msg.ctx.cred, &msg.at)?;
        if found.inode.attr.kind() != FileKind::Symlink {
            return Err(Errno::EINVAL.into());
        }
        let inline = found.inode.inline.clone();
        done(&Entry { inline, ..self.entry_of(&msg.at, &found) })
    }

    /// access(2).
    pub(crate) fn access(&mut self, rq: &Rq, msg: &AccessReq) -> Attempt<Bytes> {
        let found = self.locate(rq, &msg.ctx.cred, &msg.at)?;
        found.inode.check(&msg.ctx.cred, Access(msg.want & 7))?;
        Ok(encoded(&Empty {}))
    }
}

impl Shard {
    /// The row of a directory for a task that does not hold it. That it is gone, or is about to
    /// change, is no answer: the request begins anew, and waits or fails where it resolves.
    pub(crate) fn directory_at(&mut self, spot: &Spot, id: InodeId) -> Result<Rc<Inode>, Error> {
        let Spot::Entry(key) = spot else { return Err(Errno::ESTALE.into()) };
        let is_free = self.locked_by(key).is_none() && self.owns(key.pid, &key.name);
        let row = self.entry(key)?.filter(|row| row.attr.id == id && is_free);
        row.ok_or_else(|| Error::retry("the directory changed meanwhile"))
    }
}

/// The row and the totals as of one instant: the row did not change while they were collected.
async fn full_directory(
    h: crate::shard::ShardHandle,
    spot: Spot,
    mut entry: Entry,
) -> Result<Bytes, saker_types::Error> {
    loop {
        let before = h.shard().directory_at(&spot, entry.attr.id)?;
        let vector = collect(&h, entry.attr.id).await?;
        let after = h.shard().directory_at(&spot, entry.attr.id)?;
        if before == after {
            entry.attr = combine(&after, &vector);
            return Ok(encoded(&entry));
        }
    }
}
