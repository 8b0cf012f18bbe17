//! What a client holds, and when something was changed there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_lock::Mutex as AsyncMutex;
use bytes::Bytes;
use saker_runtime::rand;
use saker_runtime::time::{self, Time};
use saker_types::error::SECOND_PATH;
use saker_types::policy::PolicyId;
use saker_types::wire::{At, HoldReply};
use saker_types::{Errno, Error, InodeId, Result, limits};

/// How often it is asked whether somebody else's hold can be taken over.
const ASK_PAUSE: Duration = Duration::from_secs(1);
/// Names of a held subtree that are remembered.
pub(super) const PLACES_MAX: usize = 8;

/// What this client holds.
pub(crate) struct SubtreeHolds {
    /// This client in words, for those whom it keeps out.
    pub(super) who: String,
    /// Drawn when it is needed.
    holder: OnceLock<u64>,
    /// An earlier process may have held something by that number.
    goes_on: AtomicBool,
    held: Mutex<BTreeMap<u64, Held>>,
    /// When the holds of others were asked for.
    asked: Mutex<BTreeMap<u64, Time>>,
    is_any: AtomicBool,
    /// One hold is taken or released at a time.
    pub(super) changing: AsyncMutex<()>,
}

/// A hold, by the number of its policy.
pub(super) struct Held {
    pub(super) holder: u64,
    /// `None`: the coordinator was asked, and what it has answered is not known.
    pub(super) epoch: Option<u64>,
    /// When the answer came.
    since: Time,
    /// When the question was sent.
    asked: Time,
    /// When the last question was sent that was answered with yes, also while the machine was suspended
    /// ([`time::awake_or_not`]).
    pub(super) heard: Option<Time>,
    /// When something was changed there, or was about to be.
    pub(super) used: Time,
    /// Where the subtree begins, as requests have named it: an anchor and names from there.
    pub(super) places: Vec<(InodeId, Vec<Bytes>)>,
}

impl Held {
    fn new(holder: u64, now: Time) -> Held {
        let asked = time::awake_or_not();
        let places = Vec::new();
        Held { holder, epoch: None, since: now, asked, heard: None, used: now, places }
    }

    pub(super) fn covers(&self, policy: u64, at: &At) -> bool {
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
            goes_on: AtomicBool::new(false),
            held: Mutex::default(),
            asked: Mutex::default(),
            is_any: AtomicBool::new(false),
            changing: AsyncMutex::new(()),
        }
    }

    /// The number by which this client holds subtrees.
    pub(crate) fn holder(&self) -> u64 {
        *self.holder.get_or_init(|| rand::u64().max(1))
    }

    /// The number by which the subtree of a policy is held, or would be.
    pub(super) fn holder_of(&self, policy: u64) -> u64 {
        let held = self.lock().get(&policy).map(|held| held.holder);
        held.unwrap_or_else(|| self.holder())
    }

    /// The number is this one, as a journal directory says: what an earlier process has held with it, this one
    /// may hold. To be told before the first hold.
    pub(crate) fn go_on_as(&self, holder: u64) {
        _ = self.holder.set(holder);
        self.goes_on.store(true, Ordering::Release);
    }

    /// The number, for requests ([`Ctx::holder`](saker_types::wire::Ctx::holder)): 0 while it holds none.
    pub(crate) fn holder_if_any(&self) -> u64 {
        if self.is_any() || self.goes_on.load(Ordering::Acquire) { self.holder() } else { 0 }
    }

    /// As after the end of the process: what is held ends with its lease.
    pub(crate) fn forget_all(&self) {
        self.change(BTreeMap::clear);
    }

    /// The epoch in which this client holds the subtree of a policy; `None` if it does not, as far as it
    /// knows: the coordinator may have ended it a moment ago.
    pub(crate) fn epoch(&self, policy: u64) -> Option<u64> {
        self.lock().get(&policy).and_then(|held| held.epoch)
    }

    /// A merge has begun this epoch of the hold; 0: it has ended the hold.
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

    /// Is it time to ask whether somebody else's hold can be taken over?
    pub(crate) fn may_ask(&self, policy: u64) -> bool {
        let now = time::now();
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.retain(|_, at| now - *at < ASK_PAUSE);
        match asked.contains_key(&policy) {
            true => false,
            false => asked.insert(policy, now).is_none(),
        }
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

    /// What is under this policy is to be changed soon.
    pub(super) fn will_use(&self, policy: u64) {
        self.lock().get_mut(&policy).into_iter().for_each(|held| held.used = time::now());
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

    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut BTreeMap<u64, Held>)) {
        let mut held = self.lock();
        change(&mut held);
        self.is_any.store(!held.is_empty(), Ordering::Release);
    }

    /// It is not held any more, or not to be renewed.
    pub(crate) fn forget(&self, policy: u64) {
        self.change(|held| _ = held.remove(&policy));
    }

    /// Is it known that it was taken after this time?
    pub(super) fn is_newer(&self, policy: u64, than: Time) -> bool {
        self.lock().get(&policy).is_some_and(|held| held.epoch.is_some() && held.since >= than)
    }

    /// The coordinator is about to be asked: from now on it may be held.
    pub(super) fn asks(&self, policy: u64, holder: u64) {
        let now = time::now();
        self.change(|held| {
            let held = held.entry(policy).or_insert_with(|| Held::new(holder, now));
            (held.holder, held.used, held.asked) = (holder, now, time::awake_or_not());
        });
    }

    pub(super) fn answered(&self, policy: u64, holder: u64, answer: &Result<HoldReply>) {
        match answer {
            Ok(reply) => self.change(|held| {
                let now = time::now();
                let held = held.entry(policy).or_insert_with(|| Held::new(holder, now));
                (held.epoch, held.since) = (Some(reply.policy.last_epoch), now);
                held.heard = Some(held.asked);
            }),
            Err(error) if is_answer(error) => self.forget(policy),
            Err(_) => {}
        }
    }

    /// What must be renewed, by holder.
    pub(super) fn by_holder(&self) -> BTreeMap<u64, Vec<u64>> {
        let mut all: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (policy, held) in self.lock().iter().filter(|(_, held)| held.epoch.is_some()) {
            all.entry(held.holder).or_default().push(*policy);
        }
        all
    }

    /// Those of subtrees that are not decoupled, in which nothing was changed for so long.
    pub(super) fn unused_for(&self, idle: Duration) -> Vec<u64> {
        let now = time::now();
        let is_unused = |(policy, held): &(&u64, &Held)| {
            now - held.used >= idle && !PolicyId(**policy).is_decoupled()
        };
        self.lock().iter().filter(is_unused).map(|(policy, _)| *policy).collect()
    }

    /// Until when nobody takes the subtree of a policy for want of renewals, on the clock of
    /// [`time::awake_or_not`]; `None`: it is not held.
    pub(super) fn lease(&self, policy: u64) -> Option<Time> {
        let held = self.lock();
        let held = held.get(&policy).filter(|held| held.epoch.is_some())?;
        held.heard.map(|heard| heard + limits::HOLD_LEASE)
    }

    /// The coordinator said, when it was asked at `asked`, that these are held.
    pub(super) fn renewed(&self, policies: &[u64], asked: Time) {
        let mut held = self.lock();
        for policy in policies {
            if let Some(held) = held.get_mut(policy) {
                held.heard = held.heard.max(Some(asked));
            }
        }
    }

    /// The coordinator said, when it was asked at `asked`, that these are not held any more.
    pub(super) fn ended(&self, ended: &[u64], asked: Time) {
        let ended: BTreeSet<u64> = ended.iter().copied().collect();
        self.change(|held| {
            held.retain(|policy, held| !ended.contains(policy) || held.since > asked);
        });
    }
}

/// Has the coordinator refused? Else the outcome is unknown.
pub(super) fn is_answer(error: &Error) -> bool {
    [Errno::EBUSY, Errno::ESTALE, Errno::EINVAL, Errno::ENOENT, Errno::EROFS]
        .contains(&error.errno())
}
