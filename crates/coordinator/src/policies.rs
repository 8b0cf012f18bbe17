//! Policies of subtrees, and who holds these (docs/decisions/0063).

use std::collections::{BTreeMap, BTreeSet};

use saker_runtime::time::Time;
use saker_types::inode::Locator;
use saker_types::policy::{Durability, PolicyId};
use saker_types::wire::{
    HoldRecord, IdRange, Merged, Merging, PoliciesReply, PolicyReply, PolicyState, RenewHoldsReply,
};
use saker_types::{Errno, Error, InodeId, limits};

/// What the coordinator knows of policies.
#[derive(Default)]
pub(crate) struct Policies {
    records: BTreeMap<u64, PolicyReply>,
    /// A change of these is under way.
    changing: BTreeSet<u64>,
    /// Of these, shards have been told to forget the state, which may be about to change.
    in_doubt: BTreeSet<u64>,
    /// Until when holders count as alive, by the lease clock, if they are not heard of again.
    leases: BTreeMap<u64, Time>,
}

impl Policies {
    /// A record says this.
    pub(crate) fn restore(&mut self, record: PolicyReply) {
        self.records.insert(record.policy, record);
    }

    /// A record says that a policy's directory was removed.
    pub(crate) fn forget(&mut self, policy: u64) {
        self.records.remove(&policy);
        self.leases.remove(&policy);
    }

    /// All records.
    pub(crate) fn all(&self) -> impl Iterator<Item = &PolicyReply> {
        self.records.values()
    }

    /// After a start: holders have a whole lease to be heard of.
    pub(crate) fn begin_serving(&mut self, now: Time) {
        let held = self.records.values().filter(|record| record.hold.is_some());
        self.leases = held.map(|record| (record.policy, now + limits::HOLD_LEASE)).collect();
    }

    /// What is known of a policy.
    ///
    /// # Errors
    /// ENOENT.
    pub(crate) fn get(&self, policy: u64) -> Result<&PolicyReply, Error> {
        self.records.get(&policy).ok_or_else(|| {
            Error::new(Errno::ENOENT).with_text(format!("there is no policy {policy:#x}"))
        })
    }

    /// The same, for somebody who asks: with the rest of the holder's lease, without the number by which it holds.
    pub(crate) fn described(&self, policy: u64, now: Time) -> Result<PolicyReply, Error> {
        let mut record = self.get(policy)?.clone();
        if let Some(hold) = &mut record.hold {
            let until = self.leases.get(&policy).copied().unwrap_or(now);
            hold.lease_ms = (until - now).as_millis() as u32;
            hold.holder = 0;
        }
        Ok(record)
    }

    /// All of them, as in [`Policies::described`].
    pub(crate) fn all_described(&self, now: Time) -> PoliciesReply {
        let all = self.records.keys().filter_map(|policy| self.described(*policy, now).ok());
        PoliciesReply { policies: all.collect() }
    }

    /// What a shard must know of it.
    ///
    /// # Errors
    /// "Try again" while it is about to change, or a merge that is decided is not complete.
    pub(crate) fn state(&self, policy: u64) -> Result<PolicyState, Error> {
        let is_merging = self.records.get(&policy).is_some_and(|record| record.merging.is_some());
        if is_merging || self.in_doubt.contains(&policy) {
            return Err(Error::retry("the policy is being changed"));
        }
        let Some(record) = self.records.get(&policy) else {
            return Ok(PolicyState { successor: Some(0), ..PolicyState::default() });
        };
        let hold = record.hold.as_ref();
        Ok(PolicyState {
            successor: record.successor,
            hold: hold.map_or(0, |hold| hold.epoch),
            holder: hold.map_or(0, |hold| hold.holder),
        })
    }

    /// Who holds the subtree.
    pub(crate) fn hold(&self, policy: u64) -> Option<&HoldRecord> {
        self.records.get(&policy)?.hold.as_ref()
    }

    /// Refuses what must not be done to the root of a subtree that is held.
    ///
    /// # Errors
    /// EBUSY.
    pub(crate) fn check_not_held(&self, policy: u64) -> Result<(), Error> {
        match self.hold(policy) {
            None => Ok(()),
            Some(hold) => Err(held_by(policy, hold, "")),
        }
    }

    /// The hold, if it is in this epoch.
    ///
    /// # Errors
    /// ESTALE: it has ended, or is in another one.
    pub(crate) fn check_epoch(&self, policy: u64, epoch: u64) -> Result<&HoldRecord, Error> {
        match self.hold(policy) {
            Some(hold) if hold.epoch == epoch => Ok(hold),
            _ => Err(hold_has_ended()),
        }
    }

    /// The same, if this holder has it.
    ///
    /// # Errors
    /// ESTALE.
    pub(crate) fn check_holder(&self, policy: u64, epoch: u64, holder: u64) -> Result<(), Error> {
        match self.check_epoch(policy, epoch)? {
            hold if hold.holder == holder => Ok(()),
            _ => Err(hold_has_ended()),
        }
    }

    /// Is the holder taken for dead?
    pub(crate) fn has_lapsed(&self, policy: u64, now: Time) -> bool {
        self.leases.get(&policy).is_none_or(|until| *until <= now)
    }

    /// The record with a hold of `holder`, if it may have it. `force`: what is saved in the cluster it may
    /// take from a holder that lives.
    ///
    /// # Errors
    /// EBUSY: another one has it. ESTALE: the policy is not in force any more.
    pub(crate) fn with_hold(
        &self,
        policy: u64,
        holder: u64,
        who: &str,
        now: Time,
        force: bool,
    ) -> Result<PolicyReply, Error> {
        let record = self.get(policy).map_err(|_| no_longer_in_force())?;
        if record.successor.is_some() {
            return Err(no_longer_in_force());
        }
        let id = PolicyId(policy);
        let is_saved = id.is_decoupled() && id.durability() == Durability::Global;
        match &record.hold {
            Some(hold) if hold.holder == holder => return Ok(record.clone()),
            Some(_) if force && is_saved => {}
            Some(hold) if !self.has_lapsed(policy, now) => return Err(held_by(policy, hold, "")),
            Some(hold) if id.is_decoupled() && id.durability() == Durability::Local => {
                let more = "; its lease has ended: see saker policy reclaim";
                return Err(held_by(policy, hold, more));
            }
            _ => {}
        }
        let epoch = record.last_epoch + 1;
        // What the holder before has saved in the cluster is gone on with, under its inode numbers.
        let (first, ids) = match record.hold.as_ref().filter(|_| is_saved) {
            Some(before) => (before.first, before.ids.clone()),
            None => (epoch, Vec::new()),
        };
        let who = who.to_owned();
        let hold = Some(HoldRecord { epoch, holder, who, ids, lease_ms: 0, first });
        Ok(PolicyReply { hold, last_epoch: epoch, ..record.clone() })
    }

    /// The record with a merge that is decided.
    pub(crate) fn with_merging(&self, policy: u64, merging: Merging) -> Result<PolicyReply, Error> {
        Ok(PolicyReply { merging: Some(merging), ..self.get(policy)?.clone() })
    }

    /// The record when that is complete, and the epoch from then on; 0: nobody holds the subtree.
    pub(crate) fn with_merged(&self, policy: u64) -> Result<(PolicyReply, u64), Error> {
        let Some(Merging { epoch, attempt, release, .. }) = self.get(policy)?.merging else {
            return Err(Error::new(Errno::EINVAL).with_text("no merge is decided"));
        };
        let record = self.with_next_epoch(policy, release)?;
        let next = record.hold.as_ref().map_or(0, |hold| hold.epoch);
        let merged = Some(Merged { epoch, attempt, next });
        Ok((PolicyReply { merging: None, merged, ..record }, next))
    }

    /// The epoch that followed this merge, if it was the last one that was completed.
    pub(crate) fn merged(&self, policy: u64, epoch: u64, attempt: u32) -> Option<u64> {
        let merged = self.records.get(&policy)?.merged?;
        ((merged.epoch, merged.attempt) == (epoch, attempt)).then_some(merged.next)
    }

    /// Merges that are decided and not complete, by policy.
    pub(crate) fn merging(&self) -> impl Iterator<Item = (u64, Merging)> {
        self.records.values().filter_map(|record| Some((record.policy, record.merging?)))
    }

    /// The record when the hold goes on after a merge, in the next epoch, or has ended.
    pub(crate) fn with_next_epoch(&self, policy: u64, release: bool) -> Result<PolicyReply, Error> {
        let mut record = self.get(policy)?.clone();
        record.last_epoch += 1;
        match &mut record.hold {
            Some(hold) if !release => hold.epoch = record.last_epoch,
            hold => *hold = None,
        }
        Ok(record)
    }

    /// The record with more inode numbers for its holder.
    ///
    /// # Errors
    /// ESTALE if it has no such holder.
    pub(crate) fn with_ids(
        &self,
        policy: u64,
        holder: u64,
        ids: IdRange,
    ) -> Result<PolicyReply, Error> {
        let mut record = self.get(policy)?.clone();
        let Some(hold) = record.hold.as_mut().filter(|hold| hold.holder == holder) else {
            return Err(hold_has_ended());
        };
        let total: u64 = hold.ids.iter().map(|range| range.count).sum();
        if total + ids.count > limits::HOLD_INODES_MAX {
            return Err(Error::new(Errno::ENOSPC).with_text("the hold has too many inode numbers"));
        }
        match hold.ids.last_mut() {
            Some(last) if last.first + last.count == ids.first => last.count += ids.count,
            _ => hold.ids.push(ids),
        }
        Ok(record)
    }

    /// Those of a directory that are too long over to be remembered.
    pub(crate) fn outlived(&self, root: InodeId) -> Vec<u64> {
        let mut over = self.of_root(root);
        over.truncate(over.len().saturating_sub(limits::POLICIES_BEFORE_MAX + 1));
        over
    }

    /// Those of a directory that is removed, or gets another one.
    pub(crate) fn of_root(&self, root: InodeId) -> Vec<u64> {
        let is_of = |record: &&PolicyReply| record.root.as_ref().is_some_and(|loc| loc.id == root);
        self.records.values().filter(is_of).map(|record| record.policy).collect()
    }

    /// Their records with the directory's new place.
    pub(crate) fn moved(&self, root: &Locator) -> Vec<PolicyReply> {
        let records = self.of_root(root.id).into_iter();
        let moved = records.filter_map(|policy| self.records.get(&policy).cloned());
        moved.map(|record| PolicyReply { root: Some(root.clone()), ..record }).collect()
    }

    /// A client was heard of.
    pub(crate) fn renew(&mut self, holder: u64, policies: &[u64], now: Time) -> RenewHoldsReply {
        let (held, ended): (Vec<u64>, _) = policies
            .iter()
            .partition(|policy| self.hold(**policy).is_some_and(|hold| hold.holder == holder));
        self.leases.extend(held.into_iter().map(|policy| (policy, now + limits::HOLD_LEASE)));
        RenewHoldsReply { ended }
    }

    /// The state of a policy may change; nobody else changes it meanwhile.
    ///
    /// # Errors
    /// "Try again": somebody does.
    pub(crate) fn begin_change(&mut self, policy: u64) -> Result<(), Error> {
        match self.changing.insert(policy) {
            true => Ok(()),
            false => Err(Error::retry("the policy is being changed")),
        }
    }

    /// Shards are told to forget it.
    pub(crate) fn doubt(&mut self, policy: u64) {
        self.in_doubt.insert(policy);
    }

    /// The change is made, or not.
    pub(crate) fn end_change(&mut self, policy: u64) {
        self.changing.remove(&policy);
        self.in_doubt.remove(&policy);
    }
}

fn held_by(policy: u64, hold: &HoldRecord, more: &str) -> Error {
    let text = format!("the subtree is held by {}{more}", hold.who);
    Error { policy, ..Error::new(Errno::EBUSY).with_text(text) }
}

fn hold_has_ended() -> Error {
    Error::new(Errno::ESTALE).with_text("the hold of the subtree has ended")
}

fn no_longer_in_force() -> Error {
    Error::new(Errno::ESTALE).with_text("the policy is not in force any more")
}

#[cfg(test)]
mod tests {
    use saker_types::ROOT;
    use saker_types::policy::{Consistency, Policy};

    use super::*;

    const NOW: Time = Time::from_ns(1_000_000_000);

    fn policies(durability: Durability) -> (Policies, u64) {
        let policy = PolicyId::new(5, &Policy::cell(Consistency::Weak, durability)).0;
        let root = Some(Locator::entry(ROOT, "d".into(), 9));
        let mut all = Policies::default();
        all.restore(PolicyReply { policy, root, ..PolicyReply::default() });
        (all, policy)
    }

    fn take(all: &mut Policies, policy: u64, holder: u64, now: Time) -> Result<u64, Errno> {
        let record = all.with_hold(policy, holder, "x", now, false).map_err(|e| e.errno())?;
        let epoch = record.last_epoch;
        all.restore(record);
        all.renew(holder, &[policy], now);
        Ok(epoch)
    }

    #[test]
    fn one_holds_it_until_its_lease_ends() {
        let (mut all, policy) = policies(Durability::None);
        assert_eq!(take(&mut all, policy, 1, NOW), Ok(1));
        assert_eq!(take(&mut all, policy, 1, NOW), Ok(1), "the same again");
        assert_eq!(take(&mut all, policy, 2, NOW), Err(Errno::EBUSY));
        let later = NOW + limits::HOLD_LEASE;
        assert_eq!(all.renew(1, &[policy, 77], NOW).ended, [77]);
        assert_eq!(take(&mut all, policy, 2, later), Ok(2), "nothing to wait for");
        assert_eq!(all.renew(1, &[policy], later).ended, [policy]);
        assert_eq!(all.state(policy).unwrap().hold, 2);
    }

    #[test]
    fn what_has_a_journal_waits_for_its_holder() {
        let (mut all, policy) = policies(Durability::Local);
        assert_eq!(take(&mut all, policy, 1, NOW), Ok(1));
        let later = NOW + limits::HOLD_LEASE;
        assert_eq!(take(&mut all, policy, 2, later), Err(Errno::EBUSY));
        assert_eq!(take(&mut all, policy, 1, later), Ok(1));
        all.begin_serving(later);
        assert!(!all.has_lapsed(policy, later), "a new coordinator gives it time");
    }

    #[test]
    fn whoever_comes_next_goes_on_with_what_is_saved_in_the_cluster() {
        let (mut all, policy) = policies(Durability::Global);
        take(&mut all, policy, 1, NOW).unwrap();
        let ids = IdRange { first: 100, count: 5 };
        all.restore(all.with_ids(policy, 1, ids).unwrap());
        all.restore(all.with_next_epoch(policy, false).unwrap());
        assert_eq!(take(&mut all, policy, 2, NOW), Err(Errno::EBUSY));
        assert_eq!(take(&mut all, policy, 2, NOW + limits::HOLD_LEASE), Ok(3));
        let hold = all.hold(policy).unwrap();
        assert_eq!((hold.first, hold.epoch, hold.holder), (1, 3, 2), "it is the same hold");
        assert_eq!(hold.ids, [ids], "they are in use");
        all.restore(all.with_next_epoch(policy, true).unwrap());
        take(&mut all, policy, 3, NOW).unwrap();
        let hold = all.hold(policy).unwrap();
        assert_eq!((hold.first, hold.ids.len()), (5, 0));
        let forced = all.with_hold(policy, 4, "x", NOW, true).unwrap().hold.unwrap();
        assert_eq!((forced.first, forced.epoch, forced.holder), (5, 6, 4));
        let (mut local, policy) = policies(Durability::Local);
        take(&mut local, policy, 1, NOW).unwrap();
        assert!(local.with_hold(policy, 4, "x", NOW, true).is_err(), "nothing is saved there");
    }

    #[test]
    fn each_merge_begins_an_epoch() {
        let (mut all, policy) = policies(Durability::Local);
        take(&mut all, policy, 1, NOW).unwrap();
        all.restore(all.with_ids(policy, 1, IdRange { first: 100, count: 5 }).unwrap());
        all.restore(all.with_ids(policy, 1, IdRange { first: 105, count: 5 }).unwrap());
        assert_eq!(all.hold(policy).unwrap().ids, [IdRange { first: 100, count: 10 }]);
        all.restore(all.with_next_epoch(policy, false).unwrap());
        assert!(all.check_epoch(policy, 1).is_err() && all.check_epoch(policy, 2).is_ok());
        assert_eq!(all.hold(policy).unwrap().first, 1, "it is the same hold");
        all.restore(all.with_next_epoch(policy, true).unwrap());
        assert!(all.check_epoch(policy, 2).is_err() && all.check_not_held(policy).is_ok());
        assert_eq!(take(&mut all, policy, 2, NOW), Ok(4), "epochs are not used again");
        assert!(all.with_ids(policy, 1, IdRange::default()).is_err());
    }

    #[test]
    fn nobody_is_told_what_is_about_to_change() {
        let (mut all, policy) = policies(Durability::Local);
        all.begin_change(policy).unwrap();
        assert!(all.begin_change(policy).is_err() && all.state(policy).is_ok());
        all.doubt(policy);
        assert!(all.state(policy).is_err());
        all.end_change(policy);
        assert!(all.state(policy).is_ok() && all.begin_change(policy).is_ok());
        all.forget(policy);
        assert_eq!(all.state(policy).unwrap().successor, Some(0));
    }
}
