//! Operations on names and attributes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use saker_runtime::time::{self, Time};
use saker_types::wire::*;
use saker_types::{Class, Errno, Error, FileKind, InodeId, Locator, ROOT, Result, limits};

use crate::core::Core;
use crate::data::file::File;
use crate::data::holds::Opening;
use crate::data::open_inode::{OpenInode, inline_of};
use crate::net::request::To;
use crate::{Caller, Fs, OpenFlags, SetAttr, SetTime};

/// Times that the directories above a directory's new place are walked.
const WALKS_MAX: u32 = 20;

/// Refuses places that no server would take; the server judges the rest.
pub(crate) fn check_place(at: &At) -> Result<()> {
    if let Some(long) = at.path.iter().position(|name| name.len() > limits::NAME_BYTES_MAX) {
        return Err(Error::at(Errno::ENAMETOOLONG, long));
    }
    if at.path.len() > limits::COMPONENTS_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    Ok(())
}

impl Fs {
    fn core(&self) -> &Arc<Core> {
        &self.0
    }

    /// What is at a place; of a directory without its totals.
    pub async fn lookup(&self, who: &Caller, at: &At) -> Result<Entry> {
        self.entry(who, at, Op::Lookup, false).await
    }

    /// Full attributes: of a directory link count and times as of all its entries, of a file
    /// open in this client with everything that was written through it.
    pub async fn getattr(&self, who: &Caller, at: &At) -> Result<Entry> {
        self.entry(who, at, Op::Getattr, true).await
    }

    /// [`Fs::getattr`] of a directory, for who does not wait longer than `patience`.
    ///
    /// # Errors
    /// ETIMEDOUT then.
    pub async fn getattr_within(&self, who: &Caller, at: &At, patience: Duration) -> Result<Entry> {
        let mut request = EntryReq { at: at.clone(), full: true, ..EntryReq::default() };
        let until = time::now() + patience;
        let core = self.core();
        let entry = core.ask_until(who, Op::Getattr, To::Owner, &mut request, until).await?;
        Ok(core.learn(entry))
    }

    async fn entry(&self, who: &Caller, at: &At, op: Op, full: bool) -> Result<Entry> {
        check_place(at)?;
        if at.path.is_empty()
            && let Some(entry) = self.core().settled(at.anchor.id).await
        {
            return Ok(entry);
        }
        loop {
            let mut request = EntryReq { at: at.clone(), full, ..EntryReq::default() };
            let asked = time::now();
            let entry: Entry = self.core().ask(who, op, To::Owner, &mut request).await?;
            if let Some(settled) = self.core().settled(entry.attr.id).await {
                return Ok(settled);
            }
            if !self.core().reports.is_after(entry.attr.id, asked) {
                return Ok(self.core().learn(entry));
            }
        }
    }

    /// Changes attributes. What was written through this client comes before it.
    pub async fn setattr(&self, who: &Caller, at: &At, change: &SetAttr) -> Result<Entry> {
        check_place(at)?;
        let mut request = setattr_request(at, change);
        let inode = self.core().inode_at(who, at).await?;
        let Some(inode) = inode else {
            let entry = self.core().setattr(who, &mut request).await?;
            return Ok(self.core().learn(entry));
        };
        // Nothing may be written between the flush and the change.
        let mut writer = inode.writer.lock().await;
        if inode.is_dirty() {
            self.core().write_back(&inode, &mut writer).await;
        }
        let entry: Entry = self.core().ask(who, Op::Setattr, To::Owner, &mut request).await?;
        Ok(inode.with(|s| {
            let (inline, cuts) = (inline_of(&entry), s.cuts);
            s.adopt(&entry, inline);
            // Who cuts it knows so.
            s.cuts = cuts;
            s.newest(entry)
        }))
    }

    /// Makes a regular file, or opens the one that is there; `mode` holds permission bits.
    pub async fn create(
        &self,
        who: &Caller,
        at: &At,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(File, Entry)> {
        self.create_or(who, at, mode, flags, false).await
    }

    /// The same, for who looks first at what others have put in a sticky directory.
    ///
    /// # Errors
    /// ESTALE if it is there, and belongs neither to `who` nor to the directory's owner.
    pub async fn create_warily(
        &self,
        who: &Caller,
        at: &At,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(File, Entry)> {
        self.create_or(who, at, mode, flags, true).await
    }

    async fn create_or(
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
        let (opening, asked) = (self.core().inodes.holds.begin(), time::now());
        request.hold = opening.hold();
        let entry: Entry = self.core().ask(who, Op::Create, To::Owner, &mut request).await?;
        Ok(self.core().opened(who, entry, flags, opening, asked).await)
    }

    /// Makes a regular file without a name in a directory and opens it (O_TMPFILE). It ends with its
    /// last handle, unless [`Fs::link`] gives it a name; `flags.exclusive` forbids that.
    pub async fn tmpfile(
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
        let (opening, asked) = (self.core().inodes.holds.begin(), time::now());
        request.hold = opening.hold();
        let entry: Entry = self.core().ask(who, Op::Tmpfile, To::Owner, &mut request).await?;
        Ok(self.core().opened(who, entry, flags, opening, asked).await)
    }

    /// Opens what is there; `at` may be a handle (empty path).
    pub async fn open(&self, who: &Caller, at: &At, flags: OpenFlags) -> Result<(File, Entry)> {
        check_place(at)?;
        let mut request = OpenReq {
            at: at.clone(),
            access: flags.access(),
            truncate: flags.truncate,
            ..OpenReq::default()
        };
        let (opening, asked) = (self.core().inodes.holds.begin(), time::now());
        request.hold = opening.hold();
        let entry: Entry = self.core().ask(who, Op::Open, To::Owner, &mut request).await?;
        Ok(self.core().opened(who, entry, flags, opening, asked).await)
    }

    /// Makes a directory; `mode` holds permission bits.
    pub async fn mkdir(&self, who: &Caller, at: &At, mode: u32) -> Result<Entry> {
        let mode = FileKind::Directory.bits() | (mode & 0o7777);
        self.make(who, Op::Mkdir, CreateReq { at: at.clone(), mode, ..CreateReq::default() }).await
    }

    /// Makes a FIFO, socket, device, or a regular file without opening it; `mode` holds type and
    /// permission bits.
    pub async fn mknod(&self, who: &Caller, at: &At, mode: u32, rdev: u32) -> Result<Entry> {
        let request = CreateReq { at: at.clone(), mode, rdev, ..CreateReq::default() };
        self.make(who, Op::Mknod, request).await
    }

    /// Makes a symbolic link.
    pub async fn symlink(&self, who: &Caller, at: &At, target: &[u8]) -> Result<Entry> {
        if target.len() >= limits::PATH_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let mode = FileKind::Symlink.bits() | 0o777;
        let target = Bytes::copy_from_slice(target);
        let request = CreateReq { at: at.clone(), mode, target, ..CreateReq::default() };
        self.make(who, Op::Symlink, request).await
    }

    async fn make(&self, who: &Caller, op: Op, mut request: CreateReq) -> Result<Entry> {
        check_place(&request.at)?;
        request.exclusive = true;
        request.umask = who.umask;
        self.core().ask(who, op, To::Owner, &mut request).await
    }

    /// Target of a symbolic link.
    pub async fn readlink(&self, who: &Caller, at: &At) -> Result<Bytes> {
        check_place(at)?;
        let mut request = EntryReq { at: at.clone(), ..EntryReq::default() };
        let entry: Entry = self.core().ask(who, Op::Readlink, To::Owner, &mut request).await?;
        Ok(entry.inline)
    }

    /// Removes a name of anything but a directory. Returns what it led to.
    pub async fn unlink(&self, who: &Caller, at: &At) -> Result<InodeId> {
        self.remove(who, at, Op::Unlink, To::Owner).await
    }

    /// Removes an empty directory, and returns which.
    pub async fn rmdir(&self, who: &Caller, at: &At) -> Result<InodeId> {
        self.remove(who, at, Op::Rmdir, To::Coordinator).await
    }

    async fn remove(&self, who: &Caller, at: &At, op: Op, to: To) -> Result<InodeId> {
        check_place(at)?;
        let mut request = RemoveReq { at: at.clone(), ..RemoveReq::default() };
        let removed: Removed = self.core().ask(who, op, to, &mut request).await?;
        Ok(removed.inode)
    }

    /// rename(2); with `no_replace` it fails if the target is there. Returns the new place, and what
    /// was replaced.
    ///
    /// `to_chain`: the directories from below the root to the new parent inclusive, as the
    /// caller knows them. It matters only when a directory moves, and may be empty when
    /// `to` starts at the root: then it is looked up if it is needed.
    pub async fn rename(
        &self,
        who: &Caller,
        from: &At,
        to: &At,
        no_replace: bool,
        to_chain: &[Locator],
    ) -> Result<RenameReply> {
        let flags = if no_replace { rename_flags::NOREPLACE } else { 0 };
        self.core().rename(who, from, to, flags, [&[], to_chain]).await
    }

    /// renameat2(2) with RENAME_EXCHANGE: two names of any kinds change places. Returns where the
    /// inodes are now. `chains`: as in [`Fs::rename`], of both parents.
    pub async fn exchange(
        &self,
        who: &Caller,
        from: &At,
        to: &At,
        chains: [&[Locator]; 2],
    ) -> Result<[Locator; 2]> {
        let reply = self.core().rename(who, from, to, rename_flags::EXCHANGE, chains).await?;
        Ok([reply.loc, reply.other.unwrap_or_default()])
    }

    /// Links `from` (a name or an open handle's locator) as `to`.
    pub async fn link(&self, who: &Caller, from: &At, to: &At) -> Result<Entry> {
        check_place(from)?;
        check_place(to)?;
        let (from, to) = (from.clone(), to.clone());
        let mut request = LinkReq { from, to, ..LinkReq::default() };
        let entry: Entry = self.core().ask(who, Op::Link, To::Owner, &mut request).await?;
        match self.core().settled(entry.attr.id).await {
            Some(settled) => Ok(settled),
            None => Ok(self.core().learn(entry)),
        }
    }

    /// access(2): 4 read, 2 write, 1 execute, 0 exists.
    pub async fn access(&self, who: &Caller, at: &At, want: u32) -> Result<()> {
        check_place(at)?;
        let mut request = AccessReq { at: at.clone(), want, ..AccessReq::default() };
        let _: Empty = self.core().ask(who, Op::Access, To::Owner, &mut request).await?;
        Ok(())
    }

    /// [`Fs::access`], for who does not wait longer than `patience`.
    ///
    /// # Errors
    /// ETIMEDOUT then.
    pub async fn access_within(
        &self,
        who: &Caller,
        at: &At,
        want: u32,
        patience: Duration,
    ) -> Result<()> {
        let mut request = AccessReq { at: at.clone(), want, ..AccessReq::default() };
        let until = time::now() + patience;
        let _: Empty =
            self.core().ask_until(who, Op::Access, To::Owner, &mut request, until).await?;
        Ok(())
    }
}

impl Core {
    /// The entry of an inode that is dirty in this client, after it was written out.
    pub(crate) async fn settled(self: &Arc<Core>, id: u64) -> Option<Entry> {
        let inode = self.inodes.dirty(id)?;
        let entry = self.settle(&inode).await;
        self.inodes.sweep();
        entry
    }

    /// Tells an open inode what an answer about its name says; which is newer.
    fn learn(&self, entry: Entry) -> Entry {
        let Some(inode) = self.inodes.get(entry.attr.id) else { return entry };
        inode.with(|s| {
            s.asked_at = time::now();
            s.adopt(&entry, None);
            s.newest(entry)
        })
    }

    /// Changes attributes at the owner. Of a directory the coordinator changes what replicas hold;
    /// times that come with that are a second change, at the owner.
    async fn setattr(&self, who: &Caller, request: &mut SetattrReq) -> Result<Entry> {
        if !request.changes_access() || !request.sets_times() {
            return self.ask(who, Op::Setattr, To::Owner, request).await;
        }
        match self.ask(who, Op::Setattr, To::OwnerOnly, request).await {
            Err(error) if error.is(Class::UseCoordinator) => {}
            other => return other,
        }
        let mut times = SetattrReq { mode: None, uid: None, gid: None, ..request.clone() };
        let _: Entry = self.ask(who, Op::Setattr, To::Owner, request).await?;
        self.ask(who, Op::Setattr, To::Owner, &mut times).await
    }

    /// The open inode at a place. A path is looked up for it only while something is dirty.
    async fn inode_at(self: &Arc<Core>, who: &Caller, at: &At) -> Result<Option<Arc<OpenInode>>> {
        if at.path.is_empty() {
            return Ok(self.inodes.get(at.anchor.id));
        }
        if !self.inodes.any_dirty() {
            return Ok(None);
        }
        let mut request = EntryReq { at: at.clone(), ..EntryReq::default() };
        let entry: Entry = self.ask(who, Op::Lookup, To::Owner, &mut request).await?;
        Ok(self.inodes.get(entry.attr.id))
    }

    /// A file that was just opened; the owner was asked at `asked`.
    async fn opened(
        self: &Arc<Core>,
        who: &Caller,
        entry: Entry,
        flags: OpenFlags,
        opening: Opening<'_>,
        asked: Time,
    ) -> (File, Entry) {
        if flags.truncate
            && !entry.created
            && let Some(inode) = self.inodes.dirty(entry.attr.id)
        {
            self.abandon(&inode).await;
        }
        let inode = self.inodes.open(&entry, asked);
        drop(opening);
        let file = File::new(self.clone(), inode.clone(), who, flags);
        self.renew_if_late(&inode, asked).await;
        if !entry.created
            && self.reports.is_after(entry.attr.id, asked)
            && let Err(error) = self.refresh(who, &inode).await
        {
            // It is open, whatever its owner cannot be asked.
            tracing::debug!(id = entry.attr.id, "after an open: {error}");
        }
        (file, inode.with(|s| s.newest(entry)))
    }

    /// Renames, and tells open inodes where they are.
    async fn rename(
        &self,
        who: &Caller,
        from: &At,
        to: &At,
        flags: u32,
        [from_chain, to_chain]: [&[Locator]; 2],
    ) -> Result<RenameReply> {
        check_place(from)?;
        check_place(to)?;
        let mut request = RenameReq {
            from: from.clone(),
            to: to.clone(),
            flags,
            to_chain: to_chain.to_vec(),
            from_chain: from_chain.to_vec(),
            ..RenameReq::default()
        };
        let reply = self.ask_rename(who, &mut request).await?;
        for loc in std::iter::once(&reply.loc).chain(&reply.other) {
            if let Some(inode) = self.inodes.get(loc.id) {
                inode.moved_to(loc);
            }
        }
        Ok(reply)
    }

    /// Renames at the owner, or, when a directory moves, at the coordinator.
    async fn ask_rename(&self, who: &Caller, request: &mut RenameReq) -> Result<RenameReply> {
        let is_unknown = |at: &At, chain: &[Locator]| {
            chain.is_empty() && at.anchor.id == ROOT && at.path.len() > 1
        };
        let walks_from = request.flags == rename_flags::EXCHANGE
            && is_unknown(&request.from, &request.from_chain);
        let walks_to = is_unknown(&request.to, &request.to_chain);
        if !walks_from && !walks_to {
            return self.ask(who, Op::Rename, To::Owner, request).await;
        }
        // Most renames move files: the chain is looked up once it is needed.
        let first = self.ask(who, Op::Rename, To::OwnerOnly, request).await;
        match first {
            Err(error) if error.is(Class::UseCoordinator) => {}
            other => return other,
        }
        for _ in 0..WALKS_MAX {
            if walks_from {
                request.from_chain = self.chain(who, &request.from).await?;
            }
            if walks_to {
                request.to_chain = self.chain(who, &request.to).await?;
            }
            match self.ask(who, Op::Rename, To::Owner, request).await {
                // A directory on the way was moved meanwhile.
                Err(error) if error.errno() == Errno::ESTALE && !error.is(Class::Elsewhere) => {}
                other => return other,
            }
        }
        Err(Error::new(Errno::ESTALE).with_text("the path changes without a pause"))
    }

    /// The directories on the way to a name, from below the root to its parent.
    async fn chain(&self, who: &Caller, at: &At) -> Result<Vec<Locator>> {
        let lookups = (1..at.path.len()).map(|len| async move {
            let at = At::below(at.anchor.clone(), at.path[..len].to_vec());
            let mut request = EntryReq { at, ..EntryReq::default() };
            let entry: Entry = self.ask(who, Op::Lookup, To::Owner, &mut request).await?;
            Ok(entry.loc)
        });
        crate::core::all(lookups).await
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
    fn only_lengths_are_judged_here() {
        let long = vec![b'x'; limits::NAME_BYTES_MAX + 1];
        let mut at = At::child(Locator::root(), b"ok");
        assert!(check_place(&at).is_ok());
        at.path.push(long.into());
        let error = check_place(&at).unwrap_err();
        assert_eq!((error.errno(), error.component), (Errno::ENAMETOOLONG, Some(1)));
        at.path = vec![Bytes::from_static(b"x"); limits::COMPONENTS_MAX + 1];
        assert_eq!(check_place(&at).unwrap_err().errno(), Errno::ENAMETOOLONG);
    }

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
