//! link. At the second link the inode's row splits into a reference and an attribute row, which
//! stays with the shard of the first name's slot, its home (SwitchFS §5.5; rule 18).

use std::rc::Rc;

use bytes::Bytes;
use saker_rpc::txn;
use saker_runtime::failpoint;
use saker_types::change::Gone;
use saker_types::placement::Slot;
use saker_types::time::later;
use saker_types::wire::{Entry, Intent, LinkReq, PrepareReq};
use saker_types::{Attr, Errno, Error, FileKind, Inode, Key, Locator};

use super::needs_name;
use super::rename::{may_move, second};
use crate::request::{Attempt, Rq};
use crate::rules::names::not_below;
use crate::shard::{Shard, ShardHandle, encoded};
use crate::txn::driver::ShardTransaction;

/// The inode to link, as the driver finds it.
enum LinkSource {
    /// Its only name is here.
    Plain(Key, Rc<Inode>),
    /// It has a home (id, slot).
    Linked(u64, u32),
    /// It has no name yet (O_TMPFILE).
    Nameless(Inode),
}

impl Shard {
    /// Makes another name for what is no directory.
    pub(crate) fn link(&mut self, rq: &Rq, msg: &LinkReq) -> Attempt<Bytes> {
        needs_name(&msg.to)?;
        let source = self.link_source(rq, msg)?;
        not_below(&msg.from, &msg.to)?;
        // Before anything is locked: a path through the source itself must not wait for its lock.
        let from_policy = rq.policy.get();
        let to_parent = self.parent(rq, &msg.ctx.cred, &msg.to).map_err(second)?;
        may_move(from_policy, to_parent.way.policy)?;
        self.may_grow()?;
        let txn = txn::begin(self)?;
        let own = match &source {
            LinkSource::Plain(key, _) => {
                self.row_locks.lock_entry(key, txn);
                Some(key.clone())
            }
            LinkSource::Linked(..) => None,
            LinkSource::Nameless(row) => {
                self.set_busy(row.attr.id);
                None
            }
        };
        let msg = msg.clone();
        Err(self.task(move |h| async move {
            let txn = ShardTransaction::new(h.rc(), txn, own);
            match source {
                LinkSource::Plain(key, row) => link_plain(h, txn, msg, key, row).await,
                LinkSource::Linked(id, slot) => link_linked(txn, msg, id, slot).await,
                LinkSource::Nameless(row) => {
                    let id = row.attr.id;
                    let linked = link_nameless(&h, txn, msg, row).await;
                    h.shard().clear_busy(id);
                    linked
                }
            }
        }))
    }

    fn link_source(&mut self, rq: &Rq, msg: &LinkReq) -> Attempt<LinkSource> {
        let anchor = &msg.from.anchor;
        rq.policy.set(anchor.policy);
        if msg.from.path.is_empty() {
            self.not_merging_at(anchor)?;
        }
        if let (true, Some(slot)) = (msg.from.path.is_empty(), anchor.home_slot) {
            let home = Slot::from_wire(slot);
            self.must_own_slot(home)?;
            self.attr_free(home, anchor.id)?.ok_or(Errno::ENOENT)?;
            return Ok(LinkSource::Linked(anchor.id, slot));
        }
        let key = match msg.from.path.last() {
            Some(name) => {
                let parent = self.parent(rq, &msg.ctx.cred, &msg.from)?;
                self.own_key(parent.dir.id, name)?
            }
            None => self.own_key(anchor.pid, &anchor.name)?,
        };
        let row = self.entry_free(&key)?;
        let is_it = |row: &Rc<Inode>| !msg.from.path.is_empty() || row.attr.id == anchor.id;
        let Some(row) = row.filter(is_it) else {
            if !msg.from.path.is_empty() {
                return Err(Errno::ENOENT.into());
            }
            let slot = self.map.slot_at(anchor);
            if let Some(to) = self.gone(slot, anchor.id)?.and_then(|gone| gone.moved) {
                return Err(Error::moved(to).into());
            }
            let nameless = self.linkable(slot, anchor.id)?.ok_or(Errno::ENOENT)?;
            return Ok(LinkSource::Nameless(nameless));
        };
        match row.home_slot {
            _ if row.attr.is_dir() => Err(Errno::EPERM.into()),
            Some(slot) => Ok(LinkSource::Linked(row.attr.id, slot)),
            None => Ok(LinkSource::Plain(key, row)),
        }
    }

    /// The only entry becomes the first of two: a reference, with the attributes beside it.
    fn split_entry(&mut self, key: &Key, row: &Inode, slot: u32) -> Attr {
        failpoint!("link.splits");
        let mut attributes = row.clone();
        attributes.attr.nlink = 2;
        attributes.attr.ctime_ns = later(row.attr.ctime_ns, self.wall_ns());
        let attr = attributes.attr.clone();
        self.update_entry(key, reference(row, slot));
        self.put_attr_row(Slot::from_wire(slot), attributes);
        attr
    }
}

fn insert(msg: &LinkReq, row: Inode) -> PrepareReq {
    PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.to.clone(),
        intent: Intent::Insert.into(),
        row: Some(row),
        no_replace: true,
        ..PrepareReq::default()
    }
}

async fn link_plain(
    h: ShardHandle,
    mut txn: ShardTransaction,
    msg: LinkReq,
    key: Key,
    row: Rc<Inode>,
) -> Result<Bytes, Error> {
    let slot = u32::from(h.shard().map.slot_of(key.pid, &key.name));
    let id = row.attr.id;
    let vote = txn.prepare(insert(&msg, reference(&row, slot))).await;
    let vote = vote.map_err(Error::about_second)?;
    if vote.same {
        txn.abort();
        return Err(Errno::EEXIST.into());
    }
    txn.commit(|s| {
        let attr = s.split_entry(&key, &row, slot);
        let loc = Locator::home(id, slot).under(vote.loc.policy);
        Ok(encoded(&Entry { attr, loc, ..Entry::default() }))
    })
}

async fn link_linked(
    mut txn: ShardTransaction,
    msg: LinkReq,
    id: u64,
    slot: u32,
) -> Result<Bytes, Error> {
    let row = txn.prepare_nlink(&msg.ctx, id, slot, 1).await?;
    let vote =
        txn.prepare(insert(&msg, reference(&row, slot))).await.map_err(Error::about_second)?;
    if vote.same {
        txn.abort();
        return Err(Errno::EEXIST.into());
    }
    txn.commit(|_| {
        let mut attr = row.attr;
        attr.nlink += 1;
        // The attributes' owner gives the time when it commits: this is no later. Whoever took an answer for
        // newer than what the owner has would not believe that afterwards.
        attr.ctime_ns = later(attr.ctime_ns, 0);
        let loc = Locator::home(id, slot).under(vote.loc.policy);
        Ok(encoded(&Entry { attr, loc, ..Entry::default() }))
    })
}

async fn link_nameless(
    h: &ShardHandle,
    mut txn: ShardTransaction,
    msg: LinkReq,
    mut row: Inode,
) -> Result<Bytes, Error> {
    row.attr.nlink = 1;
    row.attr.ctime_ns = later(row.attr.ctime_ns, h.hub.wall_ns());
    let holds = h.shard().holders(row.attr.id);
    let request = PrepareReq { holds, ..insert(&msg, row.clone()) };
    let vote = txn.prepare(request).await.map_err(Error::about_second)?;
    let entry = Entry { attr: row.attr, loc: vote.loc, ..Entry::default() };
    txn.commit(|s| {
        // It is no orphan any more: handles go on at its name.
        let left = s.map.slot_at(&msg.from.anchor);
        let gone = Gone { moved: Some(entry.loc.clone()), ..Gone::default() };
        s.put_gone(left, entry.attr.id, &gone);
        Ok(encoded(&entry))
    })
}

/// The row of a name of a hard-linked inode; of a symlink with the target, which never changes
/// and is needed where paths are resolved.
fn reference(row: &Inode, slot: u32) -> Inode {
    let kind = row.attr.kind();
    let attr = Attr { id: row.attr.id, mode: kind.bits(), ..Attr::default() };
    let inline = if kind == FileKind::Symlink { row.inline.clone() } else { Bytes::new() };
    Inode { attr, inline, home_slot: Some(slot), ..Inode::default() }
}

#[cfg(test)]
mod tests {
    use saker_types::ROOT;

    use super::*;
    use crate::testing::{Tester, errno};

    #[test]
    fn the_second_name_parts_attributes_from_names() {
        let mut t = Tester::new();
        let id = t.create("f").unwrap().attr.id;
        let linked = t.link("f", "g").unwrap();
        assert_eq!((linked.attr.id, linked.attr.nlink), (id, 2));
        let (f, g) = (t.row("f").unwrap(), t.row("g").unwrap());
        assert_eq!((f.attr.id, f.home_slot), (id, g.home_slot));
        assert!(linked.loc.home_slot.is_some() && linked.loc.home_slot == f.home_slot);
        assert_eq!(t.attr_row(id).unwrap().attr, linked.attr);
        assert_eq!(t.link("g", "h").unwrap().attr.nlink, 3);
        assert_eq!((t.attr_row(id).unwrap().attr.nlink, t.counts(ROOT)), (3, (3, 0)));
        assert_eq!(t.shard().votes.len(), 0, "nothing is left prepared");
    }

    #[test]
    fn what_cannot_be_linked_changes_nothing() {
        let mut t = Tester::new();
        t.create("f").unwrap();
        t.create("g").unwrap();
        t.mkdir("d").unwrap();
        let before = t.row("f");
        assert_eq!(errno(t.link("d", "e")), Errno::EPERM);
        assert_eq!(errno(t.link("absent", "e")), Errno::ENOENT);
        let error = t.link("f", "g").unwrap_err();
        assert_eq!((error.errno(), t.row("f")), (Errno::EEXIST, before.clone()));
        let error = t.link("f", "absent/g").unwrap_err();
        assert!(error.errno() == Errno::ENOENT && error.is_about_second());
        assert_eq!((t.row("f"), t.row("e"), t.counts(ROOT)), (before, None, (3, 1)));
        // The locks are given up.
        t.unlink("f").unwrap();
    }
}
