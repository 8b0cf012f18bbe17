//! Slots: what moves between shards.

use crate::InodeId;
use crate::limits::SLOTS;

/// One of the [`SLOTS`] parts of all that the shards keep: names, attributes of hard links, file
/// locks. Shards own slots, and only a whole slot moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

const _: () = assert!(SLOTS == 1 << u16::BITS);

impl Slot {
    /// From the number in a message or row.
    pub fn from_wire(raw: u32) -> Slot {
        Slot(raw as u16)
    }

    /// The slot whose shard keeps the locks on a file. A constant of the format.
    pub fn of_locks(id: InodeId) -> Slot {
        // The golden ratio of 64 bits: neighbouring ids go to different shards.
        Slot((id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as u16)
    }
}

impl From<Slot> for u32 {
    fn from(slot: Slot) -> u32 {
        slot.0.into()
    }
}
