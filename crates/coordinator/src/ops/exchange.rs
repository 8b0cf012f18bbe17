//! renameat2(2) with RENAME_EXCHANGE where a directory is involved. Each row goes where the other
//! was; the first name is prepared without a row, and again when the other is known.

use bytes::Bytes;
use prost::Message;
use saker_rpc::txn::{self, Transaction};
use saker_runtime::failpoint;
use saker_types::inode::{Inode, Locator};
use saker_types::wire::{At, Intent, PrepareReq, RenameReply, RenameReq};
use saker_types::{Errno, Error};

use super::{ChangeStop, Keepers, chain, invalidate, moved, policy};
use crate::state::StateHandle;

/// Exchanges two names of any kinds. The caller has the turn.
pub(super) async fn exchange_alone(h: &StateHandle, msg: &RenameReq) -> Result<Bytes, ChangeStop> {
    let [from_parent, to_parent] = chain::parents(h, msg).await?;
    let id = txn::begin(&mut *h.state())?;
    let mut txn = Transaction::new(h.state.clone(), id, None);
    let now_ns = h.hub.wall_ns();

    let first = txn.prepare(half(msg, msg.from.clone(), None, None)).await?;
    failpoint!("dir_exchange.first");
    let here = first.row.clone().unwrap_or_default();
    if first.loc.pid != from_parent {
        return Err(txn.refuse(chain::stale()).into());
    }
    // Before the other name is resolved: its path may lead through what is locked now.
    if msg.to_chain.iter().any(|loc| loc.id == here.attr.id) {
        return Err(txn.refuse(Errno::EINVAL.into()).into());
    }
    txn.prepare_home(&msg.ctx, &here, 0, first.only_owner).await?;

    let row = Some(moved(here.clone(), now_ns));
    let request = half(msg, msg.to.clone(), row, Some(first.loc.clone()));
    let other = txn.prepare(request).await.map_err(Error::about_second)?;
    failpoint!("dir_exchange.second");
    let there = other.row.clone().unwrap_or_default();
    let reply = RenameReply {
        loc: here.handle_at(other.loc.clone()),
        other: Some(there.handle_at(first.loc.clone())),
        replaced: 0,
    };
    if other.same {
        txn.abort();
        return Ok(reply.encode_to_vec().into());
    }
    if here.policy != 0 || there.policy != 0 || !policy::may_move(0, &first.loc, &other.loc) {
        return Err(txn.refuse(Errno::EXDEV.into()).into());
    }
    if other.loc.pid != to_parent {
        return Err(txn.refuse(chain::stale()).into());
    }
    chain::check_move(msg, &there, [to_parent, from_parent], &msg.from_chain)
        .map_err(|e| txn.refuse(e))?;
    chain::check_move(msg, &here, [from_parent, to_parent], &msg.to_chain)
        .map_err(|e| txn.refuse(e))?;
    txn.prepare_home(&msg.ctx, &there, 0, other.only_owner).await.map_err(Error::about_second)?;

    let row = Some(moved(there, now_ns));
    let at = At::handle(first.loc.clone());
    txn.prepare(half(msg, at, row, Some(other.loc.clone()))).await?;
    if let Err(stop) = invalidate(h, &[&first.loc, &other.loc], 0, Keepers::LetGo).await {
        txn.abort();
        return Err(stop);
    }
    failpoint!("dir_exchange.invalidated");
    Ok(txn.commit(|_| Ok(reply.encode_to_vec().into()))?)
}

/// What one of the two entries is asked for.
fn half(msg: &RenameReq, at: At, row: Option<Inode>, moves_to: Option<Locator>) -> PrepareReq {
    let intent = Intent::Swap.into();
    PrepareReq { ctx: msg.ctx.clone(), at, intent, row, moves_to, ..PrepareReq::default() }
}

#[cfg(test)]
mod tests {
    use saker_types::ROOT;
    use saker_types::wire::{InvalidateReq, Op, Vote, rename_flags};

    use super::*;
    use crate::testing::{
        Answer, CoordinatorTester, ShardRequest, agreeing, at, dentry, dir, entry, errno, vote, yes,
    };

    /// /a, which is directory 9, and /b/c, which is directory 7 in directory 5.
    fn request(t: &mut CoordinatorTester) -> RenameReq {
        RenameReq {
            ctx: t.ctx(),
            from: at("a"),
            to: at("b/c"),
            flags: rename_flags::EXCHANGE,
            to_chain: vec![entry(ROOT, "b", 5)],
            ..RenameReq::default()
        }
    }

    fn shards(asked: &ShardRequest) -> Answer {
        match asked.op {
            Op::Fetch => yes(&dentry(5)),
            Op::Prepare => {
                let prepare: PrepareReq = asked.body();
                assert_eq!(prepare.intent(), Intent::Swap);
                match (&prepare.moves_to, prepare.row.map(|row| row.attr.id)) {
                    // The other row is not known yet.
                    (None, None) => yes(&vote(entry(ROOT, "a", 9), Some(dir(9)))),
                    (Some(to), Some(9)) => {
                        assert_eq!(*to, entry(ROOT, "a", 9));
                        yes(&vote(entry(5, "c", 7), Some(dir(7))))
                    }
                    (Some(to), Some(7)) => {
                        assert_eq!(*to, entry(5, "c", 7));
                        assert_eq!(prepare.at.anchor, entry(ROOT, "a", 9));
                        yes(&vote(entry(ROOT, "a", 9), None))
                    }
                    other => panic!("{other:?}"),
                }
            }
            _ => agreeing(asked),
        }
    }

    #[test]
    fn each_row_goes_where_the_other_was() {
        let mut t = CoordinatorTester::new();
        let request = request(&mut t);
        let reply = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| {
            if asked.op == Op::Invalidate {
                assert_eq!(asked.body::<InvalidateReq>().keys.len(), 2);
            }
            shards(asked)
        });
        let reply = reply.unwrap();
        assert_eq!((reply.loc.pid, reply.loc.id), (5, 9));
        let other = reply.other.unwrap();
        assert_eq!((other.pid, other.id, reply.replaced), (ROOT, 7, 0));
        assert_eq!(t.ops(), [Op::Fetch, Op::Prepare, Op::Invalidate, Op::Decide]);
        assert_eq!(t.asked_of(Op::Prepare).len(), 3);
        assert_eq!(t.decided(), [true]);
    }

    #[test]
    fn a_directory_and_one_above_it_stay() {
        let mut t = CoordinatorTester::new();
        let request = request(&mut t);
        let reply = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| match asked.op {
            Op::Prepare => yes(&vote(entry(ROOT, "a", 5), Some(dir(5)))),
            _ => shards(asked),
        });
        assert_eq!(errno(reply), Errno::EINVAL);
        assert_eq!(t.asked_of(Op::Prepare).len(), 1, "the other path leads through what is locked");
        assert_eq!(t.decided(), [false]);
    }

    #[test]
    fn two_names_of_one_inode_stay() {
        let mut t = CoordinatorTester::new();
        let request = request(&mut t);
        let reply = t.ask::<RenameReply>(Op::Rename, &request, |_, asked| match asked.op {
            Op::Prepare if asked.body::<PrepareReq>().row.is_some() => {
                yes(&Vote { same: true, ..vote(entry(5, "c", 9), Some(dir(9))) })
            }
            _ => shards(asked),
        });
        reply.unwrap();
        assert_eq!(t.decided(), [false]);
        assert!(t.asked_of(Op::Invalidate).is_empty());
    }
}
