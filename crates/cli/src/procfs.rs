//! What the kernel says about processes and mounts (proc(5)).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

/// A process, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// State letter of its first thread: `Z` is a zombie.
    pub state: u8,
    /// Threads that are left, the zombie of the first one included.
    pub threads: u64,
    /// When it started, in clock ticks since boot. With the pid it names a process for good.
    pub start_ticks: u64,
    /// CPU time used so far by all its threads, user and system.
    pub cpu: Duration,
}

impl Stat {
    /// Is there still a process behind the pid? One that was killed holds its ports and files
    /// until its last thread has ended.
    pub fn alive(&self) -> bool {
        self.threads > 1 || !matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// The process's line in `/proc/PID/stat`; `None` when there is no such process.
pub fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(line: &[u8]) -> Option<Stat> {
    // The second field is the name in parentheses, which may hold spaces and parentheses itself.
    let name_end = line.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(line.get(name_end + 2..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let ticks = number(14)? + number(15)?;
    let cpu = Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / ticks_per_s()));
    let (threads, start_ticks) = (number(20)?, number(22)?);
    let state = *fields.first()?.as_bytes().first()?;
    Some(Stat { state, threads, start_ticks, cpu })
}

fn ticks_per_s() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

/// The arguments of a process, its name first; `None` when it is gone or a kernel thread.
pub fn cmdline(pid: u32) -> Option<Vec<OsString>> {
    let raw = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let raw = raw.strip_suffix(b"\0").unwrap_or(&raw);
    if raw.is_empty() {
        return None;
    }
    Some(raw.split(|b| *b == 0).map(|arg| OsString::from_vec(arg.to_vec())).collect())
}

/// All processes of which `/proc` tells us.
pub fn pids() -> Vec<u32> {
    let Ok(dir) = std::fs::read_dir("/proc") else { return Vec::new() };
    dir.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Identity of this boot: pids and ticks mean nothing in another one.
pub fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// A mount seen by this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Where it is.
    pub point: PathBuf,
    /// Which directory of the file system is mounted there; `/` is all of it.
    pub root: PathBuf,
    /// Type, as `fuse.saker`.
    pub fstype: String,
    /// Source, as mount(8) was told.
    pub source: OsString,
}

/// The mounts that this process sees, in the order in which they were made.
pub fn mounts() -> std::io::Result<Vec<MountEntry>> {
    Ok(parse_mountinfo(&std::fs::read("/proc/self/mountinfo")?))
}

fn parse_mountinfo(raw: &[u8]) -> Vec<MountEntry> {
    raw.split(|b| *b == b'\n').filter_map(parse_mount).collect()
}

fn parse_mount(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ');
    let root = unescape(fields.nth(3)?);
    let point = unescape(fields.next()?);
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let fstype = String::from_utf8_lossy(after.next()?).into_owned();
    let source = unescape(after.next()?);
    Some(MountEntry { point: point.into(), root: root.into(), fstype, source })
}

/// Undoes the octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) if byte == b'\\' => {
                out.push(escaped);
                rest = &tail[3..];
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

/// The topmost mount at exactly this place (an absolute path without symlinks).
pub fn mount_at(point: &Path) -> Option<MountEntry> {
    mounts().ok()?.into_iter().rfind(|mount| mount.point == point)
}

/// Who listens on a local TCP port: `PID (NAME)`, where we may know.
pub fn listener_of(port: u16) -> Option<String> {
    let socket = listening_socket(port)?;
    let pid = pids().into_iter().find(|pid| has_open(*pid, &socket))?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("process {pid} ({})", name.trim()))
}

/// Does this process listen on a local TCP port?
pub fn listens(pid: u32, port: u16) -> bool {
    listening_socket(port).is_some_and(|socket| has_open(pid, &socket))
}

/// The socket that listens on a port, as `/proc/PID/fd` shows it.
fn listening_socket(port: u16) -> Option<OsString> {
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| {
        let table = std::fs::read_to_string(table).ok()?;
        socket_inode(&table, port).map(str::to_owned)
    })?;
    Some(format!("socket:[{inode}]").into())
}

fn has_open(pid: u32, what: &OsString) -> bool {
    let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    fds.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == what))
}

fn socket_inode(table: &str, port: u16) -> Option<&str> {
    const LISTEN: &str = "0A";
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        (local.ends_with(&suffix) && *state == LISTEN).then_some(*inode)
    })
}

/// The executable of this process, also after a new build has replaced the file.
pub fn this_program() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    Ok(match path.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(stem) if Path::new(OsStr::from_bytes(stem)).exists() => OsStr::from_bytes(stem).into(),
        _ => path,
    })
}

/// Helpers of a benchmark die with it. Roles never do this: they outlive whoever started them.
pub fn end_with_parent() {
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::warn!("this process will outlive its parent: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_known() {
        let me = std::process::id();
        let stat = stat(me).unwrap();
        assert!(stat.alive() && stat.start_ticks > 0);
        assert!(pids().contains(&me));
        let args: Vec<OsString> = std::env::args_os().collect();
        assert_eq!(cmdline(me).unwrap(), args);
    }

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        let line = b"7 (a) b) S 1 7 7 0 -1 0 1 2 3 4 100 50 0 0 20 0 9 0 12345 1 2";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.state, stat.threads), (b'S', 9));
        assert_eq!(stat.start_ticks, 12345);
        assert_eq!(stat.cpu, Duration::from_millis(150 * 1000 / ticks_per_s()));
        assert_eq!(parse_stat(b"7 (a) S 1"), None);
        let dying = Stat { state: b'Z', threads: 2, ..stat.clone() };
        assert!(dying.alive() && !Stat { threads: 1, ..dying }.alive());
    }

    #[test]
    fn mounts_are_parsed_with_escapes_and_optional_fields() {
        let raw =
            b"36 35 98:0 / /mnt\\040a rw,noatime master:1 shared:2 - fuse.saker /x\\011y rw\n\
                    37 35 0:5 /sub /plain rw - tmpfs none rw\n";
        let mounts = parse_mountinfo(raw);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].point, Path::new("/mnt a"));
        assert_eq!((&*mounts[0].fstype, &mounts[0].source), ("fuse.saker", &"/x\ty".into()));
        assert_eq!((&*mounts[1].fstype, mounts[1].root.as_path()), ("tmpfs", Path::new("/sub")));
    }

    #[test]
    fn a_listener_is_found() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(listens(std::process::id(), port) && !listens(1, port));
        let who = listener_of(port).unwrap();
        assert!(who.starts_with(&format!("process {} (", std::process::id())), "{who}");
    }
}
