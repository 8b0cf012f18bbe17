//! A shard: one worker of an MNode. Owns slots, an engine and a namespace replica; runs
//! requests one after the other, in batches. Everything here is state and synchronous; what
//! takes more than one step is a task (see [`Shard::task`]).

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use quick_cache::unsync::Cache;
use rustc_hash::FxBuildHasher;
use saker_engine::embedded::Sizes;
use saker_engine::lease_clock::LeaseClock;
use saker_engine::sessions::Sessions;
use saker_engine::{AnyEngine, Engine, Level, Position, Reads};
use saker_rpc::frame::Frame;
use saker_rpc::hub::Hub;
use saker_rpc::node::ReplyTo;
use saker_rpc::txn::Ledger;
use saker_runtime::sim::mutation;
use saker_runtime::time::Time;
use saker_types::change::{StoredResult, What};
use saker_types::placement::Slot;
use saker_types::wire::{EntryKey, KeptDirs, Op, Totals};
use saker_types::{ClusterMap, Errno, Error, InodeId, Key, ShardNo, Stamp};

use crate::metrics::Metrics;
use crate::namespace::lease::NameLeases;
use crate::namespace::replica::Replica;
use crate::request::{Attempt, Rq, Stage, Stop, Task, Wait};
use crate::state::batch::Batch;
use crate::state::facts::Facts;
use crate::state::freezes::Freezes;
use crate::state::given_ids::GivenIds;
use crate::state::gone_leases::GoneLeases;
use crate::state::ids::Ids;
use crate::state::inodes::InodeCache;
use crate::state::lock_leases::LockLeases;
use crate::state::merges::Merges;
use crate::state::opened::OpenFiles;
use crate::state::parking::Parking;
use crate::state::policies::PolicyStates;
use crate::state::row_locks::RowLocks;
use crate::state::votes::Votes;
use crate::state::watches::Watches;
use crate::totals::tracker::InUse;

/// Journal bytes, in overlay limits, after which a checkpoint is due although few rows changed.
const JOURNAL_LIMITS: u64 = 4;

/// After a read that waited for a disk others are likely to, for so long.
const WAITS_EXPECTED: Duration = Duration::from_millis(50);

/// Sizes and bounds of a shard.
#[derive(Clone, Debug)]
pub struct ShardLimits {
    /// Bytes of changed rows in memory before a checkpoint writes them to the table.
    pub overlay_bytes: u64,
    /// Bytes by which the journal's files are allocated ahead.
    pub segment_bytes: u64,
    /// Decoded inodes kept.
    pub inodes: usize,
    /// Entries of the namespace replica kept.
    pub replica: usize,
    /// Requests that begin with the same directories walk through them once.
    pub coalesce_prefixes: bool,
    /// Others learn of a new directory when they need it; else when it is made.
    pub lazy_replication: bool,
    /// The coordinator hears of ids before they are given out.
    pub tells_ids: bool,
    /// It serves a subtree that one client has for itself ([`crate::private`]): ids of inodes come from
    /// ranges that it is given, and whoever asks may do so under any policy.
    pub private: bool,
}

impl Default for ShardLimits {
    fn default() -> ShardLimits {
        ShardLimits {
            overlay_bytes: 64 << 20,
            segment_bytes: 64 << 20,
            inodes: 65_536,
            replica: 1 << 20,
            coalesce_prefixes: true,
            lazy_replication: true,
            tells_ids: false,
            private: false,
        }
    }
}

impl ShardLimits {
    /// What they mean for an embedded engine.
    pub fn sizes(&self) -> Sizes {
        let ShardLimits { overlay_bytes, segment_bytes, .. } = *self;
        Sizes { overlay_bytes, replay_bytes: overlay_bytes * JOURNAL_LIMITS, segment_bytes }
    }
}

/// How rows were read.
struct RowReads {
    /// As last counted.
    count: Reads,
    /// Until then more that wait for a disk are expected.
    waits_until: Time,
}

/// State of a shard.
pub struct Shard {
    /// Its number in the cluster.
    pub no: ShardNo,
    /// Newest cluster map known.
    pub map: Arc<ClusterMap>,
    /// Calls, timers, tasks.
    pub hub: Hub,
    /// Counters.
    pub metrics: Metrics,
    /// A newer map is asked for.
    pub(crate) fetches_map: bool,
    /// When it was last asked for because a peer could not be reached.
    pub(crate) map_asked_at: Option<Time>,
    pub(crate) limits: ShardLimits,
    pub(crate) engine: AnyEngine,
    pub(crate) inodes: InodeCache,
    pub(crate) replica: Replica,
    pub(crate) name_leases: NameLeases,
    /// What the coordinator says of policies.
    pub(crate) policies: PolicyStates,
    /// Of subtrees.
    pub(crate) merges: Merges,
    pub(crate) sessions: Sessions<ReplyTo>,
    pub(crate) parking: Parking,
    /// Transactions voted for, without an outcome yet.
    pub(crate) votes: Votes,
    pub(crate) row_locks: RowLocks,
    /// Transactions this shard drives.
    pub(crate) ledger: Ledger,
    /// Totals changed in this batch; written once, at its end.
    pub(crate) dirty_totals: BTreeMap<InodeId, Totals>,
    pub(crate) freezes: Freezes,
    /// Hears of totals that change here.
    pub(crate) tracker: InUse,
    /// Last vectors collected, of directories owned here.
    pub(crate) vectors: Cache<InodeId, Rc<Vec<Totals>>, quick_cache::UnitWeighter, FxBuildHasher>,
    /// Clock for leases: pauses while this shard does not run.
    pub(crate) lease_clock: LeaseClock,
    pub(crate) leases: GoneLeases,
    pub(crate) lock_leases: LockLeases,
    /// Files that somebody may have open.
    pub(crate) opened: OpenFiles,
    /// Inodes that fsck asks for.
    pub(crate) watches: Watches,
    /// Number of inodes that live here.
    pub(crate) inode_count: i64,
    /// What this batch has changed of it; logged at its end.
    pub(crate) inode_count_change: i64,
    pub(crate) ids: Ids,
    /// Of a private shard: ids for inodes.
    pub(crate) given_ids: GivenIds,
    row_reads: RowReads,
    batch: Batch,
    /// The last record whose flush must not be delayed.
    flushed_at_once: Position,
    me: Weak<RefCell<Shard>>,
}

/// A shard and its hub, for tasks. Borrow for a moment only, never across an await.
#[derive(Clone)]
pub struct ShardHandle {
    shard: Rc<RefCell<Shard>>,
    /// The shard's hub.
    pub hub: Hub,
}

impl ShardHandle {
    /// The state, shared, for a transaction.
    pub(crate) fn rc(&self) -> Rc<RefCell<Shard>> {
        self.shard.clone()
    }

    /// The state, until the end of the statement or block.
    pub fn shard(&self) -> RefMut<'_, Shard> {
        self.shard.borrow_mut()
    }
}

/// What a shard is made from.
pub struct Parts {
    /// Its number.
    pub no: ShardNo,
    /// The map it starts with.
    pub map: Arc<ClusterMap>,
    /// Rows and records.
    pub engine: AnyEngine,
    /// Bounds.
    pub limits: ShardLimits,
    /// Counters.
    pub metrics: Metrics,
    /// What the engine handed back besides rows.
    pub facts: Facts,
    /// When it begins.
    pub now: Time,
}

impl Shard {
    /// Puts a shard together; [`crate::recover`] has the rest.
    pub fn new(parts: Parts) -> Rc<RefCell<Shard>> {
        let Parts { no, map, engine, limits, metrics, mut facts, now } = parts;
        facts.sessions.begin_serving(now);
        // What opening it has read does not count.
        let row_reads = RowReads { count: engine.reads(), waits_until: now };
        let ids = Ids::new(facts.reserved_ids, facts.told_ids, limits.tells_ids);
        let made_since = match limits.private {
            // Its only client has started with it.
            true => 0..InodeId::MAX,
            false => ids.to_come(allocator(&map, no)),
        };
        let opened = OpenFiles::new(now, made_since);
        Rc::new_cyclic(|me| {
            RefCell::new(Shard {
                no,
                map,
                hub: Hub::default(),
                metrics,
                fetches_map: false,
                map_asked_at: None,
                engine,
                inodes: InodeCache::new(limits.inodes),
                replica: Replica::new(limits.replica),
                name_leases: NameLeases::new(now),
                policies: PolicyStates::default(),
                merges: Merges::default(),
                sessions: facts.sessions,
                parking: Parking::default(),
                votes: Votes::default(),
                row_locks: RowLocks::default(),
                ledger: Ledger { decisions: facts.decisions, ..Ledger::default() },
                dirty_totals: BTreeMap::new(),
                freezes: Freezes::default(),
                tracker: InUse::default(),
                vectors: Cache::with(
                    4096,
                    4096,
                    Default::default(),
                    FxBuildHasher,
                    Default::default(),
                ),
                lease_clock: LeaseClock::new(now),
                leases: GoneLeases::default(),
                lock_leases: LockLeases::default(),
                opened,
                watches: Watches::default(),
                inode_count: facts.inode_count,
                inode_count_change: 0,
                ids,
                given_ids: GivenIds::default(),
                row_reads,
                batch: Batch::default(),
                flushed_at_once: 0,
                limits,
                me: me.clone(),
            })
        })
    }

    /// For a task.
    pub fn handle(&self) -> ShardHandle {
        // The role owns the shard as long as it runs.
        let shard = self.me.upgrade().expect("a shard in use is owned by its worker");
        ShardHandle { shard, hub: self.hub.clone() }
    }

    /// Goes on with an operation as a task: `Err(s.task(|h| async move { .. }))`.
    pub fn task<F, Fut>(&self, task: F) -> Stop
    where
        F: FnOnce(ShardHandle) -> Fut,
        Fut: Future<Output = Result<Bytes, Error>> + 'static,
    {
        let task: Task = Box::pin(task(self.handle()));
        Stop::Task(task)
    }

    /// Whose ids this shard gives out.
    pub(crate) fn allocator(&self) -> u16 {
        allocator(&self.map, self.no)
    }

    /// Does it own the slot?
    pub(crate) fn owns_slot(&self, slot: Slot) -> bool {
        self.map.shard_of_slot(slot) == self.no
    }

    /// Does it own the name in this directory?
    pub(crate) fn owns(&self, pid: InodeId, name: &[u8]) -> bool {
        self.owns_slot(self.map.slot_of(pid, name))
    }

    /// Wall clock.
    pub fn wall_ns(&self) -> Stamp {
        self.hub.wall_ns()
    }

    /// Did rows have to be read from a disk just now?
    pub(crate) fn waits_for_rows(&mut self) -> bool {
        let now = self.hub.now();
        let count = self.engine.reads();
        let before = std::mem::replace(&mut self.row_reads.count, count);
        self.metrics.rows_found.add(count.found - before.found);
        self.metrics.rows_missed.add(count.missed - before.missed);
        self.metrics.row_waits.add(count.waited - before.waited);
        if count.waited > before.waited {
            self.row_reads.waits_until = now + WAITS_EXPECTED;
        }
        now < self.row_reads.waits_until
    }

    /// Adds to the batch's record.
    pub(crate) fn log_change(&mut self, what: What) {
        self.batch.add(what);
    }

    /// Lets a request wait and run again from the root.
    pub(crate) fn park(&mut self, wait: Wait, rq: Rc<Rq>) {
        if let Err(rq) = self.parking.park(wait, rq) {
            self.finish(&rq, Err(Error::retry("too many requests wait")));
        }
    }

    /// What they waited for is over.
    pub(crate) fn wake(&mut self, wait: &Wait) {
        self.parking.wake(wait);
    }

    /// Answers what has waited too long.
    pub(crate) fn expire_parked(&mut self) {
        for rq in self.parking.take_late(self.hub.now()) {
            self.finish(&rq, Err(rq.too_late()));
        }
    }

    /// Answers a request when all that it has changed and seen is durable; the result of a mutation
    /// becomes part of the batch's record.
    pub(crate) fn finish(&mut self, rq: &Rq, result: Result<Bytes, Error>) {
        self.finish_when(rq, result, When::Durable);
    }

    /// The last changes of the batch, since it had so many, belong to an operation that may be answered before
    /// they are durable.
    pub(crate) fn may_delay_changes(&mut self, since: usize) {
        self.batch.may_delay_since(since);
    }

    /// The batch's record is flushed at once.
    pub(crate) fn must_flush(&mut self) {
        self.batch.must_flush();
    }

    /// How many changes the batch has.
    pub(crate) fn changes_logged(&self) -> usize {
        self.batch.len()
    }

    /// Answers a request.
    pub(crate) fn finish_when(&mut self, rq: &Rq, result: Result<Bytes, Error>, when: When) {
        let trailer = encoded(&KeptDirs { dirs: rq.kept.take() });
        match rq.mutation() {
            Some(ctx) if rq.stage.get() == Stage::Admitted => {
                for to in self.end_mutation(ctx.session, ctx.seq, rq.slot, &result) {
                    self.send_when(when, to, &result, trailer.clone());
                }
            }
            _ => self.send_when(when, rq.from, &result, trailer),
        }
    }

    /// Answers whoever waits for a mutation.
    pub(crate) fn finish_mutation(
        &mut self,
        session: u64,
        seq: u64,
        slot: Option<Slot>,
        result: Result<Bytes, Error>,
        trailer: Bytes,
    ) {
        for to in self.end_mutation(session, seq, slot, &result) {
            self.send_when(When::Durable, to, &result, trailer.clone());
        }
    }

    /// Keeps a mutation's result, and says who waits for it.
    fn end_mutation(
        &mut self,
        session: u64,
        seq: u64,
        slot: Option<Slot>,
        result: &Result<Bytes, Error>,
    ) -> Vec<ReplyTo> {
        match result {
            Ok(body) => {
                // A session that ended meanwhile must not come back when the journal is replayed.
                if self.sessions.knows(session) {
                    let ack = self.sessions.ack(session);
                    let (body, slot) = (body.clone(), slot.map(Into::into));
                    let stored = StoredResult { session, seq, ack, status: 0, body, slot };
                    self.log_result(stored);
                }
                self.sessions.finish(session, seq, slot, 0, body.clone())
            }
            Err(e) if e.class == 0 => {
                let body = e.encode_to_vec().into();
                self.sessions.finish(session, seq, slot, status_of(e), body)
            }
            // Nothing was done, and the same request may come again.
            Err(_) => self.sessions.send_away(session, seq),
        }
    }

    fn log_result(&mut self, stored: StoredResult) {
        if mutation("result stored outside the transaction") {
            let h = self.handle();
            return self.hub.spawn(async move {
                h.hub.sleep(Duration::from_millis(1)).await;
                h.shard().log_change(What::Result(stored));
            });
        }
        self.log_change(What::Result(stored));
    }

    /// Sends an answer.
    pub(crate) fn send(&self, to: ReplyTo, result: &Result<Bytes, Error>) {
        self.send_when(When::Durable, to, result, Bytes::new());
    }

    /// The same with a trailer ([`KeptDirs`]), and perhaps before all is durable.
    fn send_when(&self, when: When, to: ReplyTo, result: &Result<Bytes, Error>, trailer: Bytes) {
        let (status, body) = match result {
            Ok(body) => (0, body.clone()),
            Err(e) => (status_of(e), e.encode_to_vec().into()),
        };
        let frame = answer(to, status, body, trailer);
        match when {
            When::Durable => self.hub.reply(to.conn, frame),
            When::Written => self.hub.reply_when_written(to.conn, frame),
        }
    }

    /// Sends an answer that is already encoded.
    pub(crate) fn send_raw(&self, to: ReplyTo, status: u16, body: Bytes, trailer: Bytes) {
        self.hub.reply(to.conn, answer(to, status, body, trailer));
    }

    /// Ends a batch: its changes become one record.
    pub(crate) fn seal(&mut self) {
        let may_delay = self.batch.may_delay();
        self.write_totals();
        if self.inode_count_change != 0 {
            let by = std::mem::take(&mut self.inode_count_change);
            self.log_change(What::Inodes(by));
        }
        let Shard { batch, engine, flushed_at_once, .. } = self;
        if batch.write(|record| {
            let position = engine.commit(record);
            if !may_delay {
                *flushed_at_once = position;
            }
        }) {
            self.metrics.batches.inc();
        }
    }

    /// The last record whose flush must not be delayed.
    pub(crate) fn flushed_at_once(&self) -> Position {
        self.flushed_at_once
    }

    /// A step begins. What must be done for time that has gone by.
    pub(crate) fn begin_step(&mut self, now: Time) {
        self.lease_clock.step(now);
        self.batch.begin_step();
        self.begin_step_of_engine(now);
        let ended = self.sessions.step(self.lease_clock.now());
        ended.into_iter().for_each(|what| self.log_change(what));
    }

    fn begin_step_of_engine(&mut self, now: Time) {
        let is_short = |engine: &AnyEngine| i64::from(engine.level() != Level::Enough);
        let was_short = is_short(&self.engine);
        self.engine.begin_step(now);
        self.metrics.short_of_space.add(is_short(&self.engine) - was_short);
        while let Some(key) = self.engine.loaded() {
            self.wake(&Wait::Row(key));
        }
    }

    /// Refuses what would take more space, if there is little.
    pub(crate) fn may_grow(&self) -> Result<(), Error> {
        match self.engine.level() {
            Level::Enough => Ok(()),
            Level::Short | Level::Out => {
                Err(Error::new(Errno::ENOSPC).with_text("the disk of an MNode is full"))
            }
        }
    }

    /// Refuses every change, if there is no room to say it.
    pub(crate) fn may_change_anything(&self) -> Result<(), Error> {
        if self.engine.level() == Level::Out { self.may_grow() } else { Ok(()) }
    }

    /// Between two requests: a record, and a step, are bounded.
    pub(crate) fn seal_if_large(&mut self) {
        if self.batch.is_record_full() {
            self.seal();
        }
    }

    /// Must the rest wait for the next step?
    pub(crate) fn is_step_full(&self) -> bool {
        self.batch.is_step_full()
    }

    /// Refuses a name of another shard: the asker's map is another one.
    pub(crate) fn must_own(&self, pid: InodeId, name: &[u8]) -> Attempt<()> {
        self.must_own_slot(self.map.slot_of(pid, name))
    }

    /// The key of an entry, if its row belongs here.
    pub(crate) fn own_key(&self, pid: InodeId, name: &[u8]) -> Attempt<Key> {
        let (key, slot) = self.map.place(pid, name);
        self.must_own_slot(slot).map(|()| key)
    }

    /// Refuses what another shard keeps.
    pub(crate) fn must_own_slot(&self, slot: Slot) -> Attempt<()> {
        if self.owns_slot(slot) {
            Ok(())
        } else {
            Err(Error::of_class(saker_types::Class::RefreshMap, Errno::ESTALE).into())
        }
    }

    /// Key of an entry as messages carry it.
    pub(crate) fn entry_key(pid: InodeId, name: &[u8]) -> EntryKey {
        EntryKey { pid, name: Bytes::copy_from_slice(name) }
    }

    /// Counts a request.
    pub(crate) fn count(&self, op: Op) {
        self.metrics.requests.inc(op as u16);
    }
}

fn allocator(map: &ClusterMap, no: ShardNo) -> u16 {
    map.shards.get(usize::from(no)).map_or(0, |s| s.allocator as u16)
}

/// When an answer leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// All records so far are durable.
    Durable,
    /// Those whose flush may be delayed are written, the others durable.
    Written,
}

fn answer(to: ReplyTo, status: u16, body: Bytes, trailer: Bytes) -> Frame {
    Frame {
        kind: saker_rpc::FrameKind::Reply,
        op: to.op as u16,
        status,
        call: to.call,
        trace: to.trace,
        body,
        payload: trailer,
        map_version: 0,
    }
}

fn status_of(e: &Error) -> u16 {
    e.errno().0
}

/// An encoded reply.
pub(crate) fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}
