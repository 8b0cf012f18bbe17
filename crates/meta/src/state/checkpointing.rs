//! The checkpoint under way.

use saker_engine::TableError;
use saker_runtime::thread::Job;
use saker_runtime::time::Time;

/// The checkpoint under way, if any.
#[derive(Default)]
pub(crate) struct Checkpointing {
    pub(crate) running: Option<(u64, Job<Result<(), TableError>>)>,
    /// After one for which there was no room.
    pub(crate) not_before: Time,
    /// Bytes with which the current journal segment began: the next checkpoint would not save them.
    pub(crate) snapshot_bytes: u64,
}

impl Checkpointing {
    /// Is one under way?
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }
}
