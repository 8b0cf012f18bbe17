//! Output files: paths below `NAME@VERSION.out`, which programs may write.
//!
//! The node's agent knows where they are (docs/decisions/0062). Each question has a connection of
//! its own: one that takes long, as a close of a large file does, holds nobody else up.

use std::ffi::{CString, c_int};
use std::os::fd::IntoRawFd;

use saker_agent_api::{
    Nothing, OUTPUT_SUFFIX, OutputEntry, OutputInfo, OutputOp, OutputRequest, RenameOutput, Reply,
    SetOutput,
};
use saker_types::FileKind;

use crate::agent::{self, Refused};
use crate::config::config;
use crate::datasets::{Info, MOUNT, dev_of};
use crate::sys::{self, Result, c_path};

const NS: i64 = 1_000_000_000;

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

/// They are those of a directory.
pub fn is_dir(info: &OutputInfo) -> bool {
    info.mode & libc::S_IFMT == libc::S_IFDIR
}

impl Output {
    /// It is the directory `.out` itself.
    pub fn is_root(&self) -> bool {
        self.path.is_empty()
    }

    /// Asks the agent about it. A descriptor may come with the answer.
    ///
    /// # Errors
    /// What the agent says; EIO without one.
    pub fn ask(&self, op: OutputOp) -> Result<(Reply, Option<c_int>)> {
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
