use saker_types::NodeId;

use super::*;
use crate::Hello;

const ADDR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 1);
const FIRST: NodeNumber = NodeNumber(1);
const SECOND: NodeNumber = NodeNumber(2);
const NOWHERE: NodeNumber = NodeNumber(3);
const TIMEOUT: Duration = Duration::from_secs(20);

/// Answers with what it is told.
const ECHO: u16 = 1;
/// Asks the node whose number the body is to echo, and answers with the status of that.
const ASK: u16 = 2;
/// Never answers.
const SILENCE: u16 = 3;
const PANIC: u16 = 4;
/// Answers when the record is written.
const EARLY: u16 = 5;
/// Cannot go on.
const BREAK: u16 = 6;

/// A role whose every request is a record.
#[derive(Default)]
struct Echo {
    appended: u64,
    at_once: u64,
    written: u64,
    durable: u64,
    /// Whom its calls are for.
    asking: FxHashMap<CallId, (ConnId, Frame)>,
    flushes: Arc<std::sync::atomic::AtomicU64>,
    is_broken: bool,
    /// Hears of flushes in the background.
    began: Option<std::sync::mpsc::Sender<()>>,
}

impl StateMachine for Echo {
    fn step(&mut self, now: Time, _: i64, inputs: &mut VecDeque<Input>, out: &mut Outbox) {
        for input in inputs.drain(..) {
            match input {
                Input::Request { conn, frame, .. } => {
                    self.appended += 1;
                    if frame.op != EARLY {
                        self.at_once = self.appended;
                    }
                    match frame.op {
                        EARLY => out.reply_when_written(
                            conn,
                            frame.reply(0, frame.body.clone(), Bytes::new()),
                        ),
                        ECHO => out.reply(conn, frame.reply(0, frame.body.clone(), Bytes::new())),
                        ASK => {
                            let to = NodeNumber(frame.body[0].into());
                            let body = frame.body.clone();
                            let until = now + Duration::from_millis(20);
                            let op = if to == FIRST { SILENCE } else { ECHO };
                            let call = out.call(to, op, 0, body, Bytes::new(), until);
                            self.asking.insert(call, (conn, frame));
                        }
                        SILENCE => {}
                        BREAK => self.is_broken = true,
                        _ => panic!("as it is told"),
                    }
                }
                Input::Reply { call, result } => {
                    let (conn, frame) = self.asking.remove(&call).unwrap();
                    let text = match result {
                        Ok(reply) => format!("{:?}", reply.body),
                        Err(error) => format!("{error:?}"),
                    };
                    out.reply(conn, frame.reply(0, text.into(), Bytes::new()));
                }
                Input::Closed { .. } => {}
            }
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn address(&self, _: NodeNumber) -> Option<SocketAddr> {
        None
    }

    fn appended(&self) -> u64 {
        self.appended
    }

    fn durable(&self) -> u64 {
        self.durable
    }

    fn check(&self) -> io::Result<()> {
        if self.is_broken { Err(io::Error::other("broken")) } else { Ok(()) }
    }

    fn written(&self) -> u64 {
        self.written.max(self.durable)
    }

    fn flushed_at_once(&self) -> u64 {
        self.at_once
    }

    fn write(&mut self) -> io::Result<()> {
        self.written = self.appended;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.durable = self.appended;
        Ok(())
    }

    fn flush_begin(&mut self, done: FlushDone) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.began.iter().for_each(|began| _ = began.send(()));
        done.notify();
        Ok(())
    }

    fn flush_finish(&mut self) -> io::Result<()> {
        self.durable = self.appended;
        Ok(())
    }
}

struct Test {
    reactor: Arc<Reactor>,
    servers: LocalServers<u64>,
    transport: LocalTransport<u64>,
    flushes: Arc<std::sync::atomic::AtomicU64>,
    began: std::sync::mpsc::Receiver<()>,
}

fn start() -> Test {
    start_flushing(Flushes::Roles)
}

fn start_flushing(how: Flushes) -> Test {
    let reactor = Reactor::new(Hello::new(RoleKind::Client, NodeNumber::NONE, None)).unwrap();
    let flushes = Arc::<std::sync::atomic::AtomicU64>::default();
    let counts = flushes.clone();
    let (begins, began) = std::sync::mpsc::channel();
    let servers = LocalServers::start_flushing("test", &reactor, [1; 16], how, move || {
        let node = |node, addr| LocalNode {
            node,
            role: RoleKind::Shard,
            addr,
            machine: Box::new(Echo {
                flushes: counts.clone(),
                began: Some(begins.clone()),
                ..Echo::default()
            }),
        };
        let mut other = ADDR;
        other.set_port(2);
        Ok((vec![node(FIRST, ADDR), node(SECOND, other)], 40))
    });
    let servers = servers.unwrap();
    let transport = servers.transport(reactor.clone());
    Test { reactor, servers, transport, flushes, began }
}

impl Test {
    fn ask(&self, op: u16, body: &'static [u8], timeout: Duration) -> Result<Bytes, CallError> {
        let body = Bytes::from_static(body);
        let call = self.transport.call(ADDR, op, 7, body, Bytes::new(), timeout);
        self.reactor.block_on(call).map(|reply| reply.body)
    }
}

#[test]
fn a_request_is_answered_when_its_record_is_durable() {
    let t = start();
    for n in 1..=100 {
        assert_eq!(t.ask(ECHO, b"x", TIMEOUT).unwrap(), "x");
        assert_eq!(t.flushes.load(Ordering::Relaxed), n, "one caller, one flush each");
    }
    let bodies = [&b"a"[..]; 1000];
    let calls = bodies.map(|body| {
        t.transport.call(ADDR, ECHO, 0, Bytes::from_static(body), Bytes::new(), TIMEOUT)
    });
    let all = t.reactor.block_on(futures_util::future::join_all(calls));
    assert!(all.into_iter().all(|reply| reply.unwrap().body == "a"));
    assert!(t.flushes.load(Ordering::Relaxed) < 600, "flushes are for many");
}

#[test]
fn what_need_only_be_written_is_flushed_soon_after_its_answer() {
    let t = start();
    let since = time::now();
    for _ in 0..1000 {
        assert_eq!(t.ask(EARLY, b"x", TIMEOUT).unwrap(), "x");
    }
    let most = time::now().since(since).as_millis() as u64 / 20 + 1;
    assert!(t.flushes.load(Ordering::Relaxed) <= most, "answers wait for no flush");
    // Nobody asks for it.
    t.began.recv_timeout(TIMEOUT).unwrap();
    let flushes = t.flushes.load(Ordering::Relaxed);
    t.ask(EARLY, b"x", TIMEOUT).unwrap();
    assert_eq!(t.ask(ECHO, b"y", TIMEOUT).unwrap(), "y");
    assert!(t.flushes.load(Ordering::Relaxed) > flushes, "what is to be durable waits");
}

#[test]
fn what_is_flushed_later_is_answered_from_memory() {
    let later = Later { after: None, bytes_max: 50, durable_ops: &[ECHO] };
    let t = start_flushing(Flushes::Later(later));
    let flushes = || t.flushes.load(Ordering::Relaxed);
    for _ in 0..49 {
        assert_eq!(t.ask(EARLY, b"x", TIMEOUT).unwrap(), "x");
    }
    assert_eq!(t.reactor.block_on(t.servers.run_early(|state| *state)), Some(40));
    assert_eq!(flushes(), 0);
    // Too much is in memory.
    t.ask(EARLY, b"x", TIMEOUT).unwrap();
    t.began.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(flushes(), 1);
    t.ask(EARLY, b"x", TIMEOUT).unwrap();
    t.ask(EARLY, b"x", TIMEOUT).unwrap();
    assert_eq!(flushes(), 1);
    // Somebody waits for it.
    assert_eq!(t.ask(ECHO, b"y", TIMEOUT).unwrap(), "y");
    assert_eq!(flushes(), 2);
    t.ask(EARLY, b"x", TIMEOUT).unwrap();
    assert_eq!(t.reactor.block_on(t.servers.run(|state| *state)), Some(40));
    assert_eq!(flushes(), 3);
}

#[test]
fn what_is_flushed_later_is_so_after_a_time() {
    let after = Some(Duration::from_millis(5));
    let later = Later { after, bytes_max: u64::MAX, durable_ops: &[] };
    let t = start_flushing(Flushes::Later(later));
    assert_eq!(t.ask(EARLY, b"x", TIMEOUT).unwrap(), "x");
    // Nobody asks for it.
    t.began.recv_timeout(TIMEOUT).unwrap();
    // Roles ask each other without it, and others not.
    assert_eq!(t.ask(ASK, &[1], TIMEOUT).unwrap(), "Timeout");
}

#[test]
fn roles_call_each_other_and_their_calls_end() {
    let t = start();
    assert_eq!(t.ask(ASK, &[2], TIMEOUT).unwrap(), format!("{:?}", Bytes::from_static(&[2])));
    assert_eq!(t.ask(ASK, &[3], TIMEOUT).unwrap(), "Unreachable", "{NOWHERE:?}");
    assert_eq!(t.ask(ASK, &[1], TIMEOUT).unwrap(), "Timeout", "it does not answer itself");
    assert_eq!(t.ask(SILENCE, b"", Duration::from_millis(20)), Err(CallError::Timeout));
}

#[test]
fn work_is_done_between_steps() {
    let t = start();
    let add = |by: u64| {
        t.reactor.block_on(t.servers.run(move |state| {
            *state += by;
            *state
        }))
    };
    assert_eq!((add(1), add(1)), (Some(41), Some(42)));
}

#[test]
fn requests_wait_while_servers_pause_and_end_with_them() {
    let t = start();
    let ask = || t.transport.call(ADDR, ECHO, 0, Bytes::from_static(b"x"), Bytes::new(), TIMEOUT);
    let run = || t.reactor.block_on(t.servers.run(|state| *state));
    let before = t.transport.call(ADDR, ASK, 0, Bytes::from_static(&[1]), Bytes::new(), TIMEOUT);
    assert_eq!(run(), Some(40), "it is looked at");
    let idle = t.servers.pause();
    assert_eq!(t.reactor.block_on(idle), Some(()));
    assert_eq!(t.reactor.block_on(before).unwrap().body, "Timeout", "it was answered before");
    let flushes = t.flushes.load(Ordering::Relaxed);
    let waiting = ask();
    assert_eq!(run(), Some(40), "works are done");
    assert_eq!(t.flushes.load(Ordering::Relaxed), flushes, "it was not looked at");
    t.servers.resume();
    assert_eq!(t.reactor.block_on(waiting).unwrap().body, "x");
    assert_eq!(t.reactor.block_on(t.servers.pause()), Some(()));
    let waiting = ask();
    t.servers.when_dead(|why| panic!("{why}"));
    t.servers.end();
    assert_eq!(t.reactor.block_on(waiting).err(), Some(CallError::Ended));
    assert_eq!(t.reactor.block_on(ask()).err(), Some(CallError::Ended));
    assert_eq!(run(), None);
}

#[test]
fn a_role_that_cannot_go_on_ends_its_thread() {
    let t = start();
    let (tell, told) = std::sync::mpsc::channel();
    t.servers.when_dead(move |why| tell.send(why.to_owned()).unwrap());
    let broken = t.ask(BREAK, b"", TIMEOUT);
    assert!(matches!(broken, Err(CallError::Disconnected | CallError::Ended)), "{broken:?}");
    assert_eq!(told.recv_timeout(TIMEOUT).unwrap(), "broken");
    assert_eq!(t.ask(ECHO, b"", TIMEOUT), Err(CallError::Ended));
}

#[test]
fn nobody_waits_for_a_thread_that_has_died() {
    let t = start();
    let silent = t.transport.call(ADDR, SILENCE, 0, Bytes::new(), Bytes::new(), TIMEOUT);
    let (tell, told) = std::sync::mpsc::channel();
    t.servers.when_dead(move |why| tell.send(why.to_owned()).unwrap());
    assert_eq!(t.ask(PANIC, b"", TIMEOUT), Err(CallError::Disconnected));
    assert!(told.recv_timeout(TIMEOUT).unwrap().contains("panicked"));
    assert_eq!(t.reactor.block_on(silent).err(), Some(CallError::Disconnected));
    assert!(matches!(t.ask(ECHO, b"", TIMEOUT), Err(CallError::Disconnected | CallError::Ended)));
    assert_eq!(t.reactor.block_on(t.servers.run(|state| *state)), None);
    let Test { reactor, servers, transport, .. } = t;
    drop(servers);
    let call = transport.call(ADDR, ECHO, 0, Bytes::new(), Bytes::new(), TIMEOUT);
    assert_eq!(reactor.block_on(call).err(), Some(CallError::Ended));
    let failed = LocalServers::<()>::start("test", &reactor, [1; 16], || {
        Err(io::Error::other(NodeId::Coordinator.to_string()))
    });
    assert!(failed.err().unwrap().to_string().contains("coordinator"));
}
