//! A cluster of real processes in a temporary directory, and the commands run on it.

#![allow(dead_code, clippy::unwrap_used, clippy::disallowed_methods)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A directory of a cluster; the cluster is stopped and deleted at the end.
pub struct Cluster {
    temporary: tempfile::TempDir,
}

impl Cluster {
    /// Nothing is started yet.
    pub fn new() -> Cluster {
        Cluster { temporary: tempfile::tempdir().unwrap() }
    }

    /// Two MNodes, one store.
    pub fn up(options: &[&str]) -> Cluster {
        let cluster = Cluster::new();
        let small = ["up", "--mnodes", "2", "--stores", "1"];
        cluster.succeed(&[&small, options].concat());
        cluster
    }

    pub fn dir(&self) -> PathBuf {
        self.temporary.path().join("cluster")
    }

    pub fn mnt(&self) -> PathBuf {
        self.temporary.path().join("mnt")
    }

    /// A path beside the cluster.
    pub fn path(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    /// Runs a command on this cluster.
    pub fn saker(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_saker"));
        command.args(args).current_dir(self.temporary.path());
        command.env("SAKER_CLUSTER", self.dir());
        if let Some(&("up" | "down")) = args.first() {
            command.arg("--dir").arg(self.dir());
        }
        command.output().unwrap()
    }

    /// Runs a command that must succeed; returns what it printed.
    pub fn succeed(&self, args: &[&str]) -> String {
        let output = self.saker(args);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "saker {args:?}: {}\n{out}{err}", output.status);
        out
    }

    /// Runs a command that must fail with this exit code; returns its only line of error.
    pub fn fail(&self, args: &[&str], code: i32) -> String {
        let output = self.saker(args);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "saker {args:?}: {err}");
        assert_eq!(err.lines().count(), 1, "saker {args:?}: {err}");
        assert!(err.starts_with("saker: "), "saker {args:?}: {err}");
        err
    }

    /// `saker COMMAND --json`.
    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.succeed(&[args, &["--json"]].concat())).unwrap()
    }

    /// The number in a pid file, as `run/mnode-0.pid`.
    pub fn pid(&self, file: &str) -> i32 {
        let path = self.dir().join(file);
        let number = std::fs::read_to_string(&path).unwrap_or_default();
        number.trim().parse().unwrap_or_else(|_| panic!("{} holds {number:?}", path.display()))
    }

    pub fn kill(&self, file: &str) -> i32 {
        let pid = self.pid(file);
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        pid
    }

    /// Waits until a pid file names another process than this one.
    pub fn wait_restarted(&self, file: &str, old: i32) {
        wait_for(&format!("{file} to change"), || {
            std::fs::read_to_string(self.dir().join(file))
                .is_ok_and(|text| text.trim().parse::<i32>().is_ok_and(|pid| pid != old))
        });
    }

    /// Waits until all roles are up.
    pub fn wait_up(&self) {
        wait_for("all roles to be up", || {
            let status = self.json(&["status"]);
            let roles = status["roles"].as_array().unwrap();
            roles.iter().all(|role| role["state"] == "up")
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
        if self.dir().join("cluster.toml").exists() {
            self.saker(&["down", "--wipe"]);
        }
    }
}

impl Cluster {
    fn print_logs(&self) {
        for entry in std::fs::read_dir(self.dir().join("log")).into_iter().flatten().flatten() {
            let log = text(&std::fs::read(entry.path()).unwrap_or_default());
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(10)..];
            eprintln!("--- {}\n{}", entry.path().display(), tail.join("\n"));
        }
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Waits at most half a minute.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Can this test mount? Says so when not.
pub fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        assert!(std::env::var_os("SAKER_REQUIRE_ROOT").is_none(), "this test needs /dev/fuse");
        eprintln!("skipped: needs root and /dev/fuse");
    }
    can
}
