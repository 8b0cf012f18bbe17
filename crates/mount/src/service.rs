//! What serves a mounted Saker file system: what its operations share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use saker_client::{Caller, Fs};
use saker_fuse::abi::{EntryOut, LinkIn, Opcode};
use saker_fuse::{Dispatch, Reply, Request, TransportInUse};
use saker_runtime::sim::mutation;
use saker_runtime::telemetry::{Counter, OpCounters};
use saker_types::wire::{At, Entry};
use saker_types::{Errno, Error, Locator, Result, check_name};

use crate::changes::Changes;
use crate::handles::Handles;
use crate::names::hint::{Hints, Which};
use crate::names::nodes::{FuseNodeId, Named, NodeIdentity, Nodes};
use crate::names::threads::Threads;
use crate::names::walk::Walk;
use crate::notify::Notifier;
use crate::ops::{OpenDir, OpenFile, Waiters};
use crate::options::MountOptions;
use crate::protect::ProtectedLinks;
use crate::root::Root;
use crate::{attr, errno, ops};

/// Everything a mount keeps: what the kernel holds and has open. All else is asked of the client
/// each time. It answers requests ([`Dispatch`]), whoever brings them.
pub struct MountService {
    pub(crate) fs: Fs,
    pub(crate) nodes: Nodes,
    pub(crate) files: Handles<Arc<OpenFile>>,
    pub(crate) dirs: Handles<Arc<OpenDir>>,
    pub(crate) hints: Option<Arc<dyn Hints>>,
    pub(crate) threads: Threads,
    pub(crate) changes: Changes,
    pub(crate) notifier: Notifier,
    /// For attributes alone, which wait for no page.
    pub(crate) attr_notifier: Notifier,
    pub(crate) waiters: Waiters,
    /// Somebody has used fcntl(2) locks here, so that every close must be heard of.
    pub(crate) locked: AtomicBool,
    pub(crate) entry_timeout: Duration,
    pub(crate) attr_timeout: Duration,
    pub(crate) read_only: bool,
    /// `None`: whoever asks about the root waits for its servers.
    pub(crate) root: Option<Root>,
    /// LOOKUPs that no server was asked for.
    pub(crate) local_lookups: Counter,
    /// `fs.protected_hardlinks` as it was when this was mounted.
    pub(crate) protects_links: bool,
    /// Links that nobody may follow.
    pub(crate) links: ProtectedLinks,
    pub(crate) requests: OpCounters,
}

impl MountService {
    /// A mount of `fs`. Without `hints` each LOOKUP goes to a server. Of the notifiers the second is
    /// for attributes alone, which wait for no page.
    pub fn new(
        fs: Fs,
        hints: Option<Arc<dyn Hints>>,
        [notifier, attr_notifier]: [Notifier; 2],
        options: &MountOptions,
    ) -> MountService {
        let metrics = fs.metrics();
        let held = metrics.gauge("saker_fuse_inodes", "Inodes that the kernel holds");
        let handles = metrics.gauge("saker_fuse_handles", "Open files and directories");
        let local_lookups = metrics.counter(
            "saker_fuse_lookups_local_total",
            "LOOKUPs of the kernel that were answered without asking a server",
        );
        let requests = metrics.op_counters(
            "saker_fuse_requests_total",
            "Requests of the kernel to the mount",
            &[],
            "op",
            Opcode::TABLE,
        );
        MountService {
            nodes: Nodes::new(held, hints.is_some(), options.leases),
            threads: Threads::new(hints.is_some()),
            hints,
            changes: Changes::default(),
            files: Handles::new(handles.clone()),
            dirs: Handles::new(handles),
            fs,
            notifier,
            attr_notifier,
            waiters: Waiters::default(),
            locked: AtomicBool::new(false),
            read_only: options.read_only,
            root: None,
            local_lookups,
            entry_timeout: options.entry_timeout,
            attr_timeout: options.attr_timeout,
            protects_links: ops::protects_links(),
            links: ProtectedLinks::default(),
            requests,
        }
    }

    /// The inode of a node. A guess is looked up for that.
    pub(crate) async fn locate(&self, node: FuseNodeId) -> Result<Locator> {
        match self.nodes.place(node)? {
            NodeIdentity::Known(loc) => Ok(loc),
            NodeIdentity::Guess(at) => {
                // Nothing is given away: whoever asks about it is judged by the servers then.
                let entry = self.fs.lookup(&Caller::root(), &at).await?;
                self.nodes.confirm(node, &entry)?;
                Ok(entry.loc)
            }
        }
    }

    /// The same as a place.
    pub(crate) async fn at(&self, node: FuseNodeId) -> Result<At> {
        Ok(At::handle(self.locate(node).await?))
    }

    /// The source or the target of a rename, in a directory that its thread has come to.
    pub(crate) fn renamed(
        &self,
        request: &Request,
        which: Which,
        dir: FuseNodeId,
        name: &Bytes,
    ) -> Result<At> {
        check_name(name)?;
        self.nodes.child(&self.threads.way_of(&request.header, which, dir), name)
    }

    /// The same, to ask for what is kept by [`MountService::reply_entry`].
    pub(crate) fn named(&self, request: &Request, dir: FuseNodeId, name: &Bytes) -> Result<Named> {
        check_name(name)?;
        self.nodes.named(&self.threads.way(&request.header, dir), name)
    }

    /// What the kernel is told of an error that has to do with the way to `dir`: if what is
    /// known of that is wrong, to walk again.
    pub(crate) fn on_the_way(&self, request: &Request, dir: FuseNodeId, error: Error) -> Error {
        self.on_this_way(&self.threads.way(&request.header, dir), error)
    }

    /// The same, of a walk.
    pub(crate) fn on_this_way(&self, walk: &Walk, error: Error) -> Error {
        if self.nodes.mark_stale(walk, &error) { Errno::ESTALE.into() } else { error }
    }

    /// A path has led to an inode that was removed meanwhile. Something else may have its name now: the
    /// kernel must walk again.
    fn not_gone(&self, opcode: Opcode, request: &Request, error: Error) -> Error {
        let is_gone = error.errno() == Errno::ENOENT && error.component.is_none();
        if !is_gone || mutation("what went is not walked to again") {
            return error;
        }
        let node = match opcode {
            Opcode::Link => request.body().fixed().map_or(0, |input: LinkIn| input.oldnodeid),
            opcode if opcode.is_about_inode() => request.header.nodeid,
            _ => return error,
        };
        match self.threads.may_walk_again(request.header.pid, node) {
            true => Errno::ESTALE.into(),
            false => error,
        }
    }

    /// The reply that gives what has this name to the kernel, which holds it from now on.
    pub(crate) fn reply_entry(&self, named: &Named, entry: &Entry) -> EntryOut {
        let node = self.nodes.count_lookup(named.dir, &named.name, entry);
        let keep = self.keep(entry);
        if !keep.is_zero() {
            self.nodes.prove(named.dir, keep);
        }
        self.entry_out(node, &entry.attr, keep)
    }

    /// How long the kernel may keep a name: for others, too, so only if all may walk there. The
    /// kernel checks no permissions itself.
    pub(crate) fn keep(&self, entry: &Entry) -> Duration {
        // In a sticky directory each look is judged (`protect`).
        let is_free = entry.searchable && entry.sticky.is_none();
        if is_free { self.entry_timeout } else { Duration::ZERO }
    }

    /// The form of an entry. A directory's link count and times are not whole here: they were
    /// not collected, so a stat(2) must ask.
    pub(crate) fn entry_out(
        &self,
        node: FuseNodeId,
        body: &saker_types::Attr,
        keep: Duration,
    ) -> EntryOut {
        // And what was written through this mount and is unsaved changes times that nobody has told yet.
        let asks = body.is_dir() || self.fs.is_dirty(body.id);
        let fresh = if asks { Duration::ZERO } else { self.attr_timeout };
        self.entry_for(node, body, keep, fresh)
    }

    /// The same, with attributes that are good for `fresh`.
    pub(crate) fn entry_for(
        &self,
        node: FuseNodeId,
        body: &saker_types::Attr,
        keep: Duration,
        fresh: Duration,
    ) -> EntryOut {
        let (entry_valid, entry_valid_nsec) = attr::validity(keep);
        let (attr_valid, attr_valid_nsec) = attr::validity(fresh);
        EntryOut {
            nodeid: node,
            // Inode ids are never used again.
            generation: 0,
            entry_valid,
            attr_valid,
            entry_valid_nsec,
            attr_valid_nsec,
            attr: attr::body(body),
        }
    }

    /// The kernel is about to be told attributes that are to count: none that is older does after this.
    pub(crate) async fn overrule(&self, node: FuseNodeId, attr: &saker_types::Attr) {
        let may_be_behind = self.nodes.tell(node, attr, self.attr_timeout);
        if may_be_behind && !mutation("attributes that are not heeded") {
            self.drop_attributes(node).await;
            self.nodes.untell(node);
        }
    }

    /// The kernel has no attributes of an inode when this ends.
    pub(crate) async fn drop_attributes(&self, node: FuseNodeId) {
        self.nodes.tellings(node).forget(self.attr_notifier.drop_attributes(node)).await;
    }

    /// The reply to GETATTR and SETATTR.
    pub(crate) fn attr_reply(&self, entry: &Entry, fresh: Duration) -> Reply {
        self.nodes.refresh(entry);
        Reply::of(&attr::reply(&entry.attr, fresh))
    }

    /// Closes what the kernel has left open: the connection ended without RELEASEs.
    pub async fn close_all(&self) {
        drop(self.dirs.drain());
        for open in self.files.drain() {
            open.close().await;
        }
    }

    async fn answer(&self, opcode: Opcode, request: &Request) -> Result<Reply> {
        match opcode {
            // The first request, and no other.
            Opcode::Init => Ok(Reply::error(Errno::EIO)),
            Opcode::Lookup => self.lookup(request).await,
            Opcode::Forget => self.forget(request).await,
            Opcode::BatchForget => self.batch_forget(request).await,
            Opcode::Getattr => self.getattr(request).await,
            Opcode::Statx => self.statx(request).await,
            Opcode::Setattr => self.setattr(request).await,
            Opcode::Access => self.access(request).await,
            Opcode::Readlink => self.readlink(request).await,
            Opcode::Symlink => self.symlink(request).await,
            Opcode::Mknod => self.mknod(request).await,
            Opcode::Mkdir => self.mkdir(request).await,
            Opcode::Create => self.create(request).await,
            Opcode::Tmpfile => self.tmpfile(request).await,
            Opcode::Unlink => self.unlink(request).await,
            Opcode::Rmdir => self.rmdir(request).await,
            Opcode::Rename => self.rename(request).await,
            Opcode::Rename2 => self.rename2(request).await,
            Opcode::Link => self.link(request).await,
            Opcode::Open => self.open(request).await,
            Opcode::Read => self.read(request).await,
            Opcode::Write => self.write(request).await,
            Opcode::Flush => self.flush(request).await,
            Opcode::Fsync => self.fsync(request).await,
            Opcode::Release => self.release(request).await,
            Opcode::Fallocate => self.fallocate(request).await,
            Opcode::Lseek => self.lseek(request).await,
            Opcode::CopyFileRange => self.copy_file_range(request, false).await,
            Opcode::CopyFileRange64 => self.copy_file_range(request, true).await,
            Opcode::Opendir => self.opendir(request).await,
            Opcode::Readdir => self.readdir(request, false).await,
            Opcode::Readdirplus => self.readdir(request, true).await,
            Opcode::Releasedir => self.releasedir(request).await,
            Opcode::Fsyncdir => self.fsyncdir(request).await,
            Opcode::Setxattr => self.setxattr(request).await,
            Opcode::Getxattr => self.getxattr(request).await,
            Opcode::Listxattr => self.listxattr(request).await,
            Opcode::Removexattr => self.removexattr(request).await,
            Opcode::Statfs => self.statfs(request).await,
            Opcode::Syncfs => self.syncfs(request).await,
            Opcode::Destroy => Ok(Reply::done()),
            // Of use to waiters for locks only: any other request cannot be taken back once
            // it may have reached a server, and the kernel interrupts at any signal, also where
            // programs expect no EINTR. The client's deadline bounds the wait, and who is killed
            // waits no longer (`Dispatch::undo`).
            Opcode::Interrupt => self.interrupt(request).await,
            Opcode::NotifyReply => Ok(Reply::none()),
            Opcode::Ioctl => Ok(Reply::error(ENOTTY)),
            Opcode::Getlk => self.getlk(request).await,
            Opcode::Setlk => self.setlk(request, false).await,
            Opcode::Setlkw => self.setlk(request, true).await,
            // ENOSYS: the kernel does these itself, and does not ask again.
            Opcode::Bmap | Opcode::Poll | Opcode::SetupMapping | Opcode::RemoveMapping => {
                Ok(Reply::error(Errno::ENOSYS))
            }
        }
    }
}

/// Not among the errors that servers give.
const ENOTTY: Errno = Errno(25);

impl Dispatch for MountService {
    fn init(&self, request: &Request, extra: u64) -> (Reply, Option<u64>) {
        self.requests.inc(Opcode::Init as u16);
        self.greet(request, extra).unwrap_or_else(|error| {
            tracing::error!("INIT: {error}");
            (Reply::error(errno::of(&error)), None)
        })
    }

    fn serving(&self, how: &TransportInUse) {
        tracing::info!("transport: {how}");
    }

    async fn handle(&self, request: &Request) -> Reply {
        let raw = request.header.opcode;
        self.requests.inc(u16::try_from(raw).unwrap_or(u16::MAX));
        let Some(opcode) = Opcode::from_u32(raw) else {
            return Reply::error(Errno::ENOSYS);
        };
        let _change = opcode.is_change().then(|| self.changes.begin());
        if opcode.is_about_names() {
            self.nodes.changed_in(request.header.nodeid);
        }
        self.answer(opcode, request).await.unwrap_or_else(|error| {
            let error = match error.is_about_second() {
                true => error,
                false => self.on_the_way(request, request.header.nodeid, error),
            };
            let error = self.not_gone(opcode, request, error);
            if opcode == Opcode::Lookup && error.errno() == Errno::ESTALE {
                let dir = request.header.nodeid;
                let held = request
                    .body()
                    .name()
                    .is_ok_and(|name| self.nodes.of_name(dir, &name).is_some());
                self.threads.refused(&request.header, held);
            }
            if errno::unexpected(&error) {
                let node = request.header.nodeid;
                tracing::warn!("{} of inode {node:#x}: {error}", opcode.name());
            }
            Reply::error(errno::of(&error))
        })
    }

    async fn undo(&self, request: &Request, reply: &Reply) {
        self.take_back(request, reply).await;
    }

    fn end(&self) {
        self.waiters.end();
    }
}
