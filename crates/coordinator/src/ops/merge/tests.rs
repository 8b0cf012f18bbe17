use saker_types::ROOT;
use saker_types::wire::{
    HoldReply, HoldReq, InvalidateReply, PolicyPair, PolicyReply, PolicyReq, PolicyState,
    ReleaseReq, SetPolicyReply, SetPolicyReq, ShardRows,
};

use super::*;
use crate::testing::{
    Answer, CoordinatorTester, SHARDS, ShardRequest, agreeing, at, dir, entry, errno, no, vote, yes,
};

const HOLDER: u64 = 70;

/// Shards that have nothing against it.
fn willing(asked: &ShardRequest) -> Answer {
    match asked.op {
        Op::CheckMerge => yes(&CheckMergeReply::default()),
        Op::ApplyMerge => yes(&Empty {}),
        Op::Prepare => yes(&vote(entry(ROOT, "d", 9), Some(dir(9)))),
        _ => agreeing(asked),
    }
}

/// A policy whose subtree `HOLDER` has.
fn held(t: &mut CoordinatorTester) -> u64 {
    let pair = |key: &str, value: &str| PolicyPair { key: key.into(), value: value.into() };
    let pairs = vec![pair("consistency", "weak"), pair("durability", "local")];
    let request = SetPolicyReq { ctx: t.ctx(), at: at("d"), pairs };
    let set: SetPolicyReply = t.ask(Op::SetPolicy, &request, |_, a| willing(a)).unwrap();
    let ctx = t.ctx();
    let request =
        HoldReq { ctx, policy: set.policy, holder: HOLDER, who: "a client".into(), force: false };
    t.ask::<HoldReply>(Op::Hold, &request, |_, a| willing(a)).unwrap();
    t.asked.clear();
    set.policy
}

fn merge_req(t: &mut CoordinatorTester, policy: u64) -> MergeReq {
    let ctx = saker_types::wire::Ctx { holder: HOLDER, ..t.ctx() };
    let shards = vec![ShardRows { shard: 1, rows: 5 }];
    MergeReq { ctx, policy, epoch: 1, attempt: 1, shards, dirs: 2, ..MergeReq::default() }
}

fn state(t: &mut CoordinatorTester, policy: u64) -> Result<PolicyState, Error> {
    t.ask(Op::PolicyState, &PolicyReq { policy }, |_, _| None)
}

fn record(t: &mut CoordinatorTester, policy: u64) -> PolicyReply {
    t.ask(Op::GetPolicy, &PolicyReq { policy }, |_, _| None).unwrap()
}

#[test]
fn all_shards_are_asked_and_then_told() {
    let mut t = CoordinatorTester::new();
    let policy = held(&mut t);
    let request = merge_req(&mut t, policy);
    let merged: MergeReply = t.ask(Op::Merge, &request, |_, a| willing(a)).unwrap();
    assert_eq!((merged.conflicts.len(), merged.epoch), (0, 2));
    assert_eq!(t.ops(), [Op::Invalidate, Op::CheckMerge, Op::ApplyMerge]);
    for op in t.ops() {
        assert_eq!(t.asked_of(op).len(), usize::from(SHARDS));
    }
    let checks = t.asked.iter().filter(|(_, asked)| asked.op == Op::CheckMerge);
    let rows: Vec<u64> = checks.map(|(_, asked)| asked.body::<CheckMergeReq>().rows).collect();
    assert_eq!(rows, [0, 5, 0]);
    let now = state(&mut t, policy).unwrap();
    assert_eq!((now.hold, now.holder), (2, HOLDER), "the hold goes on");
    // The answer was lost: the same again, also in another session, and after a restart.
    for _ in 0..2 {
        t.asked.clear();
        let again = merge_req(&mut t, policy);
        let merged: MergeReply = t.ask(Op::Merge, &again, |_, a| willing(a)).unwrap();
        assert_eq!((merged.epoch, t.asked.len()), (2, 0));
        t.restart(|_, a| willing(a));
    }
    let late = MergeReq { attempt: 2, ..merge_req(&mut t, policy) };
    let answer = t.ask::<MergeReply>(Op::Merge, &late, |_, a| willing(a));
    assert_eq!(errno(answer), Errno::ESTALE, "its epoch is over");
    let last = MergeReq { epoch: 2, release: true, ..merge_req(&mut t, policy) };
    let merged: MergeReply = t.ask(Op::Merge, &last, |_, a| willing(a)).unwrap();
    assert_eq!((merged.epoch, state(&mut t, policy).unwrap().hold), (0, 0));
}

#[test]
fn what_conflicts_or_is_only_tried_changes_nothing() {
    let mut t = CoordinatorTester::new();
    let policy = held(&mut t);
    let before = record(&mut t, policy);
    let conflict = MergeConflict { there: 77, ..MergeConflict::default() };
    let request = merge_req(&mut t, policy);
    let answer: MergeReply = t
        .ask(Op::Merge, &request, |to, asked| match (to, asked.op) {
            (NodeId::Shard(2), Op::CheckMerge) => {
                yes(&CheckMergeReply { conflicts: vec![conflict.clone()] })
            }
            _ => willing(asked),
        })
        .unwrap();
    assert_eq!((answer.conflicts, answer.epoch), (vec![conflict], 1));
    let request = MergeReq { dry_run: true, ..merge_req(&mut t, policy) };
    let answer: MergeReply = t.ask(Op::Merge, &request, |_, a| willing(a)).unwrap();
    assert_eq!((answer.conflicts.len(), answer.epoch), (0, 1));
    assert!(t.asked_of(Op::ApplyMerge).is_empty());
    let after = record(&mut t, policy);
    assert_eq!((after.merging, after.merged, after.last_epoch), (None, None, before.last_epoch));
    assert_eq!(state(&mut t, policy).unwrap().hold, 1, "who waits may go on");
}

#[test]
fn a_shard_that_is_busy_or_has_other_rows_stops_it() {
    let mut t = CoordinatorTester::new();
    let policy = held(&mut t);
    for (error, class) in
        [(Error::retry("a name is locked"), Class::Retry), (Errno::ESTALE.into(), Class::Final)]
    {
        let request = merge_req(&mut t, policy);
        let answer = t.ask::<MergeReply>(Op::Merge, &request, |to, asked| match (to, asked.op) {
            (NodeId::Shard(0), Op::CheckMerge) => no(Error::retry("a name is locked")),
            (NodeId::Shard(1), Op::CheckMerge) => no(error.clone()),
            _ => willing(asked),
        });
        assert!(answer.unwrap_err().is(class));
        assert_eq!(state(&mut t, policy).unwrap().hold, 1);
    }
    assert!(t.asked_of(Op::ApplyMerge).is_empty());
}

#[test]
fn what_is_decided_is_completed_after_a_restart_and_until_then_nobody_hears_the_state() {
    let mut t = CoordinatorTester::new();
    let policy = held(&mut t);
    let request = merge_req(&mut t, policy);
    let no_answer = |asked: &ShardRequest| match asked.op {
        Op::ApplyMerge => None,
        _ => willing(asked),
    };
    t.begin(Op::Merge, &request, |_, a| no_answer(a));
    assert!(state(&mut t, policy).unwrap_err().is(Class::Retry));
    t.restart(|_, a| no_answer(a));
    assert_eq!(t.ops(), [Op::ApplyMerge], "it goes on");
    assert!(state(&mut t, policy).unwrap_err().is(Class::Retry));
    let release = ReleaseReq { ctx: t.ctx(), policy, epoch: 1, force: false };
    let answer = t.ask::<Empty>(Op::Release, &release, |_, a| no_answer(a));
    assert!(answer.unwrap_err().is(Class::Retry));
    let told = t.asked[0].1.body::<ApplyMergeReq>();
    assert_eq!((told.epoch, told.attempt), (1, 1));
    t.restart(|_, a| willing(a));
    assert_eq!(state(&mut t, policy).unwrap().hold, 2);
    let again = merge_req(&mut t, policy);
    let merged: MergeReply = t.ask(Op::Merge, &again, |_, a| willing(a)).unwrap();
    assert_eq!(merged.epoch, 2);
}

#[test]
fn before_the_decision_a_restart_leaves_nothing() {
    let mut t = CoordinatorTester::new();
    let policy = held(&mut t);
    let request = merge_req(&mut t, policy);
    t.begin(Op::Merge, &request, |_, asked| match asked.op {
        Op::CheckMerge => None,
        _ => willing(asked),
    });
    assert!(state(&mut t, policy).unwrap_err().is(Class::Retry));
    t.restart(|_, a| willing(a));
    assert!(t.asked.is_empty());
    assert_eq!(state(&mut t, policy).unwrap().hold, 1);
}

#[test]
fn one_at_a_time_and_only_for_the_holder() {
    let mut t = CoordinatorTester::new();
    let policy = held(&mut t);
    let other = MergeReq { ctx: t.ctx(), ..merge_req(&mut t, policy) };
    let answer = t.ask::<MergeReply>(Op::Merge, &other, |_, a| willing(a));
    assert_eq!(errno(answer), Errno::ESTALE);
    let nowhere = vec![ShardRows { shard: u32::from(SHARDS), rows: 1 }];
    let request = MergeReq { shards: nowhere, ..merge_req(&mut t, policy) };
    let answer = t.ask::<MergeReply>(Op::Merge, &request, |_, a| willing(a));
    assert_eq!(errno(answer), Errno::EINVAL);
    let dirs = limits::MERGE_DIRS_MAX as u64 + 1;
    let request = MergeReq { dirs, ..merge_req(&mut t, policy) };
    let answer = t.ask::<MergeReply>(Op::Merge, &request, |_, a| willing(a));
    assert_eq!(errno(answer), Errno::E2BIG);
    assert!(t.asked.is_empty());
    let request = merge_req(&mut t, policy);
    t.begin(Op::Merge, &request, |_, asked| match asked.op {
        Op::Invalidate => None,
        _ => yes(&InvalidateReply::default()),
    });
    let second = merge_req(&mut t, policy);
    let answer = t.ask::<MergeReply>(Op::Merge, &second, |_, a| willing(a));
    assert!(answer.unwrap_err().is(Class::Retry));
}
