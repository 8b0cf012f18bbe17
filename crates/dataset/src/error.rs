//! What can be wrong with a dataset.

use std::io;
use std::path::{Path, PathBuf};

/// An error, and the file that it is about.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: not a file of a Saker dataset", .0.display())]
    Foreign(PathBuf),
    #[error("{}: written by a newer version of Saker ({what})", .path.display())]
    Newer { path: PathBuf, what: String },
    #[error("{}: cut short: {what}", .path.display())]
    Truncated { path: PathBuf, what: String },
    #[error("{}: damaged: {what}", .path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("{}: {what}", .path.display())]
    Invalid { path: PathBuf, what: String },
    #[error("interrupted")]
    Interrupted,
}

/// With [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of a system call on a file.
    pub fn io(path: &Path, source: impl Into<io::Error>) -> Error {
        Error::Io { path: path.to_owned(), source: source.into() }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn truncated(path: &Path, what: impl Into<String>) -> Error {
        Error::Truncated { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn invalid(path: &Path, what: impl Into<String>) -> Error {
        Error::Invalid { path: path.to_owned(), what: what.into() }
    }
}
