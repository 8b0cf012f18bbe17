//! When the next round of background work comes, and what the last one has left.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use saker_runtime::thread::JoinHandle;
use saker_runtime::time::Time;

use crate::wait::locked;

/// A round comes at least so often.
const TICK: Duration = Duration::from_secs(1);

/// State of the background work.
#[derive(Default)]
pub(super) struct Rounds {
    wake: Mutex<Wake>,
    woken: Condvar,
    pub checkpoint: Mutex<LastCheckpoint>,
    /// The thread that takes a checkpoint because too much is dirty.
    pub turn: Mutex<()>,
    pub thread: Mutex<Option<JoinHandle<()>>>,
    /// The last failure that was logged.
    pub logged: Mutex<String>,
}

#[derive(Default)]
struct Wake {
    wanted: bool,
    stop: bool,
}

#[derive(Default)]
pub(super) struct LastCheckpoint {
    pub at: Time,
}

impl Rounds {
    /// There is something to do.
    pub fn wake(&self) {
        let mut wake = locked(&self.wake);
        if !wake.wanted {
            wake.wanted = true;
            self.woken.notify_one();
        }
    }

    /// Waits for the next round; false when there is none.
    pub fn next_round(&self) -> bool {
        let mut wake = locked(&self.wake);
        if !wake.wanted && !wake.stop {
            let waited = self.woken.wait_timeout(wake, TICK);
            wake = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        wake.wanted = false;
        !wake.stop
    }

    /// There is none after this one.
    pub fn end(&self) {
        locked(&self.wake).stop = true;
        self.woken.notify_all();
    }
}
