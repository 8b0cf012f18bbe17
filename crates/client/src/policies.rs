//! Policies of directories (Cudele section 3.3): what users set, ask and take away.
//!
//! Who may set one is the servers' business: the directory's owner, and the superuser.

mod attribute;
pub mod document;

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_types::policy::{Durability, Mechanism, Policy, PolicyId};
use saker_types::wire::{
    At, Empty, HoldRecord, Op, PoliciesReply, PolicyPair, PolicyReply, PolicyReq, ReleaseReq,
    SetPolicyReply, SetPolicyReq,
};
use saker_types::{Class, Errno, Error, Locator, NodeId, ROOT, Result};

use crate::namespace::api::Namespace;
use crate::namespace::decoupled::saved;
use crate::namespace::frozen;
use crate::namespace::strict::Strict;
use crate::net::cluster::{ATTEMPT_MAX, decode};
use crate::net::request::To;
use crate::{Caller, Fs};

pub(crate) use attribute::PolicyAttribute;

/// Policies that are followed from one that a directory had to the one that it has.
const SUCCESSORS_MAX: usize = 64;
/// Times that a place is looked up whose policy has ended meanwhile.
const LOOKUPS_MAX: usize = 4;

/// A policy, the directory that has it, and who holds its subtree.
#[derive(Clone, Debug, PartialEq)]
pub struct SubtreePolicy {
    /// Its number ([`PolicyId`]), drawn when it was set.
    pub id: u64,
    #[allow(missing_docs)]
    pub policy: Policy,
    /// The directory.
    pub root: Locator,
    /// `None`: nobody.
    pub hold: Option<SubtreeHold>,
}

/// A client that holds a subtree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubtreeHold {
    /// The client in words.
    pub who: String,
    /// Counts the holds of the subtree, and the merges of each.
    pub epoch: u64,
    /// Inode numbers that it was given.
    pub inodes: u64,
    /// Until it is taken for dead, if it is not heard of again. Zero: it is.
    pub lease: Duration,
}

impl SubtreePolicy {
    pub(crate) fn of(reply: PolicyReply) -> Result<SubtreePolicy> {
        let broken = |why: String| {
            let text = format!("policy {:#x}: {why}", reply.policy);
            Error::of_class(Class::Fatal, Errno::EPROTO).with_text(text)
        };
        let pairs = reply.pairs.iter().map(|pair| (pair.key.as_str(), pair.value.as_str()));
        let policy = Policy::from_pairs(pairs).map_err(|why| broken(why.to_string()))?;
        let root = reply.root.clone().ok_or_else(|| broken("it has no directory".to_owned()))?;
        let hold = reply.hold.map(SubtreeHold::of);
        Ok(SubtreePolicy { id: reply.policy, policy, root, hold })
    }
}

impl SubtreeHold {
    fn of(record: HoldRecord) -> SubtreeHold {
        let inodes = record.ids.iter().map(|ids| ids.count).sum();
        let lease = Duration::from_millis(record.lease_ms.into());
        SubtreeHold { who: record.who, epoch: record.epoch, inodes, lease }
    }
}

/// Is what a client has done and not merged saved in the cluster?
fn is_saved(found: &SubtreePolicy) -> bool {
    found.policy.is_decoupled() && found.policy.durability() == Durability::Global
}

fn is_frozen(at: &At) -> bool {
    at.anchor.policy == PolicyId::FROZEN.0
        || at.anchor.id == ROOT && at.path.first().is_some_and(|name| name == frozen::NAME)
}

impl Fs {
    /// Gives a directory a policy, in place of the one that it had; returns its number.
    ///
    /// # Errors
    /// EPERM for all but the directory's owner and the superuser; ENOTDIR; EBUSY: somebody holds the
    /// subtree; EROFS in a dataset; EINVAL for the root directory under a policy that keeps a client's journal in the
    /// cluster; those of paths.
    pub async fn set_policy(&self, who: &Caller, at: &At, policy: &Policy) -> Result<u64> {
        self.check_place(who, at, policy).await?;
        let pairs = policy.pairs().into_iter();
        let pairs = pairs.map(|(key, value)| PolicyPair { key: key.to_owned(), value });
        self.ask_set_policy(who, at, pairs.collect()).await
    }

    /// Refuses what keeps journals of a subtree in that subtree itself.
    async fn check_place(&self, who: &Caller, at: &At, policy: &Policy) -> Result<()> {
        let is_stored = policy.durability() == Durability::Global
            || policy.composition().has(Mechanism::NonvolatileApply);
        if !policy.is_decoupled() || !is_stored {
            return Ok(());
        }
        let place = self.lookup(who, at).await?;
        let is_home = place.loc.pid == ROOT && place.loc.name == saved::HOME[0];
        if place.attr.id == ROOT || is_home {
            let text = "a client's journal would be in the subtree itself (/.saker/journals): not for \
                        the root directory";
            return Err(Error::new(Errno::EINVAL).with_text(text));
        }
        Ok(())
    }

    /// Takes the directory's own policy away, if it has one: that of a directory above is in force, or none.
    ///
    /// # Errors
    /// As [`Fs::set_policy`].
    pub async fn clear_policy(&self, who: &Caller, at: &At) -> Result<()> {
        self.ask_set_policy(who, at, Vec::new()).await.map(drop)
    }

    async fn ask_set_policy(&self, who: &Caller, at: &At, pairs: Vec<PolicyPair>) -> Result<u64> {
        if is_frozen(at) {
            return Err(Errno::EROFS.into());
        }
        let mut request = SetPolicyReq { at: at.clone(), pairs, ..SetPolicyReq::default() };
        let cluster = &self.core.cluster;
        let reply: SetPolicyReply =
            cluster.ask(who, Op::SetPolicy, To::Coordinator, &mut request).await?;
        Ok(reply.policy)
    }

    /// The policy in force at a place; `None` for the default of all.
    ///
    /// # Errors
    /// Those of looking it up; ETIMEDOUT while there is no coordinator.
    pub async fn policy(&self, who: &Caller, at: &At) -> Result<Option<SubtreePolicy>> {
        let mut lookups = 1;
        loop {
            let told = self.lookup(who, at).await?.loc.policy;
            match self.policy_now(told).await {
                Err(error) if error.errno() == Errno::ENOENT && lookups < LOOKUPS_MAX => {
                    lookups += 1;
                }
                other => return other,
            }
        }
    }

    /// The directory's own policy, if it has one.
    async fn own_policy(&self, who: &Caller, at: &At) -> Result<Option<Policy>> {
        let id = self.lookup(who, at).await?.loc.id;
        let in_force = self.policy(who, at).await?;
        Ok(in_force.filter(|found| found.root.id == id).map(|found| found.policy))
    }

    /// What a policy that somebody was told of is now.
    async fn policy_now(&self, told: u64) -> Result<Option<SubtreePolicy>> {
        let mut policy = told;
        for _ in 0..SUCCESSORS_MAX {
            if [PolicyId::NONE.0, PolicyId::FROZEN.0].contains(&policy) {
                return Ok(None);
            }
            let reply: PolicyReply =
                self.ask_coordinator(Op::GetPolicy, &PolicyReq { policy }).await?;
            match reply.successor {
                Some(successor) => policy = successor,
                None => return SubtreePolicy::of(reply).map(Some),
            }
        }
        Err(Error::new(Errno::ESTALE).with_text("the policy is too old"))
    }

    /// Ends the hold of a subtree whose client is taken for dead; with `force` also of one that lives, for the
    /// superuser. What it has not merged does not become part of the namespace, but for what a decoupled policy
    /// has saved in the cluster (global): that is merged.
    ///
    /// # Errors
    /// EPERM: neither is the subtree's directory the caller's, nor is that the superuser. EINVAL: no policy is
    /// in force there. ESTALE: nobody holds the subtree. EBUSY: its client lives. Those of merging.
    pub async fn reclaim(&self, who: &Caller, at: &At, force: bool) -> Result<()> {
        let found = self.policy_at(who, at).await?;
        if is_saved(&found) && found.hold.is_some() {
            let report = self.merge_saved(who, found.id, force).await?;
            tracing::info!("{} names were merged", report.names);
            return Ok(());
        }
        self.end_hold(who, found.id, force).await
    }

    /// The same, but that nothing is merged.
    ///
    /// # Errors
    /// As there.
    pub async fn give_up(&self, who: &Caller, at: &At, force: bool) -> Result<()> {
        let found = self.policy_at(who, at).await?;
        self.end_hold(who, found.id, force).await?;
        match found.hold.as_ref().filter(|_| is_saved(&found)) {
            Some(hold) => {
                saved::SavedJournals::of(&self.core, found.id).await?.remove(hold.epoch).await
            }
            None => Ok(()),
        }
    }

    /// The policy in force at a place, for who may end its hold.
    async fn policy_at(&self, who: &Caller, at: &At) -> Result<SubtreePolicy> {
        let told = self.lookup(who, at).await?.loc.policy;
        let none = || Error::new(Errno::EINVAL).with_text("no policy is in force here");
        let found = self.policy_now(told).await?.ok_or_else(none)?;
        self.must_own(who, &found.root).await?;
        Ok(found)
    }

    async fn end_hold(&self, who: &Caller, policy: u64, force: bool) -> Result<()> {
        let mut request = ReleaseReq { policy, force, ..ReleaseReq::default() };
        let to = To::Coordinator;
        let answer = self.core.cluster.ask(who, Op::Release, to, &mut request).await;
        answer.map(|Empty {}| ())
    }

    /// Refuses who may not set the policy of a directory either.
    ///
    /// # Errors
    /// EPERM.
    pub(crate) async fn must_own(&self, who: &Caller, root: &Locator) -> Result<()> {
        if who.uid == 0 {
            return Ok(());
        }
        // Not as in its own subtree, from which others may be kept out.
        let root = At::handle(root.clone().under(PolicyId::NONE.0));
        let owner = Strict(&self.core).lookup(&Caller::root(), &root).await?.attr.uid;
        match owner == who.uid {
            true => Ok(()),
            false => {
                let text = "only for the owner of the subtree's directory, and the superuser";
                Err(Error::new(Errno::EPERM).with_text(text))
            }
        }
    }

    /// All that directories have, by number.
    ///
    /// # Errors
    /// ETIMEDOUT while there is no coordinator.
    pub async fn policies(&self) -> Result<Vec<SubtreePolicy>> {
        let reply: PoliciesReply = self.ask_coordinator(Op::Policies, &Empty {}).await?;
        let now = reply.policies.into_iter().filter(|policy| policy.successor.is_none());
        now.map(SubtreePolicy::of).collect()
    }

    pub(crate) async fn ask_coordinator<A: Message + Default>(
        &self,
        op: Op,
        message: &impl Message,
    ) -> Result<A> {
        let (cluster, to) = (&self.core.cluster, NodeId::Coordinator);
        let deadline = cluster.deadline();
        let call = cluster.call(to, op, message, Bytes::new(), ATTEMPT_MAX, deadline);
        decode(op, call.await?.body)
    }
}
