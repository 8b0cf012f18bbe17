//! Keeping the index in memory within its bound.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use super::{CHUNK_OVERHEAD_BYTES, Index, Inode, State, bytes_of};
use crate::wait::locked;

/// Entries looked at in one step.
const STEP: usize = 16;
/// Most steps that one caller takes.
const STEPS_MAX: usize = 64;
/// A shard with so many times its share in memory wants a checkpoint.
const PRESSED: usize = 2;

impl Index {
    /// Takes entries that the table has out of memory while there are too many. Goes around,
    /// and spares once what was used since it last came by.
    pub(super) fn evict(&self, state: &mut State) {
        if state.bytes <= self.shard_bytes_max {
            return;
        }
        let far = self.shard_bytes_max * PRESSED;
        let mut rounds = usize::from(evict_step(state));
        for _ in 0..STEPS_MAX {
            if state.bytes <= far {
                return;
            }
            // The first round may have begun anywhere, the second took what the first spared.
            if rounds > 2 {
                break;
            }
            rounds += usize::from(evict_step(state));
        }
        self.pressed.store(true, Ordering::Relaxed);
    }

    /// Memory that the index takes, estimated.
    pub fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|shard| locked(&shard.state).bytes).sum()
    }

    /// Whether memory is short for want of a checkpoint.
    pub fn is_pressed(&self) -> bool {
        self.pressed.load(Ordering::Relaxed)
    }

    /// The same; says so once.
    pub fn take_pressed(&self) -> bool {
        self.pressed.swap(false, Ordering::Relaxed)
    }
}

/// Returns whether the hand has come round.
fn evict_step(state: &mut State) -> bool {
    let hand = state.hand;
    let mut next = (0, 0);
    let mut victims = Vec::new();
    let step = state.chunks.range_mut((Bound::Excluded(hand), Bound::Unbounded));
    for (key, cached) in step.take(STEP) {
        next = *key;
        let void = |inode: &Inode| key.1 >= inode.void_from;
        let pinned = cached.dirty
            || cached.writing
            || std::mem::take(&mut cached.used)
            || state.inodes.get(&key.0).is_some_and(void);
        if !pinned {
            victims.push(*key);
        }
    }
    state.hand = next;
    for key in victims {
        if let Some(cached) = state.chunks.remove(&key) {
            state.bytes -= bytes_of(&cached.chunk);
        }
        if state.inodes.get(&key.0).is_some_and(Inode::is_evictable) {
            state.inodes.remove(&key.0);
            state.bytes -= CHUNK_OVERHEAD_BYTES;
        }
    }
    if next == (0, 0) {
        // Inodes without a chunk in memory go when the hand has come round.
        let before = state.inodes.len();
        let State { inodes, chunks, .. } = state;
        inodes.retain(|id, inode| {
            !inode.is_evictable() || chunks.range((*id, 0)..=(*id, u64::MAX)).next().is_some()
        });
        state.bytes -= (before - state.inodes.len()) * CHUNK_OVERHEAD_BYTES;
    }
    next == (0, 0)
}
