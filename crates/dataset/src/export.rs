//! Writing a dataset out as ordinary files.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use saker_types::FileKind;

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::inode::InodeRecord;
use crate::table::{Ino, ROOT};

impl Dataset {
    /// Writes all that is in the dataset below `to`, which is made. Owners and attributes that this
    /// user may not set are left out, and so are devices that it may not make: returns how many.
    /// `watch` is called with the bytes of each block, and ends it by an error.
    ///
    /// # Errors
    /// Invalid: `to` is not empty. Of the dataset, of the system, of `watch`.
    pub fn export(&self, to: &Path, mut watch: impl FnMut(u64) -> Result<()>) -> Result<u64> {
        fs::create_dir_all(to).map_err(|e| Error::io(to, e))?;
        let mut there = fs::read_dir(to).map_err(|e| Error::io(to, e))?;
        if there.next().is_some() {
            return Err(Error::invalid(to, "not empty"));
        }
        let mut dirs = vec![(to.to_owned(), ROOT)];
        let (mut first, mut left_out) = (HashMap::<Ino, PathBuf>::new(), 0);
        self.try_each(|path, ino| {
            let path = to.join(OsStr::from_bytes(path));
            let inode = self.table().inode(ino);
            if let Some(other) = first.get(&ino) {
                return fs::hard_link(other, &path).map_err(|e| Error::io(&path, e));
            }
            if inode.is_dir() {
                // Until it has its permissions, nobody else looks into it.
                let mode = if inode.is_implied() { 0o777 } else { 0o700 };
                let made = fs::DirBuilder::new().mode(mode).create(&path);
                made.map_err(|e| Error::io(&path, e))?;
                dirs.push((path, ino));
                return Ok(());
            }
            let is_device = matches!(inode.kind(), FileKind::CharDevice | FileKind::BlockDevice);
            match self.make(&path, ino, &mut watch) {
                Err(Error::Io { source, .. })
                    if is_device && source.kind() == ErrorKind::PermissionDenied =>
                {
                    left_out += 1;
                    return Ok(());
                }
                made => made?,
            }
            self.describe(&path, ino)?;
            if inode.nlink > 1 {
                first.insert(ino, path);
            }
            Ok(())
        })?;
        // Below first: what is made in a directory changes its time, and it may be read-only.
        dirs.iter().rev().try_for_each(|(path, ino)| self.describe(path, *ino))?;
        Ok(left_out)
    }

    fn make(&self, path: &Path, ino: Ino, watch: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let inode = self.table().inode(ino);
        let io = |e: std::io::Error| Error::io(path, e);
        let node = |kind| {
            let made = rustix::fs::mknodat(CWD, path, kind, Mode::empty(), inode.rdev.into());
            made.map_err(|e| Error::io(path, e))
        };
        match inode.kind() {
            FileKind::Regular => {
                let mut options = File::options();
                let mut file =
                    options.write(true).create_new(true).mode(0o600).open(path).map_err(io)?;
                self.read(ino, |block| {
                    file.write_all(&block).map_err(io)?;
                    watch(block.len() as u64)
                })
            }
            FileKind::Symlink => {
                let target = self.table().target(ino).unwrap_or_default();
                std::os::unix::fs::symlink(OsStr::from_bytes(target), path).map_err(io)
            }
            FileKind::Fifo => node(FileType::Fifo),
            FileKind::Socket => node(FileType::Socket),
            FileKind::CharDevice => node(FileType::CharacterDevice),
            FileKind::BlockDevice => node(FileType::BlockDevice),
            FileKind::Directory => unreachable!("made before"),
        }
    }

    /// Owner, permissions, attributes and time.
    fn describe(&self, path: &Path, ino: Ino) -> Result<()> {
        let inode: &InodeRecord = self.table().inode(ino);
        if inode.is_implied() {
            return Ok(());
        }
        let is_link = inode.kind() == FileKind::Symlink;
        let now = fs::symlink_metadata(path).map_err(|e| Error::io(path, e))?;
        let mut mode = inode.mode & 0o7777;
        if (now.uid(), now.gid()) != (inode.uid, inode.gid)
            && std::os::unix::fs::lchown(path, Some(inode.uid), Some(inode.gid)).is_err()
        {
            // As cp and tar do for users: the file is this user's, and must not run as that.
            mode &= 0o1777;
        }
        for (name, value) in self.table().xattrs(ino) {
            let _ = rustix::fs::lsetxattr(path, name, value, XattrFlags::empty());
        }
        if !is_link {
            fs::set_permissions(path, Permissions::from_mode(mode))
                .map_err(|e| Error::io(path, e))?;
        }
        let time =
            Timespec { tv_sec: inode.mtime_s, tv_nsec: inode.mtime_ns.min(999_999_999).into() };
        let times = Timestamps { last_access: time, last_modification: time };
        let set = rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW);
        set.map_err(|e| Error::io(path, e))
    }
}
