//! What calls answer and change, but for those on names.

use saker_types::limits::CHUNK_BYTES;
use saker_types::{Errno, InodeId};

use super::super::history::{CallSubject, WorldAnswer, WorldCall};
use super::{
    Kind, SET_TIMES_END_NS, WorldIno, WorldNext, WorldSpec, WorldStage, done, failed, is_answer,
    unknown,
};

impl WorldSpec {
    /// The ways in which a call may go on now. `number` is its index in the history; `split`:
    /// others may have changed directories between its two paths.
    pub fn step(
        &self,
        number: usize,
        call: &WorldCall,
        answer: &WorldAnswer,
        stage: Option<WorldStage>,
        split: bool,
    ) -> Vec<WorldNext> {
        let mut next = Vec::new();
        let mut spec = self.clone();
        if let Some(WorldStage::Found(ino)) = stage {
            if spec.act(ino, call, answer, true) {
                spec.note_listings();
                next.push(WorldNext::Done(spec));
            }
            return next;
        }
        if let WorldCall::Append { id, len, .. } = call {
            return self.append(*id, *len, answer, stage);
        }
        if let (WorldCall::Write { id, start, end, .. }, true) = (call, done(answer))
            && start / CHUNK_BYTES != (end - 1) / CHUNK_BYTES
        {
            return self.write_into_two(*id, *start, *end, stage);
        }
        if let Some(later) = self.found_elsewhere(call, stage) {
            next.push(WorldNext::Later(self.clone(), later));
        }
        let source = match call {
            WorldCall::Rename { from, .. }
            | WorldCall::Exchange { from, .. }
            | WorldCall::Link { from, .. } => Some(from),
            _ => None,
        };
        if let (true, None, Some(from)) = (split, stage, source)
            && let Ok(place) = self.place(from)
        {
            next.push(WorldNext::Later(self.clone(), WorldStage::Source(place.dir, place.name)));
        }
        if spec.apply(number, call, answer, stage) {
            spec.note_listings();
            next.push(WorldNext::Done(spec));
        }
        next
    }

    /// Chunks are written one by one: a truncation by another client may come between them.
    fn write_into_two(
        &self,
        id: InodeId,
        start: u64,
        end: u64,
        stage: Option<WorldStage>,
    ) -> Vec<WorldNext> {
        let mut spec = self.clone();
        if let Some(WorldStage::Tail(ino)) = stage {
            spec.grow(ino, start.next_multiple_of(CHUNK_BYTES));
            return vec![WorldNext::Done(spec)];
        }
        let Some(ino) = self.by_id(id) else { return Vec::new() };
        spec.grow(ino, end);
        vec![WorldNext::Done(spec.clone()), WorldNext::Later(spec, WorldStage::Tail(ino))]
    }

    /// An append is given its place, and is seen when its data is there: at once, if that goes into
    /// the row. If the file is truncated before, it was there before that, or it is given another
    /// place.
    pub(super) fn append(
        &self,
        id: InodeId,
        len: u64,
        answer: &WorldAnswer,
        stage: Option<WorldStage>,
    ) -> Vec<WorldNext> {
        let mut next = Vec::new();
        let fits = |offset| unknown(answer) || *answer == WorldAnswer::Offset(offset);
        if let Some(WorldStage::Appended(ino, end, cuts)) = stage {
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
                next.push(WorldNext::Done(spec));
            }
            return next;
        }
        let Some(ino) = self.by_id(id) else { return next };
        if self.nlink(ino) == 0
            && matches!(answer, WorldAnswer::Failed(Errno::ESTALE | Errno::ENOENT))
        {
            next.push(WorldNext::Done(self.clone()));
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
            next.push(WorldNext::Later(spec, WorldStage::Appended(ino, end, self.cuts(ino))));
        }
        if !fits(offset) {
            // It must be given another place.
            return next;
        }
        let mut spec = self.clone();
        spec.grow(ino, end);
        next.push(WorldNext::Done(spec));
        next
    }

    pub(super) fn grow(&mut self, ino: WorldIno, end: u64) {
        let node = self.node_mut(ino);
        (node.size, node.mtime) = (node.size.max(end), None);
    }

    /// The path of the call leads to an inode on which it acts later.
    pub(super) fn found_elsewhere(
        &self,
        call: &WorldCall,
        stage: Option<WorldStage>,
    ) -> Option<WorldStage> {
        let path = match call {
            _ if stage.is_some() => return None,
            WorldCall::Getattr { of: CallSubject::At(at) }
            | WorldCall::Chmod { of: CallSubject::At(at), .. }
            | WorldCall::Utimes { of: CallSubject::At(at), .. }
            | WorldCall::Truncate { of: CallSubject::At(at), .. }
            | WorldCall::Setxattr { of: CallSubject::At(at), .. }
            | WorldCall::Getxattr { of: CallSubject::At(at) }
            | WorldCall::Removexattr { of: CallSubject::At(at) }
            | WorldCall::Lookup { at }
            | WorldCall::Open { at }
            | WorldCall::Read { at, .. }
            | WorldCall::Create { at, exclusive: false }
            | WorldCall::Link { from: at, .. } => at,
            _ => return None,
        };
        let ino = self.find(path).ok()?;
        // What asks all shards about a directory acts on it when they have answered, as a local
        // file system acts on the inode that the path led to.
        let collects = matches!(call, WorldCall::Getattr { .. } | WorldCall::Utimes { .. });
        let elsewhere = self.is_linked(ino) || (collects && self.is_dir(ino));
        elsewhere.then_some(WorldStage::Found(ino))
    }

    pub(super) fn apply(
        &mut self,
        number: usize,
        call: &WorldCall,
        answer: &WorldAnswer,
        stage: Option<WorldStage>,
    ) -> bool {
        let ino = number as WorldIno + 1;
        match call {
            WorldCall::Create { at, exclusive } => self.create(ino, at, *exclusive, answer),
            WorldCall::Mkdir { at } => self.new_entry(ino, at, Kind::Dir, answer),
            WorldCall::Symlink { at } => self.new_entry(ino, at, Kind::Symlink, answer),
            WorldCall::Mkfifo { at } => self.new_entry(ino, at, Kind::Fifo, answer),
            WorldCall::Unlink { at } => {
                let result = self.unlink(at);
                is_answer(result, answer)
            }
            WorldCall::Rmdir { at } => {
                let result = self.rmdir(at);
                is_answer(result, answer)
            }
            WorldCall::Rename { from, to, no_replace } => {
                self.rename(from, to, *no_replace, stage, answer)
            }
            WorldCall::Exchange { from, to } => self.exchange(from, to, stage, answer),
            WorldCall::Link { from, to } => self.link(from, to, stage, answer),
            WorldCall::Lookup { at } | WorldCall::Open { at } | WorldCall::Read { at, .. } => {
                match self.find(at) {
                    Ok(ino) => self.act(ino, call, answer, false),
                    Err(errno) => failed(errno, answer),
                }
            }
            WorldCall::Getattr { of }
            | WorldCall::Chmod { of, .. }
            | WorldCall::Utimes { of, .. }
            | WorldCall::Truncate { of, .. }
            | WorldCall::Setxattr { of, .. }
            | WorldCall::Getxattr { of }
            | WorldCall::Removexattr { of } => match of {
                CallSubject::At(at) => match self.find(at) {
                    Ok(ino) => self.act(ino, call, answer, false),
                    Err(errno) => failed(errno, answer),
                },
                CallSubject::Open(id) => self.act_open(*id, call, answer),
            },
            WorldCall::Write { id, .. } | WorldCall::Fsync { id } => {
                self.act_open(*id, call, answer)
            }
            WorldCall::Append { .. } | WorldCall::Readdir { .. } => false,
        }
    }

    pub(super) fn act_open(&mut self, id: InodeId, call: &WorldCall, answer: &WorldAnswer) -> bool {
        match self.by_id(id) {
            Some(ino) => self.act(ino, call, answer, true),
            None => false,
        }
    }

    /// An operation on one inode. `by_handle`: its path does not matter any more.
    pub(super) fn act(
        &mut self,
        ino: WorldIno,
        call: &WorldCall,
        answer: &WorldAnswer,
        by_handle: bool,
    ) -> bool {
        let orphan = by_handle && self.nlink(ino) == 0;
        if orphan && matches!(answer, WorldAnswer::Failed(Errno::ESTALE | Errno::ENOENT)) {
            // Its last lease may have ended.
            return true;
        }
        match call {
            WorldCall::Link { to, .. } => self.link_inode(ino, to, answer),
            WorldCall::Create { .. } => self.open_there(ino, answer),
            // Directories may be opened to be read.
            WorldCall::Read { .. } if self.is_dir(ino) => self.open_there(ino, answer),
            WorldCall::Open { .. } | WorldCall::Read { .. } => match self.kind(ino) {
                Kind::Symlink => failed(Errno::ELOOP, answer),
                Kind::Dir => failed(Errno::EISDIR, answer),
                _ => self.open_there(ino, answer),
            },
            WorldCall::Lookup { .. } => match answer {
                WorldAnswer::Entry(seen) => {
                    self.is(ino, seen.id) && seen.mode & 0o170_000 == self.kind(ino).bits()
                }
                _ => unknown(answer),
            },
            WorldCall::Getattr { .. } => self.shows(ino, answer),
            WorldCall::Chmod { mode, .. } => {
                self.node_mut(ino).perm = *mode;
                self.is_there(ino, answer)
            }
            WorldCall::Utimes { mtime_ns, .. } => {
                self.node_mut(ino).mtime = Some(*mtime_ns);
                self.is_there(ino, answer)
            }
            WorldCall::Truncate { size, .. } => match self.kind(ino) {
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
            WorldCall::Write { end, .. } => {
                self.grow(ino, *end);
                done(answer)
            }
            WorldCall::Fsync { .. } => done(answer),
            WorldCall::Setxattr { value, flags, .. } => match (self.xattr(ino), flags) {
                (Some(_), 1) => failed(Errno::EEXIST, answer),
                (None, 2) => failed(Errno::ENODATA, answer),
                _ => {
                    self.node_mut(ino).xattr = Some(*value);
                    done(answer)
                }
            },
            WorldCall::Getxattr { .. } => match self.xattr(ino) {
                Some(value) => *answer == WorldAnswer::Value(value) || unknown(answer),
                None => failed(Errno::ENODATA, answer),
            },
            WorldCall::Removexattr { .. } => match self.xattr(ino) {
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
    pub(super) fn shows(&mut self, ino: WorldIno, answer: &WorldAnswer) -> bool {
        let WorldAnswer::Entry(seen) = answer else { return unknown(answer) };
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

    pub(super) fn is_there(&mut self, ino: WorldIno, answer: &WorldAnswer) -> bool {
        match answer {
            WorldAnswer::Entry(seen) => self.is(ino, seen.id),
            _ => unknown(answer),
        }
    }

    pub(super) fn open_there(&mut self, ino: WorldIno, answer: &WorldAnswer) -> bool {
        match answer {
            WorldAnswer::Opened(seen, false) | WorldAnswer::Data(seen, _) => self.is(ino, seen.id),
            _ => unknown(answer),
        }
    }
}
