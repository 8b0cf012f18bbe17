//! Rows that cannot be changed now: locked by a transaction that was voted for (rule 11), or of an inode
//! that is busy with an operation of several steps.

use std::collections::BTreeMap;

use bytes::Bytes;
use rustc_hash::FxHashSet;
use saker_types::change::{entry_key, slot_key, table};
use saker_types::placement::Slot;
use saker_types::{InodeId, Key, TxnId};

/// Which rows and inodes these are.
#[derive(Default)]
pub(crate) struct RowLocks {
    /// By the row's key: entries are in the order (parent, order, name).
    rows: BTreeMap<Bytes, TxnId>,
    inodes: FxHashSet<InodeId>,
}

impl RowLocks {
    /// Locks an entry's row for a transaction.
    pub(crate) fn lock_entry(&mut self, key: &Key, txn: TxnId) {
        self.rows.insert(entry_key(key), txn);
    }

    /// Ends that.
    pub(crate) fn unlock_entry(&mut self, key: &Key) {
        self.rows.remove(&entry_key(key));
    }

    /// Locks the attribute row of a hard-linked inode.
    pub(crate) fn lock_attr(&mut self, home: Slot, id: InodeId, txn: TxnId) {
        self.rows.insert(slot_key(table::ATTR, home, id), txn);
    }

    /// Ends that.
    pub(crate) fn unlock_attr(&mut self, home: Slot, id: InodeId) {
        self.rows.remove(&slot_key(table::ATTR, home, id));
    }

    /// The keys of all locked rows.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Bytes> {
        self.rows.keys()
    }

    /// Which transaction has locked the row with this key.
    pub(crate) fn holder(&self, raw: &[u8]) -> Option<TxnId> {
        self.rows.get(raw).copied()
    }

    /// Which has locked this entry.
    pub(crate) fn holder_of_entry(&self, key: &Key) -> Option<TxnId> {
        if self.rows.is_empty() { None } else { self.holder(&entry_key(key)) }
    }

    /// Which has locked this attribute row.
    pub(crate) fn holder_of_attr(&self, home: Slot, id: InodeId) -> Option<TxnId> {
        if self.rows.is_empty() { None } else { self.holder(&slot_key(table::ATTR, home, id)) }
    }

    /// Locked entries of a directory, in order.
    pub(crate) fn below(&self, pid: InodeId) -> impl Iterator<Item = (&Bytes, &TxnId)> {
        let first = entry_key(&Key { pid, order: 0, name: Vec::new() });
        let prefix = first.slice(..9);
        self.rows.range(first..).take_while(move |(key, _)| key.starts_with(&prefix))
    }

    /// Marks an inode busy: an operation of several steps works on it.
    pub(crate) fn set_busy(&mut self, id: InodeId) {
        self.inodes.insert(id);
    }

    /// Ends that.
    pub(crate) fn clear_busy(&mut self, id: InodeId) {
        self.inodes.remove(&id);
    }

    /// Is the inode busy?
    pub(crate) fn is_busy(&self, id: InodeId) -> bool {
        !self.inodes.is_empty() && self.inodes.contains(&id)
    }

    /// All inodes that are.
    pub(crate) fn busy(&self) -> impl Iterator<Item = InodeId> {
        self.inodes.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use saker_types::NodeId;

    #[test]
    fn locks_of_a_directory_are_found_in_order() {
        let txn = |number| TxnId { driver: NodeId::Shard(1), number };
        let key = |pid, name: &str| Key { pid, order: 7, name: name.as_bytes().to_vec() };
        let mut locks = RowLocks::default();
        assert_eq!(locks.holder_of_entry(&key(2, "a")), None);
        for (pid, name) in [(1, "z"), (2, "b"), (2, "a"), (3, "a")] {
            locks.lock_entry(&key(pid, name), txn(pid));
        }
        // An attribute row whose id is like the directory's.
        locks.lock_attr(Slot(0), 2, txn(9));
        let below: Vec<_> = locks.below(2).map(|(key, _)| key.clone()).collect();
        assert_eq!(below, [entry_key(&key(2, "a")), entry_key(&key(2, "b"))]);
        assert_eq!(locks.below(4).count(), 0);
        assert_eq!(locks.holder_of_entry(&key(2, "a")), Some(txn(2)));
        assert_eq!(locks.holder_of_attr(Slot(0), 2), Some(txn(9)));
        locks.unlock_entry(&key(2, "a"));
        locks.unlock_attr(Slot(0), 2);
        assert_eq!((locks.below(2).count(), locks.holder_of_attr(Slot(0), 2)), (1, None));
    }

    #[test]
    fn an_inode_is_busy_until_the_operation_ends() {
        let mut locks = RowLocks::default();
        locks.set_busy(5);
        assert!(locks.is_busy(5) && !locks.is_busy(6));
        assert_eq!(locks.busy().collect::<Vec<_>>(), [5]);
        locks.clear_busy(5);
        assert!(!locks.is_busy(5));
    }
}
