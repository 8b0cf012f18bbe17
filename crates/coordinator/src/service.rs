//! The role: frames in, frames out.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_engine::Engine;
use saker_engine::sessions::Verdict;
use saker_rpc::frame::Frame;
use saker_rpc::hello::PeerHello;
use saker_rpc::node::{ConnId, FlushDone, Input, Outbox, ReplyTo, StateMachine};
use saker_rpc::txn::Driver;
use saker_runtime::time::Time;
use saker_types::change::{Joined, What};
use saker_types::wire::{
    Ctx, Empty, HoldReq, MarkReq, MergeReq, Op, OutcomeReq, PolicyReq, ProvisionReq, ReleaseReq,
    RemoveReq, RenameReq, RenewHoldsReq, SessionReq, SetPolicyReq, SetattrReq, XattrReq,
};
use saker_types::{Errno, Error, NodeId};

use crate::ops;
use crate::state::StateHandle;

/// The coordinator as the shell drives it.
pub struct CoordinatorWorker {
    h: StateHandle,
    /// It is in a client, whose process does not end with it.
    is_in_client: bool,
    /// Why it cannot go on.
    failed: Option<String>,
}

impl CoordinatorWorker {
    /// Wraps the opened state, and goes on with what was under way.
    pub fn new(h: StateHandle) -> CoordinatorWorker {
        ops::resume_merges(&h);
        CoordinatorWorker { h, is_in_client: false, failed: None }
    }

    /// The same of a private one, in a client: when it cannot go on it ends, and the process does not.
    pub fn in_client(h: StateHandle) -> CoordinatorWorker {
        let mut worker = CoordinatorWorker::new(h);
        worker.is_in_client = true;
        worker
    }

    /// The cluster map.
    #[cfg(test)]
    pub(crate) fn map(&self) -> std::sync::Arc<saker_types::ClusterMap> {
        self.h.state().map.clone()
    }

    fn receive(&self, conn: ConnId, peer: &PeerHello, frame: Frame) {
        let Some(op) = Op::from_u16(frame.op) else {
            let e = Error::new(Errno::EPROTO).with_text("unknown operation");
            let body = e.encode_to_vec().into();
            return self.h.hub.reply(conn, frame.reply(e.errno().0, body, Bytes::new()));
        };
        let from = ReplyTo { conn, call: frame.call, trace: frame.trace, op };
        self.h.state().metrics.requests.inc(op as u16);
        if op == Op::Outcome && peer.member().is_none() {
            return self.h.state().send(from, &Err(Errno::EPERM.into()));
        }
        if let Err(e) = self.dispatch(from, peer, &frame.body) {
            self.h.state().send(from, &Err(e));
        }
    }

    fn dispatch(&self, from: ReplyTo, peer: &PeerHello, body: &Bytes) -> Result<(), Error> {
        match from.op {
            Op::Rmdir => {
                let msg: RemoveReq = decode(body)?;
                self.mutate(
                    from,
                    msg.ctx.clone(),
                    move |h| async move { ops::rmdir(&h, &msg).await },
                )
            }
            Op::Setattr => {
                let msg: SetattrReq = decode(body)?;
                self.mutate(
                    from,
                    msg.ctx.clone(),
                    move |h| async move { ops::setattr(&h, &msg).await },
                )
            }
            Op::Setxattr | Op::Removexattr => {
                let msg: XattrReq = decode(body)?;
                if !saker_types::acl::is_acl(&msg.name) {
                    return Err(Errno::EOPNOTSUPP.into());
                }
                let value = if from.op == Op::Setxattr { msg.value.clone() } else { Bytes::new() };
                self.mutate(from, msg.ctx.clone(), move |h| async move {
                    ops::setxattr(&h, &msg, value).await
                })
            }
            Op::Rename => {
                let msg: RenameReq = decode(body)?;
                self.mutate(
                    from,
                    msg.ctx.clone(),
                    move |h| async move { ops::rename(&h, &msg).await },
                )
            }
            Op::Map => {
                let map = self.h.state().map.encode_to_vec();
                self.answer(from, map)
            }
            Op::Join => {
                let msg: Joined = decode(body)?;
                self.h.state().join(peer.role, msg)?;
                self.answer(from, Empty {}.encode_to_vec())
            }
            Op::Mark => {
                let msg: MarkReq = decode(body)?;
                self.h.state().mark(peer.role, msg)?;
                self.answer(from, Empty {}.encode_to_vec())
            }
            Op::SetPolicy => {
                let msg: SetPolicyReq = decode(body)?;
                let ctx = msg.ctx.clone();
                self.mutate(from, ctx, move |h| async move { ops::set_policy(&h, &msg).await })
            }
            Op::Hold => {
                let msg: HoldReq = decode(body)?;
                let ctx = msg.ctx.clone();
                self.mutate(from, ctx, move |h| async move { ops::hold(&h, &msg).await })
            }
            Op::Release => {
                let msg: ReleaseReq = decode(body)?;
                let ctx = msg.ctx.clone();
                self.mutate(from, ctx, move |h| async move { ops::release(&h, &msg).await })
            }
            Op::Merge => {
                let msg: MergeReq = decode(body)?;
                let ctx = msg.ctx.clone();
                self.mutate(from, ctx, move |h| async move { ops::merge(&h, &msg).await })
            }
            Op::Provision => {
                let msg: ProvisionReq = decode(body)?;
                self.h.state().may_change_anything()?;
                let ids = ops::provision(&self.h, &msg)?;
                self.answer(from, ids.encode_to_vec())
            }
            Op::RenewHolds => {
                let msg: RenewHoldsReq = decode(body)?;
                let now = self.h.state().lease_now();
                let reply = self.h.state().policies.renew(msg.holder, &msg.policies, now);
                self.answer(from, reply.encode_to_vec())
            }
            Op::GetPolicy => {
                let msg: PolicyReq = decode(body)?;
                let now = self.h.state().lease_now();
                let reply = self.h.state().policies.described(msg.policy, now)?;
                self.answer(from, reply.encode_to_vec())
            }
            Op::PolicyState => {
                let msg: PolicyReq = decode(body)?;
                let state = self.h.state().policies.state(msg.policy)?;
                self.answer(from, state.encode_to_vec())
            }
            Op::Policies => {
                let now = self.h.state().lease_now();
                let reply = self.h.state().policies.all_described(now).encode_to_vec();
                self.answer(from, reply)
            }
            Op::Refused => {
                let refused = self.h.state().refused().encode_to_vec();
                self.answer(from, refused)
            }
            Op::Outcome => {
                let msg: OutcomeReq = decode(body)?;
                let reply = self.h.state().ledger.outcome(msg.number);
                self.answer(from, reply.encode_to_vec())
            }
            Op::OpenSession => {
                let msg: SessionReq = decode(body)?;
                let mut s = self.h.state();
                let admitted = s.sessions.admit(msg.session, peer.ip);
                let begun = admitted.inspect_err(|_| s.metrics.sessions_refused.inc())?;
                begun.into_iter().for_each(|what| s.log(what));
                drop(s);
                self.answer(from, Empty {}.encode_to_vec())
            }
            Op::CloseSession => {
                let msg: SessionReq = decode(body)?;
                let mut s = self.h.state();
                s.sessions.close(msg.session);
                s.log(What::SessionClose(msg.session));
                drop(s);
                self.answer(from, Empty {}.encode_to_vec())
            }
            op => {
                let text = format!("{} is not for the coordinator", op.name());
                Err(Error::new(Errno::EPROTO).with_text(text))
            }
        }
    }

    fn answer(&self, from: ReplyTo, body: Vec<u8>) -> Result<(), Error> {
        self.h.state().send_raw(from, 0, body.into());
        Ok(())
    }

    /// Runs a mutation once per (session, seq).
    fn mutate<F, Fut>(&self, from: ReplyTo, ctx: Ctx, run: F) -> Result<(), Error>
    where
        F: FnOnce(StateHandle) -> Fut,
        Fut: Future<Output = Result<Bytes, Error>> + 'static,
    {
        self.h.state().may_change_anything()?;
        let verdict = self.h.state().sessions.begin(&ctx, from);
        if matches!(verdict, Verdict::Run | Verdict::Joined) {
            self.h.state().want(&ctx, self.h.hub.now());
        }
        match verdict {
            Verdict::Run => {}
            Verdict::Joined => return Ok(()),
            Verdict::Answer(status, body) => {
                self.h.state().send_raw(from, status, body);
                return Ok(());
            }
            Verdict::Refuse(e) => return Err(e),
        }
        let asker = self.h.hub.asker(&ctx);
        let (h, task) = (self.h.clone(), self.h.hub.serve_task(asker, run(self.h.clone())));
        self.h.hub.spawn(async move {
            let result = task.await;
            h.state().finish(ctx.session, ctx.seq, result);
        });
        Ok(())
    }
}

fn decode<M: Message + Default>(body: &Bytes) -> Result<M, Error> {
    M::decode(body.clone()).map_err(|e| Error::new(Errno::EPROTO).with_text(e.to_string()))
}

impl Drop for CoordinatorWorker {
    /// Its tasks hold the state, and the state its tasks.
    fn drop(&mut self) {
        self.h.hub.drop_tasks();
    }
}

impl StateMachine for CoordinatorWorker {
    fn step(&mut self, now: Time, wall_ns: i64, inputs: &mut VecDeque<Input>, out: &mut Outbox) {
        self.h.hub.begin(now, wall_ns);
        self.h.state().begin_step(now);
        for input in inputs.drain(..) {
            match input {
                Input::Request { conn, peer, frame } => self.receive(conn, &peer, frame),
                Input::Reply { call, result } => self.h.hub.replied(call, result),
                Input::Closed { .. } => {}
            }
        }
        while self.h.hub.run() > 0 {}
        let sealed = self.h.state().seal();
        if let Err(e) = sealed {
            let why = format!("the engine failed: {e}");
            match self.is_in_client {
                true => self.failed = Some(why),
                false => saker_runtime::sim::abort_process(&why),
            }
        }
        out.set_map_version(self.h.state().map.version);
        self.h.hub.end(out);
    }

    fn next_deadline(&self) -> Option<Time> {
        let now = self.h.hub.now();
        let soon = now + Duration::from_millis(1);
        let all = [self.h.hub.next_timer(), self.h.state().engine.next_step(now)];
        all.into_iter().flatten().min().map(|at| at.max(soon))
    }

    fn address(&self, to: saker_rpc::NodeNumber) -> Option<SocketAddr> {
        self.h.state().map.addr(NodeId::from_u32(to.0)?)
    }

    fn appended(&self) -> u64 {
        self.h.state().engine.appended()
    }

    fn durable(&self) -> u64 {
        self.h.state().engine.durable()
    }

    fn check(&self) -> io::Result<()> {
        self.failed.clone().map_or(Ok(()), |why| Err(io::Error::other(why)))
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut s = self.h.state();
        s.metrics.flushes.inc();
        s.engine.flush().map_err(io::Error::other)
    }

    fn flush_begin(&mut self, done: FlushDone) -> io::Result<()> {
        let mut s = self.h.state();
        s.metrics.flushes.inc();
        s.engine.flush_begin(move || done.notify()).map_err(io::Error::other)
    }

    fn flush_finish(&mut self) -> io::Result<()> {
        self.h.state().engine.flush_finish().map_err(io::Error::other)
    }
}
