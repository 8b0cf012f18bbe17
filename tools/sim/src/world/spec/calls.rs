//! What calls answer and change, but for those on names.

use saker_types::limits::CHUNK_BYTES;
use saker_types::{Errno, InodeId};

use super::super::history::{Answer, Call, Subject};
use super::{Ino, Kind, Next, SET_TIMES_END_NS, Spec, Stage, done, failed, is_answer, unknown};

impl Spec {
    /// The ways in which a call may go on now. `number` is its index in the history; `split`:
    /// others may have changed directories between its two paths.
    pub fn step(
        &self,
        number: usize,
        call: &Call,
        answer: &Answer,
        stage: Option<Stage>,
        split: bool,
    ) -> Vec<Next> {
        let mut next = Vec::new();
        let mut spec = self.clone();
        if let Some(Stage::Found(ino)) = stage {
            if spec.act(ino, call, answer, true) {
                spec.note_listings();
                next.push(Next::Done(spec));
            }
            return next;
        }
        if let Call::Append { id, len, .. } = call {
            return self.append(*id, *len, answer, stage);
        }
        if let (Call::Write { id, start, end, .. }, true) = (call, done(answer))
            && start / CHUNK_BYTES != (end - 1) / CHUNK_BYTES
        {
            return self.write_into_two(*id, *start, *end, stage);
        }
        if let Some(later) = self.found_elsewhere(call, stage) {
            next.push(Next::Later(self.clone(), later));
        }
        let source = match call {
            Call::Rename { from, .. } | Call::Exchange { from, .. } | Call::Link { from, .. } => {
                Some(from)
            }
            _ => None,
        };
        if let (true, None, Some(from)) = (split, stage, source)
            && let Ok(place) = self.place(from)
        {
            next.push(Next::Later(self.clone(), Stage::Source(place.dir, place.name)));
        }
        if spec.apply(number, call, answer, stage) {
            spec.note_listings();
            next.push(Next::Done(spec));
        }
        next
    }

    /// Chunks are written one by one: a truncation by another client may come between them.
    fn write_into_two(&self, id: InodeId, start: u64, end: u64, stage: Option<Stage>) -> Vec<Next> {
        let mut spec = self.clone();
        if let Some(Stage::Tail(ino)) = stage {
            spec.grow(ino, start.next_multiple_of(CHUNK_BYTES));
            return vec![Next::Done(spec)];
        }
        let Some(ino) = self.by_id(id) else { return Vec::new() };
        spec.grow(ino, end);
        vec![Next::Done(spec.clone()), Next::Later(spec, Stage::Tail(ino))]
    }

    /// An append is given its place, and is seen when its data is there: at once, if that goes into
    /// the row. If the file is truncated before, it was there before that, or it is given another
    /// place.
    pub(super) fn append(
        &self,
        id: InodeId,
        len: u64,
        answer: &Answer,
        stage: Option<Stage>,
    ) -> Vec<Next> {
        let mut next = Vec::new();
        let fits = |offset| unknown(answer) || *answer == Answer::Offset(offset);
        if let Some(Stage::Appended(ino, end, cuts)) = stage {
            let mut spec = self.clone();
            let is_cut = self.cuts(ino) != cuts;
            let node = spec.node_mut(ino);
            node.appending -= 1;
            if node.appending == 0 {
                (node.append_end, node.cuts) = (0, 0);
            }
            if is_cut {
                next = spec.append(id, len, answer, None);
            } else {
                spec.grow(ino, end);
            }
            if fits(end - len) {
                next.push(Next::Done(spec));
            }
            return next;
        }
        let Some(ino) = self.by_id(id) else { return next };
        if self.nlink(ino) == 0 && matches!(answer, Answer::Failed(Errno::ESTALE | Errno::ENOENT)) {
            next.push(Next::Done(self.clone()));
            return next;
        }
        let offset = self.size(ino).max(self.append_end(ino));
        let end = offset + len;
        for changes_time in [false, true] {
            let mut spec = self.clone();
            let node = spec.node_mut(ino);
            (node.append_end, node.appending) = (end, node.appending + 1);
            if changes_time {
                node.mtime = None;
            }
            next.push(Next::Later(spec, Stage::Appended(ino, end, self.cuts(ino))));
        }
        if !fits(offset) {
            // It must be given another place.
            return next;
        }
        let mut spec = self.clone();
        spec.grow(ino, end);
        next.push(Next::Done(spec));
        next
    }

    pub(super) fn grow(&mut self, ino: Ino, end: u64) {
        let node = self.node_mut(ino);
        (node.size, node.mtime) = (node.size.max(end), None);
    }

    /// The path of the call leads to an inode on which it acts later.
    pub(super) fn found_elsewhere(&self, call: &Call, stage: Option<Stage>) -> Option<Stage> {
        let path = match call {
            _ if stage.is_some() => return None,
            Call::Getattr { of: Subject::At(at) }
            | Call::Chmod { of: Subject::At(at), .. }
            | Call::Utimes { of: Subject::At(at), .. }
            | Call::Truncate { of: Subject::At(at), .. }
            | Call::Setxattr { of: Subject::At(at), .. }
            | Call::Getxattr { of: Subject::At(at) }
            | Call::Removexattr { of: Subject::At(at) }
            | Call::Lookup { at }
            | Call::Open { at }
            | Call::Read { at, .. }
            | Call::Create { at, exclusive: false }
            | Call::Link { from: at, .. } => at,
            _ => return None,
        };
        let ino = self.find(path).ok()?;
        // What asks all shards about a directory acts on it when they have answered, as a local
        // file system acts on the inode that the path led to.
        let collects = matches!(call, Call::Getattr { .. } | Call::Utimes { .. });
        let elsewhere = self.is_linked(ino) || (collects && self.is_dir(ino));
        elsewhere.then_some(Stage::Found(ino))
    }

    pub(super) fn apply(
        &mut self,
        number: usize,
        call: &Call,
        answer: &Answer,
        stage: Option<Stage>,
    ) -> bool {
        let ino = number as Ino + 1;
        match call {
            Call::Create { at, exclusive } => self.create(ino, at, *exclusive, answer),
            Call::Mkdir { at } => self.new_entry(ino, at, Kind::Dir, answer),
            Call::Symlink { at } => self.new_entry(ino, at, Kind::Symlink, answer),
            Call::Mkfifo { at } => self.new_entry(ino, at, Kind::Fifo, answer),
            Call::Unlink { at } => {
                let result = self.unlink(at);
                is_answer(result, answer)
            }
            Call::Rmdir { at } => {
                let result = self.rmdir(at);
                is_answer(result, answer)
            }
            Call::Rename { from, to, no_replace } => {
                self.rename(from, to, *no_replace, stage, answer)
            }
            Call::Exchange { from, to } => self.exchange(from, to, stage, answer),
            Call::Link { from, to } => self.link(from, to, stage, answer),
            Call::Lookup { at } | Call::Open { at } | Call::Read { at, .. } => {
                match self.find(at) {
                    Ok(ino) => self.act(ino, call, answer, false),
                    Err(errno) => failed(errno, answer),
                }
            }
            Call::Getattr { of }
            | Call::Chmod { of, .. }
            | Call::Utimes { of, .. }
            | Call::Truncate { of, .. }
            | Call::Setxattr { of, .. }
            | Call::Getxattr { of }
            | Call::Removexattr { of } => match of {
                Subject::At(at) => match self.find(at) {
                    Ok(ino) => self.act(ino, call, answer, false),
                    Err(errno) => failed(errno, answer),
                },
                Subject::Open(id) => self.act_open(*id, call, answer),
            },
            Call::Write { id, .. } | Call::Fsync { id } => self.act_open(*id, call, answer),
            Call::Append { .. } | Call::Readdir { .. } => false,
        }
    }

    pub(super) fn act_open(&mut self, id: InodeId, call: &Call, answer: &Answer) -> bool {
        match self.by_id(id) {
            Some(ino) => self.act(ino, call, answer, true),
            None => false,
        }
    }

    /// An operation on one inode. `by_handle`: its path does not matter any more.
    pub(super) fn act(&mut self, ino: Ino, call: &Call, answer: &Answer, by_handle: bool) -> bool {
        let orphan = by_handle && self.nlink(ino) == 0;
        if orphan && matches!(answer, Answer::Failed(Errno::ESTALE | Errno::ENOENT)) {
            // Its last lease may have ended.
            return true;
        }
        match call {
            Call::Link { to, .. } => self.link_inode(ino, to, answer),
            Call::Create { .. } => self.open_there(ino, answer),
            // Directories may be opened to be read.
            Call::Read { .. } if self.is_dir(ino) => self.open_there(ino, answer),
            Call::Open { .. } | Call::Read { .. } => match self.kind(ino) {
                Kind::Symlink => failed(Errno::ELOOP, answer),
                Kind::Dir => failed(Errno::EISDIR, answer),
                _ => self.open_there(ino, answer),
            },
            Call::Lookup { .. } => match answer {
                Answer::Entry(seen) => {
                    self.is(ino, seen.id) && seen.mode & 0o170_000 == self.kind(ino).bits()
                }
                _ => unknown(answer),
            },
            Call::Getattr { .. } => self.shows(ino, answer),
            Call::Chmod { mode, .. } => {
                self.node_mut(ino).perm = *mode;
                self.is_there(ino, answer)
            }
            Call::Utimes { mtime_ns, .. } => {
                self.node_mut(ino).mtime = Some(*mtime_ns);
                self.is_there(ino, answer)
            }
            Call::Truncate { size, .. } => match self.kind(ino) {
                Kind::Dir => failed(Errno::EISDIR, answer),
                Kind::File => {
                    let cuts = *size < self.size(ino).max(self.append_end(ino));
                    let node = self.node_mut(ino);
                    if cuts {
                        node.append_end = 0;
                        node.cuts += u32::from(node.appending > 0);
                    }
                    (node.size, node.mtime) = (*size, None);
                    self.is_there(ino, answer)
                }
                _ => failed(Errno::EINVAL, answer),
            },
            Call::Write { end, .. } => {
                self.grow(ino, *end);
                done(answer)
            }
            Call::Fsync { .. } => done(answer),
            Call::Setxattr { value, flags, .. } => match (self.xattr(ino), flags) {
                (Some(_), 1) => failed(Errno::EEXIST, answer),
                (None, 2) => failed(Errno::ENODATA, answer),
                _ => {
                    self.node_mut(ino).xattr = Some(*value);
                    done(answer)
                }
            },
            Call::Getxattr { .. } => match self.xattr(ino) {
                Some(value) => *answer == Answer::Value(value) || unknown(answer),
                None => failed(Errno::ENODATA, answer),
            },
            Call::Removexattr { .. } => match self.xattr(ino) {
                Some(_) => {
                    self.node_mut(ino).xattr = None;
                    done(answer)
                }
                None => failed(Errno::ENODATA, answer),
            },
            _ => false,
        }
    }

    /// Do the attributes shown belong to this inode now?
    pub(super) fn shows(&mut self, ino: Ino, answer: &Answer) -> bool {
        let Answer::Entry(seen) = answer else { return unknown(answer) };
        if !self.is(ino, seen.id) {
            return false;
        }
        let kind = self.kind(ino);
        let nlink = match kind {
            Kind::Dir => {
                let names = self.names(ino).values();
                2 + names.filter(|ino| self.is_dir(**ino)).count() as u32
            }
            _ => self.nlink(ino),
        };
        let is_set = seen.mtime_ns < SET_TIMES_END_NS;
        let mtime_fits = match self.mtime(ino) {
            Some(ns) => ns == seen.mtime_ns,
            None => !is_set,
        };
        // The size of a directory or symlink says nothing.
        let size_fits = kind != Kind::File || self.size(ino) == seen.size;
        seen.mode == kind.bits() | self.perm(ino) && seen.nlink == nlink && mtime_fits && size_fits
    }

    pub(super) fn is_there(&mut self, ino: Ino, answer: &Answer) -> bool {
        match answer {
            Answer::Entry(seen) => self.is(ino, seen.id),
            _ => unknown(answer),
        }
    }

    pub(super) fn open_there(&mut self, ino: Ino, answer: &Answer) -> bool {
        match answer {
            Answer::Opened(seen, false) | Answer::Data(seen, _) => self.is(ino, seen.id),
            _ => unknown(answer),
        }
    }
}
