//! Writing a dataset out as ordinary files.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::inode::{InodeRecord, Kind};
use crate::table::{Ino, ROOT};

impl Dataset {
    /// Writes all that is in the dataset below `to`, which is made. Owners and attributes that this
    /// user may not set are left out. `watch` is called with the bytes of each block, and ends it
    /// by an error.
    ///
    /// # Errors
    /// Invalid: `to` is not empty. Of the dataset, of the system, of `watch`.
    pub fn export(&self, to: &Path, mut watch: impl FnMut(u64) -> Result<()>) -> Result<()> {
        fs::create_dir_all(to).map_err(|e| Error::io(to, e))?;
        let mut there = fs::read_dir(to).map_err(|e| Error::io(to, e))?;
        if there.next().is_some() {
            return Err(Error::invalid(to, "not empty"));
        }
        let (mut all, mut dirs) = (Vec::new(), vec![(to.to_owned(), ROOT)]);
        self.each(|path, ino| all.push((to.join(OsStr::from_bytes(path)), ino)));
        let mut first: HashMap<Ino, PathBuf> = HashMap::new();
        for (path, ino) in all {
            let inode = self.table().inode(ino);
            let is_dir = inode.is_dir();
            if let Some(other) = first.get(&ino) {
                fs::hard_link(other, &path).map_err(|e| Error::io(&path, e))?;
                continue;
            }
            if is_dir {
                fs::create_dir(&path).map_err(|e| Error::io(&path, e))?;
                dirs.push((path, ino));
                continue;
            }
            self.make(&path, ino, &mut watch)?;
            self.describe(&path, ino)?;
            if inode.nlink > 1 {
                first.insert(ino, path);
            }
        }
        // Below first: what is made in a directory changes its time, and it may be read-only.
        dirs.iter().rev().try_for_each(|(path, ino)| self.describe(path, *ino))
    }

    fn make(&self, path: &Path, ino: Ino, watch: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let inode = self.table().inode(ino);
        let io = |e: std::io::Error| Error::io(path, e);
        let node = |kind| {
            let made = rustix::fs::mknodat(CWD, path, kind, Mode::empty(), inode.rdev.into());
            made.map_err(|e| Error::io(path, e))
        };
        match inode.kind() {
            Kind::File => {
                let mut options = File::options();
                let mut file =
                    options.write(true).create_new(true).mode(0o600).open(path).map_err(io)?;
                self.read(ino, |block| {
                    file.write_all(&block).map_err(io)?;
                    watch(block.len() as u64)
                })
            }
            Kind::Symlink => {
                let target = self.table().target(ino).unwrap_or_default();
                std::os::unix::fs::symlink(OsStr::from_bytes(target), path).map_err(io)
            }
            Kind::Fifo => node(FileType::Fifo),
            Kind::Socket => node(FileType::Socket),
            Kind::CharDevice => node(FileType::CharacterDevice),
            Kind::BlockDevice => node(FileType::BlockDevice),
            Kind::Directory => unreachable!("made before"),
        }
    }

    /// Owner, permissions, attributes and time.
    fn describe(&self, path: &Path, ino: Ino) -> Result<()> {
        let inode: &InodeRecord = self.table().inode(ino);
        if inode.is_implied() {
            return Ok(());
        }
        let is_link = inode.kind() == Kind::Symlink;
        let now = fs::symlink_metadata(path).map_err(|e| Error::io(path, e))?;
        if (now.uid(), now.gid()) != (inode.uid, inode.gid) {
            // As cp and tar do for users.
            let _ = std::os::unix::fs::lchown(path, Some(inode.uid), Some(inode.gid));
        }
        for (name, value) in self.table().xattrs(ino) {
            let _ = rustix::fs::lsetxattr(path, name, value, XattrFlags::empty());
        }
        if !is_link {
            let mode = Permissions::from_mode(inode.mode & 0o7777);
            fs::set_permissions(path, mode).map_err(|e| Error::io(path, e))?;
        }
        let time = Timespec { tv_sec: inode.mtime_s, tv_nsec: inode.mtime_ns.into() };
        let times = Timestamps { last_access: time, last_modification: time };
        let set = rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW);
        set.map_err(|e| Error::io(path, e))
    }
}
