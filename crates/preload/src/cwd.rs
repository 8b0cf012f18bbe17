//! The working directory, when it is below the mount point.
//!
//! The real one stays where it was. Programs that are started learn of ours by a variable, which
//! also says which real one it belongs to: it means nothing after that has changed.

use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::own_variable;
use crate::datasets::Node;
use crate::sys::{self, c_path};

/// The variable: `DEV:INO:PATH`, with the real directory's numbers.
pub const VARIABLE: &str = "SAKER_PRELOAD_CWD";
/// The working directory is a real one.
const NONE: u64 = u64::MAX;

static CWD: AtomicU64 = AtomicU64::new(NONE);

unsafe extern "C" {
    fn setenv(name: *const libc::c_char, value: *const libc::c_char, overwrite: c_int) -> c_int;
    fn unsetenv(name: *const libc::c_char) -> c_int;
}

/// The working directory, if it is ours.
#[inline]
pub fn get() -> Option<Node> {
    match CWD.load(Ordering::Acquire) {
        NONE => None,
        bits => Some(Node::from_bits(bits)),
    }
}

/// It is a directory of ours from now on, or a real one. What is started later is told.
pub fn set(node: Option<Node>) {
    let before = CWD.swap(node.map_or(NONE, Node::to_bits), Ordering::AcqRel);
    let Ok(name) = CString::new(VARIABLE) else { return };
    match told() {
        Some(value) => {
            // SAFETY: strings that end with a zero; the C library copies them.
            unsafe { setenv(name.as_ptr(), value.as_ptr(), 1) };
        }
        None if before != NONE => {
            // SAFETY: a string that ends with a zero.
            unsafe { unsetenv(name.as_ptr()) };
        }
        None => {}
    }
}

fn real() -> Option<(u64, u64)> {
    let stat = sys::stat(c".")?;
    Some((stat.st_dev, stat.st_ino))
}

/// The variable's value, if the directory is ours.
pub fn told() -> Option<CString> {
    let path = get()?.path();
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

/// Takes over what was inherited.
pub fn begin(node: Node) {
    CWD.store(node.to_bits(), Ordering::Release);
}
