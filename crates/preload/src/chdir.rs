//! The working directory: chdir(2), getcwd(3).

use std::ffi::{c_char, c_int};

use libc::size_t;
use saker_types::FileKind;

use crate::access::{EXECUTE, Who, permit};
use crate::cwd::{self, Cwd};
use crate::datasets::Node;
use crate::next::hook;
use crate::output::Output;
use crate::path::{FOLLOW, Place, resolve};
use crate::sys::{self, Result, answer, answer_ptr, write_path};
use crate::{fds, outfds};

fn enter(node: Node) -> Result {
    if !node.is_dir() {
        return Err(libc::ENOTDIR);
    }
    permit(node, EXECUTE, Who::Effective)?;
    cwd::set(Cwd::Ours(node));
    Ok(0)
}

fn enter_output(output: &Output) -> Result {
    if output.info()?.kind != FileKind::Directory {
        return Err(libc::ENOTDIR);
    }
    cwd::set(Cwd::Output(cwd::intern(output)?));
    Ok(0)
}

/// The working directory is another real one, if that worked.
fn left(result: c_int) -> c_int {
    if result == 0 {
        let errno = sys::errno();
        cwd::set(cwd::find_real());
        sys::set_errno(errno);
    }
    result
}

hook! { chdir: (path: *const c_char) -> c_int, |next| {
    match resolve(libc::AT_FDCWD, path, FOLLOW) {
        Place::Elsewhere => left(next(path)),
        Place::Real(path) => left(next(path.as_ptr())),
        Place::Ours(found) => answer(found.and_then(|found| enter(found.existing()?))),
        Place::Output(output) => answer(enter_output(&output)),
    }
}}

hook! { fchdir: (fd: c_int) -> c_int, |next| {
    match (fds::get(fd), outfds::output(fd)) {
        (Some(entry), _) => answer(enter(entry.node)),
        (_, Some(output)) => answer(enter_output(&output)),
        _ => left(next(fd)),
    }
}}

hook! { getcwd: (into: *mut c_char, room: size_t) -> *mut c_char, |next| {
    match cwd::path() {
        Some(path) => answer_ptr(write_path(&path, into, room)),
        None => next(into, room),
    }
}}

hook! { __getcwd_chk: (into: *mut c_char, room: size_t, known: size_t) -> *mut c_char, |next| {
    match cwd::path().filter(|_| room <= known) {
        Some(path) => answer_ptr(write_path(&path, into, room)),
        None => next(into, room, known),
    }
}}

hook! { get_current_dir_name: () -> *mut c_char, |next| {
    match cwd::path() {
        Some(path) => answer_ptr(write_path(&path, std::ptr::null_mut(), 0)),
        None => next(),
    }
}}

hook! { getwd: (into: *mut c_char) -> *mut c_char, |next| {
    match cwd::path() {
        Some(path) => answer_ptr(write_path(&path, into, libc::PATH_MAX as size_t)),
        None => next(into),
    }
}}
