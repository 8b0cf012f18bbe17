//! LibFS as a target: several clients of one cluster, each operation through the library.

use bytes::Bytes;
use saker_client::{Caller, DirItem, File, Fs, Groups, OpenFlags, SetAttr, SetTime as WireTime};
use saker_types::time::{stamp_of_unix_ns, unix_ns};
use saker_types::wire::{self, Entry};
use saker_types::{Class, Errno, Error, FileKind, Locator, limits};

use crate::local::xattr_names;
use crate::op::{
    DIR_FDS, FDS, FsOp, How, NameBytes, NewTime, OpResult, OpStat, OpStep, PathFrom,
    RENAME_EXCHANGE, RENAME_NOREPLACE, TestedFs, User, Value, pattern,
};

type Done = Result<Value<i64>, Error>;

struct Open {
    client: usize,
    file: File,
    who: Caller,
    how: How,
}

/// Clients of one cluster that work below one directory.
pub struct LibFsTarget {
    clients: Vec<Fs>,
    /// Name of the run's directory, in the cluster's root.
    top: Bytes,
    files: [Option<Open>; FDS],
    held: [Option<Locator>; DIR_FDS],
    /// Counts operations: every second one takes the library's resolver, the others send the
    /// path as it is and follow the symlinks that come back.
    turn: u64,
}

impl LibFsTarget {
    /// Makes the directory `top` in the root of the cluster, open to all.
    pub fn new(clients: Vec<Fs>, top: &str) -> Result<LibFsTarget, Error> {
        let top = Bytes::copy_from_slice(top.as_bytes());
        let (fs, who) = (&clients[0], Caller::root());
        let at = wire::At::below(Locator::root(), vec![top.clone()]);
        fs.block_on(async {
            fs.mkdir(&who, &at, 0o777).await?;
            fs.setattr(&who, &at, &SetAttr { mode: Some(0o777), ..SetAttr::default() }).await
        })?;
        Ok(LibFsTarget {
            clients,
            top,
            files: Default::default(),
            held: Default::default(),
            turn: 0,
        })
    }

    /// One of the clients.
    pub fn client(&self, client: usize) -> &Fs {
        &self.clients[client]
    }

    /// The run's directory.
    pub fn top(&self) -> wire::At {
        wire::At::below(Locator::root(), vec![self.top.clone()])
    }

    /// Closes all that is open.
    ///
    /// # Errors
    /// Of closing.
    pub fn close_all(&mut self) -> Result<(), Error> {
        self.held = Default::default();
        (0..FDS).try_for_each(|fd| self.close(fd))
    }

    /// One of the clients has died, with what it had open, and another one comes in its place.
    pub fn replace(&mut self, client: usize, fs: Fs) {
        self.held = Default::default();
        for open in self
            .files
            .iter_mut()
            .filter(|open| open.as_ref().is_some_and(|open| open.client == client))
        {
            *open = None;
        }
        self.clients[client] = fs;
    }

    /// The path without any symlink followed.
    fn plain(&self, at: &PathFrom) -> Result<wire::At, Error> {
        let names = at.path.iter().map(|name| Bytes::copy_from_slice(name));
        Ok(match at.base {
            None => {
                let path = std::iter::once(self.top.clone()).chain(names).collect();
                wire::At::below(Locator::root(), path)
            }
            Some(fd) => {
                let anchor = self.held[fd].clone().ok_or(Errno::EBADF)?;
                wire::At::below(anchor, names.collect())
            }
        })
    }

    /// Follows symlinks: all but the last component's, with `follow` that, too.
    async fn place(
        &self,
        fs: &Fs,
        who: &Caller,
        at: &PathFrom,
        follow: bool,
    ) -> Result<wire::At, Error> {
        let plain = self.plain(at)?;
        if at.path.is_empty() {
            // "." asks for search permission.
            fs.access(who, &plain, 1).await?;
            return Ok(plain);
        }
        let dots = at.path.iter().any(|name| name == b"." || name == b"..");
        if at.base.is_none() && (dots || self.turn.is_multiple_of(2)) {
            let text = [&b"/"[..], &plain.path.join(&b'/')].concat();
            return Ok(fs.resolve(who, &text, follow).await?.at);
        }
        self.follow(fs, who, plain, follow).await
    }

    /// Follows symlinks as the server reports them.
    async fn follow(
        &self,
        fs: &Fs,
        who: &Caller,
        mut at: wire::At,
        follow: bool,
    ) -> Result<wire::At, Error> {
        for _ in 0..=limits::SYMLINKS_MAX {
            let (component, target) = match fs.lookup(who, &at).await {
                Ok(entry) if follow && entry.attr.kind() == FileKind::Symlink => {
                    (at.path.len() - 1, fs.readlink(who, &at).await?)
                }
                Err(error) if error.is(Class::Symlink) => {
                    let component = error.component.unwrap_or_default() as usize;
                    let mut target = error.target.clone();
                    if target.is_empty() {
                        let path = at.path[..=component].to_vec();
                        let link = wire::At::below(at.anchor.clone(), path);
                        target = fs.readlink(who, &link).await?;
                    }
                    (component, target)
                }
                // Whatever it is, the operation itself will say so.
                Ok(_) | Err(_) => return Ok(at),
            };
            let parts = target.split(|b| *b == b'/').map(Bytes::copy_from_slice);
            at.path.splice(component..=component, parts);
        }
        Err(Errno::ELOOP.into())
    }

    /// A name in a directory: the directory must be there.
    async fn name(&self, fs: &Fs, who: &Caller, at: &PathFrom) -> Result<wire::At, Error> {
        let parent = self.place(fs, who, &at.parent(), true).await?;
        let entry = fs.lookup(who, &parent).await?;
        if !entry.attr.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let mut path = parent.path;
        path.extend(at.path.last().map(|name| Bytes::copy_from_slice(name)));
        Ok(wire::At::below(parent.anchor, path))
    }

    async fn name_op(&self, fs: &Fs, who: &Caller, op: &FsOp) -> Done {
        match op {
            FsOp::Mkdir { at, mode } => {
                fs.mkdir(who, &self.place(fs, who, at, false).await?, *mode).await?;
            }
            FsOp::Mknod { at, mode } => {
                fs.mknod(who, &self.place(fs, who, at, false).await?, *mode, 0).await?;
            }
            FsOp::Symlink { at, target } => {
                fs.symlink(who, &self.place(fs, who, at, false).await?, target).await?;
            }
            FsOp::Unlink { at } => {
                fs.unlink(who, &self.place(fs, who, at, false).await?).await?;
            }
            FsOp::Rmdir { at } => {
                fs.rmdir(who, &self.place(fs, who, at, false).await?).await?;
            }
            FsOp::Rename { from, to, flags } => {
                let from = self.name(fs, who, from).await?;
                let to = self.name(fs, who, to).await?;
                match *flags {
                    RENAME_EXCHANGE => _ = fs.exchange(who, &from, &to, [&[], &[]]).await?,
                    0 | RENAME_NOREPLACE => {
                        let no_replace = *flags == RENAME_NOREPLACE;
                        fs.rename(who, &from, &to, no_replace, &[]).await?;
                    }
                    _ => return Err(Errno::EINVAL.into()),
                }
            }
            FsOp::Link { from, to } => {
                let from = self.place(fs, who, from, false).await?;
                fs.lookup(who, &from).await?;
                let to = self.place(fs, who, to, false).await?;
                fs.link(who, &from, &to).await?;
            }
            _ => return self.inode_op(fs, who, op).await,
        }
        Ok(Value::Done)
    }

    async fn inode_op(&self, fs: &Fs, who: &Caller, op: &FsOp) -> Done {
        let (at, follow, change) = match op {
            FsOp::Truncate { at, size } => {
                (at, true, SetAttr { size: Some(*size), ..SetAttr::default() })
            }
            FsOp::Chmod { at, mode } => {
                (at, true, SetAttr { mode: Some(*mode), ..SetAttr::default() })
            }
            FsOp::Chown { at, uid, gid, follow } => {
                (at, *follow, SetAttr { uid: *uid, gid: *gid, ..SetAttr::default() })
            }
            FsOp::Utimes { at, atime, mtime, follow } => {
                let (atime, mtime) = (wire_time(*atime), wire_time(*mtime));
                (at, *follow, SetAttr { atime, mtime, ..SetAttr::default() })
            }
            FsOp::Setxattr { at, name, value, flags } => {
                let at = self.place(fs, who, at, true).await?;
                fs.setxattr(who, &at, name, value, *flags).await?;
                return Ok(Value::Done);
            }
            FsOp::Removexattr { at, name } => {
                let at = self.place(fs, who, at, true).await?;
                fs.removexattr(who, &at, name).await?;
                return Ok(Value::Done);
            }
            _ => return self.reading_op(fs, who, op).await,
        };
        fs.setattr(who, &self.place(fs, who, at, follow).await?, &change).await?;
        Ok(Value::Done)
    }

    async fn reading_op(&self, fs: &Fs, who: &Caller, op: &FsOp) -> Done {
        match op {
            FsOp::Stat { at, follow } => {
                let entry = fs.getattr(who, &self.place(fs, who, at, *follow).await?).await?;
                Ok(Value::Stat(convert(&entry)))
            }
            FsOp::Access { at, want } => {
                fs.access(who, &self.place(fs, who, at, true).await?, *want).await?;
                Ok(Value::Done)
            }
            FsOp::Readlink { at } => {
                let target = fs.readlink(who, &self.place(fs, who, at, false).await?).await?;
                Ok(Value::Bytes(target.to_vec()))
            }
            FsOp::Readdir { at } => {
                let entry = fs.lookup(who, &self.place(fs, who, at, true).await?).await?;
                if !entry.attr.is_dir() {
                    return Err(Errno::ENOTDIR.into());
                }
                list(fs, who, &entry.loc).await
            }
            FsOp::Getxattr { at, name } => {
                let at = self.place(fs, who, at, true).await?;
                Ok(Value::Bytes(fs.getxattr(who, &at, name).await?.to_vec()))
            }
            FsOp::Listxattr { at } => {
                let names = fs.listxattr(who, &self.place(fs, who, at, true).await?).await?;
                Ok(Value::Names(xattr_names(&names)))
            }
            _ => Err(Errno::ENOSYS.into()),
        }
    }

    fn open_op(&mut self, fs: &Fs, client: usize, who: &Caller, op: &FsOp) -> Done {
        let (at, how, create, fd) = match op {
            FsOp::Create { at, mode, how, fd } => (at, *how, Some(*mode), *fd),
            FsOp::Open { at, how, fd } => (at, *how, None, *fd),
            FsOp::OpenDir { at, fd } => {
                let entry = fs.block_on(async {
                    let at = self.place(fs, who, at, true).await?;
                    fs.lookup(who, &at).await
                })?;
                if !entry.attr.is_dir() {
                    return Err(Errno::ENOTDIR.into());
                }
                self.held[*fd] = Some(entry.loc);
                return Ok(Value::Done);
            }
            _ => return fs.block_on(self.name_op(fs, who, op)),
        };
        let flags = OpenFlags {
            read: how.read,
            write: how.write,
            append: how.append,
            truncate: how.truncate,
            exclusive: how.exclusive,
            execute: false,
        };
        let (file, _) = fs.block_on(async {
            let at = self.place(fs, who, at, !how.exclusive).await?;
            match create {
                Some(mode) => fs.create(who, &at, mode, flags).await,
                None => fs.open(who, &at, flags).await,
            }
        })?;
        self.close(fd)?;
        self.files[fd] = Some(Open { client, file, who: who.clone(), how });
        Ok(Value::Done)
    }

    fn close(&mut self, fd: usize) -> Result<(), Error> {
        let Some(open) = self.files[fd].take() else { return Ok(()) };
        let fs = self.clients[open.client].clone();
        fs.block_on(async {
            let flushed = open.file.flush().await;
            open.file.release().await;
            flushed
        })
    }

    fn file_op(&mut self, fd: usize, op: &FsOp) -> Done {
        if matches!(op, FsOp::Close { .. }) {
            self.close(fd)?;
            return Ok(Value::Done);
        }
        let open = self.files[fd].as_ref().ok_or(Errno::EBADF)?;
        let fs = &self.clients[open.client];
        fs.block_on(async {
            match op {
                FsOp::Read { .. } if !open.how.read => Err(Errno::EBADF.into()),
                FsOp::Write { .. } if !open.how.write => Err(Errno::EBADF.into()),
                FsOp::Ftruncate { .. } if !open.how.write => Err(Errno::EINVAL.into()),
                FsOp::Read { offset, len, .. } => {
                    Ok(Value::Bytes(open.file.read(*offset, *len).await?.to_vec()))
                }
                FsOp::Write { offset, len, fill, .. } => {
                    open.file.write(*offset, &pattern(*fill, *offset, *len)).await?;
                    Ok(Value::Done)
                }
                FsOp::Fsync { .. } => open.file.fsync().await.map(|()| Value::Done),
                FsOp::Fstat { .. } => {
                    let at = wire::At::handle(open.file.locator());
                    Ok(Value::Stat(convert(&fs.getattr(&open.who, &at).await?)))
                }
                FsOp::Ftruncate { size, .. } => {
                    let at = wire::At::handle(open.file.locator());
                    let size = Some(*size);
                    let change = SetAttr { size, by_handle: true, ..SetAttr::default() };
                    fs.setattr(&open.who, &at, &change).await?;
                    Ok(Value::Done)
                }
                _ => Err(Errno::ENOSYS.into()),
            }
        })
    }
}

impl TestedFs for LibFsTarget {
    fn apply(&mut self, who: &User, step: &OpStep) -> OpResult<i64> {
        self.turn += 1;
        let done = match step.op.handle() {
            Some(fd) => self.file_op(fd, &step.op),
            None => {
                let who = Caller {
                    uid: who.uid,
                    gid: who.gid,
                    groups: Groups::Known(who.groups.as_slice().into()),
                    ..Caller::root()
                };
                let fs = self.clients[step.client].clone();
                self.open_op(&fs, step.client, &who, &step.op)
            }
        };
        done.map_err(|error| error.errno())
    }

    fn flush(&mut self, fd: usize) -> Result<(), Errno> {
        let Some(open) = &self.files[fd] else { return Ok(()) };
        let fs = &self.clients[open.client];
        fs.block_on(open.file.flush()).map_err(|error| error.errno())
    }
}

/// Lists a directory, once from the start and once from the middle: both must agree.
async fn list(fs: &Fs, who: &Caller, dir: &Locator) -> Done {
    let all = items(fs, who, dir, 0).await?;
    if let Some(middle) = all.get(all.len() / 2) {
        let rest = items(fs, who, dir, middle.cookie).await?;
        let names = |items: &[DirItem]| -> Vec<Bytes> {
            items.iter().map(|item| item.name.clone()).collect()
        };
        if names(&rest) != names(&all[all.len() / 2 + 1..]) {
            return Err(Error::new(Errno::EPROTO).with_text("a listing resumed elsewhere"));
        }
    }
    let entry =
        |item: &DirItem| -> (NameBytes, u8) { (item.name.to_vec(), item.attr.kind().d_type()) };
    let mut names: Vec<(NameBytes, u8)> = all.iter().map(entry).collect();
    names.sort();
    Ok(Value::Names(names))
}

async fn items(fs: &Fs, who: &Caller, dir: &Locator, cookie: u64) -> Result<Vec<DirItem>, Error> {
    let mut stream = fs.readdir(who, dir, cookie);
    let mut items = Vec::new();
    while let Some(item) = stream.next().await? {
        items.push(item);
    }
    Ok(items)
}

fn wire_time(time: NewTime) -> Option<WireTime> {
    match time {
        NewTime::Omit => None,
        NewTime::Now => Some(WireTime::Now),
        NewTime::Ns(ns) => Some(WireTime::At(stamp_of_unix_ns(ns))),
    }
}

fn convert(entry: &Entry) -> OpStat<i64> {
    let attr = &entry.attr;
    OpStat {
        ino: attr.id,
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink,
        size: attr.size,
        atime: unix_ns(attr.atime_ns) as i64,
        mtime: unix_ns(attr.mtime_ns) as i64,
        ctime: unix_ns(attr.ctime_ns) as i64,
    }
}
