//! Data that was asked for before a sequential reader needs it.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use saker_runtime::time::Time;
use saker_types::Result;
use std::time::Duration;

use crate::data::memory::{MemoryBudget, MemoryReservation};
use crate::data::write::writer::left_in_chunk;

/// Bytes of one request for data ahead.
const SEGMENT_BYTES: u64 = 1 << 20;
/// Whoever begins with this part of a small file is expected to read all of it: a whole record comes from the disk
/// without its store, parts of it do not.
const WHOLE_PART: u64 = 8;
/// Readers in the kernel ask for neighbouring ranges out of order: so many reads away from where the
/// last one ended still counts as sequential.
const REORDER_READS: u64 = 4;
/// The same for short reads, in bytes.
const REORDER_BYTES: u64 = 1 << 20;
/// The first window, in bytes.
pub(crate) const WINDOW_BYTES_MIN: usize = 128 << 10;

/// The next window of a reader that was expected at `expected` with `window`, and reads `len`
/// bytes at `offset`; 0 for a reader that jumps.
fn next_window(expected: u64, window: usize, offset: u64, len: usize, window_max: usize) -> usize {
    let near = REORDER_BYTES.max(REORDER_READS * len as u64);
    if offset.abs_diff(expected) > near || (window == 0 && offset != expected) {
        0
    } else {
        (window * 2).max(len * 2).max(WINDOW_BYTES_MIN).min(window_max)
    }
}

/// How a file is read: the place where a sequential reader would go on, and its window.
#[derive(Default)]
pub(crate) struct Reader {
    next: u64,
    window: usize,
}

impl Reader {
    /// `range` of a file of `size` bytes is read, as `len` bytes at `offset`: bytes to read ahead of it.
    pub(crate) fn reads(
        &mut self,
        offset: u64,
        len: usize,
        range: &Range<u64>,
        size: u64,
        window_max: usize,
    ) -> usize {
        let mut window = next_window(self.next, self.window, offset, len, window_max);
        if range.start == 0 && window > 0 && size <= SEGMENT_BYTES.min(range.end * WHOLE_PART) {
            window = window.max(size as usize).min(window_max);
        }
        self.next = if window == 0 { range.end } else { self.next.max(range.end) };
        self.window = window;
        window
    }
}

type Fetch = Pin<Box<dyn Future<Output = Result<Bytes>> + Send>>;

enum Body {
    Flying(Fetch),
    Here(Bytes),
}

struct Segment {
    range: Range<u64>,
    body: Body,
    _share: MemoryReservation,
}

/// Contiguous segments of one file, ascending.
#[derive(Default)]
pub(crate) struct Ahead {
    generation: u64,
    used_at: Time,
    segments: VecDeque<Segment>,
}

impl Ahead {
    /// Forgets what may be wrong: the file's data changed since `generation`, or nobody has read here
    /// for `age_max`.
    pub(crate) fn validate(&mut self, generation: u64, now: Time, age_max: Duration) {
        if self.generation != generation || now - self.used_at > age_max {
            self.generation = generation;
            self.segments.clear();
        }
        self.used_at = now;
    }

    /// Forgets everything if nobody has read here for `age_max`.
    pub(crate) fn let_go(&mut self, now: Time, age_max: Duration) {
        if now - self.used_at > age_max {
            self.segments = VecDeque::new();
        }
    }

    fn covered(&self) -> Range<u64> {
        match (self.segments.front(), self.segments.back()) {
            (Some(first), Some(last)) => first.range.start..last.range.end,
            _ => 0..0,
        }
    }

    /// Begins to fetch what is missing of `wanted` and of the window behind it, up to `size`,
    /// and forgets what lies more than a window before. `fetch` asks for a range; `memory` is what all files share.
    pub(crate) fn extend(
        &mut self,
        wanted: &Range<u64>,
        window: usize,
        size: u64,
        memory: &MemoryBudget,
        mut fetch: impl FnMut(Range<u64>) -> Fetch,
    ) {
        let covered = self.covered();
        if wanted.start < covered.start || wanted.start > covered.end {
            self.segments.clear();
        }
        self.forget_before(wanted.start.saturating_sub(window as u64));
        let mut at = match self.segments.back() {
            Some(last) => last.range.end,
            None => wanted.start,
        };
        let target = (wanted.end + window as u64).min(size);
        // Half a window left is enough: then the next requests are large ones.
        if at >= wanted.end + window as u64 / 2 {
            return;
        }
        while at < target {
            let part = SEGMENT_BYTES.min(left_in_chunk(at));
            let end = (at + part).min(target);
            let (body, _share) = (Body::Flying(fetch(at..end)), memory.take(end - at));
            self.segments.push_back(Segment { range: at..end, body, _share });
            at = end;
        }
    }

    /// Forgets what lies before an offset.
    pub(crate) fn forget_before(&mut self, offset: u64) {
        while self.segments.front().is_some_and(|s| s.range.end <= offset) {
            self.segments.pop_front();
        }
    }

    /// Lets requests take off that have not been polled yet.
    pub(crate) async fn nudge(&mut self) {
        std::future::poll_fn(|cx| {
            for segment in &mut self.segments {
                if let Body::Flying(fetch) = &mut segment.body
                    && let std::task::Poll::Ready(result) = fetch.as_mut().poll(cx)
                {
                    // A failure shows as missing data, and the read that needs it asks again.
                    segment.body = Body::Here(result.unwrap_or_default());
                }
            }
            std::task::Poll::Ready(())
        })
        .await;
    }

    /// The bytes of `wanted`, or `None` if they are not all here or on their way.
    pub(crate) async fn take(&mut self, wanted: &Range<u64>) -> Option<Bytes> {
        let covered = self.covered();
        if wanted.start < covered.start || wanted.end > covered.end {
            return None;
        }
        let mut parts = Vec::with_capacity(2);
        for i in 0..self.segments.len() {
            let segment = &mut self.segments[i];
            if segment.range.end <= wanted.start {
                continue;
            }
            if segment.range.start >= wanted.end {
                break;
            }
            if let Body::Flying(fetch) = &mut segment.body {
                let fetched = fetch.await;
                segment.body = Body::Here(fetched.unwrap_or_default());
            }
            let Body::Here(data) = &segment.body else { return None };
            if data.len() as u64 != segment.range.end - segment.range.start {
                self.segments.clear();
                return None;
            }
            let from = wanted.start.max(segment.range.start) - segment.range.start;
            let to = wanted.end.min(segment.range.end) - segment.range.start;
            parts.push(data.slice(from as usize..to as usize));
        }
        if parts.len() == 1 {
            return parts.pop();
        }
        let mut out = BytesMut::with_capacity((wanted.end - wanted.start) as usize);
        parts.iter().for_each(|part| out.extend_from_slice(part));
        Some(out.freeze())
    }
}

#[cfg(test)]
mod tests;
