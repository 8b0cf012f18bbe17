//! What goes where.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::Options;
use saker_types::FileKind;

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::inode::Meta;

/// An entry: 48 bytes, and its name among the plan's bytes.
pub(super) struct Item {
    pub(super) size: u64,
    pub(super) mtime_s: i64,
    pub(super) version: u64,
    pub(super) name: Text,
    pub(super) mtime_ns: u32,
    /// The directory that it is in.
    pub(super) dir: u32,
    pub(super) owner: u32,
    /// One more than the number of its [`Extra`]; 0: none.
    pub(super) extra: u32,
}

const _: () = assert!(size_of::<Item>() == 48);

/// A part of the plan's bytes: where it begins (40 bits), and its length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Text(u64);

impl Text {
    pub(super) fn push(bytes: &[u8], to: &mut Vec<u8>) -> Text {
        let text = Text(to.len() as u64 | (bytes.len() as u64) << 40);
        to.extend_from_slice(bytes);
        text
    }

    pub(super) fn of(self, all: &[u8]) -> &[u8] {
        &all[(self.0 & ((1 << 40) - 1)) as usize..][..(self.0 >> 40) as usize]
    }
}

/// What many entries have in common.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u32,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What few entries have.
pub(super) struct Extra {
    pub(super) link: u64,
    pub(super) target: Vec<u8>,
}

/// All that is to be packed, in the order of the paths.
#[derive(Default)]
pub struct Plan {
    pub(super) items: Vec<Item>,
    /// Paths of directories that have entries.
    pub(super) dirs: Vec<Text>,
    pub(super) owners: Vec<Owner>,
    pub(super) extras: Vec<Extra>,
    /// Names, and paths of directories.
    pub(super) bytes: Vec<u8>,
    /// Of entries that are further names of a file, its first.
    first: HashMap<u32, u32>,
}

/// Entries by their partitions.
pub(super) struct Partitions {
    order: Vec<u32>,
    starts: Vec<usize>,
}

impl Partitions {
    /// Entries of a partition, in order.
    pub(super) fn entries(&self, number: u32) -> &[u32] {
        &self.order[self.starts[number as usize]..self.starts[number as usize + 1]]
    }
}

/// A path in a message.
pub(super) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl Plan {
    /// For each further name of a file, the first in the order of the paths.
    pub(super) fn find_links(&mut self) {
        let mut links = HashMap::new();
        for n in 0..self.len() {
            if let Some(link) = self.link(n) {
                let first = *links.entry(link).or_insert(n);
                if first != n {
                    self.first.insert(n, first);
                }
            }
        }
    }

    /// Refuses files below what is no directory: a list may lead through links.
    pub(super) fn check_ways(&self) -> Result<()> {
        for dir in &self.dirs {
            let dir = dir.of(&self.bytes);
            let ends = dir.iter().enumerate().filter(|(_, c)| **c == b'/').map(|(n, _)| n);
            for path in ends.chain([dir.len()]).map(|end| &dir[..end]) {
                let found = self.search(path);
                let Ok(n) = found else { continue };
                if self.kind(n) == FileKind::Directory {
                    continue;
                }
                let below = [path, b"/"].concat();
                let (Ok(inner) | Err(inner)) = self.search(&below);
                let (inner, path) = (shown(&self.path(inner)), shown(path));
                let what =
                    format!("leads through {path}, which is no directory; name it by its own path");
                return Err(Error::invalid(Path::new(&inner), what));
            }
        }
        Ok(())
    }

    /// The entry at a path, or the first behind it.
    fn search(&self, path: &[u8]) -> Result<u32, u32> {
        let found = self.items.binary_search_by(|item| self.chars(item).cmp(path.iter()));
        found.map(|n| n as u32).map_err(|n| n as u32)
    }

    /// Bytes of a path.
    fn chars(&self, item: &Item) -> impl Iterator<Item = &u8> {
        let dir = self.dirs[item.dir as usize].of(&self.bytes);
        let between: &[u8] = if dir.is_empty() { b"" } else { b"/" };
        dir.iter().chain(between).chain(item.name.of(&self.bytes))
    }

    /// In the order of the paths.
    pub(super) fn cmp(&self, a: &Item, b: &Item) -> Ordering {
        if a.dir == b.dir {
            return a.name.of(&self.bytes).cmp(b.name.of(&self.bytes));
        }
        let [first, second] = [a, b].map(|item| self.dirs[item.dir as usize].of(&self.bytes));
        match first.starts_with(second) || second.starts_with(first) {
            true => self.chars(a).cmp(self.chars(b)),
            false => first.cmp(second),
        }
    }

    /// Entries; their numbers are below.
    pub(super) fn len(&self) -> u32 {
        self.items.len() as u32
    }

    fn item(&self, n: u32) -> &Item {
        &self.items[n as usize]
    }

    fn owner(&self, n: u32) -> &Owner {
        &self.owners[self.item(n).owner as usize]
    }

    fn extra(&self, n: u32) -> Option<&Extra> {
        self.extras.get((self.item(n).extra as usize).checked_sub(1)?)
    }

    /// The path of an entry.
    pub(super) fn path(&self, n: u32) -> Vec<u8> {
        self.chars(self.item(n)).copied().collect()
    }

    /// Its type.
    pub(super) fn kind(&self, n: u32) -> FileKind {
        FileKind::of_mode(self.owner(n).mode).expect("checked when it was added")
    }

    /// Bytes of a file.
    pub(super) fn size(&self, n: u32) -> u64 {
        self.item(n).size
    }

    /// [`super::Entry::version`].
    pub(super) fn version(&self, n: u32) -> u64 {
        self.item(n).version
    }

    /// What it is.
    pub(super) fn meta(&self, n: u32) -> Meta {
        let (item, Owner { mode, uid, gid, rdev, xattrs }) = (self.item(n), self.owner(n));
        Meta {
            mode: *mode,
            uid: *uid,
            gid: *gid,
            size: item.size,
            mtime: (item.mtime_s, item.mtime_ns),
            rdev: *rdev,
            target: self.extra(n).map(|extra| extra.target.clone()).unwrap_or_default(),
            xattrs: xattrs.clone(),
        }
    }

    /// The same for all names of one file, if it has several.
    fn link(&self, n: u32) -> Option<u64> {
        self.extra(n).map(|extra| extra.link).filter(|link| *link != 0)
    }

    /// A file that may have more names.
    pub(super) fn is_linked(&self, n: u32) -> bool {
        self.link(n).is_some()
    }

    /// The first name of the file that an entry names, if it is another one.
    pub(super) fn links_to(&self, n: u32) -> Option<u32> {
        self.first.get(&n).copied()
    }

    /// It is the first name of a file, by which its data is packed.
    pub(super) fn is_file(&self, n: u32) -> bool {
        self.kind(n) == FileKind::Regular && self.links_to(n).is_none()
    }

    /// Files, and their bytes.
    pub fn totals(&self) -> (u64, u64) {
        let files = (0..self.len()).filter(|n| self.is_file(*n));
        files.fold((0, 0), |(files, bytes), n| (files + 1, bytes + self.size(n)))
    }

    /// Entries by their partitions: a file's partition follows from its first path.
    pub(super) fn by_partition(&self, of: u32) -> Partitions {
        let mut path = Vec::new();
        let mut numbers = Vec::with_capacity(self.items.len());
        let mut starts = vec![0; of as usize + 1];
        for n in 0..self.len() {
            path.clear();
            path.extend(self.chars(self.item(self.links_to(n).unwrap_or(n))));
            let number = (xxh3_64(&path) % u64::from(of)) as u32;
            starts[number as usize + 1] += 1;
            numbers.push(number);
        }
        for n in 1..starts.len() {
            starts[n] += starts[n - 1];
        }
        let mut next = starts.clone();
        let mut order = vec![0; numbers.len()];
        for (n, number) in (0..).zip(numbers) {
            let place = &mut next[number as usize];
            order[*place] = n;
            *place += 1;
        }
        Partitions { order, starts }
    }

    /// Says whether two plans, with options, give the same partitions.
    pub(super) fn fingerprint(&self, options: &Options) -> Digest {
        let mut hasher = blake3::Hasher::new();
        let mut field = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        field(format!("{} {}", options.partitions, options.codec).as_bytes());
        let mut path = Vec::new();
        for n in 0..self.len() {
            let (item, owner) = (self.item(n), self.owner(n));
            path.clear();
            path.extend(self.chars(item));
            field(&path);
            let numbers = [
                self.links_to(n).unwrap_or(n).into(),
                item.version,
                owner.mode.into(),
                owner.uid.into(),
                owner.gid.into(),
                item.size,
                item.mtime_s as u64,
                item.mtime_ns.into(),
                owner.rdev.into(),
            ];
            numbers.iter().for_each(|n: &u64| field(&n.to_le_bytes()));
            field(self.extra(n).map_or(&[], |extra| &extra.target));
            for (name, value) in &owner.xattrs {
                field(name);
                field(value);
            }
        }
        Digest(*hasher.finalize().as_bytes())
    }
}
