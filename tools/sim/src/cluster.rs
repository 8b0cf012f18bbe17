//! A real cluster for a test: the processes of the built `saker`, in a directory of its own,
//! on ports of its own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use prost::Message as _;
use rustix::process::{Pid, Signal, kill_process};
use saker_client::{ClientOptions, ClusterAddr, Fs};
use saker_types::Cred;
use saker_types::wire::{At, Ctx, Op, PolicyPair, SessionReq, SetPolicyReq};
use serde_json::Value;

use crate::loop_disk::{LoopDisk, LoopFormat};
use crate::raw::Raw;
use crate::settings;
use crate::shell::CommandShell;

/// How a cluster is started.
#[derive(Clone, Copy, Debug)]
pub struct ClusterShape {
    /// Metadata nodes.
    pub mnodes: u32,
    /// Stores.
    pub stores: u32,
    /// Copies of each chunk.
    pub replicas: u32,
    /// With a FUSE mount.
    pub mount: bool,
    /// Dead processes are started again.
    pub supervise: bool,
}

impl Default for ClusterShape {
    fn default() -> ClusterShape {
        ClusterShape { mnodes: 4, stores: 2, replicas: 1, mount: false, supervise: false }
    }
}

/// A running cluster; stopped and deleted when dropped.
pub struct RunningCluster {
    dir: PathBuf,
    shape: ClusterShape,
}

/// A role as `saker status --json` shows it.
#[derive(Clone, Debug)]
pub struct RunningRole {
    /// coordinator, mnode, store or mount.
    pub role: String,
    /// Number among its like.
    pub n: u64,
    /// Where it is called, `host:port`; several are separated by commas.
    pub addr: String,
    /// Where its metrics are, `host:port`.
    pub http: String,
    /// Its process.
    pub pid: i32,
    /// up, down, starting or draining.
    pub state: String,
}

/// The program under test: `$SAKER_BIN`, or `saker` beside the test's own directory.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("SAKER_BIN") {
        return PathBuf::from(path);
    }
    let own = std::env::current_exe().expect("a test knows its own program");
    // A test is in `deps` below it.
    let mut near = own.ancestors().skip(1).take(2).map(|dir| dir.join("saker"));
    let built = near.find(|path| path.is_file());
    built.unwrap_or_else(|| panic!("saker is not near {}: cargo build -p saker-cli", own.display()))
}

/// True if this machine can mount; else says that the test is skipped.
pub fn can_mount(test: &str) -> bool {
    let able = settings::needs_root(test) && Path::new("/dev/fuse").exists();
    if !able {
        assert!(std::env::var_os("SAKER_REQUIRE_ROOT").is_none(), "{test} needs /dev/fuse");
        eprintln!("{test}: skipped, needs root and /dev/fuse");
    }
    able
}

impl RunningCluster {
    /// Starts a cluster in a new directory and waits until it serves. Panics when it does not:
    /// there is no test without it.
    pub fn start(shape: ClusterShape) -> RunningCluster {
        let cluster = RunningCluster::new(shape);
        cluster.up();
        cluster
    }

    /// The same before it is started.
    pub fn new(shape: ClusterShape) -> RunningCluster {
        let pid = std::process::id();
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |time| time.subsec_nanos());
        let dir = settings::scratch().join(format!("saker-test-{pid}-{nanos}"));
        std::fs::create_dir_all(&dir).expect("the scratch directory can be written");
        RunningCluster { dir, shape }
    }

    /// Where its files are.
    pub fn dir(&self) -> PathBuf {
        self.dir.join("cluster")
    }

    /// Where it is mounted.
    pub fn mount(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// A directory for files of the test itself, outside the cluster.
    pub fn scratch(&self) -> PathBuf {
        let dir = self.dir.join("scratch");
        std::fs::create_dir_all(&dir).expect("the scratch directory can be written");
        dir
    }

    /// A disk for the data of a role (`mnode-1`), of a cluster that is not started yet. Needs root.
    pub fn disk_of(&self, role: &str, format: LoopFormat, shell: &mut CommandShell) -> LoopDisk {
        let image = self.scratch().join(format!("{role}.img"));
        LoopDisk::new(format, &image, &self.dir().join("data").join(role), shell)
    }

    /// `saker up`, again if need be.
    pub fn up(&self) {
        let words = self.up_words();
        let output = Command::new(&words[0]).args(&words[1..]).output();
        let output = output.expect("saker can be run");
        if !output.status.success() {
            self.print_logs();
            panic!("saker up: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// The words of that command.
    pub fn up_words(&self) -> Vec<OsString> {
        let shape = &self.shape;
        let mut words = vec![binary().into(), "up".into(), "--dir".into(), self.dir().into()];
        for (option, n) in
            [("--mnodes", shape.mnodes), ("--stores", shape.stores), ("--replicas", shape.replicas)]
        {
            words.extend([option.into(), n.to_string().into()]);
        }
        if shape.mount {
            words.extend(["--mount".into(), self.mount().into()]);
        }
        if !shape.supervise {
            words.push("--no-supervise".into());
        }
        words
    }

    /// `saker down`: everything stops in order and stays on disk.
    pub fn down(&self) {
        let output = Command::new(binary()).arg("down").arg("--dir").arg(self.dir()).output();
        let output = output.expect("saker can be run");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// A new client.
    pub fn connect(&self) -> Fs {
        self.connect_with(ClientOptions::default())
    }

    /// A new client that behaves so.
    pub fn connect_with(&self, options: ClientOptions) -> Fs {
        Fs::connect(&ClusterAddr::Dir(self.dir()), options)
            .unwrap_or_else(|error| panic!("no client: {error}"))
    }

    /// Gives a directory a policy. Panics when that is refused.
    pub fn set_policy(&self, at: &At, pairs: &[(&str, &str)]) {
        let roles = self.roles();
        let coordinator = roles.iter().find(|role| role.role == "coordinator");
        let mut raw = Raw::connect(&coordinator.expect("there is one").addr).expect("it is up");
        let session = u64::from(std::process::id()) << 32 | 1;
        raw.hello(session).expect("an answer");
        let mut ask = |op, message: &[u8]| {
            let (status, _) = raw.call_bytes(op, message).expect("an answer");
            assert_eq!(status, 0, "{} is refused", op.name());
        };
        ask(Op::OpenSession, &SessionReq { session }.encode_to_vec());
        let pair = |(key, value): &(&str, &str)| PolicyPair {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        let ctx = Ctx { cred: Cred::root(), session, seq: 1, ack: 1, ..Ctx::default() };
        let pairs = pairs.iter().map(pair).collect();
        ask(Op::SetPolicy, &SetPolicyReq { ctx, at: at.clone(), pairs }.encode_to_vec());
    }

    /// Mounts the cluster once more.
    pub fn second_mount(&self) -> SecondMount {
        let point = self.scratch().join("other");
        std::fs::create_dir(&point).expect("the scratch directory can be written");
        let mut mount = Command::new(binary());
        let status = mount.arg("mount").arg(self.dir()).arg(&point).status();
        assert!(status.is_ok_and(|status| status.success()), "no second mount");
        SecondMount(point)
    }

    /// The same with options, by a process that can be stopped or killed.
    pub fn own_mount(&self, name: &str, options: &str) -> OwnMount {
        let (point, log) = (self.scratch().join(name), self.scratch().join(format!("{name}.log")));
        std::fs::create_dir_all(&point).expect("the scratch directory can be written");
        let mut command = Command::new(binary());
        command.arg("mount").arg(self.dir()).arg(&point).args(["--foreground", "-o", options]);
        command.stderr(File::create(&log).expect("the scratch directory can be written"));
        OwnMount { point, log, process: command.spawn().expect("saker can be run") }
    }

    /// Runs `saker ARGS --cluster DIR`.
    pub fn saker(&self, args: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.args(args).arg("--cluster").arg(self.dir());
        command.output().expect("saker can be run")
    }

    /// One JSON document from a command that must succeed.
    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.saker(&[args, &["--json"]].concat());
        let (out, err) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "saker {args:?}: {err}");
        serde_json::from_slice(out).unwrap_or_else(|e| panic!("saker {args:?}: {e}"))
    }

    /// All roles.
    pub fn roles(&self) -> Vec<RunningRole> {
        let status = self.json(&["status"]);
        let roles = status["roles"].as_array().cloned().unwrap_or_default();
        let text = |role: &Value, key: &str| match &role[key] {
            Value::String(text) => text.clone(),
            Value::Array(list) => {
                let parts: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
                parts.join(",")
            }
            _ => String::new(),
        };
        let convert = |role: &Value| RunningRole {
            role: text(role, "role"),
            n: role["n"].as_u64().unwrap_or(0),
            addr: text(role, "addr"),
            http: text(role, "http"),
            pid: role["pid"].as_i64().unwrap_or(0) as i32,
            state: text(role, "state"),
        };
        roles.iter().map(convert).collect()
    }

    /// Process of a role, from its pid file.
    pub fn pid(&self, role: &str) -> Option<i32> {
        let name = if role == "supervisor" { "supervisor" } else { &format!("run/{role}") };
        let text = std::fs::read_to_string(self.dir().join(format!("{name}.pid"))).ok()?;
        text.trim().parse().ok()
    }

    /// Sends a signal to a role (`mnode-2`) or the supervisor.
    pub fn signal(&self, role: &str, signal: Signal) {
        let pid = self.pid(role).and_then(Pid::from_raw);
        let pid = pid.unwrap_or_else(|| panic!("{role} has no pid file"));
        kill_process(pid, signal).unwrap_or_else(|e| panic!("{role}: {e}"));
    }

    /// Sum of a metric's samples at an address, labels (`{op="map"}`) given or not.
    pub fn metric(&self, http: &str, name: &str) -> f64 {
        metrics(http, &[name])
    }

    /// Sum of a metric over all processes of a kind.
    pub fn metric_of(&self, role: &str, name: &str) -> f64 {
        self.metrics_of(role, &[name])
    }

    /// The same of several metrics together.
    pub fn metrics_of(&self, role: &str, names: &[&str]) -> f64 {
        let roles = self.roles().into_iter().filter(|r| r.role == role);
        roles.map(|r| metrics(&r.http, names)).sum()
    }

    /// `saker fsck` must find nothing. What was orphaned is given time to go.
    pub fn fsck(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let output = self.saker(&["fsck", "--json"]);
            let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let clean = said["problems"].as_array().is_some_and(Vec::is_empty);
            if output.status.success() && clean {
                return;
            }
            let err = String::from_utf8_lossy(&output.stderr);
            assert!(Instant::now() < deadline, "fsck: {} {said:#} {err}", output.status);
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn print_logs(&self) {
        let mut logs = BTreeMap::new();
        for entry in std::fs::read_dir(self.dir().join("log")).into_iter().flatten().flatten() {
            let text = std::fs::read(entry.path()).unwrap_or_default();
            logs.insert(entry.file_name(), String::from_utf8_lossy(&text).into_owned());
        }
        for (name, text) in logs {
            let lines: Vec<&str> = text.lines().collect();
            let tail = &lines[lines.len().saturating_sub(15)..];
            eprintln!("--- {}\n{}", name.display(), tail.join("\n"));
        }
    }
}

/// Another mount of a cluster, taken away when dropped; drop it before the cluster.
pub struct SecondMount(PathBuf);

impl SecondMount {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SecondMount {
    fn drop(&mut self) {
        let _ = Command::new(binary()).arg("umount").arg(&self.0).status();
    }
}

/// A mount that a test's own child process serves; killed when dropped, which must be before the cluster is.
pub struct OwnMount {
    point: PathBuf,
    log: PathBuf,
    /// The one that serves it.
    pub process: Child,
}

impl OwnMount {
    /// Something in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    /// Waits for a line of its log that has `what` in it.
    pub fn said(&self, what: &str) -> String {
        line_with(&self.log, what)
    }
}

impl Drop for OwnMount {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // Quietly: it may have been unmounted.
        let _ = Command::new(binary()).arg("umount").arg(&self.point).output();
    }
}

impl Drop for RunningCluster {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            self.print_logs();
        }
        let mut down = Command::new(binary());
        down.arg("down").arg("--dir").arg(self.dir());
        let stopped = down.output().is_ok_and(|output| output.status.success());
        if failed || !stopped {
            eprintln!("the cluster's files are kept in {}", self.dir.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Waits for a line of a log that has `what` in it.
pub fn line_with(log: &Path, what: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        if let Some(line) = text.lines().find(|line| line.contains(what)) {
            return line.to_owned();
        }
        assert!(Instant::now() < deadline, "no line {what:?} in {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sum of the samples of some metrics at an address.
fn metrics(http: &str, names: &[&str]) -> f64 {
    let text = fetch(http, "/metrics").unwrap_or_else(|e| panic!("{http}: {e}"));
    let wanted = |line: &&str| {
        let mut rests = names.iter().filter_map(|name| line.strip_prefix(name));
        rests.any(|rest| rest.starts_with(['{', ' ']))
    };
    let samples = text.lines().filter(wanted);
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// An HTTP GET; the body comes with its headers.
pub fn fetch(http: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(http)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
