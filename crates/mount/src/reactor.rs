//! A thread that serves requests waits for servers, too.

use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use saker_client::Transport;

/// The client's reactor of one thread.
pub(crate) struct ClientReactor(pub(crate) Arc<saker_client::Reactor>);

impl saker_fuse::EventLoop for ClientReactor {
    fn watch(&self, source: usize, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.0.watch(source, fd)
    }

    fn watch_signals(&self, source: usize, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        self.0.watch_signals(source, eventfd)
    }

    fn unwatch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.0.unwatch(fd)
    }

    fn poll_source(&self, source: usize, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_source(source, cx)
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + 'static {
        self.0.sleep(time)
    }

    fn block_on(&self, future: impl Future<Output = ()>) {
        self.0.block_on(future);
    }
}
