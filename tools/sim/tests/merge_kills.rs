//! A merge of many names is all or nothing, whoever dies meanwhile: the client, an MNode or the coordinator
//! is killed at any moment of it, and in the end each name is there once. Needs root and /dev/fuse.
//!
//! `SAKER_MERGE_NAMES` are merged, `SAKER_MERGE_KILLS` times from the same start; `SAKER_SEED` repeats a
//! run. It says how long each part takes, and how much memory.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod policy_support;

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use policy_support::{mounted, unmount};
use rustix::process::Signal;
use saker_sim::cluster::{ClusterShape, OwnMount, RunningCluster, binary, can_mount};
use saker_sim::generate::Random;
use saker_sim::settings;

const NAMES_DEFAULT: usize = 10_000;
const KILLS_DEFAULT: usize = 3;
const NAMES_PER_DIR: usize = 10_000;
/// So many answers share a flush of the journal.
const MAKERS: usize = 32;
/// A merge that was begun anew is done after this, and this for each name.
const MERGE_MAX: Duration = Duration::from_secs(60);
const NAME_MERGE_MAX: Duration = Duration::from_millis(1);
const VICTIMS: [&str; 4] = ["the client", "mnode-0", "coordinator-0", "mnode-1"];

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Inode numbers by name.
type Listing = BTreeMap<String, u64>;

fn list(root: &Path) -> Listing {
    let mut found = Listing::new();
    for dir in fs::read_dir(root).unwrap() {
        let dir = dir.unwrap();
        for file in fs::read_dir(dir.path()).unwrap() {
            let file = file.unwrap();
            let name = format!("{}/{}", dir.file_name().display(), file.file_name().display());
            let twice = found.insert(name, file.ino());
            assert!(twice.is_none(), "{} is there twice", file.path().display());
        }
        found.insert(dir.file_name().to_str().unwrap().to_owned(), dir.ino());
    }
    found
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

/// Largest memory of a process until now, MiB.
fn memory_mib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

/// A cluster that can be put back to where many names are in the journal of a client, and not merged.
struct Stage {
    client: Option<OwnMount>,
    other: Option<OwnMount>,
    cluster: RunningCluster,
    wanted: Listing,
}

impl Stage {
    fn set(names: usize) -> Stage {
        let shape = ClusterShape { mnodes: 2, stores: 1, ..ClusterShape::default() };
        let cluster = RunningCluster::start(shape);
        let mut stage = Stage { client: None, other: None, cluster, wanted: Listing::new() };
        stage.mount();
        fs::create_dir(stage.client().path("sub")).unwrap();
        let words = ["--consistency", "invisible", "--durability", "local"];
        let words = [&["policy", "set", "/sub"][..], &words].concat();
        assert!(stage.cluster.saker(&words).status.success());
        stage.make(names);
        stage.wanted = list(&stage.client().path("sub"));
        assert_eq!(stage.wanted.len(), names + names.div_ceil(NAMES_PER_DIR));
        stage.report("made");
        stage.unmount();
        stage.cluster.down();
        copy(&stage.data(), &stage.kept("data"));
        copy(&stage.journals(), &stage.kept("journals"));
        stage
    }

    fn data(&self) -> PathBuf {
        self.cluster.dir().join("data")
    }

    fn journals(&self) -> PathBuf {
        self.cluster.scratch().join("journals")
    }

    fn kept(&self, name: &str) -> PathBuf {
        self.cluster.scratch().join(format!("{name}-kept"))
    }

    fn client(&self) -> &OwnMount {
        self.client.as_ref().unwrap()
    }

    fn mount(&mut self) {
        let options = format!("journal_dir={}", self.journals().display());
        self.client = Some(mounted(&self.cluster, "client", &options));
    }

    fn unmount(&mut self) {
        [self.client.take(), self.other.take()].into_iter().flatten().for_each(unmount);
    }

    fn make(&self, names: usize) {
        let start = Instant::now();
        let root = self.client().path("sub");
        for dir in 0..names.div_ceil(NAMES_PER_DIR) {
            fs::create_dir(root.join(format!("d{dir}"))).unwrap();
        }
        std::thread::scope(|scope| {
            for maker in 0..MAKERS {
                let root = &root;
                scope.spawn(move || {
                    for n in (maker..names).step_by(MAKERS) {
                        let dir = root.join(format!("d{}", n / NAMES_PER_DIR));
                        File::create_new(dir.join(format!("f{n}"))).unwrap();
                    }
                });
            }
        });
        // Real time: how long it takes is shown.
        let took = start.elapsed().as_secs_f64();
        eprintln!("{names} names made in {took:.1} s, {:.0}/s", names as f64 / took);
    }

    /// Everything is as it was before any merge, and runs.
    fn restore(&mut self) {
        self.unmount();
        self.cluster.down();
        copy(&self.kept("data"), &self.data());
        copy(&self.kept("journals"), &self.journals());
        self.cluster.up();
        self.mount();
        self.take_up();
    }

    /// The client goes on with its journal when something in the subtree is asked for.
    fn take_up(&self) {
        assert!(self.client().path("sub/d0/f0").exists());
    }

    fn begin_merge(&self) -> Child {
        let mut merge = Command::new(binary());
        merge.args(["policy", "merge"]).arg(self.client().path("sub")).stdout(Stdio::null());
        merge.stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Merges until that succeeds.
    fn merge(&self) {
        let names = self.wanted.len() as u32;
        let deadline = Instant::now() + MERGE_MAX + NAME_MERGE_MAX * names;
        loop {
            let output = self.begin_merge().wait_with_output().unwrap();
            if output.status.success() {
                return;
            }
            let said = String::from_utf8_lossy(&output.stderr);
            eprintln!("again: {}", said.trim());
            assert!(Instant::now() < deadline, "it is never merged");
        }
    }

    /// Kills one, which is started again at once. Returns what the merge that was under way said.
    fn kill(&mut self, victim: &str, merging: Child) -> Output {
        if victim == VICTIMS[0] {
            let mut client = self.client.take().unwrap();
            client.process.kill().unwrap();
            // It cannot be unmounted while somebody asks for something there.
            let said = merging.wait_with_output().unwrap();
            drop(client);
            self.mount();
            self.take_up();
            return said;
        }
        self.cluster.signal(victim, Signal::KILL);
        self.cluster.up();
        merging.wait_with_output().unwrap()
    }

    /// Another client finds each name once, as the client had made it.
    fn check(&mut self) {
        let other = mounted(&self.cluster, "other", "");
        let found = list(&other.path("sub"));
        self.other = Some(other);
        let missing: Vec<_> =
            self.wanted.keys().filter(|name| !found.contains_key(*name)).collect();
        let more: Vec<_> = found.keys().filter(|name| !self.wanted.contains_key(*name)).collect();
        assert!(
            missing.is_empty() && more.is_empty(),
            "{} of {} are missing: {:?}; {} too many: {:?}",
            missing.len(),
            self.wanted.len(),
            missing.first(),
            more.len(),
            more.first(),
        );
        let unique: HashSet<u64> = found.values().copied().collect();
        assert_eq!(unique.len(), found.len(), "inode numbers are there twice");
        assert!(found == self.wanted, "inode numbers have changed");
        self.cluster.fsck();
    }

    fn report(&self, when: &str) {
        let pid = |role| self.cluster.pid(role).unwrap_or(0);
        eprintln!(
            "{when}: at most {} MiB in the mount, {} and {} MiB in the MNodes, {} MiB in the coordinator",
            memory_mib(self.client().process.id() as i32),
            memory_mib(pid("mnode-0")),
            memory_mib(pid("mnode-1")),
            memory_mib(pid("coordinator-0")),
        );
    }
}

#[test]
fn whoever_is_killed_in_a_merge_each_name_is_there_once() {
    if !can_mount("whoever_is_killed_in_a_merge_each_name_is_there_once") {
        return;
    }
    let names = setting("SAKER_MERGE_NAMES", NAMES_DEFAULT);
    let kills = setting("SAKER_MERGE_KILLS", KILLS_DEFAULT);
    let seed = settings::runs(1, 0).0[0];
    let mut rng = Random::new(seed);
    let mut stage = Stage::set(names);
    stage.restore();
    let start = Instant::now();
    stage.merge();
    // Real time: kills come while it lasts.
    let took = start.elapsed();
    eprintln!("seed {seed}: {names} names merged in {took:.2?}");
    stage.report("merged");
    stage.check();
    for kill in 0..kills {
        stage.restore();
        let victim = VICTIMS[kill % VICTIMS.len()];
        let after = took.mul_f64(rng.below(1_000) as f64 / 1_000.0);
        let start = Instant::now();
        let mut merging = stage.begin_merge();
        // Real time: a process dies at any moment of a merge.
        std::thread::sleep(after);
        let was_done = merging.try_wait().unwrap().is_some();
        let said = stage.kill(victim, merging);
        stage.merge();
        eprintln!(
            "{victim} killed after {after:.2?}{}: {}; all is merged after {:.2?}",
            if was_done { ", when it was merged" } else { "" },
            if said.status.success() { "it went on" } else { "it was begun anew" },
            // Real time: how long it took is shown.
            start.elapsed(),
        );
        stage.check();
    }
    stage.unmount();
}
