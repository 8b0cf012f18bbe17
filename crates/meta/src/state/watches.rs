//! Inodes that fsck asks for: seen here are those that are no row, and rows that come while it scans.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use prost::Message;
use rustc_hash::FxHashSet;
use saker_types::change::{Prepared, table};
use saker_types::wire::StagedValue;
use saker_types::{Inode, InodeId};

/// Most watches at a time; one more ends the oldest, which is told when it asks.
const WATCHES_MAX: usize = 8;

/// What is looked out for.
#[derive(Default)]
pub(crate) struct Watches(VecDeque<Watch>);

struct Watch {
    number: u64,
    ids: FxHashSet<InodeId>,
    known: BTreeSet<InodeId>,
}

impl Watches {
    /// Begins to look out for these; `here`: what is known to be here already. Returns what of them is.
    pub(crate) fn begin(
        &mut self,
        number: u64,
        ids: FxHashSet<InodeId>,
        here: impl Iterator<Item = InodeId>,
    ) -> Vec<InodeId> {
        let known: BTreeSet<InodeId> = here.filter(|id| ids.contains(id)).collect();
        let found = known.iter().copied().collect();
        if self.0.len() == WATCHES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Watch { number, ids, known });
        found
    }

    /// Ends it: what was seen, if it is known.
    pub(crate) fn end(&mut self, number: u64) -> Option<Vec<InodeId>> {
        let at = self.0.iter().position(|watch| watch.number == number)?;
        self.0.remove(at).map(|watch| watch.known.into_iter().collect())
    }

    /// A row is written.
    pub(crate) fn put(&mut self, key: &[u8], value: &Bytes) {
        if self.0.is_empty() {
            return;
        }
        let id = match key.split_first() {
            Some((&table::ENTRY, _)) => {
                Inode::decode(value.clone()).ok().map(|inode| inode.attr.id)
            }
            Some((&table::STAGED, _)) => {
                let staged = StagedValue::decode(value.clone()).ok();
                return staged.iter().flat_map(StagedValue::ids).for_each(|id| self.saw(id));
            }
            Some((_, rest)) => rest.last_chunk().copied().map(InodeId::from_be_bytes),
            None => None,
        };
        id.into_iter().for_each(|id| self.saw(id));
    }

    /// A vote is given.
    pub(crate) fn prepared(&mut self, part: &Prepared) {
        if !self.0.is_empty() {
            ids_of(part).for_each(|id| self.saw(id));
        }
    }

    /// An inode is here.
    pub(crate) fn saw(&mut self, id: InodeId) {
        for watch in &mut self.0 {
            if watch.ids.contains(&id) {
                watch.known.insert(id);
            }
        }
    }
}

/// The inodes of a part of a transaction.
pub(crate) fn ids_of(part: &Prepared) -> impl Iterator<Item = InodeId> {
    let of_row = part.row.as_ref().map(|row| row.attr.id);
    let moving = part.moves_to.as_ref().map(|to| to.id);
    of_row.into_iter().chain(moving).chain([part.attr_id])
}

#[cfg(test)]
mod tests {
    use super::*;
    use saker_types::Attr;
    use saker_types::change::slot_key;
    use saker_types::placement::Slot;

    #[test]
    fn what_comes_meanwhile_is_seen() {
        let mut watches = Watches::default();
        watches.saw(1);
        let ids = |ids: &[u64]| ids.iter().copied().collect::<FxHashSet<_>>();
        assert_eq!(watches.begin(7, ids(&[1, 2, 3, 4]), [1, 9].into_iter()), [1]);
        let row = Inode { attr: Attr { id: 2, ..Attr::default() }, ..Inode::default() };
        watches.put(&[table::ENTRY, 0], &row.encode_to_vec().into());
        watches.put(&slot_key(table::GONE, Slot(9), 3), &Bytes::new());
        let part = Prepared { attr_id: 4, ..Prepared::default() };
        watches.prepared(&part);
        watches.saw(5);
        assert_eq!(watches.end(7), Some(vec![1, 2, 3, 4]));
        assert_eq!(watches.end(7), None);
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut watches = Watches::default();
        for number in 0..=WATCHES_MAX as u64 {
            watches.begin(number, FxHashSet::default(), std::iter::empty());
        }
        assert_eq!((watches.end(0), watches.end(1)), (None, Some(vec![])));
    }
}
