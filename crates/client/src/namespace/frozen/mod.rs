//! Frozen datasets of the cluster, at `/.datasets/NAME@VERSION` (FanStore §5.3). Nobody changes
//! them, so a client that has read a dataset's table asks no server about its names any more, and
//! reads data from its partitions, which are files of the cluster.
//!
//! Who may do what is decided here, by the modes and lists that were packed.

mod data;
mod loaded;
mod place;

use std::sync::Arc;

use bytes::Bytes;
use saker_dataset::table::ROOT;
use saker_types::acl::{self, Acl};
use saker_types::policy::PolicyId;
use saker_types::wire::{At, Entry};
use saker_types::{Access, Class, Errno, Error, FileKind, Locator, Result, access};

use crate::datasets::FrozenDataset;
use crate::namespace::api::Namespace;
use crate::namespace::listing::DirStream;
use crate::net::groups::full_cred;
use crate::{Caller, DirItem, File, Fs, OpenFlags};

use data::FrozenFile;
pub(crate) use loaded::Cache;
use place::Place;

/// The directory of all datasets, in the root.
pub(crate) const NAME: &[u8] = b".datasets";
/// The policy by which all that is in it is known.
pub(crate) const POLICY: u64 = PolicyId::FROZEN.0;
/// Cookies of `.` and `..` come before the first.
const COOKIE_FIRST: u64 = 3;

/// The directory of all datasets.
pub(crate) fn root() -> Locator {
    let id = saker_types::id::frozen_id(0, 0);
    Locator::entry(saker_types::ROOT, Bytes::from_static(NAME), id).under(POLICY)
}

/// The namespace, as a client sees it.
#[derive(Clone, Copy)]
pub(crate) struct FrozenNamespace<'a> {
    pub(crate) fs: &'a Fs,
}

impl FrozenNamespace<'_> {
    /// Follows names; nobody goes through a directory without the right to search it.
    async fn walk(&self, who: &Caller, at: &At) -> Result<Place> {
        let mut place = self.anchor(&at.anchor).await?;
        for (i, name) in at.path.iter().enumerate() {
            match place.kind() {
                FileKind::Directory => {}
                FileKind::Symlink => {
                    return Err(Error::symlink(i.saturating_sub(1), place.target()));
                }
                _ => return Err(Error::at(Errno::ENOTDIR, i.saturating_sub(1))),
            }
            let may = check(who, &place, Access::X);
            may.map_err(|e| Error { component: Some(i as u32), ..e })?;
            let found = self.child(&place, name).await?;
            place = found.ok_or_else(|| Error::at(Errno::ENOENT, i))?;
            let expected = at.expect.get(i).copied().unwrap_or(0);
            if expected != 0 && expected != place.id() {
                return Err(Error::elsewhere(i));
            }
        }
        Ok(place)
    }

    /// Where a walk begins.
    async fn anchor(&self, loc: &Locator) -> Result<Place> {
        let (number, ino) = saker_types::id::frozen_inode(loc.id).ok_or(Errno::ESTALE)?;
        if number == 0 {
            return Ok(Place::All);
        }
        if ino == ROOT {
            return match self.fs.frozen.numbered(number) {
                Some(dataset) => Ok(Place::root_of(dataset)),
                None => self.root_of(self.record_of(number, loc).await?).await,
            };
        }
        let dataset = match self.fs.frozen.numbered(number) {
            Some(dataset) => dataset,
            None => self.fs.frozen.load(self.fs, &self.record_of(number, loc).await?).await?,
        };
        if ino >= dataset.table.len() {
            return Err(Errno::ESTALE.into());
        }
        Ok(Place::In { dataset, ino, loc: loc.clone() })
    }

    /// The record of a number: of a handle that was had before this client knew of it.
    async fn record_of(&self, number: u32, loc: &Locator) -> Result<Arc<FrozenDataset>> {
        let name = std::str::from_utf8(&loc.name).unwrap_or_default();
        let found = self.fs.frozen.record_of(self.fs, number, name).await?;
        found.ok_or_else(|| Errno::ESTALE.into())
    }

    /// The root of a dataset. Its table is read only if its record does not say all.
    async fn root_of(&self, record: Arc<FrozenDataset>) -> Result<Place> {
        if let (None, Some(root)) = (self.fs.frozen.numbered(record.number), record.root)
            && !root.has_xattrs
        {
            return Ok(Place::Root { record, root });
        }
        Ok(Place::root_of(self.fs.frozen.load(self.fs, &record).await?))
    }

    /// The same place, with its dataset's table.
    async fn loaded(&self, place: Place) -> Result<Place> {
        match place {
            Place::Root { record, .. } => {
                Ok(Place::root_of(self.fs.frozen.load(self.fs, &record).await?))
            }
            place => Ok(place),
        }
    }

    async fn child(&self, dir: &Place, name: &Bytes) -> Result<Option<Place>> {
        if name.len() > saker_types::limits::NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        match dir {
            Place::All => {
                let Ok(text) = std::str::from_utf8(name) else { return Ok(None) };
                match self.fs.frozen.named(self.fs, text).await? {
                    Some(record) => self.root_of(record).await.map(Some),
                    None => Ok(None),
                }
            }
            Place::Root { record, .. } => {
                let dataset = self.fs.frozen.load(self.fs, record).await?;
                let child = dataset.table.lookup(ROOT, name);
                Ok(child.map(|child| dir.child(&dataset, name.clone(), child)))
            }
            Place::In { dataset, ino, .. } => {
                let child = dataset.table.lookup(*ino, name);
                Ok(child.map(|child| dir.child(dataset, name.clone(), child)))
            }
        }
    }

    async fn items(&self, dir: Place, after: u64) -> Result<Vec<DirItem>> {
        let item = |place: Place, cookie| {
            let Entry { attr, loc, .. } = place.entry();
            DirItem { name: loc.name.clone(), cookie, attr, loc }
        };
        let mut items = Vec::new();
        let dir = self.loaded(dir).await?;
        match &dir {
            Place::All => {
                let names = loaded::names(self.fs).await?;
                for (cookie, name) in (COOKIE_FIRST..).zip(names) {
                    if cookie > after
                        && let Some(record) = self.fs.frozen.named(self.fs, &name).await?
                    {
                        let root = match record.root {
                            // Who lists needs no attributes but these.
                            Some(root) => Place::Root { record, root },
                            None => self.root_of(record).await?,
                        };
                        items.push(item(root, cookie));
                    }
                }
            }
            Place::Root { .. } => {}
            Place::In { dataset, ino, .. } => {
                let skipped = (after + 1).saturating_sub(COOKIE_FIRST);
                let children = dataset.table.children_from(*ino, skipped);
                for (cookie, (name, child)) in (COOKIE_FIRST + skipped..).zip(children) {
                    let name = Bytes::copy_from_slice(name);
                    items.push(item(dir.child(dataset, name, child), cookie));
                }
            }
        }
        Ok(items)
    }
}

/// May a caller do this to what is there?
fn check(who: &Caller, place: &Place, want: Access) -> Result<()> {
    let attr = place.attr();
    let list = place.xattr(acl::ACCESS);
    let list = list.and_then(|raw| Acl::parse(&raw).ok().flatten());
    let check = |cred| access::check(attr.mode, attr.uid, attr.gid, list.as_ref(), cred, want);
    match check(&who.cred()) {
        Err(error) if error.is(Class::NeedGroups) => check(&full_cred(who)),
        checked => checked,
    }
}

impl Namespace for FrozenNamespace<'_> {
    async fn lookup(&self, who: &Caller, at: &At) -> Result<Entry> {
        Ok(self.walk(who, at).await?.entry())
    }

    async fn getattr(&self, who: &Caller, at: &At) -> Result<Entry> {
        self.lookup(who, at).await
    }

    async fn access(&self, who: &Caller, at: &At, want: u32) -> Result<()> {
        let place = self.walk(who, at).await?;
        if want & 2 != 0 {
            return Err(Errno::EROFS.into());
        }
        check(who, &place, Access(want))
    }

    async fn open(&self, who: &Caller, at: &At, flags: OpenFlags) -> Result<(File, Entry)> {
        let place = self.walk(who, at).await?;
        let entry = place.entry();
        match place.kind() {
            FileKind::Symlink => {
                let component = at.path.len().saturating_sub(1);
                return Err(Error::symlink(component, place.target()));
            }
            FileKind::Directory if flags.write => return Err(Errno::EISDIR.into()),
            _ => {}
        }
        check(who, &place, Access(flags.access() & !2))?;
        let file = match &place {
            Place::In { dataset, ino, .. } if place.kind() == FileKind::Regular => {
                let source = FrozenFile::open(self.fs, dataset, *ino).await?;
                File::of_source(entry.clone(), flags, source)?
            }
            _ => File::of_source(entry.clone(), flags, Bytes::new())?,
        };
        Ok((file, entry))
    }

    async fn readlink(&self, who: &Caller, at: &At) -> Result<Bytes> {
        let place = self.walk(who, at).await?;
        match place.kind() {
            FileKind::Symlink => Ok(place.target()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn readdir(&self, who: &Caller, dir: &Locator, cookie: u64) -> DirStream {
        let (fs, who, dir) = (self.fs.clone(), who.clone(), dir.clone());
        DirStream::later(async move {
            let frozen = FrozenNamespace { fs: &fs };
            let place = frozen.walk(&who, &At::handle(dir)).await?;
            if place.kind() != FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            check(&who, &place, Access::R)?;
            frozen.items(place, cookie).await
        })
    }

    async fn getxattr(&self, who: &Caller, at: &At, name: &[u8]) -> Result<Bytes> {
        let place = self.walk(who, at).await?;
        let is_data = name.starts_with(b"user.");
        if is_data {
            check(who, &place, Access::R)?;
        }
        place.xattr(name).ok_or_else(|| Errno::ENODATA.into())
    }

    async fn listxattr(&self, who: &Caller, at: &At) -> Result<Bytes> {
        Ok(self.walk(who, at).await?.xattr_names())
    }
}
