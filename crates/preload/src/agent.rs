//! The connection to the node's agent.
//!
//! One for each process, made at first need, on a high descriptor that programs which close
//! everything leave alone.

use std::collections::BTreeMap;
use std::ffi::{OsStr, c_int};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use saker_agent_api::{Local, OutputOp, OutputRequest, Reply, SOCKET};

use crate::config::config;
use crate::datasets::Node;
use crate::sys;

/// Connections take a descriptor from here on, if there may be so many.
const FD_MIN: c_int = 900;
/// An agent that works takes a connection and says hello within this time.
const HELLO_MAX: Duration = Duration::from_secs(10);
/// It may have to fetch a large file from far away before it answers.
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// An agent that did not answer in time is not asked again for so long.
const PAUSE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Agent {
    local: Option<Local>,
    /// It did not answer then.
    silent: Option<Instant>,
    /// Of each file: descriptors that lead to it, and how often the agent was asked for it.
    open: BTreeMap<u64, (u32, u32)>,
}

static AGENT: AtomicPtr<Mutex<Agent>> = AtomicPtr::new(std::ptr::null_mut());
static FD: AtomicI32 = AtomicI32::new(-1);

/// Errors of a connection to an agent that has ended.
const IS_GONE: [c_int; 3] = [libc::EPIPE, libc::ECONNRESET, libc::EBADF];

/// Why the agent gave nothing.
pub enum Refused {
    /// There is none.
    Unreachable,
    /// It says so: an error number.
    Said(c_int),
}

/// The connection's descriptor; -1: there is none.
pub fn fd() -> c_int {
    FD.load(Ordering::Acquire)
}

fn agent() -> MutexGuard<'static, Agent> {
    let mut known = AGENT.load(Ordering::Acquire);
    if known.is_null() {
        let new = Box::into_raw(Box::default());
        let null = std::ptr::null_mut();
        let set = AGENT.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire);
        known = set.map_or_else(|other| other, |_| new);
    }
    // SAFETY: never freed.
    unsafe { &*known }.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn connect() -> io::Result<Local> {
    let (local, fd) = dial()?;
    FD.store(fd, Ordering::Release);
    Ok(local)
}

/// A new connection, and its descriptor.
fn dial() -> io::Result<(Local, c_int)> {
    let dir = Path::new(OsStr::from_bytes(&config().agent_dir));
    let low = connect_in_time(&dir.join(SOCKET))?;
    let high = sys::fcntl(low.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FD_MIN);
    let stream = match high {
        // SAFETY: a new descriptor.
        Ok(high) => unsafe { UnixStream::from_raw_fd(high) },
        Err(_) => low,
    };
    let fd = stream.as_raw_fd();
    stream.set_read_timeout(Some(HELLO_MAX))?;
    let local = Local::greet(stream)?;
    // SAFETY: the stream's own descriptor, which this does not close. A copy would take one more.
    let settings = ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(fd) });
    settings.set_read_timeout(Some(ANSWER_MAX))?;
    Ok((local, fd))
}

/// Connects to a socket; std has no such call with a limit. One for writing holds for connect(2),
/// too (socket(7)), which waits while many others do.
fn connect_in_time(path: &Path) -> io::Result<UnixStream> {
    // SAFETY: touches no memory.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor.
    let stream = unsafe { UnixStream::from_raw_fd(fd) };
    stream.set_write_timeout(Some(HELLO_MAX))?;
    // SAFETY: plain data, of which zeros are valid.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as _;
    let path = path.as_os_str().as_bytes();
    if path.len() >= addr.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, byte) in addr.sun_path.iter_mut().zip(path) {
        *to = *byte as _;
    }
    let len = size_of_val(&addr) as libc::socklen_t;
    // SAFETY: the address is as long as is said.
    match unsafe { libc::connect(fd, (&raw const addr).cast(), len) } {
        0 => Ok(stream),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What an error number means that an agent sends: one that tells programs to try again, or none
/// that Linux has, must not get to them.
fn refusal(errno: c_int) -> Refused {
    const ERRNO_MAX: c_int = 4095;
    let is_fit = (1..=ERRNO_MAX).contains(&errno) && ![libc::EAGAIN, libc::EINTR].contains(&errno);
    Refused::Said(if is_fit { errno } else { libc::EIO })
}

#[allow(clippy::disallowed_methods, reason = "in programs of users")]
fn now() -> Instant {
    Instant::now()
}

/// The time for an answer is over.
fn is_late(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

impl Agent {
    fn hang_up(&mut self) {
        FD.store(-1, Ordering::Release);
        self.local = None;
    }

    /// Asks, and once more by a new connection if the agent is another one by now.
    fn ask<T>(&mut self, mut ask: impl FnMut(&mut Local) -> io::Result<T>) -> Result<T, Refused> {
        if self.silent.is_some_and(|since| since.elapsed() < PAUSE) {
            return Err(Refused::Unreachable);
        }
        self.silent = None;
        for _ in 0..2 {
            if self.local.is_none() {
                self.local = Some(connect().map_err(|error| {
                    self.silent = is_late(&error).then(now);
                    Refused::Unreachable
                })?);
            }
            let Some(local) = &mut self.local else { break };
            let error = match ask(local) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match error.raw_os_error() {
                _ if is_late(&error) => {
                    // An answer that comes now would be taken for that to the next question.
                    self.hang_up();
                    self.silent = Some(now());
                    return Err(Refused::Unreachable);
                }
                Some(errno) if !IS_GONE.contains(&errno) => {
                    return Err(refusal(errno));
                }
                _ => self.hang_up(),
            }
        }
        Err(Refused::Unreachable)
    }
}

/// A file's data, whole, as a sealed memfd.
///
/// # Errors
/// What the agent says.
pub fn open(node: Node) -> Result<c_int, Refused> {
    let Some(dataset) = node.dataset() else { return Err(Refused::Said(libc::EIO)) };
    let mut agent = agent();
    let fd = quietly(|| agent.ask(|local| local.open(&dataset.name, node.ino())))?;
    let open = agent.open.entry(node.to_bits()).or_default();
    *open = (open.0 + 1, open.1 + 1);
    Ok(fd.into_raw_fd())
}

/// Asks about an output file, by a connection of its own, for as long as it takes.
///
/// # Errors
/// What the agent says.
pub fn output(request: OutputRequest) -> Result<(Reply, Option<OwnedFd>), Refused> {
    if !config().trusts_agent_dir() {
        return Err(Refused::Unreachable);
    }
    let asked = quietly(|| dial().map(|(mut local, _)| local.output(request)));
    match asked.map_err(|_| Refused::Unreachable)? {
        Ok(answer) => Ok(answer),
        Err(error) => match error.raw_os_error() {
            Some(errno) if !is_late(&error) && !IS_GONE.contains(&errno) => Err(refusal(errno)),
            _ => Err(Refused::Unreachable),
        },
    }
}

fn pause(ns: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns };
    // SAFETY: a valid time; what is left of it is not asked for.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}

/// An output file is finished. An agent that is being started again is waited for. `is_closed`: so
/// is, for a short time, whoever else has the file open. That may be a child of another thread,
/// which has not started its program yet.
///
/// # Errors
/// An error number.
pub fn commit(token: u64, is_closed: bool) -> sys::Result<()> {
    const AGENT_NS: i64 = 100_000_000;
    const WRITER_NS: i64 = 4_000_000;
    const TRIES: u32 = 50;
    const WRITER_TRIES: u32 = 25;
    let mut waited = 0;
    let op = Some(OutputOp::Commit(token));
    for _ in 0..TRIES {
        match output(OutputRequest { op: op.clone(), ..OutputRequest::default() }) {
            Ok((reply, _)) if reply.token != 0 && is_closed && waited < WRITER_TRIES => {
                waited += 1;
                pause(WRITER_NS);
            }
            Ok(_) => return Ok(()),
            Err(Refused::Said(errno)) => return Err(errno),
            Err(Refused::Unreachable) => pause(AGENT_NS),
        }
    }
    Err(libc::EIO)
}

/// Another descriptor leads to a file that the agent gave.
pub fn add(node: Node) {
    if let Some((fds, _)) = agent().open.get_mut(&node.to_bits()) {
        *fds += 1;
    }
}

/// A descriptor of a file that the agent gave is closed. It is told when it was the last.
pub fn close(node: Node) {
    let mut agent = agent();
    let Some((fds, asked)) = agent.open.get_mut(&node.to_bits()) else { return };
    *fds -= 1;
    if *fds > 0 {
        return;
    }
    let times = *asked;
    agent.open.remove(&node.to_bits());
    let Agent { local: Some(local), .. } = &mut *agent else { return };
    let Some(dataset) = node.dataset() else { return };
    let told = quietly(|| (0..times).try_for_each(|_| local.close(&dataset.name, node.ino())));
    if told.is_err() {
        agent.hang_up();
    }
}

/// The program wants the connection's descriptor for itself.
pub fn give_up_fd() {
    agent().hang_up();
}

/// In a child: the connection is the parent's, and perhaps locked.
pub fn after_fork() {
    AGENT.store(std::ptr::null_mut(), Ordering::Release);
    let fd = FD.swap(-1, Ordering::AcqRel);
    if fd >= 0 {
        // It is the child's copy.
        let _ = sys::close(fd);
    }
}

/// Does something without a signal if the other side of a socket is gone.
fn quietly<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals are plain data, and all places are valid.
    unsafe {
        let (mut pipe, mut before, mut pending) =
            (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::sigpending(&mut pending);
        libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before);
        let done = act();
        if libc::sigismember(&pending, libc::SIGPIPE) == 0 {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&pipe, std::ptr::null_mut(), &at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        done
    }
}

#[cfg(test)]
mod tests {
    use super::{Refused, refusal};

    #[test]
    fn programs_get_error_numbers_of_linux() {
        let said = |errno| match refusal(errno) {
            Refused::Said(errno) => errno,
            Refused::Unreachable => 0,
        };
        for (errno, wanted) in [
            (libc::ESTALE, libc::ESTALE),
            (0, libc::EIO),
            (-5, libc::EIO),
            (1_234_567, libc::EIO),
            (libc::EAGAIN, libc::EIO),
        ] {
            assert_eq!(said(errno), wanted, "{errno}");
        }
    }
}
