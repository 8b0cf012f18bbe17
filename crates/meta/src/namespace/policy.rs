//! What a shard knows of policies (docs/decisions/0063). The coordinator has the truth; what it says is
//! kept until it is invalidated, like an entry of a directory (rule 5).

use std::time::Duration;

use saker_types::policy::PolicyId;
use saker_types::wire::{Ctx, Op, PolicyReq, PolicyState};
use saker_types::{Errno, Error, NodeId};

use crate::request::{Attempt, Rq, Stop, Wait};
use crate::shard::{Shard, ShardHandle};

/// Successors that are followed: more are told to look again.
const SUCCESSORS_MAX: usize = 64;
/// How long one question may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after one that got no answer.
const ASK_PAUSE: Duration = Duration::from_millis(5);

impl Shard {
    /// What the coordinator says of a policy.
    pub(crate) fn policy_state(&self, policy: u64) -> Attempt<PolicyState> {
        self.policies.get(policy).ok_or(Stop::Wait(Wait::Policy(policy)))
    }

    /// A request has come to a place under a policy, as its client or the rows on its way say, which begins
    /// at component `root` of its path, or at or above its anchor. Gives the policy that counts there now.
    pub(crate) fn enter_policy(&self, rq: &Rq, told: u64, root: Option<usize>) -> Attempt<u64> {
        if self.limits.private {
            return Ok(told);
        }
        let Some((policy, state)) = self.policy_in_force(told)? else {
            // What is frozen has no state.
            return Ok(if told == PolicyId::FROZEN.0 { told } else { 0 });
        };
        if let Some(ctx) = rq.msg.ctx() {
            may_enter(PolicyId(policy), &state, ctx, rq.changes(), root)?;
        }
        Ok(policy)
    }

    /// The same on the way, for a client that holds a decoupled subtree: what is in it only the client knows, so
    /// that nothing here is missing or forbidden.
    pub(crate) fn enter_as_holder(&self, rq: &Rq, told: u64, root: Option<usize>) -> Attempt<()> {
        let is_holder = rq.msg.ctx().is_some_and(|ctx| ctx.holder != 0);
        match is_holder && PolicyId(told).is_decoupled() {
            true => self.enter_policy(rq, told, root).map(drop),
            false => Ok(()),
        }
    }

    /// The policy that counts now in place of the one that was told, and its state; `None`: there is none
    /// that has one. Waits while that is about to change.
    pub(crate) fn policy_in_force(&self, told: u64) -> Attempt<Option<(u64, PolicyState)>> {
        if [PolicyId::NONE.0, PolicyId::FROZEN.0].contains(&told) {
            return Ok(None);
        }
        let (mut policy, mut state) = (told, self.policy_state(told)?);
        let mut followed = 0;
        while let Some(successor) = state.successor {
            if successor == 0 {
                return Ok(None);
            }
            followed += 1;
            if followed > SUCCESSORS_MAX {
                return Err(Error::new(Errno::ESTALE).with_text("the policy is too old").into());
            }
            (policy, state) = (successor, self.policy_state(successor)?);
        }
        Ok(Some((policy, state)))
    }

    /// Asks the coordinator, unless that is under way.
    pub(crate) fn ask_policy(&mut self, policy: u64) {
        if self.policies.begin_asking(policy) {
            let task = ask(self.handle(), policy);
            self.hub.spawn(task);
        }
    }
}

/// Who may be under a policy, by who holds its subtree.
fn may_enter(
    policy: PolicyId,
    state: &PolicyState,
    ctx: &Ctx,
    changes: bool,
    root: Option<usize>,
) -> Attempt<()> {
    let needs_hold = || Err(Error::needs_hold(root, policy.0).into());
    let is_held = state.hold != 0;
    let is_holder = is_held && ctx.holder == state.holder;
    if !policy.needs_hold() || is_holder && ctx.hold == state.hold {
        return Ok(());
    }
    match (is_held, is_holder) {
        (_, true) if policy.is_decoupled() => needs_hold(),
        (true, false) if policy.blocks() => {
            let busy = Error::new(Errno::EBUSY).with_text("another client holds the subtree");
            // Whoever is refused may find out that the holder is dead.
            let component = root.map(|at| at as u32);
            Err(Error { policy: policy.0, component, ..busy }.into())
        }
        (false, _) if changes => needs_hold(),
        _ => Ok(()),
    }
}

/// Asks until there is an answer which no invalidation has overtaken, or nobody waits for it any more.
async fn ask(h: ShardHandle, policy: u64) {
    loop {
        h.shard().policies.ask(policy);
        let request = PolicyReq { policy };
        let to = NodeId::Coordinator;
        let asked = h.hub.ask::<PolicyState>(to, Op::PolicyState, 0, &request, ASK_TIMEOUT).await;
        if h.shard().policy_answered(policy, asked.ok()) {
            return;
        }
        h.hub.sleep(ASK_PAUSE).await;
    }
}

impl Shard {
    /// Uses an answer; false if the question must be asked again.
    fn policy_answered(&mut self, policy: u64, answer: Option<PolicyState>) -> bool {
        let is_valid = self.policies.is_still_asked(policy);
        let learned = answer.filter(|_| is_valid);
        let wait = Wait::Policy(policy);
        let is_wanted = !self.parking.waiting_for(&wait).is_empty() || self.merges.concern(policy);
        if learned.is_none() && is_wanted {
            return false;
        }
        self.policies.end_asking(policy);
        if let Some(state) = learned {
            self.policies.learn(policy, state);
            self.merges_are_over(policy, state);
        }
        self.wake(&wait);
        true
    }
}

#[cfg(test)]
mod tests {
    use saker_types::policy::{Consistency, Durability, Interfere, Policy};

    use super::*;

    const EPOCH: u64 = 3;
    const HOLDER: u64 = 70;

    /// "ok", the errno, or "hold".
    fn said(
        consistency: Consistency,
        interfere: Interfere,
        held: bool,
        ctx: &Ctx,
        changes: bool,
    ) -> &'static str {
        let mut policy = Policy::cell(consistency, Durability::Global);
        policy.interfere = interfere;
        let (hold, holder) = if held { (EPOCH, HOLDER) } else { (0, 0) };
        let state = PolicyState { hold, holder, ..PolicyState::default() };
        match may_enter(PolicyId::new(9, &policy), &state, ctx, changes, Some(2)) {
            Ok(()) => "ok",
            Err(Stop::Fail(error)) if error.is(saker_types::Class::NeedsHold) => "hold",
            Err(Stop::Fail(error)) => error.errno().name(),
            Err(_) => panic!("it does not wait"),
        }
    }

    #[test]
    fn who_holds_a_subtree_and_who_does_not() {
        use Consistency::{Strong, Weak};
        use Interfere::{Allow, Block};
        let other = Ctx::default();
        let another = Ctx { holder: 71, ..Ctx::default() };
        let holder = Ctx { holder: HOLDER, ..Ctx::default() };
        let through = Ctx { hold: EPOCH, ..holder.clone() };
        let late = Ctx { hold: EPOCH - 1, ..holder.clone() };
        for (consistency, interfere, held, ctx, reads, changes) in [
            (Strong, Allow, false, &other, "ok", "ok"),
            (Strong, Allow, true, &other, "ok", "ok"),
            (Strong, Block, false, &other, "ok", "hold"),
            (Strong, Block, true, &other, "EBUSY", "EBUSY"),
            (Strong, Block, true, &another, "EBUSY", "EBUSY"),
            (Strong, Block, true, &holder, "ok", "ok"),
            (Weak, Allow, false, &other, "ok", "hold"),
            (Weak, Allow, false, &holder, "ok", "hold"),
            (Weak, Allow, true, &other, "ok", "ok"),
            (Weak, Allow, true, &holder, "hold", "hold"),
            (Weak, Allow, true, &late, "hold", "hold"),
            (Weak, Allow, true, &through, "ok", "ok"),
            (Weak, Block, true, &another, "EBUSY", "EBUSY"),
            (Weak, Block, true, &through, "ok", "ok"),
        ] {
            let ask = |changes| said(consistency, interfere, held, ctx, changes);
            let asked = format!("{consistency:?} {interfere:?} {held} {ctx:?}");
            assert_eq!((ask(false), ask(true)), (reads, changes), "{asked}");
        }
    }
}
