//! Signals as data: a descriptor that becomes readable, and a flag for long commands.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A signal that a daemon acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM or SIGINT: stop in order.
    Stop,
    /// SIGHUP: read the settings again.
    Reload,
}

/// Receives SIGTERM, SIGINT and SIGHUP instead of their default actions.
pub struct Signals(OwnedFd);

impl Signals {
    /// Must be called before the process starts a thread: those would not block the signals.
    pub fn block() -> io::Result<Signals> {
        // SAFETY: `set` is initialised by sigemptyset before it is used; the calls only read it.
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::other("signals cannot be blocked"));
            }
            libc::signalfd(-1, &set, libc::SFD_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd returned a new descriptor that nobody else owns.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits for the next signal.
    pub fn wait(&self) -> io::Result<Signal> {
        // SAFETY: all bytes of signalfd_siginfo may be zero; read writes at most its size.
        let (read, info) = unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            (libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), size), info)
        };
        if read < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(if info.ssi_signo == libc::SIGHUP as u32 { Signal::Reload } else { Signal::Stop })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets a command end quietly when nobody reads its output any more, as in `saker … | head`.
/// Not for servers: a broken connection must not end them.
pub fn end_at_broken_pipe() {
    // SAFETY: restores a default action; no handler is involved.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Lets a long command end in order at the first Ctrl-C; a second one kills it.
pub fn catch_interrupt() {
    // SAFETY: the handler only stores to an atomic, which is async-signal-safe; SA_RESETHAND
    // restores the default action. `action` is initialised field by field from zero.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESETHAND;
        for signal in [libc::SIGINT, libc::SIGTERM] {
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Has Ctrl-C been pressed since [`catch_interrupt`]?
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
