//! Output files: paths below `NAME@VERSION.out`, which programs may write.
//!
//! The node's agent knows where they are (docs/decisions/0062). Each question has a connection of
//! its own: one that takes long, as a close of a large file does, holds nobody else up.

use std::ffi::{CString, c_int};
use std::os::fd::IntoRawFd;

use saker_agent_api::{
    CreateOutput, Nothing, OUTPUT_SUFFIX, OutputEntry, OutputInfo, OutputOp, OutputRequest,
    RenameOutput, Reply, SetOutput,
};
use saker_types::FileKind;

use crate::agent::{self, Refused};
use crate::config::config;
use crate::datasets::{Info, MOUNT, dev_of, dir_of_stand_ins};
use crate::outfds::{self, Handle};
use crate::sys::{self, Result, c_path};

const NS: i64 = 1_000_000_000;
/// Flags of open(2) that the descriptor of a directory takes over.
const KEPT: c_int = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_PATH | libc::O_DIRECTORY;

/// A path below `NAME@VERSION.out`. It need not lead to anything.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// NAME@VERSION.
    pub dataset: String,
    /// Names with slashes between them; empty for the directory `.out` itself.
    pub path: Vec<u8>,
    /// The path ended as only a directory's may: `a/`.
    pub is_of_dir: bool,
    /// Attributes, where the path was that of a descriptor.
    pub known: Option<OutputInfo>,
}

/// The dataset of which a name at the mount point is the directory of outputs.
///
/// # Errors
/// Of a dataset that cannot be opened.
pub fn dataset_of(name: &[u8]) -> Result<Option<String>> {
    let Some(name) = name.strip_suffix(OUTPUT_SUFFIX.as_bytes()) else { return Ok(None) };
    Ok(MOUNT.child(name)?.and_then(|node| node.dataset()).map(|dataset| dataset.name.clone()))
}

fn is_dir(info: &OutputInfo) -> bool {
    info.mode & libc::S_IFMT == libc::S_IFDIR
}

impl Output {
    fn is_root(&self) -> bool {
        self.path.is_empty()
    }

    fn ask(&self, op: OutputOp) -> Result<(Reply, Option<c_int>)> {
        let (dataset, path) = (self.dataset.clone(), self.path.clone());
        let request = OutputRequest { dataset, path, op: Some(op), ..OutputRequest::default() };
        match agent::output(request) {
            Ok((reply, fd)) => Ok((reply, fd.map(IntoRawFd::into_raw_fd))),
            Err(Refused::Said(errno)) => Err(errno),
            Err(Refused::Unreachable) => Err(libc::EIO),
        }
    }

    /// The name of the directory `.out` at the mount point.
    fn root_name(&self) -> String {
        format!("{}{OUTPUT_SUFFIX}", self.dataset)
    }

    /// The path below the mount point.
    pub fn below_mount(&self) -> Vec<u8> {
        let mut path = format!("/{}", self.root_name()).into_bytes();
        if !self.is_root() {
            path.push(b'/');
            path.extend_from_slice(&self.path);
        }
        path
    }

    /// The absolute path.
    pub fn full_path(&self) -> Vec<u8> {
        [&config().mount[..], &self.below_mount()].concat()
    }

    /// Attributes as the agent has them.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR; EIO: no answer.
    pub fn look(&self) -> Result<OutputInfo> {
        if let Some(known) = self.known {
            return Ok(known);
        }
        if self.is_root() {
            let mode = libc::S_IFDIR | 0o755;
            return Ok(OutputInfo { mode, size: 4096, ino: 1, ..OutputInfo::default() });
        }
        let info = self.ask(OutputOp::Look(Nothing {}))?.0.output.ok_or(libc::EIO)?;
        if self.is_of_dir && !is_dir(&info) { Err(libc::ENOTDIR) } else { Ok(info) }
    }

    /// What stat(2) says.
    ///
    /// # Errors
    /// As of [`Output::look`].
    pub fn info(&self) -> Result<Info> {
        let info = self.look()?;
        // SAFETY: they touch no memory.
        let (uid, gid) = unsafe {
            (libc::syscall(libc::SYS_geteuid) as u32, libc::syscall(libc::SYS_getegid) as u32)
        };
        let (s, ns) = (info.mtime_ns.div_euclid(NS), info.mtime_ns.rem_euclid(NS) as u32);
        Ok(Info {
            kind: if is_dir(&info) { FileKind::Directory } else { FileKind::Regular },
            mode: info.mode,
            uid,
            gid,
            nlink: if is_dir(&info) { 2 } else { 1 },
            size: info.size,
            mtime: (s, ns),
            rdev: 0,
            dev: dev_of(self.root_name().as_bytes()),
            ino: info.ino,
        })
    }

    /// The names in a directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR; EIO: a node does not answer.
    pub fn list(&self) -> Result<Vec<OutputEntry>> {
        Ok(self.ask(OutputOp::List(Nothing {}))?.0.entries)
    }

    /// Opens it.
    ///
    /// # Errors
    /// As of open(2). EOPNOTSUPP: `O_TMPFILE`.
    pub fn open(&self, flags: c_int, mode: u32) -> Result {
        let is_path = flags & libc::O_PATH != 0;
        let has = |flag| !is_path && flags & flag == flag;
        if has(libc::O_TMPFILE) {
            return Err(libc::EOPNOTSUPP);
        }
        let creates = has(libc::O_CREAT);
        if creates && flags & libc::O_DIRECTORY != 0 {
            return Err(libc::EINVAL);
        }
        if creates && self.is_of_dir {
            return Err(libc::EISDIR);
        }
        let writes = !is_path && flags & libc::O_ACCMODE != libc::O_RDONLY;
        if creates || writes || has(libc::O_TRUNC) {
            return self.create(flags, mode);
        }
        if self.is_root() || is_path {
            return self.stand_in(self.look()?, flags);
        }
        let (reply, fd) = self.ask(OutputOp::Open(Nothing {}))?;
        let info = reply.output.ok_or(libc::EIO)?;
        let Some(fd) = fd else { return self.stand_in(info, flags) };
        if self.is_of_dir || flags & libc::O_DIRECTORY != 0 {
            let _ = sys::close(fd);
            return Err(libc::ENOTDIR);
        }
        self.note(fd, info, flags)
    }

    /// A real descriptor stands for a directory, or for what is only named.
    fn stand_in(&self, info: OutputInfo, flags: c_int) -> Result {
        if flags & libc::O_DIRECTORY != 0 && !is_dir(&info) {
            return Err(libc::ENOTDIR);
        }
        let kept = if is_dir(&info) { KEPT } else { KEPT & !libc::O_DIRECTORY };
        let fd = sys::open(&dir_of_stand_ins()?, flags & kept)?;
        outfds::insert(fd, Handle::named(self, info));
        Ok(fd)
    }

    fn note(&self, fd: c_int, info: OutputInfo, flags: c_int) -> Result {
        if flags & libc::O_CLOEXEC == 0 {
            sys::fcntl(fd, libc::F_SETFD, 0)?;
        }
        outfds::insert(fd, Handle::named(self, info));
        Ok(fd)
    }

    fn create(&self, flags: c_int, mode: u32) -> Result {
        if self.is_root() {
            return Err(libc::EISDIR);
        }
        let mode = mode & 0o777 & !sys::umask();
        let (reply, fd) = self.ask(OutputOp::Create(CreateOutput { flags, mode }))?;
        let fd = fd.ok_or(libc::EISDIR)?;
        if reply.token == 0 {
            return self.note(fd, reply.output.unwrap_or_default(), flags);
        }
        if flags & libc::O_CLOEXEC == 0 {
            sys::fcntl(fd, libc::F_SETFD, 0)?;
        }
        if !outfds::insert(fd, Handle::written(reply.token)) {
            // A child of vfork(2), which is about to start another program.
            let _ = agent::commit(reply.token);
        }
        Ok(fd)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// EEXIST, ENOENT, ENOTDIR.
    pub fn make_dir(&self, mode: u32) -> Result {
        let mode = mode & 0o777 & !sys::umask();
        self.ask(OutputOp::MakeDir(mode)).map(|_| 0)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, EBUSY.
    pub fn remove_dir(&self) -> Result {
        self.ask(OutputOp::RemoveDir(Nothing {})).map(|_| 0)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// ENOENT, EISDIR.
    pub fn unlink(&self) -> Result {
        if self.is_of_dir {
            self.look()?;
            return Err(libc::EISDIR);
        }
        self.ask(OutputOp::Unlink(Nothing {})).map(|_| 0)
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// EXDEV: a directory, or to another dataset; EEXIST, if it must not replace another file.
    pub fn rename(&self, to: &Output, exclusive: bool) -> Result {
        if self.dataset != to.dataset {
            return Err(libc::EXDEV);
        }
        if self.is_of_dir || to.is_of_dir {
            return self.look().and(Err(libc::EXDEV));
        }
        self.ask(OutputOp::Rename(RenameOutput { to: to.path.clone(), exclusive })).map(|_| 0)
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// ENOENT, EPERM.
    pub fn set(&self, set: SetOutput) -> Result {
        self.ask(OutputOp::Set(set)).map(|_| 0)
    }

    /// Sets the length of a file.
    ///
    /// # Errors
    /// As of truncate(2).
    pub fn truncate(&self, len: i64) -> Result {
        let fd = self.open(libc::O_WRONLY | libc::O_CLOEXEC, 0)?;
        // SAFETY: touches no memory.
        let cut = unsafe { sys::syscall!(libc::SYS_ftruncate, fd, len) };
        let closed = crate::close::forget(fd);
        let _ = sys::close(fd);
        closed.end()?;
        cut.map(|_| 0)
    }

    /// Changes the owner to who has it: that is the only one.
    ///
    /// # Errors
    /// EPERM: another one. As of [`Output::look`].
    pub fn own(&self, uid: u32, gid: u32) -> Result {
        let info = self.info()?;
        let is_same = |wanted: u32, is: u32| wanted == u32::MAX || wanted == is;
        if is_same(uid, info.uid) && is_same(gid, info.gid) { Ok(0) } else { Err(libc::EPERM) }
    }

    /// A path that is there, for calls which say something of any file system.
    ///
    /// # Errors
    /// As of [`Output::look`].
    pub fn real_dir(&self) -> Result<CString> {
        self.look()?;
        c_path(config().agent_dir.clone())
    }
}
