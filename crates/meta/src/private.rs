//! A private shard: it serves a subtree that one client has for itself, inside of that client (Cudele
//! section 4.1), with a coordinator and an engine of its own. It knows the rows of the cluster that it was
//! given, and tells what has become of them since.
//!
//! ```text
//! adopt(rows) ──> rows, totals of their directories; base: what the cluster has at these keys
//! requests ──> rows
//! changes() ──> where rows and base differ ──> a merge ([`merged`]) ──> base
//! ```
//!
//! The base has of each row the inode's id and a hash, so that it is small and survives a restart. Of a
//! directory that was there the cluster keeps the totals: what comes and goes in it is no change of its row.

mod merged;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use prost::Message;
use saker_engine::Engine;
use saker_types::change::{entry_key, id_key, parse_entry_key, parse_slot_key, slot_key, table};
use saker_types::placement::Slot;
use saker_types::wire::{EntryKey, IdRange, Totals};
use saker_types::{Errno, Error, Inode, InodeId};
use xxhash_rust::xxh3::xxh3_64;

pub use merged::{MergedRow, Unfinished};

use crate::recover::StartError;
use crate::shard::Shard;
use crate::totals::collect::combine;

/// Where a row of an inode is.
#[derive(Clone, Debug, PartialEq)]
pub enum RowPlace {
    /// At a name.
    Entry(EntryKey),
    /// The attributes of an inode with several names, at its home.
    Attr {
        /// Its home slot.
        slot: u32,
        /// The inode.
        id: InodeId,
    },
}

/// A row that is not what the cluster has.
#[derive(Clone, Debug, PartialEq)]
pub struct RowChange {
    /// Where it is.
    pub place: RowPlace,
    /// The row as the cluster is to have it: nothing in it is of this shard. `None`: it is gone.
    pub row: Option<Inode>,
    /// The inode that the cluster has there, as far as this shard knows; 0: none.
    pub expect: InodeId,
    /// That one is a directory.
    pub was_directory: bool,
    /// Home slot of the file whose name this is, if its attributes are a row of their own that the cluster
    /// has.
    pub home_there: Option<u32>,
    /// Of the row here, as the base keeps it.
    hash: u64,
}

/// What the cluster has at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Base {
    id: InodeId,
    hash: u64,
    is_directory: bool,
}

const BASE_BYTES: usize = 17;

impl Base {
    fn to_bytes(self) -> Bytes {
        let mut out = [0; BASE_BYTES];
        out[..8].copy_from_slice(&self.id.to_be_bytes());
        out[8..16].copy_from_slice(&self.hash.to_be_bytes());
        out[16] = self.is_directory.into();
        Bytes::copy_from_slice(&out)
    }

    fn parse(raw: &[u8]) -> Option<Base> {
        let (id, rest) = raw.split_first_chunk()?;
        let (hash, rest) = rest.split_first_chunk()?;
        let &[is_directory] = rest else { return None };
        let (id, hash) = (InodeId::from_be_bytes(*id), u64::from_be_bytes(*hash));
        Some(Base { id, hash, is_directory: is_directory != 0 })
    }
}

/// The key of what the base has of a row.
fn base_key(key: &[u8]) -> Bytes {
    [&[table::BASE], key].concat().into()
}

/// The row without what only its shard knows.
fn as_merged(mut inode: Inode) -> Inode {
    inode.seen.clear();
    inode.unflushed.clear();
    inode.append_end = 0;
    inode
}

fn hash_of(merged: &Inode) -> u64 {
    xxh3_64(&merged.encode_to_vec())
}

fn damaged(what: &str) -> Error {
    Error::new(Errno::EIO).with_text(format!("the private shard is damaged: {what}"))
}

impl Shard {
    /// Takes rows of the cluster, directories with the times that the cluster shows of them: from now on
    /// they are here, and known as what the cluster has. What it has taken before stays as it is. Changes
    /// nothing if it fails.
    ///
    /// # Errors
    /// EEXIST if a row is in the place of one that was made here; EINVAL for a row without an inode.
    pub fn adopt(&mut self, rows: Vec<(RowPlace, Inode)>) -> Result<(), Error> {
        let mut new = Vec::with_capacity(rows.len());
        for (place, inode) in rows {
            let key = self.key_of(&place);
            if self.get(&base_key(&key))?.is_some() {
                continue;
            }
            if inode.attr.id == 0
                || matches!(place, RowPlace::Attr { id, .. } if id != inode.attr.id)
            {
                let text = "a row of the cluster does not say whose it is";
                return Err(Error::new(Errno::EINVAL).with_text(text));
            }
            if self.get(&key)?.is_some() {
                let text = "what is read from the cluster is in the place of something made here";
                return Err(Error::new(Errno::EEXIST).with_text(text));
            }
            new.push((place, key, inode));
        }
        for (place, key, mut inode) in new {
            self.seal_if_large();
            // They are of other shards' totals.
            inode.seen.clear();
            if let RowPlace::Entry(EntryKey { pid, .. }) = place {
                let subdirs = u64::from(inode.attr.is_dir());
                self.shift_totals(pid, |totals| {
                    totals.entries += 1;
                    totals.subdirs += subdirs;
                })?;
            }
            if inode.home_slot.is_none() || matches!(place, RowPlace::Attr { .. }) {
                self.count_inodes(1);
            }
            let (id, is_directory) = (inode.attr.id, inode.attr.is_dir());
            self.put(key.clone(), inode.encode_to_vec().into());
            let hash = hash_of(&as_merged(inode));
            self.put_base(&key, Base { id, hash, is_directory });
        }
        self.seal();
        Ok(())
    }

    /// Where the rows differ from what the cluster has, as of now, in the order of their keys. `None` while
    /// a transaction is between its two halves: ask again. `are_merged`: the cluster is about to get them, so
    /// that from now on their inodes count as its own: their chunks stay.
    ///
    /// # Errors
    /// EIO when rows cannot be read.
    pub fn changes(&mut self, are_merged: bool) -> Result<Option<Vec<RowChange>>, Error> {
        if self.votes.len() > 0 {
            return Ok(None);
        }
        let mut base = self.scanned(table::BASE, |key, value| {
            Some((Bytes::copy_from_slice(&key[1..]), Base::parse(value)?))
        })?;
        let mut base = base.drain(..).peekable();
        let mut changes = Vec::new();
        // In the order of keys, as the base has them.
        for table in [table::ATTR, table::ENTRY] {
            let is_behind = |at: &[u8], key: &[u8]| at[0] == table && at < key;
            let changed = self.scanned(table, |key, value| {
                let mut found = Vec::new();
                while let Some((gone, base)) = base.next_if(|(at, _)| is_behind(at, key)) {
                    found.push((gone, None, Some(base)));
                }
                let same = base.next_if(|(at, _)| *at == key).map(|(_, base)| base);
                let row = Inode::decode(value).ok()?;
                let hash = hash_of(&as_merged(row.clone()));
                if same.is_none_or(|base| base.hash != hash || base.id != row.attr.id) {
                    found.push((Bytes::copy_from_slice(key), Some((row, hash)), same));
                }
                Some(found)
            })?;
            let rest = std::iter::from_fn(|| base.next_if(|(at, _)| at[0] == table));
            let gone: Vec<_> = rest.map(|(gone, base)| (gone, None, Some(base))).collect();
            for (key, row, base) in changed.into_iter().flatten().chain(gone) {
                changes.push(self.change_of(&key, row, base)?);
            }
        }
        if are_merged {
            for row in changes.iter().filter_map(|change| change.row.as_ref()) {
                self.seal_if_large();
                self.put(id_key(table::BASE_ID, row.attr.id), Bytes::new());
            }
            self.seal();
        }
        Ok(Some(changes))
    }

    /// The directories that the cluster has, where it has them.
    ///
    /// # Errors
    /// EIO when rows cannot be read.
    pub fn cluster_dirs(&self) -> Result<Vec<(EntryKey, InodeId)>, Error> {
        let dirs = self.scanned(table::BASE, |key, value| {
            let base = Base::parse(value)?;
            let entry = parse_entry_key(&key[1..]);
            Some(
                entry
                    .filter(|_| base.is_directory)
                    .map(|key| (EntryKey { pid: key.pid, name: key.name.into() }, base.id)),
            )
        })?;
        Ok(dirs.into_iter().flatten().collect())
    }

    /// Inode numbers for what is made here, of which nobody else gives any out.
    pub fn give_ids(&mut self, range: IdRange) {
        if range.count > 0 {
            self.put_ids(range);
            self.given_ids.add(range);
            self.seal();
        }
    }

    /// The inode numbers that are left are not given out any more: where the last records of a journal may be
    /// missing, some of them have been.
    pub fn forget_ids(&mut self) {
        for range in self.given_ids.forget() {
            self.delete(id_key(table::IDS, range.first));
        }
        self.seal();
    }

    /// Is no transaction between its two halves?
    pub fn is_at_rest(&self) -> bool {
        self.votes.len() == 0
    }

    /// A number for an inode of which this shard has no row.
    ///
    /// # Errors
    /// "Try again" while there are none.
    pub fn take_id(&mut self) -> Result<InodeId, Error> {
        let id = self.take_given_id();
        self.seal();
        id
    }

    /// A row as the cluster would get it, a directory with the times that are shown of it.
    ///
    /// # Errors
    /// EIO when it cannot be read.
    pub fn row(&mut self, place: &RowPlace) -> Result<Option<Inode>, Error> {
        let key = self.key_of(place);
        let Some(raw) = self.get(&key)? else { return Ok(None) };
        let row = Inode::decode(raw).map_err(|e| damaged(&e.to_string()))?;
        Ok(self.change_of(&key, Some((row, 0)), None)?.row)
    }

    /// Gives a file with one name, that nobody has open, another number. False: it is not there, or in use.
    ///
    /// # Errors
    /// EIO when its row cannot be read.
    pub fn renumber(&mut self, at: &EntryKey, from: InodeId, to: InodeId) -> Result<bool, Error> {
        let key = self.map.key(at.pid, &at.name);
        let Some(row) = self.entry(&key)? else { return Ok(false) };
        let is_it = row.attr.id == from && row.home_slot.is_none() && !row.attr.is_dir();
        if !is_it || self.locked_by(&key).is_some() || self.not_busy(from).is_err() {
            return Ok(false);
        }
        let mut row = (*row).clone();
        row.attr.id = to;
        self.update_entry(&key, row);
        self.seal();
        Ok(true)
    }

    /// How many inode numbers are left, now and later.
    pub fn ids_left(&self) -> Arc<AtomicU64> {
        self.given_ids.left()
    }

    /// Was it given any rows of the cluster?
    ///
    /// # Errors
    /// EIO when rows cannot be read.
    pub fn has_adopted(&self) -> Result<bool, Error> {
        let mut any = false;
        let scanned = self.engine.scan(&[table::BASE], &[table::BASE + 1], |_, _| {
            any = true;
            ControlFlow::Break(())
        });
        scanned.map(|()| any).map_err(|e| damaged(&e.to_string()))
    }

    /// Is there a row in this place?
    ///
    /// # Errors
    /// EIO when it cannot be read.
    pub fn has_row(&mut self, place: &RowPlace) -> Result<bool, Error> {
        let key = self.key_of(place);
        Ok(self.get(&key)?.is_some())
    }

    /// A number for a new inode.
    pub(crate) fn take_given_id(&mut self) -> Result<InodeId, Error> {
        if self.given_ids.needs_block()
            && let Some(taken) = self.given_ids.next_block()
        {
            // Chunks of an inode are on the stores even if its row was lost with the machine's power.
            self.must_flush();
            self.delete(id_key(table::IDS, taken.from));
            taken.rest.into_iter().for_each(|rest| self.put_ids(rest));
        }
        let none = || Error::retry("inode numbers are being asked for");
        self.given_ids.take().ok_or_else(none)
    }

    /// After a start: what is left of the ids.
    pub(crate) fn resume_given_ids(&mut self) -> Result<(), StartError> {
        let range = |key: &[u8], value: &[u8]| {
            let first = InodeId::from_be_bytes(key[1..].try_into().ok()?);
            Some(IdRange { first, count: u64::from_be_bytes(value.try_into().ok()?) })
        };
        for range in self.rows_of(table::IDS, range)? {
            self.given_ids.add(range);
        }
        Ok(())
    }

    /// Of a private shard: is this an inode that the cluster has? Its chunks end when the cluster says so.
    pub(crate) fn is_of_cluster(&self, id: InodeId) -> Result<bool, Error> {
        Ok(self.limits.private && self.get(&id_key(table::BASE_ID, id))?.is_some())
    }

    fn change_of(
        &mut self,
        key: &[u8],
        row: Option<(Inode, u64)>,
        base: Option<Base>,
    ) -> Result<RowChange, Error> {
        let place = match (parse_entry_key(key), parse_slot_key(key)) {
            (Some(key), _) => RowPlace::Entry(EntryKey { pid: key.pid, name: key.name.into() }),
            (None, Some((slot, id))) => RowPlace::Attr { slot: slot.into(), id },
            (None, None) => return Err(damaged("the key of a row")),
        };
        let expect = base.map_or(0, |base| base.id);
        let was_directory = base.is_some_and(|base| base.is_directory);
        let hash = row.as_ref().map_or(0, |(_, hash)| *hash);
        let mut row = row.map(|(row, _)| row);
        if let Some(row) = row.as_mut().filter(|row| row.attr.is_dir()) {
            let totals: Totals = self.totals(row.attr.id)?;
            let shown = combine(row, &[totals]);
            (row.attr.mtime_ns, row.attr.ctime_ns) = (shown.mtime_ns, shown.ctime_ns);
        }
        let mut home_there = None;
        if let (RowPlace::Entry(_), Some(row)) = (&place, &row)
            && let Some(slot) = row.home_slot
        {
            let home = slot_key(table::ATTR, Slot::from_wire(slot), row.attr.id);
            home_there = self.get(&base_key(&home))?.map(|_| slot);
        }
        // Last: which changes of a directory its times have seen tells what is shown of them.
        let row = row.map(as_merged);
        Ok(RowChange { place, row, expect, was_directory, home_there, hash })
    }

    fn key_of(&self, place: &RowPlace) -> Bytes {
        match place {
            RowPlace::Entry(EntryKey { pid, name }) => entry_key(&self.map.key(*pid, name)),
            RowPlace::Attr { slot, id } => slot_key(table::ATTR, Slot::from_wire(*slot), *id),
        }
    }

    fn put_base(&mut self, key: &[u8], base: Base) {
        self.put(base_key(key), base.to_bytes());
        self.put(id_key(table::BASE_ID, base.id), Bytes::new());
    }

    fn put_ids(&mut self, range: IdRange) {
        let count = Bytes::copy_from_slice(&range.count.to_be_bytes());
        self.put(id_key(table::IDS, range.first), count);
    }

    /// What `read` makes of the rows of a table; it must make something of each.
    fn scanned<T>(
        &self,
        table: u8,
        mut read: impl FnMut(&[u8], &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let (mut found, mut is_whole) = (Vec::new(), true);
        let scanned = self.engine.scan(&[table], &[table + 1], |key, value| {
            match read(key, value) {
                Some(read) => found.push(read),
                None => is_whole = false,
            }
            if is_whole { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        scanned.map_err(|e| damaged(&e.to_string()))?;
        if is_whole { Ok(found) } else { Err(damaged("a row does not decode")) }
    }
}
