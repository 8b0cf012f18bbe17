//! rename of what is no directory, driven by the owner of the source name (rule 10).

use std::rc::Rc;

use bytes::Bytes;
use saker_rpc::txn;
use saker_runtime::failpoint;
use saker_runtime::sim::mutation;
use saker_types::change::Gone;
use saker_types::placement::Slot;
use saker_types::policy::PolicyId;
use saker_types::time::later;
use saker_types::wire::{At, Intent, PrepareReq, RenameReply, RenameReq, rename_flags};
use saker_types::{Class, Errno, Error, Inode, Key, Locator, Stamp};

use super::needs_name;
use crate::request::{Attempt, Rq, Stop};
use crate::rules::names::{check_replace, may_change, may_remove, not_below};
use crate::shard::{Shard, ShardHandle, encoded};
use crate::txn::driver::{ShardTransaction, applied};
use crate::txn::participant::entry_locator;

/// The entry that a rename is about, as its owner finds it.
pub(super) struct RenameSource {
    pub(super) key: Key,
    pub(super) row: Rc<Inode>,
    /// Its directory is sticky, and only its home knows whether the caller owns it.
    pub(super) only_owner: bool,
    /// Policy in force there.
    pub(super) policy: u64,
}

impl Shard {
    /// Moves or exchanges entries; directories are the coordinator's.
    pub(crate) fn rename(&mut self, rq: &Rq, msg: &RenameReq) -> Attempt<Bytes> {
        let source = self.rename_source(rq, msg)?;
        match msg.flags {
            0 | rename_flags::NOREPLACE => {}
            rename_flags::EXCHANGE => return self.exchange(rq, msg, source),
            _ => return Err(Errno::EINVAL.into()),
        }
        if let Some(reply) = self.rename_here(rq, msg, &source)? {
            return Ok(reply);
        }
        self.drive(rq, msg, source, rename_there)
    }

    fn rename_source(&mut self, rq: &Rq, msg: &RenameReq) -> Attempt<RenameSource> {
        let name = needs_name(&msg.from)?;
        needs_name(&msg.to)?;
        let cred = &msg.ctx.cred;
        let parent = self.parent(rq, cred, &msg.from)?;
        let key = self.own_key(parent.dir.id, name)?;
        let Some(row) = self.entry_free(&key)? else {
            return Err(Error::at(Errno::ENOENT, msg.from.path.len() - 1).into());
        };
        if row.attr.is_dir() {
            return Err(use_coordinator());
        }
        let owner = self.owner_of(&row)?;
        let only_owner = may_remove(&parent.dir, owner, cred)?;
        not_below(&msg.from, &msg.to)?;
        self.not_frozen(parent.dir.id)?;
        Ok(RenameSource { key, row, only_owner, policy: parent.way.policy })
    }

    /// Locks the source and goes on with both owners.
    pub(super) fn drive<F, Fut>(
        &mut self,
        rq: &Rq,
        msg: &RenameReq,
        source: RenameSource,
        run: F,
    ) -> Attempt<Bytes>
    where
        F: FnOnce(ShardHandle, ShardTransaction, RenameReq, RenameSource) -> Fut + 'static,
        Fut: Future<Output = Result<Bytes, Error>> + 'static,
    {
        // Before anything is locked: a path through the source itself must not wait for its lock.
        let to_parent = self.parent(rq, &msg.ctx.cred, &msg.to).map_err(second)?;
        may_move(source.policy, to_parent.way.policy)?;
        let txn = txn::begin(self)?;
        self.row_locks.lock_entry(&source.key, txn);
        let mut msg = msg.clone();
        if mutation("prepare carrying a resolved pid") {
            let anchor = Locator { id: to_parent.dir.id, ..Locator::default() };
            msg.to = At::child(anchor, needs_name(&msg.to)?);
        }
        Err(self.task(move |h| async move {
            let txn = ShardTransaction::new(h.rc(), txn, Some(source.key.clone()));
            run(h, txn, msg, source).await
        }))
    }

    /// Both names and all inodes are here: one batch. `None` if they are not.
    fn rename_here(
        &mut self,
        rq: &Rq,
        msg: &RenameReq,
        source: &RenameSource,
    ) -> Attempt<Option<Bytes>> {
        let to_name = needs_name(&msg.to)?;
        if source.only_owner {
            return Ok(None);
        }
        let RenameSource { key, row, .. } = source;
        let no_replace = msg.flags & rename_flags::NOREPLACE != 0;
        let cred = &msg.ctx.cred;
        let parent = self.parent(rq, cred, &msg.to).map_err(second)?;
        may_move(source.policy, parent.way.policy)?;
        if !self.owns(parent.dir.id, to_name) {
            return Ok(None);
        }
        let to = self.map.key(parent.dir.id, to_name);
        let there = self.entry_free(&to)?;
        let unchanged = there.as_ref().is_some_and(|there| there.attr.id == row.attr.id);
        let policy = parent.way.policy_of(row);
        let loc = row.handle_at(entry_locator(&to, row.attr.id).under(policy));
        let mut reply = RenameReply { loc: loc.clone(), ..RenameReply::default() };
        if unchanged && !no_replace {
            return Ok(Some(encoded(&reply)));
        }
        may_change(&parent.dir, cred)?;
        self.not_frozen(parent.dir.id)?;
        if let Some(there) = &there {
            check_replace(row, there, no_replace)?;
            let owner = self.owner_of(there)?;
            may_remove(&parent.dir, owner, cred)?;
            reply.replaced = there.attr.id;
            if let Some(home) = there.home_slot.map(Slot::from_wire) {
                if !self.owns_slot(home) {
                    return Ok(None);
                }
                self.attr_free(home, there.attr.id)?;
            }
        }
        self.load_totals(key.pid)?;
        self.load_totals(to.pid)?;
        failpoint!("rename.here");
        self.take_entry(key, row, &loc)?;
        self.replace_entry(&to, there.as_deref(), moved(row, self.wall_ns()))?;
        if let Some((there, home)) = there.and_then(|there| Some((there.attr.id, there.home_slot?)))
        {
            self.change_nlink(Slot::from_wire(home), there, -1)?;
        }
        Ok(Some(encoded(&reply)))
    }

    /// The entry goes, and its id is known to have moved.
    pub(crate) fn take_entry(&mut self, key: &Key, row: &Inode, to: &Locator) -> Attempt<()> {
        self.remove_entry(key, row)?;
        let slot = self.map.slot_of(key.pid, &key.name);
        if row.attr.is_dir() {
            let moved = Some(to.clone());
            self.put_gone(slot, row.attr.id, &Gone { moved, directory: true, ..Gone::default() });
        } else {
            self.put_moved(slot, row.attr.id, to.clone());
        }
        Ok(())
    }
}

async fn rename_there(
    h: ShardHandle,
    mut txn: ShardTransaction,
    msg: RenameReq,
    source: RenameSource,
) -> Result<Bytes, Error> {
    let RenameSource { key, row, only_owner, .. } = source;
    txn.prepare_home(&msg.ctx, &row, 0, only_owner).await?;
    let no_replace = msg.flags & rename_flags::NOREPLACE != 0;
    let request = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.to.clone(),
        intent: Intent::Insert.into(),
        row: Some(moved(&row, h.hub.wall_ns())),
        no_replace,
        holds: h.shard().holders(row.attr.id),
        ..PrepareReq::default()
    };
    let vote = txn.prepare(request).await.map_err(Error::about_second)?;
    let loc = row.handle_at(vote.loc);
    let mut reply = RenameReply { loc: loc.clone(), ..RenameReply::default() };
    if vote.same {
        txn.abort();
        if no_replace {
            return Err(Errno::EEXIST.into());
        }
        return Ok(encoded(&reply));
    }
    if let Some(replaced) = vote.row {
        reply.replaced = replaced.attr.id;
        let dropped = txn.prepare_home(&msg.ctx, &replaced, -1, vote.only_owner).await;
        dropped.map_err(Error::about_second)?;
    }
    txn.commit(|s| applied(s.take_entry(&key, &row, &loc).map(|()| encoded(&reply))))
}

/// May what is under one policy move to, or be linked, where another one is in force (rule 9)?
pub(super) fn may_move(from: u64, to: u64) -> Result<(), Error> {
    match PolicyId(from).lets_move_to(PolicyId(to)) {
        true => Ok(()),
        false => Err(Errno::EXDEV.into()),
    }
}

/// The row as it is at its new name.
pub(super) fn moved(row: &Inode, now_ns: Stamp) -> Inode {
    let mut row = row.clone();
    row.attr.ctime_ns = later(row.attr.ctime_ns, now_ns);
    row
}

pub(super) fn second(stop: Stop) -> Stop {
    match stop {
        Stop::Fail(e) => Stop::Fail(e.about_second()),
        other => other,
    }
}

pub(crate) fn use_coordinator() -> Stop {
    Error::of_class(Class::UseCoordinator, Errno::EISDIR).into()
}

#[cfg(test)]
mod tests {
    use saker_types::policy::{Consistency, Durability, Policy};
    use saker_types::wire::{Op, PolicyState};
    use saker_types::{FileKind, ROOT};

    use super::*;
    use crate::testing::{Tester, at, errno, user};

    fn rename(t: &mut Tester, from: &str, to: &str, flags: u32) -> Result<RenameReply, Error> {
        let (ctx, from, to) = (t.ctx(), at(from), at(to));
        t.ask(Op::Rename, &RenameReq { ctx, from, to, flags, ..RenameReq::default() })
    }

    #[test]
    fn a_file_moves_and_its_old_name_says_where() {
        let mut t = Tester::new();
        let dir = t.mkdir("d").unwrap().attr.id;
        let id = t.create("f").unwrap().attr.id;
        let moved = rename(&mut t, "f", "d/g", 0).unwrap();
        assert_eq!((moved.loc.pid, moved.loc.id, moved.replaced), (dir, id, 0));
        assert_eq!((t.row("f"), t.row("d/g").unwrap().attr.id), (None, id));
        assert_eq!((t.counts(ROOT), t.counts(dir)), ((1, 1), (1, 0)));
        assert_eq!(t.gone(id).and_then(|gone| gone.moved), Some(moved.loc));
    }

    #[test]
    fn what_was_there_is_an_orphan() {
        let mut t = Tester::new();
        let (a, b) = (t.create("a").unwrap().attr.id, t.create("b").unwrap().attr.id);
        assert_eq!(errno(rename(&mut t, "a", "b", rename_flags::NOREPLACE)), Errno::EEXIST);
        assert_eq!(rename(&mut t, "a", "b", 0).unwrap().replaced, b);
        assert_eq!((t.row("a"), t.row("b").unwrap().attr.id), (None, a));
        assert_eq!(t.gone(b).unwrap().orphan.unwrap().attr.nlink, 0);
        // Two names of one inode: both stay.
        t.link("b", "c").unwrap();
        rename(&mut t, "b", "c", 0).unwrap();
        assert!(t.row("b").is_some() && t.row("c").is_some());
    }

    #[test]
    fn names_move_only_to_where_the_same_is_promised() {
        let mut t = Tester::new();
        let cell = |durability| PolicyId::new(5, &Policy::cell(Consistency::Strong, durability)).0;
        for (dir, policy) in [("g", cell(Durability::Global)), ("l", cell(Durability::Local))] {
            t.mkdir(dir).unwrap();
            t.edit(dir, |row| row.policy = policy);
            t.shard().policies.learn(policy, PolicyState::default());
        }
        t.create("f").unwrap();
        t.create("l/there").unwrap();
        assert_eq!(errno(rename(&mut t, "f", "l/f", 0)), Errno::EXDEV);
        assert_eq!(errno(rename(&mut t, "f", "l/there", rename_flags::EXCHANGE)), Errno::EXDEV);
        assert_eq!(errno(t.link("f", "l/f")), Errno::EXDEV);
        assert_eq!(errno(t.link("l/there", "f2")), Errno::EXDEV);
        // What the default promises, too.
        rename(&mut t, "f", "g/f", 0).unwrap();
        t.link("g/f", "f").unwrap();
        rename(&mut t, "l/there", "l/here", 0).unwrap();
        assert!(t.row("l/f").is_none() && t.row("l/here").is_some());
    }

    #[test]
    fn what_cannot_be_moved_stays() {
        let mut t = Tester::new();
        t.create("f").unwrap();
        t.mkdir("d").unwrap();
        assert_eq!(errno(rename(&mut t, "f", "d", 0)), Errno::EISDIR);
        assert_eq!(errno(rename(&mut t, "absent", "g", 0)), Errno::ENOENT);
        assert_eq!(errno(rename(&mut t, "f", "g", 99)), Errno::EINVAL);
        assert!(rename(&mut t, "d", "e", 0).unwrap_err().is(Class::UseCoordinator));
        assert!(rename(&mut t, "f", "absent/g", 0).unwrap_err().is_about_second());
        t.cred = user(5);
        assert_eq!(errno(rename(&mut t, "f", "g", 0)), Errno::EACCES);
        assert_eq!(t.row("f").unwrap().attr.kind(), FileKind::Regular);
        assert_eq!(t.counts(ROOT), (2, 1));
    }
}
