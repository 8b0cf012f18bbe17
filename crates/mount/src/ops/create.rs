//! CREATE, TMPFILE, MKNOD, MKDIR, SYMLINK, READLINK.

use saker_client::{Caller, OpenFlags};
use saker_fuse::abi::{CreateIn, MkdirIn, MknodIn, OPEN_KILL_SUIDGID};
use saker_fuse::{Reply, Request};
use saker_types::{Class, Errno, Error, FileKind, Result};

use crate::caller::WithCaller as _;
use crate::names::nodes::Named;
use crate::names::threads::Opened;
use crate::ops::OpenFile;
use crate::service::MountService;

const PERMISSIONS: u32 = 0o7777;

impl MountService {
    pub(crate) async fn create(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let input: CreateIn = body.fixed()?;
        let (dir, name) = (request.header.nodeid, body.name()?);
        let named = self.named(request, dir, &name)?;
        let flags = OpenFlags::from_linux(input.flags as i32);
        let who = named.for_caller(request.maker(input.umask));
        let opened = self.make(&who, &named, input.mode, flags).await?;
        let is_new = opened.entry.created;
        if !is_new && flags.truncate && input.open_flags & OPEN_KILL_SUIDGID != 0 {
            self.drop_privileges_of(&opened.entry).await?;
        }
        let reply = self.reply_entry(&named, &opened.entry);
        let open = self.opened(OpenFile::new(reply.nodeid, &self.nodes, opened));
        Ok(Reply::pair(&reply, &open))
    }

    /// Makes a file, or opens the one that is there; `mode` as open(2) has it.
    ///
    /// # Errors
    /// ESTALE also where something else than a file is there: the kernel must walk again.
    async fn make(
        &self,
        who: &Caller,
        named: &Named,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<Opened> {
        let asked = self.changes.ask();
        let created = self.fs.create_warily(who, &named.at, mode & PERMISSIONS, flags).await;
        // The kernel sends CREATE only for a name that was, or was said to be, free a moment ago.
        // If it is something else, it must walk again and open that.
        let stale = || {
            self.nodes.note_conflict(named.dir, &named.name);
            Error::new(Errno::ESTALE)
        };
        let (file, entry) = match created {
            Err(error) if error.is(Class::Symlink) && named.at.ends_at(&error) => {
                return Err(stale());
            }
            // It is judged when it is looked up (`protect`).
            Err(error) if error.is(Class::Final) && error.errno() == Errno::ESTALE => {
                return Err(stale());
            }
            other => other?,
        };
        if entry.attr.kind() != FileKind::Regular {
            file.release().await;
            return Err(stale());
        }
        Ok(Opened { flags, file, entry, asked })
    }

    /// O_TMPFILE; the name that comes along means nothing.
    pub(crate) async fn tmpfile(&self, request: &Request) -> Result<Reply> {
        let input: CreateIn = request.body().fixed()?;
        let dir = self.at(request.header.nodeid).await?;
        let flags = OpenFlags::from_linux(input.flags as i32);
        let who = request.maker(input.umask);
        let asked = self.changes.ask();
        let made = self.fs.tmpfile(&who, &dir, input.mode & PERMISSIONS, flags);
        let (file, entry) = made.await?;
        let node = self.nodes.count_lookup_nameless(&entry);
        let reply = self.entry_out(node, &entry.attr, self.keep(&entry));
        let open =
            self.opened(OpenFile::new(node, &self.nodes, Opened { flags, file, entry, asked }));
        Ok(Reply::pair(&reply, &open))
    }

    pub(crate) async fn mknod(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let input: MknodIn = body.fixed()?;
        let (dir, name) = (request.header.nodeid, body.name()?);
        let named = self.named(request, dir, &name)?;
        let who = named.for_caller(request.maker(input.umask));
        let entry = self.fs.mknod(&who, &named.at, input.mode, input.rdev).await?;
        Ok(Reply::of(&self.reply_entry(&named, &entry)))
    }

    pub(crate) async fn mkdir(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let input: MkdirIn = body.fixed()?;
        let (dir, name) = (request.header.nodeid, body.name()?);
        let named = self.named(request, dir, &name)?;
        let who = named.for_caller(request.maker(input.umask));
        let entry = self.fs.mkdir(&who, &named.at, input.mode & PERMISSIONS).await?;
        Ok(Reply::of(&self.reply_entry(&named, &entry)))
    }

    pub(crate) async fn symlink(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let (dir, name) = (request.header.nodeid, body.name()?);
        let named = self.named(request, dir, &name)?;
        let target = body.name()?;
        let who = named.for_caller(request.caller());
        let entry = self.fs.symlink(&who, &named.at, &target).await?;
        Ok(Reply::of(&self.reply_entry(&named, &entry)))
    }

    pub(crate) async fn readlink(&self, request: &Request) -> Result<Reply> {
        self.may_follow(request).await?;
        let at = self.at(request.header.nodeid).await?;
        Ok(Reply::data(self.fs.readlink(&request.caller(), &at).await?))
    }
}
