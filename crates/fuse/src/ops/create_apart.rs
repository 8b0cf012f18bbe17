//! Files that are made by the OPEN that follows.
//!
//! The kernel locks a directory from before the LOOKUP that begins a create until the reply that ends
//! it. That is CREATE's, which makes and opens a file, and leaves after a flush; so files of one
//! directory are created one after the other, whatever servers could do. But if CREATE is answered with
//! ENOSYS, the kernel sends a MKNOD instead, unlocks the directory when that is answered, and then an
//! OPEN, all within open(2) (`fs/fuse/dir.c`, `fuse_atomic_open`). So where threads wait for one another
//! ([`crate::crowds`]) the file is only *promised* to the MKNOD, and made by the OPEN: whose reply leaves
//! after the flush, and is what open(2) returns. Nobody else sees the promise: it may not be kept, and
//! whoever looks the name up asks a server.
//!
//! From the first ENOSYS on the kernel sends no CREATE. Who sends a MKNOD, and whether with O_EXCL, is
//! told by BPF ([`Hints::maker`](crate::hint::Hints::maker)); without that this does not begin.

use std::time::Duration;

use bytes::Bytes;
use saker_client::{Caller, OpenFlags};
use saker_types::wire::At;
use saker_types::{Attr, Errno, FileKind, Result};

use crate::abi::{InHeader, MknodIn};
use crate::adapter::Adapter;
use crate::hint::{Lookup, Maker};
use crate::nodes::{Named, NodeId, Progress, Promise};
use crate::ops::{OPEN_AGE_MAX, OpenFile};
use crate::reply::Reply;
use crate::request::Request;
use crate::threads::Opened;

/// Between looks whether an OPEN has come: from one to the other it doubles.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LAST_PAUSE: Duration = Duration::from_millis(5);

impl Adapter {
    /// The answer to a CREATE that is the last one.
    pub(crate) fn create_apart_from_now_on(&self) -> Reply {
        if self.crowds.see() {
            tracing::info!(
                "files are made by OPEN from now on: threads wait to create in one directory"
            );
        }
        Reply::error(Errno::ENOSYS)
    }

    /// If a MKNOD is, or may be, of an open that makes what it opens: what is known of that.
    pub(crate) fn opener_by(&self, request: &Request, mode: u32, name: &[u8]) -> Option<Maker> {
        if !self.crowds.seen() || FileKind::of_mode(mode) != Some(FileKind::Regular) {
            return None;
        }
        let header = &request.header;
        let (unique, tid, nodeid) = (header.unique, header.pid, header.nodeid);
        let maker = self.hints.maker(Lookup { unique, tid, nodeid, name });
        (maker != Maker::Mknod).then_some(maker)
    }

    /// Such a MKNOD.
    pub(crate) async fn create_before_open(
        &self,
        request: &Request,
        named: Named,
        input: &MknodIn,
        maker: Maker,
    ) -> Result<Reply> {
        let who = request.maker(input.umask);
        match maker {
            Maker::Open { exclusive, reval: false } => {
                self.promise(request.header.pid, who, named, input.mode, exclusive)
            }
            Maker::Open { exclusive, reval: true } => {
                self.create_now(request.header.pid, &who, &named, input.mode, exclusive).await
            }
            Maker::Unknown | Maker::Mknod => {
                let made =
                    self.create_now(request.header.pid, &who, &named, input.mode, true).await;
                // Somebody else was faster, which only O_EXCL and mknod(2) mind: the kernel must look.
                made.map_err(|error| match error.errno() {
                    Errno::EEXIST => Errno::ESTALE.into(),
                    _ => error,
                })
            }
        }
    }

    fn promise(
        &self,
        tid: u32,
        who: Caller,
        named: Named,
        mode: u32,
        exclusive: bool,
    ) -> Result<Reply> {
        let Caller { uid, gid, umask, .. } = who;
        let node = self.nodes.promise(Promise { named, tid, who, mode, exclusive })?;
        let mode = mode & !umask;
        let attr = Attr { id: node, mode, uid, gid, nlink: 1, ..Attr::default() };
        Ok(Reply::of(&self.bare_entry(node, &attr, Duration::ZERO)))
    }

    /// The file that the kernel walks to again, or that may be mknod(2)'s, must be there before the OPEN.
    async fn create_now(
        &self,
        tid: u32,
        who: &Caller,
        named: &Named,
        mode: u32,
        exclusive: bool,
    ) -> Result<Reply> {
        let made = self.threads.take_made(tid, named.dir, &named.name);
        let (entry, is_new) = match &made {
            Some(opened) => {
                // The kernel has this node, and perhaps newer attributes than the file was made with.
                let at = At::handle(opened.file.locator());
                (self.fs.getattr(&Caller::root(), &at).await?, opened.entry.created)
            }
            None => {
                let flags = OpenFlags { exclusive, ..OpenFlags::default() };
                let Opened { file, entry, .. } = self.make(who, named, mode, flags).await?;
                file.release().await;
                let is_new = entry.created;
                (entry, is_new)
            }
        };
        let reply = self.hold(named, &entry);
        if is_new {
            self.nodes.grant(reply.nodeid, tid, who.uid, OPEN_AGE_MAX);
        }
        if let Some(opened) = made {
            self.threads.opened(tid, opened);
        }
        Ok(Reply::of(&reply))
    }

    /// As whom an OPEN opens what there is.
    pub(crate) fn opener(&self, request: &Request) -> Caller {
        let InHeader { nodeid, pid, uid, .. } = request.header;
        match self.nodes.is_granted(nodeid, pid, uid) {
            true => Caller::root(),
            false => request.caller(),
        }
    }

    /// Waits until a file that is promised as this name is made. Nobody has been told of it but by
    /// inotify(7), which tells of a file when its MKNOD is answered: who looks then must find it.
    pub(crate) async fn promises_kept(&self, dir: NodeId, name: &Bytes) {
        if !self.crowds.seen() {
            return;
        }
        let mut pause = FIRST_PAUSE;
        loop {
            match self.nodes.progress(dir, name) {
                Progress::Ended => return,
                Progress::Promised => self.fs.sleep(pause).await,
                Progress::Begun(end) => {
                    // Nothing is ever sent.
                    let _ = end.recv().await;
                }
            }
            pause = LAST_PAUSE.min(pause * 2);
        }
    }

    /// The OPEN of a promised file.
    pub(crate) async fn open_promised(
        &self,
        request: &Request,
        flags: OpenFlags,
        promise: Promise,
    ) -> Result<Reply> {
        let Promise { named, tid, who, mode, exclusive } = promise;
        let node = request.header.nodeid;
        let _change = self.changes.begin();
        self.nodes.changed_in(named.dir);
        // What is somebody else's is truncated when it is opened for good.
        let attempt = OpenFlags { exclusive, truncate: false, ..flags };
        let mut opened = match self.make(&who, &named, mode, attempt).await {
            Ok(opened) => opened,
            Err(error) => {
                self.nodes.broke_promise(node, &named);
                return Err(self.on_the_way(request, named.dir, error));
            }
        };
        let created = opened.entry.created;
        opened.flags = OpenFlags { truncate: created && flags.truncate, ..flags };
        if !created {
            self.nodes.broke_promise(node, &named);
        } else if self.nodes.kept_promise(node, &named, &opened.entry) {
            self.promised.inc();
            self.learn_way(&named, &opened.entry);
            let way = self.way(&opened.file, &opened.entry.attr).await?;
            return Ok(Reply::of(&self.opened(OpenFile::new(node, opened), way)));
        }
        // The kernel has another node for it: it walks again, and is given this.
        self.threads.made(tid, named.dir, &named.name, opened);
        Err(Errno::ESTALE.into())
    }

    /// Somebody else opens a promised file first: a listener of fanotify(7), say. It is made for its maker,
    /// whose OPEN finds it then, or walks again.
    pub(crate) async fn make_for_another(&self, node: NodeId, promise: Promise) {
        let Promise { named, tid, who, mode, exclusive } = promise;
        let _change = self.changes.begin();
        self.nodes.changed_in(named.dir);
        let flags = OpenFlags { exclusive, ..OpenFlags::default() };
        let Ok(opened) = self.make(&who, &named, mode, flags).await else {
            return self.nodes.broke_promise(node, &named);
        };
        if !opened.entry.created {
            self.nodes.broke_promise(node, &named);
        } else {
            // Before its maker, who waits for that, hears that it is made.
            self.nodes.grant(node, tid, who.uid, OPEN_AGE_MAX);
            if self.nodes.kept_promise(node, &named, &opened.entry) {
                self.promised.inc();
                return opened.file.release().await;
            }
        }
        self.threads.made(tid, named.dir, &named.name, opened);
    }
}
