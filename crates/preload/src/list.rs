//! What is in a directory, and getdents64(3).

use std::ffi::{c_int, c_void};

use libc::{dirent64, ssize_t};
use saker_types::FileKind;

use crate::datasets::{MOUNT, Node, names};
use crate::fds;
use crate::next::hook;
use crate::sys::{self, answer};

/// The entries of a directory.
pub struct List {
    node: Node,
    /// Names of the datasets, at the mount point.
    datasets: Vec<Vec<u8>>,
}

/// An entry of a directory.
pub struct ListEntry<'a> {
    name: &'a [u8],
    ino: u64,
    kind: FileKind,
}

impl List {
    /// Of a directory.
    pub fn of(node: Node) -> List {
        List { node, datasets: if node == MOUNT { names() } else { Vec::new() } }
    }

    /// Reads it again, as rewinddir(3) must.
    pub fn refresh(&mut self) {
        *self = List::of(self.node);
    }

    /// Entry `n`; the first two are the directory and the one above.
    pub fn get(&self, n: u64) -> Option<ListEntry<'_>> {
        let entry = |name, node: Node| ListEntry { name, ino: node.info().ino, kind: node.kind() };
        match n {
            0 => Some(entry(b".", self.node)),
            1 => Some(entry(b"..", self.node.parent())),
            n if self.node == MOUNT => {
                let name = self.datasets.get(n as usize - 2)?;
                Some(ListEntry { name, ino: 1, kind: FileKind::Directory })
            }
            n => self.node.nth_child(n - 2).map(|(name, node)| entry(name, node)),
        }
    }
}

fn type_of(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => libc::DT_REG,
        FileKind::Directory => libc::DT_DIR,
        FileKind::Symlink => libc::DT_LNK,
        FileKind::Fifo => libc::DT_FIFO,
        FileKind::Socket => libc::DT_SOCK,
        FileKind::CharDevice => libc::DT_CHR,
        FileKind::BlockDevice => libc::DT_BLK,
    }
}

/// Bytes of a `struct dirent64` before the name.
const HEADER_BYTES: usize = std::mem::offset_of!(dirent64, d_name);

/// Writes an entry; returns its length. `next` is the position after it.
///
/// # Safety
/// There is room for it.
pub unsafe fn write(entry: &ListEntry<'_>, next: u64, into: *mut u8) -> usize {
    let len = record_bytes(entry);
    // SAFETY: the caller's; a structure in memory of bytes, written field by field.
    unsafe {
        into.write_bytes(0, len);
        let at = into.cast::<dirent64>();
        (&raw mut (*at).d_ino).write_unaligned(entry.ino);
        (&raw mut (*at).d_off).write_unaligned(next as i64);
        (&raw mut (*at).d_reclen).write_unaligned(len as u16);
        (&raw mut (*at).d_type).write(type_of(entry.kind));
        let name = (&raw mut (*at).d_name).cast::<u8>();
        name.copy_from_nonoverlapping(entry.name.as_ptr(), entry.name.len());
    }
    len
}

fn record_bytes(entry: &ListEntry<'_>) -> usize {
    (HEADER_BYTES + entry.name.len() + 1).next_multiple_of(8)
}

/// The position is that of the real directory which stands for ours, so that copies of the
/// descriptor share it.
fn entries(fd: c_int, node: Node, into: *mut u8, room: usize) -> sys::Result<ssize_t> {
    if !node.is_dir() {
        return Err(libc::ENOTDIR);
    }
    let mut at = sys::lseek(fd, 0, libc::SEEK_CUR)? as u64;
    let (list, mut filled) = (List::of(node), 0);
    while let Some(entry) = list.get(at) {
        if filled + record_bytes(&entry) > room {
            if filled == 0 {
                return Err(libc::EINVAL);
            }
            break;
        }
        at += 1;
        // SAFETY: there is room for it, if the caller gave as much as is said.
        filled += unsafe { write(&entry, at, into.add(filled)) };
    }
    sys::lseek(fd, at as i64, libc::SEEK_SET)?;
    Ok(filled as ssize_t)
}

hook! { getdents64: (fd: c_int, into: *mut c_void, room: usize) -> ssize_t, |next| {
    match fds::get(fd) {
        Some(entry) => answer(entries(fd, entry.node, into.cast(), room)),
        None => next(fd, into, room),
    }
}}
