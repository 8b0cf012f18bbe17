//! What can go wrong with a journal, and so what its owner can do about it.

use std::io;

use saker_runtime::fs::is_full;

use super::SegmentNo;

/// Any of these but `Io` at open means that the log must not be written: start nothing, say so.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum JournalError {
    /// The system refused. Out of `open`, the journal is poisoned by it.
    #[error("{file}: {action}: {source}")]
    Io { file: String, action: &'static str, source: io::Error },
    /// An earlier write or fsync failed, so what is durable is unknown. The process must stop:
    /// the next open finds out.
    #[error("the journal failed before and takes nothing more: {cause}")]
    Poisoned { cause: String },
    /// Not a segment.
    #[error("{file}: not a Saker journal")]
    NotSaker { file: String },
    /// Written by a newer Saker. `features` are the read-only compatible bits over the
    /// incompatible bits.
    #[error("{file}: written by a newer Saker (format {version}, features {features:#x})")]
    NewerFormat { file: String, version: u32, features: u64 },
    /// A segment of another cluster, shard or place in the log.
    #[error("{file}: belongs to another {of}")]
    Misplaced { file: String, of: &'static str },
    /// Bytes that were durable are not what was written.
    #[error("{file}: corrupt at byte {offset}: {reason}")]
    Corrupt { file: String, offset: u64, reason: &'static str },
    /// A segment that replay needs is not there.
    #[error("{dir}: segment {segment} of the journal is missing")]
    MissingSegment { dir: String, segment: SegmentNo },
    /// The caller could not apply a record.
    #[error("{file}: record at byte {offset}: {source}")]
    Replay { file: String, offset: u64, source: ReplayError },
}

impl JournalError {
    /// Whether it says that the disk is full, and nothing else is wrong: out of
    /// [`super::Journal::rotate`] the journal goes on then as it was.
    pub fn is_full(&self) -> bool {
        matches!(self, JournalError::Io { source, .. } if is_full(source))
    }
}

/// Whatever the caller of [`super::Journal::open`] makes of a record it cannot apply.
pub type ReplayError = Box<dyn std::error::Error + Send + Sync>;
