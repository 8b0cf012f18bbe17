//! Directories: opendir(3) and its relatives.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};

use libc::{DIR, dirent64, ssize_t};
use saker_types::FileKind;

use crate::close::forget;
use crate::datasets::{MOUNT, Node, names};
use crate::fds;
use crate::next::hook;
use crate::open::open_at;
use crate::sys::{self, answer, answer_ptr, fail};

/// A directory that is being read.
///
/// The C library's own structure begins with a descriptor and a lock: never with these words.
#[repr(C)]
struct Dir {
    magic: [u64; 2],
    fd: c_int,
    list: List,
    /// Entries that were read.
    at: u64,
    entry: dirent64,
}

const MAGIC: [u64; 2] = [0xffff_ffff_5341_4b45, 0x5244_4952_5341_4b52];

/// The entries of a directory.
pub struct List {
    node: Node,
    /// Names of the datasets, at the mount point.
    datasets: Vec<Vec<u8>>,
}

/// An entry of a directory.
pub struct Entry<'a> {
    name: &'a [u8],
    ino: u64,
    kind: FileKind,
}

impl List {
    /// Of a directory.
    pub fn of(node: Node) -> List {
        List { node, datasets: if node == MOUNT { names() } else { Vec::new() } }
    }

    /// Entry `n`; the first two are the directory and the one above.
    pub fn get(&self, n: u64) -> Option<Entry<'_>> {
        let entry = |name, node: Node| Entry { name, ino: node.info().ino, kind: node.kind() };
        match n {
            0 => Some(entry(b".", self.node)),
            1 => Some(entry(b"..", self.node.parent())),
            n if self.node == MOUNT => {
                let name = self.datasets.get(n as usize - 2)?;
                Some(Entry { name, ino: 1, kind: FileKind::Directory })
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
unsafe fn write(entry: &Entry<'_>, next: u64, into: *mut u8) -> usize {
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

fn record_bytes(entry: &Entry<'_>) -> usize {
    (HEADER_BYTES + entry.name.len() + 1).next_multiple_of(8)
}

unsafe fn ours<'a>(dir: *mut DIR) -> Option<&'a mut Dir> {
    if dir.is_null() {
        return None;
    }
    let words = dir.cast::<u64>();
    // SAFETY: both structures are longer, and hold words there.
    unsafe { ([words.read(), words.add(1).read()] == MAGIC).then(|| &mut *dir.cast::<Dir>()) }
}

/// A stream of a descriptor that leads to a directory of ours.
fn stream(fd: c_int, node: Node) -> *mut DIR {
    // SAFETY: a plain structure, of which zeros are valid.
    let entry = unsafe { std::mem::zeroed() };
    let at = sys::lseek(fd, 0, libc::SEEK_CUR).unwrap_or(0) as u64;
    Box::into_raw(Box::new(Dir { magic: MAGIC, fd, list: List::of(node), at, entry })).cast()
}

impl Dir {
    fn next(&mut self) -> *mut dirent64 {
        let Some(entry) = self.list.get(self.at) else { return std::ptr::null_mut() };
        self.at += 1;
        let into = &raw mut self.entry;
        // SAFETY: names have 255 bytes at most, and the structure has room for them.
        unsafe { write(&entry, self.at, into.cast()) };
        into
    }
}

/// Opens a directory of ours, or another by `next`.
///
/// # Safety
/// `path` is null or ends with a zero.
pub unsafe fn open(
    dirfd: c_int,
    path: *const c_char,
    next: impl FnOnce(c_int, *const c_char) -> *mut DIR,
) -> *mut DIR {
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let (mut elsewhere, mut next) = (std::ptr::null_mut(), Some(next));
    // SAFETY: the caller's.
    let fd = unsafe {
        open_at(dirfd, path, flags, |dirfd, path| {
            elsewhere = next.take().map_or(std::ptr::null_mut(), |next| next(dirfd, path));
            -1
        })
    };
    match fds::get(fd) {
        Some(entry) => stream(fd, entry.node),
        // A child of vfork(2) notes nothing.
        None if fd >= 0 => {
            let _ = sys::close(fd);
            answer_ptr(Err(libc::ENOTSUP))
        }
        None => elsewhere,
    }
}

hook! { opendir: (path: *const c_char) -> *mut DIR, |next| {
    open(libc::AT_FDCWD, path, |_, path| next(path))
}}

hook! { fdopendir: (fd: c_int) -> *mut DIR, |next| {
    match fds::get(fd) {
        Some(entry) if !entry.node.is_dir() => answer_ptr(Err(libc::ENOTDIR)),
        Some(entry) => match sys::fcntl(fd, libc::F_GETFL, 0) {
            Ok(flags) if flags & libc::O_PATH == 0 => stream(fd, entry.node),
            _ => answer_ptr(Err(libc::EBADF)),
        },
        None => next(fd),
    }
}}

hook! { readdir, readdir64: (dir: *mut DIR) -> *mut dirent64, |next| {
    match ours(dir) {
        Some(dir) => dir.next(),
        None => next(dir),
    }
}}

hook! {
    readdir_r, readdir64_r:
    (dir: *mut DIR, entry: *mut dirent64, result: *mut *mut dirent64) -> c_int, |next| {
        let Some(dir) = ours(dir) else { return next(dir, entry, result) };
        *result = std::ptr::null_mut();
        let got = dir.next();
        if !got.is_null() {
            let len = (*got).d_reclen as usize;
            entry.cast::<u8>().copy_from_nonoverlapping(got.cast(), len);
            *result = entry;
        }
        0
    }
}

hook! { closedir: (dir: *mut DIR) -> c_int, |next| {
    let Some(ours) = ours(dir) else { return next(dir) };
    let fd = ours.fd;
    ours.magic = [0; 2];
    drop(Box::from_raw(dir.cast::<Dir>()));
    forget(fd);
    answer(sys::close(fd))
}}

hook! { rewinddir: (dir: *mut DIR) -> (), |next| {
    match ours(dir) {
        Some(dir) => {
            dir.list = List::of(dir.list.node);
            dir.at = 0;
        }
        None => next(dir),
    }
}}

hook! { seekdir: (dir: *mut DIR, to: c_long) -> (), |next| {
    match ours(dir) {
        Some(dir) => dir.at = to.max(0) as u64,
        None => next(dir, to),
    }
}}

hook! { telldir: (dir: *mut DIR) -> c_long, |next| {
    match ours(dir) {
        Some(dir) => dir.at as c_long,
        None => next(dir),
    }
}}

hook! { dirfd: (dir: *mut DIR) -> c_int, |next| {
    match ours(dir) {
        Some(dir) => dir.fd,
        None => next(dir),
    }
}}

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

type Filter = Option<unsafe extern "C" fn(*const dirent64) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int>;

/// scandir(3) of a directory of ours, by its own stream.
unsafe fn scan(
    dirfd: c_int,
    path: *const c_char,
    into: *mut *mut *mut dirent64,
    filter: Filter,
    compare: Compare,
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    let mut elsewhere = None;
    // SAFETY: the caller's.
    let dir = unsafe {
        open(dirfd, path, |dirfd, path| {
            elsewhere = Some(next(dirfd, path));
            std::ptr::null_mut()
        })
    };
    if dir.is_null() {
        return elsewhere.unwrap_or(-1);
    }
    // SAFETY: the stream is ours; entries and the list are the caller's to free.
    unsafe {
        let mut found: Vec<*mut dirent64> = Vec::new();
        while let Some(entry) = readdir(dir).as_ref() {
            if filter.is_some_and(|wanted| wanted(entry) == 0) {
                continue;
            }
            let len = entry.d_reclen as usize;
            let copy = libc::malloc(len.max(size_of::<dirent64>())).cast::<u8>();
            if copy.is_null() {
                break;
            }
            copy.copy_from_nonoverlapping((&raw const *entry).cast(), len);
            found.push(copy.cast());
        }
        closedir(dir);
        let bytes = size_of_val(&found[..]).max(1);
        let list = libc::malloc(bytes).cast::<*mut dirent64>();
        if list.is_null() {
            return fail(libc::ENOMEM);
        }
        list.copy_from_nonoverlapping(found.as_ptr(), found.len());
        if let Some(compare) = compare {
            // Both take pointers to what is sorted.
            let compare = std::mem::transmute::<
                unsafe extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int,
                unsafe extern "C" fn(*const c_void, *const c_void) -> c_int,
            >(compare);
            libc::qsort(list.cast(), found.len(), size_of::<*mut dirent64>(), Some(compare));
        }
        *into = list;
        found.len() as c_int
    }
}

hook! {
    scandir, scandir64:
    (path: *const c_char, into: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int,
    |next| {
        scan(libc::AT_FDCWD, path, into, filter, compare, |_, path| {
            next(path, into, filter, compare)
        })
    }
}

hook! {
    scandirat, scandirat64:
    (dirfd: c_int, path: *const c_char, into: *mut *mut *mut dirent64, filter: Filter, compare: Compare)
        -> c_int, |next| {
        scan(dirfd, path, into, filter, compare, |dirfd, path| {
            next(dirfd, path, into, filter, compare)
        })
    }
}

/// `glob_t`, with the functions that it may have.
#[repr(C)]
struct Glob {
    paths: usize,
    list: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    closedir: *const c_void,
    readdir: *const c_void,
    opendir: *const c_void,
    lstat: *const c_void,
    stat: *const c_void,
}

const GLOB_ALTDIRFUNC: c_int = 1 << 9;

hook! {
    glob, glob64:
    (pattern: *const c_char, flags: c_int, failed: *const c_void, into: *mut Glob) -> c_int, |next| {
        let is_ours = match CStr::from_ptr(pattern).to_bytes() {
            path if path.starts_with(b"/") => crate::path::below(path).is_some(),
            _ => crate::cwd::get() != crate::cwd::Cwd::Real,
        };
        if !is_ours || flags & GLOB_ALTDIRFUNC != 0 {
            return next(pattern, flags, failed, into);
        }
        let glob = &mut *into;
        glob.closedir = closedir as *const c_void;
        glob.readdir = readdir as *const c_void;
        glob.opendir = opendir as *const c_void;
        glob.lstat = libc::lstat as *const c_void;
        glob.stat = libc::stat as *const c_void;
        let got = next(pattern, flags | GLOB_ALTDIRFUNC, failed, into);
        glob.flags &= !GLOB_ALTDIRFUNC;
        got
    }
}
