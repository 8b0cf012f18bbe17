//! Where a path leads: into a dataset, or elsewhere.
//!
//! Paths elsewhere are most: an absolute one is compared with the mount point, a relative one costs
//! a load. Below the mount point the walk checks, as the kernel does, that each directory may be
//! searched, which the table's own `resolve` does not; and it allocates only at links.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ops::Range;

use saker_dataset::table::{NAME_BYTES_MAX, SYMLINKS_MAX};
use saker_types::FileKind;

use crate::access::{self, Who, permit};
use crate::config::{config, normal};
use crate::cwd::{self, Cwd};
use crate::datasets::{MOUNT, Node};
use crate::output::{Output, dataset_of};
use crate::sys::{Result, c_path};
use crate::{fds, outfds};

/// Where a path leads.
pub enum Place {
    /// Not through a dataset: as it is.
    Elsewhere,
    /// Out of a dataset, to this path: absolute.
    Real(CString),
    /// Into a dataset, or to an error.
    Ours(Result<Found>),
    /// To an output, which need not be there.
    Output(Output),
}

/// Where a walk ends.
enum End {
    Found(Found),
    Output(Output),
    /// Out of the mount point.
    Real,
}

/// What a path in a dataset leads to.
#[derive(Debug)]
pub struct Found {
    /// The node; the directory that the last name is missing in.
    pub node: Node,
    /// The last name is missing.
    pub is_missing: bool,
    /// The path ends as only a directory's may: `a/`.
    pub is_of_dir: bool,
    /// The directory that the last name is in, and that name; of what ends with `..`, none.
    pub name: Option<(Node, Vec<u8>)>,
}

impl Found {
    /// What is there.
    ///
    /// # Errors
    /// ENOENT.
    pub fn existing(&self) -> Result<Node> {
        if self.is_missing { Err(libc::ENOENT) } else { Ok(self.node) }
    }

    /// The canonical path.
    pub fn path(&self) -> Vec<u8> {
        match &self.name {
            Some((dir, name)) if !self.node.is_dir() => [&dir.path(), &b"/"[..], name].concat(),
            _ => self.node.path(),
        }
    }
}

/// How a path is to be followed.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Also a link that it ends at.
    pub follow: bool,
    /// An empty path means the descriptor itself.
    pub empty: bool,
    /// Whose rights count.
    pub real_user: bool,
    /// The last name is wanted, too.
    pub name: bool,
    /// It is to be made or taken away: a slash at the end changes nothing.
    pub entry: bool,
}

/// Also a link that the path ends at.
pub const FOLLOW: How =
    How { follow: true, empty: false, real_user: false, name: false, entry: false };
/// Not a link that the path ends at.
pub const NOFOLLOW: How = How { follow: false, ..FOLLOW };
/// The name itself, which is to be made or taken away.
pub const ENTRY: How = How { follow: false, entry: true, ..FOLLOW };

/// Finds where a path from a directory leads.
///
/// # Safety
/// `path` is null or ends with a zero.
pub unsafe fn resolve(dirfd: c_int, path: *const c_char, how: How) -> Place {
    if path.is_null() {
        return match (fds::get(dirfd), outfds::output(dirfd)) {
            (Some(entry), _) if how.empty => Place::Ours(Ok(itself(entry.node))),
            (_, Some(output)) if how.empty => Place::Output(output),
            _ => Place::Elsewhere,
        };
    }
    // SAFETY: the caller's.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path.first() == Some(&b'/') {
        return match below(path) {
            Some(rest) => walk(MOUNT, rest, how),
            None => by_descriptor(path, how),
        };
    }
    let output = match (dirfd, cwd::get()) {
        (libc::AT_FDCWD, Cwd::Output(n)) => cwd::output(n).cloned(),
        (libc::AT_FDCWD, _) => None,
        _ => outfds::output(dirfd),
    };
    if let Some(output) = output {
        return from_output(output, path, how);
    }
    let base = match dirfd {
        libc::AT_FDCWD => match cwd::get() {
            Cwd::Ours(node) => Some(node),
            Cwd::Above(len) => return from_above(&config().mount[..len], path, how),
            Cwd::Real | Cwd::Output(_) => None,
        },
        _ => fds::get(dirfd).map(|entry| entry.node),
    };
    match base {
        None => Place::Elsewhere,
        Some(node) if path.is_empty() && how.empty => Place::Ours(Ok(itself(node))),
        Some(_) if path.is_empty() => Place::Ours(Err(libc::ENOENT)),
        Some(node) => walk(node, Cow::Borrowed(path), how),
    }
}

/// Where a path from an output leads. It is followed by its letters: there are no links.
fn from_output(output: Output, path: &[u8], how: How) -> Place {
    if path.is_empty() {
        return if how.empty { Place::Output(output) } else { Place::Ours(Err(libc::ENOENT)) };
    }
    if output.known.is_some() && !output.is_of_dir {
        return Place::Ours(Err(libc::ENOTDIR));
    }
    walk(MOUNT, Cow::Owned([&output.below_mount()[..], b"/", path].concat()), how)
}

/// Where a path leads that names a descriptor of this process, like `/dev/fd/5`: the kernel would
/// open the partition, or the directory that stands for ours.
fn by_descriptor(path: &[u8], how: How) -> Place {
    let rest = [&b"/dev/fd/"[..], b"/proc/self/fd/", b"/proc/thread-self/fd/"]
        .iter()
        .find_map(|dir| path.strip_prefix(*dir));
    let Some(rest) = rest else { return Place::Elsewhere };
    let end = rest.iter().position(|c| *c == b'/').unwrap_or(rest.len());
    let fd = std::str::from_utf8(&rest[..end]).ok().and_then(|fd| fd.parse().ok());
    let Some(entry) = fd.and_then(fds::get) else { return Place::Elsewhere };
    let names_itself = end == rest.len();
    // A link of the kernel: what it says of itself, and canonical paths, are left to that.
    if names_itself && (!how.follow || how.name || how.entry) {
        return Place::Elsewhere;
    }
    match names_itself {
        true => Place::Ours(Ok(itself(entry.node))),
        false => walk(entry.node, Cow::Borrowed(&rest[end..]), how),
    }
}

/// Where a path from a directory above the mount point leads.
fn from_above(dir: &[u8], path: &[u8], how: How) -> Place {
    let rest = &config().mount[dir.len() + 1..];
    if !contains(path, rest.split(|c| *c == b'/').next().unwrap_or_default()) {
        return Place::Elsewhere;
    }
    let path = [dir, b"/", path].concat();
    match below(&path) {
        Some(rest) => walk(MOUNT, rest, how),
        None => Place::Elsewhere,
    }
}

fn itself(node: Node) -> Found {
    Found { node, is_missing: false, is_of_dir: false, name: None }
}

/// What of an absolute path is below the mount point.
pub fn below(path: &[u8]) -> Option<Cow<'_, [u8]>> {
    let config = config();
    let rest = |path: &[u8]| match path.strip_prefix(&config.mount[..]) {
        Some(rest) if rest.is_empty() || rest[0] == b'/' => Some(path.len() - rest.len()),
        _ => None,
    };
    if let Some(at) = rest(path) {
        return Some(Cow::Borrowed(&path[at..]));
    }
    // `//saker`, `/tmp/../saker`.
    if !contains(path, &config.first_name) || !(contains(path, b"//") || contains(path, b"/.")) {
        return None;
    }
    let path = normal(path);
    rest(&path).map(|at| Cow::Owned(path[at..].to_vec()))
}

fn contains(path: &[u8], part: &[u8]) -> bool {
    let (at, len) = (path.as_ptr().cast(), path.len());
    // SAFETY: both are as long as is said.
    !unsafe { libc::memmem(at, len, part.as_ptr().cast(), part.len()) }.is_null()
}

/// A path that has been followed so far.
struct Walk<'p> {
    path: Cow<'p, [u8]>,
    /// What of it is walked.
    at: usize,
    node: Node,
    links: u32,
}

/// Follows a path from a directory of ours.
pub fn walk(from: Node, path: Cow<'_, [u8]>, how: How) -> Place {
    if path.len() >= libc::PATH_MAX as usize {
        return Place::Ours(Err(libc::ENAMETOOLONG));
    }
    let mut walk = Walk { path, at: 0, node: from, links: 0 };
    match walk.run(how) {
        Ok(End::Found(found)) => Place::Ours(Ok(found)),
        Ok(End::Output(output)) => Place::Output(output),
        Ok(End::Real) => match c_path(walk.path.into_owned()) {
            Ok(path) => Place::Real(path),
            Err(errno) => Place::Ours(Err(errno)),
        },
        Err(errno) => Place::Ours(Err(errno)),
    }
}

impl Walk<'_> {
    /// Follows it to its end; out of the mount point, to the path that is there now.
    fn run(&mut self, how: How) -> Result<End> {
        let who = if how.real_user { Who::Real } else { Who::Effective };
        let mut name = None;
        while let Some(range) = self.next_name() {
            let dir = self.node;
            if !dir.is_dir() {
                return Err(libc::ENOTDIR);
            }
            permit(dir, access::EXECUTE, who)?;
            if &self.path[range.clone()] == b"." {
                continue;
            }
            if &self.path[range.clone()] == b".." {
                name = None;
                if dir != MOUNT {
                    self.node = dir.parent();
                } else if !self.leave() {
                    return Ok(End::Real);
                }
                continue;
            }
            let is_last = self.path[self.at..].iter().all(|c| *c == b'/');
            let is_of_dir = is_last && self.at < self.path.len();
            let last = &self.path[range];
            if last.len() > NAME_BYTES_MAX {
                return Err(libc::ENAMETOOLONG);
            }
            if dir == MOUNT
                && let Some(dataset) = dataset_of(last)?
            {
                match self.enter_outputs(dataset)? {
                    Some(output) => return Ok(End::Output(output)),
                    None => continue,
                }
            }
            let Some(node) = dir.child(last)? else {
                let name = how.name.then(|| (dir, last.to_vec()));
                let missing = Found { node: dir, is_missing: true, is_of_dir, name };
                return if is_last { Ok(End::Found(missing)) } else { Err(libc::ENOENT) };
            };
            let follows = how.follow || is_of_dir && !how.entry;
            if node.kind() == FileKind::Symlink && (!is_last || follows) {
                if !self.follow(node)? {
                    return Ok(End::Real);
                }
                continue;
            }
            name = how.name.then(|| (dir, last.to_vec()));
            self.node = node;
        }
        let is_of_dir = self.path.ends_with(b"/") || self.path.ends_with(b"/.");
        if is_of_dir && !self.node.is_dir() && !how.entry {
            return Err(libc::ENOTDIR);
        }
        Ok(End::Found(Found { node: self.node, is_missing: false, is_of_dir, name }))
    }

    /// Follows the rest by its letters, below a directory of outputs; `None`: it leads back to the
    /// mount point.
    fn enter_outputs(&mut self, dataset: String) -> Result<Option<Output>> {
        let mut path: Vec<u8> = Vec::new();
        while let Some(range) = self.next_name() {
            match &self.path[range] {
                b"." => {}
                b".." if path.is_empty() => return Ok(None),
                b".." => path.truncate(path.iter().rposition(|c| *c == b'/').unwrap_or(0)),
                name if name.len() > NAME_BYTES_MAX => return Err(libc::ENAMETOOLONG),
                name => {
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend_from_slice(name);
                }
            }
        }
        let is_of_dir = [&b"/"[..], b"/.", b"/.."].iter().any(|end| self.path.ends_with(end));
        Ok(Some(Output { dataset, path, is_of_dir, known: None }))
    }

    /// Where the next name is.
    fn next_name(&mut self) -> Option<Range<usize>> {
        let rest = &self.path[self.at..];
        let start = self.at + rest.iter().position(|c| *c != b'/')?;
        let len = self.path[start..].iter().position(|c| *c == b'/');
        self.at = len.map_or(self.path.len(), |len| start + len);
        Some(start..self.at)
    }

    /// Goes on where a link leads; `false`: that is not below the mount point.
    fn follow(&mut self, link: Node) -> Result<bool> {
        self.links += 1;
        if self.links > SYMLINKS_MAX {
            return Err(libc::ELOOP);
        }
        let target = link.target().filter(|target| !target.is_empty()).ok_or(libc::ENOENT)?;
        let path = [target, &self.path[self.at..]].concat();
        if path.len() >= libc::PATH_MAX as usize {
            return Err(libc::ENAMETOOLONG);
        }
        if target[0] == b'/' {
            return Ok(self.start_at(path));
        }
        (self.path, self.at) = (Cow::Owned(path), 0);
        Ok(true)
    }

    /// Goes on above the mount point; `false`: that is elsewhere.
    fn leave(&mut self) -> bool {
        let mount = &config().mount;
        let above = mount.iter().rposition(|c| *c == b'/').unwrap_or(0);
        let rest = &self.path[self.at..];
        let mut path = mount[..above].to_vec();
        if rest.is_empty() || rest[0] != b'/' || path.is_empty() && rest.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(rest);
        self.start_at(path)
    }

    fn start_at(&mut self, path: Vec<u8>) -> bool {
        let rest = below(&path).map(Cow::into_owned);
        let is_ours = rest.is_some();
        (self.path, self.at, self.node) = (Cow::Owned(rest.unwrap_or(path)), 0, MOUNT);
        is_ours
    }
}
