//! Descriptors with files' data.

use std::borrow::Cow;
use std::ffi::{OsStr, c_int};
use std::os::unix::ffi::OsStrExt;

use saker_dataset::{Codec, FileData};
use saker_types::FileKind;

use crate::agent::{self, Refused};
use crate::datasets::{Dataset, Node, datasets_dir};
use crate::fds::{self, Entry, Kind, Window};
use crate::sys::{self, Result, c_path, syscall};

/// Flags of open(2) that a descriptor of ours takes over.
const KEPT: c_int = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_PATH | libc::O_NOFOLLOW;
/// Bytes of a block as it is stored, at most: a damaged table may say anything.
const STORED_BYTES_MAX: u64 = 4 << 20;
/// Files that a program inherits above its standard descriptors are copied if they have no more
/// bytes: more likely than not, it does not need them.
const INHERITED_BYTES_MAX: u64 = 64 << 20;
/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 30;

/// Opens a node for reading, after all checks.
///
/// # Errors
/// ESTALE if the dataset was replaced, ENXIO of what has no data, EIO if the data is not to be had, what the agent says, of the system.
pub fn open(node: Node, flags: c_int) -> Result {
    let is_path = flags & libc::O_PATH != 0;
    match (node.kind(), node.dataset()) {
        (FileKind::Regular, Some(dataset)) if !is_path => {
            let data = node.data().ok_or(libc::EIO)?;
            open_file(node, dataset, &data, flags & KEPT)
        }
        (FileKind::Directory, dataset) => {
            dataset.map_or(Ok(()), Dataset::check)?;
            open_dir(node, flags)
        }
        (_, Some(dataset)) if is_path => {
            let table = dataset.staged.table().path().as_os_str().as_bytes().to_vec();
            let fd = sys::open(&c_path(table)?, flags & KEPT)?;
            note(fd, Entry { kind: Kind::Bare, node, base: 0 })
        }
        _ => Err(libc::ENXIO),
    }
}

/// The real directory that it is in stands for a directory: calls that need another kind of file
/// fail on it as they should.
fn open_dir(node: Node, flags: c_int) -> Result {
    let path = match node.dataset() {
        Some(dataset) => dataset.dir.clone(),
        None => c_path(datasets_dir().into_os_string().into_encoded_bytes())?,
    };
    let fd = match sys::open(&path, flags & (KEPT | libc::O_DIRECTORY) & !libc::O_NOFOLLOW) {
        // Nothing is staged here.
        Err(libc::ENOENT) if node.dataset().is_none() => {
            sys::open(c"/", flags & (KEPT | libc::O_DIRECTORY) & !libc::O_NOFOLLOW)?
        }
        other => other?,
    };
    note(fd, Entry { kind: Kind::Bare, node, base: 0 })
}

/// Notes what a new descriptor leads to, or closes it.
fn note(fd: c_int, entry: Entry) -> Result {
    match fds::set(fd, entry) {
        Ok(()) => Ok(fd),
        // A child of vfork(2), which is about to start another program: that needs all of a file.
        Err(libc::ENOTSUP) if entry.kind != Kind::Window => Ok(fd),
        Err(libc::ENOTSUP) => {
            let size = entry.node.info().size;
            let window = Window { fd, base: entry.base, size, node: entry.node };
            copy(&window).map(|_| fd)
        }
        Err(errno) => {
            let _ = sys::close(fd);
            Err(errno)
        }
    }
}

fn open_file(node: Node, dataset: &Dataset, data: &FileData, flags: c_int) -> Result {
    let local = dataset.staged.local(node.ino(), data);
    let flags = flags & !libc::O_NOFOLLOW;
    // Of a file without data, the partition need not be here.
    let path = if data.size == 0 { dataset.staged.table().path() } else { &local.path };
    if data.codec == Codec::None || data.size == 0 {
        match sys::open(&c_path(path.as_os_str().as_bytes().to_vec())?, flags) {
            Err(libc::ENOENT) => {}
            other => {
                let fd = other?;
                let base = if data.size == 0 { 0 } else { local.offset };
                let seek = || sys::lseek(fd, base as i64, libc::SEEK_SET);
                dataset.check_opened(fd).and_then(|()| seek()).inspect_err(|_| {
                    let _ = sys::close(fd);
                })?;
                return note(fd, Entry { kind: Kind::Window, node, base });
            }
        }
    }
    dataset.check()?;
    let (memfd, kind) = match agent::open(node) {
        Ok(memfd) if has_size(memfd, data.size) => (memfd, Kind::Shared),
        // Of another dataset of this name, or damaged.
        Ok(memfd) => {
            let _ = sys::close(memfd);
            agent::close(node);
            return Err(libc::EIO);
        }
        Err(Refused::Said(errno)) => return Err(errno),
        Err(Refused::Unreachable) => {
            (expand(dataset, local.path.as_os_str(), local.offset, data)?, Kind::Memory)
        }
    };
    let again = sys::reopen(memfd, libc::O_RDONLY | flags);
    let _ = sys::close(memfd);
    let noted = again.and_then(|fd| note(fd, Entry { kind, node, base: 0 }));
    if noted.is_err() && kind == Kind::Shared {
        agent::close(node);
    }
    noted
}

/// A descriptor leads to a regular file of so many bytes.
fn has_size(fd: c_int, size: u64) -> bool {
    sys::fstat(fd).is_some_and(|stat| {
        stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_size as u64 == size
    })
}

/// A file of a partition of this node, expanded into memory.
fn expand(dataset: &Dataset, path: &OsStr, offset: u64, data: &FileData) -> Result {
    let part = sys::open(&c_path(path.as_bytes().to_vec())?, libc::O_CLOEXEC);
    let part = part.map_err(|_| libc::EIO)?;
    let expanded = sys::memfd().and_then(|memfd| {
        let written = expand_into(memfd, dataset, part, offset, data);
        written.map(|()| memfd).inspect_err(|_| {
            let _ = sys::close(memfd);
        })
    });
    let _ = sys::close(part);
    expanded
}

fn expand_into(
    memfd: c_int,
    dataset: &Dataset,
    part: c_int,
    offset: u64,
    data: &FileData,
) -> Result<()> {
    let table = dataset.staged.table();
    for n in 0..data.blocks() {
        let range = table.stored_block(data, n).ok_or(libc::EIO)?;
        let len = range.end - range.start;
        if len > STORED_BYTES_MAX {
            return Err(libc::EIO);
        }
        let mut stored = vec![0; len as usize];
        let at = offset.checked_add(range.start).ok_or(libc::EIO)?;
        sys::pread_exact(part, &mut stored, at)?;
        let block = table.expand(data, n, Cow::Owned(stored)).map_err(|_| libc::EIO)?;
        sys::write_all(memfd, &block)?;
    }
    Ok(())
}

/// Copies a window's file into memory, and puts it in the descriptor's place: with the same number,
/// flags and position. What reads it need not know of us.
///
/// # Errors
/// Of the system, ENOMEM among them.
pub fn materialize(fd: c_int) -> Result<()> {
    let Some(window) = fds::window(fd) else { return Ok(()) };
    copy(&window)?;
    match fds::set(fd, Entry { kind: Kind::Memory, node: window.node, base: 0 }) {
        // A child of vfork(2): its parent has the window still.
        Err(libc::ENOTSUP) => Ok(()),
        other => other,
    }
}

fn copy(window: &Window) -> Result<()> {
    let flags = sys::fcntl(window.fd, libc::F_GETFL, 0)?;
    if flags & libc::O_PATH != 0 {
        return Ok(());
    }
    let position = window.position()?;
    let cloexec = sys::fcntl(window.fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
    let cloexec = if cloexec { libc::O_CLOEXEC } else { 0 };
    let memfd = copy_of(window)?;
    let again = sys::reopen(memfd, flags & KEPT & !libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let _ = sys::close(memfd);
    let again = again?;
    let moved = sys::lseek(again, position as i64, libc::SEEK_SET).and_then(|_| {
        // SAFETY: touches no memory.
        unsafe { syscall!(libc::SYS_dup3, again, window.fd, cloexec) }
    });
    let _ = sys::close(again);
    moved.map(|_| ())
}

/// A memfd with a window's file.
///
/// # Errors
/// Of the system; EIO if the partition is too short.
pub fn copy_of(window: &Window) -> Result {
    copy_of_part(window.fd, window.base as i64, window.size)
}

/// Bytes of memory of this machine.
fn memory_bytes() -> u64 {
    // SAFETY: they touch no memory of ours.
    let (pages, page) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    (pages.max(0) as u64).saturating_mul(page.max(0) as u64)
}

/// A memfd with `len` bytes of a real file.
///
/// # Errors
/// Of the system; ENOMEM if that would take more than half of the memory; EIO if the file is too
/// short.
pub fn copy_of_part(fd: c_int, mut at: i64, len: u64) -> Result {
    if len > memory_bytes() / 2 {
        return Err(libc::ENOMEM);
    }
    let memfd = sys::memfd()?;
    let end = at as u64 + len;
    while (at as u64) < end {
        let len = ((end - at as u64) as usize).min(COPY_BYTES);
        // SAFETY: a valid place for the position.
        match unsafe { syscall!(libc::SYS_sendfile, memfd, fd, &raw mut at, len) } {
            Ok(n) if n > 0 => {}
            Err(libc::EINTR) => {}
            wrong => {
                let _ = sys::close(memfd);
                return Err(wrong.err().unwrap_or(libc::EIO));
            }
        }
    }
    Ok(memfd)
}

/// Descriptors that a program which is started inherits are whole files from now on; large ones
/// above the standard descriptors are not inherited.
///
/// # Errors
/// Of the system.
pub fn materialize_inherited() -> Result<()> {
    for (fd, entry) in fds::all() {
        if entry.kind != Kind::Window {
            continue;
        }
        // A child of vfork(2) may have closed it, or put another in its place.
        let is_inherited =
            sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0);
        if !is_inherited || !is_still(fd, &entry) {
            continue;
        }
        if fd > libc::STDERR_FILENO && entry.node.info().size > INHERITED_BYTES_MAX {
            sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC)?;
        } else {
            materialize(fd)?;
        }
    }
    Ok(())
}

/// It is a descriptor of the partition that the entry is in.
fn is_still(fd: c_int, entry: &Entry) -> bool {
    let (Some(dataset), Some(data)) = (entry.node.dataset(), entry.node.data()) else {
        return false;
    };
    let local = dataset.staged.local(entry.node.ino(), &data);
    let path = if data.size == 0 { dataset.staged.table().path() } else { &local.path };
    let Ok(path) = c_path(path.as_os_str().as_bytes().to_vec()) else { return false };
    let Ok(own) = c_path(format!("/proc/self/fd/{fd}").into_bytes()) else { return false };
    match (sys::stat(&own), sys::stat(&path)) {
        (Some(own), Some(part)) => (own.st_dev, own.st_ino) == (part.st_dev, part.st_ino),
        _ => false,
    }
}
