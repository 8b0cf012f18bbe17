//! What is in a directory, and getdents64(3).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libc::{dirent64, ssize_t};
use saker_agent_api::OutputEntry;
use saker_types::FileKind;

use crate::datasets::{MOUNT, Node, names};
use crate::next::hook;
use crate::output::Output;
use crate::sys::{self, answer};
use crate::{fds, outfds};

/// The entries of a directory.
pub struct List {
    of: Of,
    /// Names of the datasets, at the mount point.
    datasets: Vec<Vec<u8>>,
    /// Of a directory of outputs.
    outputs: Arc<Vec<OutputEntry>>,
}

/// A directory.
enum Of {
    Node(Node),
    Output(Output),
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
        let datasets = if node == MOUNT { names() } else { Vec::new() };
        List { of: Of::Node(node), datasets, outputs: Arc::default() }
    }

    /// Of a directory of outputs.
    ///
    /// # Errors
    /// As of [`Output::list`].
    pub fn of_output(output: &Output) -> sys::Result<List> {
        Ok(List::of_entries(output, Arc::new(output.list()?)))
    }

    /// Of a directory of outputs with these names.
    fn of_entries(output: &Output, outputs: Arc<Vec<OutputEntry>>) -> List {
        List { of: Of::Output(output.clone()), datasets: Vec::new(), outputs }
    }

    /// Reads it again, as rewinddir(3) must.
    pub fn refresh(&mut self) {
        match &self.of {
            Of::Node(node) => *self = List::of(*node),
            // No error can be told: what was read before stays.
            Of::Output(output) => {
                self.outputs = output.list().map_or_else(|_| self.outputs.clone(), Arc::new);
            }
        }
    }

    /// Entry `n`; the first two are the directory and the one above.
    pub fn get(&self, n: u64) -> Option<ListEntry<'_>> {
        let entry = |name, node: Node| ListEntry { name, ino: node.info().ino, kind: node.kind() };
        let node = match &self.of {
            Of::Node(node) => *node,
            Of::Output(output) => return self.get_output(output, n),
        };
        match n {
            0 => Some(entry(b".", node)),
            1 => Some(entry(b"..", node.parent())),
            n if node == MOUNT => {
                let name = self.datasets.get(n as usize - 2)?;
                Some(ListEntry { name, ino: 1, kind: FileKind::Directory })
            }
            n => node.nth_child(n - 2).map(|(name, node)| entry(name, node)),
        }
    }

    fn get_output(&self, output: &Output, n: u64) -> Option<ListEntry<'_>> {
        let dir = |name, ino| ListEntry { name, ino, kind: FileKind::Directory };
        match n {
            0 => Some(dir(b".", output.known.map_or(1, |info| info.ino))),
            1 => Some(dir(b"..", 1)),
            n => {
                let OutputEntry { name, is_dir, ino } = self.outputs.get(n as usize - 2)?;
                let kind = if *is_dir { FileKind::Directory } else { FileKind::Regular };
                Some(ListEntry { name, ino: *ino, kind })
            }
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

/// The list of a directory that is read from entry `at` on; `None`: it is none of ours.
fn list_of(fd: c_int, at: u64) -> sys::Result<Option<List>> {
    if let Some(entry) = fds::get(fd) {
        let is_dir = entry.node.is_dir();
        return if is_dir { Ok(Some(List::of(entry.node))) } else { Err(libc::ENOTDIR) };
    }
    let Some(handle) = outfds::get(fd) else { return Ok(None) };
    match handle.output() {
        None => Ok(None),
        Some(output) if !output.is_of_dir => Err(libc::ENOTDIR),
        Some(output) => Ok(Some(List::of_entries(output, handle.list(at == 0)?))),
    }
}

/// The position is that of the real directory which stands for ours, so that copies of the
/// descriptor share it. `None`: it is no directory of ours.
fn entries(fd: c_int, into: *mut u8, room: usize) -> sys::Result<Option<ssize_t>> {
    let is_ours = fds::get(fd).is_some() || fds::is_marked(fd);
    let mut at = if is_ours { sys::lseek(fd, 0, libc::SEEK_CUR)? as u64 } else { 0 };
    let Some(list) = list_of(fd, at)? else { return Ok(None) };
    let mut filled = 0;
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
    Ok(Some(filled as ssize_t))
}

hook! { getdents64: (fd: c_int, into: *mut c_void, room: usize) -> ssize_t, |next| {
    match entries(fd, into.cast(), room) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => next(fd, into, room),
        Err(errno) => answer(Err(errno)),
    }
}}
