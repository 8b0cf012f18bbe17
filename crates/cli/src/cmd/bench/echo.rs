//! Frames there and back over the loopback, and nothing else: what a request costs before a shard
//! has done anything for it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use saker_rpc::node::Input;
use saker_rpc::{
    FlushDone, Hello, HelloPolicy, NodeNumber, Outbox, Reactor, RoleKind, Shell, ShellConfig,
    StateMachine, StopHandle, Transport,
};
use saker_runtime::time::Time;
use saker_types::wire::Op;

use super::cpu::{self, Watched};
use super::load::{self, Load, Operation, Share, Until};
use super::report::Phase;
use super::target::Runner;
use crate::fail::{Context, Failure, Outcome};
use crate::ports::LOOPBACK;
use crate::procfs;

/// Answer every request with its own body; `saker bench raw` starts this.
#[derive(clap::Args)]
pub struct ServerArgs {}

/// A role that answers at once and remembers nothing.
struct Echo;

impl StateMachine for Echo {
    fn step(&mut self, _: Time, _: i64, inputs: &mut VecDeque<Input>, out: &mut Outbox) {
        for input in inputs.drain(..) {
            if let Input::Request { conn, frame, .. } = input {
                out.reply(conn, frame.reply(0, frame.body.clone(), Bytes::new()));
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
        0
    }

    fn durable(&self) -> u64 {
        0
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn flush_begin(&mut self, done: FlushDone) -> std::io::Result<()> {
        done.notify();
        Ok(())
    }

    fn flush_finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Serves on a port of its own, which it prints, and ends with its parent.
pub fn run_server(_: &ServerArgs) -> Outcome<u8> {
    procfs::end_with_parent();
    let listener = TcpListener::bind((LOOPBACK, 0)).about("echo")?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", listener.local_addr().about("echo")?).about("echo")?;
    out.flush().about("echo")?;
    let hello = Hello::new(RoleKind::Shard, NodeNumber(1), None);
    let policy = HelloPolicy { allow_unknown_cluster: true, ..HelloPolicy::default() };
    let mut shell = Shell::new(Echo, listener, ShellConfig::new(hello, policy)).about("echo")?;
    shell.run(&StopHandle::new()).about("echo")?;
    Ok(0)
}

/// A server in a process of its own; dropping it ends it.
struct Server {
    child: Child,
    addr: SocketAddr,
}

impl Server {
    fn start() -> Outcome<Server> {
        let program = procfs::this_program().about("saker")?;
        let mut command = Command::new(program);
        command.args(["bench", "echo-server"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().about("echo")?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).about("echo")?;
        }
        let addr = line.trim().parse().map_err(|_| Failure::new("echo", "it does not start"))?;
        Ok(Server { child, addr })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It cannot have ended by itself; if it has, there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone)]
struct Client(Arc<Reactor>);

impl Runner for Client {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }
}

#[derive(Clone)]
struct Call {
    addr: SocketAddr,
    body: Bytes,
}

impl Operation<Client> for Call {
    async fn run(&self, client: &Client, _: usize, _: u64) -> std::io::Result<()> {
        const WITHIN: Duration = Duration::from_secs(10);
        let (body, none) = (self.body.clone(), Bytes::new());
        let call = client.0.call(self.addr, Op::Lookup as u16, 0, body, none, WITHIN);
        let reply = call.await.map_err(std::io::Error::other)?;
        match reply.body == self.body {
            true => Ok(()),
            false => Err(std::io::Error::other("another body came back")),
        }
    }
}

/// Bytes of a body: about what a lookup of a path of a few names has.
const BODY_BYTES: usize = 100;

/// One call under way, then many.
pub fn measure(time: Duration) -> Outcome<Vec<Phase>> {
    let server = Server::start()?;
    let hello = Hello::new(RoleKind::Tool, NodeNumber::NONE, None);
    let client = Client(Reactor::new(hello).about("network")?);
    let call = Call { addr: server.addr, body: Bytes::from(vec![7; BODY_BYTES]) };
    let pids = [Watched { name: "echo".to_owned(), pid: server.child.id() }];
    let until = Until { ops: None, time: Some(time) };
    let mut phases = Vec::new();
    for (name, inflight) in [("echo, 1 under way", 1), ("echo, 64 under way", 64)] {
        let load = Load { threads: 1, inflight };
        let before = cpu::sample(&pids);
        let measured = load::run(&client, load, until, Share::Open, &call)?;
        let used: BTreeMap<_, _> = cpu::used(before, cpu::sample(&pids));
        if let Some(error) = &measured.first_error {
            return Err(Failure::new("echo", error));
        }
        phases.push(Phase::new(name, load, &measured, 0, used));
    }
    Ok(phases)
}
