//! rename of what is no directory, driven by the owner of the source name (rule 10).

use std::rc::Rc;

use bytes::Bytes;
use saker_rpc::txn;
use saker_runtime::failpoint;
use saker_runtime::sim::mutation;
use saker_types::wire::{At, Intent, PrepareReq, RenameReply, RenameReq};
use saker_types::{Class, Errno, Error, Inode, Key, Locator};

use super::create::may_change;
use super::unlink::may_remove;
use super::{needs_name, not_below};
use crate::request::{Rq, Step, Stop};
use crate::shard::{Handle, Shard, encoded};
use crate::txn::driver::{Transaction, about_second, applied, public_locator};
use crate::txn::participant::{check_replace, entry_locator};

const NOREPLACE: u32 = 1;

impl Shard {
    /// Moves an entry; directories are the coordinator's.
    pub(crate) fn rename(&mut self, rq: &Rq, msg: &RenameReq) -> Step<Bytes> {
        let name = needs_name(&msg.from)?;
        needs_name(&msg.to)?;
        if msg.flags & !NOREPLACE != 0 {
            return Err(Errno::EINVAL.into());
        }
        let cred = &msg.ctx.cred;
        let parent = self.parent(rq, cred, &msg.from)?;
        let key = self.map.key(parent.dir.id, name);
        let Some(row) = self.entry_free(&key)? else {
            return Err(Error::at(Errno::ENOENT, msg.from.path.len() - 1).into());
        };
        if row.attr.is_dir() {
            return Err(Error::of_class(Class::UseCoordinator, Errno::EISDIR).into());
        }
        let owner = self.owner_of(&row, &parent)?;
        may_remove(&parent, owner, cred)?;
        not_below(&msg.from, &msg.to)?;
        self.not_frozen(parent.dir.id)?;
        if let Some(reply) = self.rename_here(rq, msg, &key, &row)? {
            return Ok(reply);
        }
        // Before anything is locked: a path through the source itself must not wait for its lock.
        let to_parent = self.parent(rq, cred, &msg.to).map_err(second)?;
        let txn = txn::begin(self)?;
        self.lock(&key, txn);
        let mut msg = msg.clone();
        if mutation("prepare carrying a resolved pid") {
            let anchor = Locator { id: to_parent.dir.id, ..Locator::default() };
            msg.to = At::child(anchor, needs_name(&msg.to)?);
        }
        Err(self.task(move |h| async move {
            let txn = Transaction::new(h.rc(), txn, Some(key.clone()));
            rename_there(h, txn, msg, key, row).await
        }))
    }

    /// Both names and all inodes are here: one batch. `None` if they are not.
    fn rename_here(
        &mut self,
        rq: &Rq,
        msg: &RenameReq,
        key: &Key,
        row: &Rc<Inode>,
    ) -> Step<Option<Bytes>> {
        let to_name = needs_name(&msg.to)?;
        if !self.owns(to_name) {
            return Ok(None);
        }
        let cred = &msg.ctx.cred;
        let parent = self.parent(rq, cred, &msg.to).map_err(second)?;
        let to = self.map.key(parent.dir.id, to_name);
        let there = self.entry_free(&to)?;
        let unchanged = there.as_ref().is_some_and(|there| there.attr.id == row.attr.id);
        let loc = public_locator(entry_locator(&to, row.attr.id), row);
        if unchanged && msg.flags & NOREPLACE == 0 {
            return Ok(Some(encoded(&RenameReply { loc })));
        }
        may_change(&parent, cred)?;
        self.not_frozen(parent.dir.id)?;
        if let Some(there) = &there {
            check_replace(row, there, msg.flags & NOREPLACE != 0)?;
            let owner = self.owner_of(there, &parent)?;
            may_remove(&parent, owner, cred)?;
            if let Some(slot) = there.home_slot {
                if self.map.shard_of_slot(slot as u16) != self.no {
                    return Ok(None);
                }
                self.attr_free(there.attr.id)?;
            }
        }
        failpoint!("rename.here");
        self.take_entry(key, row, &loc)?;
        self.replace_entry(&to, there.as_deref(), moved(row, self.wall_ns()))?;
        if let Some(there) = there.filter(|there| there.home_slot.is_some()) {
            self.change_nlink(there.attr.id, -1)?;
        }
        Ok(Some(encoded(&RenameReply { loc })))
    }

    /// The source's half of a move: the entry goes, and its id is known to have moved.
    fn take_entry(&mut self, key: &Key, row: &Inode, to: &Locator) -> Step<()> {
        self.remove_entry(key, row)?;
        self.put_moved(row.attr.id, to.clone());
        Ok(())
    }
}

async fn rename_there(
    h: Handle,
    mut txn: Transaction,
    msg: RenameReq,
    key: Key,
    row: Rc<Inode>,
) -> Result<Bytes, Error> {
    let request = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.to.clone(),
        intent: Intent::Insert.into(),
        row: Some(moved(&row, h.hub.wall_ns())),
        no_replace: msg.flags & NOREPLACE != 0,
        ..PrepareReq::default()
    };
    let vote = txn.prepare(request).await.map_err(about_second)?;
    let loc = public_locator(vote.loc, &row);
    if vote.same {
        txn.abort();
        if msg.flags & NOREPLACE != 0 {
            return Err(Errno::EEXIST.into());
        }
        return Ok(encoded(&RenameReply { loc }));
    }
    if let Some(replaced) = vote.row
        && let Some(slot) = replaced.home_slot
    {
        txn.prepare_nlink(&msg.ctx, replaced.attr.id, slot, -1).await?;
    }
    txn.commit(|s| applied(s.take_entry(&key, &row, &loc).map(|()| encoded(&RenameReply { loc }))))
}

/// The row as it is at its new name.
fn moved(row: &Inode, now_ns: i64) -> Inode {
    let mut row = row.clone();
    row.attr.ctime_ns = now_ns.max(row.attr.ctime_ns);
    row
}

pub(super) fn second(stop: Stop) -> Stop {
    match stop {
        Stop::Fail(e) => Stop::Fail(about_second(e)),
        other => other,
    }
}
