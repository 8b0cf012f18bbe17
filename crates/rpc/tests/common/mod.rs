//! What the tests of this crate share: a watchdog, shells on threads, and a peer made by hand.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, dead_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use prost::Message;
use saker_rpc::frame::Decoder;
use saker_rpc::{
    Bytes, Frame, FrameKind, Hello, HelloPolicy, NodeNumber, RoleKind, Shell, ShellConfig,
    StateMachine, StopHandle,
};

pub const CLUSTER: [u8; 16] = [7; 16];

/// Ends the process when it is not dropped in time: a test that hangs must not hang forever.
pub struct Watchdog(#[allow(dead_code)] mpsc::Sender<()>);

pub fn watchdog(seconds: u64) -> Watchdog {
    let (alive, dead) = mpsc::channel::<()>();
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    std::thread::spawn(move || {
        if dead.recv_timeout(Duration::from_secs(seconds)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{name} did not end within {seconds} s");
            std::process::abort();
        }
    });
    Watchdog(alive)
}

pub fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Listens again where somebody listened before.
pub fn listen_at(addr: SocketAddr) -> TcpListener {
    for _ in 0..500 {
        if let Ok(listener) = TcpListener::bind(addr) {
            return listener;
        }
        // Real time: another attempt follows.
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{addr} is not free");
}

pub fn hello(role: RoleKind, node: u32) -> Hello {
    Hello::new(role, NodeNumber(node), Some(CLUSTER))
}

pub fn config(node: u32) -> ShellConfig {
    let policy = HelloPolicy { cluster: Some(CLUSTER), ..HelloPolicy::default() };
    ShellConfig::new(hello(RoleKind::Shard, node), policy)
}

/// A shell on a thread of its own; stops, and passes its panics on, when dropped.
pub struct Running {
    pub stop: StopHandle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start<R: StateMachine>(
        listener: TcpListener,
        config: ShellConfig,
        role: impl FnOnce() -> R + Send + 'static,
    ) -> Running {
        let stop = StopHandle::new();
        let its = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut shell = Shell::new(role(), listener, config).unwrap();
            shell.run(&its).unwrap();
        });
        Running { stop, thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

/// A connection without any of the crate's machinery but the frame format.
pub struct Raw {
    pub stream: TcpStream,
    decoder: Decoder,
}

impl Raw {
    pub fn new(stream: TcpStream) -> Raw {
        stream.set_nodelay(true).unwrap();
        Raw { stream, decoder: Decoder::new() }
    }

    /// Connected; nothing has been said.
    pub fn dial(addr: SocketAddr) -> Raw {
        Raw::new(TcpStream::connect(addr).unwrap())
    }

    /// Connected, and let in.
    pub fn client(addr: SocketAddr) -> Raw {
        let mut raw = Raw::dial(addr);
        let reply = raw.shake(&hello(RoleKind::Client, 0)).expect("an answer");
        assert_eq!((reply.kind, reply.status), (FrameKind::HelloReply, 0));
        raw
    }

    pub fn shake(&mut self, hello: &Hello) -> Option<Frame> {
        let body = hello.encode_to_vec().into();
        self.send(&Frame { kind: FrameKind::Hello, ..Frame::request(0, 0, body, Bytes::new()) });
        self.receive()
    }

    pub fn send(&mut self, frame: &Frame) {
        self.stream.write_all(&frame.to_bytes()).unwrap();
    }

    pub fn request(&mut self, call: u64, op: u16, body: &[u8]) {
        let body = Bytes::copy_from_slice(body);
        self.send(&Frame { call, ..Frame::request(op, 0, body, Bytes::new()) });
    }

    /// The next frame; `None` when the peer has closed.
    pub fn receive(&mut self) -> Option<Frame> {
        self.stream.set_read_timeout(None).unwrap();
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some(frame);
            }
            let mut bytes = [0; 16 << 10];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(n) => self.decoder.push(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// Whether nothing comes for this long.
    pub fn silent(&mut self, time: Duration) -> bool {
        assert!(self.decoder.next_frame().unwrap().is_none(), "a frame was read before");
        self.stream.set_read_timeout(Some(time)).unwrap();
        match self.stream.peek(&mut [0]) {
            Err(e) => matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            Ok(_) => false,
        }
    }

    /// Whether the peer closes; frames before that are thrown away.
    pub fn is_closed(&mut self) -> bool {
        while self.receive().is_some() {}
        true
    }
}
