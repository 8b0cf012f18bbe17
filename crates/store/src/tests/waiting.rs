//! A disk whose reads and flushes hang: what waits for it holds up nothing else.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use bytes::Bytes;
use prost::Message;
use saker_rpc::frame::Decoder;
use saker_rpc::service::ServiceLimits;
use saker_rpc::{
    Frame, FrameKind, Hello, HelloPolicy, NodeNumber, RoleKind, Service, ServiceConfig,
    ShellConfig, StopHandle, serve,
};
use saker_runtime::fs::{Dir, File};
use saker_types::wire::{ChunkReadReq, ChunkSyncReq, ChunkTruncateReq, ChunkWriteReq, Empty, Op};

use crate::backend::segments::tests::disk::{IDENTITY, Machine, open_in, options};
use crate::service::StoreService;

/// What a disk does. Clones are the same.
#[derive(Clone, Default)]
struct Mood(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    /// The page cache is empty.
    is_cold: bool,
    reads_hang: bool,
    flushes_hang: bool,
    /// Hang now.
    hanging: usize,
}

impl Mood {
    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    fn pass(&self, hangs: impl Fn(&State) -> bool) {
        let mut state = self.0.0.lock().unwrap();
        state.hanging += 1;
        self.0.1.notify_all();
        let mut state = self.0.1.wait_while(state, |state| hangs(state)).unwrap();
        state.hanging -= 1;
    }

    fn wait_for(&self, hanging: usize) {
        let state = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(state, |state| state.hanging < hanging).unwrap());
    }
}

struct SlowDir(Arc<dyn Dir>, Mood);
struct SlowFile(Arc<dyn File>, Mood);

impl SlowDir {
    fn file(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(SlowFile(file, self.1.clone()))
    }
}

impl Dir for SlowDir {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.0.open(name).map(|file| self.file(file))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.0.create(name).map(|file| self.file(file))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn sub_dir(&self, name: &str) -> io::Result<Arc<dyn Dir>> {
        Ok(Arc::new(SlowDir(self.0.sub_dir(name)?, self.1.clone())))
    }

    fn lock(&self) -> io::Result<()> {
        self.0.lock()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.0.free_bytes()
    }

    fn label(&self) -> String {
        self.0.label()
    }
}

impl File for SlowFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }

    fn append(&self, data: &[u8]) -> io::Result<u64> {
        self.0.append(data)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if self.is_cached(offset, 0) == Some(false) {
            self.1.pass(|state| state.reads_hang);
        }
        self.0.read_at(offset, buf)
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match self.is_cached(offset, buf.len() as u64) {
            Some(true) => self.0.read_at(offset, buf).map(Some),
            _ => Ok(None),
        }
    }

    fn is_cached(&self, _: u64, _: u64) -> Option<bool> {
        Some(!self.1.0.0.lock().unwrap().is_cold)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn sync(&self) -> io::Result<()> {
        self.1.pass(|state| state.flushes_hang);
        self.0.sync()
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.truncate(len)
    }

    fn preallocate(&self, len: u64) -> io::Result<()> {
        self.0.preallocate(len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.punch(offset, len)
    }
}

/// One connection.
struct Client {
    stream: TcpStream,
    decoder: Decoder,
}

impl Client {
    fn connect(addr: SocketAddr) -> Client {
        let mut client =
            Client { stream: TcpStream::connect(addr).unwrap(), decoder: Decoder::new() };
        let hello =
            Hello::new(RoleKind::Client, NodeNumber(0), Some(IDENTITY.cluster)).encode_to_vec();
        let hello = Frame::request(0, 0, hello.into(), Bytes::new());
        client.write(&Frame { kind: FrameKind::Hello, ..hello });
        client.receive();
        client
    }

    fn write(&mut self, frame: &Frame) {
        io::Write::write_all(&mut self.stream, &frame.to_bytes()).unwrap();
    }

    fn send(&mut self, call: u64, op: Op, body: &impl Message, payload: &[u8]) {
        let payload = Bytes::copy_from_slice(payload);
        let frame = Frame::request(op as u16, 0, body.encode_to_vec().into(), payload);
        self.write(&Frame { call, ..frame });
    }

    fn receive(&mut self) -> Frame {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return frame;
            }
            let mut bytes = [0; 16 << 10];
            let read = io::Read::read(&mut self.stream, &mut bytes).unwrap();
            assert!(read > 0, "closed");
            self.decoder.push(&bytes[..read]);
        }
    }

    /// The payload of the answer that comes next.
    fn answer(&mut self, call: u64) -> Bytes {
        let reply = self.receive();
        assert_eq!((reply.call, reply.status), (call, 0));
        reply.payload
    }

    fn put(&mut self, call: u64, id: u64, sync: bool) {
        let data = [id as u8; 5_000];
        let crc = crc32c::crc32c(&data);
        let req = ChunkWriteReq { id, crc, sync, ..ChunkWriteReq::default() };
        self.send(call, Op::ChunkWrite, &req, &data);
    }

    fn get(&mut self, call: u64, id: u64) {
        let req = ChunkReadReq { id, len: 5_000, ..ChunkReadReq::default() };
        self.send(call, Op::ChunkRead, &req, &[]);
    }

    /// The calls that are answered next, in any order.
    fn answers(&mut self, count: usize) -> Vec<u64> {
        let mut calls: Vec<u64> = (0..count)
            .map(|_| {
                let reply = self.receive();
                assert_eq!(reply.status, 0, "call {}", reply.call);
                reply.call
            })
            .collect();
        calls.sort_unstable();
        calls
    }
}

fn served(limits: ServiceLimits, test: impl FnOnce(&mut Client, &Mood, &ServiceConfig)) {
    let mood = Mood::default();
    let dir: Arc<dyn Dir> = Arc::new(SlowDir(Arc::new(Machine::new().dir), mood.clone()));
    let store = open_in(dir.clone(), IDENTITY, options()).unwrap();
    let service: Arc<dyn Service> = Arc::new(StoreService::new(dir, store).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, stop) = (listener.local_addr().unwrap(), StopHandle::new());
    let policy = HelloPolicy { cluster: Some(IDENTITY.cluster), ..HelloPolicy::default() };
    let hello = Hello::new(RoleKind::Store, NodeNumber(1), Some(IDENTITY.cluster));
    let shell = ShellConfig::new(hello, policy);
    let config = ServiceConfig { shells: 1, limits, ..ServiceConfig::default() };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&listener, &service, &shell, &config, &stop));
        let test = || test(&mut Client::connect(addr), &mood, &config);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
        mood.set(|state| (state.reads_hang, state.flushes_hang) = (false, false));
        stop.stop();
        serving.join().unwrap().unwrap();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn a_read_that_hangs_holds_up_nothing_else() {
    served(ServiceLimits::default(), |client, mood, _| {
        client.put(1, 1, false);
        client.put(2, 2, false);
        assert_eq!(client.answers(2), [1, 2]);
        mood.set(|state| (state.is_cold, state.reads_hang) = (true, true));
        client.get(3, 1);
        mood.wait_for(1);
        client.put(4, 3, false);
        client.answer(4);
        // The page cache has the rest.
        mood.set(|state| state.is_cold = false);
        client.get(10, 2);
        assert_eq!(client.answer(10), [2u8; 5_000][..]);
        client.send(5, Op::StoreStat, &Empty {}, &[]);
        client.answer(5);
        client.put(6, 1, true);
        client.answer(6);
        client.send(7, Op::ChunkSync, &ChunkSyncReq::default(), &[]);
        client.answer(7);
        let cut = ChunkTruncateReq { id: 2, truncate_gen: 1, cut: 10 };
        client.send(8, Op::ChunkTruncate, &cut, &[]);
        client.answer(8);
        mood.set(|state| state.reads_hang = false);
        assert_eq!(client.answer(3), [1u8; 5_000][..]);
    });
}

#[test]
fn reads_of_the_page_cache_are_answered_while_all_threads_hang() {
    let limits = ServiceLimits { read_threads: 2, ..ServiceLimits::default() };
    served(limits, |client, mood, config| {
        (1..=8).for_each(|id| client.put(id, id, false));
        client.answers(8);
        mood.set(|state| (state.is_cold, state.reads_hang) = (true, true));
        (11..=16).for_each(|call| client.get(call, call - 10));
        mood.wait_for(2);
        client.put(20, 20, false);
        client.answer(20);
        assert_eq!(config.metrics.queued.get(), 4);
        mood.set(|state| state.is_cold = false);
        client.get(21, 7);
        assert_eq!(client.answer(21), [7u8; 5_000][..]);
        mood.set(|state| state.reads_hang = false);
        assert!(client.answers(6).into_iter().eq(11..=16));
        assert_eq!(config.metrics.queued.get(), 0);
    });
}

#[test]
fn a_flush_that_hangs_holds_up_only_who_waits_for_it() {
    served(ServiceLimits::default(), |client, mood, _| {
        client.put(1, 1, false);
        client.answer(1);
        mood.set(|state| state.flushes_hang = true);
        client.send(2, Op::ChunkSync, &ChunkSyncReq::default(), &[]);
        mood.wait_for(1);
        client.put(3, 1, true);
        client.put(4, 2, false);
        client.answer(4);
        client.get(5, 2);
        assert_eq!(client.answer(5), [2u8; 5_000][..]);
        mood.set(|state| state.flushes_hang = false);
        assert_eq!(client.answers(2), [2, 3]);
    });
}
