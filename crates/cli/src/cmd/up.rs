//! `saker up`: a whole cluster on this machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use rustix::process::Signal;
use saker_client::{Caller, ClientOptions, SetAttr};
use saker_runtime::{thread, time};
use saker_types::Locator;
use saker_types::id::hex;
use saker_types::wire::At;

use super::{down, supervise};
use crate::fail::{Context, Failure, Outcome};
use crate::layout::{ClusterDir, ClusterLayout, Role, RoleId, Size};
use crate::ports::{self, Ports, Range};
use crate::probe::{self, Probe};
use crate::process;
use crate::signals::Signals;
use crate::wire::Wire;
use crate::{mountpoint, procfs, session, supervisor};

/// Start a cluster on this machine, or start again what is not running.
///
/// Makes the directory D with the settings, logs and data of one coordinator, some MNodes and
/// some stores, starts each as its own process under a supervisor, and returns when all serve.
/// On a directory that has a cluster already, it starts what does not run and adopts what does;
/// the supervisor may be killed at any time.
///
/// Examples:
///   saker up --mount ./mnt                     4 MNodes, 2 stores, mounted
///   saker up --dir /srv/a --mnodes 8 --stores 3 --replicas 2
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Where the cluster's settings, logs and data are.
    #[arg(long, value_name = "D", default_value = ".saker")]
    dir: PathBuf,
    /// Mount the file system there, too; the directory is made if it is missing.
    #[arg(long, value_name = "MNT")]
    mount: Option<PathBuf>,
    /// Metadata nodes of a new cluster (default: 4).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    mnodes: Option<u32>,
    /// Threads of each metadata node in a new cluster (default: half of the cores, divided among
    /// the metadata nodes).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Option<u32>,
    /// Stores of a new cluster (default: 2).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    stores: Option<u32>,
    /// Copies of each chunk of file data in a new cluster (default: 1).
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..))]
    replicas: Option<u32>,
    /// First port of a new cluster: the coordinator's; MNodes are at 10 and more above it, stores
    /// at 30, metrics at 80. Taken ports are passed over (default: 7400).
    #[arg(long, value_name = "PORT")]
    #[arg(value_parser = clap::value_parser!(u16).range(1024..=i64::from(ports::BASE_MAX)))]
    port: Option<u16>,
    /// Where MNodes keep their rows.
    #[arg(long, value_enum, default_value_t = Engine::Embedded)]
    engine: Engine,
    /// Who knows which directories have changed.
    #[arg(long, value_enum, default_value_t = Tracker::Fanout)]
    tracker: Tracker,
    /// Standby nodes that take over.
    #[arg(long)]
    ha: bool,
    /// Do not watch the processes: what dies stays dead.
    #[arg(long, conflicts_with = "foreground")]
    no_supervise: bool,
    /// Stay, and stop the cluster at Ctrl-C or SIGTERM (for service managers and containers).
    #[arg(long)]
    foreground: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Tables inside the MNode's process.
    Embedded,
    /// An own PostgreSQL of each MNode.
    Postgres,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tracker {
    /// Nobody: a reader asks all MNodes.
    Fanout,
    /// The directory's owner.
    Owner,
    /// A server of its own.
    Server,
    /// An XDP program at the switch.
    Switch,
}

/// How long the whole cluster may take to serve; recovery of large journals is part of it.
const PATIENCE: Duration = Duration::from_secs(120);
/// The kernel closes the sockets of a killed process, which io_uring holds, a little after its end.
const CLOSING: Duration = Duration::from_secs(1);
/// A role that died this often before it served once will not serve.
const HOPELESS_RESTARTS: u64 = 3;
const COORDINATOR: RoleId = RoleId { role: Role::Coordinator, n: 0 };
const MOUNT: RoleId = RoleId { role: Role::Mount, n: 0 };
/// Files up to this size live in their inode row, bytes.
const INLINE_MAX: u64 = saker_types::limits::INLINE_BYTES_MAX;

/// Runs the command.
pub fn run(args: &Args) -> Outcome<u8> {
    refuse_what_is_missing(args)?;
    // Before any thread is started, so that all of them leave the signals to us.
    let signals = args.foreground.then(Signals::block).transpose().about("signals")?;
    let dir = ClusterDir::new(&args.dir)?;
    dir.make()?;
    let lock = dir.lock()?;
    let ports = ports::PortLock::wait();
    let fresh = !dir.exists();
    let mut cluster = settle(&dir, args)?;
    if leave_taken_ports(&dir, &mut cluster)? {
        // The others learn the new places from it; without it they would use those they remember.
        start_alone(&dir, &cluster, COORDINATOR)?;
    }
    if let Some(signals) = signals {
        return foreground(&dir, &cluster, &signals, (lock, ports));
    }
    let ran = cluster.roles().iter().any(|id| process::find_role(&dir, &cluster, *id).is_some());
    let started = start(&dir, &cluster, args.no_supervise).and_then(|()| {
        wait_bound(&cluster);
        drop(ports);
        wait_all(&dir, &cluster, args.no_supervise)?;
        if let Err(failure) = note_uuid(&dir, &mut cluster) {
            crate::complain!("saker: {failure}");
        }
        if !args.no_supervise && process::find_supervisor(&dir).is_none() {
            // The one that was there was being killed.
            supervise_anew(&dir)?;
        }
        if rustix::process::geteuid().is_root() { Ok(()) } else { own_the_root(&dir) }
    });
    if let Err(failure) = started {
        // What serves of an old cluster goes on: one disk that is lost must not stop all.
        if fresh || (!ran && !Probe::new().is_ok_and(|probe| probe.serves(&cluster, COORDINATOR))) {
            // Leave no half of a cluster behind.
            down::stop_supervisor(&dir);
            down::stop_roles(&dir, &cluster)?;
        }
        return Err(failure);
    }
    announce(&dir, &cluster, fresh, args.no_supervise);
    Ok(0)
}

fn refuse_what_is_missing(args: &Args) -> Outcome {
    let missing = "not in this version of Saker";
    if args.engine != Engine::Embedded {
        return Err(Failure::usage("--engine postgres", missing));
    }
    if args.tracker != Tracker::Fanout {
        let name = args.tracker.to_possible_value();
        let name = name.as_ref().map_or("", |value| value.get_name());
        return Err(Failure::usage(format!("--tracker {name}"), missing));
    }
    if args.ha { Err(Failure::usage("--ha", missing)) } else { Ok(()) }
}

/// The cluster of the directory; a new one if there is none.
fn settle(dir: &ClusterDir, args: &Args) -> Outcome<ClusterLayout> {
    let mut cluster = if dir.exists() { existing(dir, args)? } else { new(args)? };
    let before = cluster.clone();
    if let Some(point) = &args.mount {
        let point = mountpoint::prepare(point)?;
        match &cluster.mount {
            Some(old) if *old != point && mountpoint::is_mounted(old) => {
                let why = format!("it is mounted at {} already", old.display());
                return Err(Failure::new(dir.path().display(), why));
            }
            _ => cluster.mount = Some(point),
        }
    }
    let mounted = || process::find_role(dir, &cluster, MOUNT).is_some();
    let is_free = cluster.mount_http.is_some_and(|addr| ports::is_free(addr.port()));
    if cluster.mount.is_some() && !is_free && !mounted() {
        let mut ports = ports_beside(&cluster);
        cluster.mount_http = Some(ports.take(Range::Http)?);
    }
    if before != cluster || !dir.exists() {
        dir.store(&cluster)?;
    }
    Ok(cluster)
}

fn existing(dir: &ClusterDir, args: &Args) -> Outcome<ClusterLayout> {
    let cluster = dir.load()?;
    let asked = [
        ("--mnodes", args.mnodes, cluster.mnode.len() as u32),
        ("--workers", args.workers, cluster.mnode.first().map_or(0, |node| node.addr.len() as u32)),
        ("--stores", args.stores, cluster.store.len() as u32),
        ("--replicas", args.replicas, cluster.replicas),
    ];
    for (option, asked, has) in asked {
        if asked.is_some_and(|asked| asked != has) {
            let why = format!("there is a cluster with {has}; `saker down --wipe` deletes it");
            return Err(Failure::usage(format!("{}: {option}", dir.path().display()), why));
        }
    }
    Ok(cluster)
}

fn new(args: &Args) -> Outcome<ClusterLayout> {
    let mnodes = args.mnodes.unwrap_or(4);
    // Half of the cores: the other half is for the flushes, the stores and those who ask.
    let half = (thread::parallelism() as u32 / 2 / mnodes).max(1);
    let size =
        Size { mnodes, workers: args.workers.unwrap_or(half), stores: args.stores.unwrap_or(2) };
    let replicas = args.replicas.unwrap_or(1);
    if replicas > size.stores {
        let why = format!("more copies than the {} stores", size.stores);
        return Err(Failure::usage(format!("--replicas {replicas}"), why));
    }
    ClusterLayout::plan("saker", size, replicas, INLINE_MAX, args.port.unwrap_or(ports::BASE))
}

/// Ports that the cluster does not know.
fn ports_beside(cluster: &ClusterLayout) -> Ports {
    let known = cluster.roles().into_iter().flat_map(|id| cluster.addrs(id));
    let known = known.chain(cluster.mount_http).map(|addr| addr.port());
    Ports::new(cluster.coordinator.port().min(ports::BASE_MAX), known)
}

/// A port of a role that does not run must be free, or somebody else has it. A cluster of which
/// nothing runs moves on to other ports; of one that runs in part, the others know the old ones.
/// Returns whether it moved.
fn leave_taken_ports(dir: &ClusterDir, cluster: &mut ClusterLayout) -> Outcome<bool> {
    let runs = |cluster: &ClusterLayout, id| process::find_role(dir, cluster, id).is_some();
    let known = cluster.clone();
    let taken = || -> Vec<_> {
        let idle = known.roles().into_iter().filter(|id| !runs(&known, *id));
        let addrs = idle.flat_map(|id| known.addrs(id).into_iter().map(move |addr| (id, addr)));
        // A supervisor may have started it just now.
        addrs.filter(|(id, addr)| !ports::is_free(addr.port()) && !runs(&known, *id)).collect()
    };
    let deadline = time::now() + CLOSING;
    while !taken().is_empty() && time::now() < deadline {
        time::sleep(Duration::from_millis(10));
    }
    let taken = taken();
    let in_part = known.roles().into_iter().any(|id| runs(&known, id));
    let mut others = ports_beside(&known);
    for (id, old) in &taken {
        let who = procfs::listener_of(old.port());
        let who = who.as_deref().unwrap_or("a process that you may not see");
        let why = format!("port {} is taken by {who}", old.port());
        if in_part {
            let advice = "stop that, or this cluster (saker down), which then moves on";
            return Err(Failure::new(id, format!("{why}; {advice}")));
        }
        let new = others.take(Range::Others)?;
        crate::announce!("{id}: {why}; moved to {}", new.port());
        cluster.move_addr(*old, new);
    }
    if !taken.is_empty() {
        dir.store(cluster)?;
    }
    Ok(!taken.is_empty())
}

/// Starts what does not run, or sees to it that a supervisor does.
fn start(dir: &ClusterDir, cluster: &ClusterLayout, no_supervise: bool) -> Outcome {
    if no_supervise {
        down::stop_supervisor(dir);
        let idle = cluster
            .roles()
            .into_iter()
            .filter(|id| process::find_role(dir, cluster, *id).is_none());
        each_role(idle, |id| start_alone(dir, cluster, id))?;
    } else if let Some(supervisor) = process::find_supervisor(dir) {
        // It reads the settings again, and mounts again what was unmounted.
        supervisor.signal(Signal::HUP);
    } else {
        supervise_anew(dir)?;
    }
    Ok(())
}

fn supervise_anew(dir: &ClusterDir) -> Outcome {
    let args = process::supervisor_args(dir);
    process::spawn_daemon(&args, &dir.supervisor_log_file(), None).map(drop)
}

/// Does this for each role, also after one that failed, which is told. But without a coordinator
/// nothing serves, and a mount answers when all do.
fn each_role(roles: impl Iterator<Item = RoleId>, act: impl Fn(RoleId) -> Outcome) -> Outcome {
    let mut first = Ok(());
    for id in roles {
        match id.role {
            Role::Coordinator => act(id)?,
            Role::Mount => first = first.and_then(|()| act(id)),
            Role::Mnode | Role::Store => first = first.and(act(id)),
        }
    }
    first
}

/// Without a supervisor: a role that must serve before the next one is started, so that the mount
/// finds its cluster.
fn start_alone(dir: &ClusterDir, cluster: &ClusterLayout, id: RoleId) -> Outcome {
    let (_, process) = process::start_role(dir, cluster, id)?;
    let probe = Probe::new()?;
    let deadline = time::now() + PATIENCE;
    loop {
        if probe::holds_ports(&process, cluster, id) && probe.serves(cluster, id) {
            return Ok(());
        }
        if !process.alive() || time::now() > deadline {
            return Err(does_not_serve(dir, id));
        }
        time::sleep(Duration::from_millis(10));
    }
}

/// Waits until all ports are taken, or a little while if something keeps a role from it: whoever
/// looks for free ports next must not find ours.
fn wait_bound(cluster: &ClusterLayout) {
    let deadline = time::now() + Duration::from_secs(3);
    for addr in cluster.roles().into_iter().flat_map(|id| cluster.addrs(id)) {
        while !ports::accepts(addr) && time::now() < deadline {
            time::sleep(Duration::from_millis(10));
        }
    }
}

/// Writes down which cluster this is, now that it serves.
fn note_uuid(dir: &ClusterDir, cluster: &mut ClusterLayout) -> Outcome {
    if cluster.uuid.is_none() {
        let map = Wire::new()?.map(&[cluster.coordinator], PATIENCE)?;
        cluster.uuid = Some(hex(&map.uuid));
        dir.store(cluster)?;
    }
    Ok(())
}

/// Waits until all roles serve. Without a supervisor, those are started that have ended since they
/// were looked for: a process that is being killed is there for a while.
fn wait_all(dir: &ClusterDir, cluster: &ClusterLayout, no_supervise: bool) -> Outcome {
    let probe = Probe::new()?;
    let deadline = time::now() + PATIENCE;
    each_role(cluster.roles().into_iter(), |id| {
        let ours = || {
            let process = process::find_role(dir, cluster, id);
            process.is_some_and(|process| probe::holds_ports(&process, cluster, id))
        };
        while !ours() || !probe.serves(cluster, id) {
            if no_supervise && process::find_role(dir, cluster, id).is_none() {
                return start_alone(dir, cluster, id);
            }
            let state = supervisor::read_state(dir);
            let restarts = state.roles.get(&id.to_string()).map_or(0, |role| role.restarts);
            if restarts >= HOPELESS_RESTARTS || time::now() > deadline {
                return Err(does_not_serve(dir, id));
            }
            time::sleep(Duration::from_millis(10));
        }
        Ok(())
    })
}

fn does_not_serve(dir: &ClusterDir, id: RoleId) -> Failure {
    let log = dir.log_file(id);
    let said = process::last_log_line(&log).unwrap_or_else(|| "it said nothing".to_owned());
    Failure::new(id, format!("it does not come up: {said} (log: {})", log.display()))
}

/// The root of a new cluster belongs to the superuser; a user who runs one must be able to write
/// into it.
fn own_the_root(dir: &ClusterDir) -> Outcome {
    let session = session::connect(&dir.path().display().to_string(), ClientOptions::default())?;
    let superuser = Caller::root();
    let change =
        SetAttr { uid: Some(session.who.uid), gid: Some(session.who.gid), ..SetAttr::default() };
    let root = At::handle(Locator::root());
    session
        .fs
        .block_on(async {
            let entry = session.fs.getattr(&superuser, &root).await?;
            if entry.attr.uid == 0 {
                session.fs.setattr(&superuser, &root, &change).await?;
            }
            Ok::<_, saker_types::Error>(())
        })
        .about("root directory")
}

/// Supervises in this process, and stops the cluster at the end.
fn foreground(
    dir: &ClusterDir,
    cluster: &ClusterLayout,
    signals: &Signals,
    locks: (std::fs::File, ports::PortLock),
) -> Outcome<u8> {
    saker_runtime::telemetry::init();
    if process::find_supervisor(dir).is_some() {
        down::stop_supervisor(dir);
    }
    // Let others in again once all ports are bound; `saker down` must be able to stop us.
    let (dir_again, cluster_again) = (dir.clone(), cluster.clone());
    thread::spawn("wait-serving", move || {
        wait_bound(&cluster_again);
        drop(locks);
        let serves = wait_all(&dir_again, &cluster_again, false).and_then(|()| {
            let _lock = dir_again.lock()?;
            note_uuid(&dir_again, &mut dir_again.load()?)
        });
        match serves {
            Ok(()) => announce(&dir_again, &cluster_again, false, false),
            Err(failure) => crate::complain!("saker: {failure}"),
        }
    })
    .about("thread")?;
    let watched = supervise::watch(dir, signals);
    down::stop_roles(dir, cluster)?;
    watched.map(|()| 0)
}

fn announce(dir: &ClusterDir, cluster: &ClusterLayout, fresh: bool, alone: bool) {
    let made = if fresh { "new cluster" } else { "cluster" };
    let watched = if alone { ", not supervised" } else { "" };
    crate::announce!(
        "{made} {} in {}: coordinator {}, {} MNodes, {} stores{watched}",
        cluster.name,
        dir.path().display(),
        cluster.coordinator,
        cluster.mnode.len(),
        cluster.store.len(),
    );
    if let Some(point) = &cluster.mount {
        crate::announce!("mounted at {}", point.display());
    }
}
