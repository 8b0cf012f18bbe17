//! Text paths: symbolic links and `..`, with as few requests as possible.
//!
//! A path is looked up whole, at the owner of its last name. Only where a link or a `..` stands
//! in the way is it looked at piece by piece.

use std::collections::VecDeque;

use bytes::Bytes;
use saker_types::wire::{At, Entry};
use saker_types::{Class, Errno, Error, FileKind, Locator, Result, limits};

use crate::{Caller, Fs, Resolved};

/// A path that is partly followed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Walk {
    /// Names from the root: directories, as far as is known.
    done: Vec<Bytes>,
    /// What follows; may hold `..`.
    todo: VecDeque<Bytes>,
    links: usize,
}

impl Walk {
    fn new(path: &[u8]) -> Walk {
        Walk { todo: components(path).collect(), ..Walk::default() }
    }

    /// Moves names from `todo` to `done`, up to the next `..` that the root does not swallow.
    /// True if there is one.
    fn advance(&mut self) -> bool {
        while let Some(name) = self.todo.front() {
            if name != ".." {
                self.done.extend(self.todo.pop_front());
            } else if self.done.is_empty() {
                self.todo.pop_front();
            } else {
                return true;
            }
        }
        false
    }

    /// `done` is a directory: takes the `..` that follows it.
    fn up(&mut self) {
        self.todo.pop_front();
        self.done.pop();
    }

    /// Component `at` of `done` is a link to `target`: goes on from there.
    fn follow(&mut self, at: usize, target: &[u8]) -> Result<()> {
        self.links += 1;
        if self.links > limits::SYMLINKS_MAX || target.is_empty() || at >= self.done.len() {
            return Err(Errno::ELOOP.into());
        }
        for name in self.done.drain(at + 1..).rev() {
            self.todo.push_front(name);
        }
        self.done.pop();
        if target.starts_with(b"/") {
            self.done.clear();
        }
        let names: Vec<Bytes> = components(target).collect();
        for name in names.into_iter().rev() {
            self.todo.push_front(name);
        }
        Ok(())
    }

    fn at(&self) -> At {
        At::below(Locator::root(), self.done.clone())
    }
}

/// Names in a path, without empty ones and `.`.
fn components(path: &[u8]) -> impl Iterator<Item = Bytes> + '_ {
    path.split(|b| *b == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(Bytes::copy_from_slice)
}

impl Fs {
    /// Follows a text path from the root, with its symbolic links (of the last component only if
    /// `follow_last`, or if a slash follows it) and its `..`. Finding nothing at the last
    /// component is not an error.
    ///
    /// # Errors
    /// ENOENT for an empty path or a missing directory on the way, ELOOP after 40 links,
    /// ENAMETOOLONG, ENOTDIR, EACCES.
    pub async fn resolve(&self, who: &Caller, path: &[u8], follow_last: bool) -> Result<Resolved> {
        if path.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        if path.len() >= limits::PATH_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let dir_wanted = path.ends_with(b"/") || path.ends_with(b"/.") || path == b".";
        let follow_last = follow_last || dir_wanted;
        let mut walk = Walk::new(path);
        loop {
            let up = walk.advance();
            let at = walk.at();
            let entry = match self.lookup(who, &at).await {
                Ok(entry) => entry,
                Err(error) if error.is(Class::Symlink) => {
                    self.through(who, &mut walk, error).await?;
                    continue;
                }
                Err(error) if !up && is_last_missing(&error, &at) => {
                    return Ok(Resolved { at, entry: None });
                }
                Err(error) => return Err(error),
            };
            let is_link = entry.attr.kind() == FileKind::Symlink;
            if is_link && (up || follow_last) {
                let target = self.target(who, &at, &entry).await?;
                walk.follow(at.path.len() - 1, &target)?;
                continue;
            }
            if (up || dir_wanted) && !entry.attr.is_dir() {
                return Err(Errno::ENOTDIR.into());
            }
            if !up {
                return Ok(Resolved { at, entry: Some(entry) });
            }
            if who.uid != 0 {
                // `..` is looked up in the directory, like any other name.
                self.access(who, &at, 1).await?;
            }
            walk.up();
        }
    }

    /// A link was met on the way.
    async fn through(&self, who: &Caller, walk: &mut Walk, met: Error) -> Result<()> {
        let at = met.component.unwrap_or_default() as usize;
        if met.target.is_empty() && at < walk.done.len() {
            let link = At::below(Locator::root(), walk.done[..=at].to_vec());
            walk.follow(at, &self.readlink(who, &link).await?)
        } else {
            walk.follow(at, &met.target)
        }
    }

    async fn target(&self, who: &Caller, at: &At, entry: &Entry) -> Result<Bytes> {
        if entry.inline.is_empty() {
            self.readlink(who, at).await
        } else {
            Ok(entry.inline.clone())
        }
    }
}

/// Is only the last component missing?
fn is_last_missing(error: &Error, at: &At) -> bool {
    error.errno() == Errno::ENOENT && at.ends_at(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &[u8]) -> Vec<Bytes> {
        components(path).collect()
    }

    #[test]
    fn a_path_is_taken_whole_up_to_dot_dot() {
        let mut walk = Walk::new(b"//a/./b/../c/");
        assert!(walk.advance());
        assert_eq!(walk.done, names(b"a/b"));
        walk.up();
        assert!(!walk.advance());
        assert_eq!(walk.done, names(b"a/c"));
        let mut above = Walk::new(b"/../../x");
        assert!(!above.advance());
        assert_eq!(above.done, names(b"x"));
    }

    #[test]
    fn links_are_followed_before_what_comes_behind_them() {
        // /a/l/b/.. where l -> ../t/u
        let mut walk = Walk::new(b"/a/l/b/../z");
        assert!(walk.advance());
        walk.follow(1, b"../t/u").unwrap();
        assert_eq!(walk.done, names(b"a"));
        assert_eq!(walk.todo, VecDeque::from(names(b"../t/u/b/../z")));
        walk.follow(0, b"/r").unwrap();
        assert_eq!(walk.done, names(b""));
        assert_eq!(walk.todo, VecDeque::from(names(b"r/../t/u/b/../z")));
    }

    #[test]
    fn links_without_end_are_refused() {
        let mut walk = Walk::new(b"l");
        for _ in 0..limits::SYMLINKS_MAX {
            assert!(!walk.advance());
            walk.follow(0, b"l").unwrap();
        }
        assert!(!walk.advance());
        assert_eq!(walk.follow(0, b"l").unwrap_err().errno(), Errno::ELOOP);
        assert!(Walk::new(b"x").follow(3, b"y").is_err(), "a component that is not there");
    }

    #[test]
    fn only_the_last_component_may_be_missing() {
        let at = At::below(Locator::root(), names(b"a/b"));
        assert!(is_last_missing(&Error::at(Errno::ENOENT, 1), &at));
        assert!(!is_last_missing(&Error::at(Errno::ENOENT, 0), &at));
        assert!(!is_last_missing(&Error::at(Errno::EACCES, 1), &at));
    }
}
