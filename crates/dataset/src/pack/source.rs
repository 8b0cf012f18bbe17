//! Where files come from.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::inode::Meta;

/// Longest list of names and longest value of extended attributes, as the kernel has it.
const XATTRS_BYTES_MAX: usize = 64 << 10;

/// Something that is to be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path in the dataset: `a/b`, empty for the root.
    pub path: Vec<u8>,
    /// What it is.
    pub meta: Meta,
    /// The same for all names of one file; 0: it has one name.
    pub link: u64,
    /// Differs when the content may differ.
    pub version: u64,
}

/// Where files come from. Called by several threads.
pub trait Source: Sync {
    /// Hands over all that there is, in any order.
    ///
    /// # Errors
    /// Of the system, for what cannot be packed, and of `add`.
    fn list(&self, add: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()>;

    /// Bytes of a file from an offset on: as many as there is room for, but at its end.
    ///
    /// # Errors
    /// Of the system.
    fn read(&self, path: &[u8], offset: u64, into: &mut [u8]) -> Result<usize>;

    /// [`Entry::version`] of a file now.
    ///
    /// # Errors
    /// Of the system.
    fn version(&self, path: &[u8]) -> Result<u64>;
}

/// A directory of this machine.
pub struct LocalTree {
    root: PathBuf,
}

impl LocalTree {
    /// What is below a directory.
    pub fn new(root: &Path) -> LocalTree {
        LocalTree { root: root.to_owned() }
    }

    fn at(&self, path: &[u8]) -> PathBuf {
        self.root.join(OsStr::from_bytes(path))
    }

    fn add(
        &self,
        path: &Path,
        links: &mut Links,
        add: &mut dyn FnMut(Entry) -> Result<()>,
    ) -> Result<()> {
        // What is packed may be named by a link to it.
        let meta = if path == self.root { fs::metadata(path) } else { fs::symlink_metadata(path) };
        let meta = meta.map_err(|e| Error::io(path, e))?;
        let name = path.strip_prefix(&self.root).unwrap_or(path);
        add(entry(path, name.as_os_str().as_bytes().to_vec(), &meta, links)?)?;
        if meta.is_dir() {
            for child in fs::read_dir(path).map_err(|e| Error::io(path, e))? {
                let child = child.map_err(|e| Error::io(path, e))?;
                self.add(&child.path(), links, add)?;
            }
        }
        Ok(())
    }
}

impl Source for LocalTree {
    fn list(&self, add: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        let root = fs::metadata(&self.root).map_err(|e| Error::io(&self.root, e))?;
        if !root.is_dir() {
            return Err(Error::invalid(&self.root, "not a directory"));
        }
        self.add(&self.root, &mut Links::default(), add)
    }

    fn read(&self, path: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        read(&self.at(path), offset, into)
    }

    fn version(&self, path: &[u8]) -> Result<u64> {
        version_of(&self.at(path))
    }
}

/// Files that a list names, relative to a directory; directories in the list stand for themselves, not
/// for what is in them.
pub struct Listed {
    tree: LocalTree,
    paths: Vec<Vec<u8>>,
}

impl Listed {
    /// Of paths below `root`, relative to it.
    ///
    /// # Errors
    /// Invalid: a path that leads out of it.
    pub fn new(root: &Path, paths: impl IntoIterator<Item = Vec<u8>>) -> Result<Listed> {
        let mut clean = Vec::new();
        for path in paths {
            let names: Vec<&[u8]> =
                path.split(|c| *c == b'/').filter(|n| !n.is_empty() && *n != b".").collect();
            if path.starts_with(b"/") || names.contains(&&b".."[..]) || names.is_empty() {
                let path = PathBuf::from(std::ffi::OsString::from_vec(path));
                return Err(Error::invalid(&path, "not a path below the current directory"));
            }
            clean.push(names.join(&b'/'));
        }
        clean.sort();
        clean.dedup();
        Ok(Listed { tree: LocalTree::new(root), paths: clean })
    }
}

impl Source for Listed {
    fn list(&self, add: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        let mut links = Links::default();
        let mut above: Option<Vec<u8>> = None;
        for path in &self.paths {
            // Directories on the way are as they are here.
            let ends = path.iter().enumerate().filter(|(_, c)| **c == b'/').map(|(n, _)| n);
            for dir in ends.map(|end| &path[..end]) {
                let is_new = above.as_deref().is_none_or(|above| {
                    !above.starts_with(dir) || above.get(dir.len()).is_some_and(|c| *c != b'/')
                });
                if is_new && self.paths.binary_search_by(|path| path[..].cmp(dir)).is_err() {
                    let at = self.tree.at(dir);
                    let meta = fs::symlink_metadata(&at).map_err(|e| Error::io(&at, e))?;
                    add(entry(&at, dir.to_vec(), &meta, &mut links)?)?;
                }
            }
            above = Some(path.clone());
            let at = self.tree.at(path);
            let meta = fs::symlink_metadata(&at).map_err(|e| Error::io(&at, e))?;
            add(entry(&at, path.clone(), &meta, &mut links)?)?;
        }
        Ok(())
    }

    fn read(&self, path: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        self.tree.read(path, offset, into)
    }

    fn version(&self, path: &[u8]) -> Result<u64> {
        self.tree.version(path)
    }
}

/// Numbers of files with several names, by device and inode.
#[derive(Default)]
struct Links(HashMap<(u64, u64), u64>);

impl Links {
    fn number(&mut self, meta: &fs::Metadata) -> u64 {
        if meta.nlink() < 2 || meta.is_dir() {
            return 0;
        }
        let next = self.0.len() as u64 + 1;
        *self.0.entry((meta.dev(), meta.ino())).or_insert(next)
    }
}

fn entry(at: &Path, path: Vec<u8>, meta: &fs::Metadata, links: &mut Links) -> Result<Entry> {
    let mut of = Meta {
        mode: meta.mode(),
        uid: meta.uid(),
        gid: meta.gid(),
        size: if meta.is_file() { meta.len() } else { 0 },
        mtime: (meta.mtime(), meta.mtime_nsec() as u32),
        rdev: meta.rdev() as u32,
        ..Meta::default()
    };
    if meta.is_symlink() {
        let target = fs::read_link(at).map_err(|e| Error::io(at, e))?;
        of.target = target.into_os_string().into_vec();
    }
    of.xattrs = xattrs(at)?;
    Ok(Entry { path, meta: of, link: links.number(meta), version: version(meta) })
}

/// The inode and when it was changed, which nobody can set.
fn version(meta: &fs::Metadata) -> u64 {
    let parts = [meta.dev(), meta.ino(), meta.ctime() as u64, meta.ctime_nsec() as u64];
    xxh3_64(parts.map(u64::to_le_bytes).as_flattened())
}

fn version_of(at: &Path) -> Result<u64> {
    Ok(version(&fs::symlink_metadata(at).map_err(|e| Error::io(at, e))?))
}

fn xattrs(at: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    use rustix::fs::{lgetxattr, llistxattr};
    use rustix::io::Errno;
    let mut all = Vec::new();
    let mut names = vec![0; XATTRS_BYTES_MAX];
    match llistxattr(at, &mut names[..]) {
        Ok(len) => names.truncate(len),
        // File systems without any.
        Err(Errno::NOTSUP) => return Ok(all),
        Err(e) => return Err(Error::io(at, e)),
    }
    for name in names.split(|c| *c == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; XATTRS_BYTES_MAX];
        match lgetxattr(at, name, &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                value.shrink_to_fit();
            }
            // Gone meanwhile, or not for this user.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => continue,
            Err(e) => return Err(Error::io(at, e)),
        }
        all.push((name.to_vec(), value));
    }
    all.sort();
    Ok(all)
}

fn read(at: &Path, offset: u64, into: &mut [u8]) -> Result<usize> {
    // Not what may be there instead by now: a link, or a pipe that nobody writes to.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(at, flags, rustix::fs::Mode::empty());
    let mut file = File::from(opened.map_err(|e| Error::io(at, e))?);
    if offset > 0 {
        file.seek(SeekFrom::Start(offset)).map_err(|e| Error::io(at, e))?;
    }
    let mut done = 0;
    while done < into.len() {
        match file.read(&mut into[done..]) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io(at, e)),
        }
    }
    Ok(done)
}
