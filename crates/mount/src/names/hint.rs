//! Hints: what a thread is doing whose LOOKUP the kernel sends.
//!
//! LOOKUP says a directory and a name, but not whether the name is on the way to another one or
//! the last, nor what is wanted of the last. With that known, most LOOKUPs need no request to a
//! server (FalconFS, §5, which patches the kernel for it). Here it is found out beside the
//! request, by BPF (feature `bpf`, and clang when it is built): a program at the tracepoint
//! `fuse_request_send` runs in the calling thread before the request can be read, and notes the
//! thread's walk and syscall in memory that is shared with this process (`hint.bpf.c`). Needs
//! root or CAP_BPF and CAP_PERFMON, and a kernel with BTF and the tracepoint (about 6.12).
//!
//! **No hint is always an answer**: the LOOKUP then goes to the server as without hints. There is
//! none for 32-bit programs, for io_uring's workers, for file systems stacked on this one
//! (overlayfs), for a rename of `a/x` to `x`, where the name does not tell whose it is, or of one
//! text by two directories, or when a note was overwritten meanwhile. There is none of
//! [`LookupIntent::Create`], [`LookupIntent::Remove`], [`LookupIntent::RenameSource`] and [`LookupIntent::RenameTarget`] for
//! names of more than about 40 bytes that the kernel does not hold: without a walk, what shows that
//! it is the syscall itself that looks up is the directory's lock, found through the name's place in
//! its dentry, or that the name is part of the kernel's copy of the syscall's path.
//! What a hint says is true as long as the program does not change the path under its own running
//! syscall.
//!
//! Cost of a hint, on a loaded two-core machine with Linux 6.18: to the daemon 0.12 to 0.18 us
//! (0.07 for a miss); to the caller 0.25 to 0.45 us with the kernel's own timing
//! (bpf_stats_enabled) in it.
//!
//! Whoever drives a mount without a kernel has hints of its own ([`Hints`]).

#[cfg(bpf)]
mod bpf;
#[cfg(bpf)]
mod calibrate;
#[cfg(bpf)]
mod notes;
#[cfg(bpf)]
mod path;
#[cfg(bpf)]
mod syscall;

#[cfg(all(test, bpf))]
mod tests;

use std::path::Path;
#[cfg(bpf)]
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use saker_types::Errno;

/// A source of hints.
pub trait Hints: Send + Sync + 'static {
    /// What the kernel is doing that sent this LOOKUP; `None`: that is not known.
    fn of(&self, lookup: Lookup<'_>) -> Option<Hint>;

    /// If this LOOKUP is one of the source's own, by which it learns to read what it sees: the error
    /// to answer it with. Asked before anything else in LOOKUP.
    fn probe(&self, _: Lookup<'_>) -> Option<Errno> {
        None
    }
}

/// What the kernel does with the name that it looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Where in the path the name is.
    pub step: PathStep,
    /// No other name goes before it in the path: the walk begins in the directory of the LOOKUP.
    pub first: bool,
    /// Which of the syscall's paths the name is of; `None`: it may be of either. The only path is
    /// the first.
    pub path: Option<Which>,
    /// The syscall is a rename, and names go before the last one of its other path: that is walked,
    /// too. The kernel walks the first path, then the second, and then looks up their last names.
    pub beside: bool,
    /// The kernel walks for the second time, after ESTALE: answer nothing but the truth. Only of
    /// what is looked up in a walk.
    pub reval: bool,
}

/// One of the paths of a syscall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The only one, or a rename's source.
    First,
    /// A rename's target, or link(2)'s.
    Second,
}

impl Which {
    pub(crate) fn other(self) -> Which {
        match self {
            Which::First => Which::Second,
            Which::Second => Which::First,
        }
    }

    #[cfg(bpf)]
    fn of(path: usize) -> Which {
        if path == 0 { Which::First } else { Which::Second }
    }
}

/// Where in a path a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathStep {
    /// On the way: whatever has this name must be a directory, or a symlink to one.
    Through(Rest),
    /// The last.
    Last(LookupIntent),
}

impl PathStep {
    /// Is nothing looked up after this name, in this path or another one of the syscall?
    pub(crate) fn ends_path(self) -> bool {
        let renames =
            matches!(self, PathStep::Last(LookupIntent::RenameSource | LookupIntent::RenameTarget));
        matches!(self, PathStep::Last(_)) && !renames
    }
}

/// What follows a name on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Names, and nothing that leads back.
    Names,
    /// Only `.` and slashes: the directory itself is what is wanted.
    Dots,
    /// A `..` is among it.
    DotDot,
    /// Names, but the syscall's other path ends in none: the kernel has an error of its own for
    /// that, if both paths lead somewhere.
    BesideDots,
    /// The name is part of a symlink's text, which something unknown may follow.
    InLink,
    /// Too much to be noted.
    Cut,
}

/// What is wanted of the last name of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupIntent {
    /// Its inode, for stat(2), access(2), chdir(2), as the source of link(2) and so on.
    Plain,
    /// To open it, by open(2), creat(2), execve(2), with these flags of open(2) and the kernel's
    /// own mark for execution ([`OpenFlags::from_linux`](saker_client::OpenFlags::from_linux)).
    Open {
        /// As open(2) has them.
        flags: i32,
    },
    /// To make it: mkdir(2), mknod(2), symlink(2), the target of link(2).
    Create,
    /// To remove it, as a directory or as anything else.
    Remove {
        /// As rmdir(2) does it.
        dir: bool,
    },
    /// To give it another name; or it is a rename's target of which the truth must be told: names
    /// change places, slashes follow it, or it has the source's name.
    RenameSource,
    /// To be that name; it may exist.
    RenameTarget,
}

impl LookupIntent {
    /// Will it change what has the name, or the name?
    pub(crate) fn is_change(self) -> bool {
        match self {
            LookupIntent::Open { flags } => flags & libc::O_CREAT != 0,
            LookupIntent::Create | LookupIntent::Remove { .. } | LookupIntent::RenameTarget => true,
            LookupIntent::Plain | LookupIntent::RenameSource => false,
        }
    }
}

/// A LOOKUP: `unique`, `pid` and `nodeid` of its header, and its name.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// The request's.
    pub unique: u64,
    /// The calling thread.
    pub tid: u32,
    /// The directory.
    pub nodeid: u64,
    /// What is looked up in it.
    pub name: &'a [u8],
}

/// Hints of the kernel that this process runs on.
pub(crate) struct KernelHints {
    /// `None`: there are none.
    #[cfg(bpf)]
    source: OnceLock<Option<bpf::Bpf>>,
    /// While the program's notes are being learnt to read.
    #[cfg(bpf)]
    probing: Mutex<Option<calibrate::Probing>>,
}

#[cfg(bpf)]
impl KernelHints {
    /// Gives no hints before [`KernelHints::start`].
    pub(crate) fn new() -> KernelHints {
        KernelHints { source: OnceLock::new(), probing: Mutex::new(None) }
    }

    /// Starts it; returns in one line how, or why there are none. Blocks until other threads have
    /// answered LOOKUPs in `mountpoint` (absolute, without symlinks), so from a thread of its own
    /// once INIT is answered. Only the first call has an effect.
    pub(crate) fn start(&self, mountpoint: &Path) -> String {
        let (source, why) = match self.bpf(mountpoint) {
            Ok(bpf) => (Some(bpf), "hints by BPF".into()),
            Err(why) => (None, format!("no hints: {why}")),
        };
        self.source.get_or_init(|| source);
        why
    }

    fn bpf(&self, mountpoint: &Path) -> Result<bpf::Bpf, String> {
        let program = bpf::Program::load(mountpoint)?;
        let probing = |value| {
            *self.probing.lock().unwrap_or_else(PoisonError::into_inner) = value;
        };
        probing(Some(calibrate::Probing::new(Arc::clone(&program.notes))));
        let walked = calibrate::walk(mountpoint, || {
            self.probing.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|p| p.seen)
        });
        probing(None);
        Ok(bpf::Bpf::new(program, walked?))
    }
}

#[cfg(bpf)]
impl Hints for KernelHints {
    fn of(&self, lookup: Lookup<'_>) -> Option<Hint> {
        self.source.get()?.as_ref()?.hint(lookup)
    }

    fn probe(&self, lookup: Lookup<'_>) -> Option<Errno> {
        if self.source.get().is_some() {
            return None;
        }
        self.probing.lock().unwrap_or_else(PoisonError::into_inner).as_mut()?.answer(lookup)
    }
}

#[cfg(not(bpf))]
impl KernelHints {
    /// Gives none.
    pub(crate) fn new() -> KernelHints {
        KernelHints {}
    }

    /// Says why.
    pub(crate) fn start(&self, _: &Path) -> String {
        "no hints: this program was built without BPF".into()
    }
}

#[cfg(not(bpf))]
impl Hints for KernelHints {
    fn of(&self, _: Lookup<'_>) -> Option<Hint> {
        None
    }
}
