//! The parts of a shard that own their state. None of them knows the shard; each is tested alone.

pub(crate) mod batch;
pub mod facts;
pub(crate) mod freezes;
pub(crate) mod given_ids;
pub(crate) mod gone_leases;
pub(crate) mod ids;
pub(crate) mod inodes;
pub(crate) mod lock_leases;
pub(crate) mod merges;
pub(crate) mod opened;
pub(crate) mod parking;
pub(crate) mod policies;
pub(crate) mod row_locks;
pub(crate) mod votes;
pub(crate) mod watches;
