//! Hints from `/proc/TID/syscall` and the caller's memory (proc(5), process_vm_readv(2)).
//!
//! They tell which paths were passed, not where the walk is. So a hint needs more than a name
//! that is there once, or whose directory shows how far the walk is: the walk must start inside the
//! mount, no `..` may lead back, and the thread must not have read a symlink. Then the walk goes through the text from left to right. What is
//! not seen: a symlink in another file system that is mounted inside this one.

use std::collections::HashMap;
use std::ffi::CString;
use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::fs::{CWD, Mode, OFlags};

use super::syscall::{ARGS, Does, PathArg, Syscall};
use super::{Hint, Lookup, Step, Which, path};

/// PATH_MAX of Linux, with the NUL.
const PATH_MAX: usize = 4096;
/// How often to look at a thread that has sent a request, and does not wait for the answer yet.
const LOOKS: usize = 16;
/// No page is smaller.
const PAGE: usize = 4096;

/// The source of hints.
pub(super) struct Proc {
    mountpoint: Vec<u8>,
    /// What threads were doing when they read a symlink. No more than there are threads.
    in_links: Mutex<HashMap<u32, Line>>,
}

/// The first bytes of `/proc/TID/syscall`: number, arguments, stack and instruction pointers.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Line {
    len: usize,
    bytes: [u8; 192],
}

impl Proc {
    /// For the mount at `mountpoint`, absolute and without symlinks.
    ///
    /// # Errors
    /// When this kernel does not tell syscalls.
    pub(super) fn new(mountpoint: &Path) -> Result<Proc, String> {
        let own = "/proc/self/syscall";
        rustix::fs::access(own, rustix::fs::Access::READ_OK).map_err(|e| format!("{own}: {e}"))?;
        let mountpoint = mountpoint.as_os_str().as_bytes().to_vec();
        Ok(Proc { mountpoint, in_links: Mutex::default() })
    }

    /// What a thread is doing that waits for a LOOKUP.
    pub(super) fn hint(
        &self,
        lookup: Lookup<'_>,
        way: impl Fn() -> Option<Vec<Bytes>>,
    ) -> Option<Hint> {
        let tid = lookup.tid;
        let line = Line::read(tid)?;
        if self.is_in_link(tid, &line) {
            return None;
        }
        let (nr, mut args) = line.parse()?;
        let call = Syscall::of(nr)?;
        let mut text = [[0; PATH_MAX]; 2];
        let (mut paths, mut start) = ([&[][..]; 2], Vec::new());
        for ((arg, text), path) in call.paths.iter().zip(&mut text).zip(&mut paths) {
            (start, *path) = self.inside(tid, arg, &args, read_path(tid, args[arg.path], text)?)?;
        }
        let call = resolve_openat2(tid, call, &mut args)?;
        // Of two paths the names may be the same.
        let is_one = call.paths.len() == 1;
        let is_here =
            |before: &[u8]| is_one && way().is_some_and(|way| leads(&start, before, &way));
        find(&call, lookup.name, paths, &args, is_here)
    }

    /// The thread reads a symlink; until its next syscall its walk is elsewhere.
    pub(super) fn link_read(&self, tid: u32) {
        self.in_links().insert(tid, Line::read(tid).unwrap_or(Line::NONE));
    }

    fn is_in_link(&self, tid: u32, line: &Line) -> bool {
        let mut in_links = self.in_links();
        match in_links.get_mut(&tid) {
            // A loop that repeats a syscall with the same arguments looks like the same syscall.
            Some(then) if then == line => true,
            // It was not seen in which one it read the link: this may be that.
            Some(then) if *then == Line::NONE => {
                *then = *line;
                true
            }
            Some(_) => {
                in_links.remove(&tid);
                false
            }
            None => false,
        }
    }

    fn in_links(&self) -> MutexGuard<'_, HashMap<u32, Line>> {
        self.in_links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The part of `path` that is inside the mount, if it is known to start there; and from where
    /// below the mount point it goes.
    fn inside<'a>(
        &self,
        tid: u32,
        arg: &PathArg,
        args: &[u64; ARGS],
        path: &'a [u8],
    ) -> Option<(Vec<u8>, &'a [u8])> {
        let mut link = [0; PATH_MAX];
        if path.starts_with(b"/") {
            let inside = self.below(path)?;
            let is_whole = read_link(tid, format_args!("root"), &mut link)? == b"/";
            return is_whole.then(|| (Vec::new(), inside));
        }
        let start = match arg.dir.map(|dir| args[dir] as i32) {
            None | Some(libc::AT_FDCWD) => read_link(tid, format_args!("cwd"), &mut link),
            Some(fd) => read_link(tid, format_args!("fd/{fd}"), &mut link),
        };
        Some((self.below(start?)?.to_vec(), path))
    }

    /// What follows the mount point.
    fn below<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let below = path.strip_prefix(&self.mountpoint[..])?;
        (below.is_empty() || below[0] == b'/').then_some(below)
    }
}

/// Does the way to a directory go through `start`, and from there through the names in `before`?
fn leads(start: &[u8], before: &[u8], way: &[Bytes]) -> bool {
    path::names(start).chain(path::names(before)).eq(way.iter().map(Bytes::as_ref))
}

/// Where `name` is in the paths, if there is but one place, or one of several is where the walk
/// is: `is_here` judges by what goes before it.
fn find(
    call: &Syscall,
    name: &[u8],
    paths: [&[u8]; 2],
    args: &[u64; ARGS],
    is_here: impl Fn(&[u8]) -> bool,
) -> Option<Hint> {
    if paths.iter().any(|path| path.split(|&b| b == b'/').any(|part| part == b"..")) {
        return None;
    }
    if call.walks_both() && paths.iter().any(|path| path::last(path).is_none()) {
        return None;
    }
    let places = |which: usize| path::places(paths[which], name).map(move |rest| (which, rest));
    let before = |(which, rest): (usize, &[u8])| {
        &paths[which][..paths[which].len() - rest.len() - name.len()]
    };
    let found: Vec<_> = places(0).chain(places(1)).collect();
    // Both names of a rename, and nothing on the way.
    let alike = path::is_alone(paths[0]) == path::is_alone(paths[1]);
    let is_either = call.walks_both()
        && alike
        && found.len() == 2
        && found.iter().all(|(_, rest)| is_end(rest));
    let (which, rest) = match found[..] {
        [place] => place,
        [source, _] if is_either => source,
        _ => {
            let mut here = found.into_iter().filter(|place| is_here(before(*place)));
            here.next().filter(|_| here.next().is_none())?
        }
    };
    let first = path::is_before_first(before((which, rest)));
    let step = match is_end(rest) {
        true => Step::Last(call.intent(which, !rest.is_empty(), args)),
        false => Step::Through(path::rest(rest)),
    };
    let beside = call.walks_both() && !path::is_alone(paths[1 - which]);
    let path = (!is_either).then(|| Which::of(which));
    Some(Hint { step, first, path, beside, reval: false })
}

/// Is there no more than slashes?
fn is_end(rest: &[u8]) -> bool {
    rest.iter().all(|&b| b == b'/')
}

/// openat2(2) has its flags in memory.
fn resolve_openat2(tid: u32, call: Syscall, args: &mut [u64; ARGS]) -> Option<Syscall> {
    let Does::Openat2 { how } = call.does else { return Some(call) };
    let mut flags = [0; 8];
    (read_memory(tid, args[how], &mut flags)? == flags.len()).then_some(())?;
    args[how] = u64::from_ne_bytes(flags);
    Some(Syscall { does: Does::Open { flags: how }, ..call })
}

impl Line {
    const NONE: Line = Line { len: 0, bytes: [0; 192] };

    /// `None` if the thread is gone, or runs.
    fn read(tid: u32) -> Option<Line> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file =
            rustix::fs::open(name(tid, format_args!("syscall")), flags, Mode::empty()).ok()?;
        for _ in 0..LOOKS {
            let mut line = Line::NONE;
            line.len = rustix::io::pread(file.as_fd(), &mut line.bytes, 0).ok()?;
            if &line.bytes[..line.len] != b"running\n" {
                return Some(line);
            }
            // A request is served from when it is sent, a moment before its sender sleeps.
            std::thread::yield_now();
        }
        None
    }

    /// Number and arguments; `None` if the thread is not in a syscall of 64 bits.
    fn parse(&self) -> Option<(u32, [u64; ARGS])> {
        let text = std::str::from_utf8(&self.bytes[..self.len]).ok()?;
        let mut words = text.split_ascii_whitespace();
        let nr = words.next()?.parse().ok()?;
        let mut numbers = [0; 8];
        for number in &mut numbers {
            *number = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        let [a, b, c, d, e, _, stack, _] = numbers;
        // The stack of a 32-bit program, whose syscalls have other numbers.
        (stack > u64::from(u32::MAX)).then_some((nr, [a, b, c, d, e]))
    }
}

/// `/proc/TID/…`
fn name(tid: u32, what: std::fmt::Arguments<'_>) -> CString {
    let mut name = String::with_capacity(32);
    // Writing to a string cannot fail, and there is no NUL in it.
    let _ = write!(name, "/proc/{tid}/{what}");
    CString::new(name).unwrap_or_default()
}

fn read_link<'a>(
    tid: u32,
    what: std::fmt::Arguments<'_>,
    to: &'a mut [u8; PATH_MAX],
) -> Option<&'a [u8]> {
    let len = rustix::fs::readlinkat_raw(CWD, name(tid, what), &mut to[..]).ok()?;
    Some(&to[..len])
}

/// The text at `address` of another thread's memory up to its NUL.
fn read_path(tid: u32, address: u64, to: &mut [u8; PATH_MAX]) -> Option<&[u8]> {
    let mut len = 0;
    while len < PATH_MAX {
        // The next page may not be there.
        let at = address.checked_add(len as u64)?;
        let end = (len + PAGE - at as usize % PAGE).min(PATH_MAX);
        let read = read_memory(tid, at, &mut to[len..end])?;
        if let Some(nul) = to[len..len + read].iter().position(|&b| b == 0) {
            return Some(&to[..len + nul]);
        }
        (read == end - len).then_some(())?;
        len = end;
    }
    None
}

fn read_memory(tid: u32, address: u64, to: &mut [u8]) -> Option<usize> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: to.len() };
    let pid = libc::pid_t::try_from(tid).ok()?;
    // SAFETY: `local` is `to`, which is borrowed for writing; the kernel checks `remote`.
    let read = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(read).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::hint::{Intent, Rest};

    fn line(text: &str) -> Line {
        let mut line = Line { len: text.len(), bytes: [0; 192] };
        line.bytes[..text.len()].copy_from_slice(text.as_bytes());
        line
    }

    #[test]
    fn lines_are_parsed() {
        let (nr, args) =
            line("257 0xffffff9c 0x7f01 0x2 0x3 0x4 0x5 0x7ffd00000000 0x7f00\n").parse().unwrap();
        assert_eq!((nr, args), (257, [0xffff_ff9c, 0x7f01, 2, 3, 4]));
        for bad in [
            "",
            "running\n",
            "-1 0x7ffd00000000 0x7f00\n",
            "257 0x1 0x2 0x3 0x4 0x5 0x6 0xffffffff 0x7f00\n",
            "257 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffd00000000\n",
        ] {
            assert!(line(bad).parse().is_none(), "{bad}");
        }
    }

    #[test]
    fn who_reads_a_link_is_in_it_until_another_syscall_is_seen() {
        let proc = Proc { mountpoint: Vec::new(), in_links: Mutex::default() };
        let (one, two) = (line("1 0x1"), line("2 0x2"));
        for seen in [one, Line::NONE] {
            proc.in_links().insert(7, seen);
            assert!(proc.is_in_link(7, &one) && proc.is_in_link(7, &one));
            assert!(!proc.is_in_link(8, &one), "another thread");
            assert!(!proc.is_in_link(7, &two) && !proc.is_in_link(7, &one));
        }
    }

    #[test]
    fn a_name_needs_one_place() {
        let stat = Syscall::of(libc::SYS_newfstatat as u32).unwrap();
        let rename = Syscall::of(libc::SYS_renameat2 as u32).unwrap();
        let plain = Some(Step::Last(Intent::Plain));
        let names = Some(Step::Through(Rest::Names));
        for (call, paths, wanted) in [
            (stat, ["a/x", ""], plain),
            (stat, ["a/x/", ""], plain),
            (stat, ["x/a", ""], names),
            (stat, ["x/.", ""], Some(Step::Through(Rest::Dots))),
            (stat, ["x/x", ""], None),
            (stat, ["a/b", ""], None),
            (stat, ["b/../x", ""], None),
            (rename, ["a/x", "b/y"], Some(Step::Last(Intent::RenameSource))),
            (rename, ["a/y", "b/x"], Some(Step::Last(Intent::RenameTarget))),
            (rename, ["x/y", "b/."], None),
            (rename, [".", "x/y"], None),
            (rename, ["x/y", "b/z"], names),
            (rename, ["x/y", "x/z"], None),
            (rename, ["a/x", "b/x"], Some(Step::Last(Intent::RenameSource))),
            (rename, ["x", "x"], Some(Step::Last(Intent::RenameSource))),
            (rename, ["a/x", "x"], None),
            (rename, ["x/x", "b"], None),
        ] {
            let paths_of = paths.map(str::as_bytes);
            let found = find(&call, b"x", paths_of, &[0; ARGS], |_| false);
            assert_eq!(found.map(|hint| hint.step), wanted, "{paths:?}");
            let first = !paths.iter().any(|path| path.contains("a/x") || path.contains("b/x"));
            assert!(found.is_none_or(|hint| hint.first == first), "{paths:?}");
        }
    }

    #[test]
    fn a_name_that_comes_twice_is_where_its_directory_is() {
        let open = Syscall::of(libc::SYS_openat as u32).unwrap();
        let step = |start: &str, text: &str, way: &str| {
            let way: Vec<Bytes> = path::names(way.as_bytes()).map(Bytes::copy_from_slice).collect();
            let is_here = |before: &[u8]| leads(start.as_bytes(), before, &way);
            let hint = find(&open, b"x", [text.as_bytes(), b""], &[0; ARGS], is_here)?;
            assert!(!hint.beside);
            Some((hint.step, hint.first))
        };
        let (names, last) = (Step::Through(Rest::Names), Step::Last(Intent::Open { flags: 0 }));
        for (start, text, way, wanted) in [
            ("", "/x/x/x", "", Some((names, true))),
            ("", "/x//x/./x", "x", Some((names, false))),
            ("", "/x/x/x", "x/x", Some((last, false))),
            ("", "/x/x/x", "x/x/x", None),
            ("", "/x/x/x", "x/y", None),
            ("/x", "x/x", "x", Some((names, true))),
            ("/x", "x/x", "x/x", Some((last, false))),
            ("/x", "x/x", "", None),
            ("/a (deleted)", "x/x", "a", None),
        ] {
            assert_eq!(step(start, text, way), wanted, "{start} {text} {way}");
        }
    }

    #[test]
    fn text_is_read_up_to_its_nul_and_no_further() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let mut to = [0; PATH_MAX];
        for len in [0, 1, 300, PATH_MAX - 1] {
            let text = [vec![b'x'; len], vec![0]].concat();
            assert_eq!(read_path(tid, text.as_ptr() as u64, &mut to).unwrap(), &text[..len]);
        }
        let endless = vec![b'x'; PATH_MAX + 1];
        assert!(read_path(tid, endless.as_ptr() as u64, &mut to).is_none());
        assert!(read_path(tid, 8, &mut to).is_none());
    }
}
