//! The client's reactor against servers that delay, reorder, kill connections and come back.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{CLUSTER, Raw, hello, listen, listen_at, watchdog};
use futures_util::future::{Either, join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use prost::Message;
use saker_rpc::{
    Bytes, Call, CallError, Frame, FrameKind, Hello, HelloReply, Reactor, RoleKind, Transport,
};
use saker_runtime::rand::Rng;

/// Answered with the same body, sooner or later.
const ECHO: u16 = 1;
/// Gets no answer.
const SWALLOW: u16 = 2;
/// The connection is closed instead of an answer.
const KILL: u16 = 3;

const LONG: Duration = Duration::from_secs(30);

/// How a server behaves.
#[derive(Clone, Copy, Default)]
struct Mood {
    /// Replies come after a random time up to this.
    delay_us_max: u64,
    /// One request in so many kills its connection.
    kill_one_in: Option<u64>,
    /// Hellos are refused.
    refuses: bool,
}

/// A server made of one thread for each connection and one more for its replies.
struct Server {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    mood: Mood,
    stopped: AtomicBool,
    conns: Mutex<Vec<std::net::TcpStream>>,
    hellos: Mutex<Vec<Hello>>,
    /// How often each request, by its body, has come.
    seen: Mutex<BTreeMap<u64, u32>>,
}

impl Server {
    fn start(mood: Mood) -> Server {
        let (listener, addr) = listen();
        Server::start_on(listener, addr, mood)
    }

    fn start_on(listener: TcpListener, addr: SocketAddr, mood: Mood) -> Server {
        let shared = Arc::new(Shared { mood, ..Shared::default() });
        let its = shared.clone();
        let acceptor = std::thread::spawn(move || {
            for (n, stream) in listener.incoming().enumerate() {
                let stream = stream.unwrap();
                if its.stopped.load(SeqCst) {
                    return;
                }
                its.conns.lock().unwrap().push(stream.try_clone().unwrap());
                let its = its.clone();
                std::thread::spawn(move || serve(&its, Raw::new(stream), n as u64));
            }
        });
        Server { addr, shared, acceptor: Some(acceptor) }
    }

    fn seen(&self) -> BTreeMap<u64, u32> {
        self.shared.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopped.store(true, SeqCst);
        // Wakes the acceptor.
        let _ = std::net::TcpStream::connect(self.addr);
        self.acceptor.take().unwrap().join().unwrap();
        for conn in self.shared.conns.lock().unwrap().iter() {
            let _ = conn.shutdown(Shutdown::Both);
        }
    }
}

fn serve(shared: &Shared, mut raw: Raw, n: u64) {
    let Some(first) = raw.receive() else { return };
    shared.hellos.lock().unwrap().push(Hello::decode(first.body).unwrap());
    raw.send(&hello_reply(u16::from(shared.mood.refuses)));
    if shared.mood.refuses {
        return;
    }
    let (queue, replies) = mpsc::channel();
    let out = raw.stream.try_clone().unwrap();
    std::thread::spawn(move || answer(Raw::new(out), &replies));
    let mut rng = Rng::seeded(n);
    while let Some(frame) = raw.receive() {
        let id = frame.body.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        *shared.seen.lock().unwrap().entry(id).or_default() += 1;
        let unlucky = shared.mood.kill_one_in.is_some_and(|n| rng.below(n) == 0);
        if unlucky || frame.op == KILL {
            break;
        }
        let delay = Duration::from_micros(rng.below(shared.mood.delay_us_max + 1));
        if frame.op == ECHO {
            let reply = frame.reply(0, frame.body.clone(), frame.payload.clone());
            let _ = queue.send((Instant::now() + delay, reply));
        }
    }
    let _ = raw.stream.shutdown(Shutdown::Both);
}

fn hello_reply(status: u16) -> Frame {
    let own = HelloReply {
        protocol: 1,
        cluster: Bytes::from_static(&CLUSTER),
        role: RoleKind::Store as u32,
        text: "not today".into(),
        ..HelloReply::default()
    };
    let body = own.encode_to_vec().into();
    Frame { kind: FrameKind::HelloReply, status, ..Frame::request(0, 0, body, Bytes::new()) }
}

/// Sends each reply at its time, so in another order than that of the requests.
fn answer(mut raw: Raw, replies: &mpsc::Receiver<(Instant, Frame)>) {
    let mut waiting: Vec<(Instant, Frame)> = Vec::new();
    loop {
        let next = waiting.iter().map(|(at, _)| *at).min();
        let patience = next.map_or(LONG, |at| at.saturating_duration_since(Instant::now()));
        match replies.recv_timeout(patience) {
            Ok(reply) => waiting.push(reply),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        let (due, later) = waiting.into_iter().partition(|(at, _)| *at <= now);
        waiting = later;
        for (_, frame) in due {
            use std::io::Write;
            if raw.stream.write_all(&frame.to_bytes()).is_err() {
                return;
            }
        }
    }
}

fn reactor() -> Arc<Reactor> {
    Reactor::new(hello(RoleKind::Client, 0)).unwrap()
}

fn call(reactor: &Arc<Reactor>, to: SocketAddr, op: u16, id: u64, timeout: Duration) -> Call {
    let body = Bytes::copy_from_slice(&id.to_le_bytes());
    reactor.call(to, op, 0, body, Bytes::new(), timeout)
}

fn echo(reactor: &Arc<Reactor>, to: SocketAddr, id: u64) -> Result<u64, CallError> {
    let reply = reactor.block_on(call(reactor, to, ECHO, id, LONG))?;
    Ok(u64::from_le_bytes(reply.body[..].try_into().unwrap()))
}

/// What became of the calls of a stress run.
#[derive(Default)]
struct Tally {
    good: AtomicU64,
    /// Ended with an error, by what it says about the outcome.
    unknown: AtomicU64,
    unsent: AtomicU64,
    slow: AtomicU64,
}

struct Stress {
    reactor: Arc<Reactor>,
    servers: Vec<Server>,
    next_id: AtomicU64,
    tally: Tally,
    /// Ids of calls that ended well, and of those that were not sent.
    good: Mutex<Vec<u64>>,
    unsent: Mutex<Vec<u64>>,
}

impl Stress {
    async fn one(&self, rng_seed: u64) {
        let mut rng = Rng::seeded(rng_seed);
        let id = self.next_id.fetch_add(1, SeqCst);
        let to = self.servers[rng.below(self.servers.len() as u64) as usize].addr;
        if rng.below(4) == 0 {
            // Real time: pauses that a seed decides.
            self.reactor.sleep(Duration::from_micros(rng.below(3_000))).await;
        }
        let payload = if rng.below(20) == 0 { rng.below(300_000) as usize } else { 0 };
        let payload = Bytes::from(vec![id as u8; payload]);
        let body = Bytes::copy_from_slice(&id.to_le_bytes());
        let start = Instant::now();
        let answer = self.reactor.call(to, ECHO, id, body.clone(), payload.clone(), LONG).await;
        // Real time: counted; a reply that nobody wakes for shows so.
        if start.elapsed() > Duration::from_millis(900) {
            self.tally.slow.fetch_add(1, SeqCst);
        }
        match answer {
            Ok(reply) => {
                assert_eq!((reply.body, reply.trace), (body, id));
                assert!(reply.payload == payload);
                self.tally.good.fetch_add(1, SeqCst);
                self.good.lock().unwrap().push(id);
            }
            Err(CallError::Timeout) => panic!("call {id} was forgotten"),
            Err(error) if error.outcome_unknown() => {
                self.tally.unknown.fetch_add(1, SeqCst);
            }
            Err(_) => {
                self.tally.unsent.fetch_add(1, SeqCst);
                self.unsent.lock().unwrap().push(id);
            }
        }
    }

    /// One thread: many at once, then one by one, in turns.
    fn thread(&self, seed: u64) {
        let mut rng = Rng::seeded(seed);
        for _ in 0..6 {
            self.reactor.block_on(async {
                let mut running = FuturesUnordered::new();
                for n in 0..150 {
                    running.push(self.one(seed << 32 | n << 16 | rng.below(1 << 16)));
                    if running.len() >= 25 {
                        running.next().await;
                    }
                }
                while running.next().await.is_some() {}
            });
            for n in 0..20 {
                self.reactor.block_on(self.one(seed << 40 | n << 16 | rng.below(1 << 16)));
                if rng.below(5) == 0 {
                    // Real time: pauses that a seed decides.
                    std::thread::sleep(Duration::from_micros(rng.below(2_000)));
                }
            }
            // Made by a thread that does not wait, and by nobody waited for.
            let id = self.next_id.fetch_add(1, SeqCst);
            drop(call(&self.reactor, self.servers[0].addr, ECHO, id, LONG));
        }
    }
}

const THREADS: u64 = 8;

fn stress(kill_one_in: Option<u64>) -> Stress {
    let mood = Mood { delay_us_max: 3_000, kill_one_in, refuses: false };
    let stress = Stress {
        reactor: reactor(),
        servers: (0..3).map(|_| Server::start(mood)).collect(),
        next_id: AtomicU64::new(1),
        tally: Tally::default(),
        good: Mutex::default(),
        unsent: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for seed in 1..=THREADS {
            let stress = &stress;
            scope.spawn(move || stress.thread(seed));
        }
    });
    let Tally { good, unknown, unsent, .. } = &stress.tally;
    let ended = good.load(SeqCst) + unknown.load(SeqCst) + unsent.load(SeqCst);
    assert_eq!(ended, THREADS * 6 * 170, "each call ends once");
    let seen: BTreeMap<u64, u32> = stress.servers.iter().fold(BTreeMap::new(), |mut all, s| {
        s.seen().into_iter().for_each(|(id, n)| *all.entry(id).or_default() += n);
        all
    });
    assert!(seen.values().all(|n| *n == 1), "a request was sent twice");
    assert!(stress.good.lock().unwrap().iter().all(|id| seen.contains_key(id)));
    assert!(!stress.unsent.lock().unwrap().iter().any(|id| seen.contains_key(id)));
    stress
}

#[test]
fn many_threads_and_calls_on_quiet_connections_all_succeed() {
    let _watchdog = watchdog(120);
    let tally = stress(None).tally;
    assert_eq!(tally.good.load(SeqCst), THREADS * 6 * 170);
    // A lost wake-up would show as a wait for the driver's next look around.
    let slow = tally.slow.load(SeqCst);
    assert!(slow < 20, "{slow} calls took most of a second");
}

#[test]
fn many_threads_and_calls_on_connections_that_break_end_once() {
    let _watchdog = watchdog(120);
    let tally = stress(Some(300)).tally;
    assert!(tally.unknown.load(SeqCst) > 0, "no connection broke");
    assert!(tally.good.load(SeqCst) > THREADS * 6 * 170 / 2);
}

/// A future that another thread fills wakes its own thread, whether that drives or is parked.
#[test]
fn wakes_from_other_threads_arrive() {
    let _watchdog = watchdog(120);
    let reactor = reactor();
    let (to_filler, promises) = mpsc::channel::<(saker_rpc::CallPromise, u64)>();
    let filler = std::thread::spawn(move || {
        while let Ok((promise, wait_us)) = promises.recv() {
            if wait_us > 0 {
                std::thread::sleep(Duration::from_micros(wait_us));
            }
            promise.complete(Err(CallError::Overloaded));
        }
    });
    let late = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (reactor, to_filler, late) = (&reactor, to_filler.clone(), &late);
            scope.spawn(move || {
                let mut rng = Rng::seeded(seed);
                for _ in 0..2_000 {
                    let (promise, call) = Call::new();
                    // From "before the poll" to "long parked".
                    let wait_us = if rng.below(2) == 0 { 0 } else { rng.below(60) };
                    let start = Instant::now();
                    to_filler.send((promise, wait_us)).unwrap();
                    assert_eq!(reactor.block_on(call), Err(CallError::Overloaded));
                    // Real time: counted; a wakeup that is lost shows so.
                    late.fetch_add(u64::from(start.elapsed() > Duration::from_millis(900)), SeqCst);
                }
            });
        }
    });
    drop(to_filler);
    filler.join().unwrap();
    assert!(late.load(SeqCst) < 5, "{late:?} wakes took most of a second");
}

/// Deadlines of parked threads are kept by whoever drives, also when they come after it began to
/// wait for something else.
#[test]
fn sleeps_and_deadlines_end_in_time() {
    let _watchdog = watchdog(60);
    let (reactor, server) = (reactor(), Server::start(Mood::default()));
    echo(&reactor, server.addr, 1).unwrap();
    std::thread::scope(|scope| {
        // Real time: a thread that drives the reactor, longer than the others wait.
        scope.spawn(|| reactor.block_on(reactor.sleep(Duration::from_millis(700))));
        for n in 0..4u64 {
            let (reactor, addr) = (&reactor, server.addr);
            scope.spawn(move || {
                // Real time: timeouts that overlap.
                std::thread::sleep(Duration::from_millis(20 * n));
                for timeout in [10, 35].map(Duration::from_millis) {
                    let start = Instant::now();
                    let answer = reactor.block_on(call(reactor, addr, SWALLOW, 2, timeout));
                    assert_eq!(answer, Err(CallError::Timeout));
                    // Real time: timeouts are what is tested.
                    let took = start.elapsed();
                    assert!(took >= timeout, "{took:?} is before the deadline");
                    assert!(took < timeout + Duration::from_millis(400), "{took:?}");
                }
            });
        }
    });
}

/// A reply that comes after its call's deadline is nobody's; the connection goes on.
#[test]
fn late_replies_are_dropped() {
    let _watchdog = watchdog(60);
    let mood = Mood { delay_us_max: 40_000, ..Mood::default() };
    let (reactor, server) = (reactor(), Server::start(mood));
    let calls = (0..200).map(|id| call(&reactor, server.addr, ECHO, id, Duration::from_millis(20)));
    let ends = reactor.block_on(join_all(calls));
    let late = ends.iter().filter(|end| **end == Err(CallError::Timeout)).count();
    assert!((1..200).contains(&late), "{late} of 200");
    assert_eq!(echo(&reactor, server.addr, 1_000), Ok(1_000));
    assert_eq!(server.shared.hellos.lock().unwrap().len(), 1);
}

#[test]
fn a_dropped_call_is_forgotten() {
    let _watchdog = watchdog(60);
    let (reactor, server) = (reactor(), Server::start(Mood::default()));
    reactor.block_on(async {
        let slow = call(&reactor, server.addr, SWALLOW, 1, LONG);
        let fast = call(&reactor, server.addr, ECHO, 2, LONG);
        match select(slow, fast).await {
            Either::Right((reply, _)) => assert!(reply.is_ok()),
            Either::Left(_) => panic!("swallowed"),
        }
    });
    assert_eq!(echo(&reactor, server.addr, 3), Ok(3));
}

#[test]
fn errors_tell_what_is_known() {
    let _watchdog = watchdog(60);
    let reactor = reactor();
    let (listener, nobody) = listen();
    drop(listener);
    assert_eq!(echo(&reactor, nobody, 1), Err(CallError::Unreachable));
    let server = Server::start(Mood::default());
    let killed = reactor.block_on(call(&reactor, server.addr, KILL, 1, LONG));
    assert_eq!(killed, Err(CallError::Disconnected));
    let large = Bytes::from(vec![0; saker_rpc::frame::PAYLOAD_BYTES_MAX + 1]);
    let answer = reactor.call(server.addr, ECHO, 0, Bytes::new(), large, LONG);
    assert_eq!(reactor.block_on(answer), Err(CallError::TooLarge));
    assert_eq!(echo(&reactor, server.addr, 2), Ok(2));
    let stern = Server::start(Mood { refuses: true, ..Mood::default() });
    assert_eq!(echo(&reactor, stern.addr, 3), Err(CallError::Refused));
    assert_eq!(reactor.hello_reply(stern.addr).unwrap().text, "not today");
    assert!(stern.seen().is_empty());
}

/// A server that accepts and says nothing: its calls end at their deadlines, or with the attempt.
#[test]
fn a_silent_server_is_given_up() {
    let _watchdog = watchdog(60);
    let reactor = reactor();
    let (_listener, addr) = listen();
    let start = Instant::now();
    let short = call(&reactor, addr, ECHO, 1, Duration::from_millis(50));
    let long = call(&reactor, addr, ECHO, 2, LONG);
    assert_eq!(reactor.block_on(short), Err(CallError::Timeout));
    assert_eq!(reactor.block_on(long), Err(CallError::Unreachable));
    // Real time: a timeout of LONG would take longer.
    assert!(start.elapsed() < Duration::from_secs(10));
}

/// The server's side of a connection goes without a word, as when its machine starts anew: whoever
/// waits for an answer hears of it, and need not wait for the deadline.
#[test]
fn a_connection_that_the_server_has_forgotten_ends() {
    let _watchdog = watchdog(60);
    let (listener, addr) = listen();
    let server = std::thread::spawn(move || {
        let mut raw = Raw::new(listener.accept().unwrap().0);
        raw.receive().unwrap();
        raw.send(&hello_reply(0));
        // Else the client would soon send again what nobody has acknowledged, and be told.
        rustix::net::sockopt::set_tcp_quickack(&raw.stream, true).unwrap();
        raw.receive().unwrap();
        // A socket under repair is closed without a packet.
        let (on, fd) = (1, raw.stream.as_raw_fd());
        let (repair, len) = (libc::TCP_REPAIR, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: the call reads an int from a pointer that is valid during it.
        let ret =
            unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, repair, (&raw const on).cast(), len) };
        // A host that keeps the port open answers what belongs to no connection.
        (ret == 0, listener)
    });
    let reactor = reactor();
    let answer = reactor.block_on(call(&reactor, addr, ECHO, 1, Duration::from_secs(4)));
    if server.join().unwrap().0 {
        assert_eq!(answer, Err(CallError::Disconnected));
    } else {
        eprintln!("skipped: needs root");
    }
}

#[test]
fn calls_that_nobody_can_take_are_refused_at_the_bound() {
    let _watchdog = watchdog(60);
    let (reactor, server) = (reactor(), Server::start(Mood::default()));
    echo(&reactor, server.addr, 1).unwrap();
    let calls: Vec<Call> =
        (0..70_000).map(|id| call(&reactor, server.addr, SWALLOW, id, LONG)).collect();
    let last = reactor.block_on(calls.into_iter().next_back().unwrap());
    assert_eq!(last, Err(CallError::Overloaded));
}

/// The server goes and comes back at the same address; new hellos say what was set meanwhile.
#[test]
fn a_server_that_comes_back_is_found_again() {
    let _watchdog = watchdog(60);
    let reactor = reactor();
    let mut server = Server::start(Mood::default());
    let addr = server.addr;
    for round in 0..3 {
        assert_eq!(echo(&reactor, addr, round), Ok(round));
        drop(server);
        reactor.set_hello(hello(RoleKind::Client, 0).with_session(round + 10));
        assert!(echo(&reactor, addr, round).is_err());
        server = Server::start_on(listen_at(addr), addr, Mood::default());
        let start = Instant::now();
        while echo(&reactor, addr, round) != Ok(round) {
            assert!(start.elapsed() < Duration::from_secs(5), "never found again");
        }
        assert_eq!(server.shared.hellos.lock().unwrap()[0].session, round + 10);
    }
}

/// What a call waited for while there was no connection is not sent after its deadline.
#[test]
fn requests_that_timed_out_before_the_connection_stood_are_not_sent() {
    let _watchdog = watchdog(60);
    let reactor = reactor();
    let (listener, addr) = listen();
    // The listener's backlog takes the connection; nobody answers the hello yet.
    let short = call(&reactor, addr, ECHO, 1, Duration::from_millis(30));
    assert_eq!(reactor.block_on(short), Err(CallError::Timeout));
    let server = Server::start_on(listener, addr, Mood::default());
    assert_eq!(echo(&reactor, addr, 2), Ok(2));
    assert_eq!(server.seen().into_keys().collect::<Vec<_>>(), [2]);
}

#[test]
fn a_server_that_talks_garbage_loses_its_connection_only() {
    let _watchdog = watchdog(60);
    let (reactor, good) = (reactor(), Server::start(Mood::default()));
    let (listener, bad) = listen();
    let talker = std::thread::spawn(move || {
        for garbage in [&b"HTTP/1.1 400 Bad Request\r\n\r\nand so on and so on"[..], &[0; 100]] {
            use std::io::Write;
            let mut raw = Raw::new(listener.accept().unwrap().0);
            raw.receive().unwrap();
            raw.stream.write_all(garbage).unwrap();
            assert!(raw.is_closed());
        }
    });
    for id in 0..2 {
        let both = [bad, good.addr].map(|to| call(&reactor, to, ECHO, id, LONG));
        let ends = reactor.block_on(join_all(both));
        assert_eq!(ends[0], Err(CallError::Unreachable));
        assert!(ends[1].is_ok());
    }
    talker.join().unwrap();
    assert_eq!(good.shared.hellos.lock().unwrap().len(), 1);
}

#[test]
#[should_panic(expected = "block_on inside of block_on")]
fn block_on_does_not_nest() {
    let reactor = reactor();
    reactor.block_on(async { reactor.block_on(async {}) });
}

#[test]
fn a_sibling_has_connections_of_its_own_and_serves_whoever_is_in_it() {
    let _watchdog = watchdog(60);
    let server = Server::start(Mood::default());
    let reactor = Reactor::new(hello(RoleKind::Client, 0)).unwrap();
    let sibling = reactor.sibling().unwrap();
    let stranger = Reactor::new(hello(RoleKind::Client, 0)).unwrap();
    let ask = |id| reactor.with_local(|local| call_over(local, server.addr, id));
    for driver in [&reactor, &sibling, &sibling] {
        driver.block_on(async { ask(7).await }).unwrap();
    }
    assert_eq!(server.shared.hellos.lock().unwrap().len(), 2, "one each");
    assert!(stranger.with_local(|local| std::ptr::eq(local, &*stranger)));
}

fn call_over(reactor: &Reactor, to: SocketAddr, id: u64) -> Call {
    let body = Bytes::copy_from_slice(&id.to_le_bytes());
    reactor.call(to, ECHO, 0, body, Bytes::new(), LONG)
}

#[test]
fn a_watched_file_wakes_its_reactor_as_long_as_it_can_be_read() {
    let _watchdog = watchdog(60);
    let reactor = Reactor::new(hello(RoleKind::Client, 0)).unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    reactor.watch(1, std::os::fd::AsFd::as_fd(&reader)).unwrap();
    let readable = || std::future::poll_fn(|cx| reactor.poll_source(1, cx));
    let other = std::thread::spawn(move || {
        // Real time: the reader waits by then; if not, that passes, too.
        std::thread::sleep(Duration::from_millis(50));
        rustix::io::write(&writer, b"xy").unwrap();
        writer
    });
    reactor.block_on(async {
        readable().await;
        rustix::io::read(&reader, &mut [0; 1]).unwrap();
        // One byte is left.
        readable().await;
        rustix::io::read(&reader, &mut [0; 1]).unwrap();
        // Real time: nothing may come meanwhile.
        let nothing = reactor.sleep(Duration::from_millis(50));
        let more = select(Box::pin(readable()), nothing).await;
        assert!(matches!(more, Either::Right(_)), "nothing is there to be read");
    });
    reactor.unwatch(std::os::fd::AsFd::as_fd(&reader)).unwrap();
    drop(other.join().unwrap());
}
