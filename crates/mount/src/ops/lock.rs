//! GETLK, SETLK, SETLKW, INTERRUPT: locks of flock(2) and fcntl(2).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use saker_client::Lock;
use saker_fuse::abi::{F_RDLCK, F_UNLCK, F_WRLCK, InterruptIn, LK_FLOCK, LkIn, LkOut};
use saker_fuse::{LONG_WAITS_MAX, Reply, Request};
use saker_types::{Errno, Error, Result};

use crate::ops::OpenFile;
use crate::service::MountService;

/// How long the shard lets a request wait; an interrupt is heeded in between.
const WAIT: Duration = Duration::from_millis(500);
/// Most that wait at a time.
const WAITERS_MAX: usize = LONG_WAITS_MAX;
/// Interrupts kept that came before their request was seen to wait.
const EARLY_MAX: usize = 256;
/// The kernel's "to the end".
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Waiters for locks, by the number of the request.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<State>);

#[derive(Default)]
struct State {
    interrupted: BTreeMap<u64, Arc<AtomicBool>>,
    early: VecDeque<u64>,
    ended: bool,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody begins to wait; what says that it is interrupted.
    fn begin(&self, unique: u64) -> Result<Arc<AtomicBool>> {
        let mut state = self.lock();
        if state.interrupted.len() >= WAITERS_MAX {
            return Err(Error::new(Errno::ENOLCK).with_text("too many wait for locks"));
        }
        let early = state.early.contains(&unique) || state.ended;
        let flag = Arc::new(AtomicBool::new(early));
        state.interrupted.insert(unique, flag.clone());
        Ok(flag)
    }

    fn done(&self, unique: u64) {
        self.lock().interrupted.remove(&unique);
    }

    fn interrupt(&self, unique: u64) {
        let mut state = self.lock();
        match state.interrupted.get(&unique) {
            Some(flag) => flag.store(true, Ordering::Relaxed),
            None => {
                state.early.push_back(unique);
                if state.early.len() > EARLY_MAX {
                    state.early.pop_front();
                }
            }
        }
    }

    /// The mount ends, and nobody waits on.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.interrupted.values().for_each(|flag| flag.store(true, Ordering::Relaxed));
    }
}

/// Somebody waits.
struct Turn<'a> {
    unique: u64,
    of: &'a Waiters,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.of.done(self.unique);
    }
}

pub(crate) fn lock_of(input: &LkIn) -> Result<Lock> {
    let end = if input.end >= OFFSET_MAX { u64::MAX } else { input.end };
    if input.start > end || input.kind > F_UNLCK {
        return Err(Errno::EINVAL.into());
    }
    Ok(Lock {
        owner: input.owner,
        start: input.start,
        end,
        exclusive: input.kind == F_WRLCK,
        flock: input.lk_flags & LK_FLOCK != 0,
        pid: input.pid,
    })
}

impl MountService {
    pub(crate) async fn getlk(&self, request: &Request) -> Result<Reply> {
        let input: LkIn = request.body().fixed()?;
        let open = self.files.get(input.fh)?;
        let found = open.file.test_lock(&lock_of(&input)?).await?;
        Ok(Reply::of(&match found {
            None => LkOut { kind: F_UNLCK, ..LkOut::default() },
            Some(lock) => LkOut {
                start: lock.start,
                end: lock.end.min(OFFSET_MAX),
                kind: if lock.exclusive { F_WRLCK } else { F_RDLCK },
                pid: lock.pid,
            },
        }))
    }

    pub(crate) async fn setlk(&self, request: &Request, wait: bool) -> Result<Reply> {
        let input: LkIn = request.body().fixed()?;
        let open = self.files.get(input.fh)?;
        let lock = lock_of(&input)?;
        if input.kind == F_UNLCK {
            open.file.unlock(&lock).await?;
            return Ok(Reply::done());
        }
        if !lock.flock {
            open.locks(lock.owner);
            self.locked.store(true, Ordering::Relaxed);
        }
        match open.file.set_lock(&lock, Duration::ZERO).await {
            Err(error) if wait && error.errno() == Errno::EAGAIN => {
                self.wait_for(request.header.unique, &open, &lock).await?;
            }
            other => other?,
        }
        self.notifier.drop_pages(open.node).await;
        Ok(Reply::done())
    }

    /// Waits for a lock until it is there or the caller is interrupted.
    async fn wait_for(&self, unique: u64, open: &OpenFile, lock: &Lock) -> Result<()> {
        let interrupted = self.waiters.begin(unique)?;
        let _turn = Turn { unique, of: &self.waiters };
        loop {
            match open.file.set_lock(lock, WAIT).await {
                Err(error) if error.errno() != Errno::EAGAIN => return Err(error),
                Err(_) if interrupted.load(Ordering::Relaxed) => return Err(Errno::EINTR.into()),
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
    }

    pub(crate) async fn interrupt(&self, request: &Request) -> Result<Reply> {
        let input: InterruptIn = request.body().fixed()?;
        self.waiters.interrupt(input.unique);
        Ok(Reply::none())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_interrupt_is_heard_before_during_and_at_the_end() {
        let waiters = Waiters::default();
        waiters.interrupt(1);
        assert!(waiters.begin(1).unwrap().load(Ordering::Relaxed), "it came first");
        let second = waiters.begin(2).unwrap();
        assert!(!second.load(Ordering::Relaxed));
        waiters.interrupt(2);
        assert!(second.load(Ordering::Relaxed));
        let third = waiters.begin(3).unwrap();
        waiters.end();
        assert!(third.load(Ordering::Relaxed));
        assert!(waiters.begin(4).unwrap().load(Ordering::Relaxed));
    }

    #[test]
    fn the_number_that_wait_is_bounded() {
        let waiters = Waiters::default();
        let all: Vec<_> = (0..WAITERS_MAX as u64).map(|n| waiters.begin(n).unwrap()).collect();
        assert_eq!(waiters.begin(9_999).unwrap_err().errno(), Errno::ENOLCK);
        waiters.done(0);
        assert!(waiters.begin(9_999).is_ok());
        drop(all);
    }
}
