//! A directory of the cluster, to be packed.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use saker_dataset::pack::{Entry, Source};
use saker_dataset::{Error, Meta, Result};
use saker_types::wire::At;
use saker_types::{FileKind, Locator, ROOT, time};

use crate::{Caller, Fs, OpenFlags};

/// What is below a directory, as somebody sees it.
pub struct ClusterTree {
    fs: Fs,
    who: Caller,
    root: At,
}

/// An error of the cluster, about a path in the tree.
fn failed(path: &[u8], error: &saker_types::Error) -> Error {
    let path = match path {
        b"" => PathBuf::from("."),
        path => PathBuf::from(String::from_utf8_lossy(path).into_owned()),
    };
    let errno = i32::from(error.errno().0);
    Error::io(&path, std::io::Error::from_raw_os_error(errno))
}

/// Differs when a file's data may differ.
fn version_of(attr: &saker_types::Attr) -> u64 {
    let parts = [attr.ctime_ns, attr.mtime_ns, attr.data_version, attr.truncate_gen];
    parts.into_iter().fold(attr.id, |all, part| all.rotate_left(17) ^ part)
}

impl ClusterTree {
    /// Of a directory.
    pub fn new(fs: &Fs, who: &Caller, root: At) -> ClusterTree {
        ClusterTree { fs: fs.clone(), who: who.clone(), root }
    }

    fn at(&self, path: &[u8]) -> At {
        let mut at = self.root.clone();
        let names = path.split(|c| *c == b'/').filter(|name| !name.is_empty());
        at.path.extend(names.map(Bytes::copy_from_slice));
        at
    }

    /// An inode as it is packed.
    async fn describe(&self, path: &[u8]) -> Result<Entry> {
        let (who, at) = (&self.who, self.at(path));
        let wrong = |error| failed(path, &error);
        let entry = self.fs.getattr(who, &at).await.map_err(wrong)?;
        let attr = &entry.attr;
        let target = match attr.kind() {
            FileKind::Symlink => self.fs.readlink(who, &at).await.map_err(wrong)?.to_vec(),
            _ => Vec::new(),
        };
        let mut xattrs = Vec::new();
        let names = self.fs.listxattr(who, &at).await.map_err(wrong)?;
        for name in names.split(|c| *c == 0).filter(|name| !name.is_empty()) {
            match self.fs.getxattr(who, &at, name).await {
                Ok(value) => xattrs.push((name.to_vec(), value.to_vec())),
                // Somebody has removed it.
                Err(error) if error.errno() == saker_types::Errno::ENODATA => {}
                Err(error) => return Err(wrong(error)),
            }
        }
        xattrs.sort_unstable();
        let meta = Meta {
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            size: if attr.kind() == FileKind::Regular { attr.size } else { 0 },
            mtime: time::unix(attr.mtime_ns),
            rdev: attr.rdev,
            target,
            xattrs,
        };
        let is_linked = attr.nlink > 1 && !attr.is_dir();
        let link = if is_linked { attr.id } else { 0 };
        Ok(Entry { path: path.to_vec(), meta, link, version: version_of(attr) })
    }

    async fn list_all(&self, add: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        // Directories that are still to be listed.
        let mut rest = vec![Vec::new()];
        let root = self.describe(b"").await?;
        if root.meta.kind() != Some(FileKind::Directory) {
            let text = "is no directory of the cluster".to_owned();
            return Err(Error::Invalid { path: Path::new("PATH").to_owned(), what: text });
        }
        add(root)?;
        while let Some(path) = rest.pop() {
            let wrong = |error| failed(&path, &error);
            let loc: Locator = self.fs.lookup(&self.who, &self.at(&path)).await.map_err(wrong)?.loc;
            let mut listing = self.fs.readdir(&self.who, &loc, 0);
            while let Some(item) = listing.next().await.map_err(wrong)? {
                if loc.id == ROOT && item.name == super::HOME[0] {
                    // The datasets that are there.
                    continue;
                }
                let mut below = path.clone();
                if !below.is_empty() {
                    below.push(b'/');
                }
                below.extend_from_slice(&item.name);
                let entry = self.describe(&below).await?;
                if entry.meta.kind() == Some(FileKind::Directory) {
                    rest.push(below);
                }
                add(entry)?;
            }
        }
        Ok(())
    }
}

impl Source for ClusterTree {
    fn list(&self, add: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        self.fs.block_on(self.list_all(add))
    }

    fn read(&self, path: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        let wrong = |error| failed(path, &error);
        self.fs.block_on(async {
            let flags = OpenFlags { read: true, ..OpenFlags::default() };
            let opened = self.fs.open(&self.who, &self.at(path), flags).await;
            let (file, _) = opened.map_err(wrong)?;
            let data = file.read(offset, into.len()).await.map_err(wrong)?;
            into[..data.len()].copy_from_slice(&data);
            file.release().await;
            Ok(data.len())
        })
    }

    fn version(&self, path: &[u8]) -> Result<u64> {
        let got = self.fs.block_on(self.fs.getattr(&self.who, &self.at(path)));
        got.map(|entry| version_of(&entry.attr)).map_err(|error| failed(path, &error))
    }
}
