//! The participant: prepares rows, votes, and waits for the outcome. Whoever comes to a prepared
//! row with another prepare is told to try again (rule 11); whoever holds nothing waits.

use std::time::Duration;

use bytes::Bytes;
use saker_runtime::failpoint;
use saker_runtime::sim::mutation;
use saker_types::change::{Prepared, TxnEnd, What};
use saker_types::inode::Locator;
use saker_types::placement::Slot;
use saker_types::time::later;
use saker_types::wire::{
    DecideReq, Empty, Hold, Intent, OutcomeReply, OutcomeReq, PrepareReq, TxnOutcome, Vote,
};
use saker_types::{Class, Errno, Error, FileKind, Inode, Key, NodeId, TxnId, access, acl, limits};

use crate::namespace::dir::ResolvedDir;
use crate::namespace::resolve::{Parent, PathInfo};
use crate::ops::needs_name;
use crate::request::{Attempt, Rq, Stop, Wait};
use crate::rules::attributes::apply_access;
use crate::rules::names::{check_replace, may_change, may_remove};
use crate::rules::xattrs::apply_acl;
use crate::shard::{Shard, ShardHandle, encoded};

/// How long a participant waits before it asks the driver for the outcome, and between askings.
const IN_DOUBT: Duration = Duration::from_secs(1);

pub(crate) fn busy() -> Stop {
    Error::retry("another transaction holds the entry").into()
}

/// Whoever prepares never waits for a prepared row.
pub(super) fn no_wait<T>(step: Attempt<T>) -> Attempt<T> {
    match step {
        Err(Stop::Wait(Wait::Txn(_) | Wait::Busy(_) | Wait::Frozen(_))) => Err(busy()),
        other => other,
    }
}

impl Shard {
    /// First phase.
    pub(crate) fn prepare(&mut self, rq: &Rq, msg: &PrepareReq) -> Attempt<Bytes> {
        let driver = NodeId::from_u32(msg.driver).ok_or(Errno::EINVAL)?;
        let txn = TxnId { driver, number: msg.number };
        let intent = Intent::try_from(msg.intent).map_err(|_| Errno::EINVAL)?;
        let vote = match intent {
            Intent::Nlink => self.prepare_nlink(txn, msg)?,
            Intent::Insert => self.prepare_insert(rq, txn, msg)?,
            Intent::TakeDir | Intent::RemoveDir | Intent::SetDir => {
                self.prepare_directory(rq, txn, msg, intent)?
            }
            Intent::Swap => self.prepare_swap(rq, txn, msg)?,
            Intent::Replica => self.prepare_replica(txn, msg)?,
        };
        Ok(encoded(&vote))
    }

    pub(crate) fn vote_for(&mut self, txn: TxnId, part: Prepared) {
        failpoint!("participant.votes");
        let first = !self.votes.has(txn);
        self.log_change(What::Prepared(Box::new(part.clone())));
        self.restore_prepared(part);
        if first {
            self.ask_when_in_doubt(txn);
        }
    }

    /// Locks what a vote has locked; also when the journal is replayed.
    pub(crate) fn restore_prepared(&mut self, part: Prepared) {
        self.watches.prepared(&part);
        let Some(driver) = NodeId::from_u32(part.driver) else { return };
        let txn = TxnId { driver, number: part.number };
        if let Some(entry) = &part.entry {
            let key = self.map.key(entry.pid, &entry.name);
            self.row_locks.lock_entry(&key, txn);
        } else {
            self.row_locks.lock_attr(Slot::from_wire(part.attr_slot), part.attr_id, txn);
        }
        self.votes.add(txn, part);
    }

    /// Link count of an attribute row here.
    fn prepare_nlink(&mut self, txn: TxnId, msg: &PrepareReq) -> Attempt<Vote> {
        let id = msg.at.anchor.id;
        let slot = msg.at.anchor.home_slot.ok_or(Errno::EINVAL)?;
        let home = Slot::from_wire(slot);
        self.must_own_slot(home)?;
        if self.attr_locked_by(home, id).is_some_and(|holder| holder != txn) {
            return Err(busy());
        }
        no_wait(self.not_busy(id))?;
        let row = self.attr_row(home, id)?.ok_or(Errno::ENOENT)?;
        if msg.delta > 0 && row.attr.nlink.saturating_add_signed(msg.delta) > limits::LINKS_MAX {
            return Err(Errno::EMLINK.into());
        }
        let part = Prepared {
            driver: txn.driver.to_u32(),
            number: txn.number,
            attr_id: id,
            attr_slot: slot,
            intent: Intent::Nlink.into(),
            delta: msg.delta,
            ..Prepared::default()
        };
        self.vote_for(txn, part);
        Ok(Vote { loc: Locator::home(id, slot), row: Some(shown(&row)), ..Vote::default() })
    }

    /// An entry for the row that a rename or link brings.
    fn prepare_insert(&mut self, rq: &Rq, txn: TxnId, msg: &PrepareReq) -> Attempt<Vote> {
        let name = needs_name(&msg.at)?;
        let row = msg.row.clone().ok_or(Errno::EINVAL)?;
        let cred = &msg.ctx.cred;
        let parent = match mutation("prepare carrying a resolved pid") && msg.at.path.len() == 1 {
            true => resolved_by_driver(&msg.at.anchor),
            false => no_wait(self.parent(rq, cred, &msg.at))?,
        };
        let key = self.own_key(parent.dir.id, name)?;
        let loc = entry_locator(&key, row.attr.id).under(parent.way.policy_of(&row));
        match self.locked_by(&key) {
            // Source and target are one entry: nothing changes (rule 12).
            Some(holder)
                if holder == txn
                    && !self.votes.inserts(txn, &Shard::entry_key(key.pid, &key.name)) =>
            {
                if msg.no_replace {
                    return Err(Errno::EEXIST.into());
                }
                return Ok(Vote { loc, same: true, ..Vote::default() });
            }
            Some(holder) if holder != txn => return Err(busy()),
            _ => {}
        }
        may_change(&parent.dir, cred)?;
        no_wait(self.not_frozen(parent.dir.id))?;
        let there = self.entry(&key)?;
        if !msg.at.may_end_at(there.as_ref().map_or(0, |there| there.attr.id)) {
            return Err(Error::elsewhere(msg.at.path.len() - 1).into());
        }
        let mut only_owner = false;
        if let Some(there) = &there {
            no_wait(self.not_busy(there.attr.id))?;
            if there.attr.id == row.attr.id && !msg.no_replace {
                return Ok(Vote { loc, row: Some(shown(there)), same: true, ..Vote::default() });
            }
            check_replace(&row, there, msg.no_replace)?;
            let owner = self.owner_of(there)?;
            only_owner = may_remove(&parent.dir, owner, cred)?;
        }
        let part = Prepared {
            driver: txn.driver.to_u32(),
            number: txn.number,
            entry: Some(Shard::entry_key(key.pid, &key.name)),
            intent: Intent::Insert.into(),
            row: Some(row),
            holds: msg.holds.clone(),
            ..Prepared::default()
        };
        self.vote_for(txn, part);
        Ok(Vote { loc, row: there.map(|there| shown(&there)), only_owner, ..Vote::default() })
    }

    /// A directory's own row: taken away, removed, or changed.
    fn prepare_directory(
        &mut self,
        rq: &Rq,
        txn: TxnId,
        msg: &PrepareReq,
        intent: Intent,
    ) -> Attempt<Vote> {
        let (key, inode, policy) = self.find_directory(rq, txn, msg, intent)?;
        let mut part = Prepared {
            driver: txn.driver.to_u32(),
            number: txn.number,
            entry: Some(Shard::entry_key(key.pid, &key.name)),
            intent: intent.into(),
            moves_to: msg.moves_to.clone(),
            ..Prepared::default()
        };
        if intent == Intent::SetDir {
            let now_ns = self.wall_ns();
            let mut row = inode.clone();
            match (&msg.setattr, &msg.acl, msg.policy) {
                (Some(setattr), ..) => apply_access(&mut row, setattr, now_ns)?,
                (_, Some(acl), _) => apply_acl(&mut row, &acl.name, &acl.value, &msg.ctx.cred)?,
                (_, _, Some(policy)) => {
                    access::check_owner(&row.attr, &msg.ctx.cred)?;
                    row.policy = policy;
                }
                (None, None, None) => return Err(Errno::EINVAL.into()),
            }
            row.attr.ctime_ns = later(row.attr.ctime_ns, now_ns);
            part.row = Some(row);
        }
        let loc = entry_locator(&key, inode.attr.id).under(policy);
        let (was_open, before) = (inode.is_open(), inode.policy);
        let row = part.row.clone().unwrap_or(inode);
        let closes = was_open && !row.is_open();
        self.vote_for(txn, part);
        Ok(Vote { loc, row: Some(row), closes, policy: before, ..Vote::default() })
    }

    /// Its key, its row, and the policy in force there.
    fn find_directory(
        &mut self,
        rq: &Rq,
        txn: TxnId,
        msg: &PrepareReq,
        intent: Intent,
    ) -> Attempt<(Key, Inode, u64)> {
        let (key, parent) = match msg.at.path.last() {
            Some(name) => {
                let parent = no_wait(self.parent(rq, &msg.ctx.cred, &msg.at))?;
                (self.own_key(parent.dir.id, name)?, Some(parent))
            }
            None => (self.own_key(msg.at.anchor.pid, &msg.at.anchor.name)?, None),
        };
        if self.locked_by(&key).is_some_and(|holder| holder != txn) {
            return Err(busy());
        }
        let Some(inode) = self.entry(&key)? else { return Err(self.lost(msg)) };
        if parent.is_none() && inode.attr.id != msg.at.anchor.id {
            return Err(self.lost(msg));
        }
        let leaves = matches!(intent, Intent::RemoveDir | Intent::TakeDir);
        if leaves && parent.is_some() && !msg.at.may_end_at(inode.attr.id) {
            return Err(Error::elsewhere(msg.at.path.len() - 1).into());
        }
        if !inode.attr.is_dir() {
            if intent != Intent::RemoveDir {
                return Err(Error::of_class(Class::UseOwner, Errno::ENOTDIR).into());
            }
            if let Some(parent) = &parent {
                let owner = self.owner_of(&inode)?;
                may_remove(&parent.dir, owner, &msg.ctx.cred)?;
            }
            return Err(Errno::ENOTDIR.into());
        }
        if inode.attr.id == saker_types::ROOT && intent != Intent::SetDir {
            return Err(Errno::EBUSY.into());
        }
        if let (Some(parent), Intent::TakeDir | Intent::RemoveDir) = (&parent, intent) {
            may_remove(&parent.dir, Some(inode.attr.uid), &msg.ctx.cred)?;
            no_wait(self.not_frozen(parent.dir.id))?;
        }
        let way = parent.map_or_else(|| PathInfo::of_handle(&msg.at.anchor), |parent| parent.way);
        let policy = way.policy_of(&inode);
        Ok((key, (*inode).clone(), policy))
    }

    /// The directory that a request is about is not there.
    fn lost(&mut self, msg: &PrepareReq) -> Stop {
        if !msg.at.path.is_empty() {
            return Error::at(Errno::ENOENT, msg.at.path.len() - 1).into();
        }
        match self.gone(self.map.slot_at(&msg.at.anchor), msg.at.anchor.id) {
            Ok(Some(gone)) => match gone.moved {
                Some(to) => Error::moved(to).into(),
                None => Errno::ENOENT.into(),
            },
            Ok(None) => Errno::ESTALE.into(),
            Err(e) => e.into(),
        }
    }

    /// Second phase; told twice it does nothing.
    pub(crate) fn decide(&mut self, msg: &DecideReq) -> Attempt<Bytes> {
        let driver = NodeId::from_u32(msg.driver).ok_or(Errno::EINVAL)?;
        self.end_prepared(TxnId { driver, number: msg.number }, msg.commit)?;
        Ok(encoded(&Empty {}))
    }

    /// Reads what the commit of a transaction will read: if that fails, it fails before anything
    /// has changed, and the votes are kept until the driver tells again (rule 13).
    fn read_ahead(&mut self, txn: TxnId) -> Attempt<()> {
        for part in self.votes.parts(txn).to_vec() {
            match &part.entry {
                Some(entry) => {
                    self.entry(&self.map.key(entry.pid, &entry.name))?;
                    self.load_totals(entry.pid)?;
                }
                None => _ = self.attr_row(Slot::from_wire(part.attr_slot), part.attr_id)?,
            }
        }
        Ok(())
    }

    fn end_prepared(&mut self, txn: TxnId, commit: bool) -> Attempt<()> {
        if commit {
            self.read_ahead(txn)?;
        }
        // A part leaves the list when it is done.
        while let Some(part) = self.votes.parts(txn).first().cloned() {
            if commit {
                failpoint!("participant.commits");
                self.commit_part(&part)?;
            }
            match &part.entry {
                Some(e) => self.row_locks.unlock_entry(&self.map.key(e.pid, &e.name)),
                None => {
                    let home = Slot::from_wire(part.attr_slot);
                    self.row_locks.unlock_attr(home, part.attr_id);
                }
            }
            self.votes.first_is_done(txn);
        }
        if !self.votes.end(txn) {
            return Ok(());
        }
        failpoint!("participant.ends");
        self.log_change(What::PreparedEnd(TxnEnd {
            driver: txn.driver.to_u32(),
            number: txn.number,
        }));
        self.wake(&Wait::Txn(txn));
        Ok(())
    }

    fn commit_part(&mut self, part: &Prepared) -> Attempt<()> {
        let Some(entry) = &part.entry else {
            return self.change_nlink(Slot::from_wire(part.attr_slot), part.attr_id, part.delta);
        };
        let (key, slot) = self.map.place(entry.pid, &entry.name);
        if part.intent == Intent::Replica as i32 {
            self.replicate(entry, part.row.as_ref());
            return Ok(());
        }
        let there = self.entry(&key)?;
        match (Intent::try_from(part.intent), there) {
            (Ok(Intent::Insert), there) => {
                let Some(row) = part.row.clone() else { return Err(Errno::EIO.into()) };
                self.note_moved(part, &row);
                self.replace_entry(&key, there.as_deref(), row)
            }
            (Ok(Intent::SetDir), Some(there)) => {
                let Some(row) = &part.row else { return Err(Errno::EIO.into()) };
                // Times may have been set meanwhile; only what the coordinator changes is taken.
                let mut inode = (*there).clone();
                let a = &mut inode.attr;
                (a.mode, a.uid, a.gid) = (row.attr.mode, row.attr.uid, row.attr.gid);
                inode.policy = row.policy;
                let a = &mut inode.attr;
                a.ctime_ns = a.ctime_ns.max(row.attr.ctime_ns);
                for name in [acl::ACCESS, acl::DEFAULT] {
                    inode.set_xattr(name, row.xattr(name).cloned());
                }
                self.update_entry(&key, inode);
                Ok(())
            }
            (Ok(Intent::RemoveDir), Some(there)) => {
                self.remove_entry(&key, &there)?;
                self.put_orphan(slot, (*there).clone());
                Ok(())
            }
            (Ok(Intent::TakeDir), Some(there)) => {
                let to = part.moves_to.clone().unwrap_or_default();
                self.take_entry(&key, &there, &there.handle_at(to))
            }
            (Ok(Intent::Swap), Some(there)) => {
                let (Some(row), Some(to)) = (part.row.clone(), part.moves_to.clone()) else {
                    return Err(Errno::EIO.into());
                };
                self.note_moved(part, &row);
                self.exchange_entry(&key, &there, row, to)
            }
            _ => {
                tracing::error!("prepared row of {key:?} is not there at commit");
                Err(Errno::EIO.into())
            }
        }
    }

    /// A row comes, perhaps from another shard: who has the file open has opened it there.
    fn note_moved(&mut self, part: &Prepared, row: &Inode) {
        if row.home_slot.is_some() || part.driver == NodeId::Shard(self.no).to_u32() {
            return;
        }
        match &part.holds {
            Some(known) => known.holds.iter().for_each(|hold| self.note_opened(&row.attr, *hold)),
            None => self.note_opened(&row.attr, Hold::default()),
        }
    }

    /// Puts a row brought by a rename or link in place of what is there. The link of a replaced
    /// hard link is dropped by the transaction's part at its home.
    pub(crate) fn replace_entry(
        &mut self,
        key: &Key,
        there: Option<&Inode>,
        row: Inode,
    ) -> Attempt<()> {
        if let Some(there) = there {
            self.remove_entry(key, there)?;
            let (slot, id) = (self.map.slot_of(key.pid, &key.name), there.attr.id);
            match there.home_slot {
                // Handles from before the link go on at the home.
                Some(home) => self.put_moved(slot, id, Locator::home(id, home)),
                None => self.put_orphan(slot, there.clone()),
            }
        }
        self.insert_entry(key, row)
    }

    /// Asks the driver from time to time what became of a transaction, until it is over.
    pub(crate) fn ask_when_in_doubt(&mut self, txn: TxnId) {
        let h = self.handle();
        self.hub.spawn(in_doubt(h, txn));
    }

    /// A participant asks about a transaction that this shard drives.
    pub(crate) fn outcome(&mut self, msg: &OutcomeReq) -> Attempt<Bytes> {
        Ok(encoded(&self.ledger.outcome(msg.number)))
    }
}

async fn in_doubt(h: ShardHandle, txn: TxnId) {
    loop {
        h.hub.sleep(IN_DOUBT).await;
        if !h.shard().votes.has(txn) {
            return;
        }
        failpoint!("in_doubt.asks");
        let request = OutcomeReq { number: txn.number };
        let op = saker_types::wire::Op::Outcome;
        let answer = h.hub.ask::<OutcomeReply>(txn.driver, op, 0, &request, IN_DOUBT).await;
        let commit = match answer.map(|a| TxnOutcome::try_from(a.outcome)) {
            Ok(Ok(TxnOutcome::Committed)) => true,
            Ok(Ok(TxnOutcome::Aborted)) => false,
            _ => continue,
        };
        failpoint!("in_doubt.knows");
        match h.shard().end_prepared(txn, commit) {
            Ok(()) => return,
            Err(_) => tracing::error!("transaction {txn:?} cannot be applied"),
        }
    }
}

/// What rule 1 forbids, for a simulation to find: a parent that another node resolved.
fn resolved_by_driver(anchor: &Locator) -> Parent {
    let mode = FileKind::Directory.bits() | 0o777;
    let dir = ResolvedDir { id: anchor.id, mode, uid: 0, gid: 0, policy: 0, acls: None };
    Parent { dir, way: PathInfo::default() }
}

/// A row without its data, for a vote; of a symlink with its target.
pub(super) fn shown(row: &Inode) -> Inode {
    let is_symlink = row.attr.kind() == FileKind::Symlink;
    let inline = if is_symlink { row.inline.clone() } else { Bytes::new() };
    Inode { inline, xattrs: Vec::new(), ..row.clone() }
}

pub(crate) fn entry_locator(key: &Key, id: u64) -> Locator {
    Locator::entry(key.pid, Bytes::copy_from_slice(&key.name), id)
}
