//! Where the data of a chunk is, for a client that reads it there.

use std::io;
use std::ops::Range;

use saker_runtime::fs::File;
use saker_types::wire::ChunkPlace;

use super::extent::Extent;
use super::format::BLOCK_BYTES;
use super::index::{ChunkKey, SegmentExtent};
use super::pieces::{ReadError, Want, read_head, read_now};
use super::segment::Segments;
use crate::wait::{WaitPolicy, would_block};

/// Most places that [`locate`] tells.
const PLACES_MAX: usize = 16;

/// The side that waits for the disk when data is not in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// The store.
    Here,
    /// The client reads it, if it is a whole record.
    There,
    /// The store, for one who could.
    Both,
}

/// Where the bytes from `start` to `end` of a chunk are, in order; nothing if there are holes among
/// them, too many pieces, or if others cannot open the files.
///
/// The blocks are not checked: whoever reads them must, by the sums.
///
/// # Errors
/// [`ReadError`], also when a record's header is damaged.
pub fn locate(
    segments: &Segments,
    key: ChunkKey,
    pieces: Vec<SegmentExtent>,
    start: u32,
    end: u32,
    fetch: Fetch,
    wait: WaitPolicy,
) -> std::result::Result<Vec<ChunkPlace>, ReadError> {
    let bytes: u32 = pieces.iter().map(|(_, extent)| extent.len).sum();
    if bytes != end - start || pieces.len() > PLACES_MAX || segments.local_dir().is_none() {
        return Ok(Vec::new());
    }
    let mut places = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let file = piece.0.name();
        let want = Want { with_head: false, ..Want::new(piece) };
        let block = BLOCK_BYTES as u32;
        let Extent { pos, head, skip, len, .. } = want.extent;
        let pos = u64::from(pos) + u64::from(head) + u64::from(want.first_block * block);
        let bytes = (want.end - pos) as u32;
        let sum = want.extent.whole_sum().filter(|_| fetch != Fetch::Here);
        // With a sum of all the header is not needed.
        let from = if sum.is_some() { pos } else { u64::from(want.extent.pos) };
        let failed = |error| ReadError::Io(error, want.segment.name());
        let (opened, salt) = segments.open(&want.segment, wait).map_err(failed)?;
        let cached = opened.is_cached(from, want.end - from);
        let cold = sum.is_some() && cached == Some(false) && fetch == Fetch::There;
        if !cold {
            bring(&*opened, from..want.end, cached == Some(true), wait).map_err(failed)?;
        }
        let mut sums = Vec::new();
        if sum.is_none() {
            read_head(segments, key, &want, (&[], 0, salt), wait, |head| {
                let blocks = want.first_block..want.end_block;
                sums.extend(blocks.map(|block| head.sum(block as usize)));
                Ok(())
            })?;
        }
        places.push(ChunkPlace { file, pos, bytes, sums, skip: skip % block, len, sum, cold });
    }
    Ok(places)
}

/// Waits until a range is in the page cache.
fn bring(file: &dyn File, range: Range<u64>, cached: bool, wait: WaitPolicy) -> io::Result<()> {
    // What is in the cache may be on its way only. Both ends say enough of that: who finds a gap
    // between them asks for the data. What is fetched now may come in any order.
    let step = if cached { usize::MAX } else { BLOCK_BYTES };
    if !cached {
        if wait == WaitPolicy::Never {
            return Err(would_block());
        }
        file.prefetch(range.start, range.end - range.start);
    }
    for pos in range.clone().step_by(step).chain([range.end - 1]) {
        read_now(file, pos, &mut [0], wait)?;
    }
    Ok(())
}
