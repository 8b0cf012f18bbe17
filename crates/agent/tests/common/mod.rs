//! Real agents on loopback: processes, which can be killed, or threads of the test.

#![allow(dead_code, clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use saker_agent::Config;
use saker_agent_api::{Ask, Local, Named, NodeStatus, Reply, StageDataset};
use saker_dataset::pack::{LocalTree, Options, Plan, Progress, pack};
use saker_dataset::table::ROOT;
use saker_dataset::{Ino, Manifest, Stage, Table};

/// What a test waits for comes within.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until it is so.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !so() {
        // Real time: a condition that never holds must end the test.
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        // Real time: other processes have to do something meanwhile.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ports that nobody has now.
pub fn ports<const N: usize>() -> [u16; N] {
    let held = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    held.map(|listener| listener.local_addr().unwrap().port())
}

/// The agent of a settings file, in a process of its own: this test binary, run again.
pub struct Agent {
    pub config: Config,
    file: PathBuf,
    child: Option<Child>,
    /// Variables of its environment.
    pub env: Vec<(&'static str, String)>,
}

/// Names the settings file to the process.
pub const CONFIG_ENV: &str = "SAKER_TEST_AGENT";

/// What the process runs; each test file has a test `agent_process` that calls this.
pub fn agent_process() {
    let Ok(file) = std::env::var(CONFIG_ENV) else { return };
    saker_runtime::telemetry::init();
    let config = saker_runtime::config::load(Path::new(&file)).unwrap().value;
    saker_agent::serve(config, &saker_agent::Stop::new()).unwrap();
}

impl Agent {
    /// One that has not started.
    pub fn new(config: Config) -> Agent {
        fs::create_dir_all(&config.dir).unwrap();
        let file = config.dir.with_extension("toml");
        let text = toml(&config);
        fs::write(&file, text).unwrap();
        Agent { config, file, child: None, env: Vec::new() }
    }

    pub fn start(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.config.dir.with_extension("log"))
            .unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "agent_process", "--nocapture"])
            .env(CONFIG_ENV, &self.file)
            .env("SAKER_LOG", "saker_agent=debug")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        until("an agent that serves", || Local::connect(&self.config.dir).is_ok());
    }

    /// As `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// As `kill -STOP` and `kill -CONT`.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let child = self.child.as_ref().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
    }

    pub fn ask(&self, ask: Ask) -> std::io::Result<Reply> {
        Local::connect(&self.config.dir)?.ask(ask)
    }

    pub fn status(&self) -> NodeStatus {
        let all = Named { dataset: String::new() };
        self.ask(Ask::Status(all)).unwrap().status.unwrap()
    }

    pub fn counter(&self, name: &str) -> u64 {
        let status = self.status();
        let name = format!("saker_agent_{name}");
        status.counters.iter().find(|count| count.name == name).unwrap().value
    }

    pub fn is_complete(&self) -> bool {
        self.status().datasets.iter().all(|dataset| dataset.complete)
    }

    pub fn stage(&self, stage: &Stage, node: usize) -> std::io::Result<()> {
        let ask = StageDataset { stage: stage.to_json(), node: node as u32 };
        self.ask(Ask::Stage(ask)).map(drop)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.config.dir.with_extension("log")).unwrap_or_default()
    }

    pub fn dataset(&self, name: &str) -> PathBuf {
        self.config.dir.join("datasets").join(name)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.config.listen, self.log());
        }
    }
}

fn toml(config: &Config) -> String {
    let mut text = format!(
        "listen = \"{}\"\ndir = {:?}\nmemory_bytes = {}\nthreads = 2\npatience_ms = {}\ntimeout_ms = {}\n",
        config.listen, config.dir, config.memory_bytes, config.patience_ms, config.timeout_ms
    );
    if let Some(file) = &config.key_file {
        text += &format!("key_file = {file:?}\n");
    }
    text
}

/// A packed dataset and agents that are to stage it.
pub struct Job {
    pub temporary: tempfile::TempDir,
    pub source: PathBuf,
    pub packed: PathBuf,
    pub agents: Vec<Agent>,
    pub nodes: Vec<String>,
}

impl Job {
    /// Packs `source`; no agent has started.
    pub fn new<const N: usize>(source: &Path, partitions: u32, codec: &str) -> Job {
        let temporary = tempfile::tempdir().unwrap();
        let packed = temporary.path().join("packed");
        pack_tree(source, &packed, partitions, codec);
        let ports = ports::<N>();
        let agent = |(n, port): (usize, &u16)| {
            Agent::new(Config {
                listen: ([127, 0, 0, 1], *port).into(),
                dir: temporary.path().join(format!("node{n}")),
                patience_ms: 1500,
                timeout_ms: 5000,
                ..Config::default()
            })
        };
        let agents: Vec<Agent> = ports.iter().enumerate().map(agent).collect();
        let nodes = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        Job { source: source.to_owned(), packed, agents, nodes, temporary }
    }

    pub fn start(&mut self) {
        self.agents.iter_mut().for_each(Agent::start);
    }

    pub fn layout(&self, replicas: u32) -> Stage {
        let manifest = Manifest::read(&self.packed).unwrap();
        Stage {
            format: Stage::FORMAT,
            name: "linux@1".to_owned(),
            digest: manifest.digest,
            table_digest: manifest.table_digest,
            partitions: manifest.partitions.len() as u32,
            nodes: self.nodes.clone(),
            replicas,
            broadcast: Vec::new(),
            origin: self.packed.display().to_string(),
        }
    }

    /// Stages on all nodes, and waits until all have what they are to keep.
    pub fn stage(&self, layout: &Stage) {
        for (n, agent) in self.agents.iter().enumerate() {
            agent.stage(layout, n).unwrap();
        }
        until("all is staged", || self.agents.iter().all(Agent::is_complete));
    }

    pub fn total(&self, counter: &str) -> u64 {
        self.agents.iter().map(|agent| agent.counter(counter)).sum()
    }

    /// Bytes of the packed dataset.
    pub fn packed_bytes(&self) -> u64 {
        let files = fs::read_dir(&self.packed).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }

    /// All files of the dataset by number, with their paths.
    pub fn files(&self) -> BTreeMap<Ino, PathBuf> {
        let table = Table::open(&self.packed.join("table.saker")).unwrap();
        let mut files = BTreeMap::new();
        let mut rest = vec![(self.source.clone(), ROOT)];
        while let Some((path, ino)) = rest.pop() {
            if table.inode(ino).data().is_some() {
                files.insert(ino, path);
                continue;
            }
            for (name, child) in table.children(ino) {
                rest.push((path.join(std::str::from_utf8(name).unwrap()), child));
            }
        }
        files
    }

    /// Reads every file through one agent and compares it. Returns how many.
    pub fn compare(&self, agent: &Agent) -> usize {
        let mut local = Local::connect(&agent.config.dir).unwrap();
        let files = self.files();
        for (ino, path) in &files {
            let fd = local.open("linux@1", *ino);
            let fd = fd.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert!(read(fd) == fs::read(path).unwrap(), "{}", path.display());
            local.close("linux@1", *ino).unwrap();
        }
        files.len()
    }
}

/// All that a descriptor has.
pub fn read(fd: OwnedFd) -> Vec<u8> {
    let mut bytes = Vec::new();
    fs::File::from(fd).read_to_end(&mut bytes).unwrap();
    bytes
}

pub fn pack_tree(source: &Path, to: &Path, partitions: u32, codec: &str) -> Manifest {
    let options = Options { partitions, codec: codec.parse().unwrap(), ..Options::default() };
    let tree = LocalTree::new(source);
    pack(&tree, Plan::of(&tree).unwrap(), to, &options, &Progress::default()).unwrap()
}

/// Files of some megabytes, which cannot be compressed.
pub fn make_large(root: &Path, files: usize, bytes: usize) {
    fs::create_dir_all(root.join("val")).unwrap();
    let mut state = 1u64;
    for n in 0..files {
        let mut data = Vec::with_capacity(bytes + n);
        while data.len() < bytes + n * 1001 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            data.extend_from_slice(&state.to_le_bytes());
        }
        let dir = if n % 4 == 0 { root.join("val") } else { root.to_owned() };
        fs::write(dir.join(format!("{n:04}")), data).unwrap();
    }
}
