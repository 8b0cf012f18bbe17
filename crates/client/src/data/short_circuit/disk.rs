//! The thread that reads from disks past the page cache, for all threads of the client.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use futures_util::future::poll_fn;
use futures_util::task::AtomicWaker;
use rustix::event::EventfdFlags;
use saker_runtime::thread;

use super::ring::{DirectData, DirectFile, DirectReads, WAITING_MAX, Wanted};

/// Reads for whoever asks. The thread ends when this is dropped.
pub(super) struct Disk {
    /// `None` while it is dropped.
    wanted: Option<SyncSender<Wanted<Reader>>>,
    /// The thread sleeps until this is written to.
    signal: Arc<OwnedFd>,
}

/// Where who waits for a read finds its end.
#[derive(Default)]
struct PendingRead {
    result: Mutex<Option<io::Result<DirectData>>>,
    waker: AtomicWaker,
}

/// The side that ends a read. Dropping it ends the read, too.
struct Reader(Arc<PendingRead>);

impl Reader {
    /// The read has ended, unless it had ended before.
    fn end(&self, result: io::Result<DirectData>) {
        self.0.result.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(result);
        self.0.waker.wake();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end(Err(io::ErrorKind::BrokenPipe.into()));
    }
}

impl Disk {
    /// # Errors
    /// As io_uring_setup(2): forbidden, too old (before Linux 6.1), no memory; the system's, when it
    /// has no room for a thread.
    pub(super) fn start() -> io::Result<Disk> {
        let signal = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?);
        let (sender, wanted) = sync_channel(WAITING_MAX);
        let (tell, made) = sync_channel(1);
        let its_signal = signal.clone();
        let run = move || {
            // The kernel lets in only the thread that has made it.
            let ring = DirectReads::new(its_signal.clone());
            let (ring, result) = match ring {
                Ok(ring) => (Some(ring), Ok(())),
                Err(error) => (None, Err(error)),
            };
            let _ = tell.send(result);
            ring.into_iter().for_each(|ring| serve(ring, &wanted, &its_signal));
        };
        thread::spawn("saker-disk", run)?;
        made.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Disk { wanted: Some(sender), signal })
    }

    /// Reads a range of a file.
    ///
    /// # Errors
    /// read(2)'s; `WouldBlock` while too many wait; `InvalidInput` for 4 GiB or more.
    pub(super) async fn read(
        &self,
        file: DirectFile,
        offset: u64,
        len: usize,
    ) -> io::Result<DirectData> {
        let pending = Arc::new(PendingRead::default());
        let wanted = Wanted { file, offset, len, tag: Reader(pending.clone()) };
        match self.wanted.as_ref().map(|sender| sender.try_send(wanted)) {
            Some(Ok(())) => self.wake(),
            Some(Err(TrySendError::Full(_))) => return Err(io::ErrorKind::WouldBlock.into()),
            Some(Err(TrySendError::Disconnected(_))) | None => {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        poll_fn(|cx| {
            pending.waker.register(cx.waker());
            let mut result = pending.result.lock().unwrap_or_else(PoisonError::into_inner);
            result.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn wake(&self) {
        // A counter that is full is a signal, too.
        let _ = rustix::io::write(&*self.signal, &1u64.to_ne_bytes());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.wanted = None;
        self.wake();
    }
}

/// Reads what is wanted until nobody can want any more.
fn serve(mut ring: DirectReads<Reader>, wanted: &Receiver<Wanted<Reader>>, signal: &OwnedFd) {
    loop {
        match rustix::io::read(signal, &mut [0; size_of::<u64>()]) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return tracing::error!("no more reads past the page cache: {error}"),
        }
        loop {
            match wanted.try_recv() {
                Ok(next) => {
                    if let Err((refused, kind)) = ring.begin(next) {
                        refused.tag.end(Err(kind.into()));
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        ring.finish(|reader, result| reader.end(result));
    }
}
