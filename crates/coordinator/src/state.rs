//! State of the coordinator: the map, sessions, transactions, and the engine that keeps them.

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use saker_engine::lease_clock::LeaseClock;
use saker_engine::sessions::Sessions;
use saker_engine::{AnyEngine, Engine, EngineError, EngineSource, Identity, Level, Recovered};
use saker_rpc::hello::RoleKind;
use saker_rpc::hub::Hub;
use saker_rpc::node::ReplyTo;
use saker_rpc::txn::{Driver, Ledger};
use saker_runtime::failpoint;
use saker_runtime::task::oneshot;
use saker_runtime::time::Time;
use saker_types::change::{Change, DIR_ID_BYTES, Joined, Marked, Record, StoredResult, What};
use saker_types::id::{COUNTER_BITS, compose};
use saker_types::placement::{FORMAT, ShardInfo, StoreInfo, initial_slots};
use saker_types::wire::{
    Ctx, EntryKey, IdRange, MarkReq, PolicyReply, RefusedMember, RefusedReply,
};
use saker_types::{ClusterMap, Errno, Error, InodeId, Key, NodeId, ROOT, TxnId};

use crate::config::Members;
use crate::metrics::Metrics;
use crate::policies::Policies;

/// Journal bytes after which its contents are written again, compacted.
pub const SEGMENT_BYTES: u64 = 8 << 20;
/// Numbers reserved by one record.
const IDS_PER_RESERVATION: u64 = 1 << 16;
/// Shard number of the coordinator's records.
const RECORDS_SHARD: u32 = u32::MAX;

/// The coordinator.
pub struct CoordinatorState {
    /// Newest map.
    pub map: Arc<ClusterMap>,
    /// The directory that all chains of directories begin below.
    pub(crate) root: InodeId,
    /// Calls, timers, tasks.
    pub hub: Hub,
    /// Counters.
    pub metrics: Metrics,
    /// Results of retries.
    pub sessions: Sessions<ReplyTo>,
    /// The clock by which sessions end; none before the first step.
    lease_clock: Option<LeaseClock>,
    /// Until when clients wait for the mutations under way (session, number), if they do not ask again.
    wanted: BTreeMap<(u64, u64), Time>,
    /// Transactions.
    pub ledger: Ledger,
    /// The data directories of MNodes and stores, by role and number.
    joined: BTreeMap<(u32, u32), Bytes>,
    /// How far shards and stores have come, by role and number.
    marks: BTreeMap<(u32, u32), Marked>,
    /// Those that were refused when they asked last, and why.
    refused: BTreeMap<(u32, u32), String>,
    /// Policies of subtrees.
    pub(crate) policies: Policies,
    pub(crate) engine: AnyEngine,
    /// Renames of directories go one at a time, so that no cycle can be made by two of them.
    rename_busy: bool,
    rename_queue: VecDeque<oneshot::Sender<()>>,
    next_id: u64,
    reserved_ids: u64,
    changes: Vec<Change>,
}

/// State and hub for the operations; borrow for a moment only.
#[derive(Clone)]
pub struct StateHandle {
    /// The state.
    pub state: Rc<RefCell<CoordinatorState>>,
    /// Its hub.
    pub hub: Hub,
}

impl StateHandle {
    /// The state, until the end of the statement or block.
    pub fn state(&self) -> RefMut<'_, CoordinatorState> {
        self.state.borrow_mut()
    }
}

/// What the coordinator's records say.
#[derive(Default)]
struct Known {
    sessions: Sessions<ReplyTo>,
    ledger: Ledger,
    reserved: u64,
    joined: BTreeMap<(u32, u32), Bytes>,
    marks: BTreeMap<(u32, u32), Marked>,
    policies: Policies,
    map: Option<ClusterMap>,
}

impl Known {
    fn apply(&mut self, fact: What) -> Result<(), String> {
        match fact {
            What::Result(r) => self.sessions.restore(r),
            What::SessionOpen(id) => {
                self.sessions.open(id);
            }
            What::SessionClose(id) => self.sessions.close(id),
            What::Decision(d) => {
                self.ledger.decisions.insert(d.number, d);
            }
            What::DecisionEnd(n) => {
                self.ledger.decisions.remove(&n);
            }
            What::IdsReserved(n) => self.reserved = self.reserved.max(n),
            What::Map(raw) => {
                let known = ClusterMap::decode(raw).map_err(|e| e.to_string())?;
                known.check_format().map_err(|e| e.to_string())?;
                self.map = Some(known);
            }
            What::Joined(j) => {
                self.joined.insert((j.role, j.n), j.dir);
            }
            What::Marked(m) => {
                self.marks.insert((m.role, m.n), m);
            }
            What::Policy(record) => self.policies.restore(*record),
            What::PolicyEnd(policy) => self.policies.forget(policy),
            _ => {}
        }
        Ok(())
    }
}

/// Opens what the coordinator knows; makes the cluster if there is none.
///
/// # Errors
/// The engine's; a map that this version does not know.
pub fn open(
    source: EngineSource,
    members: &Members,
    listen: &str,
    metrics: Metrics,
) -> Result<StateHandle, EngineError> {
    let uuid = source.cluster()?.unwrap_or_else(new_uuid);
    let map = |known| updated_map(known, uuid, members, listen);
    open_with(source, uuid, map, ROOT, metrics)
}

/// The uuid of a new cluster.
pub fn new_uuid() -> [u8; 16] {
    let mut uuid = [0; 16];
    saker_runtime::rand::fill(&mut uuid);
    uuid
}

/// Opens what the coordinator of a subtree knows that one client has for itself (Cudele section 4.1): `map`
/// says who is there, and `root` is the directory at whose top it is. Its directories are not looked for
/// above that.
///
/// # Errors
/// The engine's.
pub fn open_private(
    source: EngineSource,
    map: ClusterMap,
    root: InodeId,
    metrics: Metrics,
) -> Result<StateHandle, EngineError> {
    let uuid = map.uuid[..].try_into().map_err(EngineError::new)?;
    let newest = |known: Option<ClusterMap>| match known {
        Some(known) => {
            let version = map.version.max(known.version + 1);
            ClusterMap { version, ..map }
        }
        None => map,
    };
    open_with(source, uuid, newest, root, metrics)
}

fn open_with(
    source: EngineSource,
    uuid: [u8; 16],
    map: impl FnOnce(Option<ClusterMap>) -> ClusterMap,
    root: InodeId,
    metrics: Metrics,
) -> Result<StateHandle, EngineError> {
    let identity = Identity { cluster: uuid, shard: RECORDS_SHARD };
    let mut known = Known::default();
    let engine = source.open(identity, &mut |recovered| {
        match recovered {
            Recovered::Anew => known = Known::default(),
            Recovered::Fact(fact) => known.apply(fact)?,
        }
        Ok(())
    })?;
    let Known { sessions, ledger, reserved, joined, marks, policies, map: old } = known;
    failpoint!("coordinator.replayed");
    let map = map(old.clone());
    let decisions: Vec<_> = ledger.decisions.values().cloned().collect();
    let mut state = CoordinatorState {
        hub: Hub::default(),
        metrics,
        sessions,
        lease_clock: None,
        wanted: BTreeMap::new(),
        ledger,
        joined,
        marks,
        refused: BTreeMap::new(),
        policies,
        engine,
        rename_busy: false,
        rename_queue: VecDeque::new(),
        next_id: reserved,
        reserved_ids: reserved,
        changes: Vec::new(),
        map: Arc::new(map),
        root,
    };
    if old.as_ref() != Some(&*state.map) {
        let raw = state.map.encode_to_vec().into();
        state.log(What::Map(raw));
    }
    state.seal()?;
    state.engine.flush()?;
    let hub = state.hub.clone();
    let handle = StateHandle { state: Rc::new(RefCell::new(state)), hub };
    decisions.into_iter().for_each(|d| saker_rpc::txn::deliver(&handle.state, d));
    Ok(handle)
}

/// The map of a new cluster, or the known one with the members' present addresses.
fn updated_map(
    known: Option<ClusterMap>,
    uuid: [u8; 16],
    members: &Members,
    listen: &str,
) -> ClusterMap {
    let shards = members.shards.iter().enumerate().map(|(i, s)| ShardInfo {
        mnode: s.mnode,
        addr: s.addr.to_string(),
        // 0 is the coordinator's own.
        allocator: i as u32 + 1,
    });
    let fresh = ClusterMap {
        version: 1,
        uuid: Bytes::copy_from_slice(&uuid),
        hash_seed: saker_runtime::rand::u64(),
        shards: shards.collect(),
        stores: members.stores.iter().map(|a| StoreInfo { addr: a.to_string() }).collect(),
        slots: initial_slots(members.shards.len().max(1)),
        coordinator: listen.to_owned(),
        replicas: members.replicas.max(1),
        inline_max: members.inline_max.min(saker_types::limits::INLINE_BYTES_MAX),
        name: members.name.clone(),
        format: FORMAT,
        slots_version: 1,
    };
    let Some(known) = known else { return fresh };
    let mut map = known.clone();
    for (shard, fresh) in map.shards.iter_mut().zip(fresh.shards) {
        shard.addr = fresh.addr;
    }
    for (store, fresh) in map.stores.iter_mut().zip(fresh.stores) {
        store.addr = fresh.addr;
    }
    map.coordinator = fresh.coordinator;
    if map != known {
        map.version += 1;
    }
    map
}

impl CoordinatorState {
    /// A step begins: sessions whose clients are gone end.
    pub(crate) fn begin_step(&mut self, now: Time) {
        let (sessions, policies) = (&mut self.sessions, &mut self.policies);
        let lease_clock = self.lease_clock.get_or_insert_with(|| {
            sessions.begin_serving(now);
            policies.begin_serving(now);
            LeaseClock::new(now)
        });
        lease_clock.step(now);
        self.engine.begin_step(now);
        let ended = sessions.step(lease_clock.now());
        ended.into_iter().for_each(|what| self.log(what));
    }

    /// The time by which leases of clients end.
    pub(crate) fn lease_now(&self) -> Time {
        self.lease_clock.as_ref().map_or_else(|| self.hub.now(), LeaseClock::now)
    }

    /// Ends a step: its changes become one record.
    pub(crate) fn seal(&mut self) -> Result<(), EngineError> {
        if !self.changes.is_empty() {
            let record = Record { changes: std::mem::take(&mut self.changes) };
            self.engine.commit(&record);
        }
        let now = self.hub.now();
        let CoordinatorState { engine, map, reserved_ids, sessions, ledger, .. } = self;
        let CoordinatorState { joined, marks, policies, .. } = self;
        engine.end_step(now, || {
            failpoint!("coordinator.compacting");
            let counts = [What::Map(map.encode_to_vec().into()), What::IdsReserved(*reserved_ids)];
            let joined = joined.iter();
            let joined = joined.map(|(&(role, n), dir)| Joined { role, n, dir: dir.clone() });
            counts
                .into_iter()
                .chain(sessions.snapshot().map(What::Result))
                .chain(ledger.decisions.values().cloned().map(What::Decision))
                .chain(joined.map(What::Joined))
                .chain(marks.values().copied().map(What::Marked))
                .chain(policies.all().cloned().map(|record| What::Policy(Box::new(record))))
        })
    }

    /// An MNode or store starts on a data directory.
    ///
    /// # Errors
    /// EINVAL if the cluster has none of that number, EEXIST if it has served from another
    /// directory, EPERM if somebody else asks.
    pub(crate) fn join(&mut self, who: RoleKind, joined: Joined) -> Result<(), Error> {
        let Joined { role, n, dir } = joined;
        let (what, is_there) = match who {
            _ if who as u32 != role => return Err(Errno::EPERM.into()),
            RoleKind::Shard => ("MNode", self.map.shards.iter().any(|s| s.mnode == n)),
            RoleKind::Store => ("store", (n as usize) < self.map.stores.len()),
            _ => return Err(Errno::EPERM.into()),
        };
        if dir.len() != DIR_ID_BYTES {
            return Err(Error::new(Errno::EINVAL).with_text("that is no directory's id"));
        }
        if !is_there {
            let text = format!("the cluster has no {what} {n}");
            return Err(Error::new(Errno::EINVAL).with_text(text));
        }
        if let Some(before) = self.joined.get(&(role, n)) {
            if *before == dir {
                return Ok(());
            }
            let text =
                format!("{what} {n} had its data in another directory; is a disk not mounted?");
            return Err(Error::new(Errno::EEXIST).with_text(text));
        }
        tracing::info!("{what} {n} has joined");
        self.joined.insert((role, n), dir.clone());
        self.log(What::Joined(Joined { role, n, dir }));
        Ok(())
    }

    /// A shard has reserved ids, or a store begins to serve.
    ///
    /// # Errors
    /// ESTALE if its directory is behind what it has told, or this coordinator's is; EINVAL if the
    /// cluster has none of that number, EPERM if somebody else asks.
    pub(crate) fn mark(&mut self, who: RoleKind, msg: MarkReq) -> Result<(), Error> {
        let MarkReq { role, n, told, have, want, token } = msg;
        let (what, count) = match who {
            _ if who as u32 != role => return Err(Errno::EPERM.into()),
            RoleKind::Shard => ("shard", self.map.shards.len()),
            RoleKind::Store => ("store", self.map.stores.len()),
            _ => return Err(Errno::EPERM.into()),
        };
        if n as usize >= count || want < have {
            let text = format!("the cluster has no {what} {n}, or that is no mark");
            return Err(Error::new(Errno::EINVAL).with_text(text));
        }
        let known = self.marks.get(&(role, n)).copied().unwrap_or_default();
        if known.mark == want && known.token == token {
            return Ok(());
        }
        let behind = if known.mark < told {
            Some(format!("the coordinator's directory (it knows {} of {told})", known.mark))
        } else if have < known.mark {
            Some(format!("its directory (it has {have} of {})", known.mark))
        } else {
            None
        };
        if let Some(which) = behind {
            let why =
                format!("{what} {n}: {which} is older than it was; was it put back from a copy?");
            tracing::error!("{why}");
            self.refused.insert((role, n), why.clone());
            return Err(Error::new(Errno::ESTALE).with_text(why));
        }
        self.refused.remove(&(role, n));
        if want > known.mark {
            let marked = Marked { role, n, mark: want, token };
            self.marks.insert((role, n), marked);
            self.log(What::Marked(marked));
        }
        Ok(())
    }

    /// This counts of a policy from now on.
    pub(crate) fn note_policy(&mut self, record: PolicyReply) {
        self.log(What::Policy(Box::new(record.clone())));
        self.policies.restore(record);
    }

    /// Numbers never given out before, for inodes.
    ///
    /// # Errors
    /// ENOSPC: they are used up.
    pub(crate) fn new_ids(&mut self, count: u64) -> Result<IdRange, Error> {
        let first = self.next_id.max(ROOT + 1);
        let end = first + count;
        if end >= 1 << COUNTER_BITS {
            return Err(Error::new(Errno::ENOSPC).with_text("inode numbers are used up"));
        }
        if end > self.reserved_ids {
            self.reserved_ids = end + IDS_PER_RESERVATION;
            self.log(What::IdsReserved(self.reserved_ids));
        }
        self.next_id = end;
        Ok(IdRange { first: compose(0, first), count })
    }

    /// Who may not serve.
    pub(crate) fn refused(&self) -> RefusedReply {
        let refused = self.refused.iter();
        let members =
            refused.map(|(&(role, n), why)| RefusedMember { role, n, why: why.clone() }).collect();
        RefusedReply { members }
    }

    /// Answers everyone who waits for a mutation.
    pub(crate) fn finish(&mut self, session: u64, seq: u64, result: Result<Bytes, Error>) {
        self.wanted.remove(&(session, seq));
        let waiters = match &result {
            Ok(body) => {
                let ack = self.sessions.ack(session);
                let body = body.clone();
                // A session that ended meanwhile must not come back when the journal is replayed.
                if self.sessions.knows(session) {
                    let stored = StoredResult {
                        session,
                        seq,
                        ack,
                        body: body.clone(),
                        ..Default::default()
                    };
                    self.log(What::Result(stored));
                }
                self.sessions.finish(session, seq, None, 0, body)
            }
            Err(e) if e.class == 0 => {
                self.sessions.finish(session, seq, None, e.errno().0, e.encode_to_vec().into())
            }
            Err(_) => self.sessions.send_away(session, seq),
        };
        for to in waiters {
            self.send(to, &result);
        }
    }

    /// Refuses every change, if there is no room to say it.
    pub(crate) fn may_change_anything(&self) -> Result<(), Error> {
        match self.engine.level() {
            Level::Enough | Level::Short => Ok(()),
            Level::Out => {
                Err(Error::new(Errno::ENOSPC).with_text("the disk of the coordinator is full"))
            }
        }
    }

    /// A client asks for a mutation.
    pub(crate) fn want(&mut self, ctx: &Ctx, now: Time) {
        self.wanted.insert((ctx.session, ctx.seq), now + ctx.wait());
    }

    /// Does it still wait for the answer?
    pub(crate) fn is_wanted(&self, ctx: &Ctx, now: Time) -> bool {
        let until = self.wanted.get(&(ctx.session, ctx.seq));
        self.sessions.knows(ctx.session) && until.is_some_and(|until| now <= *until)
    }

    /// Sends an answer.
    pub(crate) fn send(&self, to: ReplyTo, result: &Result<Bytes, Error>) {
        let (status, body) = match result {
            Ok(body) => (0, body.clone()),
            Err(e) => (e.errno().0, e.encode_to_vec().into()),
        };
        self.send_raw(to, status, body);
    }

    /// Sends an encoded answer.
    pub(crate) fn send_raw(&self, to: ReplyTo, status: u16, body: Bytes) {
        let ReplyTo { conn, call, trace, op } = to;
        let kind = saker_rpc::FrameKind::Reply;
        let payload = Bytes::new();
        let op = op as u16;
        let map_version = 0;
        let frame = saker_rpc::Frame { kind, op, status, call, trace, map_version, body, payload };
        self.hub.reply(conn, frame);
    }

    /// Takes the turn for a rename of a directory, or a place in the queue.
    pub(crate) fn rename_turn(&mut self) -> Option<oneshot::Receiver<()>> {
        if !std::mem::replace(&mut self.rename_busy, true) {
            return None;
        }
        let (sender, receiver) = oneshot();
        self.rename_queue.push_back(sender);
        Some(receiver)
    }

    /// Gives the turn to the next.
    pub(crate) fn rename_done(&mut self) {
        while let Some(next) = self.rename_queue.pop_front() {
            if next.send(()).is_ok() {
                return;
            }
        }
        self.rename_busy = false;
    }
}

impl Driver for CoordinatorState {
    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn node(&self) -> NodeId {
        NodeId::Coordinator
    }

    fn map(&self) -> &Arc<ClusterMap> {
        &self.map
    }

    fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    fn log(&mut self, what: What) {
        self.changes.push(Change { what: Some(what) });
    }

    fn new_number(&mut self) -> Result<u64, Error> {
        if self.next_id >= self.reserved_ids {
            self.reserved_ids = self.next_id + IDS_PER_RESERVATION;
            self.log(What::IdsReserved(self.reserved_ids));
        }
        self.next_id += 1;
        Ok(compose(0, self.next_id - 1))
    }

    fn released(&mut self, _txn: TxnId, _own: Option<&Key>) {}
}

impl CoordinatorState {
    /// Numbers below this one are not given out: a coordinator before this one, whose records are not
    /// kept, may have done so.
    pub fn skip_numbers(&mut self, below: u64) {
        self.next_id = self.next_id.max(below);
        self.reserved_ids = self.reserved_ids.max(below);
    }
}

/// Key of an entry as invalidations carry it.
pub(crate) fn key_of(loc: &saker_types::Locator) -> EntryKey {
    EntryKey { pid: loc.pid, name: loc.name.clone() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_engine::embedded::{self, Sizes};
    use saker_runtime::fs::MemDir;
    use saker_runtime::telemetry::Registry;

    use super::*;
    use crate::config::ShardMember;

    const STORE: u32 = RoleKind::Store as u32;
    const SHARD: u32 = RoleKind::Shard as u32;
    /// Compacted after each batch.
    const SMALL: u64 = 1;

    fn open_on(disk: &MemDir, segment_bytes: u64) -> StateHandle {
        try_open(disk, segment_bytes).unwrap()
    }

    fn try_open(disk: &MemDir, segment_bytes: u64) -> Result<StateHandle, EngineError> {
        let addr = "127.0.0.1:7400".parse().unwrap();
        let members = Members {
            name: "test".into(),
            shards: vec![ShardMember { mnode: 0, addr }, ShardMember { mnode: 0, addr }],
            stores: vec![addr, addr],
            replicas: 1,
            inline_max: 4096,
        };
        let metrics = Metrics::new(&Registry::new());
        open(source(disk, segment_bytes), &members, "127.0.0.1:7400", metrics)
    }

    fn source(disk: &MemDir, segment_bytes: u64) -> EngineSource {
        let journal = Arc::new(disk.clone());
        EngineSource::Embedded(embedded::EmbeddedOptions {
            journal,
            table: None,
            sizes: Sizes::of_facts(segment_bytes),
        })
    }

    /// Asks, and flushes as is done before an answer leaves.
    fn join(h: &StateHandle, role: u32, n: u32, dir: u8) -> u16 {
        let joined = Joined { role, n, dir: Bytes::copy_from_slice(&[dir; DIR_ID_BYTES]) };
        let mut state = h.state();
        let who = RoleKind::from_wire(role).unwrap();
        let answer = state.join(who, joined);
        state.seal().unwrap();
        state.engine.flush().unwrap();
        answer.map_or_else(|e| e.errno().0, |()| 0)
    }

    #[test]
    fn a_member_starts_on_its_own_directory_only() {
        for segment_bytes in [SEGMENT_BYTES, SMALL] {
            let mut disk = MemDir::new();
            let mut h = open_on(&disk, segment_bytes);
            assert_eq!(join(&h, STORE, 1, b'a'), 0);
            for seed in 0..3 {
                assert_eq!(join(&h, STORE, 1, b'a'), 0, "again");
                assert_eq!(join(&h, STORE, 1, b'b'), Errno::EEXIST.0);
                disk = disk.crash(seed);
                h = open_on(&disk, segment_bytes);
            }
            assert_eq!(join(&h, SHARD, 0, b'c'), 0, "numbers are the role's");
            assert_eq!(join(&h, STORE, 0, b'd'), 0);
            assert_eq!(join(&h, SHARD, 0, b'b'), Errno::EEXIST.0);
        }
    }

    fn mark(h: &StateHandle, told: u64, have: u64, want: u64, token: u64) -> u16 {
        let mut state = h.state();
        let msg = MarkReq { role: SHARD, n: 1, told, have, want, token };
        let answer = state.mark(RoleKind::Shard, msg);
        state.seal().unwrap();
        state.engine.flush().unwrap();
        answer.map_or_else(|e| e.errno().0, |()| 0)
    }

    #[test]
    fn a_directory_that_was_put_back_is_refused() {
        for segment_bytes in [SEGMENT_BYTES, SMALL] {
            let disk = MemDir::new();
            let mut h = open_on(&disk, segment_bytes);
            assert_eq!(mark(&h, 0, 0, 100, 1), 0);
            let copy = disk.crash(1);
            assert_eq!(mark(&h, 100, 100, 200, 2), 0);
            assert_eq!(mark(&h, 100, 100, 200, 2), 0, "the answer was lost");
            h = open_on(&disk.crash(2), segment_bytes);
            // What was raised and not told is no reason to refuse.
            assert_eq!(mark(&h, 200, 300, 400, 3), 0);
            assert_eq!(mark(&h, 400, 400, 400, 0), 0, "compared");
            assert_eq!(mark(&h, 100, 100, 400, 4), Errno::ESTALE.0, "its copy");
            assert_eq!(h.state().refused().members.len(), 1);
            assert!(h.state().refused().members[0].why.contains("its directory"));
            assert_eq!(mark(&h, 400, 400, 500, 5), 0, "the right one again");
            assert_eq!(h.state().refused().members, []);
            let old = open_on(&copy, segment_bytes);
            assert_eq!(mark(&old, 500, 500, 600, 6), Errno::ESTALE.0);
            assert!(old.state().refused().members[0].why.contains("the coordinator's directory"));
        }
    }

    #[test]
    fn a_mark_is_told_by_its_node() {
        let h = open_on(&MemDir::new(), SEGMENT_BYTES);
        let msg = MarkReq { role: STORE, n: 0, want: 1, ..MarkReq::default() };
        let ask = |who, msg| h.state().mark(who, msg).map_err(|e| e.errno());
        assert_eq!(ask(RoleKind::Shard, msg), Err(Errno::EPERM));
        assert_eq!(ask(RoleKind::Store, MarkReq { n: 2, ..msg }), Err(Errno::EINVAL));
        assert_eq!(ask(RoleKind::Store, MarkReq { have: 2, ..msg }), Err(Errno::EINVAL));
        assert_eq!(ask(RoleKind::Store, msg), Ok(()));
    }

    #[test]
    fn a_cluster_of_another_format_is_not_opened() {
        let disk = MemDir::new();
        let mut map = (*open_on(&disk, SEGMENT_BYTES).state().map).clone();
        map.check().unwrap();
        map.format -= 1;
        let cluster = map.uuid[..].try_into().unwrap();
        let disk = MemDir::new();
        let identity = Identity { cluster, shard: RECORDS_SHARD };
        let mut engine = source(&disk, SEGMENT_BYTES).open(identity, &mut |_| Ok(())).unwrap();
        let what = Some(What::Map(map.encode_to_vec().into()));
        engine.commit(&Record { changes: vec![Change { what }] });
        engine.flush().unwrap();
        drop(engine);
        let error = try_open(&disk, SEGMENT_BYTES).err().unwrap().to_string();
        assert!(error.contains("another version of Saker"), "{error}");
    }

    #[test]
    fn nobody_joins_whom_the_cluster_does_not_have() {
        let h = open_on(&MemDir::new(), SEGMENT_BYTES);
        assert_eq!(join(&h, STORE, 2, b'a'), Errno::EINVAL.0);
        assert_eq!(join(&h, SHARD, 1, b'a'), Errno::EINVAL.0);
        assert_eq!(join(&h, RoleKind::Client as u32, 0, b'a'), Errno::EPERM.0);
        let joined = Joined { role: STORE, n: 0, dir: Bytes::from_static(b"short") };
        let ask = |who| h.state().join(who, joined.clone()).unwrap_err();
        assert_eq!(ask(RoleKind::Shard).errno(), Errno::EPERM);
        assert_eq!(ask(RoleKind::Store).errno(), Errno::EINVAL);
    }
}
