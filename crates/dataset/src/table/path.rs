//! Paths in a table.

use saker_types::FileKind;

use super::{Ino, NAME_BYTES_MAX, ROOT, Table};

/// Links that a path may lead through (ELOOP), as Linux has it.
pub const SYMLINKS_MAX: u32 = 40;

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// To this inode.
    Found(Ino),
    /// To nothing: the last name is not in this directory.
    Missing {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// There is no such directory on the way (ENOENT).
    NoDirectory,
    /// Something on the way is no directory (ENOTDIR).
    NotDirectory,
    /// Through too many links (ELOOP).
    Loop,
    /// A name is too long (ENAMETOOLONG).
    TooLong,
    /// Out of the dataset: by `..` of the root, or by a link with an absolute target.
    Outside {
        /// To this path: absolute, or from the directory above the root.
        path: Vec<u8>,
    },
}

impl Table {
    /// Follows a path from a directory. `follow`: also a link that it ends at.
    pub fn resolve(&self, from: Ino, path: &[u8], follow: bool) -> Resolved {
        let (mut dir, mut links) = (from, 0);
        // What is still to be walked, the next last.
        let mut rest: Vec<Vec<u8>> = Vec::new();
        push(&mut rest, path);
        // Whether what the last name leads to must be a directory: `a/`.
        let mut must_be_dir = is_of_a_dir(path);
        if !self.inode(dir).is_dir() {
            return if rest.is_empty() { Resolved::Found(dir) } else { Resolved::NotDirectory };
        }
        while let Some(name) = rest.pop() {
            let is_last = rest.is_empty();
            if name == b".." {
                if dir == ROOT {
                    rest.push(name);
                    return Resolved::Outside { path: joined(&rest) };
                }
                dir = self.parent(dir);
                continue;
            }
            if name.len() > NAME_BYTES_MAX {
                return Resolved::TooLong;
            }
            let Some(ino) = self.lookup(dir, &name) else {
                return if is_last {
                    Resolved::Missing { dir, name }
                } else {
                    Resolved::NoDirectory
                };
            };
            match self.inode(ino).kind() {
                FileKind::Directory => dir = ino,
                FileKind::Symlink if !is_last || follow || must_be_dir => {
                    links += 1;
                    let target = self.target(ino).unwrap_or_default();
                    if links > SYMLINKS_MAX {
                        return Resolved::Loop;
                    }
                    if target.is_empty() {
                        return Resolved::NoDirectory;
                    }
                    if target.starts_with(b"/") {
                        let after = joined(&rest);
                        let mut path = target.to_vec();
                        if !after.is_empty() {
                            path.push(b'/');
                            path.extend(after);
                        }
                        return Resolved::Outside { path };
                    }
                    if is_last {
                        must_be_dir |= is_of_a_dir(target);
                    }
                    push(&mut rest, target);
                }
                _ if !is_last || must_be_dir => return Resolved::NotDirectory,
                _ => return Resolved::Found(ino),
            }
        }
        Resolved::Found(dir)
    }

    /// The path of a directory from the root; empty for the root.
    pub fn path_of(&self, dir: Ino) -> Vec<u8> {
        let (mut names, mut at) = (Vec::new(), dir);
        // Not for ever, if the table is damaged.
        while at != ROOT && names.len() < 4096 {
            let above = self.parent(at);
            let Some((name, _)) = self.children(above).find(|(_, ino)| *ino == at) else { break };
            names.push(name);
            at = above;
        }
        names.reverse();
        names.join(&b'/')
    }
}

/// It ends in a way that only a directory's path may: `a/`, `a/.`.
fn is_of_a_dir(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.")
}

/// A path's names, to be walked before what is there.
fn push(rest: &mut Vec<Vec<u8>>, path: &[u8]) {
    let names = path.split(|c| *c == b'/').filter(|name| !name.is_empty() && *name != b".");
    rest.extend(names.rev().map(<[u8]>::to_vec));
}

fn joined(rest: &[Vec<u8>]) -> Vec<u8> {
    rest.iter().rev().map(Vec::as_slice).collect::<Vec<_>>().join(&b'/')
}
