//! The driver of two-phase commit (docs/protocol.md, rules 10 to 13), one machine for all: an MNode
//! that moves or links files, and the coordinator, which invalidates between prepare and commit.
//!
//! Presumed abort: until the decision is in the journal nothing needs to be remembered, and
//! whoever asks about an unknown transaction hears "aborted". The decision, the driver's own
//! rows and the caller's result are one record of the journal, because [`Transaction::commit`]
//! and the answer happen in one step; no message leaves before that record is durable.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use saker_runtime::failpoint;
use saker_types::change::{Decision, Participant, What};
use saker_types::inode::{Inode, Locator};
use saker_types::wire::{
    At, Ctx, DecideReq, Empty, Intent, Op, OutcomeReply, PrepareReq, TxnOutcome, Vote,
};
use saker_types::{ClusterMap, Errno, Error, InodeId, Key, NodeId, TxnId};

use crate::hub::Hub;

/// How long a participant may take to vote.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause after a participant refused a decision (a row that it cannot read).
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// Transactions of a driver.
#[derive(Default)]
pub struct Ledger {
    /// In progress, not decided.
    pub driving: BTreeMap<u64, ()>,
    /// Decided to commit, until all participants have acknowledged; in the journal, too.
    pub decisions: BTreeMap<u64, Decision>,
}

impl Ledger {
    /// Answer to a participant in doubt.
    pub fn outcome(&self, number: u64) -> OutcomeReply {
        let outcome = if self.decisions.contains_key(&number) {
            TxnOutcome::Committed
        } else if self.driving.contains_key(&number) {
            TxnOutcome::Undecided
        } else {
            TxnOutcome::Aborted
        };
        OutcomeReply { outcome: outcome.into() }
    }
}

/// A node that drives transactions.
pub trait Driver: 'static {
    /// Its hub.
    fn hub(&self) -> &Hub;
    /// Its own id.
    fn node(&self) -> NodeId;
    /// The newest map it knows.
    fn map(&self) -> &Arc<ClusterMap>;
    /// Its transactions.
    fn ledger(&mut self) -> &mut Ledger;
    /// Adds to the batch's journal record.
    fn log(&mut self, what: What);
    /// A number never used before.
    fn new_number(&mut self) -> Result<u64, Error>;
    /// The transaction is over here: its own entry, if any, is unlocked.
    fn released(&mut self, txn: TxnId, own: Option<&Key>);
}

/// A transaction until it is committed or aborted; dropped before, it is aborted.
pub struct Transaction<D: Driver> {
    driver: Rc<RefCell<D>>,
    hub: Hub,
    id: TxnId,
    /// Entry locked at the driver, in memory only: a crash before the decision aborts anyway.
    own: Option<Key>,
    participants: Vec<Participant>,
    ended: bool,
}

/// Begins a transaction; it is in progress from now on.
pub fn begin<D: Driver>(driver: &mut D) -> Result<TxnId, Error> {
    let number = driver.new_number()?;
    driver.ledger().driving.insert(number, ());
    failpoint!("txn.begun");
    Ok(TxnId { driver: driver.node(), number })
}

impl<D: Driver> Transaction<D> {
    /// Goes on with one that was begun, and whose own entry, if any, is locked already.
    pub fn new(driver: Rc<RefCell<D>>, id: TxnId, own: Option<Key>) -> Transaction<D> {
        let hub = driver.borrow().hub().clone();
        Transaction { driver, hub, id, own, participants: Vec::new(), ended: false }
    }

    /// First phase at the owner of what `request.at` is about; a no aborts the transaction.
    pub async fn prepare(&mut self, request: PrepareReq) -> Result<Vote, Error> {
        let (to, who) = {
            let driver = self.driver.borrow();
            let who = Participant::Slot(driver.map().route(&request.at));
            (who.node(driver.map()), who)
        };
        let (driver, number) = (self.id.driver.to_u32(), self.id.number);
        let request = PrepareReq { driver, number, ..request };
        if !self.participants.contains(&who) {
            self.participants.push(who);
        }
        let vote = self.hub.ask::<Vote>(to, Op::Prepare, 0, &request, PREPARE_TIMEOUT).await;
        failpoint!("txn.voted");
        vote.inspect_err(|_| self.abort())
    }

    /// First phase at several nodes at once, which vote on the same; a no aborts the transaction.
    pub async fn prepare_at(&mut self, to: &[NodeId], request: PrepareReq) -> Result<(), Error> {
        let (driver, number) = (self.id.driver.to_u32(), self.id.number);
        let request = PrepareReq { driver, number, ..request };
        self.participants.extend(to.iter().map(|to| Participant::Node(*to)));
        let ask =
            |to: &NodeId| self.hub.ask::<Vote>(*to, Op::Prepare, 0, &request, PREPARE_TIMEOUT);
        let votes = try_join_all(to.iter().map(ask)).await;
        votes.map(drop).inspect_err(|_| self.abort())
    }

    /// First phase of a change of a hard-linked inode's link count; gives the attribute row.
    pub async fn prepare_nlink(
        &mut self,
        ctx: &Ctx,
        id: InodeId,
        slot: u32,
        delta: i32,
    ) -> Result<Inode, Error> {
        let request = PrepareReq {
            ctx: ctx.clone(),
            at: At::handle(Locator::home(id, slot)),
            intent: Intent::Nlink.into(),
            delta,
            ..PrepareReq::default()
        };
        let vote = self.prepare(request).await?;
        vote.row.ok_or_else(|| self.refuse(Errno::EPROTO.into()))
    }

    /// The row of a name that goes from a directory: prepares what becomes of the link count, if
    /// the row is a reference to be dropped (`delta` -1) or one that only the inode's owner may
    /// move, whom the home knows.
    pub async fn prepare_home(
        &mut self,
        ctx: &Ctx,
        row: &Inode,
        delta: i32,
        only_owner: bool,
    ) -> Result<(), Error> {
        let Some(slot) = row.home_slot.filter(|_| delta != 0 || only_owner) else { return Ok(()) };
        let home = self.prepare_nlink(ctx, row.attr.id, slot, delta).await?;
        if only_owner && home.attr.uid != ctx.cred.uid {
            return Err(self.refuse(Errno::EPERM.into()));
        }
        Ok(())
    }

    /// Aborts because of an error.
    pub fn refuse(&mut self, error: Error) -> Error {
        self.abort();
        error
    }

    /// Nothing happens; participants hear it now, or when they ask.
    pub fn abort(&mut self) {
        failpoint!("txn.aborted");
        let request = self.decision(false);
        let mut nodes = Vec::new();
        for who in std::mem::take(&mut self.participants) {
            let to = who.node(self.driver.borrow().map());
            if nodes.contains(&to) {
                continue;
            }
            nodes.push(to);
            let hub = self.hub.clone();
            self.hub.spawn(async move {
                // Lost on the way, the participant asks and hears the same.
                let _ = hub.ask::<Empty>(to, Op::Decide, 0, &request, PREPARE_TIMEOUT).await;
            });
        }
        self.end();
    }

    /// Decides to commit: `apply` changes the driver's own rows and makes the answer, which must
    /// be returned to the caller without another await.
    pub fn commit(
        mut self,
        apply: impl FnOnce(&mut D) -> Result<Bytes, Error>,
    ) -> Result<Bytes, Error> {
        let applied = apply(&mut self.driver.borrow_mut());
        let reply = applied.inspect_err(|_| self.abort())?;
        let participants = self.participants.iter().map(|who| who.to_u32()).collect();
        let decision = Decision { number: self.id.number, participants };
        {
            let mut driver = self.driver.borrow_mut();
            driver.log(What::Decision(decision.clone()));
            driver.ledger().decisions.insert(decision.number, decision.clone());
        }
        failpoint!("txn.decided");
        self.end();
        deliver(&self.driver, decision);
        Ok(reply)
    }

    fn decision(&self, commit: bool) -> DecideReq {
        DecideReq { driver: self.id.driver.to_u32(), number: self.id.number, commit }
    }

    fn end(&mut self) {
        self.ended = true;
        let mut driver = self.driver.borrow_mut();
        driver.ledger().driving.remove(&self.id.number);
        driver.released(self.id, self.own.as_ref());
    }
}

impl<D: Driver> Drop for Transaction<D> {
    fn drop(&mut self) {
        if !self.ended {
            self.abort();
        }
    }
}

/// Tells participants of a decision until all have acknowledged; also after a restart.
pub fn deliver<D: Driver>(driver: &Rc<RefCell<D>>, decision: Decision) {
    let hub = driver.borrow().hub().clone();
    let driver = driver.clone();
    hub.clone().spawn(async move {
        let from = driver.borrow().node().to_u32();
        let request = DecideReq { driver: from, number: decision.number, commit: true };
        let mut told = Vec::new();
        for who in decision.participants.iter().filter_map(|raw| Participant::from_u32(*raw)) {
            // A slot in which a row is prepared does not move: where it is now, it was then, or
            // nothing is left to be told.
            let to = who.node(driver.borrow().map());
            if told.contains(&to) {
                continue;
            }
            told.push(to);
            // Until then the decision is kept: the participant may ask.
            while let Err(e) =
                hub.ask_until::<Empty>(to, Op::Decide, 0, &request, Bytes::new()).await
            {
                let number = decision.number;
                tracing::error!("{to} cannot apply transaction {number:#x}: {e}");
                hub.sleep(REFUSED_PAUSE).await;
            }
            failpoint!("txn.told");
        }
        let mut driver = driver.borrow_mut();
        driver.ledger().decisions.remove(&decision.number);
        driver.log(What::DecisionEnd(decision.number));
        failpoint!("txn.over");
    });
}

#[cfg(test)]
mod tests;
