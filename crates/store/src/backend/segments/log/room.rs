//! How much may still be written.

use std::io;
use std::sync::atomic::Ordering;

use super::{Log, Space};

/// Disk space left to the index and to others: at most this, and at most this part of the disk.
const HEADROOM_BYTES_MAX: u64 = 256 << 20;
const HEADROOM_PART: u64 = 16;

/// What of the disk is free for segments.
fn usable_bytes(space: &Space) -> u64 {
    let headroom = HEADROOM_BYTES_MAX.min(space.capacity_bytes / HEADROOM_PART);
    space.free_bytes.saturating_sub(headroom)
}

fn no_space(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, text.to_owned())
}

impl Log {
    /// Is there room for so many more segments?
    pub(super) fn check_room(&self, segments: u64) -> io::Result<()> {
        let need = segments * u64::from(self.config.segment_bytes);
        let space = (self.config.space)()?;
        if self.unused_bytes() < need {
            return Err(no_space("the store is full"));
        }
        if usable_bytes(&space) < need {
            return Err(no_space("the disk is full"));
        }
        Ok(())
    }

    /// What the segments do not take of their capacity.
    pub fn unused_bytes(&self) -> u64 {
        self.config.capacity_bytes.saturating_sub(self.segments.disk_bytes())
    }

    /// Bytes of records that may be written before data is refused.
    pub fn room_bytes(&self, space: &Space) -> u64 {
        let segment_bytes = u64::from(self.config.segment_bytes);
        let more = self.unused_bytes().min(usable_bytes(space)) / segment_bytes;
        if self.low.load(Ordering::Acquire) && more == 0 {
            return 0;
        }
        let state = self.state();
        let active = match &state.active {
            Some(_) => u64::from(self.config.segment_bytes.saturating_sub(state.tail)),
            None => 0,
        };
        let made = u64::from(state.spare.is_some());
        (more.saturating_sub(1) + made) * segment_bytes + active
    }

    /// Whether compaction should try harder: new data would soon find no room.
    pub fn is_short_of_space(&self) -> bool {
        self.low.load(Ordering::Acquire) || self.check_room(3).is_err()
    }
}
