//! Does this shard know an inode? Rows are kept by name, so fsck, which asks, scans them; here is
//! seen what it cannot see: what is no row, and rows that come while it scans.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use prost::Message;
use rustc_hash::FxHashSet;
use saker_types::change::{Prepared, table};
use saker_types::limits::WATCHED_MAX;
use saker_types::wire::{WatchReply, WatchReq};
use saker_types::{Errno, Error, Inode, InodeId};

use crate::request::Step;
use crate::shard::{Shard, encoded};

/// Who looks out at a time; one more ends the oldest, which is told when it asks.
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
    /// A row is written.
    pub(crate) fn put(&mut self, key: &[u8], value: &Bytes) {
        if self.0.is_empty() {
            return;
        }
        let id = match key.split_first() {
            Some((&table::ENTRY, _)) => {
                Inode::decode(value.clone()).ok().map(|inode| inode.attr.id)
            }
            Some((_, id)) => id.try_into().ok().map(InodeId::from_be_bytes),
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
fn ids_of(part: &Prepared) -> impl Iterator<Item = InodeId> {
    let of_row = part.row.as_ref().map(|row| row.attr.id);
    let moving = part.moves_to.as_ref().map(|to| to.id);
    of_row.into_iter().chain(moving).chain([part.attr_id])
}

impl Shard {
    /// Begins to look out, or ends it.
    pub(crate) fn watch(&mut self, msg: &WatchReq) -> Step<Bytes> {
        if msg.ids.is_empty() {
            let at = self.watches.0.iter().position(|watch| watch.number == msg.watch);
            let watch = at.and_then(|at| self.watches.0.remove(at));
            let watch = watch.ok_or_else(|| {
                Error::new(Errno::ESTALE).with_text("the shard has started again since")
            })?;
            return Ok(encoded(&WatchReply { known: watch.known.into_iter().collect() }));
        }
        if msg.ids.len() > WATCHED_MAX {
            return Err(Errno::EINVAL.into());
        }
        let ids: FxHashSet<InodeId> = msg.ids.iter().copied().collect();
        let here = self.votes.all().flat_map(ids_of).chain(self.row_locks.held());
        let known: BTreeSet<InodeId> = here.filter(|id| ids.contains(id)).collect();
        let reply = WatchReply { known: known.iter().copied().collect() };
        if self.watches.0.len() == WATCHES_MAX {
            self.watches.0.pop_front();
        }
        self.watches.0.push_back(Watch { number: msg.watch, ids, known });
        Ok(encoded(&reply))
    }
}
