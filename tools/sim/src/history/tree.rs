//! A small file system: what a history's specification remembers.

use std::collections::BTreeMap;

use saker_types::Errno;

use super::FileContent;

/// Number of an inode: that of the record that made it, so that equal trees are equal however
/// they came about.
pub type TreeIno = usize;
/// The directory that all paths start from.
const TOP: TreeIno = usize::MAX;

/// What an inode is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TreeBody {
    /// A directory.
    Dir,
    /// A symbolic link to a name made of this tag, where nothing is.
    Symlink(u64),
    /// A file; what it holds is not known after a write with an unknown outcome.
    File(Option<FileContent>),
}

/// Type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum TreeKind {
    Dir,
    Symlink,
    File,
}

impl TreeBody {
    /// Its type.
    pub fn kind(&self) -> TreeKind {
        match self {
            TreeBody::Dir => TreeKind::Dir,
            TreeBody::Symlink(_) => TreeKind::Symlink,
            TreeBody::File(_) => TreeKind::File,
        }
    }
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TreeInode {
    /// What it is.
    pub body: TreeBody,
    /// Permission bits; of a symbolic link none.
    pub mode: u32,
    /// The extended attribute `user.tag`.
    pub xattr: Option<u64>,
    /// mtime, if it was set and nothing has changed it since.
    pub mtime_ns: Option<i64>,
}

/// What stat(2) shows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct TreeStat {
    pub kind: TreeKind,
    pub mode: u32,
    pub nlink: u64,
    pub size: u64,
    pub mtime_ns: i64,
}

/// All that can be seen of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSeen {
    /// Its inode's number.
    pub ino: u64,
    /// Its attributes.
    pub stat: TreeStat,
    /// The extended attribute `user.tag`.
    pub xattr: Option<u64>,
    /// Of a file what it holds, of a symbolic link its target; of a directory nothing.
    pub body: TreeBody,
}

/// The file system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tree {
    inodes: BTreeMap<TreeIno, TreeInode>,
    names: BTreeMap<(TreeIno, String), TreeIno>,
    /// Files that are open for writing, by the record that opened them.
    open: BTreeMap<usize, TreeIno>,
}

impl Default for Tree {
    fn default() -> Tree {
        let inodes = BTreeMap::from([(TOP, TreeInode::new(TreeBody::Dir, 0o755))]);
        Tree { inodes, names: BTreeMap::new(), open: BTreeMap::new() }
    }
}

impl TreeInode {
    /// A new one.
    pub fn new(body: TreeBody, mode: u32) -> TreeInode {
        TreeInode { body, mode, xattr: None, mtime_ns: None }
    }
}

/// A name in a directory.
pub type TreeEntry = (TreeIno, String);

impl Tree {
    /// The directory of a path's last component, and that component.
    pub fn place(&self, path: &str) -> Result<TreeEntry, Errno> {
        let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut dir = TOP;
        for part in dirs.split('/').filter(|part| !part.is_empty()) {
            let ino = self.names.get(&(dir, part.to_owned())).ok_or(Errno::ENOENT)?;
            dir = match self.inodes[ino].body {
                TreeBody::Dir => *ino,
                TreeBody::File(_) => return Err(Errno::ENOTDIR),
                // It leads nowhere.
                TreeBody::Symlink(_) => return Err(Errno::ENOENT),
            };
        }
        Ok((dir, name.to_owned()))
    }

    /// What is at a path; a symbolic link is not followed.
    pub fn at(&self, path: &str) -> Result<TreeIno, Errno> {
        let place = self.place(path)?;
        self.child(&place).ok_or(Errno::ENOENT)
    }

    /// What is at a place.
    pub fn child(&self, place: &TreeEntry) -> Option<TreeIno> {
        self.names.get(place).copied()
    }

    /// An inode that is there.
    pub fn inode(&self, ino: TreeIno) -> &TreeInode {
        &self.inodes[&ino]
    }

    /// The same, to change.
    pub fn inode_mut(&mut self, ino: TreeIno) -> &mut TreeInode {
        self.inodes.get_mut(&ino).expect("numbers of inodes come from names and handles")
    }

    /// Puts a new inode at a place where nothing is.
    pub fn make(&mut self, place: TreeEntry, ino: TreeIno, inode: TreeInode) {
        self.inodes.insert(ino, inode);
        self.names.insert(place, ino);
    }

    /// Adds a name to what is there.
    pub fn link(&mut self, place: TreeEntry, ino: TreeIno) {
        self.names.insert(place, ino);
    }

    /// Takes a name away; its inode goes with the last name and handle.
    pub fn unlink(&mut self, place: &TreeEntry) {
        if let Some(ino) = self.names.remove(place) {
            self.collect(ino);
        }
    }

    /// Moves a name; what was at the target goes.
    pub fn rename(&mut self, from: &TreeEntry, to: TreeEntry) {
        if let Some(ino) = self.names.remove(from)
            && let Some(replaced) = self.names.insert(to, ino)
        {
            self.collect(replaced);
        }
    }

    /// Opens a file for writing.
    pub fn open(&mut self, handle: usize, ino: TreeIno) {
        self.open.insert(handle, ino);
    }

    /// The file of a handle.
    pub fn opened(&self, handle: usize) -> Option<TreeIno> {
        self.open.get(&handle).copied()
    }

    /// Ends a handle.
    pub fn close(&mut self, handle: usize) {
        if let Some(ino) = self.open.remove(&handle) {
            self.collect(ino);
        }
    }

    fn collect(&mut self, ino: TreeIno) {
        if self.names_of(ino) == 0 && !self.open.values().any(|open| *open == ino) {
            self.inodes.remove(&ino);
        }
    }

    fn names_of(&self, ino: TreeIno) -> u64 {
        self.names.values().filter(|named| **named == ino).count() as u64
    }

    /// Entries of a directory, in the order of their names.
    pub fn entries(&self, dir: TreeIno) -> impl Iterator<Item = (&str, TreeIno)> {
        let all = self.names.range((dir, String::new())..);
        all.take_while(move |((d, _), _)| *d == dir).map(|((_, name), ino)| (name.as_str(), *ino))
    }

    /// The directory at a path; "" is the top.
    pub fn dir(&self, path: &str) -> Result<TreeIno, Errno> {
        if path.is_empty() {
            return Ok(TOP);
        }
        let ino = self.at(path)?;
        if self.inode(ino).body == TreeBody::Dir { Ok(ino) } else { Err(Errno::ENOTDIR) }
    }

    /// Is `dir` the directory `above` or below it?
    pub fn is_below(&self, mut dir: TreeIno, above: TreeIno) -> bool {
        while dir != above {
            let Some(((parent, _), _)) = self.names.iter().find(|(_, ino)| **ino == dir) else {
                return false;
            };
            dir = *parent;
        }
        true
    }

    /// Could stat(2) show this of the inode?
    pub fn shows(&self, ino: TreeIno, stat: &TreeStat) -> bool {
        let inode = self.inode(ino);
        let (nlink, size) = match &inode.body {
            TreeBody::Dir => {
                let dirs = self.entries(ino).filter(|(_, e)| self.inode(*e).body == TreeBody::Dir);
                (2 + dirs.count() as u64, None)
            }
            TreeBody::Symlink(_) => (self.names_of(ino), None),
            TreeBody::File(content) => (self.names_of(ino), content.as_ref().map(FileContent::len)),
        };
        stat.kind == inode.body.kind()
            && (stat.kind == TreeKind::Symlink || stat.mode == inode.mode)
            && stat.nlink == nlink
            && size.is_none_or(|size| stat.size == size)
            && inode.mtime_ns.is_none_or(|ns| stat.mtime_ns == ns)
    }

    /// Is this all there is, and as it should be?
    pub fn is(&self, seen: &BTreeMap<String, TreeSeen>) -> bool {
        if seen.len() != self.names.len() {
            return false;
        }
        let mut numbers = BTreeMap::new();
        seen.iter().all(|(path, seen)| {
            let Ok(ino) = self.at(path) else { return false };
            let inode = self.inode(ino);
            let same_body = match (&inode.body, &seen.body) {
                (TreeBody::File(None), TreeBody::File(_)) => true,
                (ours, theirs) => ours == theirs,
            };
            let same_ino = *numbers.entry(ino).or_insert(seen.ino) == seen.ino;
            same_body && same_ino && inode.xattr == seen.xattr && self.shows(ino, &seen.stat)
        })
    }

    /// All paths.
    pub fn paths(&self) -> Vec<(String, TreeKind)> {
        let mut out = Vec::new();
        let mut dirs = vec![(String::new(), TOP)];
        while let Some((path, dir)) = dirs.pop() {
            for (name, ino) in self.entries(dir) {
                let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
                let kind = self.inode(ino).body.kind();
                if kind == TreeKind::Dir {
                    dirs.push((path.clone(), ino));
                }
                out.push((path, kind));
            }
        }
        out
    }
}
