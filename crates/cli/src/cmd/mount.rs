//! `saker mount`, `mount.saker` and `saker umount`.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::MountFlags;
use saker_client::{ClientOptions, FOREVER};
use saker_mount::{Mount, MountOptions};
use saker_runtime::{telemetry, thread};

use crate::fail::{Context, Failure, Outcome};
use crate::layout::ClusterDir;
use crate::signals::{Signal, Signals};
use crate::{memory, mountpoint, process, session};

/// Mount a cluster at a directory.
///
/// Returns when the mount works; the process that serves it goes on in the background. Also
/// called as mount.saker, by mount(8) for file systems of type saker in fstab(5):
///   127.0.0.1:7400  /data  saker  defaults,_netdev  0  0
///
/// Options (-o): ro, rw, allow_other (default as root), dev, suid, exec (each also with
/// "no" before it), fsname=TEXT, entry_timeout=S, attr_timeout=S, writeback=S, threads=N,
/// shortcut=auto|off,
/// leases=hot|all|off, local_reads=on|off, http=ADDR:PORT (serves /metrics and /healthz there),
/// transport=auto|uring|dev (how requests come from the kernel; the log says which runs). With entry_timeout the kernel keeps names for that long without asking: changes by
/// others are seen later. The shortcut tells what a LOOKUP is for, so that one request serves a
/// whole path, by BPF (Linux 6.12, root); auto, the default, does without where that does not work,
/// and the log says so. Leases let the kernel keep names of directories while nobody changes them: of
/// those in use all the time, the default, of all, or of none. To rename such a directory takes up
/// to 0.3 s, or up to 1.2 s if it was only read. With local_reads=on data on stores of this machine is
/// read from their files, where the mount may open them. What is written and not synced is written out when
/// its writer pauses, and after writeback seconds (default 5) at the latest.
///
/// An operation waits 60 s for servers that do not answer, then it fails with ETIMEDOUT; with hard (the
/// opposite is soft) it waits for ever. Who waits can be killed.
/// Without "dev" and "suid" device files and set-user-id programs do not work; called by mount(8) as root
/// they do, as on any file system, unless "nodev" and "nosuid" are among the options.
///
/// Exit codes are those of mount(8): 0 done, 1 wrong command line, 2 system error, 32 failed.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The cluster: `host:port[,host:port...]` of coordinators, or a directory of `saker up`.
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    /// Where to mount it.
    #[arg(value_name = "MNT")]
    point: PathBuf,
    /// Options, separated by commas.
    #[arg(short = 'o', value_name = "OPTS", value_delimiter = ',')]
    options: Vec<String>,
    /// Serve in this process, until it is unmounted or gets SIGTERM.
    #[arg(long)]
    foreground: bool,
    /// Where the background process writes its log.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Descriptor that hears whether the mount works.
    #[arg(long, hide = true, value_name = "FD")]
    ready_fd: Option<RawFd>,
}

/// Unmount a Saker file system.
#[derive(clap::Args)]
pub struct UmountArgs {
    /// Where it is mounted.
    #[arg(value_name = "MNT")]
    point: PathBuf,
    /// Take it out of the tree now, also when it is in use.
    #[arg(short, long)]
    lazy: bool,
}

/// What mount(8) calls: `mount.saker SPEC DIR [-sfnv] [-N NS] [-t TYPE] [-o OPTS]`.
#[derive(clap::Parser)]
#[command(name = "mount.saker")]
struct Helper {
    spec: String,
    dir: PathBuf,
    #[arg(short = 'o', value_delimiter = ',')]
    options: Vec<String>,
    /// Only pretend.
    #[arg(short)]
    fake: bool,
    #[arg(short, hide = true)]
    sloppy: bool,
    #[arg(short, hide = true)]
    no_mtab: bool,
    #[arg(short, hide = true)]
    verbose: bool,
    #[arg(short, hide = true)]
    t: Option<String>,
}

/// Exit codes of mount(8).
pub const MOUNT_USAGE: u8 = 1;
const MOUNT_SYSTEM: u8 = 2;
const MOUNT_FAILED: u8 = 32;
/// How long somebody who waits for the mount is kept waiting for the cluster.
const AWAY_MAX: Duration = Duration::from_secs(10);
/// How long the background process may take until the mount works.
const PATIENCE: Duration = Duration::from_secs(90);

/// Runs `saker mount`.
pub fn run(args: &Args) -> Outcome<u8> {
    // Here, too, when another process will serve it: this one tells the user.
    let options = MountOptions::parse(&args.options.join(","))
        .map_err(|why| Failure::new("-o", why.text).with_code(MOUNT_USAGE))?;
    let mounted = if args.foreground { serve(args, options) } else { in_background(args) };
    mounted.map_err(|failure| match failure.code {
        MOUNT_SYSTEM => failure,
        _ => failure.with_code(MOUNT_FAILED),
    })
}

/// Runs as mount.saker.
pub fn run_helper(args: &[OsString]) -> Outcome<u8> {
    let helper = match <Helper as clap::Parser>::try_parse_from(args) {
        Ok(helper) => helper,
        Err(error) => {
            // Nothing can be said when the output is closed.
            let _ = error.print();
            return Ok(if error.use_stderr() { MOUNT_USAGE } else { 0 });
        }
    };
    if helper.fake {
        return Ok(0);
    }
    if helper.options.iter().any(|option| option == "remount") {
        return remount(&helper.dir, &helper.options);
    }
    let (cluster, point, options) = (helper.spec, helper.dir, as_mount_means(helper.options));
    run(&Args { cluster, point, options, foreground: false, log: None, ready_fd: None })
}

/// mount(8) does not pass on what is its default, and what an administrator has written in fstab(5)
/// as that: `dev` and `suid`. Those whom only `user` lets mount have their opposites from it.
fn as_mount_means(options: Vec<String>) -> Vec<String> {
    let defaults = if rustix::process::geteuid().is_root() { &["dev", "suid"][..] } else { &[] };
    defaults.iter().map(|&option| option.to_owned()).chain(options).collect()
}

/// Changes the flags of what is mounted (`mount -o remount,ro`). Its other options, which
/// mount(8) repeats, stay as they are.
fn remount(point: &Path, options: &[String]) -> Outcome<u8> {
    let mut flags = MountFlags::NOATIME;
    for option in options {
        let (flag, on) = match option.as_str() {
            "ro" => (MountFlags::RDONLY, true),
            "rw" => (MountFlags::RDONLY, false),
            "nodev" => (MountFlags::NODEV, true),
            "dev" => (MountFlags::NODEV, false),
            "nosuid" => (MountFlags::NOSUID, true),
            "suid" => (MountFlags::NOSUID, false),
            "noexec" => (MountFlags::NOEXEC, true),
            "exec" => (MountFlags::NOEXEC, false),
            _ => continue,
        };
        flags.set(flag, on);
    }
    rustix::mount::mount_remount(point, flags, c"")
        .map_err(|why| Failure::new(point.display(), why).with_code(MOUNT_FAILED))?;
    Ok(0)
}

/// Runs `saker umount`.
pub fn run_umount(args: &UmountArgs) -> Outcome<u8> {
    let plain = std::path::absolute(&args.point).about(args.point.display())?;
    let point = match mountpoint::is_mounted(&plain) {
        true => plain,
        false => std::fs::canonicalize(&plain).about(plain.display())?,
    };
    if !mountpoint::is_mounted(&point) {
        return Err(Failure::new(point.display(), "no Saker file system is mounted there"));
    }
    saker_mount::unmount(&point, args.lazy).map_err(|why| {
        let busy = why.errno() == saker_types::Errno::EBUSY;
        let hint = if busy { " (fuser -vm shows by whom; -l takes it away)" } else { "" };
        Failure::new("umount", format!("{why}{hint}"))
    })?;
    Ok(0)
}

/// Serves the mount in this process.
fn serve(args: &Args, options: MountOptions) -> Outcome<u8> {
    // Before any thread is started, so that all of them leave the signals to us.
    let signals = Signals::block().about("signals")?;
    telemetry::init();
    // SAFETY: the parent passes a descriptor for this process alone, and nobody else uses it.
    let ready = args.ready_fd.map(|fd| unsafe { std::fs::File::from_raw_fd(fd) });
    let mount = match mount(args, options) {
        Ok(mount) => mount,
        Err(failure) => {
            tell(ready, &failure.to_string());
            return Err(failure);
        }
    };
    let handle = mount.handle();
    memory::give_back();
    let wait = move || {
        while !matches!(signals.wait(), Ok(Signal::Stop) | Err(_)) {}
        if let Err(error) = handle.unmount() {
            tracing::error!("{error}");
        }
    };
    thread::spawn("signals", wait).about("thread")?;
    mount.run(move || tell(ready, READY)).map(|()| 0).about(args.point.display())
}

const READY: &str = "ready";

fn tell(ready: Option<std::fs::File>, text: &str) {
    if let Some(mut ready) = ready {
        // Whoever started us may be gone: the mount works all the same.
        let _ = ready.write_all(text.as_bytes());
    }
}

fn mount(args: &Args, mut options: MountOptions) -> Outcome<Mount> {
    let spec = spec(&args.cluster)?;
    options.fsname.get_or_insert(spec);
    options.http = options.http.or_else(|| http_of_up(args));
    // Nobody waits for a mount that `saker up` or systemd starts together with its cluster.
    let away = if args.ready_fd.is_some() { AWAY_MAX } else { PATIENCE };
    let mut client = ClientOptions {
        name: format!("the mount at {}", args.point.display()),
        local_reads: options.local_reads,
        write_back: options.writeback,
        journal_dir: options.journal_dir.clone(),
        ..ClientOptions::default()
    };
    if options.hard {
        client.timeout = FOREVER;
    }
    super::serve::raise_file_limit();
    let session = session::connect_within(&args.cluster, client, away)?;
    session.fs.block_on(session.fs.resume_subtrees());
    Mount::new(session.fs, &args.point, options)
        .map_err(|why| mountpoint::explain(&args.point, &why))
}

/// Where the mount of `saker up` serves its metrics, if this is it. Not an argument of its process:
/// that is recognised by its arguments, also where it was started before the port was known.
fn http_of_up(args: &Args) -> Option<SocketAddr> {
    let saker_client::ClusterAddr::Dir(dir) = session::resolve(&args.cluster).ok()? else {
        return None;
    };
    let cluster = ClusterDir::new(&dir).ok()?.load().ok()?;
    cluster.mount_http.filter(|_| cluster.mount.as_ref() == Some(&args.point))
}

/// The source that mount(8) shows. Commands find the cluster of a path by it, and `mount -a` sees
/// by it that an entry of fstab is mounted already.
fn spec(cluster: &str) -> Outcome<String> {
    match session::resolve(cluster)? {
        saker_client::ClusterAddr::Dir(dir) => Ok(dir.display().to_string()),
        saker_client::ClusterAddr::Coordinators(_) => Ok(cluster.to_owned()),
    }
}

/// Starts a process that serves the mount, and waits until it works.
fn in_background(args: &Args) -> Outcome<u8> {
    let system = |failure: Failure| failure.with_code(MOUNT_SYSTEM);
    let point = std::fs::canonicalize(&args.point).about(args.point.display())?;
    let cluster = spec(&args.cluster)?;
    let (ours, theirs) = pipe().about("pipe").map_err(system)?;
    let mut command: Vec<OsString> = vec!["mount".into(), cluster.into(), point.clone().into()];
    if !args.options.is_empty() {
        command.extend(["-o".into(), args.options.join(",").into()]);
    }
    command.extend(["--foreground".into(), "--ready-fd".into()]);
    command.push(theirs.as_raw_fd().to_string().into());
    let log = args.log.as_deref().unwrap_or(Path::new("/dev/null"));
    let child = process::spawn_daemon(&command, log, Some(&theirs)).map_err(system)?;
    drop(theirs);
    let mut said = String::new();
    std::fs::File::from(ours).read_to_string(&mut said).about("pipe").map_err(system)?;
    if said != READY {
        let nothing = format!("process {} ended without a word", child.id());
        let why = if said.is_empty() { nothing } else { said };
        return Err(Failure::new("mount", why));
    }
    match mountpoint::wait_mounted(&point, PATIENCE) {
        true => Ok(0),
        false => Err(Failure::new(point.display(), "mounted, but it does not answer")),
    }
}

/// A pipe whose writing end survives exec in the one child that is given it.
fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}
