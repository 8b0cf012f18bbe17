//! A tree in memory that nobody can change.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use saker_types::wire::{At, Entry};
use saker_types::{Access, Attr, Errno, Error, FileKind, InodeId, Locator, Result, access};

use crate::namespace::api::Namespace;
use crate::namespace::dispatch::{AnyNamespace, Attached};
use crate::namespace::listing::DirStream;
use crate::{Caller, DirItem, File, Fs, OpenFlags};

/// Id of the root; those of all others follow.
const ROOT: InodeId = 1 << 60;
/// Cookies of `.` and `..` come before the first.
const COOKIE_FIRST: u64 = 3;

enum What {
    Dir(BTreeMap<Bytes, InodeId>),
    File(Bytes),
    Link(Bytes),
}

struct Node {
    loc: Locator,
    mode: u32,
    what: What,
}

pub(crate) struct InMemory {
    nodes: BTreeMap<InodeId, Node>,
    policy: u64,
}

impl InMemory {
    /// With an empty root.
    pub(crate) fn new(policy: u64) -> InMemory {
        let mut memory = InMemory { nodes: BTreeMap::new(), policy };
        let root = Locator::entry(0, Bytes::new(), ROOT);
        memory.put(root, 0o755, What::Dir(BTreeMap::new()));
        memory
    }

    /// It serves this place from now on.
    pub(crate) fn attach(self, fs: &Fs, place: &[&'static str]) -> Locator {
        let root = self.nodes[&ROOT].loc.clone();
        let place = place.iter().map(|name| Bytes::from_static(name.as_bytes())).collect();
        let serving = AnyNamespace::InMemory(Arc::new(self));
        fs.namespaces.attach(Attached { root: root.clone(), place, serving });
        root
    }

    pub(crate) fn dir(&mut self, at: InodeId, name: &'static str, mode: u32) -> InodeId {
        self.add(at, name, mode, What::Dir(BTreeMap::new()))
    }

    pub(crate) fn file(&mut self, at: InodeId, name: &'static str, data: &'static [u8]) -> InodeId {
        self.add(at, name, 0o644, What::File(Bytes::from_static(data)))
    }

    pub(crate) fn link(&mut self, at: InodeId, name: &'static str, target: &'static str) {
        self.add(at, name, 0o777, What::Link(Bytes::from_static(target.as_bytes())));
    }

    pub(crate) fn root(&self) -> InodeId {
        ROOT
    }

    fn add(&mut self, at: InodeId, name: &'static str, mode: u32, what: What) -> InodeId {
        let (name, id) = (Bytes::from_static(name.as_bytes()), ROOT + self.nodes.len() as u64);
        self.put(Locator::entry(at, name.clone(), id), mode, what);
        let Some(Node { what: What::Dir(names), .. }) = self.nodes.get_mut(&at) else {
            panic!("no directory")
        };
        names.insert(name, id);
        id
    }

    fn put(&mut self, loc: Locator, mode: u32, what: What) {
        let loc = loc.under(self.policy);
        self.nodes.insert(loc.id, Node { loc, mode, what });
    }

    fn walk(&self, who: &Caller, at: &At) -> Result<&Node> {
        let mut node = self.nodes.get(&at.anchor.id).ok_or(Errno::ESTALE)?;
        for (i, name) in at.path.iter().enumerate() {
            let names = match &node.what {
                What::Dir(names) => names,
                What::File(_) => return Err(Error::at(Errno::ENOTDIR, i.saturating_sub(1))),
                What::Link(target) => return Err(Error::symlink(i - 1, target.clone())),
            };
            node.check(who, Access::X).map_err(|e| Error { component: Some(i as u32), ..e })?;
            let id = names.get(name).ok_or_else(|| Error::at(Errno::ENOENT, i))?;
            node = &self.nodes[id];
        }
        Ok(node)
    }
}

impl Node {
    fn check(&self, who: &Caller, want: Access) -> Result<()> {
        access::check(self.attr().mode, 0, 0, None, &who.cred(), want)
    }

    fn attr(&self) -> Attr {
        let (kind, size) = match &self.what {
            What::Dir(_) => (FileKind::Directory, 4096),
            What::File(data) => (FileKind::Regular, data.len()),
            What::Link(target) => (FileKind::Symlink, target.len()),
        };
        let (id, mode, size) = (self.loc.id, kind.bits() | self.mode, size as u64);
        Attr { id, mode, size, nlink: 1, ..Attr::default() }
    }

    fn entry(&self) -> Entry {
        let inline = match &self.what {
            What::Link(target) => target.clone(),
            What::Dir(_) | What::File(_) => Bytes::new(),
        };
        Entry { attr: self.attr(), loc: self.loc.clone(), inline, ..Entry::default() }
    }
}

impl Namespace for InMemory {
    async fn lookup(&self, who: &Caller, at: &At) -> Result<Entry> {
        Ok(self.walk(who, at)?.entry())
    }

    async fn getattr(&self, who: &Caller, at: &At) -> Result<Entry> {
        self.lookup(who, at).await
    }

    async fn access(&self, who: &Caller, at: &At, want: u32) -> Result<()> {
        let node = self.walk(who, at)?;
        if want & 2 != 0 {
            return Err(Errno::EROFS.into());
        }
        node.check(who, Access(want))
    }

    async fn open(&self, who: &Caller, at: &At, flags: OpenFlags) -> Result<(File, Entry)> {
        let node = self.walk(who, at)?;
        let data = match &node.what {
            What::File(data) => data.clone(),
            What::Dir(_) => Bytes::new(),
            What::Link(target) => {
                return Err(Error::symlink(at.path.len() - 1, target.clone()));
            }
        };
        node.check(who, Access(flags.access() & !2))?;
        Ok((File::of_source(node.entry(), flags, data)?, node.entry()))
    }

    async fn readlink(&self, who: &Caller, at: &At) -> Result<Bytes> {
        match &self.walk(who, at)?.what {
            What::Link(target) => Ok(target.clone()),
            What::Dir(_) | What::File(_) => Err(Errno::EINVAL.into()),
        }
    }

    fn readdir(&self, who: &Caller, dir: &Locator, cookie: u64) -> DirStream {
        let list = || {
            let node = self.walk(who, &At::handle(dir.clone()))?;
            let What::Dir(names) = &node.what else { return Err(Errno::ENOTDIR.into()) };
            node.check(who, Access::R)?;
            let items = (COOKIE_FIRST..).zip(names).map(|(cookie, (name, id))| {
                let Entry { attr, loc, .. } = self.nodes[id].entry();
                DirItem { name: name.clone(), cookie, attr, loc }
            });
            Ok(items.filter(|item| item.cookie > cookie).collect())
        };
        DirStream::of(list())
    }

    async fn getxattr(&self, who: &Caller, at: &At, _: &[u8]) -> Result<Bytes> {
        self.walk(who, at)?;
        Err(Errno::ENODATA.into())
    }

    async fn listxattr(&self, who: &Caller, at: &At) -> Result<Bytes> {
        self.walk(who, at)?;
        Ok(Bytes::new())
    }
}
