//! What a node keeps as the home of paths: real files and directories, under their own names.
//!
//! A directory is there if it is on the disk of its home. Other nodes have directories only to put
//! their files in, which say nothing.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use saker_agent_api::{FinishOutput, OutputEntry, OutputInfo, SetOutput};

use super::attributes::{info, note, root_info, times, with_sum_at, with_sum_of};
use super::path::OutputPath;
use crate::error::{Error, Result};

/// Published files and directories.
const FILES: &str = "files";
/// Files that come from other nodes, and copies of files of other nodes.
const INCOMING: &str = "incoming";
/// Private files, and files that are on their way to their homes.
const OUTGOING: &str = "outgoing";
/// Permissions that the agent needs in a directory, whatever programs say.
const DIR_MODE_LEAST: u32 = 0o700;
/// Most bytes of names in an answer to a listing.
pub(super) const LIST_BYTES_MAX: usize = 8 << 20;

/// The output files of one dataset on this node.
pub(crate) struct Store {
    dir: PathBuf,
    /// Directories that are being removed. Changes of names are made one after the other.
    removing: Mutex<BTreeSet<OutputPath>>,
}

/// Opens a file for reading that belongs to this user, whatever its permissions.
///
/// # Errors
/// Of the system.
pub(super) fn open_owned(path: &Path) -> io::Result<File> {
    let open = || File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(path);
    match open() {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            let before = fs::symlink_metadata(path)?.permissions();
            fs::set_permissions(path, Permissions::from_mode(before.mode() | 0o400))?;
            let file = open();
            fs::set_permissions(path, before)?;
            file
        }
        opened => opened,
    }
}

impl Store {
    pub(crate) fn new(dir: PathBuf) -> Store {
        Store { dir, removing: Mutex::default() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the directories, when the first file comes.
    fn make(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        let made = DirBuilder::new().recursive(true).mode(DIR_MODE_LEAST).create(&dir);
        made.map_err(|e| Error::file(&dir, e))?;
        Ok(dir)
    }

    /// Where files from other nodes are while they are not whole.
    ///
    /// # Errors
    /// Of the disk.
    pub(super) fn incoming(&self) -> Result<PathBuf> {
        self.make(INCOMING)
    }

    /// Where private files are, and those that leave.
    ///
    /// # Errors
    /// Of the disk.
    pub(super) fn outgoing(&self) -> Result<PathBuf> {
        self.make(OUTGOING)
    }

    /// Removes what an agent that was killed had not received.
    pub(super) fn clean(&self) {
        let _ = fs::remove_dir_all(self.dir.join(INCOMING));
    }

    pub(super) fn files(&self) -> PathBuf {
        self.dir.join(FILES)
    }

    fn at(&self, path: &OutputPath) -> PathBuf {
        self.files().join(path.as_path())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<OutputPath>> {
        self.removing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attributes of what is published here.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR. Of the disk.
    pub(super) fn look(&self, path: &OutputPath) -> Result<OutputInfo> {
        if path.is_root() {
            return Ok(root_info());
        }
        let meta = fs::symlink_metadata(self.at(path)).map_err(|e| Error::io(path, e))?;
        let info = info(path, &meta);
        if meta.is_dir() {
            return Ok(info);
        }
        Ok(with_sum_at(info, &self.at(path)))
    }

    /// Opens a published file.
    ///
    /// # Errors
    /// ENOENT, EISDIR, EACCES. Of the disk.
    pub(super) fn open(&self, path: &OutputPath) -> Result<(File, OutputInfo)> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options().read(true).custom_flags(flags).open(self.at(path));
        let file = file.map_err(|e| Error::io(path, e))?;
        let meta = file.metadata().map_err(|e| Error::io(path, e))?;
        if meta.is_dir() {
            return Err(Error::new(Errno::ISDIR, path));
        }
        let info = with_sum_of(info(path, &meta), &file);
        Ok((file, info))
    }

    /// Names in a directory whose home is this node.
    ///
    /// # Errors
    /// EFBIG: they are too many. Of the disk.
    pub(super) fn list(
        &self,
        path: &OutputPath,
        is_mine: impl Fn(&OutputPath) -> bool,
    ) -> Result<Vec<OutputEntry>> {
        let about = |e: io::Error| Error::io(path, e);
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let dir = match fs::read_dir(self.at(path)) {
            Ok(dir) => dir,
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {
                return Ok(entries);
            }
            Err(e) => return Err(about(e)),
        };
        for entry in dir {
            let name = entry.map_err(about)?.file_name();
            let child = path.child(name.as_bytes())?;
            if !is_mine(&child) {
                continue;
            }
            // It may be gone by now.
            let Ok(info) = self.look(&child) else { continue };
            bytes += name.len() + 32;
            if bytes > LIST_BYTES_MAX {
                return Err(Error::new(Errno::FBIG, format!("{path}: too many names")));
            }
            let is_dir = info.mode & libc::S_IFMT == libc::S_IFDIR;
            entries.push(OutputEntry { name: name.as_bytes().to_vec(), is_dir, ino: info.ino });
        }
        Ok(entries)
    }

    fn make_parents(&self, path: &OutputPath) -> Result<()> {
        let at = self.at(path);
        let dir = at.parent().unwrap_or(&self.dir);
        let made = DirBuilder::new().recursive(true).mode(DIR_MODE_LEAST).create(dir);
        made.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => Error::new(Errno::NOTDIR, path),
            _ => Error::io(path, e),
        })
    }

    /// Puts a whole file in its place, with its attributes: durable, and then visible. One that comes
    /// late stays where it is if a newer one is there.
    ///
    /// # Errors
    /// EISDIR, ENOTDIR; EEXIST, if it must not replace another. Of the disk.
    pub(super) fn place(&self, file: &Path, path: &OutputPath, new: &FinishOutput) -> Result<()> {
        let about = |e: io::Error| Error::io(path, e);
        let opened = open_owned(file).map_err(about)?;
        // Attributes of users are written with the permission to write (xattr(7)).
        opened.set_permissions(Permissions::from_mode(0o600)).map_err(about)?;
        note(&opened, new).map_err(about)?;
        let mode = Permissions::from_mode(new.mode & 0o777);
        opened.set_permissions(mode).map_err(about)?;
        opened.sync_all().map_err(about)?;
        let _names = self.lock();
        self.make_parents(path)?;
        let to = self.at(path);
        match fs::symlink_metadata(&to) {
            Ok(there) if there.is_dir() => Err(Error::new(Errno::ISDIR, path)),
            Ok(_) if new.exclusive => Err(Error::new(Errno::EXIST, path)),
            // It is this file, or one that was closed after it.
            Ok(_) if new.late && self.look(path)?.closed_ns >= new.closed_ns => Ok(()),
            _ => fs::rename(file, &to).map_err(about),
        }
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// EEXIST, ENOTDIR. Of the disk.
    pub(super) fn make_dir(&self, path: &OutputPath, mode: u32) -> Result<()> {
        let mut removing = self.lock();
        if path.is_root() {
            return Err(Error::new(Errno::EXIST, path));
        }
        self.make_parents(path)?;
        // Who removes it must find that somebody uses it.
        removing.remove(path);
        let at = self.at(path);
        fs::create_dir(&at).map_err(|e| Error::io(path, e))?;
        let mode = Permissions::from_mode(mode & 0o777 | DIR_MODE_LEAST);
        fs::set_permissions(&at, mode).map_err(|e| Error::io(path, e))
    }

    /// Makes a directory unless it is there. Says whether it was not.
    ///
    /// # Errors
    /// ENOTDIR: it is a file. Of the disk.
    pub(super) fn ensure_dir(&self, path: &OutputPath, mode: u32) -> Result<bool> {
        match self.make_dir(path, mode) {
            Ok(()) => Ok(true),
            Err(error) if error.errno == libc::EEXIST => match self.look(path)?.mode & libc::S_IFMT
            {
                libc::S_IFDIR => Ok(false),
                _ => Err(Error::new(Errno::NOTDIR, path)),
            },
            Err(error) => Err(error),
        }
    }

    /// Begins to remove a directory of this home. Who makes something in it meanwhile ends that.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR. EBUSY: the root, or somebody else removes it.
    pub(super) fn begin_remove(&self, path: &OutputPath) -> Result<()> {
        let mut removing = self.lock();
        match self.look(path)?.mode & libc::S_IFMT {
            _ if path.is_root() => Err(Error::new(Errno::BUSY, path)),
            libc::S_IFDIR if removing.insert(path.clone()) => Ok(()),
            libc::S_IFDIR => Err(Error::new(Errno::BUSY, path)),
            _ => Err(Error::new(Errno::NOTDIR, path)),
        }
    }

    /// Ends it: the directory is removed, if nobody used it since, and `is_empty` on other nodes.
    ///
    /// # Errors
    /// ENOTEMPTY. Of the disk.
    pub(super) fn end_remove(
        &self,
        path: &OutputPath,
        is_empty: bool,
        is_mine: impl Fn(&OutputPath) -> bool,
    ) -> Result<()> {
        let mut removing = self.lock();
        let is_unused = removing.remove(path);
        if !is_empty || !is_unused {
            return Err(Error::new(Errno::NOTEMPTY, path));
        }
        self.remove_tree(path, &is_mine)
    }

    /// Removes a directory that is here only for names in it, unless there are any.
    ///
    /// # Errors
    /// ENOTEMPTY. Of the disk.
    pub(super) fn remove_empty(
        &self,
        path: &OutputPath,
        is_mine: impl Fn(&OutputPath) -> bool,
    ) -> Result<()> {
        let _names = self.lock();
        match self.remove_tree(path, &is_mine) {
            Err(error) if matches!(error.errno, libc::ENOENT | libc::ENOTDIR) => Ok(()),
            done => done,
        }
    }

    /// Removes a directory, and those in it that say nothing.
    fn remove_tree(&self, path: &OutputPath, is_mine: &impl Fn(&OutputPath) -> bool) -> Result<()> {
        let about = |e: io::Error| Error::io(path, e);
        for entry in fs::read_dir(self.at(path)).map_err(about)? {
            let entry = entry.map_err(about)?;
            let child = path.child(entry.file_name().as_bytes())?;
            if is_mine(&child) || !entry.file_type().map_err(about)?.is_dir() {
                return Err(Error::new(Errno::NOTEMPTY, path));
            }
            self.remove_tree(&child, is_mine)?;
        }
        fs::remove_dir(self.at(path)).map_err(about)
    }

    /// Removes a published file.
    ///
    /// # Errors
    /// ENOENT, EISDIR. Of the disk.
    pub(super) fn unlink(&self, path: &OutputPath) -> Result<()> {
        let _names = self.lock();
        if self.look(path)?.mode & libc::S_IFMT == libc::S_IFDIR {
            return Err(Error::new(Errno::ISDIR, path));
        }
        fs::remove_file(self.at(path)).map_err(|e| Error::io(path, e))
    }

    /// The same, if it is still the file of this version.
    pub(super) fn unlink_version(&self, path: &OutputPath, version: u64) {
        let _names = self.lock();
        if self.look(path).is_ok_and(|info| info.version == version) {
            let _ = fs::remove_file(self.at(path));
        }
    }

    /// Gives a published file another name, whose home is this node, too.
    ///
    /// # Errors
    /// ENOENT, EISDIR, ENOTDIR, EXDEV: a directory; EEXIST. Of the disk.
    pub(super) fn rename(&self, from: &OutputPath, to: &OutputPath, exclusive: bool) -> Result<()> {
        let _names = self.lock();
        if self.look(from)?.mode & libc::S_IFMT == libc::S_IFDIR {
            return Err(Error::new(Errno::XDEV, from));
        }
        self.make_parents(to)?;
        match self.look(to) {
            Ok(there) if there.mode & libc::S_IFMT == libc::S_IFDIR => {
                Err(Error::new(Errno::ISDIR, to))
            }
            Ok(_) if exclusive => Err(Error::new(Errno::EXIST, to)),
            _ => fs::rename(self.at(from), self.at(to)).map_err(|e| Error::io(to, e)),
        }
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// ENOENT. EPERM: of the root. Of the disk.
    pub(super) fn set(&self, path: &OutputPath, new: &SetOutput) -> Result<()> {
        let _names = self.lock();
        if path.is_root() {
            return Err(Error::new(Errno::PERM, path));
        }
        let is_dir = self.look(path)?.mode & libc::S_IFMT == libc::S_IFDIR;
        let (at, about) = (self.at(path), |e: io::Error| Error::io(path, e));
        if let Some(mode) = new.mode {
            let least = if is_dir { DIR_MODE_LEAST } else { 0 };
            let mode = Permissions::from_mode(mode & 0o777 | least);
            fs::set_permissions(&at, mode).map_err(about)?;
        }
        if let Some(mtime_ns) = new.mtime_ns {
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            let set = rustix::fs::utimensat(rustix::fs::CWD, &at, &times(mtime_ns), flags);
            set.map_err(|e| about(e.into()))?;
        }
        Ok(())
    }

    /// Moves a published file out of its place, as its home is another node now.
    ///
    /// # Errors
    /// Of the disk.
    pub(super) fn take_out(&self, path: &OutputPath, to: &Path) -> Result<()> {
        let _names = self.lock();
        fs::rename(self.at(path), to).map_err(|e| Error::io(path, e))
    }

    /// Files that are published here or on their way from here.
    pub(crate) fn count(&self) -> u64 {
        count(&self.files()) + count(&self.dir.join(OUTGOING)).div_ceil(2)
    }
}

/// Files in a directory and below.
fn count(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let count_one = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => count(&entry.path()),
        _ => 1,
    };
    entries.flatten().map(count_one).sum()
}

/// Makes a new file that only this user can read.
///
/// # Errors
/// Of the disk.
pub(super) fn create_new(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    file.map_err(|e| Error::file(path, e))
}
