//! What was read of files: is each byte one that it could be?
//!
//! Data is close to open: a file that is opened has what was flushed before, and may have what is
//! written meanwhile. Of a byte, what was written or cut before is gone once a later change of it
//! has ended, if that change is safe: data that was not fsynced goes with the power of a store that
//! has it, and what was there before may come back. An fsync that succeeds says that all of it is
//! safe. Each file is judged by itself, byte by byte; sizes are [linear](super::linear)'s.

use std::collections::BTreeMap;

use saker_types::limits::CHUNK_BYTES;
use saker_types::{InodeId, StoreNo};

use super::history::{CallSubject, WorldAnswer, WorldCall, WorldEntry};

#[cfg(test)]
mod tests;

/// What the client says where a store has told it of a loss.
const LOST: &str = "lost unflushed data";

/// The stores that have a chunk of a file.
pub trait Placement: Fn(InodeId, u64) -> Vec<StoreNo> {}

impl<F: Fn(InodeId, u64) -> Vec<StoreNo>> Placement for F {}

/// A change of a file's bytes.
#[derive(Clone, Copy)]
enum Change {
    /// From this byte on; `None`: nobody knows where an append has gone.
    Write { start: Option<u64>, len: u64, tag: u8 },
    /// All bytes from this one on are zeros.
    Cut { size: u64 },
}

impl Change {
    /// Does it make this byte this value, as far as is known?
    fn may_give(&self, at: u64, value: u8) -> bool {
        match *self {
            Change::Write { start: None, tag, .. } => tag == value,
            Change::Write { tag, .. } => tag == value && self.covers(at),
            Change::Cut { .. } => value == 0 && self.covers(at),
        }
    }

    /// Does it change this byte, for sure?
    fn covers(&self, at: u64) -> bool {
        match *self {
            Change::Write { start, len, .. } => {
                start.is_some_and(|start| (start..start + len).contains(&at))
            }
            Change::Cut { size } => at >= size,
        }
    }
}

/// A call that changes a file, or makes its data safe.
#[derive(Clone, Copy)]
struct Timed<T> {
    what: T,
    invoked: u64,
    /// [`OPEN`](super::history::OPEN): nobody knows.
    returned: u64,
}

/// What was done with a file.
#[derive(Default)]
struct File<'a> {
    changes: Vec<Timed<Change>>,
    /// That succeeded.
    fsyncs: Vec<Timed<()>>,
    /// When calls began that may have been told of a loss.
    failed: Vec<u64>,
    reads: Vec<(u64, &'a [u8], &'a WorldEntry)>,
}

/// Checks what was read; the number of calls that were told of a loss.
///
/// # Errors
/// A byte that cannot be there, or a loss where none can be.
pub fn check(
    entries: &[WorldEntry],
    power_losses: &[(StoreNo, u64)],
    stores_of: impl Placement,
) -> Result<usize, String> {
    for (id, file) in files(entries) {
        let losses = Losses { id, power_losses, stores_of: &stores_of };
        for (offset, data, entry) in &file.reads {
            let wrong = file.wrong_byte(*offset, data, entry, &losses);
            if let Some(at) = wrong {
                let own: Vec<String> = of_file(entries, id).map(|e| format!("  {e}\n")).collect();
                let value = data[(at - offset) as usize];
                return Err(format!(
                    "byte {at} of {id:#x} cannot be {value}:\n  {entry}\npower losses (store, \
                     moment): {power_losses:?}; chunks on {:?}\nall of it:\n{}",
                    [0, 1].map(|chunk| stores_of(id, chunk)),
                    own.concat()
                ));
            }
        }
    }
    let is_told =
        |e: &&WorldEntry| matches!(&e.answer, WorldAnswer::Unknown(why) if why.contains(LOST));
    match entries.iter().find(is_told) {
        Some(entry) if power_losses.is_empty() => Err(format!("nothing was lost: {entry}")),
        _ => Ok(entries.iter().filter(is_told).count()),
    }
}

fn files(entries: &[WorldEntry]) -> BTreeMap<InodeId, File<'_>> {
    let mut files: BTreeMap<InodeId, File<'_>> = BTreeMap::new();
    for entry in entries {
        let ids = match id_of(entry) {
            Some(id) => vec![id],
            None if may_cut_any(entry) => all_ids(entries),
            None => continue,
        };
        for id in ids {
            files.entry(id).or_default().note(entry);
        }
    }
    files
}

/// The file that a call is of, if that is known.
fn id_of(entry: &WorldEntry) -> Option<InodeId> {
    match (&entry.call, &entry.answer) {
        (
            WorldCall::Write { id, .. } | WorldCall::Append { id, .. } | WorldCall::Fsync { id },
            _,
        )
        | (WorldCall::Truncate { of: CallSubject::Open(id), .. }, _) => Some(*id),
        (WorldCall::Truncate { .. }, WorldAnswer::Entry(seen))
        | (_, WorldAnswer::Data(seen, _)) => Some(seen.id),
        _ => None,
    }
}

/// A truncation by a path whose outcome nobody knows.
fn may_cut_any(entry: &WorldEntry) -> bool {
    matches!((&entry.call, &entry.answer), (WorldCall::Truncate { .. }, WorldAnswer::Unknown(_)))
}

fn all_ids(entries: &[WorldEntry]) -> Vec<InodeId> {
    let mut ids: Vec<InodeId> = entries.iter().filter_map(id_of).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn of_file(entries: &[WorldEntry], id: InodeId) -> impl Iterator<Item = &WorldEntry> {
    entries.iter().filter(move |e| id_of(e) == Some(id) || (id_of(e).is_none() && may_cut_any(e)))
}

impl<'a> File<'a> {
    fn note(&mut self, entry: &'a WorldEntry) {
        let WorldEntry { call, answer, invoked, returned, .. } = entry;
        let (invoked, returned) = (*invoked, *returned);
        if matches!(answer, WorldAnswer::Failed(_)) {
            return;
        }
        if matches!(answer, WorldAnswer::Unknown(_)) && !matches!(call, WorldCall::Truncate { .. })
        {
            self.failed.push(invoked);
        }
        let what = match (call, answer) {
            (WorldCall::Fsync { .. }, WorldAnswer::Done) => {
                return self.fsyncs.push(Timed { what: (), invoked, returned });
            }
            (WorldCall::Read { offset, .. }, WorldAnswer::Data(_, data)) => {
                return self.reads.push((*offset, data, entry));
            }
            (WorldCall::Write { start, end, tag, .. }, _) => {
                Change::Write { start: Some(*start), len: end - start, tag: *tag }
            }
            (WorldCall::Append { len, tag, .. }, WorldAnswer::Offset(start)) => {
                Change::Write { start: Some(*start), len: *len, tag: *tag }
            }
            (WorldCall::Append { len, tag, .. }, _) => {
                Change::Write { start: None, len: *len, tag: *tag }
            }
            (WorldCall::Truncate { size, .. }, _) => Change::Cut { size: *size },
            _ => return,
        };
        self.changes.push(Timed { what, invoked, returned });
    }

    /// The first byte of a read that cannot be what it is.
    fn wrong_byte(
        &self,
        offset: u64,
        data: &[u8],
        read: &WorldEntry,
        losses: &Losses<'_, impl Placement>,
    ) -> Option<u64> {
        // Bytes between two of these have the same changes.
        let edges = self.changes.iter().flat_map(|change| match change.what {
            Change::Write { start, len, .. } => [start.unwrap_or(0), start.unwrap_or(0) + len],
            Change::Cut { size } => [size, size],
        });
        let mut edges: Vec<u64> = edges.chain([CHUNK_BYTES]).collect();
        edges.sort_unstable();
        let mut last = None;
        (offset..).zip(data).find_map(|(at, value)| {
            let same = (edges.partition_point(|edge| *edge <= at), *value);
            if last == Some(same) {
                return None;
            }
            last = Some(same);
            (!self.may_be(at, *value, read, losses)).then_some(at)
        })
    }

    fn may_be(
        &self,
        at: u64,
        value: u8,
        read: &WorldEntry,
        losses: &Losses<'_, impl Placement>,
    ) -> bool {
        let over = self.changes.iter().filter(|change| {
            change.what.covers(at)
                && change.returned < read.invoked
                && self.is_safe(change, at, read, losses)
        });
        // What ended before has been written over, or cut.
        let gone_before = over.map(|change| change.invoked).max().unwrap_or(0);
        let mut given = self
            .changes
            .iter()
            .filter(|change| change.what.may_give(at, value) && change.invoked < read.returned);
        (value == 0 && gone_before == 0) || given.any(|change| change.returned >= gone_before)
    }

    /// Is a change that has ended there for good, as far as this read can tell?
    fn is_safe(
        &self,
        change: &Timed<Change>,
        at: u64,
        read: &WorldEntry,
        losses: &Losses<'_, impl Placement>,
    ) -> bool {
        if matches!(change.what, Change::Cut { .. }) {
            // Its job is done when no store can forget it.
            return true;
        }
        let mut lost = losses.of(at).filter(|lost| (change.invoked..read.returned).contains(lost));
        lost.all(|lost| {
            let mut fsyncs = self
                .fsyncs
                .iter()
                .filter(|fsync| fsync.invoked > change.returned && fsync.returned < read.invoked);
            fsyncs.any(|fsync| {
                // One that succeeds after a loss says that nothing is lost, unless somebody was
                // told before.
                fsync.returned <= lost || !self.failed.iter().any(|began| *began < fsync.returned)
            })
        })
    }
}

/// Losses of power that matter to a file.
struct Losses<'a, P> {
    id: InodeId,
    power_losses: &'a [(StoreNo, u64)],
    stores_of: &'a P,
}

impl<P: Placement> Losses<'_, P> {
    /// The moments after which stores that have a byte lost power.
    fn of(&self, at: u64) -> impl Iterator<Item = u64> {
        let stores = (self.stores_of)(self.id, at / CHUNK_BYTES);
        let its = self.power_losses.iter().filter(move |(store, _)| stores.contains(store));
        its.map(|(_, moment)| *moment)
    }
}
