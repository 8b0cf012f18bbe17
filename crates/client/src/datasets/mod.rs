//! Frozen datasets that the cluster keeps: named, with a version, immutable (FanStore §5.2).
//!
//! ```text
//! /.saker/datasets/              only the superuser's
//!     names/NAME@VERSION.json    what it is, and by their digests its table and its partitions
//!     objects/DIGEST             a table or a partition; versions share what has not changed
//!     counter                    the last number that a dataset was given
//!     lock                       shared by all who freeze, exclusive for whoever collects
//!     names.lock                 exclusive for whoever changes records
//! ```
//!
//! Users see them at `/.datasets/NAME@VERSION` ([`crate::namespace::frozen`]).

mod files;
mod freeze;
mod link;
mod lock;
mod tree;

use std::ops::Range;

use bytes::Bytes;
use saker_dataset::table::ROOT;
use saker_dataset::{Digest, Manifest, Table};
use saker_types::wire::At;
use saker_types::{Errno, Error, Locator, Result};
use serde::{Deserialize, Serialize};

use crate::{Caller, Fs};
use files::Files;
use lock::{Held, LockFile};

pub use freeze::{FreezeName, FreezeProgress, Freezing};
use link::Link;
pub use tree::ClusterTree;

/// Where all of it is, from the root.
const HOME: [&str; 2] = [".saker", "datasets"];
/// Of [`FrozenDataset`].
const FORMAT: u32 = 1;
/// Longest name with its version: it is a file's, with `.json`.
const NAME_BYTES_MAX: usize = 200;
/// What a name's file ends with.
const SUFFIX: &str = ".json";

/// A dataset that the cluster keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenDataset {
    /// Version of this record.
    pub format: u32,
    /// NAME@VERSION.
    pub name: String,
    /// Its number in this cluster, never used again. Inode numbers follow from it.
    pub number: u32,
    /// When it was frozen, in seconds since 1970.
    pub frozen_at: u64,
    /// The user that froze it, who may remove it.
    pub owner: u32,
    /// The path in the cluster at which it is also seen, by a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Its root directory. Records of older versions do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RootAttr>,
    /// What it has.
    pub manifest: Manifest,
}

/// What a stat of a dataset's root directory says, so that it can be answered without its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootAttr {
    /// Type and permissions (`st_mode`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// 2 and the directories in it.
    pub nlink: u32,
    /// Modified, in seconds since 1970.
    pub mtime_s: i64,
    /// And nanoseconds.
    pub mtime_ns: u32,
    /// It has extended attributes, which may have a say in who is let in. They are in the table.
    pub has_xattrs: bool,
}

impl RootAttr {
    /// Of a dataset.
    pub fn of(table: &Table) -> RootAttr {
        let inode = table.inode(ROOT);
        RootAttr {
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            nlink: inode.nlink,
            mtime_s: inode.mtime_s,
            mtime_ns: inode.mtime_ns,
            has_xattrs: !table.xattrs(ROOT).is_empty(),
        }
    }
}

impl FrozenDataset {
    /// Objects that it is made of.
    fn objects(&self) -> impl Iterator<Item = Digest> + '_ {
        let parts = self.manifest.partitions.iter().map(|part| part.digest);
        std::iter::once(self.manifest.table_digest).chain(parts)
    }
}

/// What [`Datasets::collect`] has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// Tables and partitions.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Checks a name: `NAME@VERSION`, each of letters, digits, `.`, `_`, `-`, and not beginning with `.`.
///
/// # Errors
/// EINVAL.
pub fn check_name(name: &str) -> Result<()> {
    let is_word = |word: &str| {
        let odd = |c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c));
        !word.is_empty() && !word.starts_with('.') && !word.contains(odd)
    };
    let parts = name.split_once('@');
    let is_good = parts.is_some_and(|(name, version)| is_word(name) && is_word(version));
    // Jobs have their output files there.
    if is_good && name.len() <= NAME_BYTES_MAX && !name.ends_with(".out") {
        return Ok(());
    }
    let rule = "of letters, digits, '.', '_' and '-', not ending in .out";
    let text = format!("{name:?} is not NAME@VERSION {rule}");
    Err(Error::new(Errno::EINVAL).with_text(text))
}

/// The datasets of a cluster.
#[derive(Clone, Copy)]
pub struct Datasets<'a> {
    files: Files<'a>,
}

impl Fs {
    /// The datasets of the cluster.
    pub fn datasets(&self) -> Datasets<'_> {
        Datasets { files: Files { fs: self } }
    }
}

/// The place of something in the datasets' home.
fn at(names: &[&str]) -> At {
    let all = HOME.iter().chain(names).map(|name| Bytes::copy_from_slice(name.as_bytes()));
    At::below(Locator::root(), all.collect())
}

fn name_at(name: &str) -> At {
    at(&["names", &format!("{name}{SUFFIX}")])
}

/// The place of an object.
pub(crate) fn object_at(digest: &Digest) -> At {
    at(&["objects", &digest.to_string()])
}

impl Datasets<'_> {
    /// All of them, by name.
    ///
    /// # Errors
    /// EIO for a record that cannot be read; of the cluster.
    pub async fn list(&self) -> Result<Vec<FrozenDataset>> {
        let mut found = Vec::new();
        for name in self.names().await? {
            // It may be removed meanwhile.
            found.extend(self.find(&name).await?);
        }
        Ok(found)
    }

    /// Their names, in order.
    pub(crate) async fn names(&self) -> Result<Vec<String>> {
        let files = self.files.names(&at(&["names"])).await?;
        let names = files.iter().filter_map(|name| std::str::from_utf8(name).ok());
        let mut names: Vec<String> =
            names.filter_map(|name| name.strip_suffix(SUFFIX)).map(str::to_owned).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// The one of a name.
    ///
    /// # Errors
    /// EIO for a record that cannot be read; of the cluster.
    pub async fn find(&self, name: &str) -> Result<Option<FrozenDataset>> {
        if check_name(name).is_err() {
            return Ok(None);
        }
        let Some(text) = self.files.read(&name_at(name)).await? else { return Ok(None) };
        let broken = |why: String| {
            let text = format!("the record of dataset {name} cannot be read: {why}");
            Error::new(Errno::EIO).with_text(text)
        };
        let record: FrozenDataset =
            serde_json::from_slice(&text).map_err(|e| broken(e.to_string()))?;
        match record.format {
            FORMAT if record.name == name => Ok(Some(record)),
            FORMAT => Err(broken(format!("it is of {}", record.name))),
            format => Err(broken(format!("format {format}"))),
        }
    }

    /// Bytes of a table or a partition, by its digest.
    ///
    /// # Errors
    /// ENOENT; EIO where it is shorter; of the cluster.
    pub async fn read(&self, digest: &Digest, range: Range<u64>) -> Result<Bytes> {
        let len = (range.end - range.start) as usize;
        let data = self.files.read_part(&object_at(digest), range.start, len).await?;
        if data.len() == len {
            return Ok(data);
        }
        let text = format!("object {digest} has less than {} bytes", range.end);
        Err(Error::new(Errno::EIO).with_text(text))
    }

    /// Removes a name, and the link that was made when it was frozen. Its objects go with the next [`Datasets::collect`], if no other has them.
    /// Clients that have it open may go on reading until then.
    ///
    /// # Errors
    /// ENOENT; EPERM for a user that is neither its owner nor the superuser; those of removing the
    /// link; of the cluster.
    pub async fn remove(&self, who: &Caller, name: &str) -> Result<()> {
        check_name(name)?;
        let remove = async |_: &Held| {
            let record = self.find(name).await?.ok_or(Errno::ENOENT)?;
            if who.uid != 0 && who.uid != record.owner {
                return Err(Errno::EPERM.into());
            }
            if let Some(path) = &record.at {
                Link::remove(self.files.fs, who, path, name).await?;
            }
            self.files.remove(&name_at(name)).await
        };
        self.files.change_names(remove).await
    }

    /// Removes what no name refers to. `waits` is called again and again while others freeze, and
    /// ends that by an error.
    ///
    /// # Errors
    /// EIO for a record that cannot be read: then nothing is removed. Of `waits`, of the cluster.
    pub async fn collect(&self, waits: impl FnMut() -> Result<()>) -> Result<Collected> {
        let held = self.files.lock(LockFile::Objects, true, waits).await?;
        let collected = self.collect_alone(&held).await;
        held.end_with(collected).await
    }

    async fn collect_alone(&self, lock: &Held) -> Result<Collected> {
        let mut used = std::collections::HashSet::new();
        for record in self.list().await? {
            used.extend(record.objects().map(|digest| digest.to_string().into_bytes()));
        }
        let mut collected = Collected::default();
        for name in self.files.names(&at(&["objects"])).await? {
            if used.contains(&name[..]) {
                continue;
            }
            let mut place = at(&["objects"]);
            place.path.push(name);
            lock.check().await?;
            collected.bytes += self.files.size(&place).await?.unwrap_or(0);
            self.files.remove(&place).await?;
            collected.objects += 1;
        }
        Ok(collected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_version() {
        for good in ["a@1", "image-net_1k@2026.11", "A@v1"] {
            check_name(good).unwrap();
        }
        let long = format!("{}@1", "x".repeat(NAME_BYTES_MAX));
        for bad in
            ["a@1.out", "", "a", "@", "a@", "@1", "a@b@c", "a/b@1", ".a@1", "a@.1", "ä@1", &long]
        {
            assert_eq!(check_name(bad).unwrap_err().errno(), Errno::EINVAL, "{bad}");
        }
    }
}
