//! What is known of an open file, and what happens to it.
//!
//! Each change is a method that says what has happened. What belongs together changes together:
//! [`InodeState::check`] says what always holds.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use saker_runtime::time::{self, Time};
use saker_types::wire::{At, CloseReq, Ctx, Entry};
use saker_types::{Attr, Error, Locator, Unflushed};

use crate::Caller;
use crate::data::ahead::Reader;
use crate::data::open_inode::{LockOwner, age, lost_lock};
use crate::data::ranges::{Ranges, overlay};

/// What is known of an open inode.
pub(crate) struct InodeState {
    /// Where it was last known to be.
    loc: Locator,
    /// As the owner said last; the size covers this client's own writes.
    attr: Attr,
    /// A small file's data at `attr.data_version`, with this client's own writes; may be shorter
    /// than the size. `None`: to be asked for. Meaningless when the file is chunked.
    inline: Option<Bytes>,
    /// Bytes of `inline` that the owner has not heard of.
    unsaved: Ranges,
    /// The owner was seen to have other data than the unsaved bytes were written over.
    overtaken: bool,
    /// End of the largest write to chunks that the owner has not heard of; 0: none.
    written_end: u64,
    /// Bytes written to chunks, and cleared in them, that the owner has not heard of.
    unreported: (u64, u64),
    /// What stores have accepted and were not told to flush.
    unflushed: Vec<Unflushed>,
    /// Range of the file that covers all data which stores have not accepted yet.
    pending: Option<Range<u64>>,
    /// Who wrote last.
    writer_is: Option<Caller>,
    /// Changes whenever data that was read ahead may be wrong.
    generation: u64,
    /// How often the owner said that the file is shorter than was known here.
    cuts: u64,
    /// How it is read.
    pub(crate) reader: Reader,
    /// When the owner was last asked for the attributes.
    asked_at: Time,
    /// When its owner was asked to open it first.
    opened_at: Time,
    /// Since when something waits to be written out or reported, if it does.
    dirty_since: Time,
    /// When it was written to last.
    written_at: Time,
    /// Locks on it that this client has lost, and of which one each owner has lost last.
    losses: u64,
    lost: BTreeMap<LockOwner, u64>,
    handles: usize,
    /// Failures of writing out so far, and the last one.
    failures: (u64, Option<Error>),
}

/// Opens and answers.
impl InodeState {
    /// Opened by one handle; its owner was asked at `asked`. `inline`: its data, if it is small.
    pub(crate) fn opened(entry: &Entry, inline: Option<Bytes>, asked: Time) -> InodeState {
        let now = time::now();
        InodeState {
            loc: entry.loc.owned(),
            attr: entry.attr.clone(),
            inline,
            unsaved: Ranges::default(),
            overtaken: false,
            written_end: 0,
            unreported: (0, 0),
            unflushed: Vec::new(),
            pending: None,
            writer_is: None,
            generation: 0,
            cuts: 0,
            reader: Reader::default(),
            asked_at: now,
            opened_at: asked,
            dirty_since: now,
            written_at: now,
            losses: 0,
            lost: BTreeMap::new(),
            handles: 1,
            failures: (0, None),
        }
    }

    /// Opened by one handle more.
    pub(crate) fn opened_again(&mut self, entry: &Entry, inline: Option<Bytes>) {
        self.handles += 1;
        // What was read ahead before this open is not what this open saw.
        self.generation += 1;
        self.answered(entry, inline);
    }

    /// A handle is gone.
    pub(crate) fn closed(&mut self) {
        debug_assert!(self.handles > 0, "nobody has it open");
        self.handles -= 1;
    }

    /// Does nobody have it open, and is nothing left to be written?
    pub(crate) fn is_unused(&self) -> bool {
        self.handles == 0 && !self.is_dirty()
    }

    /// The owner has answered what it was asked just now.
    pub(crate) fn answered(&mut self, entry: &Entry, inline: Option<Bytes>) {
        self.asked_at = time::now();
        self.adopt(entry, inline);
    }

    /// The owner has answered a truncation of this client's own, which is no [cut](Self::cuts).
    pub(crate) fn cut_here(&mut self, entry: &Entry, inline: Option<Bytes>) {
        let cuts = self.cuts;
        self.adopt(entry, inline);
        self.cuts = cuts;
    }

    /// What others have written out may be read from now on, not what was read ahead.
    pub(crate) fn read_anew(&mut self) {
        self.generation += 1;
    }

    /// It was found to be there.
    pub(crate) fn moved_to(&mut self, loc: &Locator) {
        self.loc.follow(loc);
    }

    /// Takes what the owner said, unless something newer is known. `inline`: the data that
    /// belongs to it, if it is known. What is dirty here stays.
    fn adopt(&mut self, entry: &Entry, inline: Option<Bytes>) {
        if age(&entry.attr) < age(&self.attr) {
            return;
        }
        let same_data = entry.attr.data_version == self.attr.data_version
            && entry.attr.chunked == self.attr.chunked;
        let pending_end = self.pending.as_ref().map_or(0, |p| p.end);
        if entry.attr.truncate_gen > self.attr.truncate_gen {
            // What stores have accepted was cut; what they have not is written after the cut.
            self.written_end = pending_end;
        }
        let own_end = self.written_end.max(pending_end).max(self.unsaved.end());
        let size = entry.attr.size.max(own_end);
        self.cuts += u64::from(size < self.attr.size);
        self.loc = entry.loc.owned();
        if !self.unsaved.is_empty() {
            // Unsaved bytes belong to the version that they were written over; the owner will
            // find the conflict and answer with the data to build on.
            self.overtaken |= !same_data;
            let base = (self.attr.data_version, self.attr.truncate_gen, self.attr.chunked);
            self.attr = entry.attr.clone();
            (self.attr.data_version, self.attr.truncate_gen, self.attr.chunked) = base;
        } else {
            self.attr = entry.attr.clone();
            if !same_data {
                self.generation += 1;
                self.inline = inline;
            } else if inline.is_some() {
                self.inline = inline;
            }
        }
        self.attr.size = size;
    }

    /// An answer about this inode that was adopted, with what is known here if that is newer.
    pub(crate) fn newest(&self, entry: Entry) -> Entry {
        if saker_runtime::sim::mutation("older attributes than are known") {
            return entry;
        }
        Entry { attr: self.attr.clone(), loc: self.loc.clone(), ..entry }
    }
}

/// Small files, whose data is here.
impl InodeState {
    /// Applies a write to a small file whose data is known.
    pub(crate) fn write_inline(&mut self, offset: u64, data: &[u8], who: &Caller) {
        let end = offset + data.len() as u64;
        let mut bytes = Vec::from(self.inline.take().unwrap_or_default());
        if bytes.len() < end as usize {
            bytes.resize(end as usize, 0);
        }
        bytes[offset as usize..end as usize].copy_from_slice(data);
        self.inline = Some(bytes.into());
        self.overtaken &= !self.unsaved.is_empty();
        self.unsaved.add(offset, end);
        self.attr.size = self.attr.size.max(end);
        self.writer_is = Some(who.clone());
        self.written_at = time::now();
    }

    /// Clears bytes of a small file whose data is known; where it has none it is clear.
    pub(crate) fn clear_inline(&mut self, offset: u64, end: u64, who: &Caller) {
        let end = end.min(self.inline.as_ref().map_or(0, Bytes::len) as u64);
        if offset < end {
            self.write_inline(offset, &vec![0; (end - offset) as usize], who);
        }
    }

    /// The owner has other data than the unsaved bytes were written over: puts them over that.
    /// When the file is chunked now, the unsaved bytes come back, to be written to chunks.
    pub(crate) fn rebase(&mut self, entry: &Entry) -> Vec<(u64, Bytes)> {
        let ours = self.inline.take().unwrap_or_default();
        self.overtaken = false;
        self.attr = entry.attr.clone();
        self.loc = entry.loc.owned();
        self.generation += 1;
        self.attr.size = self.attr.size.max(self.unsaved.end());
        if entry.attr.chunked {
            self.inline = Some(ours);
            self.written_end = 0;
            return self.take_unsaved();
        }
        self.inline = Some(overlay(&entry.inline, &ours, &self.unsaved).into());
        Vec::new()
    }

    /// Takes the unsaved bytes out, to be written to chunks.
    pub(crate) fn take_unsaved(&mut self) -> Vec<(u64, Bytes)> {
        let data = self.inline.take().unwrap_or_default();
        let pieces = self
            .unsaved
            .iter()
            .map(|(start, end)| {
                let end = (end as usize).min(data.len());
                (start, data.slice((start as usize).min(end)..end))
            })
            .collect();
        self.unsaved.clear();
        pieces
    }
}

/// Files in chunks: `pending` is what the writer still has ([`Writer::range`](crate::data::write::writer::Writer::range)).
impl InodeState {
    /// Bytes up to `end` were handed to the writer.
    pub(crate) fn wrote(
        &mut self,
        end: u64,
        bytes: u64,
        pending: Option<Range<u64>>,
        who: &Caller,
    ) {
        self.attr.size = self.attr.size.max(end);
        self.written_end = self.written_end.max(end);
        self.unreported.0 += bytes;
        self.pending = pending;
        self.generation += 1;
        self.written_at = time::now();
        if self.writer_is.is_none() {
            self.writer_is = Some(who.clone());
        }
    }

    /// An append that ends at `end` was handed to the writer, at the place that the owner gave it.
    pub(crate) fn append_began(&mut self, end: u64, pending: Option<Range<u64>>, who: &Caller) {
        self.attr.size = self.attr.size.max(end);
        self.written_end = end;
        self.pending = pending;
        self.writer_is = Some(who.clone());
        self.written_at = time::now();
        self.generation += 1;
    }

    /// The append was cut or has failed: the file does not grow by what is not there.
    pub(crate) fn append_gone(&mut self) {
        self.written_end = 0;
    }

    /// A hole of `bytes` bytes up to `end` was handed to the writer.
    pub(crate) fn cleared(
        &mut self,
        end: u64,
        bytes: u64,
        pending: Option<Range<u64>>,
        who: &Caller,
    ) {
        self.pending = pending;
        self.generation += 1;
        self.written_end = self.written_end.max(end);
        self.unreported.1 += bytes;
        self.writer_is = Some(who.clone());
    }

    /// It reaches to `end` at least.
    pub(crate) fn grown(&mut self, end: u64, who: &Caller) {
        self.attr.size = self.attr.size.max(end);
        // The owner keeps the larger size: somebody else may have grown the file.
        self.written_end = self.written_end.max(end);
        self.writer_is = Some(who.clone());
    }

    /// Unsaved bytes of a small file, up to `end`, were handed to the writer.
    pub(crate) fn unsaved_go_to_chunks(
        &mut self,
        end: u64,
        bytes: u64,
        pending: Option<Range<u64>>,
    ) {
        debug_assert!(self.unsaved.is_empty(), "they were not taken");
        self.written_end = self.written_end.max(end);
        self.unreported.0 += bytes;
        self.pending = pending;
    }

    /// The owner has made it chunked. What goes to the writer was told before: the entry's generation is
    /// newer than what stores have accepted.
    pub(crate) fn spilled(&mut self, entry: &Entry) {
        self.adopt(entry, None);
        self.attr.chunked = true;
    }

    /// The writer has this left.
    pub(crate) fn sent(&mut self, pending: Option<Range<u64>>) {
        self.pending = pending;
    }

    /// Stores have accepted this.
    pub(crate) fn accepted(&mut self, writes: &[Unflushed]) {
        writes.iter().for_each(|writes| Unflushed::add(&mut self.unflushed, *writes));
    }

    /// Stores have flushed all that they had accepted, or have said that it is lost.
    pub(crate) fn flushed(&mut self) {
        self.unflushed.clear();
    }
}

/// What the owner is told.
impl InodeState {
    /// What it has not heard of, and that what it called unflushed at the version `flushed` is not any
    /// more; `None` if that is nothing.
    pub(crate) fn report(&self, flushed: Option<u64>) -> Option<CloseReq> {
        (self.is_dirty() || flushed.is_some()).then(|| self.report_anyway(flushed))
    }

    /// The same, also if that is nothing.
    pub(crate) fn report_anyway(&self, flushed: Option<u64>) -> CloseReq {
        let inline = (!self.unsaved.is_empty()).then(|| self.inline.clone().unwrap_or_default());
        let size = if inline.is_some() { self.attr.size } else { self.written_end };
        CloseReq {
            at: At::handle(self.loc.clone()),
            is_clean: !self.is_dirty(),
            flushed,
            unflushed: self.unflushed.clone(),
            size,
            truncate_gen: self.attr.truncate_gen,
            inline,
            base_version: self.attr.data_version,
            written_bytes: self.unreported.0,
            cleared_bytes: self.unreported.1,
            ctx: Ctx::default(),
        }
    }

    /// It has heard that; `with_data`: also a small file's data.
    pub(crate) fn reported(&mut self, entry: &Entry, with_data: bool) {
        self.unsaved.clear();
        self.written_end = 0;
        self.unreported = (0, 0);
        self.writer_is = None;
        let inline = self.inline.clone().filter(|_| with_data);
        self.adopt(entry, inline);
    }

    /// It has heard of the appends before this one, and given it a place or stored it.
    pub(crate) fn append_placed(&mut self, entry: &Entry, inline: Option<Bytes>) {
        self.written_end = 0;
        self.adopt(entry, inline);
    }

    /// Forgets what is dirty, as after a truncation of the file to nothing.
    pub(crate) fn discard(&mut self) {
        self.unsaved.clear();
        self.written_end = 0;
        self.unreported = (0, 0);
        self.unflushed.clear();
        self.pending = None;
        self.inline = None;
        self.generation += 1;
    }

    /// A lock was lost. What was written, perhaps under it, and not sent yet is not sent any more.
    pub(crate) fn lose_lock(&mut self, owner: LockOwner) {
        self.losses += 1;
        self.lost.insert(owner, self.losses);
        if self.is_dirty() {
            self.discard();
            // How long the file is without that, the owner knows.
            self.asked_at = Time::ZERO;
            self.fail(lost_lock());
        }
    }

    /// Notes a failure of writing out, for all handles to report.
    pub(crate) fn fail(&mut self, error: Error) {
        tracing::warn!(inode = self.attr.id, "data could not be written out: {error}");
        self.failures = (self.failures.0 + 1, Some(error));
    }
}

/// What is known.
impl InodeState {
    pub(crate) fn loc(&self) -> &Locator {
        &self.loc
    }

    pub(crate) fn attr(&self) -> &Attr {
        &self.attr
    }

    /// Data of a small file, if it is known.
    pub(crate) fn inline(&self) -> Option<&Bytes> {
        self.inline.as_ref()
    }

    /// End of the largest write to chunks that the owner has not heard of; 0: none.
    pub(crate) fn written_end(&self) -> u64 {
        self.written_end
    }

    /// What stores have accepted and were not told to flush.
    pub(crate) fn unflushed(&self) -> &[Unflushed] {
        &self.unflushed
    }

    /// Changes whenever data that was read ahead may be wrong.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// How often the owner said that the file is shorter than was known here.
    pub(crate) fn cuts(&self) -> u64 {
        self.cuts
    }

    /// Locks on it that this client has lost.
    pub(crate) fn losses(&self) -> u64 {
        self.losses
    }

    /// Who wrote what is dirty.
    pub(crate) fn writer(&self) -> Option<&Caller> {
        self.writer_is.as_ref()
    }

    /// When the owner was last asked for the attributes.
    pub(crate) fn asked_at(&self) -> Time {
        self.asked_at
    }

    /// When its owner was asked to open it first.
    pub(crate) fn opened_at(&self) -> Time {
        self.opened_at
    }

    /// When it was written to last.
    pub(crate) fn written_at(&self) -> Time {
        self.written_at
    }

    /// Since when something waits to be written out or reported, if it does.
    pub(crate) fn dirty_since(&self) -> Time {
        self.dirty_since
    }

    /// Has the owner, or a store, something to hear of?
    pub(crate) fn is_dirty(&self) -> bool {
        !self.unsaved.is_empty() || self.written_end > 0 || self.pending.is_some()
    }

    /// Is there data that neither a row nor a store has?
    pub(crate) fn holds_data(&self) -> bool {
        !self.unsaved.is_empty() || self.pending.is_some()
    }

    /// Does some of this range wait to be accepted by stores?
    pub(crate) fn waits(&self, range: &Range<u64>) -> bool {
        self.pending.as_ref().is_some_and(|p| p.start < range.end && range.start < p.end)
    }

    /// Must unsaved bytes be put over the owner's data before anybody reads them?
    pub(crate) fn is_overtaken(&self) -> bool {
        self.overtaken && !self.unsaved.is_empty()
    }

    /// Has this owner lost a lock after so many losses?
    pub(crate) fn has_lost(&self, owner: LockOwner, losses: u64) -> bool {
        self.lost.get(&owner).is_some_and(|last| *last > losses)
    }

    /// Failures so far, and the last one.
    pub(crate) fn failures(&self) -> (u64, Option<&Error>) {
        (self.failures.0, self.failures.1.as_ref())
    }

    /// It has become dirty, or has ceased to be, since it was as `before` says: what it is now.
    pub(super) fn turned_dirty(&mut self, before: bool) -> Option<bool> {
        self.check();
        let is_dirty = self.is_dirty();
        if is_dirty && !before {
            self.dirty_since = time::now();
        }
        (is_dirty != before).then_some(is_dirty)
    }

    /// What always holds.
    fn check(&self) {
        if !self.unsaved.is_empty() {
            debug_assert!(!self.attr.chunked, "unsaved bytes of a file in chunks go to the writer");
            debug_assert!(self.inline.is_some(), "unsaved bytes are in the data");
            debug_assert!(self.unsaved.end() <= self.attr.size, "unsaved bytes beyond the end");
        }
        debug_assert!(!self.pending.as_ref().is_some_and(Range::is_empty), "nothing is pending");
    }

    /// As if it had been written to then.
    #[cfg(test)]
    pub(crate) fn set_written_at(&mut self, at: Time) {
        self.written_at = at;
    }

    #[cfg(test)]
    pub(crate) fn unsaved(&self) -> Vec<(u64, u64)> {
        self.unsaved.iter().collect()
    }
}

#[cfg(test)]
mod tests;
