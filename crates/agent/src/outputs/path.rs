//! Paths of output files.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;
use saker_agent_api::OUTPUT_PATH_BYTES_MAX;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::error::{Error, Result};

/// Longest name, in bytes; the one of Linux.
const NAME_BYTES_MAX: usize = 255;

/// A path below `NAME@VERSION.out`, without a slash at its ends; empty for that directory itself.
/// It leads nowhere else: no name in it is empty, `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OutputPath(Vec<u8>);

impl OutputPath {
    /// Checks the bytes of a request.
    ///
    /// # Errors
    /// ENAMETOOLONG. EINVAL: it is not of this form.
    pub(crate) fn parse(bytes: &[u8]) -> Result<OutputPath> {
        let wrong = |errno| Err(Error::new(errno, "not a path of an output file"));
        if bytes.len() > OUTPUT_PATH_BYTES_MAX {
            return wrong(Errno::NAMETOOLONG);
        }
        let names = || bytes.split(|c| *c == b'/').filter(|_| !bytes.is_empty());
        if names().any(|name| name.len() > NAME_BYTES_MAX) {
            return wrong(Errno::NAMETOOLONG);
        }
        let is_wrong = |name: &[u8]| matches!(name, b"" | b"." | b"..") || name.contains(&0);
        if names().any(is_wrong) { wrong(Errno::INVAL) } else { Ok(OutputPath(bytes.to_vec())) }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As a relative path of the system.
    pub(crate) fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// It is the directory `.out` itself, which is always there.
    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The directory that it is in; `None` for the root.
    pub(crate) fn parent(&self) -> Option<OutputPath> {
        let end = self.0.iter().rposition(|c| *c == b'/').unwrap_or(0);
        (!self.is_root()).then(|| OutputPath(self.0[..end].to_vec()))
    }

    /// The path of a name in this directory.
    ///
    /// # Errors
    /// As of [`OutputPath::parse`].
    pub(crate) fn child(&self, name: &[u8]) -> Result<OutputPath> {
        let separator = if self.is_root() { &b""[..] } else { b"/" };
        OutputPath::parse(&[&self.0, separator, name].concat())
    }

    /// Number of the node that keeps it, of so many.
    pub(crate) fn home(&self, nodes: usize) -> usize {
        (xxh3_64(&self.0) % nodes as u64) as usize
    }

    /// Number of what has `inode` on its home's disk; 0 for directories, whose number follows from
    /// the path alone. Never 0.
    pub(crate) fn ino(&self, inode: u64) -> u64 {
        xxh3_64_with_seed(&self.0, inode) >> 1 | 1
    }
}

impl fmt::Display for OutputPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_nowhere_else() {
        let long = "n".repeat(256);
        let deep = "a/".repeat(2048) + "a";
        for path in
            ["/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\0b", &long, &deep]
        {
            assert!(OutputPath::parse(path.as_bytes()).is_err(), "{path:?}");
        }
        for path in ["", "a", "a/b/c", "...", "a/.b", "\u{e4}", &"n".repeat(255)] {
            assert!(OutputPath::parse(path.as_bytes()).is_ok(), "{path:?}");
        }
    }

    #[test]
    fn parents_and_children() {
        let path = OutputPath::parse(b"a/b").unwrap();
        let parent = path.parent().unwrap();
        assert_eq!(parent.as_bytes(), b"a");
        assert_eq!(parent.child(b"b").unwrap(), path);
        let root = parent.parent().unwrap();
        assert!(root.is_root() && root.parent().is_none());
        assert_eq!(root.child(b"a").unwrap(), parent);
        assert!(root.child(b"..").is_err());
    }
}
