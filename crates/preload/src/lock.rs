//! Locks of the positions of windows.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::sys::{self, syscall};
use crate::{fds, process};

/// One lock for each of so many descriptors.
const LOCKS: usize = 64;
/// How often one is tried. Who holds it for longer reads from a slow disk, or is interrupted by a
/// signal in whose handler we are.
const TRIES: u32 = 100_000;

/// Number of the process that holds a lock; 0: none.
type Locks = [AtomicI32; LOCKS];

/// Of descriptors whose position other processes share. Others have locks of this process: workers
/// that read files of their own must not wait for each other.
static SHARED: AtomicPtr<Locks> = AtomicPtr::new(null_mut());
static OWN: Locks = [const { AtomicI32::new(0) }; LOCKS];

/// Before fork(2): makes the locks of what the child will share.
pub fn before_fork() {
    if !fds::share() || !SHARED.load(Ordering::Acquire).is_null() {
        return;
    }
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    let bytes = size_of::<Locks>();
    // SAFETY: new memory, where the kernel likes.
    let Ok(new) = (unsafe { sys::mmap(null_mut(), bytes, prot, flags, -1, 0) }) else {
        return;
    };
    if SHARED.compare_exchange(null_mut(), new.cast(), Ordering::AcqRel, Ordering::Acquire).is_err()
    {
        // SAFETY: nobody else has seen it.
        unsafe { libc::syscall(libc::SYS_munmap, new, bytes) };
    }
}

/// In a child: the thread that held one is not there.
pub fn after_fork() {
    OWN.iter().for_each(|lock| lock.store(0, Ordering::Release));
}

/// While it lives, nobody else who reads the descriptor moves its position: else a read that was
/// clipped to a file's end could begin behind it, in the next file of the partition.
pub struct Held {
    lock: &'static AtomicI32,
    pid: i32,
}

/// Takes the lock of a descriptor; `None` if it is not to be had.
pub fn hold(fd: c_int) -> Option<Held> {
    let shared = if fds::is_shared(fd) { SHARED.load(Ordering::Acquire) } else { null_mut() };
    // SAFETY: zeros are valid, and it is never unmapped.
    let locks = unsafe { shared.as_ref() }.unwrap_or(&OWN);
    let (lock, pid) = (&locks[fd as usize % LOCKS], process::noted());
    let take = |from| lock.compare_exchange(from, pid, Ordering::Acquire, Ordering::Relaxed);
    for n in 0..TRIES {
        if take(0).is_ok() {
            return Some(Held { lock, pid });
        }
        if n % 64 == 63 {
            // SAFETY: touches no memory.
            unsafe { libc::sched_yield() };
        }
    }
    // It may have been killed.
    let holder = lock.load(Ordering::Relaxed);
    // SAFETY: sends no signal.
    let is_gone = holder > 0
        && unsafe { syscall!(libc::SYS_kill, holder, 0) }.is_err_and(|errno| errno == libc::ESRCH);
    (is_gone && take(holder).is_ok()).then_some(Held { lock, pid })
}

impl Drop for Held {
    fn drop(&mut self) {
        // Not that of the parent, if fork(2) was called by a signal handler in between.
        let _ = self.lock.compare_exchange(self.pid, 0, Ordering::Release, Ordering::Relaxed);
    }
}
