//! rmdir.

use bytes::Bytes;
use prost::Message;
use saker_rpc::txn::{self, Transaction};
use saker_runtime::failpoint;
use saker_types::wire::{Intent, PrepareReq, RemoveReq, Removed};
use saker_types::{Errno, Error};

use super::policy::{self, PolicyChange};
use super::{ChangeStop, Keepers, invalidate, when_let_go};
use crate::state::StateHandle;

/// Removes an empty directory.
pub(crate) async fn rmdir(h: &StateHandle, msg: &RemoveReq) -> Result<Bytes, Error> {
    if msg.at.path.is_empty() {
        return Err(Errno::EBUSY.into());
    }
    when_let_go(h, &msg.ctx, async || rmdir_once(h, msg).await).await
}

async fn rmdir_once(h: &StateHandle, msg: &RemoveReq) -> Result<Bytes, ChangeStop> {
    let id = txn::begin(&mut *h.state())?;
    let mut txn = Transaction::new(h.state.clone(), id, None);
    let request = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.at.clone(),
        intent: Intent::RemoveDir.into(),
        ..PrepareReq::default()
    };
    let vote = txn.prepare(request).await?;
    failpoint!("rmdir.prepared");
    let own = vote.row.as_ref().map_or(0, |row| row.policy);
    let _unheld = PolicyChange::begin_unheld(h, &[own]).map_err(|error| txn.refuse(error))?;
    if let Err(stop) = invalidate(h, &[&vote.loc], vote.loc.id, Keepers::LetGo).await {
        txn.abort();
        return Err(stop);
    }
    failpoint!("rmdir.invalidated");
    let removed = Removed { inode: vote.loc.id };
    Ok(txn.commit(|state| {
        policy::removed(state, removed.inode);
        Ok(removed.encode_to_vec().into())
    })?)
}

#[cfg(test)]
mod tests {
    use saker_types::wire::{Emptiness, InvalidateReply, InvalidateReq, Op};
    use saker_types::{NodeId, ROOT};

    use super::*;
    use crate::testing::{
        CoordinatorTester, SHARDS, agreeing, at, dir, entry, errno, no, vote, yes,
    };

    fn request(t: &mut CoordinatorTester, path: &str) -> RemoveReq {
        RemoveReq { ctx: t.ctx(), at: at(path) }
    }

    #[test]
    fn every_shard_forgets_the_directory_before_it_is_removed() {
        let mut t = CoordinatorTester::new();
        let loc = entry(ROOT, "d", 9);
        let request = request(&mut t, "d");
        let removed = t.ask::<Removed>(Op::Rmdir, &request, |to, asked| match asked.op {
            Op::Prepare => {
                let prepare: PrepareReq = asked.body();
                assert_eq!(prepare.intent(), Intent::RemoveDir);
                yes(&vote(entry(ROOT, "d", 9), Some(dir(9))))
            }
            Op::Invalidate => {
                assert_eq!(asked.body::<InvalidateReq>().empty_dir, 9);
                agreeing(asked)
            }
            _ => agreeing(asked).filter(|_| to != NodeId::Coordinator),
        });
        assert_eq!(removed.unwrap().inode, 9);
        assert_eq!(t.ops(), [Op::Prepare, Op::Invalidate, Op::Decide]);
        assert_eq!(t.asked_of(Op::Prepare), [t.owner(&loc)]);
        assert_eq!(t.asked_of(Op::Invalidate).len(), usize::from(SHARDS));
        assert_eq!(t.decided(), [true]);
    }

    #[test]
    fn one_shard_with_an_entry_is_enough_to_keep_it() {
        for (emptiness, wanted) in
            [(Emptiness::NotEmpty, Errno::ENOTEMPTY), (Emptiness::Undecided, Errno::EAGAIN)]
        {
            let mut t = CoordinatorTester::new();
            let request = request(&mut t, "d");
            let answer = t.ask::<Removed>(Op::Rmdir, &request, |to, asked| match asked.op {
                Op::Prepare => yes(&vote(entry(ROOT, "d", 9), Some(dir(9)))),
                Op::Invalidate if to == NodeId::Shard(1) => {
                    yes(&InvalidateReply { emptiness: emptiness.into(), kept_ms: 0 })
                }
                _ => agreeing(asked),
            });
            assert_eq!(errno(answer), wanted);
            assert_eq!(t.decided(), [false]);
        }
    }

    #[test]
    fn a_name_that_mounts_keep_is_removed_when_their_leases_are_over() {
        let mut t = CoordinatorTester::new();
        let request = request(&mut t, "d");
        let mut barred = 0;
        let removed = t.ask::<Removed>(Op::Rmdir, &request, |_, asked| match asked.op {
            Op::Prepare => yes(&vote(entry(ROOT, "d", 9), Some(dir(9)))),
            Op::Invalidate => {
                let invalidate: InvalidateReq = asked.body();
                barred += u16::from(invalidate.bar);
                let kept_ms = if barred < SHARDS { 500 } else { 0 };
                yes(&InvalidateReply { emptiness: Emptiness::Empty.into(), kept_ms })
            }
            _ => agreeing(asked),
        });
        assert_eq!(removed.unwrap().inode, 9);
        assert_eq!(barred, SHARDS, "no leases are given while it waits");
        // Nothing is locked meanwhile.
        assert_eq!(t.decided(), [false, true]);
    }

    #[test]
    fn the_root_and_what_the_owner_refuses_stay() {
        let mut t = CoordinatorTester::new();
        let root = request(&mut t, "");
        let answer = t.ask::<Removed>(Op::Rmdir, &root, |_, asked| agreeing(asked));
        assert_eq!(errno(answer), Errno::EBUSY);
        assert!(t.asked.is_empty());
        let absent = request(&mut t, "absent");
        let answer = t.ask::<Removed>(Op::Rmdir, &absent, |_, asked| match asked.op {
            Op::Prepare => no(Errno::ENOENT),
            _ => agreeing(asked),
        });
        assert_eq!(errno(answer), Errno::ENOENT);
        assert_eq!(t.ops(), [Op::Prepare, Op::Decide]);
        assert_eq!(t.decided(), [false]);
    }

    #[test]
    fn a_decision_outlives_the_coordinator_until_all_have_heard_of_it() {
        let mut t = CoordinatorTester::new();
        let request = request(&mut t, "d");
        let removed = t.ask::<Removed>(Op::Rmdir, &request, |_, asked| match asked.op {
            Op::Prepare => yes(&vote(entry(ROOT, "d", 9), Some(dir(9)))),
            // It does not hear of it.
            Op::Decide => None,
            _ => agreeing(asked),
        });
        assert_eq!(removed.unwrap().inode, 9);
        t.restart(|_, asked| agreeing(asked));
        assert_eq!(t.decided(), [true], "it is told again");
        // A retry gets the answer that there was.
        let again = t.ask::<Removed>(Op::Rmdir, &request, |_, asked| agreeing(asked));
        assert_eq!(again.unwrap().inode, 9);
        t.restart(|_, asked| agreeing(asked));
        assert!(t.asked.is_empty(), "all have heard of it");
    }
}
