//! A shard alone in its cluster, on an engine in memory, for tests of operations: it is asked as a
//! client asks, and its rows are looked at.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_engine::{Engine, EngineSource, memory};
use saker_rpc::frame::Frame;
use saker_rpc::hello::{PeerHello, RoleKind};
use saker_rpc::hub::decode_reply;
use saker_rpc::node::{CallId, Conditions, ConnId, Input, Outbox, Outgoing, StateMachine};
use saker_runtime::telemetry::Registry;
use saker_runtime::time::Time;
use saker_types::change::{Gone, parse_slot_key, table};
use saker_types::placement::{FORMAT, ShardInfo, StoreInfo, initial_slots};
use saker_types::wire::*;
use saker_types::{
    Class, ClusterMap, Cred, Errno, Error, FileKind, Inode, InodeId, Locator, NodeId, ROOT,
    ShardNo, limits,
};

use crate::metrics::Metrics;
use crate::recover::{self, ShardOptions};
use crate::service::ShardWorker;
use crate::shard::{Shard, ShardLimits};

const WALL_NS: i64 = 1_800_000_000_000_000_000;
const SESSION: u64 = 7;
const CLIENT: ConnId = ConnId(1);
/// Steps within which a request is answered.
const STEPS_MAX: usize = 10_000;

/// A path below the root.
pub(crate) fn at(path: &str) -> At {
    let names = path.split('/').filter(|name| !name.is_empty());
    let names = names.map(|name| Bytes::copy_from_slice(name.as_bytes())).collect();
    At::below(Locator::root(), names)
}

/// A user with one group.
pub(crate) fn user(id: u32) -> Cred {
    Cred { uid: id, gid: id, groups_known: true, ..Cred::default() }
}

/// The error number of an answer that must be an error.
pub(crate) fn errno<T: std::fmt::Debug>(answer: Result<T, Error>) -> Errno {
    answer.unwrap_err().errno()
}

/// The shard, and the client that asks it.
pub(crate) struct Tester {
    home: memory::MemoryStorage,
    shard: Rc<RefCell<Shard>>,
    worker: ShardWorker,
    outbox: Outbox,
    now: Time,
    calls: u64,
    seq: u64,
    /// Who asks.
    pub(crate) cred: Cred,
    /// What the shard has asked of stores, which do not answer.
    pub(crate) asked: Vec<(NodeId, Op)>,
    /// Steps in which the last request was not answered.
    pub(crate) waited: usize,
    /// What the last answer waited for, and where the records ended then.
    pub(crate) answered_when: Conditions,
    pub(crate) records_then: u64,
    /// Where the records ended before the last request.
    pub(crate) records_before: u64,
}

impl Tester {
    /// A shard with the root directory, asked by the superuser.
    pub(crate) fn new() -> Tester {
        Tester::on(memory::MemoryStorage::new())
    }

    /// The same on an engine that loads rows when they are asked for.
    pub(crate) fn cold() -> Tester {
        Tester::on(memory::MemoryStorage::new().cold())
    }

    fn on(home: memory::MemoryStorage) -> Tester {
        let now = Time::from_ns(1_000_000_000);
        let (shard, worker) = start(&home, now);
        let (calls, seq, waited) = Default::default();
        let (cred, asked) = (Cred::root(), Vec::new());
        let outbox = Outbox::new();
        let (answered_when, records_then, records_before) = (Conditions::NONE, 0, 0);
        let mut t = Tester {
            home,
            shard,
            worker,
            outbox,
            now,
            calls,
            seq,
            cred,
            asked,
            waited,
            answered_when,
            records_then,
            records_before,
        };
        let session = SessionReq { session: SESSION };
        t.ask::<Empty>(Op::OpenSession, &session).expect("a session");
        t
    }

    /// It dies, and starts from what is durable.
    pub(crate) fn restart(&mut self) {
        self.now += Duration::from_secs(1);
        (self.shard, self.worker) = start(&self.home, self.now);
        self.outbox = Outbox::new();
    }

    /// The shard's state.
    pub(crate) fn shard(&self) -> RefMut<'_, Shard> {
        self.shard.borrow_mut()
    }

    // ---- requests -------------------------------------------------------------------------

    /// The context of a new request.
    pub(crate) fn ctx(&mut self) -> Ctx {
        self.seq += 1;
        Ctx { cred: self.cred.clone(), session: SESSION, seq: self.seq, ack: 1, ..Ctx::default() }
    }

    /// Asks, and lets time go on until there is an answer, which is durable.
    pub(crate) fn ask<R: Message + Default>(
        &mut self,
        op: Op,
        body: &impl Message,
    ) -> Result<R, Error> {
        self.ask_as(peer(RoleKind::Client, None), op, body)
    }

    /// The same, as the coordinator.
    pub(crate) fn command<R: Message + Default>(
        &mut self,
        op: Op,
        body: &impl Message,
    ) -> Result<R, Error> {
        self.ask_as(peer(RoleKind::Coordinator, Some(NodeId::Coordinator)), op, body)
    }

    fn ask_as<R: Message + Default>(
        &mut self,
        who: PeerHello,
        op: Op,
        body: &impl Message,
    ) -> Result<R, Error> {
        self.calls += 1;
        self.records_before = self.worker.appended();
        let body = body.encode_to_vec().into();
        let frame = Frame::request(op as u16, 0, body, Bytes::new());
        let frame = Frame { call: self.calls, ..frame };
        let peer = Rc::new(who);
        let mut inputs = VecDeque::from([Input::Request { conn: CLIENT, peer, frame }]);
        for waited in 0..STEPS_MAX {
            self.waited = waited;
            if let Some(answer) = self.step(&mut inputs) {
                // What it says to itself after its answer: how transactions end.
                while !inputs.is_empty() {
                    self.step(&mut inputs);
                }
                return decode_reply(Ok(answer));
            }
            if inputs.is_empty() {
                let next = self.worker.next_deadline();
                self.now = self.now.max(next.expect("something is waited for"));
            }
        }
        panic!("no answer to {}", op.name());
    }

    /// The coordinator commands something, and the shard goes on with it for so many steps.
    pub(crate) fn command_for_steps(&mut self, op: Op, body: &impl Message, steps: usize) {
        self.calls += 1;
        let frame = Frame::request(op as u16, 0, body.encode_to_vec().into(), Bytes::new());
        let frame = Frame { call: self.calls, ..frame };
        let peer = Rc::new(peer(RoleKind::Coordinator, Some(NodeId::Coordinator)));
        let mut inputs = VecDeque::from([Input::Request { conn: CLIENT, peer, frame }]);
        for _ in 0..steps {
            assert!(self.step(&mut inputs).is_none(), "{} is over", op.name());
            let next = self.worker.next_deadline();
            self.now = self.now.max(next.expect("something is waited for"));
        }
    }

    /// Runs one step; what it says to itself comes in the next.
    fn step(&mut self, inputs: &mut VecDeque<Input>) -> Option<Frame> {
        let wall_ns = WALL_NS + self.now.as_ns() as i64;
        self.worker.step(self.now, wall_ns, inputs, &mut self.outbox);
        self.worker.flush().expect("memory");
        let (durable, written) = (self.worker.conditions(), self.worker.conditions_when_written());
        let said: Vec<_> = self.outbox.drain(durable, written).collect();
        let mut answer = None;
        for (when, message) in said {
            match message {
                Outgoing::Reply { conn: CLIENT, frame } => {
                    (answer, self.answered_when) = (Some(frame), when);
                    self.records_then = self.worker.appended();
                }
                Outgoing::Reply { frame, .. } => {
                    let call = CallId(frame.call);
                    inputs.push_back(Input::Reply { call, result: Ok(frame) });
                }
                Outgoing::Call { to, frame, .. } => {
                    let to = NodeId::from_u32(to.0).expect("a node");
                    let op = Op::from_u16(frame.op).expect("an operation");
                    if to == NodeId::Shard(0) {
                        let peer = Rc::new(peer(RoleKind::Shard, Some(to)));
                        inputs.push_back(Input::Request { conn: ConnId::LOOPBACK, peer, frame });
                    } else {
                        self.asked.push((to, op));
                    }
                }
            }
        }
        answer
    }

    /// A request to make something.
    pub(crate) fn create_req(&mut self, path: &str, kind: FileKind) -> CreateReq {
        let (ctx, at, mode) = (self.ctx(), at(path), kind.bits() | 0o755);
        CreateReq { ctx, at, mode, exclusive: true, access: 6, ..CreateReq::default() }
    }

    /// Makes a file.
    pub(crate) fn create(&mut self, path: &str) -> Result<Entry, Error> {
        let request = self.create_req(path, FileKind::Regular);
        self.ask(Op::Create, &request)
    }

    /// Makes a directory.
    pub(crate) fn mkdir(&mut self, path: &str) -> Result<Entry, Error> {
        let request = self.create_req(path, FileKind::Directory);
        self.ask(Op::Mkdir, &request)
    }

    /// Makes a symbolic link.
    pub(crate) fn symlink(&mut self, target: &'static str, path: &str) -> Result<Entry, Error> {
        let request = self.create_req(path, FileKind::Symlink);
        self.ask(Op::Symlink, &CreateReq { target: target.into(), ..request })
    }

    /// Makes another name.
    pub(crate) fn link(&mut self, from: &str, to: &str) -> Result<Entry, Error> {
        let ctx = self.ctx();
        self.ask(Op::Link, &LinkReq { ctx, from: at(from), to: at(to) })
    }

    /// Removes a name.
    pub(crate) fn unlink(&mut self, path: &str) -> Result<Removed, Error> {
        let ctx = self.ctx();
        self.ask(Op::Unlink, &RemoveReq { ctx, at: at(path) })
    }

    /// Looks at an inode.
    pub(crate) fn lookup(&mut self, path: &str) -> Result<Entry, Error> {
        let ctx = Ctx { seq: 0, ..self.ctx() };
        self.ask(Op::Lookup, &EntryReq { ctx, at: at(path), full: false })
    }

    // ---- rows -----------------------------------------------------------------------------

    fn key(&self, path: &str) -> Option<saker_types::Key> {
        let at = at(path);
        let (name, way) = at.path.split_last()?;
        let mut s = self.shard();
        let mut dir = ROOT;
        for name in way {
            let key = s.map.key(dir, name);
            dir = s.entry(&key).expect("readable")?.attr.id;
        }
        Some(s.map.key(dir, name))
    }

    /// The row of an entry.
    pub(crate) fn row(&self, path: &str) -> Option<Inode> {
        let key = self.key(path)?;
        let row = self.shard().entry(&key).expect("readable")?;
        Some((*row).clone())
    }

    /// Changes the row of an entry by hand.
    pub(crate) fn edit(&mut self, path: &str, f: impl FnOnce(&mut Inode)) {
        let mut inode = self.row(path).expect("a row");
        let key = self.key(path).expect("a key");
        f(&mut inode);
        let mut s = self.shard();
        s.update_entry(&key, inode);
        s.seal();
    }

    /// The attribute row of a hard-linked inode.
    pub(crate) fn attr_row(&self, id: InodeId) -> Option<Inode> {
        self.row_of_slot(table::ATTR, id)
    }

    /// What became of an inode.
    pub(crate) fn gone(&self, id: InodeId) -> Option<Gone> {
        self.row_of_slot(table::GONE, id)
    }

    /// The row of an inode in a table whose keys have its slot, whichever that is.
    fn row_of_slot<T: Message + Default>(&self, table: u8, id: InodeId) -> Option<T> {
        let mut found = None;
        let scanned = self.shard().engine.scan(&[table], &[table + 1], |key, value| {
            if parse_slot_key(key).is_some_and(|(_, of)| of == id) {
                found = Some(T::decode(value).expect("a row"));
            }
            ControlFlow::Continue(())
        });
        scanned.expect("memory");
        found
    }

    /// Entries and subdirectories of a directory.
    pub(crate) fn counts(&self, dir: InodeId) -> (u64, u64) {
        let totals = self.shard().totals(dir).expect("readable");
        (totals.entries, totals.subdirs)
    }
}

fn start(home: &memory::MemoryStorage, now: Time) -> (Rc<RefCell<Shard>>, ShardWorker) {
    let metrics = Metrics::new(&Registry::new());
    let limits = ShardLimits { inodes: 64, replica: 64, ..ShardLimits::default() };
    let home = ShardOptions { source: EngineSource::Memory(home.clone()), no: 0, limits, metrics };
    let shard = recover::open_at(home, Arc::new(one_shard()), now, 0).expect("it starts");
    let worker = ShardWorker::new(shard.clone());
    (shard, worker)
}

fn one_shard() -> ClusterMap {
    let addr = "127.0.0.1:1".to_owned();
    ClusterMap {
        slots_version: 1,
        version: 1,
        uuid: Bytes::from_static(&[3; 16]),
        hash_seed: 5,
        shards: vec![ShardInfo { mnode: 0, addr: addr.clone(), allocator: 1 }],
        stores: vec![StoreInfo { addr: addr.clone() }],
        slots: initial_slots(1),
        coordinator: addr,
        replicas: 1,
        inline_max: 4096,
        name: "test".into(),
        format: FORMAT,
    }
}

fn peer(role: RoleKind, node: Option<NodeId>) -> PeerHello {
    PeerHello {
        protocol: 1,
        cluster: Some([3; 16]),
        role,
        node: node.map_or(saker_rpc::NodeNumber::NONE, |node| saker_rpc::NodeNumber(node.to_u32())),
        session: 0,
        map_version: 0,
        features: 0,
        ip: None,
    }
}

#[test]
fn what_was_answered_is_there_after_a_restart_and_a_retry_gets_the_same_answer() {
    let mut t = Tester::new();
    t.mkdir("d").unwrap();
    let request = t.create_req("d/f", FileKind::Regular);
    let made: Entry = t.ask(Op::Create, &request).unwrap();
    t.restart();
    assert_eq!(t.row("d/f").unwrap().attr, made.attr);
    assert_eq!(t.ask::<Entry>(Op::Create, &request).unwrap(), made);
    let again = CreateReq { ctx: t.ctx(), ..request };
    assert_eq!(errno(t.ask::<Entry>(Op::Create, &again)), Errno::EEXIST);
    // More than the engine keeps records of.
    for n in 0..100 {
        t.create(&format!("d/{n}")).unwrap();
    }
    t.restart();
    assert_eq!(t.counts(t.row("d").unwrap().attr.id), (101, 0));
}

#[test]
fn a_request_waits_while_its_rows_are_loaded() {
    let mut t = Tester::cold();
    t.mkdir("d").unwrap();
    let made = t.create("d/f").unwrap();
    t.link("d/f", "d/g").unwrap();
    assert_eq!(t.lookup("d/f").unwrap().attr.nlink, 2);
    assert_eq!(t.waited, 0, "what was changed is known");
    t.restart();
    assert_eq!(t.lookup("d/f").unwrap().attr.nlink, 2);
    assert!(t.waited >= 3, "the directory, the name, the attributes: {}", t.waited);
    t.lookup("d/f").unwrap();
    assert_eq!(t.waited, 0);
    // That there is none has to be found out, too.
    assert_eq!(errno(t.lookup("d/absent")), Errno::ENOENT);
    assert!(t.waited >= 1);
    t.restart();
    assert_eq!(t.unlink("d/g").unwrap().inode, made.attr.id);
    t.restart();
    assert_eq!(errno(t.lookup("d/g")), Errno::ENOENT);
    assert_eq!(t.attr_row(made.attr.id).unwrap().attr.nlink, 1);
}

#[test]
fn an_answer_may_send_its_client_elsewhere() {
    let mut t = Tester::new();
    t.mkdir("d").unwrap();
    let ctx = t.ctx();
    let rename = RenameReq { ctx, from: at("d"), to: at("e"), ..RenameReq::default() };
    let answer = t.ask::<RenameReply>(Op::Rename, &rename).unwrap_err();
    assert!(answer.is(Class::UseCoordinator));
}

/// Two shards; all slots are the first one's.
pub(crate) fn map() -> ClusterMap {
    let addr = || "127.0.0.1:1".to_owned();
    let shard = |allocator| ShardInfo { mnode: 0, addr: addr(), allocator };
    ClusterMap {
        version: 1,
        uuid: Bytes::from_static(&[7; 16]),
        hash_seed: 42,
        shards: vec![shard(1), shard(2)],
        slots: vec![0; limits::SLOTS * 2].into(),
        coordinator: addr(),
        format: FORMAT,
        slots_version: 1,
        ..Default::default()
    }
}

/// A shard of these two, on what is left of an earlier one.
pub(crate) fn open(
    no: ShardNo,
    home: &memory::MemoryStorage,
    map: &ClusterMap,
) -> Rc<RefCell<Shard>> {
    let metrics = Metrics::new(&Registry::new());
    let source = EngineSource::Memory(home.clone());
    let home = ShardOptions { source, no, limits: ShardLimits::default(), metrics };
    recover::open_at(home, Arc::new(map.clone()), Time::ZERO, WALL_NS).expect("it starts")
}
