//! The driver of renames and links of files (rules 10, 12, 13). Presumed abort: until the
//! decision is in the journal nothing needs to be remembered, and whoever asks about an unknown
//! transaction hears "aborted".
//!
//! The decision, the driver's own rows and the caller's result are one record of the journal,
//! because [`Transaction::commit`] and the answer happen in one step; no message leaves before
//! it is durable.

use bytes::Bytes;
use saker_types::change::{Decision, What};
use saker_types::inode::Locator;
use saker_types::wire::{At, Ctx, DecideReq, Empty, Intent, Op, PrepareReq, Vote};
use saker_types::{Error, InodeId, Key, NodeId, TxnId};

use crate::request::{Step, Stop, Wait};
use crate::rows::home_locator;
use crate::shard::{Handle, Shard};

/// How long a participant may take to vote.
const PREPARE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3);

/// A transaction that this shard drives, until it is committed or aborted.
pub(crate) struct Transaction {
    h: Handle,
    id: TxnId,
    /// Entry locked here, in memory only: a crash before the decision aborts anyway.
    own: Option<Key>,
    participants: Vec<NodeId>,
}

impl Shard {
    /// A new transaction's number; it is in progress from now on.
    pub(crate) fn begin_txn(&mut self) -> Step<TxnId> {
        let number = self.new_id()?;
        self.driving.insert(number, ());
        Ok(TxnId { driver: self.node(), number })
    }

    fn end_txn(&mut self, id: TxnId, own: Option<&Key>) {
        self.driving.remove(&id.number);
        if let Some(key) = own {
            self.unlock(key);
        }
        self.wake(&Wait::Txn(id));
    }

    /// Tells participants of a decision until all have acknowledged.
    pub(crate) fn deliver(&mut self, decision: Decision) {
        let h = self.handle();
        self.hub.spawn(deliver(h, decision));
    }
}

impl Transaction {
    /// Goes on with a transaction whose own entry (if any) is locked already.
    pub(crate) fn new(h: &Handle, id: TxnId, own: Option<Key>) -> Transaction {
        Transaction { h: h.clone(), id, own, participants: Vec::new() }
    }

    /// First phase at the owner of `at`'s last name; a no aborts the transaction.
    pub(crate) async fn prepare(&mut self, request: PrepareReq) -> Result<Vote, Error> {
        let shard = self.h.shard().map.shard_of(&request.at);
        let to = NodeId::Shard(shard);
        let request = PrepareReq {
            driver: self.id.driver.to_u32(),
            number: self.id.number,
            ..request
        };
        if !self.participants.contains(&to) {
            self.participants.push(to);
        }
        match self.h.hub.ask::<Vote>(to, Op::Prepare, 0, &request, PREPARE_TIMEOUT).await {
            Ok(vote) => Ok(vote),
            Err(e) => {
                self.abort();
                Err(e)
            }
        }
    }

    /// First phase of a change of a hard-linked inode's link count.
    pub(crate) async fn prepare_nlink(
        &mut self,
        ctx: &Ctx,
        id: InodeId,
        slot: u32,
        delta: i32,
    ) -> Result<Vote, Error> {
        let at = At::handle(home_locator(id, slot));
        let intent = Intent::Nlink.into();
        let request = PrepareReq { ctx: ctx.clone(), at, intent, delta, ..PrepareReq::default() };
        self.prepare(request).await
    }

    /// Nothing happens; participants hear it now or when they ask.
    pub(crate) fn abort(&mut self) {
        let DecideReq { driver, number, .. } = self.decision(false);
        for to in self.participants.drain(..) {
            let request = DecideReq { driver, number, commit: false };
            let h = self.h.clone();
            self.h.hub.spawn(async move {
                // Lost on the way, the participant asks and hears the same.
                let _ = h.hub.ask::<Empty>(to, Op::Decide, 0, &request, PREPARE_TIMEOUT).await;
            });
        }
        self.h.shard().end_txn(self.id, self.own.as_ref());
    }

    /// Decides: `apply` changes the driver's own rows and makes the answer, which must be
    /// returned to the caller without another await.
    pub(crate) fn commit(
        mut self,
        apply: impl FnOnce(&mut Shard) -> Step<Bytes>,
    ) -> Result<Bytes, Error> {
        let mut s = self.h.shard();
        let reply = match apply(&mut s) {
            Ok(reply) => reply,
            Err(stop) => {
                drop(s);
                self.abort();
                return Err(failed(stop));
            }
        };
        let participants = self.participants.iter().map(|n| n.to_u32()).collect();
        let decision = Decision { number: self.id.number, participants };
        s.log(What::Decision(decision.clone()));
        s.decisions.insert(decision.number, decision.clone());
        s.end_txn(self.id, self.own.as_ref());
        s.deliver(decision);
        Ok(reply)
    }

    fn decision(&self, commit: bool) -> DecideReq {
        DecideReq { driver: self.id.driver.to_u32(), number: self.id.number, commit }
    }
}

fn failed(stop: Stop) -> Error {
    match stop {
        Stop::Fail(e) => e,
        Stop::Wait(_) | Stop::Task(_) => Error::retry("the transaction could not be applied"),
    }
}

async fn deliver(h: Handle, decision: Decision) {
    let driver = h.shard().node().to_u32();
    let request = DecideReq { driver, number: decision.number, commit: true };
    for to in decision.participants.iter().filter_map(|n| NodeId::from_u32(*n)) {
        let told = h.hub.ask_until::<Empty>(to, Op::Decide, 0, &request, Bytes::new()).await;
        if let Err(e) = told {
            tracing::error!("{to} refuses the outcome of transaction {:#x}: {e}", decision.number);
            return;
        }
    }
    let mut s = h.shard();
    s.decisions.remove(&decision.number);
    s.log(What::DecisionEnd(decision.number));
}

/// An error about the second of two paths: bit 31 of the component says so.
pub(crate) fn about_second(e: Error) -> Error {
    Error { component: e.component | saker_types::error::SECOND_PATH, ..e }
}

/// Where clients find an inode: at its entry, or at its home if the entry is a reference.
pub(crate) fn public_locator(entry: Locator, row: &saker_types::Inode) -> Locator {
    match row.home_slot {
        Some(slot) => home_locator(row.attr.id, slot),
        None => entry,
    }
}
