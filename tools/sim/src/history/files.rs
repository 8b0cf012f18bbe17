//! Names and files as a specification: the superuser's operations below one directory.
//!
//! A system call with two paths finds each at its own instant, so an error of one is right
//! whenever what it says is true of one of the paths.

use std::collections::BTreeMap;

use saker_types::Errno;

use super::tree::{Tree, TreeEntry as Entry};
use super::{FileContent, Spec, TreeBody, TreeIno, TreeInode, TreeKind, TreeSeen, TreeStat};

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// To the start of the file.
    Start,
    /// Behind its end, wherever that is (O_APPEND).
    End,
}

/// An operation on paths below the directory. `handle` is the number of the record that opened
/// the file.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum FileCall {
    /// O_CREAT | O_EXCL, for writing.
    Create {
        path: String,
    },
    /// For writing; with `truncate` it is cut to nothing.
    Open {
        path: String,
        truncate: bool,
    },
    /// Writes and closes.
    Write {
        handle: usize,
        tag: u64,
        len: u64,
        place: WriteAt,
    },
    /// Sets the size and closes.
    Resize {
        handle: usize,
        len: u64,
    },
    Read {
        path: String,
    },
    Mkdir {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Unlink {
        path: String,
    },
    Symlink {
        path: String,
        tag: u64,
    },
    Readlink {
        path: String,
    },
    Link {
        from: String,
        to: String,
    },
    Rename {
        from: String,
        to: String,
        no_replace: bool,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    SetMtime {
        path: String,
        ns: i64,
    },
    Setxattr {
        path: String,
        value: u64,
    },
    Removexattr {
        path: String,
    },
    Getxattr {
        path: String,
    },
    Stat {
        path: String,
    },
    /// Names in a directory, at one instant.
    List {
        path: String,
    },
    /// Was the name in a listing of its directory?
    Listed {
        path: String,
    },
    /// Everything there is.
    Audit,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum FileReply {
    Done,
    Failed(Errno),
    Content(FileContent),
    /// Of a symbolic link or extended attribute.
    Tag(u64),
    Stat(TreeStat),
    /// Sorted.
    Names(Vec<String>),
    Listed(bool),
    All(Box<BTreeMap<String, TreeSeen>>),
}

/// The specification.
pub struct Files;

impl Spec for Files {
    type State = Tree;
    type Op = FileCall;
    type Reply = FileReply;

    fn only_looks(&self, _: &FileCall, reply: &FileReply) -> bool {
        *reply != FileReply::Done
    }

    fn apply(
        &self,
        tree: &Tree,
        n: usize,
        op: &FileCall,
        reply: Option<&FileReply>,
    ) -> Option<Tree> {
        match reply {
            None => unknown(tree, n, op),
            Some(FileReply::Done) => {
                let mut after = changed(tree, n, op).ok()?;
                if let FileCall::Create { path } | FileCall::Open { path, .. } = op {
                    let ino = after.at(path).ok()?;
                    after.open(n, ino);
                }
                Some(after)
            }
            Some(FileReply::Failed(errno)) => may_fail(tree, op, *errno).then(|| tree.clone()),
            Some(reply) => shows(tree, op, reply).then(|| tree.clone()),
        }
    }
}

/// The operation has taken effect, and nobody heard of it.
fn unknown(tree: &Tree, n: usize, op: &FileCall) -> Option<Tree> {
    if let FileCall::Write { handle, .. } = op {
        // Some of it may be there, and more of it to come.
        let mut after = tree.clone();
        let inode = after.inode_mut(tree.opened(*handle)?);
        (inode.body, inode.mtime_ns) = (TreeBody::File(None), None);
        return Some(after);
    }
    changed(tree, n, op).ok()
}

/// The tree after an operation that succeeds.
fn changed(tree: &Tree, n: usize, op: &FileCall) -> Result<Tree, Errno> {
    let mut after = tree.clone();
    match op {
        FileCall::Create { path } => {
            let file = TreeInode::new(TreeBody::File(Some(FileContent::default())), 0o644);
            after.make(vacant(tree, path)?, n, file);
        }
        FileCall::Mkdir { path } => {
            after.make(vacant(tree, path)?, n, TreeInode::new(TreeBody::Dir, 0o755))
        }
        FileCall::Symlink { path, tag } => {
            after.make(vacant(tree, path)?, n, TreeInode::new(TreeBody::Symlink(*tag), 0));
        }
        FileCall::Open { path, truncate } => {
            let ino = file_at(tree, path)?;
            if *truncate {
                let inode = after.inode_mut(ino);
                (inode.body, inode.mtime_ns) = (TreeBody::File(Some(FileContent::default())), None);
            }
        }
        FileCall::Write { handle, tag, len, place } => {
            let write = |content: &mut FileContent| match place {
                WriteAt::Start => content.write(*tag, 0, *len),
                WriteAt::End => content.write(*tag, content.len(), *len),
            };
            by_handle(&mut after, *handle, write)?;
        }
        FileCall::Resize { handle, len } => {
            by_handle(&mut after, *handle, |content| content.resize(*len))?;
        }
        FileCall::Rmdir { path } => {
            let place = tree.place(path)?;
            match tree.child(&place) {
                None => return Err(Errno::ENOENT),
                Some(ino) if tree.inode(ino).body != TreeBody::Dir => return Err(Errno::ENOTDIR),
                Some(ino) if tree.entries(ino).next().is_some() => return Err(Errno::ENOTEMPTY),
                Some(_) => after.unlink(&place),
            }
        }
        FileCall::Unlink { path } => {
            let place = tree.place(path)?;
            match tree.child(&place) {
                None => return Err(Errno::ENOENT),
                Some(ino) if tree.inode(ino).body == TreeBody::Dir => return Err(Errno::EISDIR),
                Some(_) => after.unlink(&place),
            }
        }
        FileCall::Link { from, to } => {
            let (ino, place) = (tree.at(from)?, vacant(tree, to)?);
            if tree.inode(ino).body == TreeBody::Dir {
                return Err(Errno::EPERM);
            }
            after.link(place, ino);
        }
        FileCall::Rename { from, to, no_replace } => rename(&mut after, from, to, *no_replace)?,
        _ => attributes(&mut after, op)?,
    }
    Ok(after)
}

fn attributes(after: &mut Tree, op: &FileCall) -> Result<(), Errno> {
    match op {
        FileCall::Chmod { path, mode } => {
            let ino = after.at(path)?;
            let inode = after.inode_mut(ino);
            if inode.body.kind() == TreeKind::Symlink {
                // It is followed, and leads nowhere.
                return Err(Errno::ENOENT);
            }
            inode.mode = *mode;
        }
        FileCall::SetMtime { path, ns } => {
            let ino = after.at(path)?;
            let inode = after.inode_mut(ino);
            // A directory's changes with its entries.
            inode.mtime_ns = (inode.body != TreeBody::Dir).then_some(*ns);
        }
        FileCall::Setxattr { path, value } => {
            let ino = after.at(path)?;
            let inode = after.inode_mut(ino);
            if inode.body.kind() == TreeKind::Symlink {
                return Err(Errno::EPERM);
            }
            inode.xattr = Some(*value);
        }
        FileCall::Removexattr { path } => {
            let ino = after.at(path)?;
            let inode = after.inode_mut(ino);
            if inode.body.kind() == TreeKind::Symlink {
                return Err(Errno::EPERM);
            }
            inode.xattr.take().ok_or(Errno::ENODATA)?;
        }
        // These change nothing.
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

fn rename(tree: &mut Tree, from: &str, to: &str, no_replace: bool) -> Result<(), Errno> {
    let (source, target) = (tree.place(from)?, tree.place(to)?);
    let ino = tree.child(&source).ok_or(Errno::ENOENT)?;
    let dir = tree.inode(ino).body == TreeBody::Dir;
    if dir && tree.is_below(target.0, ino) {
        return Err(Errno::EINVAL);
    }
    match tree.child(&target) {
        Some(_) if no_replace => return Err(Errno::EEXIST),
        Some(old) if old == ino => return Ok(()),
        Some(old) => match (dir, tree.inode(old).body == TreeBody::Dir) {
            (false, true) => return Err(Errno::EISDIR),
            (true, false) => return Err(Errno::ENOTDIR),
            (true, true) if tree.entries(old).next().is_some() => return Err(Errno::ENOTEMPTY),
            _ => {}
        },
        None => {}
    }
    tree.rename(&source, target);
    Ok(())
}

fn by_handle(
    after: &mut Tree,
    handle: usize,
    change: impl FnOnce(&mut FileContent),
) -> Result<(), Errno> {
    let ino = after.opened(handle).ok_or(Errno::EBADF)?;
    let inode = after.inode_mut(ino);
    if let TreeBody::File(Some(content)) = &mut inode.body {
        change(content);
    }
    inode.mtime_ns = None;
    after.close(handle);
    Ok(())
}

/// Where a new name comes.
fn vacant(tree: &Tree, path: &str) -> Result<Entry, Errno> {
    let place = tree.place(path)?;
    if tree.child(&place).is_some() { Err(Errno::EEXIST) } else { Ok(place) }
}

/// A file to be opened without following links.
fn file_at(tree: &Tree, path: &str) -> Result<TreeIno, Errno> {
    let ino = tree.at(path)?;
    match tree.inode(ino).body.kind() {
        TreeKind::Dir => Err(Errno::EISDIR),
        TreeKind::Symlink => Err(Errno::ELOOP),
        TreeKind::File => Ok(ino),
    }
}

/// Is it right that the operation failed so?
fn may_fail(tree: &Tree, op: &FileCall, errno: Errno) -> bool {
    let found = |path: &str| tree.at(path);
    match op {
        FileCall::Rename { from, to, no_replace } => {
            let target = tree.place(to).map(|place| tree.child(&place));
            let is_dir = |ino: TreeIno| tree.inode(ino).body == TreeBody::Dir;
            let old = target.ok().flatten();
            match errno {
                Errno::EEXIST => *no_replace && old.is_some(),
                Errno::EISDIR => old.is_some_and(is_dir),
                Errno::ENOTDIR => {
                    old.is_some_and(|old| !is_dir(old))
                        || [from, to].iter().any(|path| tree.place(path) == Err(errno))
                }
                Errno::ENOTEMPTY => {
                    old.is_some_and(|old| is_dir(old) && tree.entries(old).next().is_some())
                }
                Errno::ENOENT => found(from) == Err(errno) || tree.place(to) == Err(errno),
                _ => changed(tree, 0, op) == Err(errno),
            }
        }
        FileCall::Link { from, to } => match errno {
            Errno::EPERM => found(from).is_ok_and(|ino| tree.inode(ino).body == TreeBody::Dir),
            _ => found(from) == Err(errno) || vacant(tree, to) == Err(errno),
        },
        FileCall::Read { path } => file_at(tree, path) == Err(errno),
        FileCall::Readlink { path } => match found(path) {
            Ok(ino) if tree.inode(ino).body.kind() != TreeKind::Symlink => errno == Errno::EINVAL,
            found => found == Err(errno),
        },
        FileCall::Getxattr { path } => match found(path) {
            Ok(ino) if tree.inode(ino).xattr.is_none() => errno == Errno::ENODATA,
            found => found == Err(errno),
        },
        FileCall::Stat { path } => found(path) == Err(errno),
        FileCall::List { path } => match found(path) {
            Ok(ino) if tree.inode(ino).body.kind() == TreeKind::Symlink => errno == Errno::ENOTDIR,
            _ => tree.dir(path) == Err(errno),
        },
        FileCall::Listed { .. } | FileCall::Audit => false,
        _ => changed(tree, 0, op) == Err(errno),
    }
}

/// Is this what the operation shows?
fn shows(tree: &Tree, op: &FileCall, reply: &FileReply) -> bool {
    match (op, reply) {
        (FileCall::Read { path }, FileReply::Content(seen)) => {
            let body = file_at(tree, path).map(|ino| &tree.inode(ino).body);
            match body {
                Ok(TreeBody::File(Some(content))) => content == seen,
                Ok(TreeBody::File(None)) => true,
                _ => false,
            }
        }
        (FileCall::Readlink { path }, FileReply::Tag(seen)) => {
            tree.at(path).is_ok_and(|ino| tree.inode(ino).body == TreeBody::Symlink(*seen))
        }
        (FileCall::Getxattr { path }, FileReply::Tag(seen)) => {
            tree.at(path).is_ok_and(|ino| tree.inode(ino).xattr == Some(*seen))
        }
        (FileCall::Stat { path }, FileReply::Stat(seen)) => {
            tree.at(path).is_ok_and(|ino| tree.shows(ino, seen))
        }
        (FileCall::List { path }, FileReply::Names(seen)) => {
            tree.dir(path).is_ok_and(|dir| tree.entries(dir).map(|(name, _)| name).eq(seen))
        }
        (FileCall::Listed { path }, FileReply::Listed(seen)) => tree.at(path).is_ok() == *seen,
        (FileCall::Audit, FileReply::All(seen)) => tree.is(seen),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CallRecord, SearchVerdict, check};
    use super::*;

    /// A history of one client, each operation after the one before.
    fn verdict(records: &[(FileCall, Option<FileReply>)]) -> SearchVerdict {
        let record = |(n, (op, reply)): (usize, &(FileCall, Option<FileReply>))| CallRecord {
            client: 0,
            call_ns: 10 * n as u64,
            reply: reply.clone().map(|reply| (10 * n as u64 + 5, reply)),
            op: op.clone(),
        };
        let records: Vec<_> = records.iter().enumerate().map(record).collect();
        check(&Files, Tree::default(), &records)
    }

    fn good(records: &[(FileCall, Option<FileReply>)]) {
        assert_eq!(verdict(records), SearchVerdict::Linearizable, "{records:?}");
    }

    fn bad(records: &[(FileCall, Option<FileReply>)]) {
        assert!(matches!(verdict(records), SearchVerdict::Violation { .. }), "{records:?}");
    }

    const DONE: Option<FileReply> = Some(FileReply::Done);

    fn create(path: &str) -> FileCall {
        FileCall::Create { path: path.into() }
    }

    fn mkdir(path: &str) -> FileCall {
        FileCall::Mkdir { path: path.into() }
    }

    fn rename(from: &str, to: &str) -> FileCall {
        FileCall::Rename { from: from.into(), to: to.into(), no_replace: false }
    }

    fn names(path: &str, names: &[&str]) -> (FileCall, Option<FileReply>) {
        let seen = names.iter().map(|name| (*name).to_owned()).collect();
        (FileCall::List { path: path.into() }, Some(FileReply::Names(seen)))
    }

    fn failed(op: FileCall, errno: Errno) -> (FileCall, Option<FileReply>) {
        (op, Some(FileReply::Failed(errno)))
    }

    #[test]
    fn a_lost_and_a_resurrected_name_are_found() {
        good(&[(create("a"), DONE), names("", &["a"])]);
        bad(&[(create("a"), DONE), names("", &[])]);
        let gone = (FileCall::Unlink { path: "a".into() }, DONE);
        good(&[(create("a"), DONE), gone.clone(), names("", &[])]);
        bad(&[(create("a"), DONE), gone.clone(), names("", &["a"])]);
        bad(&[(create("a"), DONE), gone.clone(), failed(create("a"), Errno::EEXIST)]);
        bad(&[
            (create("a"), DONE),
            gone,
            failed(FileCall::Unlink { path: "a".into() }, Errno::EIO),
        ]);
    }

    #[test]
    fn a_rename_nobody_heard_of_is_there_whole_or_not_at_all() {
        let start = [(mkdir("a"), DONE), (create("a/f"), DONE), (rename("a", "b"), None)];
        let then = |more: &[(FileCall, Option<FileReply>)]| [&start, more].concat();
        good(&then(&[names("", &["a"]), names("a", &["f"])]));
        good(&then(&[names("", &["b"]), names("b", &["f"])]));
        good(&then(&[names("", &["a"]), names("", &["b"])]));
        bad(&then(&[names("", &["b"]), names("", &["a"])]));
        bad(&then(&[names("", &["a", "b"])]));
        bad(&then(&[names("", &[])]));
    }

    #[test]
    fn content_is_what_was_acknowledged() {
        let write = |handle, tag, place| FileCall::Write { handle, tag, len: 32, place };
        let read = |pieces: &[(u64, u64)]| {
            let mut content = FileContent::default();
            pieces.iter().for_each(|(tag, end)| content.write(*tag, content.len(), *end));
            (FileCall::Read { path: "a".into() }, Some(FileReply::Content(content)))
        };
        let first = [(create("a"), DONE), (write(0, 7, WriteAt::Start), DONE)];
        let then = |more: &[(FileCall, Option<FileReply>)]| [&first, more].concat();
        good(&then(&[read(&[(7, 32)])]));
        bad(&then(&[read(&[(7, 16)])]));
        bad(&then(&[read(&[])]));
        let open = (FileCall::Open { path: "a".into(), truncate: false }, DONE);
        good(&then(&[open.clone(), (write(2, 8, WriteAt::End), DONE), read(&[(7, 32), (8, 32)])]));
        bad(&then(&[open.clone(), (write(2, 8, WriteAt::End), DONE), read(&[(7, 32)])]));
        let torn = [open.clone(), (write(2, 8, WriteAt::Start), None), read(&[(8, 16)])];
        good(&then(&torn));
        let cut = (FileCall::Open { path: "a".into(), truncate: true }, DONE);
        bad(&then(&[cut, (write(2, 9, WriteAt::Start), DONE), read(&[(7, 32)])]));
        let resized = (FileCall::Resize { handle: 2, len: 16 }, DONE);
        good(&then(&[open.clone(), resized.clone(), read(&[(7, 16)])]));
        bad(&then(&[open, resized, read(&[(7, 32)])]));
    }

    #[test]
    fn the_audit_sees_too_much_and_too_little() {
        let stat = TreeStat { kind: TreeKind::File, mode: 0o644, nlink: 2, size: 0, mtime_ns: 1 };
        let body = TreeBody::File(Some(FileContent::default()));
        let seen = TreeSeen { ino: 5, stat, xattr: None, body };
        let link = FileCall::Link { from: "a".into(), to: "b".into() };
        let audit = |list: &[(&str, &TreeSeen)]| {
            let all = list.iter().map(|(path, seen)| ((*path).to_owned(), (*seen).clone()));
            [
                (create("a"), DONE),
                (link.clone(), DONE),
                (FileCall::Audit, Some(FileReply::All(Box::new(all.collect())))),
            ]
        };
        good(&audit(&[("a", &seen), ("b", &seen)]));
        bad(&audit(&[("a", &seen)]));
        bad(&audit(&[("a", &seen), ("b", &seen), ("c", &seen)]));
        bad(&audit(&[("a", &seen), ("b", &TreeSeen { ino: 6, ..seen.clone() })]));
        let once = TreeSeen { stat: TreeStat { nlink: 1, ..stat }, ..seen.clone() };
        bad(&audit(&[("a", &seen), ("b", &once)]));
        let tagged = TreeSeen { xattr: Some(1), ..seen.clone() };
        bad(&audit(&[("a", &seen), ("b", &tagged)]));
    }

    #[test]
    fn errors_are_right_when_what_they_say_is_true_of_one_path() {
        let start = [(mkdir("d"), DONE), (create("f"), DONE)];
        let then = |more: &[(FileCall, Option<FileReply>)]| [&start, more].concat();
        for (from, to, errno) in [
            ("f", "d", Errno::EISDIR),
            ("d", "f", Errno::ENOTDIR),
            ("x", "d", Errno::ENOENT),
            ("x", "d", Errno::EISDIR),
            ("f", "x/y", Errno::ENOENT),
            ("d", "d/x", Errno::EINVAL),
        ] {
            good(&then(&[failed(rename(from, to), errno)]));
        }
        for (from, to, errno) in
            [("f", "x", Errno::ENOENT), ("f", "x", Errno::EEXIST), ("d", "x", Errno::EINVAL)]
        {
            bad(&then(&[failed(rename(from, to), errno)]));
        }
    }
}
