//! `saker dataset stage`, `unstage` and `top`, and the agents that they start.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use saker_agent_api::{CreateOutput, Local, OutputOp, OutputRequest};
use saker_dataset::Table;

/// Agents of some nodes, all on this machine, each with a directory and a port of its own.
struct Job {
    temporary: tempfile::TempDir,
    ports: Vec<u16>,
    children: Vec<Child>,
}

impl Job {
    fn new(nodes: usize) -> Job {
        let temporary = tempfile::tempdir().unwrap();
        let source = temporary.path().join("images");
        for n in 0..60 {
            let dir = source.join(["train", "val"][n % 2]);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(format!("{n}.jpg")), format!("image {n} ").repeat(1 + 97 * n))
                .unwrap();
        }
        let held: Vec<_> = (0..nodes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports = held.iter().map(|held| held.local_addr().unwrap().port()).collect();
        let job = Job { temporary, ports, children: Vec::new() };
        job.said(&["pack", "images", "-p", "4", "--compress", "lz4", "-o", "packed"]);
        job
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    fn dir(&self, node: usize) -> String {
        self.path(&format!("node{node}")).display().to_string()
    }

    fn nodes(&self) -> String {
        let nodes: Vec<String> =
            self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        nodes.join(",")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_saker"));
        command.args(args).current_dir(self.temporary.path()).stdin(Stdio::null());
        command.env("SAKER_AGENT_DIR", self.path("node0"));
        command
    }

    fn dataset(&self, args: &[&str]) -> Output {
        self.command(&[&["dataset"], args].concat()).output().unwrap()
    }

    fn said(&self, args: &[&str]) -> String {
        let output = self.dataset(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn failed(&self, args: &[&str], code: i32) -> String {
        let output = self.dataset(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with("saker: "), "{text}");
        text
    }

    /// As systemd or a shell starts one.
    fn start(&mut self, node: usize) {
        let listen = format!("127.0.0.1:{}", self.ports[node]);
        let log = fs::File::create(self.path(&format!("log{node}"))).unwrap();
        let dir = self.dir(node);
        let mut command = self.command(&["serve", "agent", "--listen", &listen, "--dir", &dir]);
        self.children.push(command.stderr(log).spawn().unwrap());
        wait_for(|| Local::connect(Path::new(&dir)).is_ok());
    }

    /// Writes an output file on the first node.
    fn write_output(&self, dataset: &str, path: &str) {
        let request = |op| OutputRequest {
            dataset: dataset.to_owned(),
            path: path.into(),
            op: Some(op),
            ..OutputRequest::default()
        };
        let flags = (OFlags::CREATE | OFlags::WRONLY).bits() as i32;
        let create = OutputOp::Create(CreateOutput { flags, mode: 0o644 });
        let mut local = Local::connect(Path::new(&self.dir(0))).unwrap();
        let (reply, fd) = local.output(request(create)).unwrap();
        fs::File::from(fd.unwrap()).write_all(b"written").unwrap();
        local.output(request(OutputOp::Commit(reply.token))).unwrap();
    }

    /// Every file, through the agent of a node.
    fn compare(&self, node: usize, name: &str) {
        let table = Table::open(&self.path("packed/table.saker")).unwrap();
        let mut local = Local::connect(Path::new(&self.dir(node))).unwrap();
        for n in 0..60 {
            let path = format!("{}/{n}.jpg", ["train", "val"][n % 2]);
            let saker_dataset::table::Resolved::Found(ino) =
                table.resolve(0, path.as_bytes(), true)
            else {
                panic!("{path}")
            };
            let fd = local.open(name, ino).unwrap();
            let mut read = Vec::new();
            std::io::Read::read_to_end(&mut fs::File::from(fd), &mut read).unwrap();
            assert_eq!(read, fs::read(self.path("images").join(&path)).unwrap());
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Those that commands have started in the background.
        for node in 0..self.ports.len() {
            if let Some(pid) = agent_of(&self.dir(node)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// The process with this directory among its arguments.
fn agent_of(dir: &str) -> Option<Pid> {
    fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let mut args = line.split(|c| *c == 0);
        let is_it = args.any(|arg| arg == b"agent") && args.any(|arg| arg == dir.as_bytes());
        is_it.then(|| Pid::from_raw(pid)).flatten()
    })
}

fn wait_for(mut so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !so() {
        // Real time: a condition that never holds must end the test.
        assert!(begin.elapsed() < Duration::from_secs(60));
        // Real time: another process has to do something meanwhile.
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_dataset_is_staged_looked_at_and_removed() {
    let mut job = Job::new(3);
    (1..3).for_each(|node| job.start(node));
    let nodes = job.nodes();
    // The agent of the first node does not run yet: it is started.
    let stage = ["stage", "packed", "--name", "images@1", "--nodes", &nodes, "--broadcast", "val"];
    let said = job.said(&stage);
    assert!(
        said.contains("images@1: 3 of 3 nodes complete") && said.contains("60 files"),
        "{said}"
    );
    (0..3).for_each(|node| job.compare(node, "images@1"));
    // Once more: nothing is to be done.
    let json = job.said(&[&stage[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (json["complete"].as_bool(), json["nodes"].as_array().unwrap().len()),
        (Some(true), 3)
    );
    let top = job.said(&["top", "--nodes", &nodes]);
    assert_eq!(top.lines().count(), 4, "{top}");
    assert!(top.lines().skip(1).all(|line| line.ends_with("images@1")), "{top}");
    let json: serde_json::Value = serde_json::from_str(&job.said(&["top", "--json"])).unwrap();
    assert_eq!(json["nodes"][0]["counters"]["saker_agent_opens_total"], 60);
    // Other files under the name of a version.
    job.said(&["pack", "images/train", "-p", "4", "-o", "other"]);
    let other = ["stage", "other", "--name", "images@1", "--nodes", &nodes];
    let error = job.failed(&other, 1);
    assert_eq!(error.matches("staged already, with other files").count(), 3, "{error}");
    job.compare(1, "images@1");
    // By the list of nodes that the agent here has. Output files stay.
    job.write_output("images@1", "log");
    let said = job.said(&["unstage", "images@1"]);
    assert!(said.contains(": 1 output files stay in /") && said.lines().count() == 1, "{said}");
    let kept = || {
        let files = |node| Path::new(&job.dir(node)).join("outputs/images@1/files/log").exists();
        (0..3).filter(|node| files(*node)).count()
    };
    assert_eq!(kept(), 1);
    for node in 0..3 {
        assert!(!Path::new(&job.dir(node)).join("datasets/images@1").exists());
    }
    job.said(&stage);
    assert_eq!((job.said(&["unstage", "images@1", "--outputs"]).as_str(), kept()), ("", 0));
    let error = job.failed(&["unstage", "images@1"], 1);
    assert!(error.contains("no dataset of this name"), "{error}");
    // SIGTERM ends an agent in order.
    let child = job.children.last_mut().unwrap();
    kill_process(Pid::from_child(child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!Path::new(&job.dir(2)).join("agent.sock").exists());
}

#[test]
fn each_node_stages_itself() {
    let job = Job::new(3);
    let nodes = job.nodes();
    let running: Vec<Child> = (0..3)
        .map(|node| {
            let own = format!("127.0.0.1:{}", job.ports[node]);
            let dir = job.dir(node);
            let mut command = job.command(&[
                "dataset",
                "stage",
                "packed",
                "--name",
                "images@1",
                "--nodes",
                &nodes,
                "--replicas",
                "2",
                "--here",
                "--self",
                &own,
                "--dir",
                &dir,
            ]);
            command.spawn().unwrap()
        })
        .collect();
    for mut child in running {
        assert!(child.wait().unwrap().success());
    }
    (0..3).for_each(|node| job.compare(node, "images@1"));
}

#[test]
fn what_is_wrong_is_said() {
    let mut job = Job::new(2);
    let nodes = job.nodes();
    let stage = |source: &'static str, name: &'static str, nodes: &str| {
        let nodes = nodes.to_owned();
        move |job: &Job, code| {
            job.failed(&["stage", source, "--name", name, "--nodes", &nodes], code)
        }
    };
    let error = stage("nothing", "a@1", &nodes)(&job, 1);
    assert!(error.contains("nothing: No such file"), "{error}");
    assert!(stage("images", "a@1", &nodes)(&job, 1).contains("dataset.json: not there"));
    assert!(stage("packed", "a@1", "n[3-1]")(&job, 2).contains("n[3-1]"));
    assert!(stage("ftp://x/y", "a@1", &nodes)(&job, 1).contains("ftp://x/y"));
    (0..2).for_each(|node| job.start(node));
    assert!(stage("packed", "../a", &nodes)(&job, 1).contains("no NAME@VERSION"));
    // One node is down: the other is staged, and the command says which is missing.
    job.children[1].kill().unwrap();
    job.children[1].wait().unwrap();
    let error = stage("packed", "a@1", &nodes)(&job, 1);
    assert!(error.contains(&job.ports[1].to_string()) && error.contains("refused"), "{error}");
    job.compare(0, "a@1");
    let second = job.command(&["serve", "agent", "--dir", &job.dir(0)]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another agent serves it"));
}

#[test]
fn nothing_is_written_where_another_user_says() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let job = Job::new(1);
    let (dir, target) = (job.path("node0"), job.path("target"));
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(&target, dir.join("agent.log")).unwrap();
    std::os::unix::fs::chown(&dir, Some(12345), None).unwrap();
    let error = job.failed(&["stage", "packed", "--name", "a@1", "--nodes", &job.nodes()], 1);
    assert!(error.contains("another user"), "{error}");
    assert!(!target.exists());
}
