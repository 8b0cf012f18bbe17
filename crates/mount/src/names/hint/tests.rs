//! What the kernel does, told by hints: a small file system is mounted, and programs walk in it.
//!
//! Needs root and `/dev/fuse`; without them the tests say so and pass.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::ffi::CString;
use std::fmt::Write as _;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use zerocopy::{FromBytes, IntoBytes};

use saker_fuse::abi::{
    AttrBody, AttrOut, EntryOut, InHeader, InitOut, Opcode, OpenOut, OutHeader, StatfsOut, init,
};

use super::{Hint, Hints, KernelHints, Lookup, LookupIntent, PathStep, Rest};

const DIR: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// Parent, name, mode, and a link's text; node ids count from 1.
const TREE: &[(u64, &str, u32, &str)] = &[
    (0, "", DIR, ""),
    (1, "a", DIR, ""),
    (2, "b", DIR, ""),
    (3, "c", FILE, ""),
    (3, "d", DIR, ""),
    (2, "f", FILE, ""),
    (2, "l", LINK, "b"),
    (3, "file", FILE, ""),
    (3, "fifth", FILE, ""),
    (3, "empty", DIR, ""),
    (3, "bare", DIR, ""),
    (1, "link", LINK, "a/b/c"),
    (1, STALE, FILE, ""),
];
/// Of each two LOOKUPs of this name the first is answered with ESTALE.
const STALE: &str = "stale";

/// The file system's end of the mount.
struct MountService {
    hints: KernelHints,
    /// What was looked up since the last call of `take`.
    seen: Mutex<String>,
}

impl MountService {
    fn run(&self, device: &OwnedFd) {
        let mut buffer = vec![0; 1 << 17];
        // ENODEV: it was unmounted.
        while let Ok(len) = rustix::io::read(device, &mut buffer) {
            let (header, body) = InHeader::read_from_prefix(&buffer[..len]).unwrap();
            let Some(answer) = self.answer(&header, body) else { continue };
            let error = answer.as_ref().err().map_or(0, |errno| -errno);
            let body = answer.unwrap_or_default();
            let len = 16 + body.len() as u32;
            let out = OutHeader { len, error, unique: header.unique };
            // ENOENT: interrupted.
            let _ = rustix::io::write(device, &[out.as_bytes(), &body].concat());
        }
    }

    fn answer(&self, header: &InHeader, body: &[u8]) -> Option<Result<Vec<u8>, i32>> {
        Some(match Opcode::from_u32(header.opcode)? {
            Opcode::Init => Ok(InitOut {
                major: 7,
                minor: 31,
                flags: (init::PARALLEL_DIROPS | init::ATOMIC_O_TRUNC) as u32,
                max_write: 1 << 16,
                ..InitOut::default()
            }
            .as_bytes()
            .to_vec()),
            Opcode::Lookup => self.lookup(header, body.split_last().unwrap().1),
            Opcode::Getattr => {
                Ok(AttrOut { attr: attr(header.nodeid), ..AttrOut::default() }.as_bytes().to_vec())
            }
            Opcode::Readlink => Ok(TREE[header.nodeid as usize - 1].3.as_bytes().to_vec()),
            Opcode::Open | Opcode::Opendir => Ok(OpenOut::default().as_bytes().to_vec()),
            Opcode::Read | Opcode::Release | Opcode::Releasedir => Ok(Vec::new()),
            Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt => return None,
            Opcode::Statfs => {
                Ok(StatfsOut { namelen: 255, ..StatfsOut::default() }.as_bytes().to_vec())
            }
            Opcode::Access | Opcode::Flush | Opcode::Getxattr | Opcode::Listxattr => {
                Err(libc::ENOSYS)
            }
            _ => Err(libc::EACCES),
        })
    }

    fn lookup(&self, header: &InHeader, name: &[u8]) -> Result<Vec<u8>, i32> {
        let &InHeader { unique, pid: tid, nodeid, .. } = header;
        let lookup = Lookup { unique, tid, nodeid, name };
        if let Some(errno) = self.hints.probe(lookup) {
            return Err(i32::from(errno.0));
        }
        let name = std::str::from_utf8(name).unwrap();
        let mut seen = self.seen.lock().unwrap();
        write!(seen, " {name}{}", short(self.hints.of(lookup))).unwrap();
        if name == STALE && seen.matches(STALE).count() % 2 == 1 {
            return Err(libc::ESTALE);
        }
        let at = TREE.iter().position(|node| (node.0, node.1) == (nodeid, name));
        let nodeid = at.ok_or(libc::ENOENT)? as u64 + 1;
        let entry = EntryOut { nodeid, attr: attr(nodeid), attr_valid: 60, ..EntryOut::default() };
        Ok(entry.as_bytes().to_vec())
    }

    fn take(&self) -> String {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

fn attr(nodeid: u64) -> AttrBody {
    let (_, _, mode, text) = TREE[nodeid as usize - 1];
    AttrBody { ino: nodeid, mode, nlink: 1, size: text.len() as u64, ..AttrBody::default() }
}

/// A hint as the tables below have it.
fn short(hint: Option<Hint>) -> String {
    let Some(hint) = hint else { return "?".into() };
    let step = match hint.step {
        PathStep::Through(Rest::Names) => ">",
        PathStep::Through(Rest::Dots) => ">.",
        PathStep::Through(Rest::DotDot) => ">..",
        PathStep::Through(Rest::InLink) => ">link",
        PathStep::Through(Rest::Cut) => ">cut",
        PathStep::Through(Rest::BesideDots) => ">beside",
        PathStep::Last(LookupIntent::Plain) => "=plain",
        PathStep::Last(LookupIntent::Open { flags }) if flags & libc::O_CREAT == 0 => "=open",
        PathStep::Last(LookupIntent::Open { flags }) if flags & libc::O_EXCL == 0 => "=open+create",
        PathStep::Last(LookupIntent::Open { .. }) => "=open+excl",
        PathStep::Last(LookupIntent::Create) => "=create",
        PathStep::Last(LookupIntent::Remove { dir: true }) => "=rmdir",
        PathStep::Last(LookupIntent::Remove { dir: false }) => "=unlink",
        PathStep::Last(LookupIntent::RenameSource) => "=source",
        PathStep::Last(LookupIntent::RenameTarget) => "=target",
    };
    if hint.reval { format!("{step}!") } else { step.into() }
}

/// A mount; detached when dropped.
struct Mounted {
    dir: tempfile::TempDir,
    served: Arc<MountService>,
    thread: Option<JoinHandle<()>>,
    /// What `KernelHints::start` said.
    why: String,
}

impl Mounted {
    /// `None`: this machine does not let us mount.
    fn new() -> Option<Mounted> {
        let mut mounted = Mounted::without_hints()?;
        let dir = mounted.dir.path().canonicalize().unwrap();
        mounted.why = mounted.served.hints.start(&dir);
        Some(mounted)
    }

    fn without_hints() -> Option<Mounted> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty()).ok();
        let Some(device) = device.filter(|_| rustix::process::geteuid().is_root()) else {
            eprintln!("skipped: needs root and /dev/fuse");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let data = CString::new(data).unwrap();
        let flags = MountFlags::empty();
        rustix::mount::mount("hints", dir.path(), "fuse.hints", flags, data.as_c_str()).unwrap();
        let served = Arc::new(MountService { hints: KernelHints::new(), seen: Mutex::default() });
        let thread = {
            let served = Arc::clone(&served);
            std::thread::spawn(move || served.run(&device))
        };
        Some(Mounted { dir, served, thread: Some(thread), why: String::new() })
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// What `call` made the kernel look up, with hints.
    fn lookups(&self, call: impl Fn(At<'_>)) -> String {
        self.served.take();
        call(&|path| self.at(path));
        self.served.take().trim_start().into()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        rustix::mount::unmount(self.dir.path(), UnmountFlags::DETACH).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

type At<'a> = &'a dyn Fn(&str) -> PathBuf;

/// What to do, and what is to be seen. Results do not matter: what would change something is
/// refused.
struct Case(&'static str, fn(At<'_>), &'static str);

fn open(path: impl AsRef<Path>, flags: OFlags) {
    let _ = rustix::fs::open(path.as_ref(), flags, Mode::RWXU);
}

fn stat(path: impl AsRef<Path>) {
    let _ = rustix::fs::statat(CWD, path.as_ref(), AtFlags::empty());
}

fn rename(from: PathBuf, to: PathBuf, flags: RenameFlags) {
    let _ = rustix::fs::renameat_with(CWD, from, CWD, to, flags);
}

/// Longer than a note's text.
fn long() -> String {
    "./".repeat(300)
}

const CASES: &[Case] = &[
    Case("stat", |at| stat(at("a/b/c")), "a> b> c=plain"),
    Case("stat of what is not there", |at| stat(at("a/x/c")), "a> x>"),
    Case("slashes", |at| stat(at("a//./b///c")), "a> b> c=plain"),
    Case("slash at the end", |at| stat(at("a/b//")), "a> b=plain"),
    Case("dot at the end", |at| stat(at("a/b/./")), "a> b>."),
    Case("dot dot", |at| stat(at("a/../a/b/c")), "a>.. a> b> c=plain"),
    Case("open", |at| open(at("a/b/c"), OFlags::RDONLY), "a> b> c=open"),
    Case(
        "O_CREAT",
        |at| open(at("a/b/new"), OFlags::RDWR | OFlags::CREATE),
        "a> b> new=open+create",
    ),
    Case(
        "O_EXCL",
        |at| open(at("a/new"), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL),
        "a> new=open+excl",
    ),
    Case("O_PATH", |at| open(at("a/b/c"), OFlags::PATH), "a> b> c=plain"),
    Case("O_DIRECTORY", |at| open(at("a/b"), OFlags::DIRECTORY), "a> b=open"),
    #[cfg(target_arch = "x86_64")]
    Case(
        "old system calls",
        |at| {
            let calls =
                [(libc::SYS_open, "a/f"), (libc::SYS_creat, "a/f"), (libc::SYS_mkdir, "a/new")];
            for (nr, path) in calls {
                let path = CString::new(at(path).into_os_string().into_encoded_bytes()).unwrap();
                // SAFETY: the path is NUL-terminated and lives until the call returns.
                let fd = unsafe { libc::syscall(nr, path.as_ptr(), 0) };
                // SAFETY: a descriptor that nobody else has.
                drop((fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) }));
            }
        },
        "a> f=open a> f=open+create a> new=create",
    ),
    Case(
        "openat2",
        |at| {
            let flags = OFlags::RDWR | OFlags::CREATE;
            let resolve = rustix::fs::ResolveFlags::empty();
            let _ = rustix::fs::openat2(CWD, at("a/b/new"), flags, Mode::RUSR, resolve);
        },
        "a> b> new=plain",
    ),
    Case(
        "openat",
        |at| {
            let dir = rustix::fs::open(at("a/b"), OFlags::PATH, Mode::empty()).unwrap();
            let _ = rustix::fs::openat(&dir, "c", OFlags::RDONLY, Mode::empty());
            let _ = rustix::fs::mkdirat(&dir, "new", Mode::RWXU);
        },
        "a> b=plain c=open new=create",
    ),
    Case(
        "chdir",
        |at| {
            rustix::process::chdir(at("a/b")).unwrap();
            stat("c");
            open("d/new", OFlags::WRONLY | OFlags::CREATE);
            rustix::process::chdir("/").unwrap();
        },
        "a> b=plain c=plain d> new=open+create",
    ),
    Case(
        "access",
        |at| {
            let _ = rustix::fs::access(at("a/b/c"), rustix::fs::Access::READ_OK);
        },
        "a> b> c=plain",
    ),
    Case(
        "mkdir",
        |at| {
            let _ = rustix::fs::mkdir(at("a/b/new"), Mode::RWXU);
            let _ = rustix::fs::mkdir(at("a/new/"), Mode::RWXU);
        },
        "a> b> new=create a> new=create",
    ),
    Case(
        "mkdir of a name that is not in its dentry",
        |at| {
            let _ =
                rustix::fs::mkdir(at("a-name-of-more-than-forty-characters-in-all"), Mode::RWXU);
        },
        "a-name-of-more-than-forty-characters-in-all?",
    ),
    Case(
        "mknod",
        |at| {
            for path in ["a/new", "a/new/"] {
                let kind = rustix::fs::FileType::Fifo;
                let _ = rustix::fs::mknodat(CWD, at(path), kind, Mode::RUSR, 0);
            }
        },
        "a> new=create a> new=plain",
    ),
    Case(
        "symlink",
        |at| {
            let _ = rustix::fs::symlink("b", at("a/new"));
        },
        "a> new=create",
    ),
    Case(
        "link",
        |at| {
            let _ = rustix::fs::link(at("a/b/c"), at("link/../a/new"));
            let _ = rustix::fs::link(at("a/b/c"), at("new"));
        },
        "a> b> c=plain link>.. a>link b>link c>link a> b> c=plain new=create",
    ),
    Case(
        "rmdir",
        |at| {
            let _ = rustix::fs::rmdir(at("a/b/empty"));
            let _ = rustix::fs::unlinkat(CWD, at("a/b/bare/"), AtFlags::REMOVEDIR);
        },
        "a> b> empty=rmdir a> b> bare=rmdir",
    ),
    Case(
        "unlink",
        |at| {
            let _ = rustix::fs::unlink(at("a/b/file"));
            let _ = rustix::fs::unlinkat(CWD, at("a/new/"), AtFlags::empty());
        },
        "a> b> file=unlink a> new=plain",
    ),
    Case(
        "removal of what the kernel holds",
        |at| {
            stat(at("a/b/c"));
            let _ = rustix::fs::unlink(at("a/b/c"));
            stat(at("a/b"));
            let _ = rustix::fs::rmdir(at("a/b"));
        },
        "a> b> c=plain a> b> c=unlink a> b=plain a> b=rmdir",
    ),
    Case(
        "rename",
        |at| rename(at("a/b/fifth"), at("new"), RenameFlags::empty()),
        "a> b> fifth=source new=target",
    ),
    Case(
        "rename where one path ends in no name",
        |at| {
            rename(at("a/b/x"), at("a/."), RenameFlags::empty());
            rename(at("a/.."), at("a/b/x"), RenameFlags::empty());
        },
        "a>beside b>beside a>. a>.. a>beside b>beside",
    ),
    Case(
        "rename with a directory in common",
        |at| rename(at("a/b/x"), at("a/y"), RenameFlags::NOREPLACE),
        "a> b> a> x=source",
    ),
    Case(
        "rename to the same name",
        |at| rename(at("a/b/c"), at("a/c"), RenameFlags::empty()),
        "a> b> a> c=source c=source",
    ),
    Case(
        "rename that exchanges",
        |at| rename(at("a/b/c"), at("a/f"), RenameFlags::EXCHANGE),
        "a> b> a> c=source f=source",
    ),
    Case("symlink on the way", |at| stat(at("a/l/c")), "a> l> b>link c=plain"),
    Case(
        "symlink itself",
        |at| {
            let _ = rustix::fs::lstat(at("link"));
        },
        "link=plain",
    ),
    Case("symlink at the end", |at| stat(at("link")), "link=plain a>link b>link c=plain"),
    Case(
        "O_CREAT through a symlink",
        |at| open(at("link"), OFlags::RDWR | OFlags::CREATE),
        "link=open+create a>link b>link c=open+create",
    ),
    Case("execve", |at| assert!(Command::new(at("a/b/c")).spawn().is_err()), "a> b> c=open"),
    Case("long path", |at| stat(at(&format!("a/b/{}c", long()))), "a>cut b>cut c=plain"),
    Case(
        "long path to make",
        |at| {
            let _ = rustix::fs::mkdir(at(&format!("a/{}new", long())), Mode::RWXU);
        },
        "a>cut new?",
    ),
    Case("second walk after ESTALE", |at| stat(at(STALE)), "stale=plain stale=plain!"),
];

#[test]
fn bpf_tells_what_the_kernel_does() {
    let Some(mounted) = Mounted::new() else { return };
    eprintln!("{}", mounted.why);
    assert!(!mounted.why.starts_with("no hints"), "{}", mounted.why);
    // Its working directory is its own.
    // SAFETY: the thread shares its directory with nobody's invariants.
    let unshared = || unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) };
    let failed = std::thread::scope(|scope| {
        let all = || {
            unshared().unwrap();
            let run = |case: &&Case| {
                let seen = mounted.lookups(case.1);
                let same = seen == case.2;
                if !same {
                    eprintln!("{}:\n  wanted {}\n  seen   {seen}", case.0, case.2);
                }
                !same
            };
            CASES.iter().filter(run).count()
        };
        scope.spawn(all).join().unwrap()
    });
    assert_eq!(failed, 0, "cases failed");
}

/// overlayfs looks up below under its own walk or none, with names that are those of the caller.
#[test]
fn bpf_tells_nothing_through_an_overlay() {
    let Some(mounted) = Mounted::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    for name in ["upper", "work", "merged"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    let lower = mounted.dir.path().display();
    let over = dir.path().display();
    let data = format!("lowerdir={lower},upperdir={over}/upper,workdir={over}/work");
    let data = CString::new(data).unwrap();
    let merged = dir.path().join("merged");
    let flags = MountFlags::empty();
    if let Err(error) = rustix::mount::mount("over", &merged, "overlay", flags, data.as_c_str()) {
        eprintln!("skipped: no overlayfs: {error}");
        return;
    }
    let seen = mounted.lookups(|_| {
        stat(merged.join("a/b/c"));
        open(merged.join("a/b/new"), OFlags::RDWR | OFlags::CREATE);
        let _ = rustix::fs::mkdir(merged.join("a/other"), Mode::RWXU);
        let _ = rustix::fs::unlink(merged.join("a/f"));
        // Held now.
        let _ = rustix::fs::unlink(merged.join("a/f"));
        rename(merged.join("a/b/c"), merged.join("third"), RenameFlags::empty());
    });
    rustix::mount::unmount(&merged, UnmountFlags::DETACH).unwrap();
    for name in ["a", "b", "c", "new", "other", "f", "third"] {
        assert!(seen.split(' ').any(|one| one == format!("{name}?")), "{name}: {seen}");
    }
    assert!(seen.split(' ').all(|one| one.ends_with('?')), "{seen}");
}

#[test]
fn threads_get_hints_of_their_own() {
    let Some(mounted) = Mounted::new() else { return };
    let seen = mounted.lookups(|at| {
        let (at_c, at_f, at_l) = (at("a/b/c"), at("a/f"), at("a/l"));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..200).for_each(|_| stat(&at_c)));
                scope.spawn(|| (0..200).for_each(|_| open(&at_f, OFlags::RDONLY)));
                scope.spawn(|| (0..200).for_each(|_| open(&at_l, OFlags::PATH | OFlags::NOFOLLOW)));
            }
        });
    });
    let count = |wanted: &str| seen.split(' ').filter(|&one| one == wanted).count();
    // Two threads may have one note, and then one of them no hint.
    let none = ["a?", "b?", "c?", "f?", "l?"].map(count).iter().sum::<usize>();
    let right = ["a>", "b>", "c=plain", "f=open", "l=plain"].map(count).iter().sum::<usize>();
    assert_eq!(none + right, seen.split(' ').count(), "{seen}");
    assert!(right > none, "{seen}");
}

/// The 32-bit open(2) or mkdir(2), whose numbers are other syscalls' with 64 bits. From a process of
/// its own, which a kernel without them kills; `None` then.
#[cfg(target_arch = "x86_64")]
fn in_32_bits(nr: u32, path: &Path) -> Option<()> {
    let path = path.as_os_str().as_encoded_bytes();
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    // SAFETY: a new mapping of zeros, larger than the path; the child calls nothing that another
    // thread could have locked, and the assembly puts rbx back.
    let status = unsafe {
        let low = libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0);
        assert!(low != libc::MAP_FAILED && path.len() < 4096);
        low.cast::<u8>().copy_from_nonoverlapping(path.as_ptr(), path.len());
        let child = libc::fork();
        if child == 0 {
            std::arch::asm!(
                "xchg rbx, {path}", "int 0x80", "xchg rbx, {path}",
                path = inout(reg) low => _, inout("eax") nr => _, in("ecx") 0, in("edx") 0,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            );
            libc::_exit(0);
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0);
        libc::munmap(low, 4096);
        status
    };
    (status == 0).then_some(())
}

#[test]
#[cfg(target_arch = "x86_64")]
fn bpf_tells_nothing_of_32_bits() {
    let Some(mounted) = Mounted::new() else { return };
    const OPEN: u32 = 5;
    const MKDIR: u32 = 39;
    let seen = mounted.lookups(|at| {
        if in_32_bits(OPEN, &at("a/f")).is_some() {
            in_32_bits(MKDIR, &at("a/new")).unwrap();
        }
    });
    match seen.as_str() {
        "" => eprintln!("skipped: no 32-bit programs"),
        seen => assert_eq!(seen, "a? f? a? new?"),
    }
}

#[test]
fn without_hints_there_are_none() {
    let Some(mounted) = Mounted::without_hints() else { return };
    assert_eq!(mounted.lookups(|at| stat(at("a/b/c"))), "a? b? c?");
}
