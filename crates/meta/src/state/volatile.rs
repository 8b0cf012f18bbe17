//! What the journal says besides rows.

use std::collections::BTreeMap;

use bytes::Bytes;
use saker_engine::sessions::Sessions;
use saker_types::TxnId;
use saker_types::change::{Decision, Prepared};

use crate::request::ReplyTo;

/// What the journal says besides rows.
#[derive(Default)]
pub struct Volatile {
    /// Sessions and their results.
    pub sessions: Sessions<ReplyTo>,
    /// Votes without an outcome.
    pub prepared: BTreeMap<TxnId, Vec<Prepared>>,
    /// Decisions not acknowledged by all.
    pub decisions: BTreeMap<u64, Decision>,
    /// Ids below may have been given out.
    pub reserved_ids: u64,
    /// Of these, the coordinator knows of ids below.
    pub told_ids: u64,
    /// Inodes here.
    pub inode_count: i64,
    /// The newest map the journal holds.
    pub map: Option<Bytes>,
}
