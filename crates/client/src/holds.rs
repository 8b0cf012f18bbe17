//! Subtrees that this client holds (Cudele section 3.3, docs/decisions/0063). To change something under a
//! policy that is decoupled, or that keeps others out, a client must hold the subtree.
//!
//! Under a policy that is not decoupled nobody need think of this: a request that needs a hold takes
//! it (`net::request`), and what was not used for [`IDLE`] is released. A hold of a decoupled subtree
//! is its namespace's: [`Cluster::hold`] takes it, [`Cluster::release`] ends it, and nothing here does
//! so by itself.
//!
//! Holds are renewed in the background. Whether one is still held, and in which epoch, is
//! [`SubtreeHolds::epoch`](table::SubtreeHolds::epoch).

pub(crate) mod table;

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use saker_runtime::thread;
use saker_runtime::time::{self, Time, sleep};
use saker_types::wire::{
    Empty, HoldReply, HoldReq, IdRange, Op, ProvisionReq, ReleaseReq, RenewHoldsReply,
    RenewHoldsReq,
};
use saker_types::{Errno, Error, NodeId, Result, limits};

use crate::Caller;
use crate::core::Core;
use crate::holds::table::is_answer;
use crate::net::cluster::{ATTEMPT_MAX, Cluster, decode};
use crate::net::request::To;

/// Holds are renewed this often.
const PERIOD: Duration = Duration::from_nanos(limits::HOLD_LEASE.as_nanos() as u64 / 3);
/// It is looked this often for what is due.
const LOOK: Duration = Duration::from_millis(500);
/// A hold that is not of a decoupled subtree is released when nothing was changed there for so long.
const IDLE: Duration = Duration::from_secs(5);
/// So long an answer to that is waited for.
const RELEASE_MAX: Duration = Duration::from_secs(1);

// A renewal may take a period, too.
const _: () = assert!(
    2 * PERIOD.as_nanos() + LOOK.as_nanos() + RELEASE_MAX.as_nanos()
        < limits::HOLD_LEASE.as_nanos()
);

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl Cluster {
    /// Takes the hold of a policy's subtree, or goes on with it; the answer has the policy with its hold
    /// and the directory. It is kept until it is released.
    ///
    /// # Errors
    /// EBUSY, with who it is: another client holds it. ESTALE: the policy is not in force any more. EINVAL:
    /// nobody holds subtrees under such a policy. ETIMEDOUT.
    pub(crate) async fn hold(&self, policy: u64) -> Result<HoldReply> {
        self.hold_as(policy, self.holds.holder()).await
    }

    /// The same, as the holder whose number is in a journal.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn hold_as(&self, policy: u64, holder: u64) -> Result<HoldReply> {
        let _changing = self.holds.changing.lock().await;
        self.take(policy, holder, self.deadline()).await
    }

    /// The same, of a subtree whose holder has saved what it did in the cluster; also while that lives, for
    /// the superuser.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn hold_by_force(&self, who: &Caller, policy: u64) -> Result<HoldReply> {
        let _changing = self.holds.changing.lock().await;
        let (deadline, holder) = (self.deadline(), self.holds.holder());
        self.take_as(who, policy, holder, true, deadline).await
    }

    /// For a request that was sent at `asked`, and refused for want of the hold.
    ///
    /// # Errors
    /// As [`Cluster::hold`].
    pub(crate) fn hold_for(
        &self,
        policy: u64,
        asked: Time,
        deadline: Time,
    ) -> Boxed<'_, Result<()>> {
        // Boxed: taking a hold is a request, too.
        Box::pin(async move {
            let _changing = self.holds.changing.lock().await;
            if self.holds.is_newer(policy, asked) {
                return Ok(());
            }
            self.take(policy, self.holds.holder(), deadline).await.map(drop)
        })
    }

    async fn take(&self, policy: u64, holder: u64, deadline: Time) -> Result<HoldReply> {
        self.take_as(&Caller::root(), policy, holder, false, deadline).await
    }

    async fn take_as(
        &self,
        caller: &Caller,
        policy: u64,
        holder: u64,
        force: bool,
        deadline: Time,
    ) -> Result<HoldReply> {
        let who = self.holds.who.clone();
        let mut request = HoldReq { policy, holder, who, force, ..HoldReq::default() };
        self.holds.asks(policy, holder);
        let to = To::Coordinator;
        let answer = self.ask_until(caller, Op::Hold, to, &mut request, deadline).await;
        self.holds.answered(policy, holder, &answer);
        answer
    }

    /// Inode numbers for what is made in a subtree that this client holds: so many, from 1 to
    /// [`ALLOCATED_INODES_MAX`](saker_types::policy::ALLOCATED_INODES_MAX).
    ///
    /// # Errors
    /// ESTALE: it does not hold it any more. ENOSPC: the hold has too many. ETIMEDOUT.
    pub(crate) async fn provision(&self, policy: u64, count: u64) -> Result<IdRange> {
        let holder = self.holds.holder_of(policy);
        let message = ProvisionReq { policy, holder, count };
        let (to, deadline) = (NodeId::Coordinator, self.deadline());
        // What an attempt was given whose answer is lost is not used.
        let call = self.call(to, Op::Provision, &message, Bytes::new(), ATTEMPT_MAX, deadline);
        decode(Op::Provision, call.await?.body)
    }

    /// Ends the hold of a policy's subtree. What was not merged does not become part of the namespace.
    /// Costs nothing if it is not held.
    ///
    /// # Errors
    /// ETIMEDOUT: then it may be held until its lease ends.
    pub(crate) async fn release(&self, policy: u64) -> Result<()> {
        let _changing = self.holds.changing.lock().await;
        self.give_back(policy, self.deadline()).await
    }

    async fn give_back(&self, policy: u64, deadline: Time) -> Result<()> {
        let known = self.holds.lock().get(&policy).map(|held| (held.epoch, held.holder));
        let epoch = match known {
            None => return Ok(()),
            Some((Some(epoch), _)) => epoch,
            Some((None, holder)) => match self.take(policy, holder, deadline).await {
                Ok(reply) => reply.policy.last_epoch,
                Err(error) if is_answer(&error) => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        let mut request = ReleaseReq { policy, epoch, ..ReleaseReq::default() };
        let (caller, to) = (Caller::root(), To::Coordinator);
        let answer = self.ask_until(&caller, Op::Release, to, &mut request, deadline).await;
        match answer.map(|Empty {}| ()) {
            Err(error) if !is_answer(&error) => Err(error),
            // It has ended, by this or before.
            _ => {
                self.holds.forget(policy);
                Ok(())
            }
        }
    }

    /// Releases all but those of decoupled subtrees. What fails ends with its lease.
    pub(crate) fn release_all(&self) -> Boxed<'_, ()> {
        Box::pin(async move {
            let _changing = self.holds.changing.lock().await;
            self.give_back_unused(Duration::ZERO).await;
        })
    }

    /// The same of those that were not used for so long. What fails is tried again.
    async fn release_unused(&self, idle: Duration) {
        // Whoever takes one now uses it.
        if let Some(_changing) = self.holds.changing.try_lock() {
            self.give_back_unused(idle).await;
        }
    }

    async fn give_back_unused(&self, idle: Duration) {
        let deadline = time::now() + RELEASE_MAX;
        let unused = self.holds.unused_for(idle).into_iter();
        join_all(unused.map(|policy| async move {
            if let Err(error) = self.give_back(policy, deadline).await {
                tracing::debug!("the subtree of policy {policy:#x} is not released yet: {error}");
            }
        }))
        .await;
    }

    /// Ends the hold that stands in the way of a request, as the error says, if its holder is taken for dead.
    ///
    /// # Errors
    /// EBUSY: it is not; with who it is, if the coordinator says so.
    pub(crate) fn end_lapsed(&self, error: &Error) -> Boxed<'_, Result<()>> {
        let (policy, busy) = (error.policy, error.clone());
        Box::pin(async move {
            let mut request = ReleaseReq { policy, ..ReleaseReq::default() };
            let (caller, to, deadline) =
                (Caller::root(), To::Coordinator, time::now() + RELEASE_MAX);
            let answer = self.ask_until(&caller, Op::Release, to, &mut request, deadline).await;
            match answer.map(|Empty {}| ()) {
                Err(error) if error.errno() == Errno::EBUSY => Err(error),
                // It has ended meanwhile.
                Err(error) if is_answer(&error) => Ok(()),
                Err(_) => Err(busy),
                Ok(()) => Ok(()),
            }
        })
    }

    /// Does the coordinator still have this client as the holder of a policy's subtree? Asked anew.
    ///
    /// # Errors
    /// ETIMEDOUT: it does not say.
    pub(crate) async fn still_holds(&self, policy: u64) -> Result<bool> {
        let holder = self.holds.holder_of(policy);
        let deadline = self.deadline();
        let ended = self.renew(holder, vec![policy], ATTEMPT_MAX, deadline).await?;
        Ok(ended.is_empty())
    }

    /// Renews what is held by a number; tells what is not held any more.
    async fn renew(
        &self,
        holder: u64,
        policies: Vec<u64>,
        attempt_max: Duration,
        deadline: Time,
    ) -> Result<Vec<u64>> {
        let (asked, asked_awake_or_not) = (time::now(), time::awake_or_not());
        let (to, message) = (NodeId::Coordinator, RenewHoldsReq { holder, policies });
        let call = self.call(to, Op::RenewHolds, &message, Bytes::new(), attempt_max, deadline);
        let RenewHoldsReply { ended } = decode(Op::RenewHolds, call.await?.body)?;
        self.holds.ended(&ended, asked);
        self.holds.renewed(&message.policies, asked_awake_or_not);
        Ok(ended)
    }

    /// Tells the coordinator that this client still lives.
    async fn renew_holds(&self) {
        let all = self.holds.by_holder().into_iter();
        let renew = all.map(|(holder, policies)| async move {
            let ended = self.renew(holder, policies, PERIOD, time::now() + PERIOD).await?;
            for policy in &ended {
                tracing::warn!("the subtree of policy {policy:#x} is not held any more");
            }
            Ok::<(), Error>(())
        });
        for renewed in join_all(renew).await {
            // It is tried again in the next period.
            _ = renewed.inspect_err(|error| tracing::warn!("holds were not renewed: {error}"));
        }
    }
}

/// Of a client of private servers: who holds their subtree, for as long as it may write to stores.
pub(crate) struct HeldBy {
    pub(crate) upstream: Weak<Core>,
    pub(crate) policy: u64,
    /// Others go on with the subtree when its lease has ended.
    pub(crate) lapses: bool,
}

impl HeldBy {
    /// Until when the subtree is held for sure: asks, if that is not so any more.
    ///
    /// # Errors
    /// ESTALE: it is not held. ETIMEDOUT: the coordinator does not say.
    pub(crate) async fn until(&self) -> Result<Time> {
        let lost =
            || Error::new(Errno::ESTALE).with_text("this client has lost its hold of the subtree");
        let upstream = self.upstream.upgrade().ok_or_else(lost)?;
        let cluster = &upstream.cluster;
        loop {
            let lease = cluster.holds.lease(self.policy).ok_or_else(lost)?;
            let now = time::awake_or_not();
            match self.lapses {
                false => return Ok(Time::MAX),
                true if now < lease => return Ok(time::now() + (lease - now)),
                true => _ = cluster.still_holds(self.policy).await?,
            }
        }
    }
}

/// When the last [`Fs`](crate::Fs) of a client is dropped, what it holds is released.
pub(crate) struct LastUser(pub(crate) Arc<Core>);

impl Drop for LastUser {
    fn drop(&mut self) {
        let core = self.0.clone();
        if !core.cluster.holds.is_any() || core.cluster.net.is_driven() {
            return;
        }
        // A thread of its own: this one may be running a future of this client.
        let release = move || {
            core.cluster.net.block_on(core.cluster.release_all());
        };
        // What is not released ends with its lease.
        _ = thread::spawn("saker-release", release).map(|thread| thread.join());
    }
}

/// Starts the thread that looks after holds until the client is gone.
pub(crate) fn start(core: &Arc<Core>) -> std::io::Result<()> {
    let weak = Arc::downgrade(core);
    thread::spawn("saker-holds", move || run(&weak)).map(|_| ())
}

fn run(weak: &Weak<Core>) {
    let mut next = time::now() + PERIOD;
    loop {
        sleep(LOOK);
        let Some(core) = weak.upgrade() else { return };
        if core.cluster.holds.is_any() {
            core.cluster.net.block_on(core.look_after_holds(&mut next));
        }
    }
}

/// The same as a task.
pub(crate) async fn keep(core: &Core) {
    let mut next = time::now() + PERIOD;
    loop {
        core.cluster.net.sleep_until(time::now() + LOOK).await;
        if core.cluster.holds.is_any() {
            core.look_after_holds(&mut next).await;
        }
    }
}

impl Core {
    /// What is due now; holds are renewed at `next`.
    async fn look_after_holds(&self, next: &mut Time) {
        let now = time::now();
        if now >= *next {
            *next = now + PERIOD;
            self.cluster.renew_holds().await;
        }
        if self.inodes.any_dirty() {
            for inode in self.inodes.all().into_iter().filter(|inode| inode.is_dirty()) {
                self.cluster.holds.will_use(inode.with(|s| s.loc().policy));
            }
        }
        self.cluster.release_unused(IDLE).await;
    }
}

#[cfg(test)]
mod tests;
