//! Data on its way to stores: a buffer that gathers small writes, pieces that wait, and pieces
//! in flight.
//!
//! The writer has no thread. Pieces in flight are futures that are kept here and polled by
//! whoever writes or flushes next, so that a sequential writer has several chunk writes under
//! way, and a dropped call loses nothing.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use saker_types::limits::CHUNK_BYTES;
use saker_types::{Result, Unflushed};

use crate::data::memory::{MemoryBudget, MemoryReservation};

/// Most bytes of one file that are in flight.
pub(crate) const FLYING_BYTES_MAX: usize = 8 << 20;
/// A hole costs no memory, but its request should not be one of too many.
const HOLE_WEIGHT_BYTES: u64 = 128 << 10;

/// Bytes that belong into one chunk, or a hole to be made in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// In the file.
    pub(crate) offset: u64,
    pub(crate) data: Bytes,
    /// Bytes of the hole; `data` is empty then. It may go on in other chunks until it takes off.
    pub(crate) hole: u64,
    /// How often it was refused because the file had been truncated.
    pub(crate) refusals: u32,
    /// Of an append: the truncate generation under which the owner gave it its place.
    pub(crate) placed: Option<u64>,
}

impl Piece {
    fn of(offset: u64, data: Bytes) -> Piece {
        Piece { offset, data, hole: 0, refusals: 0, placed: None }
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + self.hole.max(self.data.len() as u64)
    }

    /// What it counts for among the bytes in flight.
    fn weight(&self) -> u64 {
        if self.hole > 0 { HOLE_WEIGHT_BYTES } else { self.data.len() as u64 }
    }
}

/// A piece that stores were asked to take.
pub(crate) struct Flight {
    range: Range<u64>,
    weight: u64,
    /// Of its data.
    bytes: u64,
    landing: Pin<Box<dyn Future<Output = Landed> + Send>>,
}

/// What became of a piece.
pub(crate) struct Landed {
    pub(crate) piece: Piece,
    /// Generation under which it was sent.
    pub(crate) truncate_gen: u64,
    /// Losses of locks before it was sent.
    pub(crate) losses: u64,
    pub(crate) result: Result<Vec<Unflushed>>,
}

/// Contiguous bytes of one chunk that wait for more.
struct Buffer {
    offset: u64,
    data: Vec<u8>,
}

impl Buffer {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

/// All data of one file that its stores have not accepted yet.
#[derive(Default)]
pub(crate) struct Writer {
    buffer: Option<Buffer>,
    queue: VecDeque<Piece>,
    flights: Vec<Flight>,
    /// Landed, not yet looked at.
    landed: VecDeque<Landed>,
    /// An append has lost its place to a truncation.
    displaced: bool,
    /// Losses of locks before what is here was written.
    losses: u64,
    /// Of what all files may hold back.
    share: Option<MemoryReservation>,
}

/// Bytes from `offset` to the end of its chunk.
pub(crate) fn left_in_chunk(offset: u64) -> u64 {
    CHUNK_BYTES - offset % CHUNK_BYTES
}

impl Writer {
    /// Takes a beginning of `data`, which goes to `offset`, and returns its length (at least 1).
    /// A buffer that is full, or that the data does not continue, is queued.
    pub(crate) fn put(&mut self, offset: u64, data: &[u8], buffer_bytes_max: usize) -> usize {
        if let Some(buffer) = &mut self.buffer {
            let at = offset.wrapping_sub(buffer.offset) as usize;
            if offset >= buffer.offset && offset + data.len() as u64 <= buffer.end() {
                buffer.data[at..at + data.len()].copy_from_slice(data);
                return data.len();
            }
            if offset != buffer.end() {
                self.seal();
            }
        }
        let buffer = self.buffer.get_or_insert_with(|| Buffer { offset, data: Vec::new() });
        let room = (left_in_chunk(buffer.offset) as usize).min(buffer_bytes_max.max(1));
        let taken = data.len().min(room - buffer.data.len());
        buffer.data.extend_from_slice(&data[..taken]);
        if buffer.data.len() == room {
            self.seal();
        }
        taken
    }

    /// Queues all of `data` as pieces of their own.
    pub(crate) fn put_all(&mut self, mut offset: u64, mut data: Bytes) {
        self.seal();
        while !data.is_empty() {
            let part = data.split_to(data.len().min(left_in_chunk(offset) as usize));
            let len = part.len() as u64;
            self.queue.push_back(Piece::of(offset, part));
            offset += len;
        }
    }

    /// Queues an append at the place that the owner gave it under this truncate generation.
    pub(crate) fn put_placed(&mut self, offset: u64, data: Bytes, truncate_gen: u64) {
        self.seal();
        let before = self.queue.len();
        self.put_all(offset, data);
        self.queue.range_mut(before..).for_each(|piece| piece.placed = Some(truncate_gen));
        self.displaced = false;
    }

    /// Does an append wait to take off?
    pub(crate) fn waits_to_append(&self) -> bool {
        self.queue.front().is_some_and(|piece| piece.placed.is_some())
    }

    /// The append that is here has lost its place: what has not taken off is not sent.
    pub(crate) fn displace(&mut self) {
        self.queue.retain(|piece| piece.placed.is_none());
        self.displaced = true;
    }

    /// Has the last append lost its place?
    pub(crate) fn is_displaced(&self) -> bool {
        self.displaced
    }

    /// Queues a hole from `offset` up to `end`, of which each chunk's part takes off by itself.
    pub(crate) fn put_hole(&mut self, offset: u64, end: u64) {
        self.seal();
        if offset < end {
            self.queue.push_back(Piece { hole: end - offset, ..Piece::of(offset, Bytes::new()) });
        }
    }

    /// Queues what the buffer holds.
    pub(crate) fn seal(&mut self) {
        if let Some(Buffer { offset, data }) = self.buffer.take() {
            self.queue.push_back(Piece::of(offset, data.into()));
        }
    }

    /// Queues a refused piece again, before all others.
    pub(crate) fn put_back(&mut self, piece: Piece) {
        self.queue.push_front(piece);
    }

    /// The next piece that may take off: there is room, and no piece before it overlaps it (its
    /// bytes must arrive later than theirs) that is in flight, or has landed and may have to fly
    /// again.
    pub(crate) fn next_to_fly(&mut self) -> Option<Piece> {
        let next = self.queue.front_mut()?;
        let rest = next.hole.saturating_sub(left_in_chunk(next.offset));
        if rest > 0 {
            next.hole -= rest;
            let rest = Piece { offset: next.end(), hole: rest, ..next.clone() };
            self.queue.insert(1, rest);
        }
        let next = self.queue.front()?;
        let flying: u64 = self.flights.iter().map(|f| f.weight).sum();
        let full = !self.flights.is_empty() && flying + next.weight() > FLYING_BYTES_MAX as u64;
        let meets = |start: u64, end: u64| start < next.end() && next.offset < end;
        let overlaps = self.flights.iter().any(|f| meets(f.range.start, f.range.end))
            || self.landed.iter().any(|l| meets(l.piece.offset, l.piece.end()));
        if full || overlaps { None } else { self.queue.pop_front() }
    }

    /// A piece has taken off.
    pub(crate) fn fly(
        &mut self,
        piece: &Piece,
        landing: impl Future<Output = Landed> + Send + 'static,
    ) {
        let (range, weight) = (piece.offset..piece.end(), piece.weight());
        let (bytes, landing) = (piece.data.len() as u64, Box::pin(landing));
        self.flights.push(Flight { range, weight, bytes, landing });
    }

    /// Is there anything to take off or in flight?
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.is_landed()
    }

    /// Is nothing waiting to take off?
    pub(crate) fn is_queue_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Is nothing in flight?
    pub(crate) fn is_landed(&self) -> bool {
        self.flights.is_empty() && self.landed.is_empty()
    }

    /// The range that covers all that is here.
    pub(crate) fn range(&self) -> Option<Range<u64>> {
        let buffer = self.buffer.iter().map(|b| b.offset..b.end());
        let queue = self.queue.iter().map(|p| p.offset..p.end());
        let landed = self.landed.iter().map(|l| l.piece.offset..l.piece.end());
        let flights = self.flights.iter().map(|f| f.range.clone());
        let all = buffer.chain(queue).chain(landed).chain(flights);
        all.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
    }

    /// Takes as much of the memory that all files share as is here.
    pub(crate) fn weigh(&mut self, memory: &MemoryBudget) {
        let buffer = self.buffer.iter().map(|b| b.data.len() as u64);
        let queue = self.queue.iter().map(|p| p.data.len() as u64);
        let landed = self.landed.iter().map(|l| l.piece.data.len() as u64);
        let flights = self.flights.iter().map(|f| f.bytes);
        let bytes = buffer.chain(queue).chain(landed).chain(flights).sum();
        self.share.get_or_insert_with(|| memory.take(0)).set(bytes);
    }

    /// Forgets what was written before the last of so many losses of locks, and has not taken off. Was there a new loss?
    pub(crate) fn lose(&mut self, losses: u64) -> bool {
        let is_new = self.losses != losses;
        if is_new {
            self.losses = losses;
            self.clear();
        }
        is_new
    }

    /// Forgets what has not taken off.
    pub(crate) fn clear(&mut self) {
        self.buffer = None;
        self.queue.clear();
    }

    /// Lets flights get on, without waiting.
    pub(crate) async fn nudge(&mut self) {
        poll_fn(|cx| {
            self.poll_flights(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// The next piece that lands; `None` when none is in flight.
    pub(crate) async fn next_landed(&mut self) -> Option<Landed> {
        poll_fn(|cx| {
            self.poll_flights(cx);
            match self.landed.pop_front() {
                Some(landed) => Poll::Ready(Some(landed)),
                None if self.flights.is_empty() => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// A piece that has landed, if one has.
    pub(crate) fn take_landed(&mut self) -> Option<Landed> {
        self.landed.pop_front()
    }

    fn poll_flights(&mut self, cx: &mut Context<'_>) {
        let mut i = 0;
        while i < self.flights.len() {
            match self.flights[i].landing.as_mut().poll(cx) {
                Poll::Ready(landed) => {
                    self.flights.swap_remove(i);
                    self.landed.push_back(landed);
                }
                Poll::Pending => i += 1,
            }
        }
    }
}

#[cfg(test)]
#[path = "writer/tests.rs"]
mod tests;
