//! Does this shard know an inode? Rows are kept by name, so fsck, which asks, scans them; here is
//! seen what it cannot see: what is no row, and rows that come while it scans.

use bytes::Bytes;
use saker_types::limits::WATCHED_MAX;
use saker_types::wire::{WatchReply, WatchReq};
use saker_types::{Errno, Error};

use crate::request::Attempt;
use crate::shard::{Shard, encoded};
use crate::state::watches::ids_of;

impl Shard {
    /// Begins to look out, or ends it.
    pub(crate) fn watch(&mut self, msg: &WatchReq) -> Attempt<Bytes> {
        let known = if msg.ids.is_empty() {
            self.watches.end(msg.watch).ok_or_else(|| {
                Error::new(Errno::ESTALE).with_text("the shard has started again since")
            })?
        } else if msg.ids.len() > WATCHED_MAX {
            return Err(Errno::EINVAL.into());
        } else {
            let ids = msg.ids.iter().copied().collect();
            let here = self.votes.all().flat_map(ids_of).chain(self.row_locks.busy());
            self.watches.begin(msg.watch, ids, here)
        };
        Ok(encoded(&WatchReply { known }))
    }
}
