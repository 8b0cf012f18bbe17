//! Whether anybody has a file open for writing. The kernel knows.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Says whether anybody has a file open for writing, or a writable mapping of it. `file` is open for
/// reading, and belongs to this user.
///
/// A lease for reading is refused with EAGAIN while there is a writer (fcntl(2), `F_SETLEASE`).
///
/// # Errors
/// Of the system.
pub(super) fn has_writers(file: &File) -> io::Result<bool> {
    match set_lease(file, libc::F_RDLCK) {
        Ok(()) => {
            set_lease(file, libc::F_UNLCK)?;
            Ok(false)
        }
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Ok(true),
        // This file system has no leases.
        Err(_) => is_open_in_proc(file),
    }
}

fn set_lease(file: &File, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the command takes a number and touches no memory.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The same by the descriptors of all processes of this user: slower, and it misses mappings.
fn is_open_in_proc(file: &File) -> io::Result<bool> {
    let wanted = file.metadata()?;
    for process in fs::read_dir("/proc")?.flatten() {
        let Ok(fds) = fs::read_dir(process.path().join("fd")) else { continue };
        for fd in fds.flatten() {
            let is_same = fs::metadata(fd.path())
                .is_ok_and(|meta| (meta.dev(), meta.ino()) == (wanted.dev(), wanted.ino()));
            // A link of /proc has the permissions of its descriptor (proc(5)).
            let writes = || fs::symlink_metadata(fd.path()).is_ok_and(|l| l.mode() & 0o200 != 0);
            if is_same && writes() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        for has in [has_writers, is_open_in_proc] {
            assert!(has(&reader).unwrap());
        }
        let copy = writer.try_clone().unwrap();
        drop(writer);
        assert!(has_writers(&reader).unwrap());
        drop(copy);
        for has in [has_writers, is_open_in_proc] {
            assert!(!has(&reader).unwrap());
        }
        // The lease is gone: nobody waits to write.
        File::options().write(true).open(&path).unwrap();
    }
}
