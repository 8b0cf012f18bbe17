//! From a command line to a connected client: which cluster, which path, who asks.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use saker_client::saker_types::wire::{At, Entry};
use saker_client::{Caller, ClientOptions, ClusterAddr, Fs, Groups};
use saker_runtime::time;

use crate::fail::{Context, Failure, Outcome};
use crate::wire::Wire;
use crate::{layout, mountpoint};

/// The option of every command that talks to a cluster.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ClusterArg {
    /// The cluster: `host:port[,host:port...]` of coordinators, or a directory that `saker up` made
    /// (default: that of the mount a PATH lies in, then $SAKER_CLUSTER, then ./.saker).
    #[arg(long, value_name = "CLUSTER", global = true)]
    pub cluster: Option<String>,
}

impl ClusterArg {
    /// The cluster to use when no path says which.
    pub fn name(&self) -> String {
        self.explicit().unwrap_or_else(|| ".saker".to_owned())
    }

    fn explicit(&self) -> Option<String> {
        let environment = || std::env::var("SAKER_CLUSTER").ok().filter(|name| !name.is_empty());
        self.cluster.clone().or_else(environment)
    }
}

/// A connected client and who uses it.
pub struct CliSession {
    /// The client.
    pub fs: Fs,
    /// This process's user.
    pub who: Caller,
}

/// A path as the user wrote it, and within the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPath {
    /// For messages.
    pub shown: PathBuf,
    /// Absolute, within the cluster.
    pub path: Vec<u8>,
}

impl ClusterPath {
    /// The last component; empty for the root and for `..`.
    pub fn file_name(&self) -> &[u8] {
        Path::new(OsStr::from_bytes(&self.path)).file_name().map_or(b"", OsStr::as_bytes)
    }

    /// The same with one more component.
    pub fn join(&self, name: &[u8]) -> ClusterPath {
        let mut path = self.path.clone();
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        ClusterPath { shown: self.shown.join(OsStr::from_bytes(name)), path }
    }
}

impl std::fmt::Display for ClusterPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.shown.display())
    }
}

/// Connects to the cluster of some paths; those below a Saker mount are translated.
pub fn open(cluster: &ClusterArg, paths: &[PathBuf]) -> Outcome<(CliSession, Vec<ClusterPath>)> {
    let (name, paths) = translate(cluster, paths)?;
    Ok((connect(&name, ClientOptions::default())?, paths))
}

/// The cluster of some paths, and where they are in it.
pub fn translate(cluster: &ClusterArg, paths: &[PathBuf]) -> Outcome<(String, Vec<ClusterPath>)> {
    let mut source: Option<String> = None;
    let mut translated = Vec::with_capacity(paths.len());
    for shown in paths {
        let path = match mountpoint::inside(shown)? {
            None => Path::new("/").join(shown),
            Some(inside) => {
                let of = inside.source.to_string_lossy().into_owned();
                if source.get_or_insert_with(|| of.clone()) != &of {
                    return Err(Failure::usage(shown.display(), "it lies in another cluster"));
                }
                inside.path
            }
        };
        let path = path.into_os_string().as_bytes().to_vec();
        translated.push(ClusterPath { shown: shown.clone(), path });
    }
    let from_mount = source.filter(|name| ClusterAddr::parse(name).is_ok());
    let name = cluster.cluster.clone().or(from_mount).unwrap_or_else(|| cluster.name());
    Ok((name, translated))
}

/// Connects to a cluster by its name on the command line.
pub fn connect(name: &str, options: ClientOptions) -> Outcome<CliSession> {
    connect_within(name, options, AWAY_MAX)
}

/// The same, for a cluster whose coordinator may be away for so long.
pub fn connect_within(name: &str, options: ClientOptions, away: Duration) -> Outcome<CliSession> {
    let addr = resolve(name)?;
    let umask = umask();
    reach(name, &addr, away)?;
    let fs = Fs::connect(&addr, options).about(name)?;
    Ok(CliSession { fs, who: Caller { umask, ..this_user()? } })
}

/// How long a coordinator may be away for commands, as while it is started again.
const AWAY_MAX: Duration = Duration::from_secs(5);

/// Finds out soon whether a coordinator answers. The client itself would wait much longer, which
/// is right for programs in the middle of their work, and wrong for a command line.
fn reach(name: &str, addr: &ClusterAddr, away: Duration) -> Outcome {
    let coordinators = coordinators(addr)?;
    let wire = Wire::new()?;
    let deadline = time::now() + away;
    loop {
        match wire.map(&coordinators, AWAY_MAX) {
            Ok(_) => return Ok(()),
            Err(why) if time::now() >= deadline => return Err(Failure::new(name, why)),
            Err(_) => time::sleep(Duration::from_millis(50)),
        }
    }
}

/// Where the coordinators of a cluster listen.
pub fn coordinators(addr: &ClusterAddr) -> Outcome<Vec<SocketAddr>> {
    match addr {
        ClusterAddr::Coordinators(addrs) => Ok(addrs.clone()),
        ClusterAddr::Dir(dir) => Ok(vec![layout::ClusterDir::new(dir)?.load()?.coordinator]),
    }
}

/// Where a cluster is.
pub fn resolve(name: &str) -> Outcome<ClusterAddr> {
    let path = Path::new(name);
    let names_a_path = name.contains('/') || name.starts_with('.') || !name.contains(':');
    if path.is_dir() || names_a_path {
        let dir = layout::ClusterDir::new(path)?;
        // Also finds out whether it is one, and of a format that we know.
        dir.load()?;
        return Ok(ClusterAddr::Dir(dir.path().to_owned()));
    }
    ClusterAddr::parse(name).about(name)
}

fn this_user() -> Outcome<Caller> {
    let groups = rustix::process::getgroups().about("groups of this process")?;
    let groups: Arc<[u32]> = groups.into_iter().map(|gid| gid.as_raw()).collect();
    Ok(Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: Groups::Known(groups),
        ..Caller::root()
    })
}

/// The umask can only be read by setting it: called before any thread is started.
fn umask() -> u32 {
    let old = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(old);
    old.bits()
}

impl CliSession {
    /// What is at a path; an error if there is nothing.
    pub fn find(&self, path: &ClusterPath, follow_last: bool) -> Outcome<(At, Entry)> {
        let (at, entry) = self.look(path, follow_last)?;
        let missing = || Failure::new(path, saker_types::Errno::ENOENT);
        Ok((at, entry.ok_or_else(missing)?))
    }

    /// A path, and what is there if anything is.
    pub fn look(&self, path: &ClusterPath, follow_last: bool) -> Outcome<(At, Option<Entry>)> {
        let resolved = self.fs.resolve(&self.who, &path.path, follow_last);
        let resolved = self.fs.block_on(resolved).about(path)?;
        Ok((resolved.at, resolved.entry))
    }

    /// Runs one operation to its end; an error is about `path`.
    pub fn run<T>(
        &self,
        path: &ClusterPath,
        operation: impl Future<Output = saker_types::Result<T>>,
    ) -> Outcome<T> {
        self.fs.block_on(operation).about(path)
    }
}

/// Does something for each item, tells of each failure, and fails at the end if any did.
pub fn each<T>(items: impl IntoIterator<Item = T>, mut f: impl FnMut(T) -> Outcome) -> Outcome<u8> {
    let mut code = 0;
    for item in items {
        if let Err(failure) = f(item) {
            crate::complain!("saker: {failure}");
            code = failure.code;
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_told_from_directories() {
        let addr = |name: &str| resolve(name).map_err(|failure| failure.to_string());
        assert_eq!(
            addr("127.0.0.1:7400"),
            Ok(ClusterAddr::Coordinators(vec!["127.0.0.1:7400".parse().unwrap()]))
        );
        for missing in ["./nowhere", "nowhere", "/no/where"] {
            let error = addr(missing).unwrap_err();
            assert!(error.contains("not a Saker directory"), "{error}");
        }
    }

    #[test]
    fn paths_are_joined() {
        let root = ClusterPath { shown: "/mnt".into(), path: b"/".to_vec() };
        let file = root.join(b"a").join(b"b");
        assert_eq!(file.path, b"/a/b");
        assert_eq!((file.to_string().as_str(), file.file_name()), ("/mnt/a/b", &b"b"[..]));
        assert_eq!(root.file_name(), b"");
    }
}
