//! Locks on files. They are kept by a shard and never cached; here is only what this client
//! holds, so that it can be renewed, and ended with a file.
//!
//! A lock is also a point at which data is exchanged: who ends one has written out what it
//! wrote, who gets one sees what the one before had written.

mod file;
pub(crate) mod renew;
pub(crate) mod table;

/// A lock on a range of a file, or on a whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Who holds it: a number of a process (fcntl) or open file (flock) in this client.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte; the largest number for all that comes.
    pub end: u64,
    /// Nobody else may hold one.
    pub exclusive: bool,
    /// Of flock(2), which knows nothing of those of fcntl(2), nor they of it.
    pub flock: bool,
    /// Process, for F_GETLK.
    pub pid: u32,
}

impl Lock {
    /// All that an owner may hold on a file.
    pub fn whole(owner: u64, flock: bool) -> Lock {
        Lock { owner, start: 0, end: u64::MAX, exclusive: false, flock, pid: 0 }
    }
}

#[cfg(test)]
mod tests;
