//! Typed reading and writing of rows. Every write of a row is made here, in the engine and in the
//! batch's record.
//!
//! Where a request reads the rows that it is about, it waits parked for those that the engine has to
//! load. What is read besides, in the middle of a change or of a task, is waited for right there.

use std::rc::Rc;

use bytes::Bytes;
use prost::Message;
use saker_engine::{Engine, EngineError, RowRead};
use saker_types::change::{Gone, StoreJob, What, entry_key, id_key, slot_key, table};
use saker_types::placement::Slot;
use saker_types::time::later;
use saker_types::wire::{At, Hold, Row};
use saker_types::{Attr, Cred, Errno, Error, FileKind, Inode, InodeId, Key, Locator, Stamp, TxnId};

use crate::namespace::resolve::PathInfo;
use crate::request::{Attempt, Rq, Stop, Wait};
use crate::shard::Shard;

/// Where an inode's attributes are on this shard.
#[derive(Clone, Debug, PartialEq)]
pub enum Spot {
    /// In its entry's row.
    Entry(Key),
    /// In the attribute row of a hard-linked inode (home slot, id).
    Attr(Slot, InodeId),
    /// In the gone record of an orphan, of this slot.
    Orphan(Slot, InodeId),
}

/// An inode found by a path or handle.
pub struct Located {
    /// Where it is.
    pub spot: Spot,
    /// Its row.
    pub inode: Rc<Inode>,
    /// Through what it was found.
    pub way: PathInfo,
}

fn broken(what: &str, e: impl std::fmt::Display) -> Error {
    tracing::error!("{what}: {e}");
    Error::new(Errno::EIO).with_text(format!("{what}: {e}"))
}

fn unreadable(error: EngineError) -> Error {
    broken("cannot read a row", error)
}

fn decoded<M: Message + Default>(raw: Bytes) -> Result<M, Error> {
    M::decode(raw).map_err(|e| broken("a row does not decode", e))
}

impl Shard {
    // ---- raw rows -------------------------------------------------------------------------

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        self.engine.load(key).map_err(unreadable)
    }

    /// The row of what a request is about, if that can be told at once and it is on the disk only,
    /// is fetched meanwhile.
    pub(crate) fn prefetch(&self, at: &At) {
        let known = |pid, name: &[u8]| self.replica.get(pid, name).map(|dir| dir.id);
        let key = match at.path.split_last() {
            None => Some(self.map.key(at.anchor.pid, &at.anchor.name)),
            Some((name, on_the_way)) => {
                let start = known(at.anchor.pid, &at.anchor.name);
                let dir = on_the_way.iter().fold(start, |dir, name| known(dir?, name));
                dir.map(|dir| self.map.key(dir, name))
            }
        };
        let key = key.map(|key| entry_key(&key));
        if let Some(key) = key.filter(|key| !self.inodes.has(key)) {
            self.engine.prefetch(&key);
        }
    }

    pub(crate) fn put(&mut self, key: Bytes, value: Bytes) {
        self.watches.put(&key, &value);
        self.engine.put(&key, &value);
        self.log_change(What::Put(Row { key, value }));
    }

    pub(crate) fn delete(&mut self, key: Bytes) {
        self.engine.delete(&key);
        self.log_change(What::Delete(key));
    }

    pub(crate) fn get_as<M: Message + Default>(&self, key: &[u8]) -> Result<Option<M>, Error> {
        self.get(key)?.map(decoded).transpose()
    }

    fn inode(&mut self, key: &Bytes) -> Result<Option<Rc<Inode>>, Error> {
        if let Some(inode) = self.inodes.get(key) {
            return Ok(Some(inode));
        }
        let raw = self.get(key)?;
        raw.map(|raw| self.looked_at(key, raw)).transpose()
    }

    /// The same; waits while the engine loads the row.
    fn inode_loaded(&mut self, key: &Bytes) -> Attempt<Option<Rc<Inode>>> {
        if let Some(inode) = self.inodes.get(key) {
            return Ok(Some(inode));
        }
        match self.engine.get(key).map_err(unreadable)? {
            RowRead::Found(raw) => Ok(Some(self.looked_at(key, raw)?)),
            RowRead::Absent => Ok(None),
            RowRead::Loading => Err(Stop::Wait(Wait::Row(key.clone()))),
        }
    }

    fn looked_at(&mut self, key: &Bytes, raw: Bytes) -> Result<Rc<Inode>, Error> {
        let inode = Rc::new(decoded::<Inode>(raw)?);
        self.inodes.looked_at(key, &inode);
        Ok(inode)
    }

    fn put_inode(&mut self, key: Bytes, inode: Inode) {
        self.put(key.clone(), inode.encode_to_vec().into());
        self.inodes.put(key, inode);
    }

    // ---- entries --------------------------------------------------------------------------

    /// Row of an entry owned here, whoever has locked it.
    pub(crate) fn entry(&mut self, key: &Key) -> Result<Option<Rc<Inode>>, Error> {
        self.inode(&entry_key(key))
    }

    /// The same; waits while the engine loads it.
    pub(crate) fn entry_loaded(&mut self, key: &Key) -> Attempt<Option<Rc<Inode>>> {
        self.inode_loaded(&entry_key(key))
    }

    /// The same; waits, too, while a transaction holds it, or an operation its inode.
    pub(crate) fn entry_free(&mut self, key: &Key) -> Attempt<Option<Rc<Inode>>> {
        let raw = entry_key(key);
        if let Some(txn) = self.row_locks.holder(&raw) {
            return Err(Stop::Wait(Wait::Txn(txn)));
        }
        let inode = self.inode_loaded(&raw)?;
        if let Some(inode) = &inode {
            self.not_busy(inode.attr.id)?;
        }
        Ok(inode)
    }

    /// Waits while the inode is busy with an operation.
    pub(crate) fn not_busy(&self, id: InodeId) -> Attempt<()> {
        if self.row_locks.is_busy(id) {
            return Err(Stop::Wait(Wait::Busy(id)));
        }
        Ok(())
    }

    /// Marks an inode busy until [`Shard::clear_busy`].
    pub(crate) fn set_busy(&mut self, id: InodeId) {
        self.watches.saw(id);
        self.row_locks.set_busy(id);
    }

    /// Ends that.
    pub(crate) fn clear_busy(&mut self, id: InodeId) {
        self.row_locks.clear_busy(id);
        self.wake(&Wait::Busy(id));
    }

    /// Which transaction holds the entry.
    pub(crate) fn locked_by(&self, key: &Key) -> Option<TxnId> {
        self.row_locks.holder_of_entry(key)
    }

    /// Locked entries of a directory, for scans and counts of it.
    pub(crate) fn prepared_below(&self, pid: InodeId) -> impl Iterator<Item = (&Bytes, &TxnId)> {
        let ignored = saker_runtime::sim::mutation("scan ignoring prepared rows");
        self.row_locks.below(pid).filter(move |_| !ignored)
    }

    /// A new entry, in place of none.
    pub(crate) fn insert_entry(&mut self, key: &Key, inode: Inode) -> Attempt<()> {
        self.insert_entry_at(key, inode, self.wall_ns())
    }

    /// The same; its directory changes at this time.
    pub(crate) fn insert_entry_at(
        &mut self,
        key: &Key,
        inode: Inode,
        time_ns: Stamp,
    ) -> Attempt<()> {
        let subdir = u64::from(inode.attr.is_dir());
        // The only step that can fail is the first.
        self.change_totals(key.pid, time_ns, |t| {
            t.entries += 1;
            t.subdirs += subdir;
        })?;
        if inode.home_slot.is_none() {
            self.count_inodes(1);
        }
        match inode.attr.is_dir() {
            true => self.put_inode(entry_key(key), inode),
            // Whether anybody looks at it again will show.
            false => {
                let key = entry_key(key);
                debug_assert!(!self.inodes.has(&key), "in place of none");
                self.put(key, inode.encode_to_vec().into());
            }
        }
        Ok(())
    }

    /// New content of an entry's row.
    pub(crate) fn update_entry(&mut self, key: &Key, inode: Inode) {
        self.put_inode(entry_key(key), inode);
    }

    /// The entry goes; what becomes of the inode is the caller's.
    pub(crate) fn remove_entry(&mut self, key: &Key, inode: &Inode) -> Attempt<()> {
        self.remove_entry_at(key, inode, self.wall_ns())
    }

    /// The same; its directory changes at this time.
    pub(crate) fn remove_entry_at(
        &mut self,
        key: &Key,
        inode: &Inode,
        time_ns: Stamp,
    ) -> Attempt<()> {
        let subdir = u64::from(inode.attr.is_dir());
        // The only step that can fail is the first.
        self.change_totals(key.pid, time_ns, |t| {
            t.entries = t.entries.saturating_sub(1);
            t.subdirs = t.subdirs.saturating_sub(subdir);
        })?;
        if inode.home_slot.is_none() {
            self.count_inodes(-1);
        }
        let raw = entry_key(key);
        self.inodes.remove(&raw);
        self.delete(raw);
        Ok(())
    }

    pub(crate) fn count_inodes(&mut self, by: i64) {
        self.inode_count += by;
        self.inode_count_change += by;
        self.metrics.inodes.add(by);
    }

    // ---- attribute rows of hard links -----------------------------------------------------

    /// Attribute row of a hard-linked inode.
    pub(crate) fn attr_row(&mut self, home: Slot, id: InodeId) -> Result<Option<Rc<Inode>>, Error> {
        self.inode(&slot_key(table::ATTR, home, id))
    }

    /// The same; waits while a transaction changes its link count, or the engine loads it.
    pub(crate) fn attr_free(&mut self, home: Slot, id: InodeId) -> Attempt<Option<Rc<Inode>>> {
        if let Some(txn) = self.attr_locked_by(home, id) {
            return Err(Stop::Wait(Wait::Txn(txn)));
        }
        self.not_busy(id)?;
        self.inode_loaded(&slot_key(table::ATTR, home, id))
    }

    /// Which transaction holds the attribute row.
    pub(crate) fn attr_locked_by(&self, home: Slot, id: InodeId) -> Option<TxnId> {
        self.row_locks.holder_of_attr(home, id)
    }

    /// Writes it.
    pub(crate) fn put_attr_row(&mut self, home: Slot, inode: Inode) {
        self.put_inode(slot_key(table::ATTR, home, inode.attr.id), inode);
    }

    /// Drops it.
    pub(crate) fn delete_attr_row(&mut self, home: Slot, id: InodeId) {
        self.count_inodes(-1);
        let key = slot_key(table::ATTR, home, id);
        self.inodes.remove(&key);
        self.delete(key);
    }

    // ---- gone records and store jobs ------------------------------------------------------

    /// What became of an id that was at a name in this slot, or had its home there.
    pub(crate) fn gone(&self, slot: Slot, id: InodeId) -> Result<Option<Gone>, Error> {
        self.get_as(&slot_key(table::GONE, slot, id))
    }

    /// The id moved away from a name in this slot. What is an orphan already stays one: its data
    /// hangs on the record. What cannot be read may be one.
    pub(crate) fn put_moved(&mut self, slot: Slot, id: InodeId, to: Locator) {
        if !matches!(self.gone(slot, id), Ok(None | Some(Gone { orphan: None, .. }))) {
            return;
        }
        self.put_gone(slot, id, &Gone { moved: Some(to), ..Gone::default() });
    }

    /// What became of an id; kept for a lease at least, and of a directory that moved until it is
    /// removed.
    pub(crate) fn put_gone(&mut self, slot: Slot, id: InodeId, gone: &Gone) {
        self.put(slot_key(table::GONE, slot, id), gone.encode_to_vec().into());
        self.remember_gone(slot, id, gone);
    }

    /// A record that there is must end some time.
    pub(crate) fn remember_gone(&mut self, slot: Slot, id: InodeId, gone: &Gone) {
        match gone.directory {
            true => self.leases.keep(id, slot),
            false => self.leases.start(id, slot, self.lease_clock.now()),
        }
    }

    /// The id lost its last name, in this slot or with its home there.
    pub(crate) fn put_orphan(&mut self, slot: Slot, mut inode: Inode) {
        let id = inode.attr.id;
        inode.attr.nlink = 0;
        inode.attr.ctime_ns = later(inode.attr.ctime_ns, self.wall_ns());
        let gone = Gone { orphan: Some(inode), ..Gone::default() };
        self.put_gone(slot, id, &gone);
        let is_chunked = gone.orphan.is_some_and(|inode| inode.attr.chunked);
        let now = self.lease_clock.now();
        if is_chunked && !self.opened.may_have(id, now) {
            self.leases.end(id, now);
        }
    }

    /// Somebody has the file open, or may have. Also of a small file: it may grow.
    pub(crate) fn note_opened(&mut self, attr: &Attr, hold: Hold) {
        if attr.kind() == FileKind::Regular {
            self.note_open(attr.id, hold);
        }
    }

    /// The lease of a record has ended.
    pub(crate) fn drop_gone(&mut self, slot: Slot, id: InodeId) -> Result<(), Error> {
        let key = slot_key(table::GONE, slot, id);
        if self.get(&key)?.is_some() {
            self.delete(key);
        }
        Ok(())
    }

    /// A cut that the stores must hear of, whatever crashes.
    pub(crate) fn put_job(&mut self, id: InodeId, job: &StoreJob) {
        self.put(id_key(table::JOB, id), job.encode_to_vec().into());
    }

    /// They have.
    pub(crate) fn delete_job(&mut self, id: InodeId) {
        self.delete(id_key(table::JOB, id));
    }

    // ---- inodes by path or handle ---------------------------------------------------------

    /// Finds the inode that a request is about, for operations that follow hard links to their
    /// attributes. Checks search permission on the way.
    pub(crate) fn locate(&mut self, rq: &Rq, cred: &Cred, at: &At) -> Attempt<Located> {
        let found = match at.path.split_last() {
            None => {
                rq.policy.set(at.anchor.policy);
                self.not_merging_at(&at.anchor)?;
                let found = self.locate_handle(&at.anchor)?;
                Located { way: PathInfo::of_handle(&at.anchor), ..found }
            }
            Some((name, _)) => {
                let parent = self.parent(rq, cred, at)?;
                let key = self.own_key(parent.dir.id, name)?;
                let Some(inode) = self.entry_free(&key)? else {
                    return Err(Error::at(Errno::ENOENT, at.path.len() - 1).into());
                };
                let inode_at = self.follow_home(Spot::Entry(key), inode, parent.way.policy)?;
                Located { way: parent.way, ..inode_at }
            }
        };
        self.not_busy(found.inode.attr.id)?;
        Ok(found)
    }

    fn locate_handle(&mut self, handle: &Locator) -> Attempt<Located> {
        let id = handle.id;
        self.not_busy(id)?;
        if let Some(slot) = handle.home_slot {
            let home = Slot::from_wire(slot);
            self.must_own_slot(home)?;
            if let Some(inode) = self.attr_free(home, id)? {
                return Ok(Located { spot: Spot::Attr(home, id), inode, way: PathInfo::default() });
            }
        } else {
            let key = self.own_key(handle.pid, &handle.name)?;
            if let Some(inode) = self.entry_free(&key)?
                && inode.attr.id == id
            {
                return self.follow_home(Spot::Entry(key), inode, handle.policy);
            }
        }
        let slot = self.map.slot_at(handle);
        match self.gone(slot, id)? {
            Some(Gone { orphan: Some(inode), deleting: false, .. }) => {
                let spot = Spot::Orphan(slot, id);
                Ok(Located { spot, inode: Rc::new(inode), way: PathInfo::default() })
            }
            Some(Gone { moved: Some(to), .. }) => Err(Error::moved(to).into()),
            _ => Err(Errno::ESTALE.into()),
        }
    }

    fn follow_home(&mut self, spot: Spot, inode: Rc<Inode>, policy: u64) -> Attempt<Located> {
        let Some(slot) = inode.home_slot else {
            return Ok(Located { spot, inode, way: PathInfo::default() });
        };
        let (home, id) = (Slot::from_wire(slot), inode.attr.id);
        if !self.owns_slot(home) {
            return Err(Error::moved(Locator::home(id, slot).under(policy)).into());
        }
        let Some(inode) = self.attr_free(home, id)? else {
            return Err(broken("hard link", format!("inode {id:#x} has no attributes")).into());
        };
        Ok(Located { spot: Spot::Attr(home, id), inode, way: PathInfo::default() })
    }

    /// Writes an inode back to where it was found.
    pub(crate) fn store(&mut self, spot: &Spot, inode: Inode) {
        match spot {
            Spot::Entry(key) => self.update_entry(key, inode),
            Spot::Attr(home, _) => self.put_attr_row(*home, inode),
            Spot::Orphan(slot, id) => {
                let before = self.gone(*slot, *id);
                let linkable = matches!(before, Ok(Some(Gone { linkable: true, .. })));
                let gone = Gone { orphan: Some(inode), linkable, ..Gone::default() };
                self.put(slot_key(table::GONE, *slot, *id), gone.encode_to_vec().into());
            }
        }
    }

    /// The inode at a spot now, for the second half of a task that holds it.
    pub(crate) fn reload(&mut self, spot: &Spot) -> Result<Rc<Inode>, Error> {
        let inode = match spot {
            Spot::Entry(key) => self.entry(key)?,
            Spot::Attr(home, id) => self.attr_row(*home, *id)?,
            Spot::Orphan(slot, id) => self.gone(*slot, *id)?.and_then(|g| g.orphan).map(Rc::new),
        };
        inode.ok_or_else(|| Errno::ESTALE.into())
    }

    /// How clients address a spot.
    pub(crate) fn locator(&self, spot: &Spot, id: InodeId, at: &At) -> Locator {
        match spot {
            Spot::Entry(key) => Locator::entry(key.pid, Bytes::copy_from_slice(&key.name), id),
            Spot::Attr(home, id) => Locator::home(*id, (*home).into()),
            Spot::Orphan(..) => at.anchor.clone(),
        }
    }
}

/// A new inode's attributes.
pub(crate) fn new_attr(id: InodeId, mode: u32, uid: u32, gid: u32, now_ns: Stamp) -> Attr {
    Attr {
        id,
        mode,
        uid,
        gid,
        nlink: 1,
        atime_ns: now_ns,
        mtime_ns: now_ns,
        ctime_ns: now_ns,
        btime_ns: now_ns,
        data_version: 1,
        ..Attr::default()
    }
}
