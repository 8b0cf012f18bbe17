//! Agents of a job in processes of their own, which are killed; datasets that they stage, and
//! processes that read them.

pub mod reader;
pub mod tree;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use saker_agent_api::{Ask, DatasetStatus, Local, Named, NodeStatus};
use saker_sim::cluster::binary;
use saker_sim::wait::until;

/// An agent.
pub struct Agent {
    /// Its directory.
    pub dir: PathBuf,
    /// Where it listens.
    pub addr: String,
    child: Option<Child>,
}

impl Agent {
    /// Starts one that listens at `addr`.
    pub fn new(dir: PathBuf, addr: String) -> Agent {
        // A peer that hangs is passed over soon.
        let settings = format!(
            "listen = {addr:?}\ndir = {dir:?}\nthreads = 2\ntimeout_ms = 1000\npatience_ms = 3000\n"
        );
        fs::write(dir.with_extension("toml"), settings).unwrap();
        fs::write(life_of(&dir), "1").unwrap();
        let mut agent = Agent { dir, addr, child: None };
        agent.start();
        agent
    }

    /// Starts it, and waits until it answers.
    pub fn start(&mut self) {
        let mut options = fs::File::options();
        let log = options.create(true).append(true).open(self.dir.with_extension("log")).unwrap();
        let mut command = Command::new(binary());
        command.args(["serve", "agent", "--config"]).arg(self.dir.with_extension("toml"));
        command.env("SAKER_LOG", "saker_agent=debug").stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().unwrap());
        until("an agent that serves", || Local::connect(&self.dir).is_ok());
        self.next_life();
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.next_life();
        let mut child = self.child.take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Stops it, as on a machine that hangs.
    pub fn hang(&self) {
        self.next_life();
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
        until("an agent that serves", || Local::connect(&self.dir).is_ok());
        self.next_life();
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    /// Even while it serves, odd while it may not: see [`life`].
    fn next_life(&self) {
        let new = self.dir.with_extension("new-life");
        fs::write(&new, (life(&self.dir) + 1).to_string()).unwrap();
        fs::rename(new, life_of(&self.dir)).unwrap();
    }

    /// What is staged on it, and its counters.
    pub fn status(&self) -> NodeStatus {
        let all = Named { dataset: String::new() };
        let reply = Local::connect(&self.dir).unwrap().ask(Ask::Status(all)).unwrap();
        reply.status.unwrap()
    }

    /// A dataset on it, if it has been told of it.
    pub fn dataset(&self, name: &str) -> Option<DatasetStatus> {
        self.status().datasets.into_iter().find(|dataset| dataset.name == name)
    }

    /// A counter since the agent started.
    pub fn counter(&self, name: &str) -> u64 {
        let name = format!("saker_agent_{name}");
        self.status().counters.iter().find(|count| count.name == name).unwrap().value
    }

    /// Where it keeps a dataset.
    pub fn staged(&self, name: &str) -> PathBuf {
        self.dir.join("datasets").join(name)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.with_extension("log")).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- {}", self.addr);
            last.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

fn life_of(dir: &Path) -> PathBuf {
    dir.with_extension("life")
}

/// A number that grows when an agent is about to be killed, and when it serves again: even while it
/// serves all the time.
pub fn life(dir: &Path) -> u64 {
    fs::read_to_string(life_of(dir)).unwrap().parse().unwrap()
}

/// Nodes of a job, each with an agent.
pub struct Job {
    /// One for each node. They end before their directories go.
    pub agents: Vec<Agent>,
    /// Packed datasets and the agents' directories are in it.
    temporary: tempfile::TempDir,
}

impl Job {
    /// Starts `nodes` agents.
    pub fn new(nodes: usize) -> Job {
        let temporary = tempfile::tempdir().unwrap();
        let held: Vec<_> = (0..nodes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addrs: Vec<_> =
            held.iter().map(|held| held.local_addr().unwrap().to_string()).collect();
        drop(held);
        let dir = |n: usize| temporary.path().join(format!("node{n}"));
        let agents =
            addrs.into_iter().enumerate().map(|(n, addr)| Agent::new(dir(n), addr)).collect();
        Job { agents, temporary }
    }

    /// A path in its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    /// Packs a tree: as `packed-NAME`.
    pub fn pack(&self, tree: &Path, name: &str, codec: &str, partitions: u32) -> PathBuf {
        let to = self.path(&format!("packed-{name}"));
        let mut pack = Command::new(binary());
        pack.args(["dataset", "pack", "--compress", codec, "--partitions"]);
        said(pack.arg(partitions.to_string()).arg(tree).arg("-o").arg(&to).output().unwrap());
        to
    }

    /// The command that stages `packed-NAME` as `NAME@1` on all nodes.
    pub fn stage(&self, name: &str, replicas: usize) -> Command {
        let nodes: Vec<&str> = self.agents.iter().map(|agent| agent.addr.as_str()).collect();
        let mut stage = Command::new(binary());
        stage.args(["dataset", "stage"]).arg(self.path(&format!("packed-{name}")));
        stage.args(["--name", &format!("{name}@1"), "--nodes", &nodes.join(",")]);
        stage.arg("--replicas").arg(replicas.to_string()).arg("--dir").arg(&self.agents[0].dir);
        stage
    }

    /// The command that removes `NAME@1` from all nodes.
    pub fn unstage(&self, name: &str) -> Command {
        let mut unstage = Command::new(binary());
        unstage.args(["dataset", "unstage", &format!("{name}@1"), "--dir"]);
        unstage.arg(&self.agents[0].dir);
        unstage
    }

    /// Sum of a counter over agents that serve.
    pub fn total<'a>(&'a self, agents: impl IntoIterator<Item = &'a usize>, counter: &str) -> u64 {
        agents.into_iter().map(|n| self.agents[*n].counter(counter)).sum()
    }
}

/// What a command that must succeed has said.
pub fn said(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
