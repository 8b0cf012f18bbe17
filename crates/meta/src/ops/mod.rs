//! The operations, a file each. An operation checks everything first and changes rows last, so
//! that one that fails has changed nothing and the batch goes on without it.

mod close;
pub(crate) mod create;
mod exchange;
mod getattr;
mod link;
mod load;
mod lock;
mod open;
mod readdir;
pub(crate) mod rename;
mod scan;
pub(crate) mod setattr;
mod store_job;
mod tmpfile;
pub(crate) mod truncate;
pub(crate) mod unlink;
pub(crate) mod watch;
pub(crate) mod xattr;

use bytes::Bytes;
use saker_types::wire::{At, Empty, Entry, Op};
use saker_types::{Errno, Error};

use crate::request::{Attempt, Msg, Rq};
use crate::rows::Located;
use crate::shard::{Shard, encoded};

impl Shard {
    /// Runs a request once, from the root.
    pub(crate) fn execute(&mut self, rq: &Rq) -> Attempt<Bytes> {
        match (&rq.msg, rq.from.op) {
            (Msg::Entry(m), Op::Spill) => self.spill(rq, m),
            (Msg::Entry(m), Op::Readlink) => self.readlink(rq, m),
            (Msg::Entry(m), _) => self.getattr(rq, m),
            (Msg::Setattr(m), _) => self.setattr(rq, m),
            (Msg::Create(m), Op::Tmpfile) => self.tmpfile(rq, m),
            (Msg::Create(m), _) => self.create(rq, m),
            (Msg::Open(m), _) => self.open(rq, m),
            (Msg::Remove(m), _) => self.unlink(rq, m),
            (Msg::Rename(m), _) => self.rename(rq, m),
            (Msg::Link(m), _) => self.link(rq, m),
            (Msg::Readdir(m), _) => self.readdir(rq, m),
            (Msg::Close(m), _) => self.close(rq, m),
            (Msg::Append(m), _) => self.append(rq, m),
            (Msg::Xattr(m), Op::Getxattr) => self.getxattr(rq, m),
            (Msg::Xattr(m), Op::Listxattr) => self.listxattr(rq, m),
            (Msg::Xattr(m), Op::Setxattr) => self.setxattr(rq, m),
            (Msg::Xattr(m), _) => self.removexattr(rq, m),
            (Msg::Access(m), _) => self.access(rq, m),
            (Msg::Lock(m), Op::Getlk) => self.getlk(m),
            (Msg::Lock(m), _) => self.setlk(m),
            (Msg::RenewLocks(m), _) => self.renew_locks(m),
            (Msg::Renew(m), _) => self.renew(m),
            (Msg::Session(m), Op::OpenSession) => self.open_session(rq, m),
            (Msg::Session(m), _) => self.close_session(m),
            // As every answer, but those for which it is said otherwise, it leaves when all is durable.
            (Msg::Empty(_), Op::SyncJournal) => Ok(encoded(&Empty {})),
            (Msg::Empty(_), _) => self.statfs(),
            (Msg::Fetch(m), _) => self.fetch(rq, m),
            (Msg::Collect(m), _) => self.collect(m),
            (Msg::Invalidate(m), _) => self.invalidate(m),
            (Msg::Prepare(m), _) => self.prepare(rq, m),
            (Msg::Decide(m), _) => self.decide(m),
            (Msg::Outcome(m), _) => self.outcome(m),
            (Msg::Scan(m), _) => self.scan(m),
            (Msg::Watch(m), _) => self.watch(m),
            (Msg::Stage(m), _) => self.stage(rq, m),
            (Msg::Load(m), _) => self.load(rq, m),
            (Msg::CheckMerge(m), _) => self.check_merge(m),
            (Msg::ApplyMerge(m), _) => self.apply_merge(m),
        }
    }

    /// The answer about an inode without its small-file data.
    pub(crate) fn entry_of(&self, at: &At, found: &Located) -> Entry {
        let attr = found.inode.attr.clone();
        Entry {
            loc: self.locator(&found.spot, attr.id, at).under(found.way.policy_of(&found.inode)),
            attr,
            searchable: found.way.searchable,
            sticky: found.way.sticky,
            unflushed: found.inode.unflushed.clone(),
            ..Entry::default()
        }
    }
}

/// Refuses what only a broken client sends.
pub(crate) fn needs_name(at: &At) -> Result<&Bytes, Error> {
    at.path.last().ok_or_else(|| Error::new(Errno::EINVAL).with_text("the request names nothing"))
}

/// The same, where the directory is told itself.
pub(crate) fn needs_no_path(at: &At) -> Result<(), Error> {
    match at.path.is_empty() {
        true => Ok(()),
        false => Err(Error::new(Errno::EINVAL).with_text("the request has a path")),
    }
}

/// An encoded entry.
pub(crate) fn done(entry: &Entry) -> Attempt<Bytes> {
    Ok(encoded(entry))
}
