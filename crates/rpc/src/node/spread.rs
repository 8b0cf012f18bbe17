//! Connections of one listener, spread over several shells.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mio::net::TcpStream;
use mio::{Poll, Waker};

use super::conns::TOKEN_WAKER;

/// Accepted connections on their way to a shell.
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    waker: Arc<Waker>,
}

#[derive(Default)]
struct Waiting {
    streams: Vec<TcpStream>,
    /// Connections that the shell has.
    open: usize,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the shell: takes what has come.
    pub fn take(&self) -> Vec<TcpStream> {
        std::mem::take(&mut self.lock().streams)
    }

    /// For the shell: how many it has now.
    pub fn set_open(&self, open: usize) {
        self.lock().open = open;
    }

    fn load(&self) -> usize {
        let waiting = self.lock();
        waiting.open + waiting.streams.len()
    }

    fn put(&self, stream: TcpStream) {
        self.lock().streams.push(stream);
        if let Err(error) = self.waker.wake() {
            tracing::error!("a poll could not be woken: {error}");
        }
    }
}

/// The shells that share a listener. One of them accepts; each connection goes to that which
/// has the fewest, and stays there. (Were each to accept, one could get all.)
#[derive(Clone, Default)]
pub(crate) struct Spread(Arc<Mutex<Vec<Arc<Inbox>>>>);

impl Spread {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Inbox>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn place(&self, stream: TcpStream) {
        let inboxes = self.lock();
        // The accepting shell is among them.
        if let Some(inbox) = inboxes.iter().min_by_key(|inbox| inbox.load()) {
            inbox.put(stream);
        }
    }
}

/// A shell's poll, made before its thread.
pub(crate) struct ShellPoll {
    pub(super) poll: Poll,
    pub(super) waker: Arc<Waker>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) spread: Spread,
}

impl ShellPoll {
    /// Wakes the poll, from any thread.
    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// One more shell among those of `spread`.
    ///
    /// # Errors
    /// When the system has no room for another poll.
    pub fn new(spread: &Spread) -> io::Result<ShellPoll> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), TOKEN_WAKER)?);
        let inbox = Arc::new(Inbox { waiting: Mutex::default(), waker: waker.clone() });
        spread.lock().push(inbox.clone());
        Ok(ShellPoll { poll, waker, inbox, spread: spread.clone() })
    }
}
