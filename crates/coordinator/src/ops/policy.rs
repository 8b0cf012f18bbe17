//! The policy of a directory (Cudele section 3.3). Replicas hold its number, as they hold the mode.

use bytes::Bytes;
use prost::Message;
use saker_rpc::txn::{self, Driver, Transaction};
use saker_types::change::What;
use saker_types::inode::Locator;
use saker_types::policy::{Policy, PolicyId, Refused};
use saker_types::wire::{
    Intent, InvalidateReq, PolicyPair, PolicyReply, PrepareReq, SetPolicyReply, SetPolicyReq,
};
use saker_types::{Errno, Error, InodeId};

use super::broadcast;
use crate::state::{CoordinatorState, StateHandle, key_of};

/// A change of policies' states: begun by one at a time, and over when this is dropped.
pub(super) struct PolicyChange<'a> {
    h: &'a StateHandle,
    policies: Vec<u64>,
}

impl PolicyChange<'_> {
    /// Begins to change a policy's state.
    ///
    /// # Errors
    /// "Try again": somebody else does.
    pub(super) fn begin(h: &StateHandle, policy: u64) -> Result<PolicyChange<'_>, Error> {
        h.state().policies.begin_change(policy)?;
        Ok(PolicyChange { h, policies: vec![policy] })
    }

    /// Begins to change directories that have these policies of their own (0: none). Until this is over
    /// nobody takes a hold of their subtrees.
    ///
    /// # Errors
    /// EBUSY: somebody holds one. "Try again" as above.
    pub(super) fn begin_unheld<'a>(
        h: &'a StateHandle,
        policies: &[u64],
    ) -> Result<PolicyChange<'a>, Error> {
        let mut change = PolicyChange { h, policies: Vec::new() };
        for policy in policies.iter().copied().filter(|policy| *policy != 0) {
            h.state().policies.begin_change(policy)?;
            change.policies.push(policy);
            h.state().policies.check_not_held(policy)?;
        }
        Ok(change)
    }

    /// Shards forget the states, and entries, and do not learn new ones before this is over.
    pub(super) async fn invalidate(&self, request: InvalidateReq) -> Result<(), Error> {
        self.policies.iter().for_each(|policy| self.h.state().policies.doubt(*policy));
        let request = InvalidateReq { policies: self.policies.clone(), ..request };
        broadcast(self.h, &request).await.map(drop)
    }
}

impl Drop for PolicyChange<'_> {
    fn drop(&mut self) {
        self.policies.iter().for_each(|policy| self.h.state().policies.end_change(*policy));
    }
}

/// Gives a directory a policy, or takes it away.
pub(crate) async fn set_policy(h: &StateHandle, msg: &SetPolicyReq) -> Result<Bytes, Error> {
    let new = match read(msg)? {
        Some(policy) => {
            let id = PolicyId::new(h.state().new_ids(1)?.first, &policy).0;
            PolicyReply { policy: id, pairs: pairs_of(&policy), ..PolicyReply::default() }
        }
        None => PolicyReply::default(),
    };
    set_once(h, msg, new).await
}

/// The policy that is asked for; `None` if there is to be none.
fn read(msg: &SetPolicyReq) -> Result<Option<Policy>, Error> {
    if msg.pairs.is_empty() {
        return Ok(None);
    }
    let pairs = msg.pairs.iter().map(|pair| (pair.key.as_str(), pair.value.as_str()));
    let refused = |why: Refused| Error::new(Errno::EINVAL).with_text(why.to_string());
    Policy::from_pairs(pairs).map(Some).map_err(refused)
}

fn pairs_of(policy: &Policy) -> Vec<PolicyPair> {
    let pairs = policy.pairs().into_iter();
    pairs.map(|(key, value)| PolicyPair { key: key.to_owned(), value }).collect()
}

async fn set_once(h: &StateHandle, msg: &SetPolicyReq, new: PolicyReply) -> Result<Bytes, Error> {
    let id = txn::begin(&mut *h.state())?;
    let mut txn = Transaction::new(h.state.clone(), id, None);
    let request = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.at.clone(),
        intent: Intent::SetDir.into(),
        policy: Some(new.policy),
        ..PrepareReq::default()
    };
    let vote = txn.prepare(request).await?;
    let old = vote.policy;
    let change = PolicyChange::begin_unheld(h, &[old]).map_err(|error| txn.refuse(error))?;
    let keys = vec![key_of(&vote.loc)];
    change.invalidate(InvalidateReq { keys, ..InvalidateReq::default() }).await?;
    let root = vote.loc.clone().under(new.policy);
    txn.commit(|state| {
        let number = new.policy;
        if let Ok(mut record) = state.policies.get(old).cloned() {
            record.successor = Some(number);
            state.note_policy(record);
        }
        if number != 0 {
            state.note_policy(PolicyReply { root: Some(root), ..new });
        }
        forget(state, state.policies.outlived(vote.loc.id));
        Ok(SetPolicyReply { policy: number }.encode_to_vec().into())
    })
}

/// May what has this policy of its own move there (rule 9)? What has one takes it along.
pub(super) fn may_move(own: u64, from: &Locator, to: &Locator) -> bool {
    own != 0 || PolicyId(from.policy).lets_move_to(PolicyId(to.policy))
}

/// A directory is removed: so are its policies. For the commit of its transaction.
pub(super) fn removed(state: &mut CoordinatorState, root: InodeId) {
    forget(state, state.policies.of_root(root));
}

fn forget(state: &mut CoordinatorState, policies: Vec<u64>) {
    for policy in policies {
        state.policies.forget(policy);
        state.log(What::PolicyEnd(policy));
    }
}

/// A directory is now there. For the commit of its transaction.
pub(super) fn has_moved(state: &mut CoordinatorState, root: &Locator) {
    for record in state.policies.moved(root) {
        state.note_policy(record);
    }
}

#[cfg(test)]
mod tests {
    use saker_types::wire::{
        Ctx, Empty, HoldReply, HoldReq, Op, PolicyReq, ReleaseReq, RemoveReq, Removed, Vote,
    };
    use saker_types::{Class, Cred, ROOT};

    use super::*;
    use crate::testing::{
        Answer, CoordinatorTester, SHARDS, ShardRequest, agreeing, at, dir, entry, errno, no, vote,
        yes,
    };

    const HOLDER: u64 = 70;

    fn request(t: &mut CoordinatorTester, pairs: &[(&str, &str)]) -> SetPolicyReq {
        let pair = |(key, value): &(&str, &str)| PolicyPair {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        SetPolicyReq { ctx: t.ctx(), at: at("d"), pairs: pairs.iter().map(pair).collect() }
    }

    /// Shards where `d` is directory 9, with this policy of its own.
    fn shards(own: u64) -> impl Fn(&ShardRequest) -> Answer {
        move |asked| match asked.op {
            Op::Prepare => {
                let row = saker_types::Inode { policy: own, ..dir(9) };
                yes(&Vote { policy: own, ..vote(entry(ROOT, "d", 9), Some(row)) })
            }
            _ => agreeing(asked),
        }
    }

    /// Gives `d` a policy; its number.
    fn set(t: &mut CoordinatorTester, own: u64, pairs: &[(&str, &str)]) -> Result<u64, Error> {
        let (request, agreed) = (request(t, pairs), shards(own));
        let reply = t.ask::<SetPolicyReply>(Op::SetPolicy, &request, |_, asked| agreed(asked));
        reply.map(|reply| reply.policy)
    }

    fn get(t: &mut CoordinatorTester, policy: u64) -> Result<PolicyReply, Error> {
        t.ask(Op::GetPolicy, &PolicyReq { policy }, |_, _| None)
    }

    fn hold(t: &mut CoordinatorTester, policy: u64, holder: u64) -> Result<HoldReply, Error> {
        let request =
            HoldReq { ctx: t.ctx(), policy, holder, who: format!("client {holder}"), force: false };
        t.ask(Op::Hold, &request, |_, asked| agreeing(asked))
    }

    #[test]
    fn replicas_hear_of_a_policy_before_it_counts() {
        let mut t = CoordinatorTester::new();
        let policy = set(&mut t, 0, &[("consistency", "weak"), ("durability", "local")]).unwrap();
        assert_eq!(t.ops(), [Op::Prepare, Op::Invalidate, Op::Decide]);
        assert_eq!(t.asked_of(Op::Invalidate).len(), usize::from(SHARDS));
        assert!(PolicyId(policy).is_decoupled());
        let record = get(&mut t, policy).unwrap();
        assert_eq!(record.root.unwrap().id, 9);
        assert!(record.pairs.iter().any(|pair| pair.key == "durability"));
        // Another one takes its place, also for those who were told of the first.
        t.asked.clear();
        let next = set(&mut t, policy, &[]).unwrap();
        assert_eq!((next, get(&mut t, policy).unwrap().successor), (0, Some(0)));
        t.restart(|_, asked| agreeing(asked));
        assert_eq!(get(&mut t, policy).unwrap().successor, Some(0), "it is in the journal");
    }

    #[test]
    fn what_is_no_policy_is_refused_before_anybody_is_asked() {
        let mut t = CoordinatorTester::new();
        for pairs in [[("consistency", "strange")], [("colour", "red")]] {
            let error = set(&mut t, 0, &pairs).unwrap_err();
            assert_eq!(error.errno(), Errno::EINVAL);
            assert!(!error.text.is_empty() && t.asked.is_empty());
        }
        let request = request(&mut t, &[("consistency", "weak")]);
        let answer = t.ask::<SetPolicyReply>(Op::SetPolicy, &request, |_, asked| match asked.op {
            Op::Prepare => no(Errno::EPERM),
            _ => agreeing(asked),
        });
        assert_eq!((errno(answer), t.decided()), (Errno::EPERM, vec![false]));
    }

    #[test]
    fn a_subtree_that_is_held_keeps_its_policy_and_its_root() {
        let mut t = CoordinatorTester::new();
        let policy = set(&mut t, 0, &[("consistency", "weak"), ("durability", "local")]).unwrap();
        t.asked.clear();
        let held = hold(&mut t, policy, HOLDER).unwrap().policy.hold.unwrap();
        assert_eq!((held.epoch, held.holder), (1, HOLDER));
        assert_eq!(t.ops(), [Op::Invalidate], "shards forget that nobody holds it");
        let error = hold(&mut t, policy, HOLDER + 1).unwrap_err();
        assert_eq!(error.errno(), Errno::EBUSY);
        assert!(error.text.contains("client 70"), "{}", error.text);
        t.restart(|_, asked| agreeing(asked));
        assert_eq!(hold(&mut t, policy, HOLDER).unwrap().policy.last_epoch, 1, "the same hold");
        assert_eq!(errno(set(&mut t, policy, &[])), Errno::EBUSY);
        let (rmdir, agreed) = (RemoveReq { ctx: t.ctx(), at: at("d") }, shards(policy));
        let answer = t.ask::<Removed>(Op::Rmdir, &rmdir, |_, asked| agreed(asked));
        assert_eq!(errno(answer), Errno::EBUSY);
        let other = ReleaseReq { ctx: t.ctx(), policy, epoch: 1, force: false };
        let answer = t.ask::<Empty>(Op::Release, &other, |_, asked| agreeing(asked));
        assert_eq!(errno(answer), Errno::EPERM, "the epoch is no secret");
        let ctx = Ctx { holder: HOLDER, ..t.ctx() };
        let release = ReleaseReq { ctx, ..other };
        t.ask::<Empty>(Op::Release, &release, |_, asked| agreeing(asked)).unwrap();
        let again = ReleaseReq { ctx: t.ctx(), ..release };
        let answer = t.ask::<Empty>(Op::Release, &again, |_, asked| agreeing(asked));
        assert_eq!(errno(answer), Errno::ESTALE);
        let (rmdir, agreed) = (RemoveReq { ctx: t.ctx(), at: at("d") }, shards(policy));
        t.ask::<Removed>(Op::Rmdir, &rmdir, |_, asked| agreed(asked)).unwrap();
        assert_eq!(errno(get(&mut t, policy)), Errno::ENOENT, "it is removed with its directory");
    }

    #[test]
    fn only_the_superuser_ends_the_hold_of_a_client_that_lives() {
        let mut t = CoordinatorTester::new();
        let policy = set(&mut t, 0, &[("consistency", "weak"), ("durability", "local")]).unwrap();
        hold(&mut t, policy, HOLDER).unwrap();
        for (uid, force, wanted) in
            [(5, false, Some(Errno::EBUSY)), (5, true, Some(Errno::EBUSY)), (0, true, None)]
        {
            t.cred = Cred { uid, ..Cred::default() };
            let release = ReleaseReq { ctx: t.ctx(), policy, epoch: 0, force };
            let answer = t.ask::<Empty>(Op::Release, &release, |_, asked| agreeing(asked));
            assert_eq!(answer.err().map(|error| error.errno()), wanted, "{uid} {force}");
        }
    }

    #[test]
    fn nobody_takes_a_hold_while_the_directory_is_removed() {
        let mut t = CoordinatorTester::new();
        let policy = set(&mut t, 0, &[("consistency", "weak"), ("durability", "local")]).unwrap();
        let (rmdir, agreed) = (RemoveReq { ctx: t.ctx(), at: at("d") }, shards(policy));
        t.begin(Op::Rmdir, &rmdir, |_, asked| match asked.op {
            Op::Invalidate => None,
            _ => agreed(asked),
        });
        let error = hold(&mut t, policy, HOLDER).unwrap_err();
        assert!(error.is(Class::Retry), "{error}");
    }

    #[test]
    fn what_blocks_nobody_and_is_not_decoupled_is_not_held() {
        let mut t = CoordinatorTester::new();
        let policy = set(&mut t, 0, &[("consistency", "strong"), ("durability", "none")]).unwrap();
        assert_eq!(errno(hold(&mut t, policy, HOLDER)), Errno::EINVAL);
        let blocks = [("consistency", "strong"), ("interfere_policy", "block")];
        let policy = set(&mut t, policy, &blocks).unwrap();
        assert_eq!(errno(hold(&mut t, policy, 0)), Errno::EINVAL, "that is nobody");
        hold(&mut t, policy, HOLDER).unwrap();
    }
}
