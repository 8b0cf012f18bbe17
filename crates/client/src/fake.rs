//! A cluster in memory for tests: one directory of files, two shards, two stores. It executes a
//! request when it is sent, and fails as it is told.

pub(crate) mod setup;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_rpc::{Call, CallError, Frame, Sleep, Transport};
use saker_types::limits::CHUNK_BYTES;
use saker_types::placement::{FORMAT, ShardInfo, StoreInfo, initial_slots};
use saker_types::policy::PolicyId;
use saker_types::wire::*;
use saker_types::{Attr, Class, ClusterMap, Errno, Error, FileKind, Inode, Locator, Result};

use crate::core::Core;
use crate::net::Net;
use crate::{ClientOptions, Fs};

/// What goes wrong with a request.
pub(crate) enum RequestFault {
    /// It is lost on its way.
    Lost,
    /// Nobody ever answers.
    Hang,
    /// It is executed; its answer comes when [`Fake::deliver_answers`] says so.
    Slow,
    /// It is executed; its answer is lost.
    AnswerLost,
    /// It is held up, and executed when [`Fake::deliver_late`] says so; nobody hears of it.
    Late,
    /// This is answered, and nothing done.
    Answer(Error),
    /// This happens right before it is executed.
    Before(Box<dyn FnOnce(&mut FakeModel) + Send>),
}

/// Port of the first shard; stores follow at 100, the coordinator is 1.
const SHARD_PORT: u16 = 10;
const STORE_PORT: u16 = 100;

type Answer = std::result::Result<Frame, CallError>;

#[derive(Default)]
pub(crate) struct FakeModel {
    /// Of each answer to a lookup, and of each error that a test has asked for.
    pub(crate) trailer: Bytes,
    pub(crate) files: BTreeMap<Bytes, Inode>,
    /// By store, inode and index.
    pub(crate) chunks: BTreeMap<(u16, u64, u64), Vec<u8>>,
    /// Truncate generation that stores know.
    pub(crate) generations: BTreeMap<u64, u64>,
    /// Where stores say that data is, when they are asked for that.
    pub(crate) place: Option<(LocalDir, ChunkPlace)>,
    /// Stores say that there are holes within chunks.
    pub(crate) holes: bool,
    pub(crate) synced: Vec<u16>,
    pub(crate) renewals: Vec<RenewReq>,
    /// Where files are said to be, in turn.
    pub(crate) elsewhere: VecDeque<Locator>,
    /// Of all stores, whose writes have no numbers.
    pub(crate) epoch: u64,
    pub(crate) lost_epochs: Vec<u64>,
    /// Files that are locked by the client. Those that are taken out it has lost.
    pub(crate) locked: BTreeSet<u64>,
    /// Everything is under this policy.
    pub(crate) policy: u64,
    /// Who holds that, and in which epoch; 0: nobody.
    pub(crate) held_by: (u64, u64),
    /// The lease of that has ended.
    pub(crate) is_lapsed: bool,
    /// Epochs so far.
    pub(crate) epochs: u64,
    sessions: Vec<(SocketAddr, u64)>,
    results: BTreeMap<(u64, u64), (u16, Bytes)>,
    faults: VecDeque<(Op, RequestFault)>,
    hanging: Vec<saker_rpc::client::CallPromise>,
    /// The answer to this request is slow.
    held: Option<Answer>,
    slow: Vec<(saker_rpc::client::CallPromise, Answer)>,
    late: Vec<(SocketAddr, Op, Frame)>,
    /// Chunk writes whose earlier attempts are refused.
    barred: BTreeMap<(u16, u64, u64), u32>,
    pub(crate) log: Vec<(Op, u16)>,
    clock: u64,
    ids: u64,
}

pub(crate) struct Fake(Mutex<FakeModel>);

pub(crate) fn map() -> ClusterMap {
    let addr = |port: u16| format!("127.0.0.1:{port}");
    let shard = |n| ShardInfo {
        addr: addr(SHARD_PORT + n),
        allocator: u32::from(n) + 1,
        ..ShardInfo::default()
    };
    ClusterMap {
        version: 1,
        uuid: Bytes::from_static(&[7; 16]),
        hash_seed: 42,
        shards: vec![shard(0), shard(1)],
        stores: vec![
            StoreInfo { addr: addr(STORE_PORT) },
            StoreInfo { addr: addr(STORE_PORT + 1) },
        ],
        slots: initial_slots(2),
        coordinator: addr(1),
        replicas: 2,
        inline_max: 4096,
        name: "fake".into(),
        slots_version: 0,
        format: FORMAT,
    }
}

/// A client of a new fake cluster.
pub(crate) fn start(options: ClientOptions) -> (Arc<Fake>, Fs) {
    let fake = Arc::new(Fake(Mutex::default()));
    let net = Net::new().unwrap().over(fake.clone());
    let addr: SocketAddr = map().coordinator.parse().unwrap();
    (fake, Fs::of(Core::connect(net, &[addr], options).unwrap()))
}

impl Fake {
    pub(crate) fn model(&self) -> MutexGuard<'_, FakeModel> {
        self.0.lock().unwrap()
    }

    /// The next request for `op` meets this.
    pub(crate) fn fault(&self, op: Op, fault: RequestFault) {
        self.model().faults.push_back((op, fault));
    }

    /// What was held up is executed now; how many requests.
    pub(crate) fn deliver_late(&self) -> usize {
        let mut model = self.model();
        let late = std::mem::take(&mut model.late);
        late.iter().for_each(|(to, op, frame)| _ = model.execute(*to, *op, frame));
        late.len()
    }

    /// Answers that were slow come now.
    pub(crate) fn deliver_answers(&self) {
        let slow = std::mem::take(&mut self.model().slow);
        slow.into_iter().for_each(|(promise, answer)| promise.complete(answer));
    }

    /// Operations since the last call, without those on sessions.
    pub(crate) fn log(&self) -> Vec<&'static str> {
        let log = std::mem::take(&mut self.model().log);
        log.iter().filter(|(op, _)| *op != Op::OpenSession).map(|(op, _)| op.name()).collect()
    }
}

impl Transport for Fake {
    fn call(
        &self,
        to: SocketAddr,
        op: u16,
        trace: u64,
        body: Bytes,
        payload: Bytes,
        _: Duration,
    ) -> Call {
        let op = Op::from_u16(op).unwrap();
        let frame = Frame::request(op as u16, trace, body, payload);
        let (promise, call) = Call::new();
        let mut model = self.model();
        match model.serve(to, op, &frame) {
            Some(result) => promise.complete(result),
            None => match model.held.take() {
                Some(answer) => model.slow.push((promise, answer)),
                None => model.hanging.push(promise),
            },
        }
        call
    }

    fn sleep(&self, _: Duration) -> Sleep {
        Sleep::new().1
    }
}

/// Somebody holds the subtree of a policy.
pub(crate) fn held(policy: u64, by: &str) -> Error {
    Error { policy, ..Error::new(Errno::EBUSY).with_text(by) }
}

fn decode<M: Message + Default>(frame: &Frame) -> M {
    M::decode(frame.body.clone()).unwrap()
}

impl FakeModel {
    fn serve(&mut self, to: SocketAddr, op: Op, frame: &Frame) -> Option<Answer> {
        self.log.push((op, to.port()));
        let due = self.faults.front().is_some_and(|(due, _)| *due == op);
        let fault = if due { self.faults.pop_front().map(|(_, fault)| fault) } else { None };
        let (mut answer_lost, mut is_slow) = (false, false);
        match fault {
            Some(RequestFault::Lost) => return Some(Err(CallError::Disconnected)),
            Some(RequestFault::Hang) => return None,
            Some(RequestFault::Answer(error)) => {
                let body = error.encode_to_vec().into();
                return Some(Ok(frame.reply(1, body, self.trailer.clone())));
            }
            Some(RequestFault::Before(act)) => act(self),
            Some(RequestFault::AnswerLost) => answer_lost = true,
            Some(RequestFault::Slow) => is_slow = true,
            Some(RequestFault::Late) => {
                self.late.push((to, op, frame.clone()));
                return Some(Err(CallError::Timeout));
            }
            None => {}
        }
        let (status, body, mut payload) = self.execute(to, op, frame);
        if op == Op::Lookup {
            payload = self.trailer.clone();
        }
        if answer_lost {
            return Some(Err(CallError::Disconnected));
        }
        let answer = Ok(frame.reply(status, body, payload));
        if is_slow {
            self.held = Some(answer);
            return None;
        }
        Some(answer)
    }

    fn execute(&mut self, to: SocketAddr, op: Op, frame: &Frame) -> (u16, Bytes, Bytes) {
        let key = self.mutation(op, frame);
        if let Some(key) = key {
            if !self.sessions.contains(&(to, key.0)) {
                let error = Error::of_class(Class::SessionLost, Errno::EIO);
                return (1, error.encode_to_vec().into(), Bytes::new());
            }
            if let Some((status, body)) = self.results.get(&key) {
                return (*status, body.clone(), Bytes::new());
            }
        }
        self.clock += 1;
        let result = self.dispatch(to, op, frame);
        let done = result.as_ref().err().is_none_or(|error| error.is(Class::Final));
        let (status, body, payload) = match result {
            Ok((body, payload)) => (0, body, payload),
            Err(error) => (1, error.encode_to_vec().into(), Bytes::new()),
        };
        if let (Some(key), true) = (key, done) {
            self.results.insert(key, (status, body.clone()));
        }
        (status, body, payload)
    }

    /// Session and number of a mutation, from its context (field 1 of each request).
    fn mutation(&self, op: Op, frame: &Frame) -> Option<(u64, u64)> {
        let truncates = op == Op::Open && decode::<OpenReq>(frame).truncate;
        if !op.mutates() && !truncates {
            return None;
        }
        #[derive(Clone, PartialEq, Message)]
        struct Head {
            #[prost(message, required, tag = "1")]
            ctx: Ctx,
        }
        let ctx = decode::<Head>(frame).ctx;
        assert!(ctx.seq > 0 && ctx.ack <= ctx.seq && ctx.ack > 0, "{ctx:?}");
        Some((ctx.session, ctx.seq))
    }

    fn dispatch(&mut self, to: SocketAddr, op: Op, frame: &Frame) -> Result<(Bytes, Bytes)> {
        let store = to.port().saturating_sub(STORE_PORT);
        if op == Op::Create {
            self.enter(&decode::<CreateReq>(frame).ctx)?;
        }
        let body = match op {
            Op::Map => map().encode_to_vec(),
            Op::OpenSession => {
                self.sessions.push((to, decode::<SessionReq>(frame).session));
                Vec::new()
            }
            Op::CloseSession => {
                let session = decode::<SessionReq>(frame).session;
                self.sessions.retain(|s| *s != (to, session));
                Vec::new()
            }
            Op::Create => self.create(decode(frame))?.encode_to_vec(),
            Op::Open => self.open(decode(frame))?.encode_to_vec(),
            Op::Lookup | Op::Getattr => {
                let name = self.find(&decode::<EntryReq>(frame).at)?;
                self.entry(&name, false).encode_to_vec()
            }
            Op::Spill => {
                let name = self.find(&decode::<EntryReq>(frame).at)?;
                self.spill(&name);
                self.entry(&name, false).encode_to_vec()
            }
            Op::Setattr => self.setattr(decode(frame))?.encode_to_vec(),
            Op::Close | Op::Fsync => self.close(decode(frame))?.encode_to_vec(),
            Op::Append => self.append(decode(frame))?.encode_to_vec(),
            Op::Readdir => self.readdir(to, &decode(frame)).encode_to_vec(),
            Op::ChunkWrite => self.chunk_write(store, &decode(frame), &frame.payload)?,
            Op::ChunkRead => return Ok(self.chunk_read(store, &decode(frame))),
            Op::Setlk => {
                let request: LockReq = decode(frame);
                match request.unlock {
                    true => self.locked.remove(&request.at.anchor.id),
                    false => self.locked.insert(request.at.anchor.id),
                };
                SetLockReply { holds: !request.unlock }.encode_to_vec()
            }
            Op::RenewLocks => {
                let ids = self.locked.iter().copied().collect();
                RenewLocksReply { ids }.encode_to_vec()
            }
            Op::Renew => {
                self.renewals.push(decode(frame));
                let moved = self.elsewhere.pop_front().into_iter().collect();
                RenewReply { moved }.encode_to_vec()
            }
            Op::Hold => {
                let HoldReq { policy, holder, .. } = decode(frame);
                match self.held_by.0 {
                    0 => {
                        self.epochs += 1;
                        self.held_by = (holder, self.epochs);
                    }
                    other if other != holder => return Err(Errno::EBUSY.into()),
                    _ => {}
                }
                let last_epoch = self.epochs;
                let policy = PolicyReply { policy, last_epoch, ..PolicyReply::default() };
                HoldReply { policy, lease_ms: 10_000 }.encode_to_vec()
            }
            Op::RenewHolds => {
                let request: RenewHoldsReq = decode(frame);
                let is_held =
                    |policy: &u64| (*policy, request.holder) == (self.policy, self.held_by.0);
                let ended = request.policies.into_iter().filter(|policy| !is_held(policy));
                RenewHoldsReply { ended: ended.collect() }.encode_to_vec()
            }
            Op::Release => {
                let ReleaseReq { policy, epoch, .. } = decode(frame);
                match (epoch, self.held_by.1) {
                    (_, 0) => return Err(Errno::ESTALE.into()),
                    (0, _) if !self.is_lapsed => return Err(held(policy, "held by n1")),
                    (0, _) => {}
                    (ours, now) if ours != now => return Err(Errno::ESTALE.into()),
                    _ => {}
                }
                self.held_by = (0, 0);
                Empty {}.encode_to_vec()
            }
            Op::Provision => {
                let ProvisionReq { holder, count, .. } = decode(frame);
                if holder != self.held_by.0 {
                    return Err(Errno::ESTALE.into());
                }
                IdRange { first: 1_000, count }.encode_to_vec()
            }
            Op::SyncJournal => Empty {}.encode_to_vec(),
            Op::Statfs => ShardStats::default().encode_to_vec(),
            Op::StoreStat => {
                let bytes = 1 << 40;
                let stat =
                    StoreStats { capacity_bytes: bytes, free_bytes: bytes, ..Default::default() };
                stat.encode_to_vec()
            }
            Op::ChunkSync => {
                self.synced.push(store);
                let request: ChunkSyncReq = decode(frame);
                let lost = request.unflushed.iter().any(|writes| {
                    assert_eq!(writes.store, u32::from(store));
                    self.lost_epochs.contains(&writes.epoch)
                });
                ChunkSyncReply { lost }.encode_to_vec()
            }
            other => panic!("{} is not known here", other.name()),
        };
        Ok((body.into(), Bytes::new()))
    }

    /// May a change be made under the policy?
    fn enter(&self, ctx: &Ctx) -> Result<()> {
        match self.held_by.0 {
            _ if !PolicyId(self.policy).needs_hold() => Ok(()),
            0 => Err(Error::needs_hold(None, self.policy)),
            holder if holder == ctx.holder => Ok(()),
            _ => Err(held(self.policy, "another client holds the subtree")),
        }
    }

    /// The file that a place means.
    fn find(&self, at: &At) -> Result<Bytes> {
        if let Some(name) = at.path.last() {
            return match self.files.contains_key(name) {
                true => Ok(name.clone()),
                false => Err(Error::at(Errno::ENOENT, at.path.len() - 1)),
            };
        }
        let file = self.files.get(&at.anchor.name);
        if file.is_some_and(|f| f.attr.id == at.anchor.id) {
            return Ok(at.anchor.name.clone());
        }
        let moved = self.files.iter().find(|(_, f)| f.attr.id == at.anchor.id);
        let (name, _) = moved.ok_or(Errno::ESTALE)?;
        Err(Error::moved(Locator { name: name.clone(), ..at.anchor.clone() }))
    }

    pub(crate) fn entry(&self, name: &Bytes, data: bool) -> Entry {
        let file = &self.files[name];
        let loc = Locator::entry(1, name.clone(), file.attr.id);
        let inline = if data { file.inline.clone() } else { Bytes::new() };
        let unflushed = file.unflushed.clone();
        Entry { attr: file.attr.clone(), loc, inline, unflushed, ..Entry::default() }
    }

    fn touch(&mut self, name: &Bytes) -> &mut Inode {
        self.clock += 1;
        let now = self.clock;
        let file = self.files.get_mut(name).unwrap();
        file.attr.data_version += 1;
        (file.attr.mtime_ns, file.attr.ctime_ns) = (now, now);
        file
    }

    fn create(&mut self, request: CreateReq) -> Result<Entry> {
        let name = request.at.path.last().unwrap().clone();
        if self.files.contains_key(&name) {
            if request.exclusive {
                return Err(Errno::EEXIST.into());
            }
            if request.truncate {
                self.truncate(&name, 0);
            }
            return Ok(self.entry(&name, true));
        }
        self.ids += 1;
        let attr = Attr { id: 100 + self.ids, mode: request.mode, nlink: 1, ..Attr::default() };
        self.files.insert(name.clone(), Inode { attr, ..Inode::default() });
        self.touch(&name);
        Ok(Entry { created: true, ..self.entry(&name, true) })
    }

    fn open(&mut self, request: OpenReq) -> Result<Entry> {
        let name = self.find(&request.at)?;
        if request.truncate {
            self.truncate(&name, 0);
        }
        Ok(self.entry(&name, true))
    }

    pub(crate) fn truncate(&mut self, name: &Bytes, size: u64) {
        let file = self.touch(name);
        let cuts = size < file.attr.size.max(file.append_end);
        file.append_end = if cuts { 0 } else { file.append_end };
        file.attr.size = size;
        file.inline.truncate(size as usize);
        if !file.attr.chunked || !cuts {
            return;
        }
        file.attr.truncate_gen += 1;
        file.attr.chunked = size > 0;
        let (id, generation) = (file.attr.id, file.attr.truncate_gen);
        self.generations.insert(id, generation);
        for ((_, chunk_id, index), data) in &mut self.chunks {
            if *chunk_id == id {
                data.truncate(size.saturating_sub(index * CHUNK_BYTES) as usize);
            }
        }
    }

    pub(crate) fn spill(&mut self, name: &Bytes) {
        let file = self.touch(name);
        if file.attr.chunked {
            return;
        }
        file.attr.chunked = true;
        let (id, data) = (file.attr.id, std::mem::take(&mut file.inline));
        if data.is_empty() {
            return;
        }
        file.attr.truncate_gen += 1;
        let generation = file.attr.truncate_gen;
        self.generations.insert(id, generation);
        for store in 0..2 {
            self.chunks.insert((store, id, 0), data.to_vec());
        }
    }

    fn setattr(&mut self, request: SetattrReq) -> Result<Entry> {
        let name = self.find(&request.at)?;
        if let Some(size) = request.size {
            self.truncate(&name, size);
        }
        self.clock += 1;
        let now = self.clock;
        let file = self.files.get_mut(&name).unwrap();
        file.attr.ctime_ns = now;
        if let Some(mtime) = request.mtime_ns {
            file.attr.mtime_ns = mtime;
        }
        Ok(self.entry(&name, true))
    }

    fn close(&mut self, request: CloseReq) -> Result<CloseReply> {
        let name = self.find(&request.at)?;
        let attr = &self.files[&name].attr;
        let conflict =
            request.inline.is_some() && (attr.chunked || attr.data_version != request.base_version);
        if !conflict {
            self.files.get_mut(&name).unwrap().note_flushes(request.flushed, &request.unflushed);
        }
        if !conflict && !request.is_clean {
            let attr = &self.files[&name].attr;
            let same = attr.truncate_gen == request.truncate_gen;
            let file = self.touch(&name);
            if same {
                file.attr.size = file.attr.size.max(request.size);
            }
            if let Some(inline) = request.inline {
                file.inline = inline;
            }
        }
        Ok(CloseReply { entry: self.entry(&name, conflict), conflict })
    }

    fn append(&mut self, request: AppendReq) -> Result<AppendReply> {
        let name = self.find(&request.at)?;
        let file = self.files.get_mut(&name).unwrap();
        if request.truncate_gen == file.attr.truncate_gen {
            file.attr.size = file.attr.size.max(request.size);
        }
        let offset = file.attr.size.max(file.append_end);
        let end = offset + request.len;
        let stored = !file.attr.chunked && end <= 4096;
        if stored {
            let file = self.touch(&name);
            let mut data = file.inline.to_vec();
            data.resize(offset as usize, 0);
            data.extend_from_slice(&request.data);
            file.inline = data.into();
            file.attr.size = end;
        } else {
            self.spill(&name);
            self.touch(&name).append_end = end;
        }
        Ok(AppendReply { offset, stored, entry: self.entry(&name, stored) })
    }

    fn readdir(&self, to: SocketAddr, request: &ReaddirReq) -> ReaddirReply {
        let map = map();
        let mut entries: Vec<DirEntry> = self
            .files
            .iter()
            .filter(|(name, _)| map.owner(1, name) == to.port() - SHARD_PORT)
            .map(|(name, file)| DirEntry {
                name: name.clone(),
                order: map.key(1, name).order,
                attr: file.attr.clone(),
                home_slot: file.home_slot,
                policy: 0,
            })
            .collect();
        entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
        let after = (request.after_order, &request.after_name);
        entries
            .retain(|e| (e.order, &e.name) > after || (after.1.is_empty() && e.order == after.0));
        let end = entries.len() <= request.limit as usize;
        entries.truncate(request.limit as usize);
        ReaddirReply { entries, end }
    }

    fn chunk_write(&mut self, store: u16, request: &ChunkWriteReq, data: &[u8]) -> Result<Vec<u8>> {
        assert_eq!(request.crc, crc32c::crc32c(data));
        let attempts = self.barred.entry((store, request.writer, request.seq)).or_default();
        if request.attempt < *attempts {
            return Err(Errno::EALREADY.into());
        }
        *attempts = request.attempt;
        if request.truncate_gen < *self.generations.get(&request.id).unwrap_or(&0) {
            return Err(Errno::ESTALE.into());
        }
        let chunk = self.chunks.entry((store, request.id, request.index)).or_default();
        if request.hole > 0 {
            assert!(data.is_empty());
            let (start, end) = (request.offset, request.offset + request.hole);
            let len = chunk.len();
            chunk[len.min(start as usize)..len.min(end as usize)].fill(0);
            return Ok(ChunkWriteReply { epoch: self.epoch, seq: 1 }.encode_to_vec());
        }
        let (start, end) = (request.offset as usize, request.offset as usize + data.len());
        assert!(end <= CHUNK_BYTES as usize && request.replicas.len() == 2);
        chunk.resize(chunk.len().max(end), 0);
        chunk[start..end].copy_from_slice(data);
        Ok(ChunkWriteReply { epoch: self.epoch, seq: 1 }.encode_to_vec())
    }

    fn chunk_read(&self, store: u16, request: &ChunkReadReq) -> (Bytes, Bytes) {
        if let (1.., Some((dir, place))) = (request.machine, &self.place) {
            let (dir, places) = (Some(dir.clone()), vec![place.clone()]);
            let reply = ChunkReadReply { places, dir, ..ChunkReadReply::default() };
            return (reply.encode_to_vec().into(), Bytes::new());
        }
        let chunk = self.chunks.get(&(store, request.id, request.index));
        let chunk = chunk.map_or(&[][..], |c| c);
        let start = (request.offset as usize).min(chunk.len());
        let end = (start + request.len as usize).min(chunk.len());
        let payload = Bytes::copy_from_slice(&chunk[start..end]);
        let (crc, holes) = (crc32c::crc32c(&payload), self.holes);
        let reply = ChunkReadReply { crc, holes, ..ChunkReadReply::default() };
        (reply.encode_to_vec().into(), payload)
    }

    /// What the file holds, as the servers know it, on a store.
    pub(crate) fn content(&self, name: &'static str, store: u16) -> Vec<u8> {
        let file = &self.files[name.as_bytes()];
        let mut data = file.inline.to_vec();
        if file.attr.chunked {
            for index in 0..file.attr.size.div_ceil(CHUNK_BYTES) {
                data.resize((index * CHUNK_BYTES) as usize, 0);
                let chunk = self.chunks.get(&(store, file.attr.id, index));
                data.extend_from_slice(chunk.map_or(&[], |c| c));
            }
        }
        data.resize(file.attr.size as usize, 0);
        data
    }

    /// Somebody else changes a file.
    pub(crate) fn add_to(&mut self, name: &'static str, change: impl FnOnce(&mut Inode)) {
        change(self.touch(&Bytes::from_static(name.as_bytes())));
    }

    /// Nothing goes wrong any more.
    pub(crate) fn clear_faults(&mut self) {
        self.faults.clear();
    }

    /// Somebody else makes a file.
    pub(crate) fn add(&mut self, name: &'static str, data: &'static [u8]) {
        let at = At::child(Locator::root(), name.as_bytes());
        let mode = FileKind::Regular.bits() | 0o644;
        self.create(CreateReq { at, mode, ..CreateReq::default() }).unwrap();
        let file = self.files.get_mut(name.as_bytes()).unwrap();
        file.inline = Bytes::from_static(data);
        file.attr.size = data.len() as u64;
    }
}
