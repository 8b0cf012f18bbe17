//! CPU time of this process and of the servers.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::layout::{ClusterDir, Role};
use crate::{process, procfs};

/// A process whose CPU time is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Its name in the report.
    pub name: String,
    /// Its number.
    pub pid: u32,
}

/// Reads `NAME:PID`.
pub fn parse_pid(text: &str) -> Result<Watched, String> {
    let (name, pid) = text.rsplit_once(':').ok_or("not NAME:PID")?;
    let pid = pid.parse().map_err(|_| format!("{pid} is no process number"))?;
    Ok(Watched { name: name.to_owned(), pid })
}

/// The processes of a cluster's directory, by their pid files.
pub fn of_cluster(dir: &ClusterDir) -> Vec<Watched> {
    let Ok(cluster) = dir.load() else { return Vec::new() };
    let find = |id| {
        let process = process::find_role(dir, &cluster, id)?;
        Some(Watched { name: id.to_string(), pid: process.pid })
    };
    cluster.roles().into_iter().filter_map(find).collect()
}

/// The same without mounts, which take no part when LibFS is measured.
pub fn of_servers(dir: &ClusterDir) -> Vec<Watched> {
    let mut all = of_cluster(dir);
    all.retain(|watched| !watched.name.starts_with(Role::Mount.name()));
    all
}

/// CPU time used so far: this process first, then the watched ones.
pub fn sample(watched: &[Watched]) -> Vec<(String, Duration)> {
    let of = |one: &Watched| {
        let cpu = procfs::stat(one.pid).map_or(Duration::ZERO, |stat| stat.cpu);
        (one.name.clone(), cpu)
    };
    std::iter::once(("client".to_owned(), own())).chain(watched.iter().map(of)).collect()
}

/// CPU time used between two samples, by process.
pub fn used(
    before: Vec<(String, Duration)>,
    after: Vec<(String, Duration)>,
) -> BTreeMap<String, Duration> {
    let pairs = before.into_iter().zip(after);
    pairs.map(|((name, from), (_, to))| (name, to.saturating_sub(from))).collect()
}

/// CPU time of this process, finer than the clock ticks of `/proc`.
fn own() -> Duration {
    let at = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(at.tv_sec as u64, at.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pids_are_parsed() {
        let watched = Watched { name: "a:b".to_owned(), pid: 7 };
        assert_eq!(parse_pid("a:b:7"), Ok(watched));
        assert!(parse_pid("7").is_err() && parse_pid("a:x").is_err());
    }

    #[test]
    fn cpu_time_grows() {
        let me = Watched { name: "me".to_owned(), pid: std::process::id() };
        let before = sample(std::slice::from_ref(&me));
        let mut sum = 0u64;
        while sample(std::slice::from_ref(&me))[1].1 <= before[1].1 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(own() > before[0].1);
    }
}
