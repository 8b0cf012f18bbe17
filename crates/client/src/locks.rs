//! Locks on files. They are kept by a shard and never cached; here is only what this client
//! holds, so that it can be renewed, and ended with a file.
//!
//! A lock is also a point at which data is exchanged: who ends one has written out what it
//! wrote, who gets one sees what the one before had written.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join, join_all};
use saker_runtime::time::{self, Time, sleep};
use saker_runtime::{rand, thread};
use saker_types::placement::Slot;
use saker_types::wire::*;
use saker_types::{Errno, InodeId, NodeId, Result, ShardNo, limits};

use crate::Caller;
use crate::core::{Core, decode};
use crate::data::file::{File, Handle};
use crate::data::open_inode::{OpenInode, lost_lock};
use crate::net::request::To;

/// A client that holds locks says so this often.
const PERIOD: Duration = Duration::from_secs(3);
/// The thread looks this often whether the client is gone.
const LOOK: Duration = Duration::from_millis(500);

// Each renewal may take a period, too.
const _: () = assert!(PERIOD.as_nanos() as u64 * 3 < limits::LOCK_LEASE_NS);

/// A lock on a range of a file, or on a whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Who holds it: a number of a process (fcntl) or open file (flock) in this client.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte; the largest number for all that comes.
    pub end: u64,
    /// Nobody else may hold one.
    pub exclusive: bool,
    /// Of flock(2), which knows nothing of those of fcntl(2), nor they of it.
    pub flock: bool,
    /// Process, for F_GETLK.
    pub pid: u32,
}

impl Lock {
    /// All that an owner may hold on a file.
    pub fn whole(owner: u64, flock: bool) -> Lock {
        Lock { owner, start: 0, end: u64::MAX, exclusive: false, flock, pid: 0 }
    }
}

/// Who holds a lock on what in this client: file, flock(2) or not, owner.
type Holding = (InodeId, bool, u64);

/// What is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It was asked for, as the request of this number; the answer is not here.
    Asked(u64),
    /// It was granted, as the grant of this number.
    Held(u64),
    /// It was held, and the shard is being told, by the request of this number, that some or all of it
    /// ends. A shard that knows of none has not lost it.
    Ending(u64),
    /// It should have ended, but the shard could not be told.
    Leaving,
}

/// The locks that this client holds.
#[derive(Default)]
pub(crate) struct Locks(Mutex<State>);

#[derive(Default)]
struct State {
    /// This client as shards know it; 0: it has not locked anything yet.
    holder: u64,
    held: BTreeMap<Holding, Standing>,
    /// Until when each shard keeps what is held there, at least, by [`time::awake_or_not`].
    leases: BTreeMap<ShardNo, Time>,
    /// Requests and grants so far.
    numbers: u64,
    /// The thread that renews them runs.
    renewed: bool,
}

impl Locks {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holder(&self) -> u64 {
        let mut state = self.lock();
        if state.holder == 0 {
            state.holder = rand::u64().max(1);
        }
        state.holder
    }

    /// A lock is about to be asked for: it may be granted and the answer lost. What stands now, and
    /// what stood before.
    fn ask(&self, holding: Holding) -> (Standing, Option<Standing>) {
        let mut state = self.lock();
        state.numbers += 1;
        let asked = Standing::Asked(state.numbers);
        (asked, state.held.insert(holding, asked))
    }

    fn granted(&self, holding: Holding) {
        let mut state = self.lock();
        state.numbers += 1;
        let standing = Standing::Held(state.numbers);
        state.held.insert(holding, standing);
    }

    /// It was not granted. Another thread of the same owner may have asked since, and got it.
    fn refused(&self, holding: Holding, asked: Standing, before: Option<Standing>) {
        let mut state = self.lock();
        if state.held.get(&holding) == Some(&asked) {
            match before {
                Some(standing) => state.held.insert(holding, standing),
                None => state.held.remove(&holding),
            };
        }
    }

    /// Some or all of it is about to end. What stands now, and what stood before.
    fn ending(&self, holding: Holding) -> Option<[Standing; 2]> {
        let mut state = self.lock();
        let number = state.numbers + 1;
        let standing = state.held.get_mut(&holding)?;
        let before = std::mem::replace(standing, Standing::Ending(number));
        state.numbers = number;
        Some([Standing::Ending(number), before])
    }

    /// The shard has answered that, or has not. Another thread of the same owner may have asked since.
    fn ended(&self, holding: Holding, [ending, before]: [Standing; 2], holds: Option<bool>) {
        let mut state = self.lock();
        if state.held.get(&holding) != Some(&ending) {
            return;
        }
        state.numbers += 1;
        let standing = match holds {
            Some(false) => None,
            Some(true) => Some(Standing::Held(state.numbers)),
            None if before == Standing::Leaving => Some(before),
            // Whether it is held is not known any more.
            None => Some(Standing::Asked(state.numbers)),
        };
        match standing {
            Some(standing) => state.held.insert(holding, standing),
            None => state.held.remove(&holding),
        };
    }

    fn leaves(&self, holding: Holding) {
        self.lock().held.insert(holding, Standing::Leaving);
    }

    fn holds(&self, holding: &Holding) -> bool {
        self.lock().held.contains_key(holding)
    }

    /// Is a lock held on this file?
    fn holds_any(&self, id: InodeId) -> bool {
        let state = self.lock();
        let mut of_file = state.held.range((id, false, 0)..=(id, true, u64::MAX));
        of_file.any(|(_, standing)| matches!(standing, Standing::Held(_) | Standing::Ending(_)))
    }

    /// The shard has answered what it was asked at `asked`: it keeps all that it knows for a lease.
    fn heard(&self, shard: ShardNo, asked: Time) {
        let until = asked + Duration::from_nanos(limits::LOCK_LEASE_NS);
        let mut state = self.lock();
        let known = state.leases.entry(shard).or_insert(until);
        *known = until.max(*known);
    }

    /// As after a long silence.
    #[cfg(test)]
    pub(crate) fn forget_leases(&self) {
        self.lock().leases.clear();
    }

    /// Until when the shard keeps what is held there.
    fn until(&self, shard: ShardNo) -> Time {
        self.lock().leases.get(&shard).copied().unwrap_or(Time::ZERO)
    }
}

impl File {
    /// What stands in the way of a lock, if anything does.
    ///
    /// # Errors
    /// ETIMEDOUT when the locks' shard does not answer.
    pub async fn test_lock(&self, lock: &Lock) -> Result<Option<Lock>> {
        let Ok(Handle { core, inode, .. }) = self.handle_or(Errno::ENOLCK) else { return Ok(None) };
        let mut request = core.lock_request(inode.id, lock);
        let who = Caller::root();
        let reply: LockReply = core.ask(&who, Op::Getlk, To::Owner, &mut request).await?;
        Ok(reply.conflict.map(|found| Lock {
            owner: found.owner,
            start: found.start,
            end: found.end,
            exclusive: found.exclusive,
            flock: found.flock,
            pid: found.pid,
        }))
    }

    /// Sets a lock in place of what its owner holds there; waits at most this long (seconds are
    /// too long) for others to end theirs.
    ///
    /// # Errors
    /// EAGAIN when others still hold theirs; ENOLCK when the file has too many locks, or its data comes from no store;
    /// EIO after a lock that was set through this was lost.
    pub async fn set_lock(&self, lock: &Lock, wait: Duration) -> Result<()> {
        let handle = self.handle_or(Errno::ENOLCK)?;
        let (core, id) = (&handle.core, handle.inode.id);
        core.renew_from_now_on()?;
        // A shard that knows of a new lock on the file does not say that it has forgotten the old ones.
        core.lease(id).await?;
        handle.still_holds().await?;
        let is_new = handle.locks((lock.flock, lock.owner));
        let holding = (id, lock.flock, lock.owner);
        let (asked, before) = core.locks.ask(holding);
        let mut request = core.lock_request(id, lock);
        request.wait_ms = wait.as_millis() as u32;
        let (shard, asked_at) = (core.lock_shard(id), time::awake_or_not());
        match core.ask::<_, SetLockReply>(&Caller::root(), Op::Setlk, To::Owner, &mut request).await
        {
            Ok(_) => {
                core.locks.heard(shard, asked_at);
                core.locks.granted(holding);
                handle.see_others().await
            }
            Err(error) => {
                if error.errno() == Errno::EAGAIN || error.errno() == Errno::ENOLCK {
                    // flock(2) has given up the old lock for the new one.
                    let gave_up = lock.flock && error.errno() == Errno::EAGAIN;
                    core.locks.refused(holding, asked, before.filter(|_| !gave_up));
                    if is_new || gave_up {
                        handle.unlocks((lock.flock, lock.owner));
                    }
                }
                Err(error)
            }
        }
    }

    /// Ends what the lock's owner holds in its range; what was written is written out before.
    ///
    /// # Errors
    /// Those of writing; EIO after a lock that was set through this was lost; ETIMEDOUT when the locks' shard does not
    /// answer.
    pub async fn unlock(&self, lock: &Lock) -> Result<()> {
        let Ok(handle) = self.handle_or(Errno::ENOLCK) else { return Ok(()) };
        let written = match handle.still_holds().await {
            Ok(()) => handle.flush_if_dirty().await,
            lost => lost,
        };
        let core = &handle.core;
        let holds = core.unlock(handle.inode.id, lock, core.deadline()).await?;
        if written.is_ok() && !holds {
            handle.unlocks((lock.flock, lock.owner));
        }
        written
    }

    /// Ends all that an owner holds on the file, as its close does. Costs nothing if that is
    /// nothing. When the shard cannot be told, it is told later.
    pub async fn unlock_all(&self, owner: u64, flock: bool) {
        let Ok(handle) = self.handle_or(Errno::ENOLCK) else { return };
        let (core, id) = (&handle.core, handle.inode.id);
        let holding = (id, flock, owner);
        handle.unlocks((flock, owner));
        if !core.locks.holds(&holding) {
            return;
        }
        if let Err(error) = core.unlock(id, &Lock::whole(owner, flock), core.deadline()).await {
            tracing::warn!("a lock on inode {id:#x} could not be ended yet: {error}");
            core.locks.leaves(holding);
        }
    }
}

impl Core {
    fn lock_request(&self, id: InodeId, lock: &Lock) -> LockReq {
        let lock = FileLock {
            holder: self.locks.holder(),
            owner: lock.owner,
            start: lock.start,
            end: lock.end,
            exclusive: lock.exclusive,
            flock: lock.flock,
            pid: lock.pid,
        };
        LockReq { at: At::locks(id), lock, ..LockReq::default() }
    }

    /// Does its owner still hold something on the file?
    async fn unlock(&self, id: InodeId, lock: &Lock, deadline: Time) -> Result<bool> {
        let mut request = self.lock_request(id, lock);
        request.unlock = true;
        let holding = (id, lock.flock, lock.owner);
        let ending = self.locks.ending(holding);
        let (who, to) = (Caller::root(), To::Owner);
        let reply = self.ask_until(&who, Op::Setlk, to, &mut request, deadline).await;
        let holds = reply.map(|SetLockReply { holds }| holds);
        if let Some(standings) = ending {
            self.locks.ended(holding, standings, holds.as_ref().ok().copied());
        }
        holds
    }

    /// The shard that keeps a file's locks.
    fn lock_shard(&self, id: InodeId) -> ShardNo {
        self.routes().map.shard_of_slot(Slot::of_locks(id))
    }

    /// Until when the locks that are held on this file are this client's for sure: asks, if that is not so any more.
    /// For ever if there are none, also if they turn out to be lost.
    ///
    /// # Errors
    /// ETIMEDOUT when their shard does not answer.
    pub(crate) async fn lease(&self, id: InodeId) -> Result<Time> {
        let deadline = self.deadline();
        while self.locks.holds_any(id) {
            let (shard, now) = (self.lock_shard(id), time::awake_or_not());
            let until = self.locks.until(shard);
            if now < until {
                return Ok(time::now() + (until - now));
            }
            let held = self.held_by_shard().remove(&shard).unwrap_or_default();
            self.renew_held(shard, &held, deadline).await?;
        }
        Ok(Time::MAX)
    }

    /// Until when what was written to a file at so many losses of locks may be sent.
    ///
    /// # Errors
    /// EIO: no more. ETIMEDOUT: nobody says.
    pub(crate) async fn may_send(&self, inode: Weak<OpenInode>, losses: u64) -> Result<Time> {
        // Nobody has it open any more: all its locks were ended.
        let Some(inode) = inode.upgrade() else { return Ok(Time::MAX) };
        let until = self.lease(inode.id).await?;
        match inode.with(|s| s.losses() == losses) {
            true => Ok(until),
            false => Err(lost_lock()),
        }
    }

    /// Starts the thread that renews locks, at the first one.
    fn renew_from_now_on(self: &Arc<Core>) -> Result<()> {
        let mut state = self.locks.lock();
        if !state.renewed {
            let weak = Arc::downgrade(self);
            thread::spawn("saker-locks", move || run(&weak)).map_err(|e| {
                saker_types::Error::new(Errno::ENOLCK).with_text(format!("no thread: {e}"))
            })?;
            state.renewed = true;
        }
        Ok(())
    }

    /// Shards, and what they must hold for us.
    fn held_by_shard(&self) -> BTreeMap<ShardNo, Vec<(Holding, Standing)>> {
        let map = self.routes().map.clone();
        let mut by_shard: BTreeMap<ShardNo, Vec<_>> = BTreeMap::new();
        for (holding, standing) in &self.locks.lock().held {
            let shard = map.shard_of_slot(Slot::of_locks(holding.0));
            by_shard.entry(shard).or_default().push((*holding, *standing));
        }
        by_shard
    }

    /// All at once, and no longer than a period: a shard that does not answer must not keep the
    /// others from hearing of us in time.
    pub(crate) async fn renew_locks(&self) {
        let deadline = time::now() + PERIOD;
        let renew = self.held_by_shard().into_iter().map(|(shard, held)| async move {
            // A failure is tried again in the next period.
            let leaving = held.iter().filter(|(_, standing)| *standing == Standing::Leaving);
            let leave = leaving.map(|((id, flock, owner), _)| async move {
                _ = self.unlock(*id, &Lock::whole(*owner, *flock), deadline).await;
            });
            let renewed = async {
                if let Err(error) = self.renew_held(shard, &held, deadline).await {
                    tracing::warn!("file locks were not renewed: {error}");
                }
            };
            join(renewed, join_all(leave)).await;
        });
        join_all(renew).await;
    }

    async fn renew_held(
        &self,
        shard: ShardNo,
        held: &[(Holding, Standing)],
        deadline: Time,
    ) -> Result<()> {
        let asked = time::awake_or_not();
        let ids = self.renew_at(shard, false, deadline).await?;
        self.compare(held, &ids);
        self.locks.heard(shard, asked);
        Ok(())
    }

    async fn renew_at(&self, shard: ShardNo, end: bool, deadline: Time) -> Result<Vec<InodeId>> {
        let message = RenewLocksReq { holder: self.locks.holder(), end };
        let to = NodeId::Shard(shard);
        let reply = self.call(to, Op::RenewLocks, &message, Bytes::new(), PERIOD, deadline).await?;
        Ok(decode::<RenewLocksReply>(Op::RenewLocks, reply.body)?.ids)
    }

    /// Locks that were held before the shard was asked, and that it does not know, are lost: we
    /// were not heard of for too long, and others may hold them.
    fn compare(&self, held: &[(Holding, Standing)], ids: &[InodeId]) {
        let mut state = self.locks.lock();
        for (holding, standing) in held {
            let lost = matches!(standing, Standing::Held(_)) && !ids.contains(&holding.0);
            // It may have been ended since, and set again.
            if lost && state.held.get(holding) == Some(standing) {
                tracing::error!(
                    "the lock on inode {:#x} was lost: the cluster had not heard of \
                     this client for {:?}",
                    holding.0,
                    Duration::from_nanos(limits::LOCK_LEASE_NS)
                );
                // Known to be lost before it is forgotten that it was held: who asks between gets no yes.
                if let Some(inode) = self.inodes.get(holding.0) {
                    inode.with(|s| s.lose_lock((holding.1, holding.2)));
                }
                state.held.remove(holding);
            }
        }
    }

    /// Ends all locks of this client. One attempt: where it fails, the lease ends them.
    pub(crate) async fn end_locks(&self) {
        let shards = self.held_by_shard().into_keys();
        let deadline = time::now() + PERIOD;
        join_all(shards.map(|shard| self.renew_at(shard, true, deadline))).await;
        let mut state = self.locks.lock();
        state.held.clear();
        // What is still on its way for the old one ends with its lease.
        state.holder = 0;
    }
}

fn run(weak: &Weak<Core>) {
    let mut next = time::now() + PERIOD;
    loop {
        sleep(LOOK);
        let Some(core) = weak.upgrade() else { return };
        if time::now() >= next {
            next = time::now() + PERIOD;
            core.net.block_on(core.renew_locks());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_forgets_nothing_that_another_thread_got_meanwhile() {
        let (locks, holding) = (Locks::default(), (1, false, 7));
        let (first, before) = locks.ask(holding);
        locks.ask(holding);
        locks.granted(holding);
        locks.refused(holding, first, before);
        assert!(locks.holds(&holding));
        let (again, before) = locks.ask(holding);
        locks.refused(holding, again, before);
        assert!(locks.holds(&holding), "as before");
        let other = (2, true, 7);
        assert_eq!(locks.ending(other), None, "nothing is held");
        let (asked, before) = locks.ask(other);
        locks.refused(other, asked, before);
        assert!(!locks.holds(&other));
    }

    #[test]
    fn what_ends_is_not_lost() {
        let (locks, holding) = (Locks::default(), (1, false, 7));
        let standing = || locks.lock().held.get(&holding).copied();
        for (holds, after) in [
            (Some(false), None),
            (Some(true), Some(Standing::Held(3))),
            // It may have ended, and is not missed.
            (None, Some(Standing::Asked(3))),
        ] {
            locks.lock().numbers = 0;
            locks.granted(holding);
            let ending = locks.ending(holding).unwrap();
            assert_eq!(standing(), Some(Standing::Ending(2)));
            assert!(locks.holds_any(1), "some of it may stay");
            locks.ended(holding, ending, holds);
            assert_eq!(standing(), after);
        }
        // Told late, by another thread of the same owner.
        locks.granted(holding);
        let ending = locks.ending(holding).unwrap();
        locks.granted(holding);
        let held = standing();
        locks.ended(holding, ending, Some(false));
        assert_eq!(standing(), held);
    }
}
