//! chmod and chown of a directory.

use bytes::Bytes;
use prost::Message;
use saker_rpc::txn::{self, Transaction};
use saker_runtime::failpoint;
use saker_types::Error;
use saker_types::wire::{Entry, Intent, PrepareReq, SetattrReq, Vote};

use super::{ChangeStop, Keepers, invalidate, when_let_go};
use crate::state::StateHandle;

/// Changes mode or owner of a directory. The answer's times and link count are the row's own.
pub(crate) async fn setattr(h: &StateHandle, msg: &SetattrReq) -> Result<Bytes, Error> {
    let request = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.at.clone(),
        setattr: Some(Box::new(msg.clone())),
        ..PrepareReq::default()
    };
    let answer = |vote: Vote| {
        let mut attr = vote.row.unwrap_or_default().attr;
        attr.nlink = 2;
        Entry { attr, loc: vote.loc, ..Entry::default() }.encode_to_vec().into()
    };
    set_directory(h, request, answer).await
}

/// Changes what replicas hold of a directory.
pub(super) async fn set_directory(
    h: &StateHandle,
    request: PrepareReq,
    answer: impl Fn(Vote) -> Bytes,
) -> Result<Bytes, Error> {
    let request = PrepareReq { intent: Intent::SetDir.into(), ..request };
    when_let_go(h, &request.ctx, async || set_once(h, request.clone(), &answer).await).await
}

async fn set_once(
    h: &StateHandle,
    request: PrepareReq,
    answer: impl Fn(Vote) -> Bytes,
) -> Result<Bytes, ChangeStop> {
    let id = txn::begin(&mut *h.state())?;
    let mut txn = Transaction::new(h.state.clone(), id, None);
    let vote = txn.prepare(request).await?;
    failpoint!("dir_setattr.prepared");
    let keepers = if vote.closes { Keepers::LetGo } else { Keepers::Stay };
    if let Err(stop) = invalidate(h, &[&vote.loc], 0, keepers).await {
        txn.abort();
        return Err(stop);
    }
    failpoint!("dir_setattr.invalidated");
    Ok(txn.commit(|_| Ok(answer(vote)))?)
}

#[cfg(test)]
mod tests {
    use saker_types::wire::{InvalidateReply, Op};
    use saker_types::{Errno, ROOT};

    use super::*;
    use crate::testing::{
        CoordinatorTester, SHARDS, agreeing, at, dir, entry, errno, no, vote, yes,
    };

    fn chmod(t: &mut CoordinatorTester) -> SetattrReq {
        SetattrReq { ctx: t.ctx(), at: at("d"), mode: Some(0o700), ..SetattrReq::default() }
    }

    #[test]
    fn replicas_hear_of_a_new_mode_before_it_counts() {
        let mut t = CoordinatorTester::new();
        let request = chmod(&mut t);
        let answer = t.ask::<Entry>(Op::Setattr, &request, |_, asked| match asked.op {
            Op::Prepare => {
                let prepare: PrepareReq = asked.body();
                assert_eq!(prepare.intent(), Intent::SetDir);
                assert_eq!(prepare.setattr.unwrap().mode, Some(0o700));
                yes(&vote(entry(ROOT, "d", 9), Some(dir(9))))
            }
            _ => agreeing(asked),
        });
        let answer = answer.unwrap();
        assert_eq!((answer.attr.id, answer.attr.nlink, answer.loc.id), (9, 2, 9));
        assert_eq!(t.ops(), [Op::Prepare, Op::Invalidate, Op::Decide]);
        assert_eq!(t.asked_of(Op::Invalidate).len(), usize::from(SHARDS));
        assert_eq!(t.decided(), [true]);
    }

    #[test]
    fn it_waits_for_leases_only_if_it_closes_the_directory() {
        for closes in [false, true] {
            let mut t = CoordinatorTester::new();
            let request = chmod(&mut t);
            let mut rounds = 0;
            let answer = t.ask::<Entry>(Op::Setattr, &request, |_, asked| match asked.op {
                Op::Prepare => {
                    let vote = vote(entry(ROOT, "d", 9), Some(dir(9)));
                    yes(&Vote { closes, ..vote })
                }
                Op::Invalidate => {
                    rounds += 1;
                    let kept_ms = if rounds <= SHARDS { 300 } else { 0 };
                    yes(&InvalidateReply { kept_ms, ..InvalidateReply::default() })
                }
                _ => agreeing(asked),
            });
            answer.unwrap();
            let decided: &[bool] = if closes { &[false, true] } else { &[true] };
            assert_eq!(t.decided(), decided);
        }
    }

    #[test]
    fn what_the_owner_refuses_is_aborted() {
        let mut t = CoordinatorTester::new();
        let request = chmod(&mut t);
        let answer = t.ask::<Entry>(Op::Setattr, &request, |_, asked| match asked.op {
            Op::Prepare => no(Errno::EPERM),
            _ => agreeing(asked),
        });
        assert_eq!(errno(answer), Errno::EPERM);
        assert_eq!(t.decided(), [false]);
    }
}
