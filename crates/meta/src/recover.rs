//! Starting a shard: take what the engine hands back, resume what was under way.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use prost::Message;
use saker_engine::{Engine, EngineSource, Identity, Recovered};
use saker_runtime::failpoint;
use saker_runtime::time::Time;
use saker_types::change::{Decision, Gone, StoreJob, id_key, parse_slot_key, table};
use saker_types::{ClusterMap, Errno, FileKind, Inode, InodeId, ROOT, ShardNo};

use crate::metrics::Metrics;
use crate::rows::new_attr;
use crate::shard::{Parts, Shard, ShardLimits};
use crate::state::facts::Facts;

/// Where a shard's data is, and what it is.
pub struct ShardOptions {
    /// Rows and records.
    pub source: EngineSource,
    /// Shard number.
    pub no: ShardNo,
    /// Bounds.
    pub limits: ShardLimits,
    /// Counters.
    pub metrics: Metrics,
}

/// Why a shard cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The engine.
    #[error("engine: {0}")]
    Engine(#[from] saker_engine::EngineError),
    /// Rows that do not decode.
    #[error("rows: {0}")]
    Rows(#[from] saker_types::Error),
}

/// Opens a shard and brings it to where it was.
///
/// # Errors
/// What keeps it from starting.
pub fn open(home: ShardOptions, map: Arc<ClusterMap>) -> Result<Rc<RefCell<Shard>>, StartError> {
    open_at(home, map, saker_runtime::time::now(), saker_runtime::time::wall_ns())
}

/// [`open`], for whoever has a clock of its own.
///
/// # Errors
/// As there.
pub fn open_at(
    home: ShardOptions,
    map: Arc<ClusterMap>,
    now: Time,
    wall_ns: i64,
) -> Result<Rc<RefCell<Shard>>, StartError> {
    let ShardOptions { source, no, limits, metrics } = home;
    let cluster = map.uuid[..].try_into().map_err(|_| saker_types::Error::from(Errno::EINVAL))?;
    let mut facts = Facts::default();
    let engine = source.open(Identity { cluster, shard: no.into() }, &mut |recovered| {
        match recovered {
            Recovered::Anew => facts = Facts::default(),
            Recovered::Fact(fact) => facts.apply(fact),
        }
        Ok(())
    })?;
    failpoint!("recover.replayed");
    let map = crate::maps::newest(map, facts.map.take())?;
    let prepared = std::mem::take(&mut facts.prepared);
    let decisions: Vec<Decision> = facts.decisions.values().cloned().collect();
    metrics.inodes.add(facts.inode_count);
    let shard = Shard::new(Parts { no, map, engine, limits, metrics, facts, now });
    {
        let mut s = shard.borrow_mut();
        s.hub.begin(now, wall_ns);
        for (txn, parts) in prepared {
            failpoint!("recover.prepared");
            parts.into_iter().for_each(|part| s.restore_prepared(part));
            s.ask_when_in_doubt(txn);
        }
        s.resume_rows()?;
        s.resume_merges()?;
        match s.limits.private {
            true => s.resume_given_ids()?,
            false => s.make_root()?,
        }
    }
    for decision in decisions {
        failpoint!("recover.decision");
        saker_rpc::txn::deliver(&shard, decision);
    }
    Ok(shard)
}

impl Shard {
    /// Leases of gone records begin anew; work on stores that was under way goes on.
    fn resume_rows(&mut self) -> Result<(), StartError> {
        let now = self.lease_clock.now();
        let of_slot = |key: &[u8], _: &[u8]| parse_slot_key(key);
        let gone = |key: &[u8], value: &[u8]| Some((parse_slot_key(key)?, Gone::decode(value)));
        for ((slot, id), gone) in self.rows_of(table::GONE, gone)? {
            // One that cannot be read is looked at when its lease ends.
            self.remember_gone(slot, id, &gone.unwrap_or_default());
        }
        for (_, id) in self.rows_of(table::LOCKS, of_slot)? {
            self.resume_locks(id, now)?;
        }
        let job = |key: &[u8], _: &[u8]| Some(InodeId::from_be_bytes(key[1..].try_into().ok()?));
        for id in self.rows_of(table::JOB, job)? {
            if let Some(job) = self.get_as::<StoreJob>(&id_key(table::JOB, id))? {
                self.resume_job(id, job);
            }
        }
        Ok(())
    }

    /// What `read` makes of the rows of a table.
    pub(crate) fn rows_of<T>(
        &self,
        table: u8,
        read: impl Fn(&[u8], &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, StartError> {
        let mut found = Vec::new();
        self.engine.scan(&[table], &[table + 1], |key, value| {
            found.extend(read(key, value));
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// The root directory, on the shard that owns the empty name, once.
    fn make_root(&mut self) -> Result<(), StartError> {
        let key = self.map.key(0, b"");
        if !self.owns(0, b"") || self.entry(&key)?.is_some() {
            return Ok(());
        }
        let mode = FileKind::Directory.bits() | 0o755;
        let mut attr = new_attr(ROOT, mode, 0, 0, self.wall_ns());
        attr.size = 4096;
        self.update_entry(&key, Inode { attr, ..Inode::default() });
        self.count_inodes(1);
        self.seal();
        Ok(())
    }
}
