//! READs that end before the kernel thinks that the file does.
//!
//! The kernel fills the rest of a page with zeros, and believes that the file ends there, unless it was told of
//! the inode since it sent the READ: then a reader is given zeros that nobody wrote. What it reads ahead may have been
//! sent long before it is seen here: if others have cut the file it is refused. The kernel drops these errors, and then
//! asks for each page that somebody waits for. An error of that would reach a program. If the kernel was told of a larger
//! size meanwhile, somebody may have written since, and it is read again; at last the call is interrupted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use saker_fuse::abi::{O_DIRECT, ReadIn};
use saker_runtime::time::{self, Time};

/// A READ of no more may be for a reader that waits, who would be given the error.
const PAGE_BYTES: u32 = 4096;
/// How long a reader waits for the data of a file that the kernel has heard to be longer.
pub(crate) const GROWS_WITHIN: Duration = Duration::from_millis(20);
/// A READ may have been under way for so long when it is seen here.
const ON_THE_WAY: Duration = Duration::from_millis(10);

/// How often the kernel was told of an inode's attributes, or to forget them. It heeds the size that it takes
/// from a READ only if that has not happened since it sent the READ.
#[derive(Debug, Default)]
pub(crate) struct Tellings(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    times: u64,
    /// The last size.
    size: u64,
    /// Until when READs come that were sent before it had forgotten the attributes.
    forgets_until: Time,
}

impl Tellings {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is about to be told of this size: the reply to a request.
    pub(crate) fn tell(&self, size: u64) {
        let mut told = self.lock();
        told.times += 1;
        told.size = size;
    }

    /// It is told that what it knows is old, when this ends.
    pub(crate) async fn forget(&self, telling: impl Future<Output = ()>) {
        self.lock().forgets_until = Time::MAX;
        telling.await;
        let mut told = self.lock();
        told.times += 1;
        told.forgets_until = time::now() + ON_THE_WAY;
    }
}

/// Cuts of a file ([`saker_client::File::cuts`]) for which READs through one handle were refused.
#[derive(Default)]
pub(crate) struct Cuts(AtomicU64);

/// A READ that is being answered.
pub(crate) struct Reading<'a> {
    /// The cuts for which READs had been refused when it came.
    cuts: u64,
    tellings: &'a Tellings,
    /// How often it had been told anything.
    times: u64,
    /// It may have been sent before the last of these.
    is_late: bool,
}

/// What becomes of a READ.
pub(crate) enum ReadEnd {
    /// It is answered.
    Heeded,
    /// The kernel has to ask again.
    Refused,
    /// The kernel would not heed where it ends, or perhaps not, and it must not fail: it is read again.
    Unheeded { perhaps: bool },
}

impl Cuts {
    /// A READ has come.
    pub(crate) fn reading<'a>(&self, tellings: &'a Tellings) -> Reading<'a> {
        let cuts = self.0.load(Ordering::SeqCst);
        let told = tellings.lock();
        let is_late = time::now() < told.forgets_until;
        Reading { cuts, tellings, times: told.times, is_late }
    }

    /// READs are refused for so many cuts.
    pub(crate) fn refuse(&self, cuts: u64) {
        self.0.fetch_max(cuts, Ordering::SeqCst);
    }
}

impl Reading<'_> {
    /// It was read, with `len` bytes; the file was cut so often until then.
    pub(crate) fn ends(&self, input: &ReadIn, len: usize, cuts: u64) -> ReadEnd {
        if len >= input.size as usize || input.flags & O_DIRECT != 0 {
            return ReadEnd::Heeded;
        }
        let told = self.tellings.lock();
        let was_told = self.times != told.times || told.forgets_until == Time::MAX;
        let is_heeded = told.size <= input.offset + len as u64 || !(was_told || self.is_late);
        match input.size > PAGE_BYTES {
            true if cuts > self.cuts || !is_heeded => ReadEnd::Refused,
            false if !is_heeded => ReadEnd::Unheeded { perhaps: !was_told },
            _ => ReadEnd::Heeded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros as _;

    #[test]
    fn a_short_read_is_answered_if_the_kernel_heeds_it() {
        let (cuts, tellings) = (Cuts::default(), Tellings::default());
        let read = |size, len, reading: &Reading<'_>, cuts| {
            let input = ReadIn { offset: 8192, size, ..ReadIn::new_zeroed() };
            match reading.ends(&input, len, cuts) {
                ReadEnd::Heeded => 'h',
                ReadEnd::Refused => 'r',
                ReadEnd::Unheeded { perhaps: false } => 'u',
                ReadEnd::Unheeded { perhaps: true } => 'p',
            }
        };
        tellings.tell(1 << 20);
        let reading = cuts.reading(&tellings);
        assert_eq!(read(4096, 4096, &reading, 1), 'h', "whole");
        assert_eq!(read(8192, 10, &reading, 0), 'h', "as the kernel knows");
        assert_eq!(read(8192, 10, &reading, 1), 'r');
        assert_eq!(read(4096, 10, &reading, 1), 'h', "the kernel heeds that");
        let mut forget = std::pin::pin!(tellings.forget(std::future::pending()));
        let mut nobody = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(forget.as_mut().poll(&mut nobody).is_pending());
        assert_eq!(read(4096, 10, &reading, 1), 'u', "it forgets");
        let mut forget = std::pin::pin!(tellings.forget(std::future::ready(())));
        assert!(forget.as_mut().poll(&mut nobody).is_ready());
        assert_eq!(read(4096, 10, &reading, 1), 'u', "it has forgotten");
        let reading = cuts.reading(&tellings);
        assert_eq!(read(4096, 10, &reading, 1), 'p', "it may have been sent before");
        tellings.tell(8202);
        assert_eq!(read(4096, 10, &reading, 1), 'h', "the file ends there");
    }
}
