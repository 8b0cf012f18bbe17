//! renameat2(2) with RENAME_EXCHANGE of two names that are no directories, driven by the owner of
//! the first. Where a directory is involved the coordinator does it: replicas must hear of it.

use bytes::Bytes;
use saker_types::wire::{Hold, Intent, PrepareReq, RenameReply, RenameReq};
use saker_types::{Errno, Error, Inode, Key, Locator};

use super::needs_name;
use super::rename::{RenameSource, may_move, moved, second, use_coordinator};
use crate::request::{Attempt, Rq};
use crate::rules::names::may_remove;
use crate::shard::{Shard, ShardHandle, encoded};
use crate::txn::driver::{ShardTransaction, applied};
use crate::txn::participant::entry_locator;

impl Shard {
    /// Exchanges the source with the other name.
    pub(super) fn exchange(
        &mut self,
        rq: &Rq,
        msg: &RenameReq,
        source: RenameSource,
    ) -> Attempt<Bytes> {
        match self.exchange_here(rq, msg, &source)? {
            Some(reply) => Ok(reply),
            None => self.drive(rq, msg, source, exchange_there),
        }
    }

    /// Both names are here: one batch. `None` if they are not, or a home must be asked.
    fn exchange_here(
        &mut self,
        rq: &Rq,
        msg: &RenameReq,
        source: &RenameSource,
    ) -> Attempt<Option<Bytes>> {
        let name = needs_name(&msg.to)?;
        if source.only_owner {
            return Ok(None);
        }
        let parent = self.parent(rq, &msg.ctx.cred, &msg.to).map_err(second)?;
        may_move(source.policy, parent.way.policy)?;
        if !self.owns(parent.dir.id, name) {
            return Ok(None);
        }
        let (from, to) = (&source.key, self.map.key(parent.dir.id, name));
        let Some(there) = self.entry_free(&to)? else {
            let missing = Error::at(Errno::ENOENT, msg.to.path.len() - 1);
            return Err(missing.about_second().into());
        };
        if there.attr.is_dir() {
            return Err(use_coordinator());
        }
        let reply = reply(&source.row, &there, from, entry_locator(&to, 0));
        if there.attr.id == source.row.attr.id {
            return Ok(Some(encoded(&reply)));
        }
        let owner = self.owner_of(&there)?;
        if may_remove(&parent.dir, owner, &msg.ctx.cred)? {
            return Ok(None);
        }
        self.not_frozen(parent.dir.id)?;
        self.load_totals(from.pid)?;
        self.load_totals(to.pid)?;
        let now_ns = self.wall_ns();
        let (here, comes) = (moved(&source.row, now_ns), moved(&there, now_ns));
        self.load_totals(from.pid)?;
        self.load_totals(to.pid)?;
        self.exchange_entry(from, &source.row, comes, entry_locator(&to, 0))?;
        self.exchange_entry(&to, &there, here, entry_locator(from, 0))?;
        Ok(Some(encoded(&reply)))
    }

    /// One half of an exchange: what is there goes to the other entry, another row comes.
    pub(crate) fn exchange_entry(
        &mut self,
        key: &Key,
        there: &Inode,
        comes: Inode,
        goes_to: Locator,
    ) -> Attempt<()> {
        self.take_entry(key, there, &there.handle_at(goes_to))?;
        self.insert_entry(key, comes)
    }
}

async fn exchange_there(
    h: ShardHandle,
    mut txn: ShardTransaction,
    msg: RenameReq,
    source: RenameSource,
) -> Result<Bytes, Error> {
    let RenameSource { key, row, only_owner, .. } = source;
    txn.prepare_home(&msg.ctx, &row, 0, only_owner).await?;
    let request = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.to.clone(),
        intent: Intent::Swap.into(),
        row: Some(moved(&row, h.hub.wall_ns())),
        moves_to: Some(entry_locator(&key, 0)),
        ..PrepareReq::default()
    };
    let vote = txn.prepare(request).await.map_err(Error::about_second)?;
    let there = vote.row.unwrap_or_default();
    let reply = reply(&row, &there, &key, vote.loc.clone());
    if vote.same {
        txn.abort();
        return Ok(encoded(&reply));
    }
    txn.prepare_home(&msg.ctx, &there, 0, vote.only_owner).await.map_err(Error::about_second)?;
    let comes = moved(&there, h.hub.wall_ns());
    txn.commit(|s| {
        // Clients that have it open opened it where it was.
        s.note_opened(&comes.attr, Hold::default());
        applied(s.exchange_entry(&key, &row, comes, vote.loc).map(|()| encoded(&reply)))
    })
}

fn reply(row: &Inode, there: &Inode, from: &Key, to: Locator) -> RenameReply {
    let other = there.handle_at(entry_locator(from, 0));
    RenameReply { loc: row.handle_at(to), other: Some(other), replaced: 0 }
}
