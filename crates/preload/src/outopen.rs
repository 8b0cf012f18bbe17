//! Opening output files.

use std::ffi::c_int;

use saker_agent_api::{CreateOutput, Nothing, OutputInfo, OutputOp};

use crate::agent;
use crate::datasets::dir_of_stand_ins;
use crate::outfds::{self, Handle};
use crate::output::{Output, is_dir};
use crate::sys::{self, Result};

/// Flags of open(2) that the descriptor of a directory takes over.
const KEPT: c_int = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_PATH | libc::O_DIRECTORY;

impl Output {
    /// Opens it.
    ///
    /// # Errors
    /// As of open(2). EOPNOTSUPP: `O_TMPFILE`.
    pub fn open(&self, flags: c_int, mode: u32) -> Result {
        let is_path = flags & libc::O_PATH != 0;
        let has = |flag| !is_path && flags & flag == flag;
        if has(libc::O_TMPFILE) {
            return Err(libc::EOPNOTSUPP);
        }
        let creates = has(libc::O_CREAT);
        if creates && flags & libc::O_DIRECTORY != 0 {
            return Err(libc::EINVAL);
        }
        if creates && self.is_of_dir {
            return Err(libc::EISDIR);
        }
        let writes = !is_path && flags & libc::O_ACCMODE != libc::O_RDONLY;
        if creates || writes || has(libc::O_TRUNC) {
            return self.create(flags, mode);
        }
        if self.is_root() || is_path {
            return self.stand_in(self.look()?, flags);
        }
        let (reply, fd) = self.ask(OutputOp::Open(Nothing {}))?;
        let info = reply.output.ok_or(libc::EIO)?;
        let Some(fd) = fd else { return self.stand_in(info, flags) };
        if self.is_of_dir || flags & libc::O_DIRECTORY != 0 {
            let _ = sys::close(fd);
            return Err(libc::ENOTDIR);
        }
        self.note(fd, info, flags)
    }

    /// A real descriptor stands for a directory, or for what is only named.
    fn stand_in(&self, info: OutputInfo, flags: c_int) -> Result {
        if flags & libc::O_DIRECTORY != 0 && !is_dir(&info) {
            return Err(libc::ENOTDIR);
        }
        let kept = if is_dir(&info) { KEPT } else { KEPT & !libc::O_DIRECTORY };
        let fd = sys::open(&dir_of_stand_ins()?, flags & kept)?;
        outfds::insert(fd, Handle::named(self, info));
        Ok(fd)
    }

    fn note(&self, fd: c_int, info: OutputInfo, flags: c_int) -> Result {
        if flags & libc::O_CLOEXEC == 0 {
            sys::fcntl(fd, libc::F_SETFD, 0)?;
        }
        outfds::insert(fd, Handle::named(self, info));
        Ok(fd)
    }

    fn create(&self, flags: c_int, mode: u32) -> Result {
        if self.is_root() {
            return Err(libc::EISDIR);
        }
        let mode = mode & 0o777 & !sys::umask();
        let (reply, fd) = self.ask(OutputOp::Create(CreateOutput { flags, mode }))?;
        let fd = fd.ok_or(libc::EISDIR)?;
        if reply.token == 0 {
            return self.note(fd, reply.output.unwrap_or_default(), flags);
        }
        if flags & libc::O_CLOEXEC == 0 {
            sys::fcntl(fd, libc::F_SETFD, 0)?;
        }
        if !outfds::insert(fd, Handle::written(reply.token)) {
            // A child of vfork(2), which is about to start another program.
            let _ = agent::commit(reply.token, false);
        }
        Ok(fd)
    }

    /// Sets the length of a file.
    ///
    /// # Errors
    /// As of truncate(2).
    pub fn truncate(&self, len: i64) -> Result {
        let fd = self.open(libc::O_WRONLY | libc::O_CLOEXEC, 0)?;
        // SAFETY: touches no memory.
        let cut = unsafe { sys::syscall!(libc::SYS_ftruncate, fd, len) };
        let closed = outfds::remove(fd);
        closed.mark(fd);
        let _ = sys::close(fd);
        closed.end()?;
        cut.map(|_| 0)
    }
}
