//! Identities: inodes, nodes, transactions.

/// Number of an inode: 13 bits of allocator, 40 bits of counter; never reused. Zero is "none". So it
/// is below 2^53, and exact where programs keep numbers of inodes as doubles (JavaScript).
pub type InodeId = u64;
/// The root directory. Its row has parent 0 and the empty name.
pub const ROOT: InodeId = 1;
/// Bits of an id that count; those above name the allocator.
pub const COUNTER_BITS: u32 = 40;
/// Allocators that ids can name: 0 is the coordinator's, [`GUESSES`] are the mounts', and each of the
/// others is a shard's.
pub const ALLOCATORS: u16 = 1 << 13;
/// The allocator of the numbers that a mount makes up for what it does not know yet.
pub const GUESSES: u16 = ALLOCATORS - 1;
/// Allocators from here to [`GUESSES`] name inodes of frozen datasets.
const FROZEN: u16 = ALLOCATORS / 4 * 3;
/// Most shards of a cluster.
pub const SHARDS_MAX: usize = FROZEN as usize - 1;
/// Datasets that inode numbers can tell apart; they count from 1.
pub const FROZEN_DATASETS_MAX: u32 = ((GUESSES - FROZEN) as u32) * (1 << (COUNTER_BITS - 32)) - 1;

/// The id of an inode of a frozen dataset. Number 0 is the directory that has them all.
pub const fn frozen_id(dataset: u32, ino: u32) -> InodeId {
    debug_assert!(dataset <= FROZEN_DATASETS_MAX);
    ((FROZEN as u64) << COUNTER_BITS) + ((dataset as u64) << 32 | ino as u64)
}

/// The dataset's number and the inode's, of the id of an inode of one.
pub fn frozen_inode(id: InodeId) -> Option<(u32, u32)> {
    let rest = id.checked_sub(frozen_id(0, 0))?;
    (rest >> 32 <= u64::from(FROZEN_DATASETS_MAX)).then_some(((rest >> 32) as u32, rest as u32))
}

const _: () = assert!((ALLOCATORS as u64) << COUNTER_BITS == 1 << 53);

/// A shard: one worker of an MNode. Counts from 0 over the whole cluster.
pub type ShardNo = u16;
/// A store. Counts from 0.
pub type StoreNo = u16;

/// The id that an allocator gives out at a count.
pub const fn compose(allocator: u16, counter: u64) -> InodeId {
    debug_assert!(allocator < ALLOCATORS && counter < 1 << COUNTER_BITS);
    ((allocator as u64) << COUNTER_BITS) | counter
}

/// A uuid, or any bytes, in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A distributed transaction: the driver's node and a number the driver never reuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TxnId {
    /// Who drives it and must be asked for its outcome.
    pub driver: NodeId,
    /// Drawn from the driver's id allocator.
    pub number: u64,
}

/// A process or shard that can be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeId {
    /// The coordinator.
    Coordinator,
    /// A shard of an MNode.
    Shard(ShardNo),
    /// A store.
    Store(StoreNo),
}

impl NodeId {
    /// The form on the wire: role in the upper 16 bits, number in the lower; 0 is nobody.
    pub fn to_u32(self) -> u32 {
        match self {
            NodeId::Coordinator => 0x3_0000,
            NodeId::Shard(n) => 0x1_0000 | u32::from(n),
            NodeId::Store(n) => 0x2_0000 | u32::from(n),
        }
    }

    /// Inverse of [`NodeId::to_u32`].
    pub fn from_u32(raw: u32) -> Option<NodeId> {
        let n = (raw & 0xFFFF) as u16;
        match raw >> 16 {
            1 => Some(NodeId::Shard(n)),
            2 => Some(NodeId::Store(n)),
            3 if n == 0 => Some(NodeId::Coordinator),
            _ => None,
        }
    }
}

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NodeId::Coordinator => write!(f, "coordinator"),
            NodeId::Shard(n) => write!(f, "shard {n}"),
            NodeId::Store(n) => write!(f, "store {n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_of_datasets_have_numbers_of_their_own() {
        for (dataset, ino) in [(0, 0), (1, 0), (7, u32::MAX), (FROZEN_DATASETS_MAX, u32::MAX)] {
            let id = frozen_id(dataset, ino);
            assert_eq!(frozen_inode(id), Some((dataset, ino)));
            assert!(id < compose(GUESSES, 0), "below what mounts make up");
        }
        let last_shard = compose(SHARDS_MAX as u16, (1 << COUNTER_BITS) - 1);
        assert_eq!(frozen_inode(last_shard), None);
        assert_eq!(frozen_inode(compose(GUESSES, 0)), None);
    }
}
