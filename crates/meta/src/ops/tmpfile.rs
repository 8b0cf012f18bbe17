//! O_TMPFILE: a file without a name is an orphan from its start, which lives by the leases of those
//! who have it open, until a link gives it a name.

use bytes::Bytes;
use saker_types::change::Gone;
use saker_types::placement::Slot;
use saker_types::wire::{CreateReq, Entry};
use saker_types::{Errno, FileKind, Inode, InodeId, Locator};

use super::{done, needs_name};
use crate::request::{Attempt, Rq};
use crate::rules::names::may_change;
use crate::shard::Shard;

impl Shard {
    /// Makes one, which belongs to the shard that owns the last name of the path.
    pub(crate) fn tmpfile(&mut self, rq: &Rq, msg: &CreateReq) -> Attempt<Bytes> {
        let name = needs_name(&msg.at)?;
        if FileKind::of_mode(msg.mode) != Some(FileKind::Regular) {
            return Err(Errno::EINVAL.into());
        }
        let parent = self.parent(rq, &msg.ctx.cred, &msg.at)?;
        let slot = self.map.slot_of(parent.dir.id, name);
        self.must_own_slot(slot)?;
        may_change(&parent.dir, &msg.ctx.cred)?;
        self.may_grow()?;
        let mut inode = self.new_inode(msg, FileKind::Regular, &parent)?;
        inode.attr.nlink = 0;
        let (attr, id) = (inode.attr.clone(), inode.attr.id);
        let gone = Gone { orphan: Some(inode), linkable: !msg.exclusive, ..Gone::default() };
        self.put_gone(slot, id, &gone);
        self.note_opened(&attr, msg.hold);
        let loc = Locator::entry(parent.dir.id, name.clone(), id).under(parent.way.policy);
        done(&Entry { attr, loc, created: true, ..Entry::default() })
    }

    /// The file without a name by this id, if it may get one.
    pub(super) fn linkable(&mut self, slot: Slot, id: InodeId) -> Attempt<Option<Inode>> {
        self.not_busy(id)?;
        Ok(self.gone(slot, id)?.filter(|gone| gone.linkable).and_then(|gone| gone.orphan))
    }
}
