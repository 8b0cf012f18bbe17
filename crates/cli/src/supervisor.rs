//! The supervisor: starts what does not run, and starts again what dies.
//!
//! It holds nothing that matters: when it is killed the roles live on, and the next supervisor of
//! the same directory adopts them (it finds them by pid file or by their arguments).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use saker_runtime::time::{self, Time};
use serde::{Deserialize, Serialize};

use crate::fail::{Context, Failure, Outcome};
use crate::layout::{ClusterDir, ClusterLayout, Role, RoleId, write_file};
use crate::mountpoint;
use crate::process::{self, Process};
use crate::signals::{Signal, Signals};

/// A process that lived at least this long is started again at once.
const STEADY: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// What the supervisor tells others, in `D/run/state.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SupervisorState {
    /// By the role's name, as `mnode-0`.
    pub roles: BTreeMap<String, RoleState>,
}

/// What is known of one role.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RoleState {
    /// Its process; absent while there is none.
    pub pid: Option<u32>,
    /// How often it was started again since the supervisor came.
    pub restarts: u64,
    /// How it ended last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<String>,
}

/// Reads what the supervisor wrote; nothing when there is no supervisor.
pub fn read_state(dir: &ClusterDir) -> SupervisorState {
    let text = std::fs::read(dir.state_file()).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// When to start a role again.
#[derive(Debug)]
struct Backoff {
    delay: Duration,
}

impl Backoff {
    /// How long to wait after a process died that had lived for `lived`.
    fn after_death(&mut self, lived: Duration) -> Duration {
        if lived >= STEADY {
            self.delay = Duration::ZERO;
        }
        let wait = self.delay;
        self.delay = (self.delay * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
        wait
    }
}

/// A role under watch.
struct Watched {
    id: RoleId,
    running: Option<Running>,
    start_at: Option<Time>,
    backoff: Backoff,
    state: RoleState,
}

struct Running {
    process: Process,
    since: Time,
    /// Readable when the process ends, whosever child it is.
    pidfd: OwnedFd,
    /// Set if it is our child and must be reaped.
    child: Option<Child>,
}

/// Keeps the processes of one directory running.
pub struct Supervisor {
    dir: ClusterDir,
    cluster: ClusterLayout,
    watched: Vec<Watched>,
}

impl Supervisor {
    /// Adopts what runs; what does not is to be started.
    pub fn new(dir: ClusterDir) -> Outcome<Supervisor> {
        let cluster = dir.load()?;
        let mut supervisor = Supervisor { dir, cluster, watched: Vec::new() };
        supervisor.watch_all()?;
        Ok(supervisor)
    }

    /// Works until it is told to stop; the roles then live on.
    pub fn run(&mut self, signals: &Signals) -> Outcome {
        loop {
            self.start_due();
            self.publish();
            match self.wait(signals).about("supervisor")? {
                Some(Signal::Stop) => return Ok(()),
                Some(Signal::Reload) => self.reload(),
                None => {}
            }
            if !self.dir.exists() {
                let why = "it is gone; the processes of this cluster are no longer watched";
                return Err(Failure::new(self.dir.cluster_file().display(), why));
            }
            self.note_deaths();
        }
    }

    /// Reads `cluster.toml` again: a mount may have come.
    fn reload(&mut self) {
        let read = self.dir.load().and_then(|cluster| {
            self.cluster = cluster;
            self.watch_all()
        });
        if let Err(failure) = read {
            tracing::error!("{failure}");
        }
        // What was stopped on purpose is wanted again: whoever asks for this called `saker up`.
        for idle in self.watched.iter_mut().filter(|watched| watched.running.is_none()) {
            idle.start_at = Some(Time::ZERO);
        }
    }

    fn watch_all(&mut self) -> Outcome {
        for id in self.cluster.roles() {
            if self.watched.iter().any(|watched| watched.id == id) {
                continue;
            }
            let (start_at, backoff) = (Some(Time::ZERO), Backoff { delay: Duration::ZERO });
            let mut watched =
                Watched { id, running: None, start_at, backoff, state: RoleState::default() };
            if let Some(process) = process::find_role(&self.dir, &self.cluster, id) {
                process::note_pid(&self.dir.pid_file(id), &process);
                tracing::info!("{id}: adopted process {}", process.pid);
                watched.began(process, None);
            }
            self.watched.push(watched);
        }
        Ok(())
    }

    fn start_due(&mut self) {
        let now = time::now();
        for watched in &mut self.watched {
            if watched.start_at.is_none_or(|at| at > now) {
                continue;
            }
            if let Err(failure) = start(&self.dir, &self.cluster, watched) {
                tracing::error!("{failure}");
                watched.state.last_exit = Some(failure.to_string());
                watched.retry(Duration::ZERO);
            }
        }
    }

    /// Sleeps until a process ends, a signal comes, or something is to be started.
    fn wait(&self, signals: &Signals) -> std::io::Result<Option<Signal>> {
        let due = self.watched.iter().filter_map(|watched| watched.start_at).min();
        let timeout = due.map(|at| timespec(at - time::now()));
        let pidfds = self.watched.iter().filter_map(|watched| watched.running.as_ref());
        let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
        fds.extend(pidfds.map(|running| PollFd::from_borrowed_fd(running.pidfd.as_fd(), IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let signalled = fds.first().is_some_and(|fd| fd.revents().contains(IN));
        if signalled { signals.wait().map(Some) } else { Ok(None) }
    }

    fn note_deaths(&mut self) {
        let mounted = self.cluster.mount.as_deref().is_some_and(mountpoint::is_mounted);
        for watched in &mut self.watched {
            let Some(mut running) = watched.running.take_if(|r| !r.process.alive()) else {
                continue;
            };
            let (id, pid, how) = (watched.id, running.process.pid, running.how_it_ended());
            process::remove_pid_file(&self.dir.pid_file(id));
            watched.state.pid = None;
            // A killed mount is still in the kernel's table; else somebody unmounted it.
            let unmounted = !mounted && how.in_order.unwrap_or(true);
            if id.role == Role::Mount && unmounted {
                tracing::info!("{id}: was unmounted; `saker up` mounts it again");
            } else {
                tracing::warn!("{id}: process {pid} ended ({}); starting it again", how.text);
                watched.state.restarts += 1;
                watched.retry(time::now() - running.since);
            }
            watched.state.last_exit = Some(how.text);
        }
    }

    fn publish(&self) {
        let states = self.watched.iter().map(|w| (w.id.to_string(), w.state.clone()));
        let state = SupervisorState { roles: states.collect() };
        let text = serde_json::to_vec_pretty(&state).unwrap_or_default();
        if let Err(failure) = write_file(&self.dir.state_file(), &text) {
            tracing::warn!("{failure}");
        }
    }
}

const IN: PollFlags = PollFlags::IN;

fn timespec(wait: Duration) -> Timespec {
    // Rounded up, so that what is due is due when we wake.
    let wait = wait + Duration::from_millis(1);
    Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) }
}

fn start(dir: &ClusterDir, cluster: &ClusterLayout, watched: &mut Watched) -> Outcome {
    let (child, process) = process::start_role(dir, cluster, watched.id)?;
    tracing::info!("{}: started process {}", watched.id, process.pid);
    watched.began(process, Some(child));
    Ok(())
}

/// How a process ended.
struct Ending {
    text: String,
    /// Exit code 0; unknown of a process that is not our child.
    in_order: Option<bool>,
}

impl Running {
    fn how_it_ended(&mut self) -> Ending {
        match self.child.as_mut().map(Child::wait) {
            Some(Ok(status)) => {
                Ending { text: status.to_string(), in_order: Some(status.success()) }
            }
            Some(Err(_)) | None => {
                Ending { text: "not our child: how is unknown".to_owned(), in_order: None }
            }
        }
    }
}

impl Watched {
    fn began(&mut self, process: Process, child: Option<Child>) {
        let pidfd = Pid::from_raw(process.pid as i32)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            // A pid could have changed hands just before; a descriptor cannot.
            .filter(|_| process.alive());
        let Some(pidfd) = pidfd else {
            // It is gone again already; a child is reaped so that no zombie stays.
            self.state.last_exit = child.and_then(reap);
            self.retry(Duration::ZERO);
            return;
        };
        self.state.pid = Some(process.pid);
        self.running = Some(Running { process, since: time::now(), pidfd, child });
        self.start_at = None;
    }

    fn retry(&mut self, lived: Duration) {
        self.start_at = Some(time::now() + self.backoff.after_death(lived));
    }
}

fn reap(mut child: Child) -> Option<String> {
    child.wait().ok().map(|status| status.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rapid_deaths_are_backed_off() {
        let mut backoff = Backoff { delay: Duration::ZERO };
        let waits: Vec<u128> =
            (0..9).map(|_| backoff.after_death(Duration::ZERO).as_millis()).collect();
        assert_eq!(waits, [0, 50, 100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(backoff.after_death(STEADY), Duration::ZERO);
        assert_eq!(backoff.after_death(Duration::ZERO), BACKOFF_MIN);
    }
}
