//! Syscalls.

use saker_mount::hint::{Hint, LookupIntent, Which};
use saker_types::Errno;

use super::Kernel;
use super::dcache::{InodeRef, Ref};
use super::walk::{KernelWalk, PathArg, WalkTo, after_walk};
use super::wire::{
    self, FATTR_FH, FATTR_MODE, FATTR_SIZE, FOPEN_KEEP_CACHE, FOPEN_NOFLUSH, RENAME_EXCHANGE,
    RENAME_NOREPLACE, S_IFDIR, S_IFLNK, S_IFREG, WireAttr, WireBody, op,
};

/// An open file or directory.
pub struct KernelFile {
    pub(super) dentry: Ref,
    pub(super) inode: InodeRef,
    pub(super) fh: u64,

    no_flush: bool,
}

impl KernelFile {
    /// Where walks may start.
    pub fn dir(&self) -> Ref {
        self.dentry.clone()
    }
}

/// What a new entry is made with.
enum New<'a> {
    Dir,
    Fifo,
    Symlink(&'a [u8]),
    Link(&'a InodeRef),
}

/// The kernel refuses a rename by what it holds itself, which may be old where a path does not begin at the
/// root.
pub const REFUSED: Errno = Errno(u16::MAX);

const FIRST: Which = Which::First;

fn plain(tid: u32) -> KernelWalk {
    KernelWalk { tid, which: FIRST, beside: false, reval: false }
}

/// Does a syscall again once, with LOOKUP_REVAL (`retry_estale`).
macro_rules! retry_estale {
    ($reval:ident => $call:expr) => {{
        let $reval = false;
        match $call {
            Err(Errno::ESTALE) => {
                let $reval = true;
                $call
            }
            other => other,
        }
    }};
}

impl Kernel {
    async fn find_inode(
        &self,
        path: &PathArg,
        tid: u32,
        reval: bool,
        follow: bool,
    ) -> Result<(Ref, InodeRef), Errno> {
        let walk = KernelWalk { reval, ..plain(tid) };
        let walked =
            self.walk(path, walk, WalkTo::End { intent: LookupIntent::Plain, follow }).await?;
        let dentry = walked.found.ok_or(Errno::ENOENT)?;
        let inode = self.inode_of(&dentry).ok_or(Errno::ENOENT)?;
        Ok((dentry, inode))
    }

    // ---- attributes -----------------------------------------------------------------------

    /// lstat(2).
    pub async fn stat(&self, tid: u32, path: &PathArg) -> Result<WireAttr, Errno> {
        retry_estale!(reval => self.stat_once(tid, path, reval).await)
    }

    async fn stat_once(&self, tid: u32, path: &PathArg, reval: bool) -> Result<WireAttr, Errno> {
        let (_dentry, inode) = self.find_inode(path, tid, reval, false).await?;
        let told = self.update_attributes(tid, &inode, None).await?;
        Ok(told.unwrap_or_else(|| self.told(&inode)))
    }

    /// fstat(2).
    pub async fn fstat(&self, tid: u32, open: &KernelFile) -> Result<WireAttr, Errno> {
        let told = self.update_attributes(tid, &open.inode, None).await?;
        Ok(told.unwrap_or_else(|| self.told(&open.inode)))
    }

    pub(super) fn told(&self, inode: &InodeRef) -> WireAttr {
        self.with(|all| {
            let inode = all.inode(inode.id);
            WireAttr { size: inode.size, ..inode.attr }
        })
    }

    /// `fuse_update_get_attr`: what the mount says, if it is asked, whatever the kernel makes of it.
    pub(super) async fn update_attributes(
        &self,
        tid: u32,
        inode: &InodeRef,
        fh: Option<u64>,
    ) -> Result<Option<WireAttr>, Errno> {
        let now = saker_runtime::time::now();
        let (bad, is_fresh, nodeid, kind) = self.with(|all| {
            let inode = all.inode(inode.id);
            let is_fresh = !inode.invalid && inode.valid > now;
            (inode.bad, is_fresh, inode.nodeid, inode.attr.kind())
        });
        if bad {
            return Err(Errno::EIO);
        }
        if is_fresh {
            return Ok(None);
        }
        let version = self.version();
        let flags = if fh.is_some() { wire::GETATTR_FH } else { 0 };
        let body = WireBody::default().u32(flags).u32(0).u64(fh.unwrap_or_default());
        let reply = self.ask(tid, op::GETATTR, nodeid, &body, None).await?;
        let (attr, valid_ns) = wire::attr(&reply)?;
        if attr.kind() != kind {
            self.with(|all| all.inode_mut(inode.id).bad = true);
            return Err(Errno::EIO);
        }
        self.change_attributes(inode.id, &attr, valid_ns, version, false);
        Ok(Some(attr))
    }

    /// chmod(2).
    pub async fn chmod(&self, tid: u32, path: &PathArg, mode: u32) -> Result<(), Errno> {
        retry_estale!(reval => async {
            let (_dentry, inode) = self.find_inode(path, tid, reval, true).await?;
            self.setattr(tid, &inode, FATTR_MODE, mode, 0, 0).await.map(drop)
        }.await)
    }

    /// truncate(2); what the mount says of the file then.
    pub async fn truncate(&self, tid: u32, path: &PathArg, size: u64) -> Result<WireAttr, Errno> {
        retry_estale!(reval => async {
            let (_dentry, inode) = self.find_inode(path, tid, reval, true).await?;
            match self.kind_of(&inode) {
                S_IFREG => self.setattr(tid, &inode, FATTR_SIZE, 0, size, 0).await,
                S_IFDIR => Err(Errno::EISDIR),
                _ => Err(Errno::EINVAL),
            }
        }.await)
    }

    /// ftruncate(2).
    pub async fn ftruncate(&self, tid: u32, open: &KernelFile, size: u64) -> Result<(), Errno> {
        self.setattr(tid, &open.inode, FATTR_SIZE | FATTR_FH, 0, size, open.fh).await.map(drop)
    }

    /// `fuse_do_setattr`, with the inode locked.
    async fn setattr(
        &self,
        tid: u32,
        inode: &InodeRef,
        valid: u32,
        mode: u32,
        size: u64,
        fh: u64,
    ) -> Result<WireAttr, Errno> {
        let lock = self.with(|all| all.inode(inode.id).lock.clone());
        let _exclusive = lock.exclusive().await;
        let truncates = valid & FATTR_SIZE != 0;
        let (nodeid, kind) = self.with(|all| {
            let inode = all.inode_mut(inode.id);
            inode.size_unstable |= truncates;
            (inode.nodeid, inode.attr.kind())
        });
        let body = WireBody::default().u32(valid).u32(0).u64(fh).u64(size).zeros(8 + 24 + 12);
        let body = body.u32(mode).zeros(16);
        let reply = self.ask(tid, op::SETATTR, nodeid, &body, None).await;
        let reply = reply.and_then(|reply| wire::attr(&reply));
        let (attr, valid_ns) = reply.inspect_err(|_| {
            self.with(|all| {
                let inode = all.inode_mut(inode.id);
                inode.size_unstable &= !truncates;
            });
        })?;
        if attr.kind() != kind {
            self.with(|all| all.inode_mut(inode.id).bad = true);
            return Err(Errno::EIO);
        }
        self.set_attributes(inode.id, &attr, valid_ns, truncates);
        Ok(attr)
    }

    // ---- making ---------------------------------------------------------------------------

    /// mkdir(2).
    pub async fn mkdir(&self, tid: u32, path: &PathArg) -> Result<(), Errno> {
        retry_estale!(reval => self.make(tid, path, reval, New::Dir, FIRST, None).await)
    }

    /// mknod(2) of a FIFO.
    pub async fn mkfifo(&self, tid: u32, path: &PathArg) -> Result<(), Errno> {
        retry_estale!(reval => self.make(tid, path, reval, New::Fifo, FIRST, None).await)
    }

    /// symlink(2).
    pub async fn symlink(&self, tid: u32, path: &PathArg, text: &[u8]) -> Result<(), Errno> {
        retry_estale!(reval => {
            self.make(tid, path, reval, New::Symlink(text), FIRST, None).await
        })
    }

    /// link(2).
    pub async fn link(&self, tid: u32, from: &PathArg, to: &PathArg) -> Result<(), Errno> {
        retry_estale!(reval => async {
            let (_dentry, inode) = self.find_inode(from, tid, reval, false).await?;
            if self.kind_of(&inode) == S_IFDIR {
                // `filename_create` comes first.
                let made = self.make(tid, to, reval, New::Link(&inode), Which::Second, Some(from));
                return match made.await {
                    Err(errno) => Err(errno),
                    Ok(()) => Err(Errno::EPERM),
                };
            }
            self.make(tid, to, reval, New::Link(&inode), Which::Second, Some(from)).await
        }.await)
    }

    /// `filename_create`, and what it is for. ESTALE of the last name's LOOKUP reaches the program.
    async fn make(
        &self,
        tid: u32,
        path: &PathArg,
        reval: bool,
        new: New<'_>,
        which: Which,
        first: Option<&PathArg>,
    ) -> Result<(), Errno> {
        let walk = KernelWalk { tid, which, beside: false, reval };
        let walked = self.walk(path, walk, WalkTo::Parent).await?;
        let (dir, name) = (walked.dir, walked.name);
        if name.is_empty() {
            return Err(Errno::EEXIST);
        }
        let parent = self.dir_of(&dir)?;
        let lock = self.with(|all| all.inode(parent.id).lock.clone());
        let _exclusive = lock.exclusive().await;
        let paths = match which {
            Which::First => [Some(path), None],
            Which::Second => [first, Some(path)],
        };
        let hint = Hint { beside: false, ..after_walk(LookupIntent::Create, paths, which) };
        let found = self.look_up_locked(&dir, &name, tid, Some(hint), true).await;
        let found = match found {
            // Without a hint nobody can tell that the name is to be made.
            Err(Errno::ESTALE) if self.0.hints_lost => return Err(REFUSED),
            Err(Errno::ESTALE) => return Err(LOST),
            other => other?,
        };
        if self.inode_of(&found).is_some() {
            return Err(Errno::EEXIST);
        }
        if self.with(|all| all.inode(parent.id).dead) {
            return Err(Errno::ENOENT);
        }
        if let New::Link(inode) = new
            && self.kind_of(inode) == S_IFDIR
        {
            return Err(Errno::EPERM);
        }
        let (opcode, body, kind) = match new {
            New::Dir => {
                (op::MKDIR, WireBody::default().u32(0o755).u32(0).name(&name), Some(S_IFDIR))
            }
            New::Fifo => {
                let mode = libc::S_IFIFO | 0o644;
                let body = WireBody::default().u32(mode).u32(0).u32(0).u32(0).name(&name);
                (op::MKNOD, body, Some(libc::S_IFIFO))
            }
            New::Symlink(text) => {
                (op::SYMLINK, WireBody::default().name(&name).name(text), Some(S_IFLNK))
            }
            New::Link(inode) => {
                let body = WireBody::default().u64(self.node_of(inode)).name(&name);
                (op::LINK, body, None)
            }
        };
        // The dentry is used until it is replaced.
        self.new_entry(tid, (&dir, &parent, &name, &found), opcode, &body, kind).await
    }

    /// `create_new_entry`.
    async fn new_entry(
        &self,
        tid: u32,
        (dir, parent, name, dentry): (&Ref, &InodeRef, &[u8], &Ref),
        opcode: u32,
        body: &WireBody,
        kind: Option<u32>,
    ) -> Result<(), Errno> {
        let version = self.version();
        let reply = self.ask(tid, opcode, self.node_of(parent), body, None).await;
        let reply = reply.inspect_err(|errno| {
            if *errno == Errno::EEXIST {
                self.drop_entry(dentry);
            }
        })?;
        let entry = wire::entry(&reply)?;
        if entry.nodeid <= wire::ROOT_NODE || kind.is_some_and(|kind| kind != entry.attr.kind()) {
            return Err(Errno::EIO);
        }
        let inode = self.iget(&entry, version);
        self.delete_dentry(dentry);
        self.splice(dir, name, Some(&inode), entry.entry_valid_ns)?;
        self.dir_changed(parent);
        Ok(())
    }

    /// `fuse_create_open`: the dentry of what is made; its handle is in [`Kernel::open`]'s hands.
    pub(super) async fn create(
        &self,
        dir: &Ref,
        name: &[u8],
        tid: u32,
        flags: i32,
    ) -> Result<Ref, Errno> {
        let version = self.version();
        let parent = self.dir_of(dir)?;
        let passed = (flags & !libc::O_NOCTTY) as u32;
        let body = WireBody::default().u32(passed).u32(S_IFREG | 0o644).u32(0).u32(0).name(name);
        let reply = self.ask(tid, op::CREATE, self.node_of(&parent), &body, None).await?;
        let entry = wire::entry(&reply)?;
        let (fh, open_flags) = wire::open(&reply[wire::ENTRY_BYTES..])?;
        if entry.nodeid <= wire::ROOT_NODE || entry.attr.kind() != S_IFREG {
            return Err(Errno::EIO);
        }
        let inode = self.iget(&entry, version);
        if let Some(negative) = self.find(dir.id, name) {
            self.delete_dentry(&negative);
        }
        let dentry = self.splice(dir, name, Some(&inode), entry.entry_valid_ns)?;
        self.dir_changed(&parent);
        self.0.created.borrow_mut().insert(tid, (dentry.id, fh, open_flags));
        Ok(dentry)
    }

    // ---- removing -------------------------------------------------------------------------

    /// unlink(2), or rmdir(2).
    pub async fn remove(&self, tid: u32, path: &PathArg, is_dir: bool) -> Result<(), Errno> {
        retry_estale!(reval => self.remove_once(tid, path, is_dir, reval).await)
    }

    async fn remove_once(
        &self,
        tid: u32,
        path: &PathArg,
        is_dir: bool,
        reval: bool,
    ) -> Result<(), Errno> {
        let walked = self.walk(path, KernelWalk { reval, ..plain(tid) }, WalkTo::Parent).await?;
        let (dir, name) = (walked.dir, walked.name);
        if name.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        let parent = self.dir_of(&dir)?;
        let lock = self.with(|all| all.inode(parent.id).lock.clone());
        let _exclusive = lock.exclusive().await;
        let hint = after_walk(LookupIntent::Remove { dir: is_dir }, [Some(path), None], FIRST);
        let dentry = self.look_up_locked(&dir, &name, tid, Some(hint), reval).await?;
        let inode = self.inode_of(&dentry).ok_or(Errno::ENOENT)?;
        match (is_dir, self.kind_of(&inode) == S_IFDIR) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            _ => {}
        }
        let own = self.with(|all| all.inode(inode.id).lock.clone());
        let _own = own.exclusive().await;
        let opcode = if is_dir { op::RMDIR } else { op::UNLINK };
        if is_dir {
            self.prune_below(dentry.id);
        }
        let node = self.node_of(&parent);
        let done = self.ask(tid, opcode, node, &WireBody::default().name(&name), None).await;
        match done {
            Ok(_) => {
                self.dir_changed(&parent);
                self.unlinked(&dentry);
            }
            Err(errno) => {
                if errno == Errno::ENOENT {
                    self.drop_entry(&dentry);
                }
                return Err(errno);
            }
        }
        if is_dir {
            self.with(|all| all.inode_mut(inode.id).dead = true);
        }
        self.delete_dentry(&dentry);
        Ok(())
    }

    // ---- renaming -------------------------------------------------------------------------

    /// renameat2(2).
    pub async fn rename(
        &self,
        tid: u32,
        from: &PathArg,
        to: &PathArg,
        flags: u32,
    ) -> Result<(), Errno> {
        let renamed = retry_estale!(reval => self.rename_once(tid, from, to, flags, reval).await);
        // Where an open directory is that others have moved below one that this machine does not know,
        // nobody can tell (docs/decisions/0039); nor without a hint that a walk is the second one.
        let start = |path: &PathArg| path.start.as_ref().map(|dir| dir.id);
        match renamed {
            Err(Errno::ESTALE) if start(from) != start(to) || self.0.hints_lost => Err(REFUSED),
            other => other,
        }
    }

    async fn rename_once(
        &self,
        tid: u32,
        from: &PathArg,
        to: &PathArg,
        flags: u32,
        reval: bool,
    ) -> Result<(), Errno> {
        let beside = |other: &PathArg| other.names.len() > 1;
        let walk = |which, other| KernelWalk { tid, which, beside: beside(other), reval };
        let old = self.walk(from, walk(FIRST, to), WalkTo::Parent).await?;
        let new = self.walk(to, walk(Which::Second, from), WalkTo::Parent).await?;
        if old.name.is_empty() || new.name.is_empty() {
            return Err(Errno::EBUSY);
        }
        let (old_dir, new_dir) = (self.dir_of(&old.dir)?, self.dir_of(&new.dir)?);
        let (_locks, trap) = self.lock_rename(&old.dir, &new.dir).await?;
        let exchange = flags & RENAME_EXCHANGE != 0;
        let ends_alike = old.name == new.name;
        let alone = [from, to].map(|path| path.names.len() == 1);
        // What BPF can tell; see `after_walk` of the mount's `hint/slots.rs`.
        let hint = |which, intent| {
            let hint = after_walk(intent, [Some(from), Some(to)], which);
            match ends_alike {
                true if alone[0] != alone[1] => None,
                true => Some(Hint {
                    path: None,
                    step: saker_mount::hint::PathStep::Last(LookupIntent::RenameSource),
                    first: alone[0],
                    beside: !alone[1],
                    ..hint
                }),
                false => Some(hint),
            }
        };
        let source = hint(FIRST, LookupIntent::RenameSource);
        let target = match exchange {
            true => LookupIntent::RenameSource,
            false => LookupIntent::RenameTarget,
        };
        let target = hint(Which::Second, target);
        let old_dentry = self.look_up_locked(&old.dir, &old.name, tid, source, reval).await?;
        let source = self.inode_of(&old_dentry).ok_or(Errno::ENOENT)?;
        let force = reval || !exchange;
        let new_dentry = self.look_up_locked(&new.dir, &new.name, tid, target, force).await?;
        let replaced = self.inode_of(&new_dentry);
        if flags & RENAME_NOREPLACE != 0 && replaced.is_some() {
            return Err(Errno::EEXIST);
        }
        if exchange && replaced.is_none() {
            return Err(Errno::ENOENT);
        }
        let by_dcache = from.start.is_some() || to.start.is_some();
        if trap.is_some() && trap == Some(old_dentry.id) {
            return Err(if by_dcache { REFUSED } else { Errno::EINVAL });
        }
        if trap.is_some() && trap == Some(new_dentry.id) {
            return Err(match (by_dcache, exchange) {
                (true, _) => REFUSED,
                (false, true) => Errno::EINVAL,
                (false, false) => Errno::ENOTEMPTY,
            });
        }
        if replaced.as_ref().is_some_and(|inode| inode.id == source.id) {
            return Ok(());
        }
        let is_dir = |inode: &InodeRef| self.kind_of(inode) == S_IFDIR;
        if self.with(|all| all.inode(new_dir.id).dead) {
            return Err(Errno::ENOENT);
        }
        if let (Some(replaced), false) = (&replaced, exchange) {
            match (is_dir(&source), is_dir(replaced)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                _ => {}
            }
        }
        let body = WireBody::default().u64(self.node_of(&new_dir)).u32(flags).u32(0);
        let body = body.name(&old.name).name(&new.name);
        let done = self.ask(tid, op::RENAME2, self.node_of(&old_dir), &body, None).await;
        if let Err(errno) = done {
            if errno == Errno::ENOENT {
                self.drop_entry(&old_dentry);
                if replaced.is_some() {
                    self.drop_entry(&new_dentry);
                }
            }
            return Err(errno);
        }
        self.dir_changed(&old_dir);
        self.dir_changed(&new_dir);
        if exchange {
            self.exchange_dentries(old_dentry.id, new_dentry.id);
            return Ok(());
        }
        if let Some(replaced) = &replaced {
            self.unlinked(&new_dentry);
            if is_dir(replaced) {
                self.prune_below(new_dentry.id);
                self.with(|all| all.inode_mut(replaced.id).dead = true);
            }
        }
        self.delete_dentry(&new_dentry);
        self.rename_dentry(old_dentry.id, new.dir.id, &new.name);
        Ok(())
    }

    /// `lock_rename`: the locks, and the dentry that may not be renamed.
    async fn lock_rename(
        &self,
        old: &Ref,
        new: &Ref,
    ) -> Result<(Vec<super::lock::Guard>, Option<usize>), Errno> {
        let lock = |dir: &Ref| self.with_inode(dir, |inode| inode.lock.clone());
        if old.id == new.id {
            return Ok((vec![lock(old)?.exclusive().await], None));
        }
        let renames = self.0.renames.exclusive().await;
        let (first, second, trap) = if self.is_ancestor(new.id, old.id) {
            (new, old, self.child_towards(new.id, old.id))
        } else if self.is_ancestor(old.id, new.id) {
            (old, new, self.child_towards(old.id, new.id))
        } else {
            (old, new, None)
        };
        let (first, second) = (lock(first)?.exclusive().await, lock(second)?.exclusive().await);
        Ok((vec![renames, first, second], trap))
    }

    // ---- open files -----------------------------------------------------------------------

    /// open(2) of a file or, with O_DIRECTORY, of a directory.
    pub async fn open(&self, tid: u32, path: &PathArg, flags: i32) -> Result<KernelFile, Errno> {
        retry_estale!(reval => self.open_once(tid, path, flags, reval).await)
    }

    async fn open_once(
        &self,
        tid: u32,
        path: &PathArg,
        flags: i32,
        reval: bool,
    ) -> Result<KernelFile, Errno> {
        let walk = KernelWalk { reval, ..plain(tid) };
        self.0.created.borrow_mut().remove(&tid);
        let follow = flags & libc::O_NOFOLLOW == 0;
        let to = WalkTo::End { intent: LookupIntent::Open { flags }, follow };
        let walked = self.walk_once(path, walk, to).await?;
        let dentry = walked.found.ok_or(Errno::ENOENT)?;
        let inode = self.inode_of(&dentry).ok_or(Errno::ENOENT)?;
        let created = self.0.created.borrow_mut().remove(&tid);
        if let Some((_, fh, open_flags)) = created {
            let no_flush = open_flags & FOPEN_NOFLUSH != 0;
            return Ok(KernelFile { dentry, inode, fh, no_flush });
        }
        let kind = self.kind_of(&inode);
        if flags & libc::O_CREAT != 0 {
            if flags & libc::O_EXCL != 0 {
                return Err(Errno::EEXIST);
            }
            if kind == S_IFDIR {
                return Err(Errno::EISDIR);
            }
        }
        if flags & libc::O_DIRECTORY != 0 && kind != S_IFDIR {
            return Err(Errno::ENOTDIR);
        }
        if kind == S_IFLNK {
            return Err(Errno::ELOOP);
        }
        if kind == S_IFDIR && flags & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(Errno::EISDIR);
        }
        if kind != S_IFREG && kind != S_IFDIR {
            // A FIFO is the kernel's own.
            return Ok(KernelFile { dentry, inode, fh: NO_HANDLE, no_flush: true });
        }
        let opcode = if kind == S_IFDIR { op::OPENDIR } else { op::OPEN };
        let passed = (flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY)) as u32;
        let body = WireBody::default().u32(passed).u32(0);
        let reply = self.ask(tid, opcode, self.node_of(&inode), &body, None).await?;
        let (fh, open_flags) = wire::open(&reply)?;
        if kind == S_IFREG {
            let truncates = flags & libc::O_TRUNC != 0;
            let next = self.next_version();
            self.with(|all| {
                let inode = all.inode_mut(inode.id);
                if truncates {
                    (inode.version, inode.size, inode.invalid) = (next, 0, true);
                    inode.drop_pages_from(0);
                } else if open_flags & FOPEN_KEEP_CACHE == 0 {
                    inode.drop_pages_from(0);
                }
            });
        }
        let no_flush = open_flags & FOPEN_NOFLUSH != 0;
        Ok(KernelFile { dentry, inode, fh, no_flush })
    }

    /// close(2) of the last descriptor.
    pub async fn close(&self, tid: u32, open: KernelFile) -> Result<(), Errno> {
        if open.fh == NO_HANDLE {
            return Ok(());
        }
        let node = self.node_of(&open.inode);
        if self.kind_of(&open.inode) == S_IFDIR {
            self.tell(op::RELEASEDIR, node, WireBody::default().u64(open.fh).zeros(16));
            return Ok(());
        }
        let flushed = match open.no_flush {
            true => Ok(Default::default()),
            false => {
                let body = WireBody::default().u64(open.fh).zeros(16);
                self.ask(tid, op::FLUSH, node, &body, None).await
            }
        };
        self.tell(op::RELEASE, node, WireBody::default().u64(open.fh).zeros(16));
        flushed.map(drop)
    }

    /// fsync(2).
    pub async fn fsync(&self, tid: u32, open: &KernelFile) -> Result<(), Errno> {
        let body = WireBody::default().u64(open.fh).zeros(8);
        self.ask(tid, op::FSYNC, self.node_of(&open.inode), &body, None).await.map(drop)
    }

    /// All names of an open directory, and their inodes' numbers.
    pub async fn list(
        &self,
        tid: u32,
        open: &KernelFile,
        plus: bool,
    ) -> Result<Vec<(Vec<u8>, u64)>, Errno> {
        let (mut all, mut offset) = (Vec::new(), 0);
        let lock = self.with(|all| all.inode(open.inode.id).lock.clone());
        loop {
            let _shared = lock.shared().await;
            let version = self.version();
            let opcode = if plus { op::READDIRPLUS } else { op::READDIR };
            let body = WireBody::default().u64(open.fh).u64(offset).u32(4096).zeros(20);
            let node = self.node_of(&open.inode);
            let reply = self.ask(tid, opcode, node, &body, None).await?;
            let dirents = wire::dirents(&reply, plus)?;
            if dirents.is_empty() {
                return Ok(all);
            }
            for dirent in dirents {
                offset = dirent.off;
                if dirent.name == b"." || dirent.name == b".." {
                    continue;
                }
                if let Some(entry) = dirent.entry {
                    self.link_listed(&open.dentry, &dirent.name, &entry, version);
                }
                all.push((dirent.name, dirent.ino));
            }
        }
    }

    /// `fuse_direntplus_link`.
    fn link_listed(&self, dir: &Ref, name: &[u8], entry: &wire::WireEntry, version: u64) {
        if let Some(dentry) = self.find(dir.id, name)
            && let Some(inode) = self.inode_of(&dentry)
        {
            let (node, kind) = (self.node_of(&inode), self.kind_of(&inode));
            if node == entry.nodeid && kind == entry.attr.kind() {
                self.count_lookup(&inode);
                let valid_ns = entry.attr_valid_ns;
                self.change_attributes(inode.id, &entry.attr, valid_ns, version, false);
                self.keep_entry(dentry.id, entry.entry_valid_ns);
                return;
            }
            self.invalidate(&dentry);
        }
        let inode = self.iget(entry, version);
        // What cannot be put there is forgotten.
        let _ = self.splice(dir, name, Some(&inode), entry.entry_valid_ns);
    }
}

/// What the kernel does not ask a mount about.
pub(super) const NO_HANDLE: u64 = u64::MAX;
/// ESTALE that no retry follows.
pub const LOST: Errno = Errno(u16::MAX - 1);
