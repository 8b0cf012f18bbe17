//! What can go wrong, as it is answered: a number and words.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use saker_agent_api::Reply;

/// An error, and the file or peer that it is about. Clones are cheap: all who waited get it.
#[derive(Clone, Debug)]
pub struct Error {
    /// Error number of Linux.
    pub errno: i32,
    what: Arc<str>,
}

/// With [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(errno: Errno, what: impl fmt::Display) -> Error {
        Error { errno: errno.raw_os_error(), what: what.to_string().into() }
    }

    /// The same with other words, as with a name before them.
    pub(crate) fn reworded(&self, what: impl fmt::Display) -> Error {
        Error { errno: self.errno, what: what.to_string().into() }
    }

    /// What a peer answered.
    pub(crate) fn of_peer(addr: &str, reply: &Reply) -> Error {
        Error { errno: reply.errno, what: format!("peer {addr}: {}", reply.error).into() }
    }

    /// An error of a system call on something.
    pub(crate) fn io(on: impl fmt::Display, error: impl Into<io::Error>) -> Error {
        let error = error.into();
        let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
        Error { errno, what: format!("{on}: {error}").into() }
    }

    /// The same on a file.
    pub(crate) fn file(path: &Path, error: impl Into<io::Error>) -> Error {
        Error::io(path.display(), error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Error {}

impl From<saker_dataset::Error> for Error {
    fn from(error: saker_dataset::Error) -> Error {
        let errno = match &error {
            saker_dataset::Error::Io { source, .. } => source.raw_os_error(),
            _ => None,
        };
        Error { errno: errno.unwrap_or(Errno::IO.raw_os_error()), what: error.to_string().into() }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(io::Error::from_raw_os_error(error.errno).kind(), error)
    }
}
