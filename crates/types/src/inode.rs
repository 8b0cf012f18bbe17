//! Inode rows, attributes and locators. These are prost messages: the same bytes are the value of
//! a row on disk, the change in a journal, and the attribute on the wire.

use bytes::Bytes;

use crate::access::{self, Access, Cred};
use crate::acl::{self, Acl};
use crate::{Errno, Error, InodeId, ROOT, Stamp};

/// Type bits of `st_mode` (inode(7)).
pub const S_IFMT: u32 = 0o170_000;

/// Kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// FIFO.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl FileKind {
    /// The kind in the type bits of a mode.
    pub fn of_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & S_IFMT {
            0o100_000 => FileKind::Regular,
            0o040_000 => FileKind::Directory,
            0o120_000 => FileKind::Symlink,
            0o010_000 => FileKind::Fifo,
            0o140_000 => FileKind::Socket,
            0o020_000 => FileKind::CharDevice,
            0o060_000 => FileKind::BlockDevice,
            _ => return None,
        })
    }

    /// The type bits.
    pub fn bits(self) -> u32 {
        match self {
            FileKind::Regular => 0o100_000,
            FileKind::Directory => 0o040_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Fifo => 0o010_000,
            FileKind::Socket => 0o140_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::BlockDevice => 0o060_000,
        }
    }

    /// `d_type` of getdents64(2).
    pub fn d_type(self) -> u8 {
        (self.bits() >> 12) as u8
    }
}

/// What stat(2) shows, and what a client needs to read and write data.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Attr {
    /// Inode number.
    #[prost(uint64, tag = "1")]
    pub id: InodeId,
    /// Type and permission bits.
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    /// Owner.
    #[prost(uint32, tag = "3")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "4")]
    pub gid: u32,
    /// Bytes.
    #[prost(uint64, tag = "5")]
    pub size: u64,
    /// Links. For a directory 2 + subdirectories, filled in when its totals are collected.
    #[prost(uint32, tag = "6")]
    pub nlink: u32,
    /// Device number of device files, as in mknod(2).
    #[prost(uint32, tag = "7")]
    pub rdev: u32,
    /// Last access (set only by utimes: mounted as noatime).
    #[prost(fixed64, tag = "8")]
    pub atime_ns: Stamp,
    /// Last change of data.
    #[prost(fixed64, tag = "9")]
    pub mtime_ns: Stamp,
    /// Last change of the inode.
    #[prost(fixed64, tag = "10")]
    pub ctime_ns: Stamp,
    /// Birth.
    #[prost(fixed64, tag = "11")]
    pub btime_ns: Stamp,
    /// Counts truncations; data written under an older generation is refused (rule 17).
    #[prost(uint64, tag = "12")]
    pub truncate_gen: u64,
    /// Counts changes of size and inline data; inline data is replaced only at the version that
    /// was read (rule 17).
    #[prost(uint64, tag = "13")]
    pub data_version: u64,
    /// Data may be in chunks on stores; else it is inline and zeros.
    #[prost(bool, tag = "14")]
    pub chunked: bool,
    /// Bytes of the size that were never written or were cleared; about, for a file in chunks.
    #[prost(uint64, tag = "15")]
    pub hole_bytes: u64,
}

impl Attr {
    /// Bytes that take space: exact for a file in its row, else about, and never 0 for one that
    /// may have data (programs take that for a file without any).
    pub fn stored_bytes(&self) -> u64 {
        let stored = self.size.saturating_sub(self.hole_bytes);
        if self.chunked && self.size > 0 { stored.max(1) } else { stored }
    }

    /// A file of so many bytes, of which so many are stored.
    pub fn set_size(&mut self, size: u64, stored_bytes: u64) {
        self.size = size;
        self.hole_bytes = size.saturating_sub(stored_bytes);
    }

    /// Kind of the inode. A row with an unknown type is corrupt and was refused when it was read.
    pub fn kind(&self) -> FileKind {
        FileKind::of_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    /// Is it a directory?
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == FileKind::Directory.bits()
    }
}

/// One extended attribute.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Xattr {
    /// Full name with its namespace, as `user.x`.
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    /// Value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// Version of a directory's totals on one shard, as seen by a utimes (rule 21).
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct SeenVersion {
    /// Which shard's totals.
    #[prost(uint32, tag = "1")]
    pub shard: u32,
    /// Their version then.
    #[prost(uint64, tag = "2")]
    pub version: u64,
}

/// Value of an inode row.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Inode {
    /// Attributes. In a reference row only id and type are meaningful.
    #[prost(message, required, tag = "1")]
    pub attr: Attr,
    /// A small file's data (may be shorter than the size: the rest is zeros), or a symlink's target.
    #[prost(bytes = "bytes", tag = "2")]
    pub inline: Bytes,
    /// This row is a reference (hard link): the attributes are in the attribute row of the id at
    /// this slot (SwitchFS §5.5; rule 18).
    #[prost(uint32, optional, tag = "3")]
    pub home_slot: Option<u32>,
    /// Extended attributes, sorted by name; they travel with the row.
    #[prost(message, repeated, tag = "4")]
    pub xattrs: Vec<Xattr>,
    /// Directory: totals that its own times already account for.
    #[prost(message, repeated, tag = "5")]
    pub seen: Vec<SeenVersion>,
    /// Policy of the subtree that starts here ([`PolicyId`](crate::policy::PolicyId)); 0 inherits.
    #[prost(uint64, tag = "6")]
    pub policy: u64,
    /// Quota root id; 0 inherits.
    #[prost(uint32, tag = "7")]
    pub quota: u32,
    /// Appends have been given places up to this byte. Those behind the size are on their way, or
    /// their writers died.
    #[prost(uint64, tag = "8")]
    pub append_end: u64,
    /// Writes that no fsync has flushed yet, as far as the owner has heard of them.
    #[prost(message, repeated, tag = "9")]
    pub unflushed: Vec<Unflushed>,
}

/// Writes of a file that a store has accepted. Until the store flushes they may be lost with its
/// machine's power; it knows which are, and who has them flushed shows it this.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Unflushed {
    /// Which store.
    #[prost(uint32, tag = "1")]
    pub store: u32,
    /// Its epoch then, from 1; losses of power end it.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Number of the first write in the store's log.
    #[prost(uint64, tag = "3")]
    pub first: u64,
    /// How many numbers further the last one is.
    #[prost(uint64, tag = "4")]
    pub more: u64,
}

impl Unflushed {
    /// Adds writes to a list, which has one entry for each store and epoch.
    pub fn add(list: &mut Vec<Unflushed>, new: Unflushed) {
        let same = list.iter_mut().find(|old| (old.store, old.epoch) == (new.store, new.epoch));
        let Some(old) = same else { return list.push(new) };
        let last = |of: &Unflushed| of.first.saturating_add(of.more);
        let end = last(old).max(last(&new));
        old.first = old.first.min(new.first);
        old.more = end - old.first;
    }
}

impl Inode {
    /// Everybody may search it, a directory.
    pub fn is_open(&self) -> bool {
        access::is_open(self.attr.mode, self.xattr(crate::acl::ACCESS).is_some())
    }

    /// Value of an extended attribute.
    pub fn xattr(&self, name: &[u8]) -> Option<&Bytes> {
        self.xattrs.iter().find(|x| x.name == name).map(|x| &x.value)
    }

    /// Sets an extended attribute, or removes it.
    pub fn set_xattr(&mut self, name: &[u8], value: Option<Bytes>) {
        let at = self.xattrs.binary_search_by(|x| x.name[..].cmp(name));
        match (at, value) {
            (Ok(at), Some(value)) => self.xattrs[at].value = value,
            (Ok(at), None) => _ = self.xattrs.remove(at),
            (Err(at), Some(value)) => {
                let name = Bytes::copy_from_slice(name);
                self.xattrs.insert(at, Xattr { name, value });
            }
            (Err(_), None) => {}
        }
    }

    /// The access control list in one of its attributes, [`acl::ACCESS`] or [`acl::DEFAULT`].
    ///
    /// # Errors
    /// EIO when the row holds what is none.
    pub fn acl(&self, name: &[u8]) -> Result<Option<Acl>, Error> {
        let Some(raw) = self.xattr(name) else { return Ok(None) };
        Acl::parse(raw).map_err(|e| Error::new(Errno::EIO).with_text(format!("bad ACL: {e:?}")))
    }

    /// May `cred` do `want` to it?
    pub fn check(&self, cred: &Cred, want: Access) -> Result<(), Error> {
        let a = &self.attr;
        let acl = self.acl(acl::ACCESS)?;
        access::check(a.mode, a.uid, a.gid, acl.as_ref(), cred, want)
    }

    /// chmod(2): permission bits of the mode, and of the list.
    ///
    /// # Errors
    /// As [`Inode::acl`].
    pub fn set_mode_bits(&mut self, bits: u32) -> Result<(), Error> {
        self.attr.mode = (self.attr.mode & !0o7777) | bits & 0o7777;
        if let Some(mut acl) = self.acl(acl::ACCESS)? {
            acl.set_mode(bits);
            self.set_xattr(acl::ACCESS, Some(acl.encode()));
        }
        Ok(())
    }

    /// What a client said of flushes: everything unflushed at data version `flushed` is flushed,
    /// and `new` is not. True if this changes the row.
    pub fn note_flushes(&mut self, flushed: Option<u64>, new: &[Unflushed]) -> bool {
        let clears = flushed == Some(self.attr.data_version) && !self.unflushed.is_empty();
        if clears {
            self.unflushed.clear();
        }
        new.iter().for_each(|writes| Unflushed::add(&mut self.unflushed, *writes));
        clears || !new.is_empty()
    }

    /// Where clients find the inode of a row at an entry: there, or, if the row is a reference, at
    /// its home.
    pub fn handle_at(&self, entry: Locator) -> Locator {
        match self.home_slot {
            Some(slot) => Locator::home(self.attr.id, slot).under(entry.policy),
            None => Locator { id: self.attr.id, ..entry },
        }
    }
}

/// Where an inode was last known to be: an anchor of a request, or an open handle's row (rule 16).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Message)]
pub struct Locator {
    /// Directory of the entry.
    #[prost(uint64, tag = "1")]
    pub pid: InodeId,
    /// Name of the entry.
    #[prost(bytes = "bytes", tag = "2")]
    pub name: Bytes,
    /// The inode that must be found there.
    #[prost(uint64, tag = "3")]
    pub id: InodeId,
    /// Set: not an entry but the attribute row of `id` at this slot.
    #[prost(uint32, optional, tag = "4")]
    pub home_slot: Option<u32>,
    /// Policy that was in force there: its own, or that of the nearest directory above which has
    /// one; 0: none. What is asked for below an anchor inherits it.
    #[prost(uint64, tag = "5")]
    pub policy: u64,
}

impl Locator {
    /// An entry of a directory, where no policy is in force.
    pub fn entry(pid: InodeId, name: Bytes, id: InodeId) -> Locator {
        Locator { pid, name, id, home_slot: None, policy: 0 }
    }

    /// The root directory.
    pub fn root() -> Locator {
        Locator::entry(0, Bytes::new(), ROOT)
    }

    /// The same with a policy in force.
    pub fn under(self, policy: u64) -> Locator {
        Locator { policy, ..self }
    }

    /// Goes where the inode was found, under the policy there if that is told. False: it was there
    /// already.
    pub fn follow(&mut self, found: &Locator) -> bool {
        let policy = if found.policy == 0 { self.policy } else { found.policy };
        let is_new = self.place() != found.place() || self.policy != policy;
        if is_new {
            *self = found.owned().under(policy);
        }
        is_new
    }

    /// Without the policy.
    fn place(&self) -> (InodeId, &Bytes, InodeId, Option<u32>) {
        (self.pid, &self.name, self.id, self.home_slot)
    }

    /// A copy whose name is its own: names in replies are parts of a whole frame, which must not be kept.
    pub fn owned(&self) -> Locator {
        Locator { name: Bytes::copy_from_slice(&self.name), ..*self }
    }

    /// The attributes of a hard-linked inode.
    pub fn home(id: InodeId, slot: u32) -> Locator {
        Locator { home_slot: Some(slot), ..Locator::entry(0, Bytes::new(), id) }
    }
}
