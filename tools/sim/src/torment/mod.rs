//! Torment: a real cluster, two mounts, eight clients, and something dies every two seconds.
//!
//! What the clients were told is written down and checked afterwards: each history must have an
//! order that explains it, up to what is found at the end ([`crate::history`]).

mod arena;
mod client;
mod disk;
mod faults;
mod hands;
mod inside;
mod mounts;
mod network;
mod power;
mod prober;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::cluster::{ClusterShape, RunningCluster};
use crate::copier::is_mounted;
use crate::generate::Random;
use crate::history::FileCall;
use crate::shell::CommandShell;
use arena::{Arena, Event};
use client::{ClientCounters, ClientCounts, Field, TormentClient};
use faults::Tallies;
use hands::{Hands, make_dir};
use prober::{Outage, Prober};

pub use faults::suffer_faults;
pub use inside::enter;
pub use mounts::KillableMount;
pub use power::lose_power;

/// Clients, half of them on each mount.
pub const CLIENTS: usize = 8;
/// Service is back after a kill within this.
const OUTAGE_MAX: Duration = Duration::from_secs(3);
/// Directory of a run, in the root of the file system.
const TOP: &str = "torment";
/// What is waited for at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// How to torment.
#[derive(Clone, Copy, Debug)]
pub struct TormentOptions {
    /// Of operations and kills.
    pub seed: u64,
    /// How long.
    pub length: Duration,
    /// From kill to kill.
    pub period: Duration,
    /// Pause of a client between two operations.
    pub think: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct TormentReport {
    /// Kills, losses of power, or what else was done.
    pub faults: usize,
    /// Calls of clients.
    pub calls: u64,
    /// Of them, those that failed because something was down.
    pub failed: u64,
    /// Changes that were acknowledged.
    pub mutations: u64,
    /// Changes without an answer.
    pub unknown: u64,
    /// Histories checked.
    pub histories: usize,
    /// How long service was away after each kill, sorted.
    pub outages: Vec<Duration>,
    /// Faults that killed nobody.
    pub tallies: Tallies,
    /// What is wrong.
    pub wrong: Vec<String>,
}

impl TormentReport {
    fn count(&mut self, counts: &ClientCounters) {
        let ClientCounts { calls, failed, mutations, unknown } = counts.totals();
        (self.calls, self.failed) = (calls, failed);
        (self.mutations, self.unknown) = (mutations, unknown);
    }

    /// Notes that a bound is not kept.
    fn demand(&mut self, holds: bool, what: String) {
        if !holds {
            self.wrong.push(what);
        }
    }
}

impl std::fmt::Display for TormentReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = 100.0 * self.failed as f64 / self.calls.max(1) as f64;
        writeln!(
            f,
            "{} faults; {} calls, {} failed ({percent:.1}%); {} acknowledged changes, {} without an \
             answer; {} histories",
            self.faults, self.calls, self.failed, self.mutations, self.unknown, self.histories
        )?;
        if let (Some(longest), Some(median)) =
            (self.outages.last(), self.outages.get(self.outages.len() / 2))
        {
            writeln!(f, "service back after {median:.0?} (median), {longest:.0?} (longest)")?;
        }
        write!(f, "{}", self.tallies)?;
        self.wrong.iter().try_for_each(|wrong| writeln!(f, "WRONG: {wrong}"))
    }
}

/// The clients at work.
struct Game {
    field: Arc<Field>,
    threads: Vec<JoinHandle<()>>,
}

impl Game {
    fn start(mounts: &[&Path], seed: u64, sync: bool, think: Duration) -> Game {
        // Nothing may be masked away: modes are compared.
        rustix::process::umask(rustix::fs::Mode::empty());
        let tops = mounts.iter().map(|point| point.join(TOP)).collect::<Vec<_>>();
        assert!(make_dir(&tops[0]), "{} cannot be made", tops[0].display());
        let field = Arc::new(Field {
            tops,
            arenas: arena::Arenas::default(),
            counts: ClientCounters::default(),
            stop: AtomicBool::new(false),
            sync,
            think,
            start: Instant::now(),
        });
        let client = |n| TormentClient::new(&field, n, seed);
        let threads =
            (0..CLIENTS).map(client).map(|client| std::thread::spawn(move || client.run()));
        Game { threads: threads.collect(), field }
    }

    fn stop(&mut self) {
        self.field.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a client does not panic");
        }
    }

    /// Looks at everything that is there, and judges all histories with it.
    fn judge(&self, report: &mut TormentReport) {
        report.count(&self.field.counts);
        let top = &self.field.tops[0];
        let arenas = self.field.arenas.all();
        let names: Vec<String> = arenas.iter().map(|arena| arena.name.clone()).collect();
        for entry in std::fs::read_dir(top).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let known = names.contains(&name) || is_new(&name);
            report.demand(known, format!("{name} is there, and nobody made it"));
        }
        report.histories = arenas.len();
        for arena in arenas {
            audit(&arena, top, &self.field);
            report.wrong.extend(arena.judge());
        }
    }
}

/// An arena whose making nobody heard of.
fn is_new(name: &str) -> bool {
    name.starts_with("own-") || name.starts_with("shared-")
}

/// Adds what is found in an arena to its history.
fn audit(arena: &Arena, top: &Path, field: &Field) {
    let call_ns = field.start.elapsed().as_nanos() as u64;
    let hands = Hands::open(&top.join(&arena.name), false);
    let found = hands.map(|hands| hands.perform(&FileCall::Audit, None));
    let Some(Ok((reply, _))) = found else {
        panic!("{} cannot be read: {:?}", arena.name, found.map(|found| found.map(|_| ())));
    };
    let reply = Some((field.start.elapsed().as_nanos() as u64, reply));
    arena.push(Event { client: CLIENTS, call_ns, reply, op: FileCall::Audit });
}

/// Kills processes while clients work; what came of it.
pub fn kill(options: &TormentOptions) -> TormentReport {
    let cluster = RunningCluster::start(ClusterShape {
        mount: true,
        supervise: true,
        ..ClusterShape::default()
    });
    let mut second = KillableMount::start(&cluster);
    let (first, other) = (cluster.mount(), second.point().to_path_buf());
    let shell = CommandShell::start();
    let mut game = Game::start(&[&first, &other], options.seed, false, options.think);
    let prober = Prober::start(cluster.connect(), game.field.tops.clone());
    let mut report = TormentReport::default();
    let mut killer =
        Killer { cluster: &cluster, shell, rng: Random::new(options.seed), last: None };
    let start = Instant::now();
    while start.elapsed() < options.length {
        sleep((options.period * (report.faults as u32 + 1)).saturating_sub(start.elapsed()));
        if killer.one(&mut second, &prober) {
            report.faults += 1;
        }
    }
    settle(&cluster, &[&first, &other]);
    game.stop();
    let (outages, probes) = prober.stop().expect("no probe may fail");
    eprintln!("{probes} probes");
    report.judge_outages(&outages);
    look_back(&cluster, second, &game, &mut report);
    report.demand_for(options);
    report
}

impl TormentReport {
    fn judge_outages(&mut self, outages: &[Outage]) {
        for outage in outages {
            let Outage { role, lasted, .. } = outage;
            let good = lasted.is_some_and(|lasted| lasted <= OUTAGE_MAX);
            self.demand(good, format!("after {role} was killed service was away for {lasted:?}"));
        }
        self.outages = outages.iter().filter_map(|outage| outage.lasted).collect();
        self.outages.sort();
    }

    /// What a run of this length must reach: in ten minutes 300 kills and 20,000 changes.
    fn demand_for(&mut self, options: &TormentOptions) {
        let seconds = options.length.as_secs_f64();
        let kills = (seconds / 2.0).floor() as usize;
        self.demand(self.faults >= kills, format!("{} kills of {kills}", self.faults));
        let mutations = (seconds * 20_000.0 / 600.0) as u64;
        let few = format!("{} acknowledged changes of {mutations}", self.mutations);
        self.demand(self.mutations >= mutations, few);
        self.demand_calm();
    }

    /// At most a call in five may fail.
    fn demand_calm(&mut self) {
        let calm = self.failed * 5 <= self.calls;
        self.demand(calm, format!("{} of {} calls failed", self.failed, self.calls));
    }
}

/// After the game: what is there, on a cluster that was started afresh, and what clients were told.
fn look_back(
    cluster: &RunningCluster,
    second: KillableMount,
    game: &Game,
    report: &mut TormentReport,
) {
    cluster.fsck();
    drop(second);
    cluster.down();
    cluster.up();
    settle(cluster, &[&cluster.mount()]);
    game.judge(report);
}

/// Waits until all processes run and the mounts work.
fn settle(cluster: &RunningCluster, mounts: &[&Path]) {
    let start = Instant::now();
    let up = || cluster.roles().iter().all(|role| role.state == "up");
    while !(mounts.iter().all(|point| is_mounted(point)) && up()) {
        assert!(start.elapsed() < PATIENCE, "not all comes back: {:?}", cluster.roles());
        sleep(Duration::from_millis(50));
    }
}

/// Chooses whom to kill.
struct Killer<'a> {
    cluster: &'a RunningCluster,
    shell: CommandShell,
    rng: Random,
    last: Option<String>,
}

/// Roles that a supervisor watches, as often as they are to be chosen.
const ROLES: [&str; 17] = [
    "coordinator-0",
    "coordinator-0",
    "mnode-0",
    "mnode-0",
    "mnode-1",
    "mnode-1",
    "mnode-2",
    "mnode-2",
    "mnode-3",
    "mnode-3",
    "store-0",
    "store-0",
    "store-1",
    "store-1",
    "mount-0",
    "second",
    "supervisor",
];

impl Killer<'_> {
    /// Kills one process; false: the one that was chosen was not there.
    fn one(&mut self, second: &mut KillableMount, prober: &Prober) -> bool {
        let role = *self.rng.pick(&ROLES);
        if self.last.as_deref() == Some(role) {
            return false;
        }
        self.last = Some(role.to_owned());
        if role == "second" {
            prober.killed(role);
            second.kill();
            return true;
        }
        let Some(pid) = self.cluster.pid(role).and_then(Pid::from_raw) else {
            return false;
        };
        prober.killed(role);
        let killed = rustix::process::kill_process(pid, Signal::KILL).is_ok();
        if role == "supervisor" {
            // Nobody watches it: whoever runs the cluster starts it again, when it is dead.
            wait_gone(pid);
            up(self.cluster, &mut self.shell);
        }
        killed
    }
}

/// `saker up`, while clients work.
fn up(cluster: &RunningCluster, shell: &mut CommandShell) {
    shell.up(cluster);
}

/// Waits until a killed process has ended: for a moment it is still to be seen.
fn wait_gone(pid: Pid) {
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        let waited = poll(&mut fds, None);
        assert!(waited.is_ok_and(|ready| ready == 1), "a killed process does not end");
    }
}
