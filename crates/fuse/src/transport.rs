//! Moves requests from the kernel to a [`Dispatch`] and its replies back, and nothing else.
//!
//! Each thread has its own clone of `/dev/fuse` and handles a request to its end, so that no
//! request waits for another thread; a thread that was the last idle reader starts another
//! before it begins, so that requests that wait starve nobody. Another transport (io_uring) needs
//! only to call [`Dispatch::handle`] the same way.

mod device;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use saker_runtime::thread;
use saker_types::{Errno, Error, Result};

pub(crate) use device::Device;

use crate::abi::Opcode;
use crate::reply::{Later, Reply};
use crate::request::Request;

/// Most bytes of data in one READ or WRITE: 256 pages, the kernel's default bound.
pub(crate) const MAX_WRITE_BYTES: usize = 1 << 20;
/// Room for a request: the largest WRITE and what goes before its data. Pages of it that no
/// request reaches take no memory.
const BUFFER_BYTES: usize = MAX_WRITE_BYTES + 4096;
/// Idle threads beyond this end.
const IDLE_MAX: usize = 8;

/// Answers requests.
pub(crate) trait Dispatch: Send + Sync + 'static {
    /// Answers one request; may block. Called from many threads at once.
    fn handle(&self, request: &Request<'_>) -> Reply;
}

/// The threads that serve one mount.
pub(crate) struct Transport<D> {
    device: Device,
    dispatch: Arc<D>,
    threads_max: usize,
    count: Mutex<Count>,
    /// Signalled when the last thread ends.
    ended: Condvar,
}

#[derive(Default)]
struct Count {
    threads: usize,
    idle: usize,
}

impl<D: Dispatch> Transport<D> {
    /// Serves the connection of `device` on at most `threads_max` threads.
    pub(crate) fn new(device: Device, dispatch: Arc<D>, threads_max: usize) -> Arc<Transport<D>> {
        Arc::new(Transport {
            device,
            dispatch,
            threads_max: threads_max.max(1),
            count: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// Serves until the file system is unmounted or its connection aborted.
    ///
    /// # Errors
    /// When not even one thread can be started.
    pub(crate) fn run(self: &Arc<Self>) -> Result<()> {
        *self.count() = Count { threads: 1, idle: 1 };
        if let Err(error) = self.spawn() {
            return Err(Error::new(Errno::EAGAIN).with_text(format!("FUSE thread: {error}")));
        }
        let count = self.count();
        let ended = self.ended.wait_while(count, |count| count.threads > 0);
        drop(ended.unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    /// Starts a thread that is already counted as idle.
    fn spawn(self: &Arc<Self>) -> std::io::Result<()> {
        let device = self.device.clone_channel();
        let this = Arc::clone(self);
        let spawned = thread::spawn("saker-fuse", move || this.work(&device));
        spawned.map(drop).inspect_err(|_| self.end())
    }

    fn work(self: Arc<Self>, device: &Device) {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let len = match device.read(&mut buffer) {
                Ok(Some(len)) => len,
                Ok(None) => break,
                Err(error) => {
                    tracing::error!("reading /dev/fuse: {error}");
                    break;
                }
            };
            let Some(request) = Request::parse(&buffer[..len]) else {
                tracing::error!("a request of {len} bytes makes no sense");
                continue;
            };
            // Forgetting never waits, and comes in crowds.
            let brief = matches!(
                Opcode::from_u32(request.header.opcode),
                Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt)
            );
            if !brief {
                self.begin();
            }
            let mut reply = self.handle(&request);
            let unique = request.header.unique;
            match reply.later.take() {
                Some(later) => answer_later(device, unique, later),
                None if reply.silent => {}
                None => device.reply(&reply, unique),
            }
            if !brief && self.surplus() {
                return;
            }
        }
        self.end();
    }

    /// A defect in a handler must not hang the caller.
    fn handle(&self, request: &Request<'_>) -> Reply {
        catch_unwind(AssertUnwindSafe(|| self.dispatch.handle(request))).unwrap_or_else(|_| {
            let opcode = request.header.opcode;
            tracing::error!("panic while handling FUSE operation {opcode}");
            Reply::error(Errno::EIO)
        })
    }

    /// This thread gets busy; if no other is left to read, another one starts.
    fn begin(self: &Arc<Self>) {
        let mut count = self.count();
        count.idle -= 1;
        if count.idle > 0 || count.threads >= self.threads_max {
            return;
        }
        count.threads += 1;
        count.idle += 1;
        drop(count);
        if let Err(error) = self.spawn() {
            tracing::warn!("no further FUSE thread: {error}");
        }
    }

    /// This thread is idle again; true: there are enough others, and it is not counted any more.
    fn surplus(&self) -> bool {
        let mut count = self.count();
        if count.idle >= IDLE_MAX {
            count.threads -= 1;
            return true;
        }
        count.idle += 1;
        false
    }

    /// An idle thread ends.
    fn end(&self) {
        let mut count = self.count();
        count.idle -= 1;
        count.threads -= 1;
        if count.threads == 0 {
            self.ended.notify_all();
        }
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers on a thread of its own, by the channel that the request came from: the kernel looks
/// for it there.
fn answer_later(device: &Device, unique: u64, later: Later) {
    let channel = device.share();
    let spawned = thread::spawn("saker-later", move || channel.reply(&later.0(), unique));
    if let Err(error) = spawned {
        tracing::warn!("no thread for an answer: {error}");
        device.reply(&Reply::error(Errno::ENOLCK), unique);
    }
}
