//! Faults that kill nobody: networks that lose, disks that hang, processes that stand still,
//! clocks that jump. Each lasts some seconds; then all is well, and service must be back.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

use super::client::{ClientCounters, ClientCounts};
use super::disk::{self, TormentDisk};
use super::mounts::KillableMount;
use super::network::{Harm, NetworkRules};
use super::prober::Prober;
use super::{Game, OUTAGE_MAX, TormentReport, look_back, settle, up, wait_gone};
use crate::cluster::RunningCluster;
use crate::generate::Random;
use crate::shell::CommandShell;

/// How often the ports of a victim are looked up.
const FOLLOW: Duration = Duration::from_millis(20);
/// Whose packets may be harmed, and who may stand still.
const PEERS: [&str; 9] = [
    "coordinator-0",
    "mnode-0",
    "mnode-1",
    "mnode-2",
    "mnode-3",
    "store-0",
    "store-1",
    "mount-0",
    SECOND,
];
const SECOND: &str = "second";
/// Who stamps what it changes.
const STAMPING: [&str; 4] = ["mnode-0", "mnode-1", "mnode-2", "mnode-3"];
/// A clock jumps by so much: forth, or back.
const JUMPS: [&str; 2] = ["+1h", "-1h"];
/// Directories that are made to see that it has: of a name in four the victim is the owner.
const STAMPED: usize = 32;
/// `$LIB` is the dynamic linker's.
const FAKETIME: &str = "LD_PRELOAD=/usr/$LIB/faketime/libfaketime.so.1";

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Partition,
    Deaf,
    Mute,
    Loss,
    LossAll,
    Reset,
    Disk,
    Stop,
    Stutter,
    Clock,
}

const KINDS: [Kind; 10] = [
    Kind::Partition,
    Kind::Deaf,
    Kind::Mute,
    Kind::Loss,
    Kind::LossAll,
    Kind::Reset,
    Kind::Disk,
    Kind::Stop,
    Kind::Stutter,
    Kind::Clock,
];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Partition => "cut off",
            Kind::Deaf => "hears nothing",
            Kind::Mute => "is not heard",
            Kind::Loss => "loses 5 to 30% of its packets",
            Kind::LossAll => "all lose 1 to 5% of packets",
            Kind::Reset => "connections are reset",
            Kind::Disk => "disk hangs",
            Kind::Stop => "stands still",
            Kind::Stutter => "all it says is up to 60 ms late",
            Kind::Clock => "clock is 1 h off",
        })
    }
}

/// One of them.
struct Fault {
    kind: Kind,
    role: &'static str,
    length: Duration,
    percent: usize,
    jump: &'static str,
    /// For what is random while it lasts.
    seed: u64,
}

impl Fault {
    /// All that is random is drawn, whatever the kind.
    fn draw(kind: Kind, rng: &mut Random) -> Fault {
        let roles: &[&str] = match kind {
            Kind::Disk => &disk::ROLES,
            Kind::Clock => &STAMPING,
            _ => &PEERS,
        };
        let (role, jump) = (*rng.pick(roles), *rng.pick(&JUMPS));
        let percent = if kind == Kind::LossAll { 1 + rng.below(5) } else { 5 + rng.below(26) };
        let length = Duration::from_millis(1_000 + rng.below(4_000) as u64);
        Fault { kind, role, length, percent, jump, seed: rng.any() }
    }
}

/// What clients met with while faults of a kind lasted, and until service was back.
#[derive(Debug, Default)]
pub struct Tally {
    count: usize,
    calls: u64,
    failed: u64,
    mutations: u64,
    /// From the end of a fault until service was back, sorted.
    back: Vec<Duration>,
}

impl Tally {
    fn add(&mut self, before: ClientCounts, after: ClientCounts, back: Option<Duration>) {
        self.count += 1;
        self.calls += after.calls - before.calls;
        self.failed += after.failed - before.failed;
        self.mutations += after.mutations - before.mutations;
        self.back.extend(back);
        self.back.sort();
    }
}

/// Tallies by kind, as a table.
#[derive(Debug, Default)]
pub struct Tallies(BTreeMap<Kind, Tally>);

impl fmt::Display for Tallies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        writeln!(f, "| fault | times | back, median / longest | calls | failed | changes |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        self.0.iter().try_for_each(|(kind, Tally { count, calls, failed, mutations, back })| {
            let share = 100.0 * *failed as f64 / (*calls).max(1) as f64;
            let seconds = |time: Option<&Duration>| time.map_or(f64::NAN, Duration::as_secs_f64);
            let (median, longest) = (seconds(back.get(back.len() / 2)), seconds(back.last()));
            write!(f, "| {kind} | {count} | {median:.2} s / {longest:.2} s ")?;
            writeln!(f, "| {calls} | {failed} ({share:.1}%) | {mutations} |")
        })
    }
}

/// What a fault is done to, and who watches.
struct Victims<'a> {
    cluster: &'a RunningCluster,
    second: &'a KillableMount,
    disks: &'a [TormentDisk],
    shell: &'a mut CommandShell,
    prober: &'a Prober,
}

impl Victims<'_> {
    fn pid(&self, role: &str) -> Pid {
        let pid = if role == SECOND {
            self.second.pid()
        } else {
            self.cluster.pid(role).and_then(Pid::from_raw)
        };
        pid.unwrap_or_else(|| panic!("{role} does not run"))
    }

    /// Lets a fault happen and end; an error says that it has not happened.
    fn suffer(&mut self, fault: &Fault) -> Result<(), String> {
        let Fault { kind, role, length, percent, jump, seed } = *fault;
        let harm = match kind {
            Kind::Disk => {
                self.hang(role, length);
                return Ok(());
            }
            Kind::Stop => {
                self.stop(role, length);
                return Ok(());
            }
            Kind::Stutter => {
                self.stutter(role, length, &mut Random::new(seed));
                return Ok(());
            }
            Kind::Clock => return self.displace(role, length, jump),
            Kind::Partition => Harm::Part,
            Kind::Deaf => Harm::Deafen,
            Kind::Mute => Harm::Mute,
            Kind::Loss => Harm::Lose(percent),
            Kind::LossAll => Harm::LoseAll(percent),
            Kind::Reset => Harm::Reset,
        };
        self.harm(role, length, harm)
    }

    fn harm(&mut self, role: &str, length: Duration, harm: Harm) -> Result<(), String> {
        let pid = self.pid(role).as_raw_nonzero().get();
        let scratch = self.cluster.scratch();
        let mut rules = NetworkRules::impose(self.shell, &scratch, pid, harm);
        let start = Instant::now();
        while start.elapsed() < length {
            sleep(FOLLOW);
            rules.follow(self.shell);
        }
        let packets = rules.lift(self.shell);
        self.prober.healed(role);
        if packets > 0 { Ok(()) } else { Err("no packet was harmed".to_owned()) }
    }

    fn hang(&mut self, role: &str, length: Duration) {
        let disk = self.disks.iter().find(|disk| disk.role == role).expect("it has a disk");
        let frozen = disk.disk.freeze();
        sleep(length);
        drop(frozen);
        self.prober.healed(role);
    }

    fn stop(&mut self, role: &str, length: Duration) {
        let pid = self.pid(role);
        kill_process(pid, Signal::STOP).expect("it runs");
        sleep(length);
        kill_process(pid, Signal::CONT).expect("it is there");
        self.prober.healed(role);
    }

    /// It stands still again and again for a moment: what it says, and hears, comes late, and in
    /// another order with what others say.
    fn stutter(&mut self, role: &str, length: Duration, rng: &mut Random) {
        let pid = self.pid(role);
        let start = Instant::now();
        while start.elapsed() < length {
            kill_process(pid, Signal::STOP).expect("it runs");
            sleep(Duration::from_millis(rng.below(60) as u64));
            kill_process(pid, Signal::CONT).expect("it is there");
            sleep(Duration::from_millis(rng.below(20) as u64));
        }
        self.prober.healed(role);
    }

    /// Starts a process again with a clock that is wrong, and then with one that is right.
    fn displace(&mut self, role: &str, length: Duration, jump: &str) -> Result<(), String> {
        let fake = [
            FAKETIME.to_owned(),
            format!("FAKETIME={jump}"),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "NO_FAKE_STAT=1".to_owned(),
        ];
        let words = ["env".into()].into_iter().chain(fake.map(OsString::from));
        let words: Vec<OsString> = words.chain(self.cluster.up_words()).collect();
        self.kill(role);
        self.shell.run(&words.iter().map(OsString::as_os_str).collect::<Vec<_>>());
        let start = Instant::now();
        let displaced = is_displaced(&self.cluster.mount());
        sleep(length.saturating_sub(start.elapsed()));
        self.prober.healed(role);
        self.kill(role);
        up(self.cluster, self.shell);
        if displaced { Ok(()) } else { Err("no clock was off".to_owned()) }
    }

    fn kill(&self, role: &str) {
        let pid = self.pid(role);
        kill_process(pid, Signal::KILL).expect("it runs");
        wait_gone(pid);
    }
}

/// Does anybody give stamps that are off by half an hour?
fn is_displaced(mount: &Path) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    let stamp = |n: usize| {
        let path = mount.join(format!("stamped-{n}"));
        std::fs::create_dir(&path).expect("all serve");
        let stamp = std::fs::metadata(&path).expect("it is there").mtime();
        std::fs::remove_dir(&path).expect("all serve");
        stamp
    };
    (0..STAMPED).any(|n| (stamp(n) - now).abs() > 1_800)
}

/// Does harm to a cluster for so long while clients work; what came of it.
pub fn suffer_faults(seed: u64, length: Duration, think: Duration) -> TormentReport {
    let (cluster, mut shell, disks, second) = disk::start();
    let (first, other) = (cluster.mount(), second.point().to_path_buf());
    let mut game = Game::start(&[&first, &other], seed, false, think);
    let prober = Prober::start(cluster.connect(), game.field.tops.clone());
    let mut report = TormentReport::default();
    let mut victims = Victims {
        cluster: &cluster,
        second: &second,
        disks: &disks,
        shell: &mut shell,
        prober: &prober,
    };
    harass(&mut victims, &game.field.counts, seed, length, &mut report);
    settle(&cluster, &[&first, &other]);
    game.stop();
    if let Err(error) = prober.stop() {
        report.wrong.push(format!("a probe failed: {error}"));
    }
    look_back(&cluster, second, &game, &mut report);
    let least = 5 * length.as_secs();
    let few = format!("{} acknowledged changes of {least}", report.mutations);
    report.demand(report.mutations >= least, few);
    report.demand_calm();
    cluster.down();
    drop(disks);
    report
}

/// One fault after the other: each kind once, in an order by chance, then again.
fn harass(
    victims: &mut Victims<'_>,
    counts: &ClientCounters,
    seed: u64,
    length: Duration,
    report: &mut TormentReport,
) {
    let (mut rng, mut kinds) = (Random::new(seed), Vec::new());
    let start = Instant::now();
    while start.elapsed() < length {
        if kinds.is_empty() {
            kinds.extend(KINDS);
        }
        let fault = Fault::draw(kinds.swap_remove(rng.below(kinds.len())), &mut rng);
        sleep(Duration::from_millis(300 + rng.below(700) as u64));
        report.faults += 1;
        let before = counts.totals();
        let happened = victims.suffer(&fault);
        let back = victims.prober.back();
        let Fault { kind, role, length, .. } = &fault;
        eprintln!("{role}: {kind}, {length:.1?}; back after {back:.2?}");
        let good = back.is_some_and(|back| back <= OUTAGE_MAX);
        let what = format!("{role}: {kind}, {length:.1?}");
        report.demand(good, format!("{what}: service came back after {back:.2?}"));
        report.demand(happened.is_ok(), format!("{what}: {happened:?}"));
        let tally = report.tallies.0.entry(*kind).or_default();
        tally.add(before, counts.totals(), back);
    }
}
