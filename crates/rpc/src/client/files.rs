//! A reactor's reads of files, which its one thread begins and ends between looks at sockets.

use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use saker_runtime::fs::{DirectData, DirectFile, DirectReads};

use super::slot::Slot;

/// A read of a file, as a future: its data, or why there is none.
#[must_use = "it is read for somebody"]
pub struct FileRead(Arc<Slot<io::Result<DirectData>>>);

impl Future for FileRead {
    type Output = io::Result<DirectData>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

/// The side that ends a [`FileRead`]. Dropping it ends the read, too.
pub(super) struct FileReadSlot(Arc<Slot<io::Result<DirectData>>>);

impl FileReadSlot {
    pub(super) fn complete(self, result: io::Result<DirectData>) {
        self.0.fill(result);
    }
}

impl Drop for FileReadSlot {
    fn drop(&mut self) {
        // Only if it was not completed.
        self.0.fill(Err(io::ErrorKind::BrokenPipe.into()));
    }
}

/// The reads under way.
#[derive(Default)]
pub(super) enum Files {
    /// Nobody has asked yet.
    #[default]
    Untried,
    Ring(Box<DirectReads<FileReadSlot>>),
    /// The kernel has no such thing for us.
    Never,
}

impl Files {
    /// Makes the ring, which `watch` is to look after, unless that was tried before. Whether there is one for
    /// the calling thread.
    pub(super) fn start(&mut self, watch: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>) -> bool {
        if matches!(self, Files::Untried) {
            let made = DirectReads::new().and_then(|ring| {
                watch(ring.signal())?;
                Ok(ring)
            });
            *self = match made {
                Ok(ring) => Files::Ring(Box::new(ring)),
                Err(error) => {
                    tracing::debug!("no reads past the page cache: {error}");
                    Files::Never
                }
            };
        }
        matches!(self, Files::Ring(ring) if ring.is_mine())
    }

    pub(super) fn read(
        &mut self,
        file: DirectFile,
        offset: u64,
        len: usize,
    ) -> io::Result<FileRead> {
        let Files::Ring(ring) = self else { return Err(io::ErrorKind::Unsupported.into()) };
        let slot = Slot::new();
        ring.begin(file, offset, len, FileReadSlot(slot.clone()))?;
        Ok(FileRead(slot))
    }

    pub(super) fn send(&mut self) {
        if let Files::Ring(ring) = self {
            ring.send();
        }
    }

    /// Adds those that have ended to `ended`.
    pub(super) fn finish(&mut self, ended: &mut Vec<(FileReadSlot, io::Result<DirectData>)>) {
        if let Files::Ring(ring) = self {
            ring.finish(|slot, result| ended.push((slot, result)));
        }
    }
}
