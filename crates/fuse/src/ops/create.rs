//! CREATE, TMPFILE, MKNOD, MKDIR, SYMLINK, READLINK.

use saker_client::OpenFlags;
use saker_types::{Class, Errno, Error, FileKind, Result};

use crate::abi::{CreateIn, MkdirIn, MknodIn, OPEN_KILL_SUIDGID};
use crate::adapter::Adapter;
use crate::ops::OpenFile;
use crate::reply::Reply;
use crate::request::Request;
use crate::threads::Opened;

const PERMISSIONS: u32 = 0o7777;

impl Adapter {
    pub(crate) async fn create(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let input: CreateIn = body.fixed()?;
        let (dir, name) = (request.header.nodeid, body.name()?);
        let named = self.named(request, dir, &name)?;
        let flags = OpenFlags::from_linux(input.flags as i32);
        self.may_open(flags)?;
        let who = request.maker(input.umask);
        let asked = self.changes.ask();
        let created = self.fs.create(&who, &named.at, input.mode & PERMISSIONS, flags).await;
        // The kernel sends CREATE only for a name that was, or was said to be, free a moment ago.
        // If it is something else, it must walk again and open that.
        let stale = || {
            self.nodes.surprise(dir, &name);
            Error::new(Errno::ESTALE)
        };
        let (file, entry) = match created {
            Err(error) if error.is(Class::Symlink) && named.at.ends_at(&error) => {
                return Err(stale());
            }
            other => other?,
        };
        let another = entry.attr.kind() != FileKind::Regular;
        if another || (!entry.created && self.check_sticky(dir, &entry).is_err()) {
            file.release().await;
            return Err(stale());
        }
        if !entry.created && flags.truncate && input.open_flags & OPEN_KILL_SUIDGID != 0 {
            self.drop_privileges_of(&entry).await?;
        }
        let way = self.way(&file, &entry.attr).await?;
        let reply = self.hold(&named, &entry);
        let open = self.opened(OpenFile::new(Opened { flags, file, entry, asked }), way);
        Ok(Reply::pair(&reply, &open))
    }

    /// O_TMPFILE; the name that comes along means nothing.
    pub(crate) async fn tmpfile(&self, request: &Request) -> Result<Reply> {
        let input: CreateIn = request.body().fixed()?;
        let dir = self.at(request.header.nodeid).await?;
        let flags = OpenFlags::from_linux(input.flags as i32);
        self.may_open(flags)?;
        let who = request.maker(input.umask);
        let asked = self.changes.ask();
        let made = self.fs.tmpfile(&who, &dir, input.mode & PERMISSIONS, flags);
        let (file, entry) = made.await?;
        let way = self.way(&file, &entry.attr).await?;
        let node = self.nodes.hold_nameless(&entry);
        let reply = self.entry_out(node, &entry.attr, self.keep(&entry));
        let open = self.opened(OpenFile::new(Opened { flags, file, entry, asked }), way);
        Ok(Reply::pair(&reply, &open))
    }

    pub(crate) async fn mknod(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let input: MknodIn = body.fixed()?;
        let (dir, name) = (request.header.nodeid, body.name()?);
        let named = self.named(request, dir, &name)?;
        let who = request.maker(input.umask);
        let entry = self.fs.mknod(&who, &named.at, input.mode, input.rdev).await?;
        Ok(Reply::of(&self.hold(&named, &entry)))
    }

    pub(crate) async fn mkdir(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let input: MkdirIn = body.fixed()?;
        let (dir, name) = (request.header.nodeid, body.name()?);
        let named = self.named(request, dir, &name)?;
        let who = request.maker(input.umask);
        let entry = self.fs.mkdir(&who, &named.at, input.mode & PERMISSIONS).await?;
        Ok(Reply::of(&self.hold(&named, &entry)))
    }

    pub(crate) async fn symlink(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let (dir, name) = (request.header.nodeid, body.name()?);
        let named = self.named(request, dir, &name)?;
        let target = body.name()?;
        let entry = self.fs.symlink(&request.caller(), &named.at, &target).await?;
        Ok(Reply::of(&self.hold(&named, &entry)))
    }

    pub(crate) async fn readlink(&self, request: &Request) -> Result<Reply> {
        self.hints.link_read(request.header.pid);
        let at = self.at(request.header.nodeid).await?;
        Ok(Reply::data(self.fs.readlink(&request.caller(), &at).await?))
    }
}
