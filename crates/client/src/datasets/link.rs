//! A symbolic link to a frozen dataset, in the directory tree of the cluster.

use saker_types::wire::{At, Entry};
use saker_types::{Errno, Error, FileKind, Result};

use crate::namespace::frozen;
use crate::{Caller, Fs};

/// A link that is to be made.
pub(super) struct Link {
    /// Its path from the root, without links on the way.
    pub(super) path: String,
    at: At,
    target: Vec<u8>,
}

/// A relative target, so that the link leads there through every mount. `depth`: names in the path
/// of the link.
fn target(depth: usize, name: &str) -> Vec<u8> {
    let mut target = b"../".repeat(depth.saturating_sub(1));
    target.extend_from_slice(frozen::NAME);
    target.push(b'/');
    target.extend_from_slice(name.as_bytes());
    target
}

fn not_text(path: &str) -> Error {
    Error::new(Errno::EINVAL).with_text(format!("{path}: not UTF-8"))
}

impl Link {
    /// A link to a dataset, at a path where there is nothing, or that link.
    ///
    /// # Errors
    /// EEXIST; ENOENT without the directory above; EROFS below `/.datasets`; EINVAL for a path that
    /// is not UTF-8. Of the cluster.
    pub(super) async fn plan(fs: &Fs, who: &Caller, path: &[u8], name: &str) -> Result<Link> {
        let shown = String::from_utf8_lossy(path).into_owned();
        let found = fs.resolve(who, path, false).await;
        let found = found.map_err(|error| error.with_text(&shown))?;
        let (at, entry) = (found.at, found.entry);
        let text = |name| std::str::from_utf8(name).map_err(|_| not_text(&shown));
        let names: Vec<&str> = at.path.iter().map(|name| text(name)).collect::<Result<_>>()?;
        if names.first().is_some_and(|name| name.as_bytes() == frozen::NAME) {
            return Err(Error::new(Errno::EROFS).with_text(&shown));
        }
        let path = format!("/{}", names.join("/"));
        let link = Link { target: target(names.len(), name), path, at };
        match entry {
            None => {}
            // Of a run that was killed.
            Some(entry) if link.is_it(fs, who, &entry).await? => {}
            Some(_) => return Err(Error::new(Errno::EEXIST).with_text(&link.path)),
        }
        Ok(link)
    }

    async fn is_it(&self, fs: &Fs, who: &Caller, entry: &Entry) -> Result<bool> {
        let is_link = entry.attr.kind() == FileKind::Symlink;
        Ok(is_link && fs.readlink(who, &self.at).await? == self.target)
    }

    /// Makes it, if it is not there.
    ///
    /// # Errors
    /// EEXIST if anything else is there; of the cluster.
    pub(super) async fn make(&self, fs: &Fs, who: &Caller) -> Result<()> {
        let failed = match fs.symlink(who, &self.at, &self.target).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if failed.errno() == Errno::EEXIST {
            let there = fs.lookup(who, &self.at).await?;
            if self.is_it(fs, who, &there).await? {
                return Ok(());
            }
        }
        Err(failed.with_text(&self.path))
    }

    /// Removes the link of a dataset, if it still leads there.
    ///
    /// # Errors
    /// Of the cluster.
    pub(super) async fn remove(fs: &Fs, who: &Caller, path: &str, name: &str) -> Result<()> {
        let link = match Link::plan(fs, who, path.as_bytes(), name).await {
            Ok(link) => link,
            // Something else is there by now, or the directory is gone.
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        match fs.unlink(who, &link.at).await {
            Err(error) if error.errno() != Errno::ENOENT => Err(error.with_text(path)),
            _ => Ok(()),
        }
    }
}

fn is_gone(error: &Error) -> bool {
    [Errno::EEXIST, Errno::ENOENT, Errno::ENOTDIR].contains(&error.errno())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_relative() {
        let text = |depth| String::from_utf8(target(depth, "a@1")).unwrap();
        assert_eq!(text(1), ".datasets/a@1");
        assert_eq!(text(3), "../../.datasets/a@1");
    }
}
