//! Operations of a history as system calls below an open directory of a mount.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use saker_types::Errno;

use crate::copier::close;
use crate::history::{
    FileCall, FileReply, TreeBody, TreeKind, TreeSeen, TreeStat, WriteAt, parse, text,
};

/// `f_type` of FUSE.
const FUSE: i64 = 0x6573_5546;
const XATTR: &str = "user.tag";
/// Longest target of a symbolic link that is read.
const TARGET_MAX: usize = 64;

/// Why there is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It was not done and never will be: the mount was dead before it was asked.
    NotAsked,
    /// Nobody knows.
    Unknown(rustix::io::Errno),
}

/// A directory through one mount.
pub struct Hands {
    dir: OwnedFd,
    /// Flush what is written, not only close it.
    sync: bool,
}

type Sys<T> = Result<T, rustix::io::Errno>;

/// The file once more.
fn reopened(file: &OwnedFd, flags: OFlags) -> Sys<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
}

impl Hands {
    /// Opens a directory; none while no living mount is there.
    pub fn open(path: &Path, sync: bool) -> Option<Hands> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = fs::open(path, flags, Mode::empty()).ok()?;
        // Below a mount that is gone there is a directory of the local disk.
        let fuse = fs::fstatfs(&dir).is_ok_and(|stat| stat.f_type == FUSE);
        fuse.then_some(Hands { dir, sync })
    }

    /// Carries out an operation; `file` is the open file that it writes to and closes.
    pub fn perform(
        &self,
        op: &FileCall,
        file: Option<OwnedFd>,
    ) -> Result<(FileReply, Option<OwnedFd>), Trouble> {
        let mut opened = None;
        let done = match op {
            FileCall::Create { path } => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                self.open_file(path, flags).map(|fd| opened = Some(fd)).map(|()| FileReply::Done)
            }
            FileCall::Open { path, truncate } => {
                let flags = if *truncate { OFlags::TRUNC } else { OFlags::APPEND };
                let flags = OFlags::WRONLY | flags;
                self.open_file(path, flags).map(|fd| opened = Some(fd)).map(|()| FileReply::Done)
            }
            FileCall::Write { .. } | FileCall::Resize { .. } => {
                let file = file.expect("a write has an open file");
                // Once something is written its fate is open, whatever the error.
                return match self.write(op, file) {
                    Ok(()) => Ok((FileReply::Done, None)),
                    Err(error) => Err(Trouble::Unknown(error)),
                };
            }
            op => self.name_op(op),
        };
        match done {
            Ok(reply) => Ok((reply, opened)),
            Err(error) if is_answer(error) => Ok((FileReply::Failed(errno(error)), None)),
            // The kernel's words for a request that it has not handed to the mount's process.
            Err(rustix::io::Errno::NOTCONN) => Err(Trouble::NotAsked),
            Err(error) => Err(Trouble::Unknown(error)),
        }
    }

    fn open_file(&self, path: &str, flags: OFlags) -> Sys<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(&self.dir, path, flags, Mode::from_raw_mode(0o644))
    }

    fn write(&self, op: &FileCall, file: OwnedFd) -> Sys<()> {
        match op {
            FileCall::Write { tag, len, place, .. } => {
                let offset = match place {
                    WriteAt::Start => 0,
                    // As good as any: only this client writes, and O_APPEND decides.
                    WriteAt::End => fs::fstat(&file)?.st_size as u64,
                };
                let mut rest = &text(*tag, offset, *len)[..];
                while !rest.is_empty() {
                    let n = rustix::io::write(&file, rest)?;
                    rest = &rest[n..];
                }
            }
            FileCall::Resize { len, .. } => fs::ftruncate(&file, *len)?,
            _ => {}
        }
        // Half of the time not through the descriptor that it was written with.
        match op {
            FileCall::Write { tag, .. } if self.sync && tag % 2 == 0 => {
                let later = reopened(&file, OFlags::PATH)?;
                close(file.into()).map_err(system)?;
                fs::fsync(reopened(&later, OFlags::RDONLY)?)
            }
            _ => {
                if self.sync {
                    fs::fsync(&file)?;
                }
                close(file.into()).map_err(system)
            }
        }
    }

    fn name_op(&self, op: &FileCall) -> Sys<FileReply> {
        let dir = &self.dir;
        let done = |()| FileReply::Done;
        match op {
            FileCall::Mkdir { path } => {
                fs::mkdirat(dir, path.as_str(), Mode::from_raw_mode(0o755)).map(done)
            }
            FileCall::Rmdir { path } => {
                fs::unlinkat(dir, path.as_str(), AtFlags::REMOVEDIR).map(done)
            }
            FileCall::Unlink { path } => {
                fs::unlinkat(dir, path.as_str(), AtFlags::empty()).map(done)
            }
            FileCall::Symlink { path, tag } => {
                fs::symlinkat(format!("nowhere/{tag}"), dir, path.as_str()).map(done)
            }
            FileCall::Link { from, to } => {
                fs::linkat(dir, from.as_str(), dir, to.as_str(), AtFlags::empty()).map(done)
            }
            FileCall::Rename { from, to, no_replace } => {
                let flags = if *no_replace { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
                fs::renameat_with(dir, from.as_str(), dir, to.as_str(), flags).map(done)
            }
            FileCall::Chmod { path, mode } => {
                let mode = Mode::from_raw_mode(*mode);
                fs::chmodat(dir, path.as_str(), mode, AtFlags::empty()).map(done)
            }
            FileCall::SetMtime { path, ns } => {
                let time = fs::Timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 };
                let times = fs::Timestamps { last_access: time, last_modification: time };
                fs::utimensat(dir, path.as_str(), &times, AtFlags::SYMLINK_NOFOLLOW).map(done)
            }
            FileCall::Setxattr { path, value } => {
                let value = value.to_le_bytes();
                fs::lsetxattr(self.name(path), XATTR, &value, XattrFlags::empty()).map(done)
            }
            FileCall::Removexattr { path } => fs::lremovexattr(self.name(path), XATTR).map(done),
            _ => self.look(op),
        }
    }

    /// The path for calls that take no directory.
    fn name(&self, path: &str) -> CString {
        let name = format!("/proc/self/fd/{}/{path}", self.dir.as_raw_fd());
        CString::new(name).expect("paths of a history have no NUL")
    }

    fn look(&self, op: &FileCall) -> Sys<FileReply> {
        match op {
            FileCall::Read { path } => {
                let file = self.open_file(path, OFlags::RDONLY)?;
                let mut bytes = Vec::new();
                io::Read::read_to_end(&mut std::fs::File::from(file), &mut bytes)
                    .map_err(system)?;
                Ok(FileReply::Content(parse(&bytes)))
            }
            FileCall::Readlink { path } => self.target(path).map(FileReply::Tag),
            FileCall::Getxattr { path } => self.xattr(path).map(FileReply::Tag),
            FileCall::Stat { path } => {
                let stat = fs::statat(&self.dir, path.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(FileReply::Stat(convert(&stat)))
            }
            FileCall::List { path } => self.list(path).map(FileReply::Names),
            FileCall::Audit => {
                let mut all = BTreeMap::new();
                self.audit("", &mut all)?;
                Ok(FileReply::All(Box::new(all)))
            }
            _ => Err(rustix::io::Errno::NOSYS),
        }
    }

    fn target(&self, path: &str) -> Sys<u64> {
        let target = fs::readlinkat(&self.dir, path, Vec::with_capacity(TARGET_MAX))?;
        let tag = target.to_str().ok().and_then(|text| text.strip_prefix("nowhere/"));
        // No tag of ours is 0.
        Ok(tag.and_then(|tag| tag.parse().ok()).unwrap_or(0))
    }

    fn xattr(&self, path: &str) -> Sys<u64> {
        let mut value = [0; 8];
        let len = fs::lgetxattr(self.name(path), XATTR, &mut value)?;
        Ok(if len == 8 { u64::from_le_bytes(value) } else { 0 })
    }

    fn list(&self, path: &str) -> Sys<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = if path.is_empty() { "." } else { path };
        let dir = fs::openat(&self.dir, path, flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::new(dir)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn audit(&self, dir: &str, all: &mut BTreeMap<String, TreeSeen>) -> Sys<()> {
        for name in self.list(dir)? {
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            let raw = fs::statat(&self.dir, path.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
            let stat = convert(&raw);
            let body = match stat.kind {
                TreeKind::Dir => {
                    self.audit(&path, all)?;
                    TreeBody::Dir
                }
                TreeKind::Symlink => TreeBody::Symlink(self.target(&path)?),
                TreeKind::File => match self.look(&FileCall::Read { path: path.clone() })? {
                    FileReply::Content(content) => TreeBody::File(Some(content)),
                    _ => return Err(rustix::io::Errno::IO),
                },
            };
            let xattr = match self.xattr(&path) {
                Ok(value) => Some(value),
                Err(rustix::io::Errno::NODATA) => None,
                Err(error) => return Err(error),
            };
            all.insert(path, TreeSeen { ino: raw.st_ino, stat, xattr, body });
        }
        Ok(())
    }
}

/// Makes a directory through a mount if it is not there.
pub fn make_dir(path: &Path) -> bool {
    let made = fs::mkdirat(CWD, path, Mode::from_raw_mode(0o755));
    matches!(made, Ok(()) | Err(rustix::io::Errno::EXIST))
}

fn system(error: io::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error() as u16)
}

/// What POSIX gives as answers about names; anything else says that something was down.
fn is_answer(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(
        error,
        Errno::NOENT
            | Errno::EXIST
            | Errno::NOTDIR
            | Errno::ISDIR
            | Errno::NOTEMPTY
            | Errno::INVAL
            | Errno::LOOP
            | Errno::PERM
            | Errno::NODATA
    )
}

fn convert(stat: &fs::Stat) -> TreeStat {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => TreeKind::Dir,
        FileType::Symlink => TreeKind::Symlink,
        _ => TreeKind::File,
    };
    TreeStat {
        kind,
        mode: stat.st_mode & 0o7777,
        nlink: stat.st_nlink,
        size: stat.st_size as u64,
        mtime_ns: stat.st_mtime * 1_000_000_000 + stat.st_mtime_nsec as i64,
    }
}
