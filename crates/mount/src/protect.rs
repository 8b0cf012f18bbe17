//! `fs.protected_symlinks`, `fs.protected_regular` and `fs.protected_fifos` (proc_sys_fs(5)).
//!
//! In a sticky directory that others may write to, a link, or a file that is opened with O_CREAT, may be
//! what somebody has put there for others to stumble over. The kernel checks for that by the sticky bit,
//! which it hides from itself where a FUSE file system judges permissions (`fuse_change_attributes_common`
//! of Linux). So it is done here, by the kernel's rules (`may_follow_link`, `may_create_in_sticky`): when a
//! name is looked up, or when a link is read that was just looked up. What a thread is about to do there
//! its syscall tells, from /proc; that is read only if the sysctl is on and all else is so.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;
use saker_fuse::Request;
use saker_runtime::time;
use saker_types::wire::{Entry, StickyDir};
use saker_types::{Errno, FileKind, Result};

use crate::names::hint::{Hint, PathStep};
use crate::names::nodes::FuseNodeId;
use crate::service::MountService;

/// Links that threads may not follow, at most; there is one for each thread that has come to one.
const LINKS_MAX: usize = 1 << 16;
/// How often it is looked at once what a thread does that is about to sleep.
const LOOKS: usize = 20;
/// Between further looks: it waits for a CPU.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// A thread that has not slept for so long is taken to do what is protected against.
const LOOKS_END: Duration = Duration::from_secs(1);
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;

/// Links that threads have looked up, and may read but not follow.
#[derive(Default)]
pub(crate) struct ProtectedLinks(Mutex<FxHashMap<u32, FuseNodeId>>);

impl ProtectedLinks {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<u32, FuseNodeId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, tid: u32, node: FuseNodeId) {
        let mut links = self.lock();
        if links.len() >= LINKS_MAX {
            // Left by threads that did something else, nearly all of them.
            links.clear();
        }
        links.insert(tid, node);
    }

    fn forget(&self, tid: u32) {
        let mut links = self.lock();
        if !links.is_empty() {
            links.remove(&tid);
        }
    }

    fn take(&self, tid: u32, node: FuseNodeId) -> bool {
        let mut links = self.lock();
        !links.is_empty() && links.remove(&tid) == Some(node)
    }
}

impl MountService {
    /// A name was looked up. Of a file that is about to be opened with O_CREAT: may it be?
    ///
    /// # Errors
    /// EACCES.
    pub(crate) async fn may_be_opened(&self, request: &Request, entry: &Entry) -> Result<()> {
        let (tid, uid) = (request.header.pid, request.header.uid);
        let Some(dir) = &entry.sticky else { return Ok(()) };
        let what = match entry.attr.kind() {
            FileKind::Regular => "regular",
            FileKind::Fifo => "fifos",
            _ => return Ok(()),
        };
        let is_foreign = entry.attr.uid != uid && entry.attr.uid != dir.uid;
        if !is_foreign || !guards_open(level(what), dir) {
            return Ok(());
        }
        match self.doing(tid).await {
            Some(Doing::ReadsLink | Doing::Other) => Ok(()),
            Some(Doing::Creates) | None => Err(Errno::EACCES.into()),
        }
    }

    /// The same of a link, which the kernel holds as `node` now: whether it is followed is not known yet.
    pub(crate) fn note_link(
        &self,
        request: &Request,
        entry: &Entry,
        node: FuseNodeId,
        hint: Option<Hint>,
    ) {
        let (tid, uid) = (request.header.pid, request.header.uid);
        // The kernel does not protect links on the way to something.
        let is_last = hint.is_none_or(|hint| matches!(hint.step, PathStep::Last(_)));
        let is_link = entry.attr.kind() == FileKind::Symlink;
        match &entry.sticky {
            Some(dir)
                if is_link
                    && is_last
                    && guards_link(dir, entry.attr.uid, uid)
                    && level("symlinks") > 0 =>
            {
                self.links.add(tid, node);
            }
            // What it had come to before it has not read.
            _ => self.links.forget(tid),
        }
    }

    /// A link is read: because it is followed?
    ///
    /// # Errors
    /// EACCES if it may not be.
    pub(crate) async fn may_follow(&self, request: &Request) -> Result<()> {
        let (tid, node) = (request.header.pid, request.header.nodeid);
        if self.links.take(tid, node) && self.doing(tid).await != Some(Doing::ReadsLink) {
            return Err(Errno::EACCES.into());
        }
        Ok(())
    }

    /// What a thread does whose request this is; `None` if that cannot be seen because it does not
    /// come to sleep.
    async fn doing(&self, tid: u32) -> Option<Doing> {
        for _ in 0..LOOKS {
            if let Some(doing) = Doing::of(tid) {
                return Some(doing);
            }
            std::thread::yield_now();
        }
        let end = time::now() + LOOKS_END;
        while time::now() < end {
            self.fs.sleep(LOOK_AGAIN).await;
            if let Some(doing) = Doing::of(tid) {
                return Some(doing);
            }
        }
        None
    }
}

fn guards_link(dir: &StickyDir, link_uid: u32, uid: u32) -> bool {
    dir.mode & OTHERS_WRITE != 0 && ![uid, dir.uid].contains(&link_uid)
}

fn guards_open(level: u32, dir: &StickyDir) -> bool {
    let by_group = level > 1 && dir.mode & GROUP_WRITES != 0;
    level > 0 && (dir.mode & OTHERS_WRITE != 0 || by_group)
}

/// The sysctl's value now.
// The kernel's setting, not a file of Saker's: nothing that a simulation holds.
#[allow(clippy::disallowed_methods)]
fn level(what: &str) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/sys/fs/protected_{what}"));
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// open(2) with O_CREAT, of what may exist.
    Creates,
    /// readlink(2).
    ReadsLink,
    /// Something else, or that is not to be seen.
    Other,
}

impl Doing {
    /// `None` as long as the thread runs, or waits for a CPU.
    // The kernel's word on a thread, as above.
    #[allow(clippy::disallowed_methods)]
    fn of(tid: u32) -> Option<Doing> {
        match std::fs::read_to_string(format!("/proc/{tid}/syscall")) {
            Ok(line) if line.starts_with("running") => None,
            Ok(line) => Some(Doing::parse(&line, |at| flags_of_openat2(tid, at))),
            Err(_) => Some(Doing::Other),
        }
    }

    /// The line of /proc/TID/syscall (proc_pid_syscall(5)). `openat2` reads that call's flags, which
    /// are in memory.
    fn parse(line: &str, openat2: impl Fn(u64) -> Option<i32>) -> Doing {
        let mut fields = line.split_whitespace();
        let Some(nr) = fields.next().and_then(|nr| nr.parse::<libc::c_long>().ok()) else {
            return Doing::Other;
        };
        let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let mut arg = |n: usize| fields.nth(n).and_then(hex);
        let flags = match nr {
            libc::SYS_readlinkat => return Doing::ReadsLink,
            libc::SYS_openat => arg(2).map(|flags| flags as i32),
            libc::SYS_openat2 => arg(2).and_then(openat2),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_readlink => return Doing::ReadsLink,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => arg(1).map(|flags| flags as i32),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_creat => Some(libc::O_CREAT),
            _ => None,
        };
        let wanted = |flags: i32| flags & (libc::O_CREAT | libc::O_EXCL | libc::O_PATH);
        match flags.map(wanted) {
            Some(libc::O_CREAT) => Doing::Creates,
            _ => Doing::Other,
        }
    }
}

/// The first word of the `struct open_how` at an address of the thread's.
// As above.
#[allow(clippy::disallowed_methods)]
fn flags_of_openat2(tid: u32, at: u64) -> Option<i32> {
    use std::os::unix::fs::FileExt;
    let mut flags = [0; 8];
    let memory = std::fs::File::open(format!("/proc/{tid}/mem")).ok()?;
    memory.read_exact_at(&mut flags, at).ok()?;
    Some(u64::from_ne_bytes(flags) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_the_kernels() {
        let dir = |mode: u32| StickyDir { mode: 0o041_000 | mode, uid: 7 };
        for (mode, link_uid, uid, wanted) in [
            (0o777, 8, 9, true),
            (0o777, 8, 0, true),
            (0o777, 8, 8, false),
            (0o777, 7, 9, false),
            (0o775, 8, 9, false),
        ] {
            assert_eq!(guards_link(&dir(mode), link_uid, uid), wanted, "{mode:o} {link_uid} {uid}");
        }
        for (level, mode, wanted) in [
            (0, 0o777, false),
            (1, 0o777, true),
            (1, 0o775, false),
            (2, 0o775, true),
            (2, 0o755, false),
        ] {
            assert_eq!(guards_open(level, &dir(mode)), wanted, "{level} {mode:o}");
        }
    }

    #[test]
    fn a_syscall_is_understood() {
        let line = |nr: libc::c_long, args: [i32; 3]| {
            let [a, b, c] = args;
            format!("{nr} 0x{a:x} 0x{b:x} 0x{c:x} 0x0 0x0 0x0 0x7ffd 0x7f00\n")
        };
        let (creat, excl, path) = (libc::O_CREAT, libc::O_EXCL, libc::O_PATH);
        for (nr, args, wanted) in [
            (libc::SYS_openat, [3, 4, creat | libc::O_WRONLY], Doing::Creates),
            (libc::SYS_openat, [3, creat, libc::O_WRONLY], Doing::Other),
            (libc::SYS_openat, [3, 4, creat | excl], Doing::Other),
            (libc::SYS_openat, [3, 4, creat | path], Doing::Other),
            (libc::SYS_openat2, [3, 4, 5], Doing::Creates),
            (libc::SYS_openat2, [3, 4, 6], Doing::Other),
            (libc::SYS_readlinkat, [0; 3], Doing::ReadsLink),
            (libc::SYS_read, [creat; 3], Doing::Other),
        ] {
            let openat2 = |at| (at == 5).then_some(creat);
            assert_eq!(Doing::parse(&line(nr, args), openat2), wanted, "{nr} {args:?}");
        }
        assert_eq!(Doing::parse("-1 0x7ffd 0x7f00", |_| None), Doing::Other);
        assert_eq!(Doing::parse("", |_| None), Doing::Other);
    }

    #[test]
    fn a_link_is_noted_for_one_read_by_its_thread() {
        let links = ProtectedLinks::default();
        links.add(5, 100);
        assert!(!links.take(6, 100));
        assert!(links.take(5, 100) && !links.take(5, 100));
        links.add(5, 100);
        assert!(!links.take(5, 101) && !links.take(5, 100), "it has come to another one since");
        links.add(5, 100);
        links.forget(5);
        assert!(!links.take(5, 100), "it has come to one that is free since");
        (0..LINKS_MAX as u32 + 1).for_each(|tid| links.add(tid, 1));
        assert!(links.lock().len() <= LINKS_MAX);
    }
}
