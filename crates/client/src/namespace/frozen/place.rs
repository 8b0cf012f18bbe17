//! What is at a place of a frozen dataset.

use std::sync::Arc;

use bytes::Bytes;
use saker_dataset::table::{Ino, ROOT};
use saker_types::id::frozen_id;
use saker_types::wire::Entry;
use saker_types::{Attr, FileKind, InodeId, Locator, time};

use super::loaded::LoadedDataset;
use crate::datasets::{FrozenDataset, RootAttr};

/// `st_size` of directories.
const DIRECTORY_BYTES: u64 = 4096;
/// Bits by which a program gets its owner's or its group's rights.
const SET_ID: u32 = 0o6000;

/// Where the root of a dataset is found.
fn root_loc(record: &FrozenDataset) -> Locator {
    let name = Bytes::copy_from_slice(record.name.as_bytes());
    let id = frozen_id(record.number, ROOT);
    Locator::entry(frozen_id(0, 0), name, id).under(super::POLICY)
}

/// All times are when it was modified.
fn at_time(attr: Attr, ns: u64) -> Attr {
    Attr { atime_ns: ns, mtime_ns: ns, ctime_ns: ns, btime_ns: ns, ..attr }
}

/// A place.
pub(super) enum Place {
    /// The directory of all datasets.
    All,
    /// The root of a dataset whose table was not read yet.
    Root {
        /// The dataset.
        record: Arc<FrozenDataset>,
        /// Its root.
        root: RootAttr,
    },
    /// An inode of a dataset.
    In {
        /// The dataset.
        dataset: Arc<LoadedDataset>,
        /// Its number there.
        ino: Ino,
        /// Where it was found.
        loc: Locator,
    },
}

impl Place {
    /// The root of a dataset.
    pub(super) fn root_of(dataset: Arc<LoadedDataset>) -> Place {
        let loc = root_loc(&dataset.record);
        Place::In { dataset, ino: ROOT, loc }
    }

    /// What a name in this directory leads to.
    pub(super) fn child(&self, dataset: &Arc<LoadedDataset>, name: Bytes, ino: Ino) -> Place {
        let id = frozen_id(dataset.record.number, ino);
        let loc = Locator::entry(self.id(), name, id).under(super::POLICY);
        Place::In { dataset: dataset.clone(), ino, loc }
    }

    pub(super) fn id(&self) -> InodeId {
        match self {
            Place::All => frozen_id(0, 0),
            Place::Root { record, .. } => frozen_id(record.number, ROOT),
            Place::In { dataset, ino, .. } => frozen_id(dataset.record.number, *ino),
        }
    }

    pub(super) fn kind(&self) -> FileKind {
        match self {
            Place::All | Place::Root { .. } => FileKind::Directory,
            Place::In { dataset, ino, .. } => dataset.table.inode(*ino).kind(),
        }
    }

    /// Target of a symbolic link.
    pub(super) fn target(&self) -> Bytes {
        match self {
            Place::All | Place::Root { .. } => Bytes::new(),
            Place::In { dataset, ino, .. } => {
                Bytes::copy_from_slice(dataset.table.target(*ino).unwrap_or_default())
            }
        }
    }

    pub(super) fn attr(&self) -> Attr {
        let directory = Attr { id: self.id(), size: DIRECTORY_BYTES, ..Attr::default() };
        match self {
            Place::All => Attr { mode: FileKind::Directory.bits() | 0o555, nlink: 2, ..directory },
            Place::Root { root, .. } => {
                let RootAttr { mode, uid, gid, nlink, .. } = *root;
                let attr = Attr { mode, uid, gid, nlink, ..directory };
                at_time(attr, time::stamp(root.mtime_s, root.mtime_ns))
            }
            Place::In { dataset, ino, .. } => {
                let inode = dataset.table.inode(*ino);
                let (mode, rdev) = match dataset.is_the_superusers() || inode.is_dir() {
                    true => (inode.mode, inode.rdev),
                    false => (inode.mode & !SET_ID, 0),
                };
                let attr = Attr {
                    id: self.id(),
                    mode,
                    uid: inode.uid,
                    gid: inode.gid,
                    size: if inode.is_dir() { DIRECTORY_BYTES } else { inode.size },
                    nlink: inode.nlink,
                    rdev,
                    ..Attr::default()
                };
                at_time(attr, time::stamp(inode.mtime_s, inode.mtime_ns))
            }
        }
    }

    /// Extended attributes.
    fn xattrs(&self) -> Vec<(&[u8], &[u8])> {
        let Place::In { dataset, ino, .. } = self else { return Vec::new() };
        let mut all = dataset.table.xattrs(*ino);
        if !dataset.is_the_superusers() {
            let is_anybodys =
                |name: &[u8]| !name.starts_with(b"security.") && !name.starts_with(b"trusted.");
            all.retain(|(name, _)| is_anybodys(name));
        }
        all
    }

    /// An extended attribute.
    pub(super) fn xattr(&self, name: &[u8]) -> Option<Bytes> {
        let (_, value) = self.xattrs().into_iter().find(|(other, _)| *other == name)?;
        Some(Bytes::copy_from_slice(value))
    }

    /// Names of the extended attributes, each followed by a NUL.
    pub(super) fn xattr_names(&self) -> Bytes {
        let mut names = Vec::new();
        for (name, _) in self.xattrs() {
            names.extend_from_slice(name);
            names.push(0);
        }
        names.into()
    }

    /// As it is told.
    pub(super) fn entry(&self) -> Entry {
        let loc = match self {
            Place::All => super::root(),
            Place::Root { record, .. } => root_loc(record),
            Place::In { loc, .. } => loc.clone(),
        };
        Entry { attr: self.attr(), loc, inline: self.target(), ..Entry::default() }
    }
}
