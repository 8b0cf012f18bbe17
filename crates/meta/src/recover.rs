//! Starting a shard: replay the journal, resume what was under way.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use prost::Message;
use saker_engine::journal::{Journal, JournalConfig, Kind};
use saker_engine::{Db, Table};
use saker_runtime::failpoint;
use saker_runtime::fs::Dir;
use saker_runtime::time::Time;
use saker_types::change::{Decision, Gone, Record, StoreJob, What, id_key, parse_slot_key, table};
use saker_types::{ClusterMap, Errno, FileKind, Inode, InodeId, NodeId, ROOT, ShardNo, TxnId};

use crate::metrics::Metrics;
use crate::rows::new_attr;
use crate::shard::{Limits, Parts, Shard};
use crate::state::volatile::Volatile;

/// Where a shard's data is, and what it is.
pub struct Home {
    /// Directory of the journal.
    pub journal: Arc<dyn Dir>,
    /// The rows.
    pub table: Arc<dyn Table>,
    /// Shard number.
    pub no: ShardNo,
    /// Bounds.
    pub limits: Limits,
    /// Counters.
    pub metrics: Metrics,
}

/// Why a shard cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal.
    #[error("journal: {0}")]
    Journal(#[from] saker_engine::JournalError),
    /// The table.
    #[error("table: {0}")]
    Table(#[from] saker_engine::TableError),
    /// Rows that do not decode.
    #[error("rows: {0}")]
    Rows(#[from] saker_types::Error),
}

/// Opens a shard and brings it to where it was.
///
/// # Errors
/// What keeps it from starting.
pub fn open(home: Home, map: Arc<ClusterMap>) -> Result<Rc<RefCell<Shard>>, StartError> {
    open_at(home, map, saker_runtime::time::now(), saker_runtime::time::wall_ns())
}

/// [`open`], for whoever has a clock of its own.
///
/// # Errors
/// As there.
pub fn open_at(
    home: Home,
    map: Arc<ClusterMap>,
    now: Time,
    wall_ns: i64,
) -> Result<Rc<RefCell<Shard>>, StartError> {
    let uuid: [u8; 16] =
        map.uuid[..].try_into().map_err(|_| saker_types::Error::from(Errno::EINVAL))?;
    let mut db = Db::open(home.table)?;
    let mut volatile = Volatile::default();
    let config = JournalConfig {
        segment_bytes: home.limits.segment_bytes,
        ..JournalConfig::new(uuid, u32::from(home.no))
    };
    let replay_from = db.replay_from();
    let journal_dir = home.journal.clone();
    let journal = Journal::open(home.journal, config, replay_from, &mut |_, kind, payload| {
        let record = Record::decode(payload).map_err(|e| e.to_string())?;
        if kind == Kind::Snapshot {
            volatile = Volatile::default();
        }
        replay(&mut db, &mut volatile, record);
        Ok(())
    })?;
    failpoint!("recover.replayed");
    let map = crate::maps::newest(map, volatile.map.take())?;
    let prepared = std::mem::take(&mut volatile.prepared);
    let decisions: Vec<Decision> = volatile.decisions.values().cloned().collect();
    let Home { no, limits, metrics, .. } = home;
    metrics.inodes.add(volatile.inode_count);
    let shard =
        Shard::new(Parts { no, map, journal, db, journal_dir, limits, metrics, volatile, now });
    {
        let mut s = shard.borrow_mut();
        s.hub.begin(now, wall_ns);
        for (txn, parts) in prepared {
            failpoint!("recover.prepared");
            parts.into_iter().for_each(|part| s.restore_prepared(part));
            s.ask_when_in_doubt(txn);
        }
        s.resume_rows()?;
        s.make_root()?;
    }
    for decision in decisions {
        failpoint!("recover.decision");
        saker_rpc::txn::deliver(&shard, decision);
    }
    Ok(shard)
}

fn replay(db: &mut Db, v: &mut Volatile, record: Record) {
    for change in record.changes {
        match change.what {
            Some(What::Put(row)) => db.put(&row.key, &row.value),
            Some(What::Delete(key)) => db.delete(&key),
            Some(What::Result(result)) => v.sessions.restore(result),
            Some(What::SessionOpen(session)) => {
                v.sessions.open(session);
            }
            Some(What::SessionClose(session)) => v.sessions.close(session),
            Some(What::Prepared(part)) => {
                if let Some(driver) = NodeId::from_u32(part.driver) {
                    let txn = TxnId { driver, number: part.number };
                    v.prepared.entry(txn).or_default().push(*part);
                }
            }
            Some(What::PreparedEnd(end)) => {
                if let Some(driver) = NodeId::from_u32(end.driver) {
                    v.prepared.remove(&TxnId { driver, number: end.number });
                }
            }
            Some(What::Decision(decision)) => {
                v.decisions.insert(decision.number, decision);
            }
            Some(What::DecisionEnd(number)) => {
                v.decisions.remove(&number);
            }
            Some(What::IdsReserved(ids)) => v.reserved_ids = v.reserved_ids.max(ids),
            Some(What::IdsTold(ids)) => v.told_ids = v.told_ids.max(ids),
            Some(What::Inodes(by)) => v.inode_count += by,
            Some(What::Map(map)) => v.map = Some(map),
            // The coordinator's.
            Some(What::Joined(_) | What::Marked(_)) => {}
            // Written by a newer version under a compatible feature bit.
            None => {}
        }
    }
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
    fn rows_of<T>(
        &self,
        table: u8,
        read: impl Fn(&[u8], &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, StartError> {
        let mut found = Vec::new();
        self.db.scan(&[table], &[table + 1], |key, value| {
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
