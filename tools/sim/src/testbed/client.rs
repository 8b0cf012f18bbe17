//! The testbed's client: requests with a session and numbers, sent once each, so that the test
//! decides what is sent again.

use std::time::Duration;

use bytes::Bytes;
use saker_rpc::frame::Frame;
use saker_rpc::hub::decode_reply;
use saker_types::wire::*;
use saker_types::{Class, Cred, Errno, Error, FileKind, Locator, NodeId};

use super::{Message, Testbed, TestbedPeer};

const SESSION: u64 = 77;
/// Attempts of [`Testbed::run`], and the time between them.
const ATTEMPTS: u32 = 400;
const PAUSE: Duration = Duration::from_millis(10);

/// What a request ends in.
pub type RequestResult<R> = Result<R, Error>;

/// A path below the root; empty for the root itself.
pub fn at(path: &str) -> At {
    below(Locator::root(), path)
}

/// A path below a directory.
pub fn below(anchor: Locator, path: &str) -> At {
    let names = path.split('/').filter(|name| !name.is_empty());
    At::below(anchor, names.map(|name| Bytes::copy_from_slice(name.as_bytes())).collect())
}

/// A shard's number as a node's.
pub fn shard(n: u16) -> NodeId {
    NodeId::Shard(n)
}

/// The error number of an answer that must be an error.
///
/// # Panics
/// If it is none.
pub fn errno<T: std::fmt::Debug>(answer: RequestResult<T>) -> Errno {
    answer.expect_err("an error").errno()
}

/// A testbed with a directory owned by shard 0 whose entry all shards have in their replicas.
///
/// # Panics
/// If it cannot be made.
pub fn with_dir(shards: u16) -> (Testbed, String) {
    let mut b = Testbed::new(shards);
    let dir = b.name_on(shard(0), "dir");
    b.mkdir(&dir).expect("a new directory");
    for s in b.shards() {
        let name = b.name_on(s, "absent");
        assert_eq!(errno(b.lookup(&at(&format!("{dir}/{name}")))), Errno::ENOENT);
    }
    (b, dir)
}

impl Testbed {
    /// Opens the client's session on every node, also where it has ended.
    ///
    /// # Panics
    /// If one refuses.
    pub fn open_session(&mut self) {
        self.open_session_but(|_| false);
    }

    /// The same while some messages are held.
    ///
    /// # Panics
    /// If one refuses.
    pub fn open_session_but(&mut self, held: impl Fn(&Message) -> bool) {
        let nodes: Vec<NodeId> = self.shards().into_iter().chain([NodeId::Coordinator]).collect();
        for node in nodes {
            let call = self.ask(Op::OpenSession, node, &SessionReq { session: SESSION });
            self.settle_but(&held);
            self.answer::<Empty>(call).expect("answered").expect("a session");
        }
    }

    /// The context of a new mutation, of the superuser.
    pub fn ctx(&mut self) -> Ctx {
        self.seq += 1;
        Ctx {
            cred: Cred::root(),
            session: SESSION,
            seq: self.seq,
            // Nothing is acknowledged: tests may send anything again.
            ack: 1,
            wait_ms: 5_000,
            ..Ctx::default()
        }
    }

    /// Puts a request on the wire; the number of the call.
    pub fn ask(&mut self, op: Op, to: NodeId, body: &impl prost::Message) -> u64 {
        self.ask_with(op, to, body, Bytes::new())
    }

    /// The same with a payload.
    pub fn ask_with(
        &mut self,
        op: Op,
        to: NodeId,
        body: &impl prost::Message,
        payload: Bytes,
    ) -> u64 {
        self.calls += 1;
        let frame = Frame::request(op as u16, 0, body.encode_to_vec().into(), payload);
        let frame = Frame { call: self.calls, ..frame };
        self.asked.insert(self.calls, to);
        let (from, to) = (TestbedPeer::Client, TestbedPeer::Node(to));
        self.wire.push(Message { from, to, op, is_reply: false, life: 0, frame });
        self.calls
    }

    /// The answer to a call, if it has come; a broken connection is an error of class Retry.
    pub fn answer<R: prost::Message + Default>(&mut self, call: u64) -> Option<RequestResult<R>> {
        let answer = self.answers.remove(&call)?;
        self.trailer = answer.as_ref().map_or_else(Bytes::new, |frame| frame.payload.clone());
        Some(decode_reply(answer.ok_or(saker_rpc::CallError::Disconnected)))
    }

    /// The names that the last answer lends to a request about `at`.
    ///
    /// # Panics
    /// If these are not what it asks for.
    pub fn lent(&self, at: &At) -> Vec<KeptDir> {
        KeptDirs::read(&self.trailer, at).expect("leases that were asked for")
    }

    /// Asks, delivers everything, and lets time go on until there is an answer other than "try
    /// again".
    ///
    /// # Panics
    /// If there is none after some seconds.
    pub fn run<R: prost::Message + Default>(
        &mut self,
        op: Op,
        to: NodeId,
        body: &impl prost::Message,
    ) -> RequestResult<R> {
        for _ in 0..ATTEMPTS {
            let call = self.ask(op, to, body);
            for _ in 0..ATTEMPTS {
                self.settle();
                match self.answer(call) {
                    None => self.advance(PAUSE),
                    Some(Err(e)) if e.is(Class::Retry) => break,
                    Some(answer) => return answer,
                }
            }
            self.advance(PAUSE);
        }
        panic!("no answer to {}", op.name());
    }

    /// Lets time go on, and delivers what is said meanwhile.
    pub fn pass(&mut self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            self.settle();
            self.advance(PAUSE.min(left));
            left = left.saturating_sub(PAUSE);
        }
        self.settle();
    }

    /// The owner of what a request is about.
    pub fn owner_of(&self, at: &At) -> NodeId {
        NodeId::Shard(self.map().shard_for(at))
    }

    /// A request to make something.
    pub fn create_req(&mut self, at: At, kind: FileKind) -> CreateReq {
        let mode = kind.bits() | 0o755;
        CreateReq { ctx: self.ctx(), at, mode, exclusive: true, access: 6, ..CreateReq::default() }
    }

    /// Makes a directory.
    pub fn mkdir(&mut self, path: &str) -> RequestResult<Entry> {
        let request = self.create_req(at(path), FileKind::Directory);
        self.run(Op::Mkdir, self.owner_of(&request.at), &request)
    }

    /// Makes a file.
    pub fn create(&mut self, path: &str) -> RequestResult<Entry> {
        let request = self.create_req(at(path), FileKind::Regular);
        self.run(Op::Create, self.owner_of(&request.at), &request)
    }

    /// Makes a symbolic link.
    pub fn symlink(&mut self, target: &'static str, path: &str) -> RequestResult<Entry> {
        let request = self.create_req(at(path), FileKind::Symlink);
        let target = Bytes::from_static(target.as_bytes());
        let request = CreateReq { target, ..request };
        self.run(Op::Symlink, self.owner_of(&request.at), &request)
    }

    /// What is at a place; does not follow hard links to their home.
    pub fn lookup(&mut self, at: &At) -> RequestResult<Entry> {
        self.get(Op::Lookup, at)
    }

    /// What is at a place, found while some messages are held.
    ///
    /// # Panics
    /// If it is not answered without them.
    pub fn lookup_but(&mut self, at: &At, held: impl Fn(&Message) -> bool) -> Entry {
        let request = EntryReq { at: at.clone(), ..EntryReq::default() };
        let call = self.ask(Op::Lookup, self.owner_of(at), &request);
        self.settle_but(held);
        self.answer(call).expect("an answer").expect("an entry")
    }

    /// All attributes of what is at a place; follows hard links to their home.
    pub fn stat(&mut self, at: &At) -> RequestResult<Entry> {
        match self.get(Op::Getattr, at) {
            Err(e) if e.is(Class::Moved) => {
                let moved = e.moved.expect("a place");
                self.get(Op::Getattr, &At::handle(*moved))
            }
            other => other,
        }
    }

    fn get(&mut self, op: Op, at: &At) -> RequestResult<Entry> {
        let ctx = Ctx { cred: Cred::root(), wait_ms: 5_000, ..Ctx::default() };
        let request = EntryReq { ctx, at: at.clone(), full: op == Op::Getattr };
        self.run(op, self.owner_of(at), &request)
    }

    /// Removes a name.
    pub fn unlink(&mut self, path: &str) -> RequestResult<Empty> {
        let request = RemoveReq { ctx: self.ctx(), at: at(path) };
        self.run(Op::Unlink, self.owner_of(&request.at), &request)
    }

    /// Removes a directory.
    pub fn rmdir(&mut self, path: &str) -> RequestResult<Empty> {
        let request = RemoveReq { ctx: self.ctx(), at: at(path) };
        self.run(Op::Rmdir, NodeId::Coordinator, &request)
    }

    /// A request to rename; the chains of directories are looked up.
    ///
    /// # Panics
    /// If a parent is not there.
    pub fn rename_req(&mut self, from: &str, to: &str) -> RenameReq {
        let (from_chain, to_chain) = (self.chain(from), self.chain(to));
        let (from, to) = (at(from), at(to));
        RenameReq { ctx: self.ctx(), from, to, flags: 0, to_chain, from_chain }
    }

    fn chain(&mut self, path: &str) -> Vec<Locator> {
        let names: Vec<&str> = path.split('/').collect();
        let parents = (1..names.len()).map(|len| names[..len].join("/"));
        parents.map(|parent| self.lookup(&at(&parent)).expect("a parent").loc).collect()
    }

    /// Renames, whatever it is.
    pub fn rename(&mut self, from: &str, to: &str) -> RequestResult<RenameReply> {
        self.rename_by(from, to, 0)
    }

    /// Exchanges, whatever they are.
    pub fn exchange(&mut self, from: &str, to: &str) -> RequestResult<RenameReply> {
        self.rename_by(from, to, rename_flags::EXCHANGE)
    }

    fn rename_by(&mut self, from: &str, to: &str, flags: u32) -> RequestResult<RenameReply> {
        let request = RenameReq { flags, ..self.rename_req(from, to) };
        match self.run(Op::Rename, self.owner_of(&request.from), &request) {
            Err(e) if e.is(Class::UseCoordinator) => {
                self.run(Op::Rename, NodeId::Coordinator, &request)
            }
            other => other,
        }
    }

    /// Links a name as another.
    pub fn link(&mut self, from: &str, to: &str) -> RequestResult<Entry> {
        let mut request = LinkReq { ctx: self.ctx(), from: at(from), to: at(to) };
        match self.run(Op::Link, self.owner_of(&request.from), &request) {
            Err(e) if e.is(Class::Moved) => {
                request.from = At::handle(*e.moved.expect("a place"));
                self.run(Op::Link, self.owner_of(&request.from), &request)
            }
            other => other,
        }
    }

    /// Changes attributes: at the owner, or where that sends us.
    pub fn setattr(&mut self, request: &SetattrReq) -> RequestResult<Entry> {
        match self.run(Op::Setattr, self.owner_of(&request.at), request) {
            Err(e) if e.is(Class::UseCoordinator) => {
                self.run(Op::Setattr, NodeId::Coordinator, request)
            }
            other => other,
        }
    }
}

impl Testbed {
    /// Removes a directory while some messages are held.
    ///
    /// # Panics
    /// If it is not answered without them.
    pub fn rmdir_but(
        &mut self,
        path: &str,
        held: impl Fn(&Message) -> bool,
    ) -> RequestResult<Empty> {
        let request = RemoveReq { ctx: self.ctx(), at: at(path) };
        let call = self.ask(Op::Rmdir, NodeId::Coordinator, &request);
        self.settle_but(held);
        self.answer(call).expect("an answer")
    }
}
