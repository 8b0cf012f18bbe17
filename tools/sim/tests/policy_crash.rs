//! What each policy promises for each crash (docs/policies.md, "The nine policies"; Table 2 of Cudele) with
//! real processes: a client works in a directory under each of them, something dies or loses its power,
//! and what another client finds then is what `saker policy explain` says. Needs root and /dev/fuse.
//!
//! `SAKER_SEED` repeats a run, `SAKER_CRASH_ROUNDS` plays all crashes so many times.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod policy_support;
#[path = "policy_support/story.rs"]
mod story;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use policy_support::{merge, mounted, said, unmount};
use rustix::process::Signal;
use saker_sim::cluster::{ClusterShape, OwnMount, RunningCluster, can_mount};
use saker_sim::generate::Random;
use saker_sim::loop_disk::{LoopDisk, LoopFormat};
use saker_sim::settings;
use saker_sim::shell::CommandShell;
use saker_sim::wait::until;
use saker_types::policy::explain::{Crash, Loss};
use saker_types::policy::{Consistency, Durability, Policy};
use story::{Files, NEW, OLD, Scope, Story, look};

const MNODES: [&str; 2] = ["mnode-0", "mnode-1"];
/// How long a client works before it merges, and before and after it was looked at what others see. The
/// last part is far longer than the time whose work may be lost.
const BEFORE_MERGE: Duration = Duration::from_millis(500);
const AFTER_MERGE: Duration = Duration::from_millis(500);
const BEFORE_CRASH: Duration = Duration::from_millis(800);
const BURST_STEPS: usize = 8;
/// After the crash.
const AGAIN: &str = "again";
const STEPS_AFTER: usize = 5;

fn all_nine() -> impl Iterator<Item = (Consistency, Durability)> {
    let durabilities = |consistency| Durability::ALL.map(|durability| (consistency, durability));
    Consistency::ALL.into_iter().flat_map(durabilities)
}

/// A policy, as `saker policy explain --json` explains it.
struct Promise {
    policy: Policy,
    losses: Vec<(Crash, Loss)>,
}

impl Promise {
    fn of(cluster: &RunningCluster, consistency: Consistency, durability: Durability) -> Promise {
        let policy = Policy::cell(consistency, durability);
        let keys = keys(&policy);
        let words = [&["policy", "explain"][..], &keys.each_ref().map(String::as_str)].concat();
        let said = cluster.json(&words);
        assert_eq!(said["cell"], policy.to_string());
        let losses = said["losses"].as_array().unwrap().iter().map(|lost| {
            let text = |key: &str| lost[key].as_str().unwrap().to_owned();
            let crash = Crash::ALL.into_iter().find(|crash| crash.to_string() == text("crash"));
            let known = [
                Loss::Nothing,
                Loss::KeptOnClient,
                Loss::LastMoments,
                Loss::SinceSync,
                Loss::Unmerged,
            ];
            let loss = known.into_iter().find(|loss| loss.to_string() == text("loss"));
            (crash.expect("a crash"), loss.expect("a loss"))
        });
        let losses: Vec<(Crash, Loss)> = losses.collect();
        assert_eq!(losses.len(), Crash::ALL.len());
        Promise { policy, losses }
    }

    fn loses(&self, crash: Crash) -> Loss {
        self.losses.iter().find(|(which, _)| *which == crash).unwrap().1
    }
}

fn keys(policy: &Policy) -> [String; 4] {
    let pairs: BTreeMap<&str, String> = policy.pairs().into_iter().collect();
    let of = |key| pairs[key].clone();
    ["--consistency".to_owned(), of("consistency"), "--durability".to_owned(), of("durability")]
}

/// A directory under a policy, and what a client did there.
struct Cell<'a> {
    promise: &'a Promise,
    /// In the root of the file system.
    name: String,
    story: Story,
}

impl Cell<'_> {
    fn is_decoupled(&self) -> bool {
        self.promise.policy.is_decoupled()
    }

    fn has_journal(&self) -> bool {
        self.is_decoupled() && self.promise.policy.durability() == Durability::Local
    }

    fn below(&self, mount: &OwnMount) -> PathBuf {
        mount.path(&self.name)
    }

    /// What is found must be what so many changes have made, or more: how many are lost.
    fn judge(&self, found: &Files, crash: Crash, crashed: Instant) -> usize {
        let loss = self.promise.loses(crash);
        let kept = self.story.kept(loss, crashed);
        let is_one_journal = self.is_decoupled();
        let scope = if is_one_journal { Scope::Whole } else { Scope::EachName };
        let judged = self.story.judge(found, kept, scope);
        judged.unwrap_or_else(|why| panic!("{}, {crash}, {loss}: {why}", self.name))
    }

    fn look(&self, mount: &OwnMount) -> Files {
        look(&self.below(mount)).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    fn assert_seen(&self, mount: &OwnMount, wanted: &Files, when: &str) {
        let found = look(&self.below(mount)).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        assert_eq!(&found, wanted, "{}: {when}", self.name);
    }
}

/// Everything that may die: each MNode has a disk of its own, and so has the client.
struct Stage {
    // In the order in which they go.
    client: Option<OwnMount>,
    other: OwnMount,
    cluster: RunningCluster,
    shell: CommandShell,
    mnode_disks: Vec<LoopDisk>,
    client_disk: LoopDisk,
}

impl Stage {
    fn set() -> Stage {
        let shape = ClusterShape { mnodes: 2, stores: 1, ..ClusterShape::default() };
        let cluster = RunningCluster::new(shape);
        let mut shell = CommandShell::start();
        let disk = |(n, role): (usize, &&str)| cluster.disk_of(role, LoopFormat::of(n), &mut shell);
        let mnode_disks = MNODES.iter().enumerate().map(disk).collect();
        let scratch = cluster.scratch();
        let (image, point) = (scratch.join("client.img"), scratch.join("client-disk"));
        let client_disk = LoopDisk::new(LoopFormat::Ext4, &image, &point, &mut shell);
        cluster.up();
        let other = mounted(&cluster, "other", "");
        Stage { client: None, other, cluster, shell, mnode_disks, client_disk }
    }

    fn journals(&self) -> PathBuf {
        self.client_disk.point().join("journals")
    }

    /// Mounts for the client, with its directory of journals.
    fn mount(&mut self) {
        let options = format!("journal_dir={}", self.journals().display());
        self.client = Some(mounted(&self.cluster, "client", &options));
    }

    fn client(&self) -> &OwnMount {
        self.client.as_ref().unwrap()
    }

    /// A command that must succeed.
    fn run(&self, words: &[&str]) {
        said(self.cluster.saker(words));
    }

    fn merge(&self, cell: &Cell) {
        merge(&cell.below(self.client()), &[]);
    }

    fn merge_all(&self, cells: &mut [Cell]) {
        for cell in cells.iter_mut().filter(|cell| cell.is_decoupled()) {
            self.merge(cell);
            cell.story.was_merged();
        }
    }

    /// A directory under each policy, with something in it from before.
    fn cells<'a>(&self, promises: &'a [Promise], round: &str) -> Vec<Cell<'a>> {
        let cell = |promise: &'a Promise| {
            let name = format!("{}-{round}", promise.policy.to_string().replace('/', "-"));
            let dir = self.other.path(&name);
            fs::create_dir_all(dir.join(OLD)).unwrap();
            for name in ["a", "b", "c", "d"] {
                fs::write(dir.join(OLD).join(name), "").unwrap();
            }
            let keys = keys(&promise.policy);
            let place = format!("/{name}");
            let words = ["policy", "set", &place, &keys[0], &keys[1], &keys[2], &keys[3]];
            self.run(&words);
            let base = ["a", "b", "c", "d"].map(|name| (format!("{OLD}/{name}"), 0));
            Cell { promise, name, story: Story::from(base.into_iter().collect(), 0) }
        };
        promises.iter().map(cell).collect()
    }

    /// Works in all cells by turns.
    fn work(&self, cells: &mut [Cell], rng: &mut Random, length: Duration) {
        let start = Instant::now();
        // Real time: what is lost is told by how old it is.
        while start.elapsed() < length {
            let cell = rng.below(cells.len());
            let cell = &mut cells[cell];
            let dir = cell.below(self.client());
            cell.story.step(&dir, rng);
        }
    }

    /// Works where the last moments may be lost, and nowhere else: a flush for others would make these
    /// answers durable, too.
    fn burst(&self, cells: &mut [Cell], crash: Crash, rng: &mut Random) {
        for _ in 0..BURST_STEPS {
            for cell in cells.iter_mut() {
                if cell.promise.loses(crash) == Loss::LastMoments {
                    cell.story.step(&cell.below(self.client()), rng);
                }
            }
        }
    }

    /// Lets something crash, and brings back what comes back. Returns when it was.
    fn crash(&mut self, crash: Crash, rng: &mut Random) -> Instant {
        let crashed = Instant::now();
        match crash {
            Crash::ClientKilled => drop(self.client.take()),
            Crash::ClientLost => {
                drop(self.client.take());
                fs::remove_dir_all(self.journals()).unwrap();
            }
            Crash::ClientPowerLoss => {
                self.client_disk.cut();
                drop(self.client.take());
                self.client_disk.unmount();
                self.client_disk.mount(&mut self.shell);
            }
            Crash::MnodeKilled => {
                let role = MNODES[rng.below(MNODES.len())];
                self.cluster.signal(role, Signal::KILL);
                self.shell.up(&self.cluster);
            }
            Crash::MnodePowerLoss => {
                let one = rng.below(MNODES.len());
                self.lose_power(&[one]);
            }
            Crash::AllMnodesPowerLoss => self.lose_power(&[0, 1]),
        }
        crashed
    }

    fn lose_power(&mut self, dark: &[usize]) {
        dark.iter().for_each(|n| self.mnode_disks[*n].cut());
        for n in dark {
            // It may have given up already: it cannot flush any more.
            if let Some(pid) = self.cluster.pid(MNODES[*n]).and_then(rustix::process::Pid::from_raw)
            {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        for n in dark {
            self.mnode_disks[*n].unmount();
            self.mnode_disks[*n].mount(&mut self.shell);
        }
        self.shell.up(&self.cluster);
    }

    /// fsck finds nothing but chunks of files that are lost; these it sets aside.
    fn fsck(&self, lost_large: usize) {
        let mut last = serde_json::Value::Null;
        until("fsck to find nothing", || {
            let output = self.cluster.saker(&["fsck", "--json"]);
            let said: serde_json::Value =
                serde_json::from_slice(&output.stdout).unwrap_or_default();
            let is_new = said != std::mem::replace(&mut last, said.clone());
            let problems = last["problems"].as_array().cloned().unwrap_or_default();
            let is_leak = |problem: &serde_json::Value| problem["kind"] == "leaked_chunks";
            let few = problems.len() <= lost_large && problems.iter().all(is_leak);
            if !few && is_new {
                eprintln!("fsck: {last}, {lost_large} files with chunks are lost");
            }
            few
        });
        if !last["problems"].as_array().unwrap().is_empty() {
            let repaired = self.cluster.saker(&["fsck", "--repair"]);
            // Errors were repaired.
            assert_eq!(repaired.status.code(), Some(1));
            self.cluster.fsck();
        }
    }
}

/// One crash, and what is left after it in all cells: how many answers were lost in each.
fn play(
    stage: &mut Stage,
    promises: &[Promise],
    crash: Crash,
    rng: &mut Random,
    round: &str,
) -> Vec<usize> {
    let is_client =
        matches!(crash, Crash::ClientKilled | Crash::ClientPowerLoss | Crash::ClientLost);
    let mut cells = stage.cells(promises, round);
    stage.mount();
    for cell in &mut cells {
        fs::create_dir(cell.below(stage.client()).join(NEW)).unwrap();
    }
    stage.work(&mut cells, rng, BEFORE_MERGE);
    stage.merge_all(&mut cells);
    stage.work(&mut cells, rng, AFTER_MERGE);
    for cell in &cells {
        let seen = if cell.is_decoupled() { cell.story.merged() } else { cell.story.now().clone() };
        cell.assert_seen(&stage.other, &seen, "what others see");
    }
    if !is_client {
        // What was just merged must be durable, too.
        stage.merge_all(&mut cells);
    }
    stage.work(&mut cells, rng, BEFORE_CRASH);
    stage.burst(&mut cells, crash, rng);
    let crashed = stage.crash(crash, rng);
    if stage.client.is_none() {
        stage.mount();
    }
    let mut lost = Vec::new();
    let mut lost_large = 0;
    for cell in &mut cells {
        recover(stage, cell, crash, is_client);
        let found = cell.look(&stage.other);
        lost.push(cell.judge(&found, crash, crashed));
        lost_large += cell.story.large_lost(&found);
        go_on(stage, cell, found, rng);
    }
    unmount(stage.client.take().unwrap());
    for cell in &cells {
        cell.assert_seen(&stage.other, cell.story.now(), "after all");
    }
    stage.fsck(lost_large);
    lost
}

/// As docs/policies.md says, so that others see what is left.
fn recover(stage: &Stage, cell: &Cell, crash: Crash, is_client: bool) {
    if !cell.is_decoupled() {
        return;
    }
    let keeps = cell.has_journal() && crash != Crash::ClientLost;
    if is_client && !keeps {
        let place = format!("/{}", cell.name);
        match crash {
            Crash::ClientLost => stage.run(&["policy", "reclaim", "--force", &place]),
            _ => until("the lease to end", || {
                stage.cluster.saker(&["policy", "reclaim", &place]).status.success()
            }),
        }
        return;
    }
    if is_client {
        cell.assert_seen(&stage.other, &cell.story.merged(), "what others see before it is merged");
    }
    // It was not hurt, or goes on from its journal when something below the directory is asked for.
    fs::metadata(cell.below(stage.client()).join(NEW)).unwrap();
    let mine = cell.look(stage.client());
    stage.merge(cell);
    cell.assert_seen(&stage.other, &mine, "what was merged");
}

/// The client works there as before.
fn go_on(stage: &Stage, cell: &mut Cell, found: Files, rng: &mut Random) {
    cell.story = Story::from(found, cell.story.last_number());
    // Its first change takes the hold, if it has none.
    fs::create_dir(cell.below(stage.client()).join(AGAIN)).unwrap();
    for _ in 0..STEPS_AFTER {
        cell.story.step(&cell.below(stage.client()), rng);
    }
    if cell.is_decoupled() {
        stage.merge(cell);
    }
    cell.assert_seen(&stage.other, cell.story.now(), "what was done after the crash");
}

/// What was not flushed is gone, and what was is there: it is a loss of power.
fn assert_loses_power(disk: &LoopDisk, shell: &mut CommandShell) {
    let path = |name: &str| disk.point().join(name);
    let write = |name: &str| {
        let mut file = File::create(path(name)).unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        file
    };
    write("synced").sync_all().unwrap();
    File::open(disk.point()).unwrap().sync_all().unwrap();
    drop(write("cached"));
    // In place, so that only data could be missing.
    let mut again = File::options().write(true).open(path("synced")).unwrap();
    again.write_all(&[8; 10_000]).unwrap();
    drop(again);
    disk.cut();
    disk.unmount();
    disk.mount(shell);
    assert!(fs::read(path("synced")).unwrap() == [7; 10_000]);
    assert!(!path("cached").exists() || fs::read(path("cached")).unwrap() != [7; 10_000]);
    fs::remove_file(path("synced")).unwrap();
    let _ = fs::remove_file(path("cached"));
}

#[test]
fn a_disk_without_power_has_what_was_flushed() {
    if !settings::needs_root("a_disk_without_power_has_what_was_flushed") {
        return;
    }
    let tmp = tempfile::tempdir_in(settings::scratch()).unwrap();
    let mut shell = CommandShell::start();
    for (n, name) in ["xfs", "ext4"].into_iter().enumerate() {
        let image = tmp.path().join(format!("{name}.img"));
        let disk = LoopDisk::new(LoopFormat::of(n), &image, &tmp.path().join(name), &mut shell);
        assert_loses_power(&disk, &mut shell);
    }
}

#[test]
fn each_crash_loses_what_the_policy_says() {
    if !can_mount("each_crash_loses_what_the_policy_says") {
        return;
    }
    let seed = settings::runs(1, 0).0[0];
    let rounds = std::env::var("SAKER_CRASH_ROUNDS").map_or(1, |n| n.parse().unwrap());
    let mut stage = Stage::set();
    let promises: Vec<Promise> = all_nine()
        .map(|(consistency, durability)| Promise::of(&stage.cluster, consistency, durability))
        .collect();
    let mut rng = Random::new(seed);
    let mut sums = vec![[0; Crash::ALL.len()]; promises.len()];
    for round in 0..rounds {
        for (n, crash) in Crash::ALL.into_iter().enumerate() {
            let start = Instant::now();
            let name = format!("{seed}-{round}-{n}");
            let lost = play(&mut stage, &promises, crash, &mut rng, &name);
            sums.iter_mut().zip(&lost).for_each(|(sum, lost)| sum[n] += lost);
            // Real time: how long it took is shown.
            eprintln!("seed {seed}, {crash}: lost {lost:?}, {:.1?}", start.elapsed());
        }
    }
    for (promise, sum) in promises.iter().zip(&sums) {
        eprintln!("{:<16} lost {sum:?}", promise.policy.to_string());
        for (n, crash) in Crash::ALL.into_iter().enumerate() {
            // A crash that costs nothing is none: the rest of the test would prove nothing.
            let costs = promise.loses(crash) == Loss::Unmerged;
            assert!(!costs || sum[n] > 0, "{} {crash}", promise.policy);
        }
    }
}
