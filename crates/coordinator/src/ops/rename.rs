//! rename of a directory: one row moves, whatever is below it.

use bytes::Bytes;
use prost::Message;
use saker_rpc::txn::{self, Transaction};
use saker_runtime::failpoint;
use saker_types::inode::Locator;
use saker_types::wire::{Intent, PrepareReq, RenameReply, RenameReq, rename_flags};
use saker_types::{Errno, Error};

use super::policy::{self, PolicyChange};
use super::{ChangeStop, Keepers, chain, exchange, invalidate, moved, still_wanted, when_let_go};
use crate::state::StateHandle;

/// Moves a directory, or exchanges what may be one.
pub(crate) async fn rename(h: &StateHandle, msg: &RenameReq) -> Result<Bytes, Error> {
    let Some(name) = msg.to.path.last() else { return Err(Errno::EINVAL.into()) };
    if msg.from.path.is_empty() {
        return Err(Errno::EBUSY.into());
    }
    let change = async || {
        chain::turn(h).await;
        let result = match (still_wanted(h, &msg.ctx), msg.flags) {
            (Err(error), _) => Err(error.into()),
            (_, 0 | rename_flags::NOREPLACE) => rename_alone(h, msg, name).await,
            (_, rename_flags::EXCHANGE) => exchange::exchange_alone(h, msg).await,
            _ => Err(Errno::EINVAL.into()),
        };
        h.state().rename_done();
        result
    };
    when_let_go(h, &msg.ctx, change).await
}

async fn rename_alone(h: &StateHandle, msg: &RenameReq, name: &Bytes) -> Result<Bytes, ChangeStop> {
    let [_, parent] = chain::parents(h, msg).await?;
    failpoint!("dir_rename.chain_checked");
    let no_replace = msg.flags & rename_flags::NOREPLACE != 0;
    let target = Locator::entry(parent, name.clone(), 0);
    let id = txn::begin(&mut *h.state())?;
    let mut txn = Transaction::new(h.state.clone(), id, None);
    let take = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.from.clone(),
        intent: Intent::TakeDir.into(),
        moves_to: Some(target),
        ..PrepareReq::default()
    };
    let taken = txn.prepare(take).await?;
    failpoint!("dir_rename.taken");
    let row = taken.row.clone().unwrap_or_default();
    chain::check_move(msg, &row, [taken.loc.pid, parent], &msg.to_chain)
        .map_err(|e| txn.refuse(e))?;
    let own = row.policy;
    let insert = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.to.clone(),
        intent: Intent::Insert.into(),
        row: Some(moved(row, h.hub.wall_ns())),
        no_replace,
        ..PrepareReq::default()
    };
    let vote = txn.prepare(insert).await.map_err(Error::about_second)?;
    failpoint!("dir_rename.inserted");
    let mut reply = RenameReply { loc: vote.loc.clone(), ..RenameReply::default() };
    if vote.same {
        txn.abort();
        if no_replace {
            return Err(Errno::EEXIST.into());
        }
        return Ok(reply.encode_to_vec().into());
    }
    if vote.loc.pid != parent {
        return Err(txn.refuse(chain::stale()).into());
    }
    if !policy::may_move(own, &taken.loc, &vote.loc) {
        return Err(txn.refuse(Errno::EXDEV.into()).into());
    }
    let policies = [own, vote.row.as_ref().map_or(0, |row| row.policy)];
    let _unheld = PolicyChange::begin_unheld(h, &policies).map_err(|error| txn.refuse(error))?;
    let replaced = vote.row.as_ref().map_or(0, |row| row.attr.id);
    if replaced != 0 && replaced == taken.loc.pid {
        // What moves is in it; locked, it would only make the emptiness undecided.
        return Err(txn.refuse(Errno::ENOTEMPTY.into()).into());
    }
    reply.replaced = replaced;
    if let Err(stop) = invalidate(h, &[&taken.loc, &vote.loc], replaced, Keepers::LetGo).await {
        txn.abort();
        return Err(stop);
    }
    failpoint!("dir_rename.invalidated");
    Ok(txn.commit(|state| {
        policy::removed(state, replaced);
        policy::has_moved(state, &reply.loc);
        Ok(reply.encode_to_vec().into())
    })?)
}

#[cfg(test)]
mod tests {
    use saker_types::policy::{Consistency, Durability, Policy, PolicyId};
    use saker_types::wire::{
        At, Ctx, FetchReq, HoldReply, HoldReq, InvalidateReq, Op, PolicyPair, SetPolicyReply,
        SetPolicyReq, Vote,
    };
    use saker_types::{Inode, ROOT};

    use super::*;
    use crate::testing::{
        Answer, CoordinatorTester, ShardRequest, agreeing, at, dentry, dir, entry, errno, vote, yes,
    };

    /// From /a to /b/c, where b is directory 5.
    fn request(t: &mut CoordinatorTester) -> RenameReq {
        let to_chain = vec![entry(ROOT, "b", 5)];
        RenameReq { ctx: t.ctx(), from: at("a"), to: at("b/c"), to_chain, ..RenameReq::default() }
    }

    /// Shards where `a` is directory 9, and `b/c` leads to `there`.
    fn shards(there: Option<Inode>) -> impl Fn(&ShardRequest) -> Answer {
        move |asked| match asked.op {
            Op::Fetch => yes(&dentry(5)),
            Op::Prepare => {
                let prepare: PrepareReq = asked.body();
                match prepare.intent() {
                    Intent::TakeDir => yes(&vote(entry(ROOT, "a", 9), Some(dir(9)))),
                    Intent::Insert => yes(&vote(entry(5, "c", 9), there.clone())),
                    other => panic!("{other:?}"),
                }
            }
            _ => agreeing(asked),
        }
    }

    #[test]
    fn a_directory_moves_only_to_where_the_same_is_promised_or_takes_its_policy_along() {
        let cell = |durability| PolicyId::new(5, &Policy::cell(Consistency::Strong, durability)).0;
        for (own, to, moves) in [
            (0, cell(Durability::Local), false),
            (0, cell(Durability::Global), true),
            (cell(Durability::None), cell(Durability::Local), true),
        ] {
            let mut t = CoordinatorTester::new();
            let request = request(&mut t);
            let agreed = shards(None);
            let answer = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| match asked.op {
                Op::Prepare if asked.body::<PrepareReq>().intent() == Intent::TakeDir => {
                    yes(&vote(entry(ROOT, "a", 9), Some(Inode { policy: own, ..dir(9) })))
                }
                Op::Prepare => yes(&vote(entry(5, "c", 9).under(to), None)),
                _ => agreed(asked),
            });
            assert_eq!(t.decided(), [moves], "{own:#x} {to:#x}");
            assert_eq!(answer.err().map(|e| e.errno()), (!moves).then_some(Errno::EXDEV));
        }
    }

    #[test]
    fn the_row_is_taken_and_inserted_and_both_names_are_forgotten() {
        let mut t = CoordinatorTester::new();
        let request = request(&mut t);
        let agreed = shards(None);
        let reply = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| {
            match asked.op {
                Op::Fetch => {
                    let fetch: FetchReq = asked.body();
                    assert!(fetch.nowait, "the turn is held");
                    assert_eq!((fetch.pid, &fetch.name[..]), (ROOT, &b"b"[..]));
                }
                Op::Invalidate => assert_eq!(asked.body::<InvalidateReq>().keys.len(), 2),
                Op::Prepare => {
                    let prepare: PrepareReq = asked.body();
                    match prepare.row {
                        Some(row) => assert!(row.attr.ctime_ns > dir(9).attr.ctime_ns),
                        None => assert_eq!(prepare.moves_to, Some(entry(5, "c", 0))),
                    }
                }
                _ => {}
            }
            agreed(asked)
        });
        let reply = reply.unwrap();
        assert_eq!((reply.loc, reply.replaced), (entry(5, "c", 9), 0));
        assert_eq!(t.ops(), [Op::Fetch, Op::Prepare, Op::Invalidate, Op::Decide]);
        assert_eq!(t.decided(), [true]);
        let owners = [t.owner(&entry(ROOT, "a", 9)), t.owner(&entry(5, "c", 9))];
        assert_eq!(t.asked_of(Op::Prepare), owners);
    }

    #[test]
    fn an_empty_directory_is_replaced() {
        let mut t = CoordinatorTester::new();
        let request = request(&mut t);
        let agreed = shards(Some(dir(7)));
        let reply = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| {
            if asked.op == Op::Invalidate {
                assert_eq!(asked.body::<InvalidateReq>().empty_dir, 7);
            }
            agreed(asked)
        });
        assert_eq!(reply.unwrap().replaced, 7);
    }

    #[test]
    fn what_the_client_saw_must_still_be_so() {
        let moved_chain = vec![entry(4, "b", 5)];
        let other_name = vec![entry(ROOT, "x", 5)];
        for (chain, found) in [
            (vec![entry(ROOT, "b", 5)], 6),
            (vec![entry(ROOT, "b", 5)], 0),
            (moved_chain, 5),
            (other_name, 5),
            (vec![], 5),
        ] {
            let mut t = CoordinatorTester::new();
            let request = RenameReq { to_chain: chain, ..request(&mut t) };
            let reply = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| match asked.op {
                Op::Fetch => yes(&dentry(found)),
                _ => agreeing(asked),
            });
            assert_eq!(errno(reply), Errno::ESTALE);
            assert!(t.asked_of(Op::Prepare).is_empty());
        }
        // The owner of the new name finds another parent than the chain has.
        let mut t = CoordinatorTester::new();
        let request = request(&mut t);
        let agreed = shards(None);
        let reply = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| {
            let is_insert =
                asked.op == Op::Prepare && asked.body::<PrepareReq>().intent() == Intent::Insert;
            if is_insert { yes(&vote(entry(6, "c", 9), None)) } else { agreed(asked) }
        });
        assert_eq!(errno(reply), Errno::ESTALE);
        assert_eq!(t.decided(), [false]);
    }

    #[test]
    fn who_holds_a_decoupled_subtree_names_the_way_from_its_directory_on() {
        let mut t = CoordinatorTester::new();
        let weak = Policy::cell(Consistency::Weak, Durability::None);
        let pairs = weak.pairs().into_iter();
        let pairs = pairs.map(|(key, value)| PolicyPair { key: key.to_owned(), value }).collect();
        let set = SetPolicyReq { ctx: t.ctx(), at: at("s"), pairs };
        let reply = t.ask::<SetPolicyReply>(Op::SetPolicy, &set, |_, asked| match asked.op {
            Op::Prepare => yes(&vote(entry(4, "s", 5), Some(dir(5)))),
            _ => agreeing(asked),
        });
        let policy = reply.unwrap().policy;
        let hold = HoldReq { ctx: t.ctx(), policy, holder: 70, who: String::new(), force: false };
        let held = t.ask::<HoldReply>(Op::Hold, &hold, |_, asked| agreeing(asked)).unwrap();
        let hold = held.policy.last_epoch;
        let cases = [
            (70, policy, entry(4, "s", 5), None),
            // Somebody else; not both in the subtree; from another directory on.
            (71, policy, entry(4, "s", 5), Some(Errno::ESTALE)),
            (70, 0, entry(4, "s", 5), Some(Errno::ESTALE)),
            (70, policy, entry(4, "t", 6), Some(Errno::ESTALE)),
        ];
        for (holder, from, top, wanted) in cases {
            let end = entry(top.id, "d", 8).under(policy);
            let request = RenameReq {
                ctx: Ctx { holder, hold, ..t.ctx() },
                from: At::child(entry(5, "x", 7).under(from), b"a"),
                to: At::child(end.clone(), b"c"),
                to_chain: vec![top.clone(), end],
                ..RenameReq::default()
            };
            let reply = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| match asked.op {
                Op::Fetch if asked.body::<FetchReq>().name == "d" => yes(&dentry(8)),
                Op::Fetch => yes(&dentry(top.id)),
                Op::Prepare => match asked.body::<PrepareReq>().intent() {
                    Intent::TakeDir => yes(&vote(entry(7, "a", 9).under(policy), Some(dir(9)))),
                    _ => yes(&vote(entry(8, "c", 9).under(policy), None)),
                },
                _ => agreeing(asked),
            });
            assert_eq!(reply.err().map(|e| e.errno()), wanted, "{holder} {from:#x} {top:?}");
        }
    }

    #[test]
    fn a_directory_does_not_go_below_itself() {
        let mut t = CoordinatorTester::new();
        let request = request(&mut t);
        let reply = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| match asked.op {
            Op::Fetch => yes(&dentry(5)),
            // What moves is the directory that it is to go to.
            Op::Prepare => yes(&vote(entry(ROOT, "a", 5), Some(dir(5)))),
            _ => agreeing(asked),
        });
        assert_eq!(errno(reply), Errno::EINVAL);
        assert_eq!(t.decided(), [false]);
    }

    #[test]
    fn names_that_lead_to_one_inode_stay() {
        for (flags, wanted) in [(0, None), (rename_flags::NOREPLACE, Some(Errno::EEXIST))] {
            let mut t = CoordinatorTester::new();
            let request = RenameReq { flags, ..request(&mut t) };
            let agreed = shards(None);
            let reply = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| {
                let is_insert = asked.op == Op::Prepare
                    && asked.body::<PrepareReq>().intent() == Intent::Insert;
                match is_insert {
                    true => yes(&Vote { same: true, ..vote(entry(5, "c", 9), None) }),
                    false => agreed(asked),
                }
            });
            assert_eq!(reply.err().map(|e| e.errno()), wanted);
            assert_eq!(t.decided(), [false]);
            assert!(t.asked_of(Op::Invalidate).is_empty());
        }
    }

    #[test]
    fn the_directory_that_it_comes_from_is_not_replaced() {
        let mut t = CoordinatorTester::new();
        let request = RenameReq { from: at("b/c/a"), ..request(&mut t) };
        let reply = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| match asked.op {
            Op::Fetch => yes(&dentry(5)),
            Op::Prepare => match asked.body::<PrepareReq>().intent() {
                Intent::TakeDir => yes(&vote(entry(7, "a", 9), Some(dir(9)))),
                _ => yes(&vote(entry(5, "c", 9), Some(dir(7)))),
            },
            _ => agreeing(asked),
        });
        assert_eq!(errno(reply), Errno::ENOTEMPTY);
        assert_eq!(t.decided(), [false]);
    }

    #[test]
    fn the_root_is_neither_moved_nor_replaced() {
        let mut t = CoordinatorTester::new();
        for (from, to, wanted) in [("", "x", Errno::EBUSY), ("a", "", Errno::EINVAL)] {
            let request =
                RenameReq { ctx: t.ctx(), from: at(from), to: at(to), ..RenameReq::default() };
            let reply = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| agreeing(asked));
            assert_eq!(errno(reply), wanted);
        }
        assert!(t.asked.is_empty());
    }

    #[test]
    fn who_may_not_write_to_a_directory_does_not_move_it_elsewhere() {
        let mut t = CoordinatorTester::new();
        t.cred = saker_types::Cred { uid: 5, gid: 5, groups_known: true, ..Default::default() };
        let request = request(&mut t);
        let agreed = shards(None);
        let reply = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| agreed(asked));
        assert_eq!(errno(reply), Errno::EACCES);
        assert_eq!(t.decided(), [false]);
    }
}
