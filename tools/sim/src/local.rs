//! A directory of the running kernel as a target: raw system calls under changing user ids.
//!
//! Must stay on the thread that made it: the ids and the working directory are the thread's own.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self as rfs, AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};
use saker_types::Errno;

use crate::op::{
    DIR_FDS, FDS, FsOp, How, NameBytes, NewTime, OpResult, OpStat, OpStep, PathFrom, TestedFs,
    User, Value, pattern, users,
};

type Sys<T> = Result<T, rustix::io::Errno>;

/// A directory reached through the kernel: a local file system or a mount.
pub struct LocalFs {
    root: OwnedFd,
    files: [Option<(OwnedFd, User, How)>; FDS],
    held: [Option<OwnedFd>; DIR_FDS],
    not_send: PhantomData<*const ()>,
}

impl LocalFs {
    /// Uses `dir`, which must be empty; it becomes writable for all. Needs root.
    pub fn new(dir: &Path) -> std::io::Result<LocalFs> {
        rustix::process::umask(Mode::empty());
        // SAFETY: only the working directory stops being shared with other threads, and it is
        // this thread alone that depends on it.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS)? };
        let root = rfs::open(dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        rfs::chmodat(&root, ".", Mode::from_raw_mode(0o777), AtFlags::empty())?;
        Ok(LocalFs {
            root,
            files: Default::default(),
            held: Default::default(),
            not_send: PhantomData,
        })
    }

    /// Makes the base of the path the working directory and gives the rest.
    fn enter(&self, at: &PathFrom) -> Sys<CString> {
        let dir = match at.base {
            None => Some(&self.root),
            Some(fd) => self.held[fd].as_ref(),
        };
        rustix::process::fchdir(dir.ok_or(rustix::io::Errno::BADF)?)?;
        CString::new(at.text()).map_err(|_| rustix::io::Errno::INVAL)
    }

    fn name_op(&mut self, user: &User, op: &FsOp) -> Sys<Value<i64>> {
        match op {
            FsOp::Mkdir { at, mode } => {
                self.as_user(user, at, |p| rfs::mkdirat(CWD, p, Mode::from_raw_mode(*mode)))
            }
            FsOp::Mknod { at, mode } => self.as_user(user, at, |p| {
                let kind = rfs::FileType::from_raw_mode(*mode);
                rfs::mknodat(CWD, p, kind, Mode::from_raw_mode(*mode & 0o7777), 0)
            }),
            FsOp::Symlink { at, target } => {
                self.as_user(user, at, |p| rfs::symlinkat(target.as_slice(), CWD, p))
            }
            FsOp::Unlink { at } => {
                self.as_user(user, at, |p| rfs::unlinkat(CWD, p, AtFlags::empty()))
            }
            FsOp::Rmdir { at } => {
                self.as_user(user, at, |p| rfs::unlinkat(CWD, p, AtFlags::REMOVEDIR))
            }
            FsOp::Rename { from, to, flags } => self.two(user, from, to, |a, pa, b, pb| {
                rfs::renameat_with(a, pa, b, pb, rfs::RenameFlags::from_bits_retain(*flags))
            }),
            FsOp::Link { from, to } => {
                self.two(user, from, to, |a, pa, b, pb| rfs::linkat(a, pa, b, pb, AtFlags::empty()))
            }
            _ => self.inode_op(user, op),
        }
    }

    fn inode_op(&mut self, user: &User, op: &FsOp) -> Sys<Value<i64>> {
        match op {
            FsOp::Truncate { at, size } => self.as_user(user, at, |p| {
                // SAFETY: `p` is NUL-terminated and outlives the call.
                check(unsafe { libc::truncate(p.as_ptr(), *size as i64) })
            }),
            FsOp::Access { at, want } => self.as_user(user, at, |p| access(p, *want)),
            FsOp::Chmod { at, mode } => self.as_user(user, at, |p| {
                rfs::chmodat(CWD, p, Mode::from_raw_mode(*mode), AtFlags::empty())
            }),
            FsOp::Chown { at, uid, gid, follow } => self.as_user(user, at, |p| {
                let (uid, gid) = (uid.map(rfs::Uid::from_raw), gid.map(rfs::Gid::from_raw));
                rfs::chownat(CWD, p, uid, gid, flags(*follow))
            }),
            FsOp::Utimes { at, atime, mtime, follow } => self.as_user(user, at, |p| {
                let times = Timestamps {
                    last_access: timespec(*atime),
                    last_modification: timespec(*mtime),
                };
                rfs::utimensat(CWD, p, &times, flags(*follow))
            }),
            FsOp::Setxattr { at, name, value, flags } => self.as_user(user, at, |p| {
                let flags = rfs::XattrFlags::from_bits_retain(*flags);
                rfs::setxattr(p, name.as_slice(), value, flags)
            }),
            FsOp::Removexattr { at, name } => {
                self.as_user(user, at, |p| rfs::removexattr(p, name.as_slice()))
            }
            _ => self.reading_op(user, op),
        }
    }

    fn reading_op(&mut self, user: &User, op: &FsOp) -> Sys<Value<i64>> {
        match op {
            FsOp::Stat { at, follow } => {
                let path = self.enter(at)?;
                let stat = acting_as(user, || rfs::statat(CWD, &path, flags(*follow)))?;
                Ok(Value::Stat(convert(&stat)))
            }
            FsOp::Readdir { at } => {
                let path = self.enter(at)?;
                acting_as(user, || list(&path))
            }
            FsOp::Readlink { at } => {
                let path = self.enter(at)?;
                let target = acting_as(user, || rfs::readlinkat(CWD, &path, Vec::new()))?;
                Ok(Value::Bytes(target.into_bytes()))
            }
            FsOp::Getxattr { at, name } => {
                let path = self.enter(at)?;
                let mut value = vec![0u8; 64 << 10];
                let len =
                    acting_as(user, || rfs::getxattr(&path, name.as_slice(), &mut value[..]))?;
                value.truncate(len);
                Ok(Value::Bytes(value))
            }
            FsOp::Listxattr { at } => {
                let path = self.enter(at)?;
                let mut names = vec![0u8; 64 << 10];
                let len = acting_as(user, || rfs::listxattr(&path, &mut names[..]))?;
                Ok(Value::Names(xattr_names(&names[..len])))
            }
            _ => self.open_op(user, op),
        }
    }

    fn open_op(&mut self, user: &User, op: &FsOp) -> Sys<Value<i64>> {
        match op {
            FsOp::Create { at, mode, how, fd } => {
                let flags = open_flags(*how) | OFlags::CREATE;
                self.open(user, at, flags, *mode, *how, *fd)
            }
            FsOp::Open { at, how, fd } => self.open(user, at, open_flags(*how), 0, *how, *fd),
            FsOp::OpenDir { at, fd } => {
                let path = self.enter(at)?;
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let dir = acting_as(user, || rfs::openat(CWD, &path, flags, Mode::empty()))?;
                self.held[*fd] = Some(dir);
                Ok(Value::Done)
            }
            FsOp::Close { fd } => {
                self.files[*fd] = None;
                Ok(Value::Done)
            }
            _ => self.file_op(op),
        }
    }

    fn open(
        &mut self,
        user: &User,
        at: &PathFrom,
        flags: OFlags,
        mode: u32,
        how: How,
        fd: usize,
    ) -> Sys<Value<i64>> {
        let path = self.enter(at)?;
        let mode = Mode::from_raw_mode(mode);
        let file = acting_as(user, || rfs::openat(CWD, &path, flags, mode))?;
        self.files[fd] = Some((file, user.clone(), how));
        Ok(Value::Done)
    }

    fn file_op(&mut self, op: &FsOp) -> Sys<Value<i64>> {
        let fd = op.handle().ok_or(rustix::io::Errno::NOSYS)?;
        let (fd, user, how) = self.files[fd].as_ref().ok_or(rustix::io::Errno::BADF)?;
        acting_as(user, || match op {
            FsOp::Read { offset, len, .. } => read_all(fd, *offset, *len).map(Value::Bytes),
            FsOp::Write { offset, len, fill, .. } => {
                let data = pattern(*fill, *offset, *len);
                write_all(fd, *offset, &data, how.append)
            }
            FsOp::Fsync { .. } => rfs::fsync(fd).map(|()| Value::Done),
            FsOp::Fstat { .. } => rfs::fstat(fd).map(|stat| Value::Stat(convert(&stat))),
            FsOp::Ftruncate { size, .. } => rfs::ftruncate(fd, *size).map(|()| Value::Done),
            _ => Err(rustix::io::Errno::NOSYS),
        })
    }

    fn as_user(
        &self,
        user: &User,
        at: &PathFrom,
        act: impl FnOnce(&CString) -> Sys<()>,
    ) -> Sys<Value<i64>> {
        let path = self.enter(at)?;
        acting_as(user, || act(&path)).map(|()| Value::Done)
    }

    /// Two paths: the bases are given as descriptors.
    fn two(
        &self,
        user: &User,
        from: &PathFrom,
        to: &PathFrom,
        act: impl FnOnce(&OwnedFd, &CString, &OwnedFd, &CString) -> Sys<()>,
    ) -> Sys<Value<i64>> {
        let (from_path, to_path) = (self.enter(from)?, self.enter(to)?);
        let base = |at: &PathFrom| match at.base {
            None => Some(&self.root),
            Some(fd) => self.held[fd].as_ref(),
        };
        let bad = rustix::io::Errno::BADF;
        let (from, to) = (base(from).ok_or(bad)?, base(to).ok_or(bad)?);
        acting_as(user, || act(from, &from_path, to, &to_path)).map(|()| Value::Done)
    }
}

impl TestedFs for LocalFs {
    fn apply(&mut self, who: &User, step: &OpStep) -> OpResult<i64> {
        self.name_op(who, &step.op).map_err(|e| Errno(e.raw_os_error() as u16))
    }
}

/// Runs `act` with the file-system ids of a user, on this thread only.
fn acting_as<T>(user: &User, act: impl FnOnce() -> T) -> T {
    become_user(user);
    let out = act();
    become_user(&users()[0]);
    out
}

fn become_user(user: &User) {
    // SAFETY: the raw calls change ids of this thread only; the list of groups outlives the call.
    unsafe {
        libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr());
        libc::syscall(libc::SYS_setfsgid, user.gid);
        libc::syscall(libc::SYS_setfsuid, user.uid);
    }
}

fn check(ret: libc::c_int) -> Sys<()> {
    if ret == 0 { Ok(()) } else { Err(last_errno()) }
}

fn last_errno() -> rustix::io::Errno {
    let raw = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    rustix::io::Errno::from_raw_os_error(raw)
}

fn access(path: &CString, want: u32) -> Sys<()> {
    // SAFETY: `path` is NUL-terminated and outlives the call. faccessat2, because access(2) asks
    // for the real user.
    let ret = unsafe {
        libc::syscall(libc::SYS_faccessat2, libc::AT_FDCWD, path.as_ptr(), want, libc::AT_EACCESS)
    };
    check(ret as libc::c_int)
}

fn flags(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

fn open_flags(how: How) -> OFlags {
    let mut flags = match (how.read, how.write) {
        (_, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (true, true) => OFlags::RDWR,
    } | OFlags::CLOEXEC
        | OFlags::NONBLOCK;
    flags.set(OFlags::APPEND, how.append);
    flags.set(OFlags::TRUNC, how.truncate);
    flags.set(OFlags::EXCL, how.exclusive);
    flags
}

fn timespec(time: NewTime) -> Timespec {
    match time {
        NewTime::Omit => Timespec { tv_sec: 0, tv_nsec: rfs::UTIME_OMIT },
        NewTime::Now => Timespec { tv_sec: 0, tv_nsec: rfs::UTIME_NOW },
        NewTime::Ns(ns) => {
            Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) }
        }
    }
}

fn convert(stat: &rfs::Stat) -> OpStat<i64> {
    let ns = |s: i64, n: u64| s * 1_000_000_000 + n as i64;
    OpStat {
        ino: stat.st_ino,
        mode: stat.st_mode,
        uid: stat.st_uid,
        gid: stat.st_gid,
        nlink: stat.st_nlink as u32,
        size: stat.st_size as u64,
        atime: ns(stat.st_atime, stat.st_atime_nsec),
        mtime: ns(stat.st_mtime, stat.st_mtime_nsec),
        ctime: ns(stat.st_ctime, stat.st_ctime_nsec),
    }
}

fn list(path: &CString) -> Sys<Value<i64>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rfs::openat(CWD, path, flags, Mode::empty())?;
    let mut names: BTreeMap<NameBytes, u8> = BTreeMap::new();
    for entry in rfs::Dir::new(fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes().to_vec();
        let d_type = (entry.file_type().as_raw_mode() >> 12) as u8;
        if name != b"." && name != b".." && names.insert(name, d_type).is_some() {
            return Err(rustix::io::Errno::NOTUNIQ);
        }
    }
    Ok(Value::Names(names.into_iter().collect()))
}

/// The `user.` names in a NUL-separated list, sorted.
pub(crate) fn xattr_names(list: &[u8]) -> Vec<(NameBytes, u8)> {
    let names = list.split(|b| *b == 0).filter(|name| name.starts_with(b"user."));
    let mut names: Vec<(NameBytes, u8)> = names.map(|name| (name.to_vec(), 0)).collect();
    names.sort();
    names
}

fn read_all(fd: &OwnedFd, offset: u64, len: usize) -> Sys<Vec<u8>> {
    let mut data = vec![0u8; len];
    let mut done = 0;
    while done < len {
        match rustix::io::pread(fd, &mut data[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    data.truncate(done);
    Ok(data)
}

fn write_all(fd: &OwnedFd, offset: u64, data: &[u8], append: bool) -> Sys<Value<i64>> {
    let mut done = 0;
    while done < data.len() {
        // With O_APPEND the kernel chooses the place.
        let place = if append { 0 } else { offset + done as u64 };
        done += rustix::io::pwrite(fd, &data[done..], place)?;
    }
    if data.is_empty() {
        // SAFETY: no bytes are read; the call only checks the descriptor.
        let ret = unsafe { libc::pwrite(fd.as_raw_fd(), data.as_ptr().cast(), 0, offset as i64) };
        check(ret as libc::c_int)?;
    }
    Ok(Value::Done)
}
