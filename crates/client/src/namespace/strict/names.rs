//! Operations on names and attributes, as requests to owners.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use saker_runtime::time::{self, Time};
use saker_types::wire::*;
use saker_types::{Class, Errno, FileKind, InodeId, Locator, Result, limits};

use crate::data::file::File;
use crate::data::holds::Opening;
use crate::data::open_inode::{OpenInode, inline_of};
use crate::namespace::api::Namespace;
use crate::namespace::listing::DirStream;
use crate::namespace::strict::readdir::Shares;
use crate::namespace::strict::{Strict, check_place, xattr};
use crate::net::request::To;
use crate::{Caller, OpenFlags, SetAttr, SetTime};

impl Namespace for Strict<'_> {
    async fn lookup(&self, who: &Caller, at: &At) -> Result<Entry> {
        self.entry(who, at, Op::Lookup, false).await
    }

    async fn getattr(&self, who: &Caller, at: &At) -> Result<Entry> {
        self.entry(who, at, Op::Getattr, true).await
    }

    async fn getattr_within(&self, who: &Caller, at: &At, patience: Duration) -> Result<Entry> {
        let mut request = EntryReq { at: at.clone(), full: true, ..EntryReq::default() };
        let until = time::now() + patience;
        let entry =
            self.0.cluster.ask_until(who, Op::Getattr, To::Owner, &mut request, until).await?;
        Ok(self.learn(entry))
    }

    async fn setattr(&self, who: &Caller, at: &At, change: &SetAttr) -> Result<Entry> {
        check_place(at)?;
        let mut request = setattr_request(at, change);
        let inode = self.inode_at(who, at).await?;
        let Some(inode) = inode else {
            let entry = self.change_attributes(who, &mut request).await?;
            return Ok(self.learn(entry));
        };
        // Nothing may be written between the flush and the change.
        let mut writer = inode.writer.lock().await;
        if inode.is_dirty() {
            self.0.write_back(&inode, &mut writer).await;
        }
        let entry: Entry = self.0.cluster.ask(who, Op::Setattr, To::Owner, &mut request).await?;
        Ok(inode.with(|s| {
            s.cut_here(&entry, inline_of(&entry));
            s.newest(entry)
        }))
    }

    async fn create(
        &self,
        who: &Caller,
        at: &At,
        mode: u32,
        flags: OpenFlags,
        wary: bool,
    ) -> Result<(File, Entry)> {
        check_place(at)?;
        let mut request = CreateReq {
            at: at.clone(),
            mode: FileKind::Regular.bits() | (mode & 0o7777),
            exclusive: flags.exclusive,
            access: flags.access(),
            truncate: flags.truncate,
            umask: who.umask,
            wary,
            ..CreateReq::default()
        };
        let (opening, asked) = (self.0.inodes.holds.begin(), time::now());
        request.hold = opening.hold();
        let entry: Entry = self.0.cluster.ask(who, Op::Create, To::Owner, &mut request).await?;
        Ok(self.opened(who, entry, flags, opening, asked).await)
    }

    async fn tmpfile(
        &self,
        who: &Caller,
        dir: &At,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(File, Entry)> {
        // Chooses the shard, and is not seen by anybody.
        let name = format!(".nameless-{:016x}", saker_runtime::rand::u64());
        let mut request = CreateReq {
            at: dir.clone(),
            mode: FileKind::Regular.bits() | (mode & 0o7777),
            exclusive: flags.exclusive,
            umask: who.umask,
            ..CreateReq::default()
        };
        request.at.path.push(name.into());
        check_place(&request.at)?;
        let (opening, asked) = (self.0.inodes.holds.begin(), time::now());
        request.hold = opening.hold();
        let entry: Entry = self.0.cluster.ask(who, Op::Tmpfile, To::Owner, &mut request).await?;
        Ok(self.opened(who, entry, flags, opening, asked).await)
    }

    async fn open(&self, who: &Caller, at: &At, flags: OpenFlags) -> Result<(File, Entry)> {
        check_place(at)?;
        let mut request = OpenReq {
            at: at.clone(),
            access: flags.access(),
            truncate: flags.truncate,
            ..OpenReq::default()
        };
        let (opening, asked) = (self.0.inodes.holds.begin(), time::now());
        request.hold = opening.hold();
        let entry: Entry = self.0.cluster.ask(who, Op::Open, To::Owner, &mut request).await?;
        Ok(self.opened(who, entry, flags, opening, asked).await)
    }

    async fn mkdir(&self, who: &Caller, at: &At, mode: u32) -> Result<Entry> {
        let mode = FileKind::Directory.bits() | (mode & 0o7777);
        self.make(who, Op::Mkdir, CreateReq { at: at.clone(), mode, ..CreateReq::default() }).await
    }

    async fn mknod(&self, who: &Caller, at: &At, mode: u32, rdev: u32) -> Result<Entry> {
        let request = CreateReq { at: at.clone(), mode, rdev, ..CreateReq::default() };
        self.make(who, Op::Mknod, request).await
    }

    async fn symlink(&self, who: &Caller, at: &At, target: &[u8]) -> Result<Entry> {
        if target.len() >= limits::PATH_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let mode = FileKind::Symlink.bits() | 0o777;
        let target = Bytes::copy_from_slice(target);
        let request = CreateReq { at: at.clone(), mode, target, ..CreateReq::default() };
        self.make(who, Op::Symlink, request).await
    }

    async fn rename(
        &self,
        who: &Caller,
        from: &At,
        to: &At,
        flags: u32,
        chains: [&[Locator]; 2],
    ) -> Result<RenameReply> {
        self.move_name(who, from, to, flags, chains).await
    }

    fn readdir(&self, who: &Caller, dir: &Locator, cookie: u64) -> DirStream {
        DirStream::of_shares(Shares::new(self.0.clone(), who, dir, cookie))
    }

    async fn getxattr(&self, who: &Caller, at: &At, name: &[u8]) -> Result<Bytes> {
        xattr::get(self.0, who, at, name).await
    }

    async fn setxattr(
        &self,
        who: &Caller,
        at: &At,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<()> {
        xattr::set(self.0, who, at, name, value, flags).await
    }

    async fn listxattr(&self, who: &Caller, at: &At) -> Result<Bytes> {
        xattr::list(self.0, who, at).await
    }

    async fn removexattr(&self, who: &Caller, at: &At, name: &[u8]) -> Result<()> {
        xattr::remove(self.0, who, at, name).await
    }

    async fn readlink(&self, who: &Caller, at: &At) -> Result<Bytes> {
        check_place(at)?;
        let mut request = EntryReq { at: at.clone(), ..EntryReq::default() };
        let entry: Entry = self.0.cluster.ask(who, Op::Readlink, To::Owner, &mut request).await?;
        Ok(entry.inline)
    }

    async fn unlink(&self, who: &Caller, at: &At) -> Result<InodeId> {
        self.remove(who, at, Op::Unlink, To::Owner).await
    }

    async fn rmdir(&self, who: &Caller, at: &At) -> Result<InodeId> {
        self.remove(who, at, Op::Rmdir, To::Coordinator).await
    }

    async fn link(&self, who: &Caller, from: &At, to: &At) -> Result<Entry> {
        check_place(from)?;
        check_place(to)?;
        let (from, to) = (from.clone(), to.clone());
        let mut request = LinkReq { from, to, ..LinkReq::default() };
        let entry: Entry = self.0.cluster.ask(who, Op::Link, To::Owner, &mut request).await?;
        match self.settled(entry.attr.id).await {
            Some(settled) => Ok(settled),
            None => Ok(self.learn(entry)),
        }
    }

    async fn access(&self, who: &Caller, at: &At, want: u32) -> Result<()> {
        check_place(at)?;
        let mut request = AccessReq { at: at.clone(), want, ..AccessReq::default() };
        let _: Empty = self.0.cluster.ask(who, Op::Access, To::Owner, &mut request).await?;
        Ok(())
    }

    async fn access_within(
        &self,
        who: &Caller,
        at: &At,
        want: u32,
        patience: Duration,
    ) -> Result<()> {
        let mut request = AccessReq { at: at.clone(), want, ..AccessReq::default() };
        let until = time::now() + patience;
        let _: Empty =
            self.0.cluster.ask_until(who, Op::Access, To::Owner, &mut request, until).await?;
        Ok(())
    }
}

impl Strict<'_> {
    async fn entry(&self, who: &Caller, at: &At, op: Op, full: bool) -> Result<Entry> {
        check_place(at)?;
        if at.path.is_empty()
            && let Some(entry) = self.settled(at.anchor.id).await
        {
            return Ok(entry);
        }
        loop {
            let mut request = EntryReq { at: at.clone(), full, ..EntryReq::default() };
            let asked = time::now();
            let entry: Entry = self.0.cluster.ask(who, op, To::Owner, &mut request).await?;
            if let Some(settled) = self.settled(entry.attr.id).await {
                return Ok(settled);
            }
            if !self.0.reports.is_after(entry.attr.id, asked) {
                return Ok(self.learn(entry));
            }
        }
    }

    async fn make(&self, who: &Caller, op: Op, mut request: CreateReq) -> Result<Entry> {
        check_place(&request.at)?;
        request.exclusive = true;
        request.umask = who.umask;
        self.0.cluster.ask(who, op, To::Owner, &mut request).await
    }

    async fn remove(&self, who: &Caller, at: &At, op: Op, to: To) -> Result<InodeId> {
        check_place(at)?;
        let mut request = RemoveReq { at: at.clone(), ..RemoveReq::default() };
        let removed: Removed = self.0.cluster.ask(who, op, to, &mut request).await?;
        Ok(removed.inode)
    }

    /// The entry of an inode that is dirty in this client, after it was written out.
    pub(crate) async fn settled(&self, id: u64) -> Option<Entry> {
        let inode = self.0.inodes.dirty(id)?;
        let entry = self.0.settle(&inode).await;
        self.0.inodes.sweep();
        entry
    }

    /// Tells an open inode what an answer about its name says; which is newer.
    fn learn(&self, entry: Entry) -> Entry {
        let Some(inode) = self.0.inodes.get(entry.attr.id) else { return entry };
        inode.with(|s| {
            s.answered(&entry, None);
            s.newest(entry)
        })
    }

    /// Changes attributes at the owner. Of a directory the coordinator changes what replicas hold;
    /// times that come with that are a second change, at the owner.
    async fn change_attributes(&self, who: &Caller, request: &mut SetattrReq) -> Result<Entry> {
        if !request.changes_access() || !request.sets_times() {
            return self.0.cluster.ask(who, Op::Setattr, To::Owner, request).await;
        }
        match self.0.cluster.ask(who, Op::Setattr, To::OwnerOnly, request).await {
            Err(error) if error.is(Class::UseCoordinator) => {}
            other => return other,
        }
        let mut times = SetattrReq { mode: None, uid: None, gid: None, ..request.clone() };
        let _: Entry = self.0.cluster.ask(who, Op::Setattr, To::Owner, request).await?;
        self.0.cluster.ask(who, Op::Setattr, To::Owner, &mut times).await
    }

    /// The open inode at a place. A path is looked up for it only while something is dirty.
    async fn inode_at(&self, who: &Caller, at: &At) -> Result<Option<Arc<OpenInode>>> {
        if at.path.is_empty() {
            return Ok(self.0.inodes.get(at.anchor.id));
        }
        if !self.0.inodes.any_dirty() {
            return Ok(None);
        }
        let mut request = EntryReq { at: at.clone(), ..EntryReq::default() };
        let entry: Entry = self.0.cluster.ask(who, Op::Lookup, To::Owner, &mut request).await?;
        Ok(self.0.inodes.get(entry.attr.id))
    }

    /// A file that was just opened; the owner was asked at `asked`.
    async fn opened(
        &self,
        who: &Caller,
        entry: Entry,
        flags: OpenFlags,
        opening: Opening<'_>,
        asked: Time,
    ) -> (File, Entry) {
        if flags.truncate
            && !entry.created
            && let Some(inode) = self.0.inodes.dirty(entry.attr.id)
        {
            self.0.abandon(&inode).await;
        }
        let inode = self.0.inodes.open(&entry, asked);
        drop(opening);
        let file = File::new(self.0.clone(), inode.clone(), who, flags);
        self.0.renew_if_late(&inode, asked).await;
        if !entry.created
            && self.0.reports.is_after(entry.attr.id, asked)
            && let Err(error) = self.0.refresh(who, &inode).await
        {
            // It is open, whatever its owner cannot be asked.
            tracing::debug!(id = entry.attr.id, "after an open: {error}");
        }
        (file, inode.with(|s| s.newest(entry)))
    }
}

/// The wire form of a change.
fn setattr_request(at: &At, change: &SetAttr) -> SetattrReq {
    let ns = |time| match time {
        Some(SetTime::At(stamp)) => Some(stamp),
        _ => None,
    };
    SetattrReq {
        at: at.clone(),
        mode: change.mode.map(|mode| mode & 0o7777),
        uid: change.uid,
        gid: change.gid,
        size: change.size,
        atime_ns: ns(change.atime),
        mtime_ns: ns(change.mtime),
        atime_now: change.atime == Some(SetTime::Now),
        mtime_now: change.mtime == Some(SetTime::Now),
        by_handle: change.by_handle,
        ctx: Ctx::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_set_are_a_clock_or_a_number() {
        let change = SetAttr {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(5)),
            mode: Some(0o100_644),
            ..SetAttr::default()
        };
        let request = setattr_request(&At::handle(Locator::root()), &change);
        assert!(request.atime_now && !request.mtime_now);
        assert_eq!((request.atime_ns, request.mtime_ns), (None, Some(5)));
        assert_eq!(request.mode, Some(0o644));
    }
}
