//! FUSE over io_uring (`fs/fuse/dev_uring.c`, from Linux 6.14 on): one system call brings answers
//! to the kernel and requests from it.
//!
//! The kernel has a queue for each possible CPU, and puts a request on that of the caller's. An
//! entry of a queue is a place for one request: REGISTER hands it to the kernel, which completes
//! the command when a request is there; COMMIT_AND_FETCH hands it back with the answer. FORGET,
//! INTERRUPT, notifications and INIT still go through `/dev/fuse`.
//!
//! A request that finds no entry free waits for one of *its* queue, so whoever waits for another
//! caller must not be able to take them all: [`Shape::depth`].

mod entry;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use io_uring::squeue::Entry128;
use io_uring::{EnterFlags, IoUring, cqueue, opcode, types};
use rustix::event::EventfdFlags;
use rustix::thread::CpuSet;
use saker_types::Errno;
use zerocopy::IntoBytes;

use super::{Device, MAX_WRITE_BYTES};
use crate::abi::{RING_COMMIT_AND_FETCH, RING_REGISTER, RingCmd};
use crate::reply::Reply;
use entry::Memory;

pub(crate) use entry::RingEntry;
#[cfg(test)]
pub(crate) use entry::tests::entry_of;

/// Answers that go to the kernel in one call, at most.
const SUBMISSIONS: u32 = 256;
/// Of a payload this much stays in memory.
const SMALL_BYTES: usize = 16 << 10;
/// Bytes beyond that in all payloads of a ring that stay in memory for the next large requests.
const LARGE_BYTES_MAX: usize = 16 << 20;
/// Bytes of answers that do not wait for others: whoever gets them has work to do. (Not fewer: a caller that is
/// woken runs at once, and what else there is to do is done in pieces.)
const ANSWERS_BYTES_MAX: usize = 1 << 20;
/// Command about no queue at all: see [`Ring::give_up`].
const NO_QUEUE: u16 = u16::MAX;

/// How much there is of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Entries of each queue. More than callers that may wait for others
    /// ([`LONG_WAITS_MAX`]), so that there is always one for the others.
    pub depth: usize,
    /// Room for a request's data or an answer's, in bytes.
    pub payload_bytes: usize,
}

/// Callers that a [`Dispatch`](super::Dispatch) may let wait for other callers at a time.
pub const LONG_WAITS_MAX: usize = 1024;

impl Default for Shape {
    fn default() -> Shape {
        Shape { depth: LONG_WAITS_MAX + 64, payload_bytes: MAX_WRITE_BYTES }
    }
}

/// The queues that one thread serves.
pub(super) struct Ring {
    // Dropped first: after that the kernel uses the memory no more.
    uring: IoUring<Entry128>,
    /// Written to when something has come: with DEFER_TASKRUN the ring itself cannot be polled.
    signal: OwnedFd,
    memory: Arc<Memory>,
    device: Device,
    /// Each has `shape.depth` entries, one after another.
    queues: Vec<u16>,
    shape: Shape,
    states: Vec<State>,
    /// Entries of more than `SMALL_BYTES` in memory, and those bytes.
    large: Vec<usize>,
    large_bytes: usize,
    /// Bytes of the answers that the kernel has not seen.
    unsent_bytes: usize,
    arrived: Vec<RingEntry>,
    /// The last refusal, an errno.
    failed: Option<i32>,
}

/// One entry's.
#[derive(Clone, Copy, Default)]
struct State {
    /// It is not the kernel's.
    here: bool,
    /// Bytes of its payload that may be in memory.
    reached: usize,
}

impl Ring {
    /// A ring for `queues` of the connection of `device`. Nothing is asked of the kernel yet.
    ///
    /// # Errors
    /// As io_uring_setup(2) and mmap(2): forbidden, too old, no memory.
    pub(super) fn new(device: Device, queues: Vec<u16>, shape: Shape) -> io::Result<Ring> {
        let entries = queues.len() * shape.depth;
        let completions = u32::try_from(entries + 1).unwrap_or(u32::MAX);
        // DEFER_TASKRUN: the kernel writes requests only while this thread is in `submit`. That
        // saves interruptions, and `give_back` relies on it.
        let uring = IoUring::<Entry128, cqueue::Entry>::builder()
            .setup_cqsize(completions.next_power_of_two().max(2 * SUBMISSIONS))
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_r_disabled()
            .build(SUBMISSIONS)?;
        let memory = Arc::new(Memory::reserve(entries, shape.payload_bytes)?);
        Ok(Ring {
            uring,
            signal: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            memory,
            device,
            queues,
            shape,
            states: vec![State::default(); entries],
            large: Vec::new(),
            large_bytes: 0,
            unsent_bytes: 0,
            arrived: Vec::new(),
            failed: None,
        })
    }

    /// Written to when a turn is due.
    pub(super) fn signal(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    /// Queues that it has.
    pub(super) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Hands all entries to the kernel, which uses rings when each queue has one. From the thread
    /// that will do all the rest, after INIT.
    ///
    /// # Errors
    /// What the kernel says to the last one that it refuses.
    pub(super) fn register(&mut self) -> io::Result<()> {
        self.uring.submitter().register_enable_rings()?;
        self.uring.submitter().register_eventfd(self.signal.as_raw_fd())?;
        let iovecs: Vec<_> = (0..self.memory.entries()).map(|index| self.iovecs(index)).collect();
        for (index, iovec) in iovecs.iter().enumerate() {
            let queue = self.queues[index / self.shape.depth];
            self.push(register(&self.device, queue, iovec).user_data(index as u64));
        }
        self.submit();
        self.reap();
        self.failed.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    /// The calling thread runs where its queues' callers do from now on: a request then needs no
    /// other CPU.
    pub(super) fn stay_near(&self) {
        let mut cpus = CpuSet::new();
        for queue in self.queues.iter().map(|&queue| usize::from(queue)) {
            if queue < CpuSet::MAX_CPU {
                cpus.set(queue);
            }
        }
        if let Err(error) = rustix::thread::sched_setaffinity(None, &cpus) {
            tracing::debug!("a thread runs anywhere: {error}");
        }
    }

    /// Header and payload.
    fn iovecs(&self, index: usize) -> [libc::iovec; 2] {
        let iovec = |start: *mut u8, iov_len| libc::iovec { iov_base: start.cast(), iov_len };
        [
            iovec(self.memory.header(index), crate::abi::ring::HEADER_BYTES),
            iovec(self.memory.payload(index), self.memory.payload_bytes()),
        ]
    }

    /// Makes the kernel go on without rings: one entry that it refuses does it, as long as there
    /// is a queue without any.
    pub(super) fn give_up(&mut self) {
        let none = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
        self.push(register(&self.device, NO_QUEUE, &none).user_data(u64::MAX));
        self.submit();
        self.reap();
    }

    /// The entry's request is answered. It goes to the kernel with the next turn, or at once if there is
    /// much data to copy: the copies of many answers would keep the first of those who wait for them.
    pub(super) fn answer(&mut self, mut entry: RingEntry, reply: &Reply, unique: u64) {
        let mut len = reply.head.len() + reply.data.len();
        let parts = [&reply.head[..], &reply.data[..]];
        if entry.answer(reply.header(unique), parts).is_none() {
            tracing::error!("an answer of {len} bytes has no room");
            len = 0;
            let refused = Reply::error(Errno::EIO).header(unique);
            entry.answer(refused, [b"", b""]).expect("there is always room for nothing");
        }
        let index = entry.index();
        self.reach(index, len);
        self.states[index].here = false;
        let about = RingCmd {
            commit_id: entry.commit_id(),
            qid: self.queues[index / self.shape.depth],
            ..RingCmd::default()
        };
        drop(entry);
        self.push(command(&self.device, RING_COMMIT_AND_FETCH, &about).user_data(index as u64));
        self.unsent_bytes += len;
        if self.unsent_bytes >= ANSWERS_BYTES_MAX {
            self.submit();
        }
    }

    /// There are answers that the kernel has not seen, or requests that were not taken.
    pub(super) fn is_due(&mut self) -> bool {
        let (arrived, uring) = (&self.arrived, &mut self.uring);
        !arrived.is_empty() || !uring.submission().is_empty() || !uring.completion().is_empty()
    }

    /// Sends the answers, and takes the requests that have come.
    pub(super) fn turn(&mut self) -> Vec<RingEntry> {
        loop {
            // What comes meanwhile is seen below.
            self.uring.completion().disable_eventfd();
            self.submit();
            self.reap();
            self.uring.completion().enable_eventfd();
            fence(Ordering::SeqCst);
            if !self.uring.submission().taskrun() && self.uring.completion().is_empty() {
                break;
            }
            // The kernel may say that there is work when that was done already: it adds work before
            // it says so (`io_req_local_work_add`), and nobody takes the word back. What comes
            // from here on signals.
            self.submit();
            if self.reap() == 0 {
                break;
            }
        }
        self.give_back();
        std::mem::take(&mut self.arrived)
    }

    fn push(&mut self, command: Entry128) {
        // SAFETY: what a command points to is `self.memory`, which outlives the ring's use, and
        // iovecs that are there until `register` or `give_up` has submitted them.
        while unsafe { self.uring.submission().push(&command) }.is_err() {
            self.submit();
        }
    }

    /// Sends the answers, and has the kernel write the requests that it has: one call for both.
    fn submit(&mut self) {
        self.unsent_bytes = 0;
        loop {
            let submission = self.uring.submission();
            let (unsent, is_due) = (submission.len() as u32, submission.taskrun());
            drop(submission);
            if unsent == 0 && !is_due {
                return;
            }
            // SAFETY: it waits for nothing, so there is no argument.
            let entered = unsafe {
                let flags = EnterFlags::GETEVENTS.bits();
                self.uring.submitter().enter::<libc::sigset_t>(unsent, 0, flags, None)
            };
            // Neither says that anything was lost: completions have no room, or a signal came.
            match entered.map_err(|error| error.raw_os_error()) {
                Ok(_) if self.uring.submission().is_empty() => return,
                Ok(_) => {}
                Err(Some(libc::EBUSY | libc::EAGAIN)) => _ = self.reap(),
                Err(Some(libc::EINTR)) => {}
                Err(error) => panic!("the kernel refuses a ring that it has made: {error:?}"),
            }
        }
    }

    /// Takes what is complete; how much that was.
    fn reap(&mut self) -> usize {
        let (states, memory) = (&mut self.states, &self.memory);
        let (mut count, new) = (0, self.arrived.len());
        for done in self.uring.completion() {
            count += 1;
            let state = usize::try_from(done.user_data()).ok().and_then(|i| states.get_mut(i));
            match (done.result(), state) {
                (0, Some(state)) if !state.here => {
                    state.here = true;
                    // SAFETY: the kernel has completed the entry's command, with a request; `here`
                    // says that there was no other.
                    self.arrived.push(unsafe { RingEntry::new(memory, done.user_data() as usize) });
                }
                // The connection has ended.
                (code, _) if [-libc::ENOTCONN, -libc::ECONNABORTED].contains(&code) => {}
                (code, _) => {
                    if self.failed.replace(-code).is_none() {
                        let error = io::Error::from_raw_os_error(-code);
                        tracing::warn!("the kernel refuses an entry of a ring: {error}");
                    }
                }
            }
        }
        for at in new..self.arrived.len() {
            let entry = &self.arrived[at];
            self.reach(entry.index(), entry.payload().len());
        }
        count
    }

    /// An entry's payload has come to hold so many bytes.
    fn reach(&mut self, index: usize, len: usize) {
        let reached = &mut self.states[index].reached;
        let before = (*reached).max(SMALL_BYTES);
        if len <= before {
            return;
        }
        *reached = len;
        self.large_bytes += len - before;
        if before == SMALL_BYTES {
            self.large.push(index);
        }
    }

    /// Gives back what large requests have left behind, if it is much.
    fn give_back(&mut self) {
        if self.large_bytes <= LARGE_BYTES_MAX {
            return;
        }
        let (states, memory) = (&mut self.states, &self.memory);
        self.large.retain(|&index| {
            let State { here, reached } = &mut states[index];
            if !*here {
                // SAFETY: it is the kernel's, and empty: had a request come for it, it would be
                // `here` since `reap`, and others are written only within `submit`.
                unsafe { memory.discard(index, SMALL_BYTES) };
                self.large_bytes -= *reached - SMALL_BYTES;
                *reached = 0;
            }
            *here
        });
    }
}

fn command(device: &Device, what: u32, about: &RingCmd) -> Entry128 {
    let mut bytes = [0; 80];
    bytes[..size_of::<RingCmd>()].copy_from_slice(about.as_bytes());
    let fd = types::Fd(device.as_fd().as_raw_fd());
    opcode::UringCmd80::new(fd, what).cmd(bytes).build()
}

fn register(device: &Device, qid: u16, iovecs: &[libc::iovec; 2]) -> Entry128 {
    let mut entry = command(device, RING_REGISTER, &RingCmd { qid, ..RingCmd::default() });
    // SAFETY: an entry is `struct io_uring_sqe`, of 128 bytes; `addr` is at 16 and `len` at 24,
    // for which the builder of commands has no word.
    unsafe {
        let start = (&raw mut entry).cast::<u8>();
        start.add(16).cast::<u64>().write(iovecs.as_ptr() as u64);
        start.add(24).cast::<u32>().write(iovecs.len() as u32);
    }
    entry
}

/// The queues that the kernel has: one for each CPU that it could ever have.
///
/// # Errors
/// When `/sys` does not say.
pub(super) fn queues() -> io::Result<u16> {
    // The kernel's own word, not a file that a simulation could hold.
    #[allow(clippy::disallowed_methods)]
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count(&text).ok_or_else(|| io::Error::other("/sys/devices/system/cpu/possible is strange"))
}

/// Members of a list as `0-3,8-11`.
fn count(list: &str) -> Option<u16> {
    list.trim().split(',').try_fold(0u16, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn cpus_are_counted() {
        assert_eq!(count("0-1\n"), Some(2));
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3,8-11,15\n"), Some(9));
        for bad in ["", "x", "3-1", "0-65535", "-", "0-3,"] {
            assert_eq!(count(bad), None, "{bad}");
        }
        assert!(queues().unwrap() >= 1);
    }

    #[test]
    fn an_entry_of_a_command_is_laid_out_as_the_kernel_reads_it() {
        let Ok(device) = Device::open() else { return };
        let iovecs = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 5 }; 2];
        let entry = register(&device, 0x1234, &iovecs).user_data(7);
        // SAFETY: plain bytes, as many as it has.
        let bytes: [u8; 128] = unsafe { std::mem::transmute(entry) };
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(bytes[0], 46, "IORING_OP_URING_CMD");
        assert_eq!(word(8) as u32, RING_REGISTER);
        assert_eq!(word(16), iovecs.as_ptr() as u64);
        assert_eq!(word(24) as u32, 2);
        assert_eq!(word(32), 7);
        assert_eq!((word(48), word(56), word(64) as u16), (0, 0, 0x1234));
    }
}
