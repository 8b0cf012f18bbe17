//! Subtrees that this client holds (Cudele section 3.3, docs/decisions/0063). To change something under a
//! policy that is decoupled, or that keeps others out, a client must hold the subtree.
//!
//! Under a policy that is not decoupled nobody need think of this: a request that needs a hold takes
//! it (`net::request`), and what was not used for [`IDLE`] is released. A hold of a decoupled subtree
//! is its namespace's: [`Cluster::hold`] takes it, [`Cluster::release`] ends it, and nothing here does
//! so by itself.
//!
//! Holds are renewed in the background. Whether one is still held, and in which epoch, is
//! [`SubtreeHolds::epoch`].

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_lock::Mutex as AsyncMutex;
use bytes::Bytes;
use futures_util::future::join_all;
use saker_runtime::time::{self, Time, sleep};
use saker_runtime::{rand, thread};
use saker_types::error::SECOND_PATH;
use saker_types::policy::PolicyId;
use saker_types::wire::{
    At, Empty, HoldReply, HoldReq, IdRange, Op, ProvisionReq, ReleaseReq, RenewHoldsReply,
    RenewHoldsReq,
};
use saker_types::{Errno, Error, InodeId, NodeId, Result, limits};

use crate::Caller;
use crate::core::Core;
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
/// Names of a held subtree that are remembered.
const PLACES_MAX: usize = 8;

// A renewal may take a period, too.
const _: () = assert!(
    2 * PERIOD.as_nanos() + LOOK.as_nanos() + RELEASE_MAX.as_nanos()
        < limits::HOLD_LEASE.as_nanos()
);

/// What this client holds.
pub(crate) struct SubtreeHolds {
    /// This client in words, for those whom it keeps out.
    who: String,
    /// Drawn when it is needed.
    holder: OnceLock<u64>,
    held: Mutex<BTreeMap<u64, Held>>,
    is_any: AtomicBool,
    /// One hold is taken or released at a time.
    changing: AsyncMutex<()>,
}

/// A hold, by the number of its policy.
struct Held {
    holder: u64,
    /// `None`: the coordinator was asked, and what it has answered is not known.
    epoch: Option<u64>,
    /// When the answer came.
    since: Time,
    /// When something was changed there, or was about to be.
    used: Time,
    /// Where the subtree begins, as requests have named it: an anchor and names from there.
    places: Vec<(InodeId, Vec<Bytes>)>,
}

impl Held {
    fn new(holder: u64, now: Time) -> Held {
        Held { holder, epoch: None, since: now, used: now, places: Vec::new() }
    }

    fn covers(&self, policy: u64, at: &At) -> bool {
        let begins = |(anchor, names): &(InodeId, Vec<Bytes>)| {
            *anchor == at.anchor.id && at.path.starts_with(names)
        };
        at.anchor.policy == policy || self.places.iter().any(begins)
    }
}

impl SubtreeHolds {
    /// None yet. `who` is this client in words, for messages: host, process, mount point.
    pub(crate) fn new(who: String) -> SubtreeHolds {
        SubtreeHolds {
            who,
            holder: OnceLock::new(),
            held: Mutex::default(),
            is_any: AtomicBool::new(false),
            changing: AsyncMutex::new(()),
        }
    }

    /// The number by which this client holds subtrees.
    pub(crate) fn holder(&self) -> u64 {
        *self.holder.get_or_init(|| rand::u64().max(1))
    }

    /// The same, for requests ([`Ctx::holder`](saker_types::wire::Ctx::holder)): 0 while it holds none.
    pub(crate) fn holder_if_any(&self) -> u64 {
        if self.is_any() { self.holder() } else { 0 }
    }

    /// The epoch in which this client holds the subtree of a policy; `None` if it does not, as far as it
    /// knows: the coordinator may have ended it a moment ago.
    #[cfg_attr(not(test), expect(dead_code, reason = "no namespace is decoupled yet"))]
    pub(crate) fn epoch(&self, policy: u64) -> Option<u64> {
        self.lock().get(&policy).and_then(|held| held.epoch)
    }

    /// A merge has begun this epoch of the hold; 0: it has ended the hold.
    #[cfg_attr(not(test), expect(dead_code, reason = "no namespace is decoupled yet"))]
    pub(crate) fn merged(&self, policy: u64, epoch: u64) {
        match epoch {
            0 => self.forget(policy),
            _ => self.change(|held| {
                held.get_mut(&policy).into_iter().for_each(|held| held.epoch = Some(epoch));
            }),
        }
    }

    /// Does it hold anything?
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// A change is about to be sent to this place.
    pub(crate) fn uses(&self, at: &At) {
        let now = time::now();
        for (policy, held) in self.lock().iter_mut() {
            if held.covers(*policy, at) {
                held.used = now;
            }
        }
    }

    /// A request to this place was refused for want of a hold: the subtree begins at a component of the
    /// path, or at or above its anchor.
    pub(crate) fn learn_place(&self, policy: u64, at: &At, component: Option<u32>) {
        let names = component.map_or(0, |component| (component & !SECOND_PATH) as usize + 1);
        let Some(names) = at.path.get(..names) else { return };
        let mut all = self.lock();
        if let Some(held) = all.get_mut(&policy).filter(|held| !held.covers(policy, at)) {
            held.places.truncate(PLACES_MAX - 1);
            held.places.insert(0, (at.anchor.id, names.to_vec()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<u64, Held>)) {
        let mut held = self.lock();
        change(&mut held);
        self.is_any.store(!held.is_empty(), Ordering::Release);
    }

    fn forget(&self, policy: u64) {
        self.change(|held| _ = held.remove(&policy));
    }

    /// Is it known that it was taken after this time?
    fn is_newer(&self, policy: u64, than: Time) -> bool {
        self.lock().get(&policy).is_some_and(|held| held.epoch.is_some() && held.since >= than)
    }

    /// The coordinator is about to be asked: from now on it may be held.
    fn asks(&self, policy: u64, holder: u64) {
        let now = time::now();
        self.change(|held| {
            let held = held.entry(policy).or_insert_with(|| Held::new(holder, now));
            (held.holder, held.used) = (holder, now);
        });
    }

    fn answered(&self, policy: u64, holder: u64, answer: &Result<HoldReply>) {
        match answer {
            Ok(reply) => self.change(|held| {
                let now = time::now();
                let held = held.entry(policy).or_insert_with(|| Held::new(holder, now));
                (held.epoch, held.since) = (Some(reply.policy.last_epoch), now);
            }),
            Err(error) if is_answer(error) => self.forget(policy),
            Err(_) => {}
        }
    }

    /// What must be renewed, by holder.
    fn by_holder(&self) -> BTreeMap<u64, Vec<u64>> {
        let mut all: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (policy, held) in self.lock().iter().filter(|(_, held)| held.epoch.is_some()) {
            all.entry(held.holder).or_default().push(*policy);
        }
        all
    }

    /// Those of subtrees that are not decoupled, in which nothing was changed for so long.
    fn unused_for(&self, idle: Duration) -> Vec<u64> {
        let now = time::now();
        let is_unused = |(policy, held): &(&u64, &Held)| {
            now - held.used >= idle && !PolicyId(**policy).is_decoupled()
        };
        self.lock().iter().filter(is_unused).map(|(policy, _)| *policy).collect()
    }

    /// The coordinator said, when it was asked at `asked`, that these are not held any more.
    fn ended(&self, ended: &[u64], asked: Time) {
        let ended: BTreeSet<u64> = ended.iter().copied().collect();
        self.change(|held| {
            held.retain(|policy, held| !ended.contains(policy) || held.since > asked);
        });
    }
}

/// Has the coordinator refused? Else the outcome is unknown.
fn is_answer(error: &Error) -> bool {
    [Errno::EBUSY, Errno::ESTALE, Errno::EINVAL, Errno::ENOENT, Errno::EROFS]
        .contains(&error.errno())
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl Cluster {
    /// Takes the hold of a policy's subtree, or goes on with it; the answer has the policy with its hold
    /// and the directory. It is kept until it is released.
    ///
    /// # Errors
    /// EBUSY, with who it is: another client holds it. ESTALE: the policy is not in force any more. EINVAL:
    /// nobody holds subtrees under such a policy. ETIMEDOUT.
    #[cfg_attr(not(test), expect(dead_code, reason = "no namespace is decoupled yet"))]
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
        let who = self.holds.who.clone();
        let mut request = HoldReq { policy, holder, who, ..HoldReq::default() };
        self.holds.asks(policy, holder);
        let (caller, to) = (Caller::root(), To::Coordinator);
        let answer = self.ask_until(&caller, Op::Hold, to, &mut request, deadline).await;
        self.holds.answered(policy, holder, &answer);
        answer
    }

    /// Inode numbers for what is made in a subtree that this client holds: so many, from 1 to
    /// [`ALLOCATED_INODES_MAX`](saker_types::policy::ALLOCATED_INODES_MAX).
    ///
    /// # Errors
    /// ESTALE: it does not hold it any more. ENOSPC: the hold has too many. ETIMEDOUT.
    #[cfg_attr(not(test), expect(dead_code, reason = "no namespace is decoupled yet"))]
    pub(crate) async fn provision(&self, policy: u64, count: u64) -> Result<IdRange> {
        let holder = self.holds.lock().get(&policy).map_or(self.holds.holder(), |held| held.holder);
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
    #[cfg_attr(not(test), expect(dead_code, reason = "no namespace is decoupled yet"))]
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

    /// Releases what was not used for so long, and is not of a decoupled subtree. What fails ends with its
    /// lease, or the next time.
    pub(crate) fn release_unused(&self, idle: Duration) -> Boxed<'_, ()> {
        Box::pin(async move {
            // Whoever takes one now uses it.
            let Some(_changing) = self.holds.changing.try_lock() else { return };
            let deadline = time::now() + RELEASE_MAX;
            let unused = self.holds.unused_for(idle).into_iter();
            join_all(unused.map(|policy| async move {
                if let Err(error) = self.give_back(policy, deadline).await {
                    tracing::debug!(
                        "the subtree of policy {policy:#x} is not released yet: {error}"
                    );
                }
            }))
            .await;
        })
    }

    /// Tells the coordinator that this client still lives.
    async fn renew_holds(&self) {
        let all = self.holds.by_holder().into_iter();
        let renew = all.map(|(holder, policies)| async move {
            let (asked, to) = (time::now(), NodeId::Coordinator);
            let message = RenewHoldsReq { holder, policies };
            let call =
                self.call(to, Op::RenewHolds, &message, Bytes::new(), PERIOD, asked + PERIOD);
            let reply = call.await?;
            let RenewHoldsReply { ended } = decode(Op::RenewHolds, reply.body)?;
            for policy in &ended {
                tracing::warn!("the subtree of policy {policy:#x} is not held any more");
            }
            self.holds.ended(&ended, asked);
            Ok::<(), Error>(())
        });
        for renewed in join_all(renew).await {
            // It is tried again in the next period.
            _ = renewed.inspect_err(|error| tracing::warn!("holds were not renewed: {error}"));
        }
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
        // What was written and not sent yet will be a change.
        if !self.inodes.any_dirty() {
            self.cluster.release_unused(IDLE).await;
        }
    }
}

#[cfg(test)]
mod tests;
