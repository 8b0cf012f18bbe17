//! The working directory, when it is below the mount point.
//!
//! The real one stays where it was. Programs that are started learn of ours by a variable, which
//! also says which real one it belongs to: it means nothing after that has changed.

use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

use crate::config::{config, own_variable};
use crate::datasets::Node;
use crate::output::Output;
use crate::process::owns_its_memory;
use crate::sys::{self, c_path, syscall};

/// The variable: `DEV:INO:PATH`, with the real directory's numbers.
pub const VARIABLE: &str = "SAKER_PRELOAD_CWD";
/// The working directory is a real one.
const REAL: u64 = u64::MAX;
/// And so many bytes of the mount point's path: lower by that. No node has numbers so high.
const ABOVE: u64 = REAL - 1;
/// Set in the bits of a directory of outputs, whose number is the rest. No node has this one.
const OUTPUT: u64 = 1 << 60;
const ABOVE_LEAST: u64 = ABOVE - libc::PATH_MAX as u64;

/// Where a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cwd {
    /// In a real directory.
    Real,
    /// In a real directory above the mount point, whose path is so many bytes of that.
    Above(usize),
    /// In a directory of ours.
    Ours(Node),
    /// In a directory of outputs, by its number.
    Output(u32),
}

/// Directories of outputs that a process can have been in.
const OUTPUTS_MAX: usize = 4096;
/// Those that it has been in; never freed.
static OUTPUTS: [AtomicPtr<Output>; OUTPUTS_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; OUTPUTS_MAX];

/// The number of a directory of outputs.
///
/// # Errors
/// ENOMEM: there have been too many.
pub fn intern(found: &Output) -> sys::Result<u32> {
    let wanted = Output { known: None, ..found.clone() };
    let new = Box::into_raw(Box::new(wanted.clone()));
    for (n, place) in OUTPUTS.iter().enumerate() {
        let null = std::ptr::null_mut();
        if place.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return Ok(n as u32);
        }
        if output(n as u32) == Some(&wanted) {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
            return Ok(n as u32);
        }
    }
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(new) });
    Err(libc::ENOMEM)
}

/// The directory of outputs with a number.
pub fn output(n: u32) -> Option<&'static Output> {
    // SAFETY: never freed.
    unsafe { OUTPUTS.get(n as usize)?.load(Ordering::Acquire).as_ref() }
}

static CWD: AtomicU64 = AtomicU64::new(REAL);

/// Children of vfork(2) that have changed their directory: by process number, in this memory.
const CHILDREN: usize = 16;
static CHILD: [(AtomicI32, AtomicU64); CHILDREN] =
    [const { (AtomicI32::new(0), AtomicU64::new(REAL)) }; CHILDREN];
static HAS_CHILDREN: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn setenv(name: *const libc::c_char, value: *const libc::c_char, overwrite: c_int) -> c_int;
    fn unsetenv(name: *const libc::c_char) -> c_int;
}

impl Cwd {
    fn to_bits(self) -> u64 {
        match self {
            Cwd::Real => REAL,
            Cwd::Above(len) => ABOVE - len as u64,
            Cwd::Ours(node) => node.to_bits(),
            Cwd::Output(n) => OUTPUT | u64::from(n),
        }
    }

    fn from_bits(bits: u64) -> Cwd {
        match bits {
            REAL => Cwd::Real,
            ABOVE_LEAST..=ABOVE => Cwd::Above((ABOVE - bits) as usize),
            bits if bits & OUTPUT != 0 => Cwd::Output(bits as u32),
            bits => Cwd::Ours(Node::from_bits(bits)),
        }
    }
}

/// Where this process is.
#[inline]
pub fn get() -> Cwd {
    let mut bits = CWD.load(Ordering::Acquire);
    if HAS_CHILDREN.load(Ordering::Acquire) {
        let pid = sys::pid();
        let (child, own) = &CHILD[pid as usize % CHILDREN];
        if child.load(Ordering::Acquire) == pid {
            bits = own.load(Ordering::Acquire);
        }
    }
    Cwd::from_bits(bits)
}

/// The path of the working directory, if that is below the mount point.
pub fn path() -> Option<Vec<u8>> {
    match get() {
        Cwd::Ours(node) => Some(node.path()),
        Cwd::Output(n) => output(n).map(Output::full_path),
        Cwd::Real | Cwd::Above(_) => None,
    }
}

/// It is another one from now on. What is started later is told.
pub fn set(cwd: Cwd) {
    if !owns_its_memory() {
        let pid = sys::pid();
        let (child, own) = &CHILD[pid as usize % CHILDREN];
        own.store(cwd.to_bits(), Ordering::Release);
        child.store(pid, Ordering::Release);
        return HAS_CHILDREN.store(true, Ordering::Release);
    }
    let before = Cwd::from_bits(CWD.swap(cwd.to_bits(), Ordering::AcqRel));
    let Ok(name) = CString::new(VARIABLE) else { return };
    match told() {
        Some(value) => {
            // SAFETY: strings that end with a zero; the C library copies them.
            unsafe { setenv(name.as_ptr(), value.as_ptr(), 1) };
        }
        None if matches!(before, Cwd::Ours(_) | Cwd::Output(_)) => {
            // SAFETY: a string that ends with a zero.
            unsafe { unsetenv(name.as_ptr()) };
        }
        None => {}
    }
}

/// Where the real directory is, by the mount point.
pub fn find_real() -> Cwd {
    let mut path = [0_u8; libc::PATH_MAX as usize];
    // SAFETY: the buffer is that long.
    let len = unsafe { syscall!(libc::SYS_getcwd, path.as_mut_ptr(), path.len()) };
    let Ok(len) = len else { return Cwd::Real };
    // With a zero; and the root is the only one that ends with a slash.
    let path = path[..(len as usize).saturating_sub(1)]
        .strip_suffix(b"/")
        .unwrap_or(&path[..len as usize - 1]);
    match config().mount.strip_prefix(path) {
        Some(rest) if rest.starts_with(b"/") => Cwd::Above(path.len()),
        _ => Cwd::Real,
    }
}

/// In a child: numbers of processes mean nothing here.
pub fn after_fork() {
    if HAS_CHILDREN.swap(false, Ordering::AcqRel) {
        CHILD.iter().for_each(|(child, _)| child.store(0, Ordering::Release));
    }
}

fn real() -> Option<(u64, u64)> {
    let stat = sys::stat(c".")?;
    Some((stat.st_dev, stat.st_ino))
}

/// The variable's value, if the directory is ours.
pub fn told() -> Option<CString> {
    let path = path()?;
    let (dev, ino) = real()?;
    let mut value = format!("{dev}:{ino}:").into_bytes();
    value.extend(path);
    c_path(value).ok()
}

/// The path that this process was told by the one that started it, if it still holds.
pub fn inherited() -> Option<&'static [u8]> {
    let value = own_variable(VARIABLE.as_bytes())?;
    let mut parts = value.splitn(3, |c| *c == b':');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    let noted = (number()?, number()?);
    (real()? == noted).then_some(())?;
    parts.next()
}

/// Where the process is when the library is loaded.
pub fn begin(cwd: Cwd) {
    CWD.store(cwd.to_bits(), Ordering::Release);
}
