//! statfs(2) and statvfs(3).

use std::ffi::{c_char, c_int};

use saker_dataset::Manifest;

use crate::datasets::Node;
use crate::fds;
use crate::next::hook;
use crate::path::{FOLLOW, Place, resolve};
use crate::sys::{answer, fail};

/// `f_type` of datasets: "SAKR".
const MAGIC: i64 = 0x5341_4b52;
const BLOCK_BYTES: u64 = 4096;
/// Read only, no devices, no programs with the rights of others.
const FLAGS: u64 = libc::ST_RDONLY | libc::ST_NODEV | libc::ST_NOSUID;

/// What is said of the file system of a node.
struct Space {
    blocks: u64,
    files: u64,
    id: u64,
}

fn space(node: Node) -> Space {
    let id = node.info().dev;
    let Some(dataset) = node.dataset() else { return Space { blocks: 0, files: 1, id } };
    let manifest = Manifest::read(dataset.staged.dir());
    let blocks = manifest.map_or(0, |manifest| manifest.bytes.div_ceil(BLOCK_BYTES));
    Space { blocks, files: dataset.staged.table().len().into(), id }
}

/// `struct statfs` of 64-bit machines, with its flags, which the crate `libc` does not name.
#[repr(C)]
struct Statfs {
    kind: i64,
    block_bytes: i64,
    blocks: u64,
    blocks_free: u64,
    blocks_available: u64,
    files: u64,
    files_free: u64,
    id: u64,
    name_len: i64,
    fragment_bytes: i64,
    flags: i64,
    spare: [i64; 4],
}

const _: () = assert!(size_of::<Statfs>() == size_of::<libc::statfs>());

/// Set in `flags` where the others are valid.
const FLAGS_VALID: u64 = 0x20;

unsafe fn tell(node: Node, into: *mut libc::statfs) -> c_int {
    if into.is_null() {
        return fail(libc::EFAULT);
    }
    let space = space(node);
    let stat = Statfs {
        kind: MAGIC,
        block_bytes: BLOCK_BYTES as i64,
        blocks: space.blocks,
        blocks_free: 0,
        blocks_available: 0,
        files: space.files,
        files_free: 0,
        id: space.id,
        name_len: 255,
        fragment_bytes: BLOCK_BYTES as i64,
        flags: (FLAGS | FLAGS_VALID) as i64,
        spare: [0; 4],
    };
    // SAFETY: the caller's; both structures are the same.
    unsafe { into.cast::<Statfs>().write(stat) };
    0
}

unsafe fn tell_v(node: Node, into: *mut libc::statvfs) -> c_int {
    if into.is_null() {
        return fail(libc::EFAULT);
    }
    let space = space(node);
    // SAFETY: a plain structure, of which zeros are valid.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    (stat.f_bsize, stat.f_frsize) = (BLOCK_BYTES, BLOCK_BYTES);
    (stat.f_blocks, stat.f_files, stat.f_namemax) = (space.blocks, space.files, 255);
    (stat.f_fsid, stat.f_flag) = (space.id, FLAGS);
    // SAFETY: the caller's.
    unsafe { into.write(stat) };
    0
}

hook! { statfs, statfs64: (path: *const c_char, into: *mut libc::statfs) -> c_int, |next| {
    match resolve(libc::AT_FDCWD, path, FOLLOW) {
        Place::Elsewhere => next(path, into),
        Place::Real(path) => next(path.as_ptr(), into),
        Place::Ours(found) => match found.and_then(|found| found.existing()) {
            Ok(node) => tell(node, into),
            errno => answer(errno.map(|_| 0)),
        },
        Place::Output(output) => match output.real_dir() {
            Ok(dir) => next(dir.as_ptr(), into),
            Err(errno) => fail(errno),
        },
    }
}}

hook! { fstatfs, fstatfs64: (fd: c_int, into: *mut libc::statfs) -> c_int, |next| {
    match fds::get(fd) {
        Some(entry) => tell(entry.node, into),
        None => next(fd, into),
    }
}}

hook! { statvfs, statvfs64: (path: *const c_char, into: *mut libc::statvfs) -> c_int, |next| {
    match resolve(libc::AT_FDCWD, path, FOLLOW) {
        Place::Elsewhere => next(path, into),
        Place::Real(path) => next(path.as_ptr(), into),
        Place::Ours(found) => match found.and_then(|found| found.existing()) {
            Ok(node) => tell_v(node, into),
            errno => answer(errno.map(|_| 0)),
        },
        // As much room as the node's disk has: outputs go to the disks of all nodes.
        Place::Output(output) => match output.real_dir() {
            Ok(dir) => next(dir.as_ptr(), into),
            Err(errno) => fail(errno),
        },
    }
}}

hook! { fstatvfs, fstatvfs64: (fd: c_int, into: *mut libc::statvfs) -> c_int, |next| {
    match fds::get(fd) {
        Some(entry) => tell_v(entry.node, into),
        None => next(fd, into),
    }
}}
