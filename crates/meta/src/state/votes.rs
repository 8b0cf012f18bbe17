//! What a shard has voted for, and what is still to be done of each transaction whose outcome it does
//! not know (rule 13).

use std::collections::BTreeMap;

use saker_types::TxnId;
use saker_types::change::Prepared;
use saker_types::wire::{EntryKey, Intent};

/// By transaction: one may prepare several rows here, each once.
#[derive(Default)]
pub(crate) struct Votes(BTreeMap<TxnId, Vec<Prepared>>);

impl Votes {
    /// Votes for a change of a row, in place of an earlier vote of this transaction for the same row.
    pub(crate) fn add(&mut self, txn: TxnId, part: Prepared) {
        let parts = self.0.entry(txn).or_default();
        parts.retain(|p| p.entry != part.entry || p.attr_id != part.attr_id);
        parts.push(part);
    }

    /// Is there a vote for this transaction?
    pub(crate) fn has(&self, txn: TxnId) -> bool {
        self.0.contains_key(&txn)
    }

    /// What is to be done yet.
    pub(crate) fn parts(&self, txn: TxnId) -> &[Prepared] {
        self.0.get(&txn).map_or(&[], Vec::as_slice)
    }

    /// Will the transaction put an entry there?
    pub(crate) fn inserts(&self, txn: TxnId, entry: &EntryKey) -> bool {
        let inserts = |p: &Prepared| p.intent == Intent::Insert as i32;
        self.parts(txn).iter().any(|p| inserts(p) && p.entry.as_ref() == Some(entry))
    }

    /// The first of these is done.
    pub(crate) fn first_is_done(&mut self, txn: TxnId) {
        if let Some(parts) = self.0.get_mut(&txn).filter(|parts| !parts.is_empty()) {
            parts.remove(0);
        }
    }

    /// All is done. False if there was no vote.
    pub(crate) fn end(&mut self, txn: TxnId) -> bool {
        self.0.remove(&txn).is_some()
    }

    /// An entry that the transaction would replicate is not valid any more.
    pub(crate) fn spoil_replica(&mut self, txn: TxnId, entry: &EntryKey) {
        for part in self.0.get_mut(&txn).into_iter().flatten() {
            if part.intent == Intent::Replica as i32 && part.entry.as_ref() == Some(entry) {
                part.row = None;
            }
        }
    }

    /// All that is prepared.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Prepared> {
        self.0.values().flatten()
    }

    /// Transactions whose outcome is not known.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use saker_types::{Inode, NodeId};

    fn part(name: &'static str, intent: Intent, row: bool) -> Prepared {
        Prepared {
            entry: Some(EntryKey { pid: 1, name: name.into() }),
            intent: intent.into(),
            row: row.then(Inode::default),
            ..Prepared::default()
        }
    }

    #[test]
    fn a_row_is_prepared_once_and_done_in_order() {
        let txn = TxnId { driver: NodeId::Coordinator, number: 4 };
        let mut votes = Votes::default();
        assert!(!votes.has(txn) && !votes.end(txn));
        votes.add(txn, part("a", Intent::TakeDir, false));
        votes.add(txn, part("b", Intent::Insert, true));
        // A prepare that came twice.
        votes.add(txn, part("a", Intent::Insert, true));
        assert_eq!((votes.parts(txn).len(), votes.all().count(), votes.len()), (2, 2, 1));
        let key = |name: &'static str| EntryKey { pid: 1, name: name.into() };
        assert!(votes.inserts(txn, &key("a")) && !votes.inserts(txn, &key("c")));
        assert_eq!(votes.parts(txn)[0].entry, Some(key("b")));
        votes.first_is_done(txn);
        votes.first_is_done(txn);
        votes.first_is_done(txn);
        assert!(votes.parts(txn).is_empty() && votes.has(txn));
        assert!(votes.end(txn) && !votes.has(txn));
    }

    #[test]
    fn only_replicas_are_spoilt() {
        let txn = TxnId { driver: NodeId::Coordinator, number: 4 };
        let mut votes = Votes::default();
        votes.add(txn, part("a", Intent::Replica, true));
        votes.add(txn, part("b", Intent::Insert, true));
        for name in ["a", "b", "c"] {
            votes.spoil_replica(txn, &EntryKey { pid: 1, name: name.into() });
        }
        let rows: Vec<bool> = votes.parts(txn).iter().map(|p| p.row.is_some()).collect();
        assert_eq!(rows, [false, true]);
    }
}
