//! Making, removing, moving and linking names.

use saker_types::Errno;

use super::super::history::{NameNo, Path, WorldAnswer, WorldSeen};
use super::{Kind, Step, WorldIno, WorldSpec, WorldStage, failed, unknown};

impl WorldSpec {
    pub(super) fn create(
        &mut self,
        ino: WorldIno,
        at: &Path,
        exclusive: bool,
        answer: &WorldAnswer,
    ) -> bool {
        let place = match self.place(at) {
            Ok(place) => place,
            Err(errno) => return failed(errno, answer),
        };
        let Some(there) = place.there else {
            return self.new_entry(ino, at, Kind::File, answer);
        };
        if exclusive {
            return failed(Errno::EEXIST, answer);
        }
        match self.kind(there) {
            Kind::Dir => failed(Errno::EISDIR, answer),
            Kind::Symlink => failed(Errno::ELOOP, answer),
            Kind::File | Kind::Fifo => self.open_there(there, answer),
        }
    }

    pub(super) fn new_entry(
        &mut self,
        ino: WorldIno,
        at: &Path,
        kind: Kind,
        answer: &WorldAnswer,
    ) -> bool {
        let place = match self.place(at) {
            Ok(place) => place,
            Err(errno) => return failed(errno, answer),
        };
        if place.there.is_some() {
            return failed(Errno::EEXIST, answer);
        }
        let id = match answer {
            WorldAnswer::Entry(seen) | WorldAnswer::Opened(seen, true) => seen.id,
            WorldAnswer::Unknown(_) => 0,
            _ => return false,
        };
        if id != 0 && self.by_id(id).is_some() {
            return false;
        }
        self.make(ino, kind, id);
        self.insert(place.dir, place.name, ino);
        true
    }

    pub(super) fn unlink(&mut self, at: &Path) -> Step<()> {
        let place = self.place(at)?;
        let ino = place.there.ok_or(Errno::ENOENT)?;
        if self.is_dir(ino) {
            return Err(Errno::EISDIR);
        }
        self.remove(place.dir, place.name);
        self.drop_link(ino);
        Ok(())
    }

    pub(super) fn rmdir(&mut self, at: &Path) -> Step<()> {
        let place = self.place(at)?;
        let ino = place.there.ok_or(Errno::ENOENT)?;
        if !self.is_dir(ino) {
            return Err(Errno::ENOTDIR);
        }
        if !self.names(ino).is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.remove(place.dir, place.name);
        self.drop_link(ino);
        Ok(())
    }

    pub(super) fn is_within(&self, dir: WorldIno, top: WorldIno) -> bool {
        if dir == top {
            return true;
        }
        let children = self.names(top).values();
        let mut dirs = children.filter(|ino| self.is_dir(**ino));
        dirs.any(|child| self.is_within(dir, *child))
    }

    /// All errors that are true of a rename: which one is told is not promised.
    pub(super) fn rename_errors(&self, from: &Path, to: &Path, no_replace: bool) -> Vec<Errno> {
        let mut errors = Vec::new();
        let (old, new) = (self.place(from), self.place(to));
        errors.extend(old.as_ref().err().copied());
        errors.extend(new.as_ref().err().copied());
        let source = old.as_ref().ok().and_then(|place| place.there);
        if old.is_ok() && source.is_none() {
            errors.push(Errno::ENOENT);
        }
        let is_below = to.names.len() > from.names.len() && to.names.starts_with(&from.names);
        if is_below && from.base == to.base {
            errors.push(if source.is_some_and(|s| self.is_dir(s)) {
                Errno::EINVAL
            } else {
                Errno::ENOTDIR
            });
        }
        let (Ok(old), Ok(new), Some(source)) = (&old, &new, source) else { return errors };
        let source_is_dir = self.is_dir(source);
        if source_is_dir && self.is_within(new.dir, source) {
            errors.push(Errno::EINVAL);
        }
        let Some(target) = new.there else { return errors };
        if no_replace {
            errors.push(Errno::EEXIST);
        }
        if target == source {
            return errors;
        }
        match (source_is_dir, self.is_dir(target)) {
            (true, false) => errors.push(Errno::ENOTDIR),
            (false, true) => errors.push(Errno::EISDIR),
            (true, true) if !self.names(target).is_empty() || self.is_within(old.dir, target) => {
                errors.push(Errno::ENOTEMPTY);
            }
            _ => {}
        }
        errors
    }

    pub(super) fn rename(
        &mut self,
        from: &Path,
        to: &Path,
        no_replace: bool,
        stage: Option<WorldStage>,
        answer: &WorldAnswer,
    ) -> bool {
        let Some(from) = self.source(from, stage) else { return false };
        let errors = self.rename_errors(&from, to, no_replace);
        if let WorldAnswer::Failed(errno) = answer {
            // The way to the new parent changed again and again: nothing was done.
            return errors.contains(errno) || *errno == Errno::ESTALE;
        }
        if !errors.is_empty() {
            return unknown(answer);
        }
        let (Ok(old), Ok(new)) = (self.place(&from), self.place(to)) else { return false };
        let Some(source) = old.there else { return false };
        if let WorldAnswer::Entry(seen) = answer
            && !self.is(source, seen.id)
        {
            return false;
        }
        if new.there != Some(source) {
            if let Some(target) = new.there {
                self.drop_link(target);
            }
            self.remove(old.dir, old.name);
            self.insert(new.dir, new.name, source);
        }
        true
    }

    pub(super) fn exchange(
        &mut self,
        from: &Path,
        to: &Path,
        stage: Option<WorldStage>,
        answer: &WorldAnswer,
    ) -> bool {
        let Some(from) = self.source(from, stage) else { return false };
        let errors = self.exchange_errors(&from, to);
        if let WorldAnswer::Failed(errno) = answer {
            return errors.contains(errno) || *errno == Errno::ESTALE;
        }
        let (Ok(old), Ok(new)) = (self.place(&from), self.place(to)) else {
            return unknown(answer);
        };
        let (Some(source), Some(target)) = (old.there, new.there) else { return unknown(answer) };
        if !errors.is_empty() {
            return unknown(answer);
        }
        if let WorldAnswer::Entry(seen) = answer
            && !self.is(source, seen.id)
        {
            return false;
        }
        if source != target {
            self.insert(old.dir, old.name, target);
            self.insert(new.dir, new.name, source);
        }
        true
    }

    pub(super) fn exchange_errors(&self, from: &Path, to: &Path) -> Vec<Errno> {
        let mut errors = Vec::new();
        let places = [(from, to), (to, from)].map(|(path, other)| {
            let place = self.place(path);
            errors.extend(place.as_ref().err().copied());
            let there = place.as_ref().ok().and_then(|place| place.there);
            if place.is_ok() && there.is_none() {
                errors.push(Errno::ENOENT);
            }
            let below =
                other.names.len() > path.names.len() && other.names.starts_with(&path.names);
            if below && path.base == other.base {
                errors.extend([Errno::EINVAL, Errno::ENOTDIR]);
            }
            place
        });
        if let [Ok(old), Ok(new)] = &places {
            for (moved, into) in [(old, new), (new, old)] {
                let moves_dir = |ino: &WorldIno| self.is_dir(*ino);
                if moved.there.filter(moves_dir).is_some_and(|dir| self.is_within(into.dir, dir)) {
                    errors.push(Errno::EINVAL);
                }
            }
        }
        errors
    }

    /// The source's path, or where it led to before.
    pub(super) fn source(&self, from: &Path, stage: Option<WorldStage>) -> Option<Path> {
        match stage {
            Some(WorldStage::Source(dir, name)) => self.id_path(dir, name),
            _ => Some(from.clone()),
        }
    }

    /// A path by the id of its directory, if that is known and there.
    pub(super) fn id_path(&self, dir: WorldIno, name: NameNo) -> Option<Path> {
        let id = self.id(dir);
        (id != 0 && self.nlink(dir) > 0).then(|| Path { base: Some(id), names: vec![name] })
    }

    pub(super) fn link(
        &mut self,
        from: &Path,
        to: &Path,
        stage: Option<WorldStage>,
        answer: &WorldAnswer,
    ) -> bool {
        let Some(from) = self.source(from, stage) else { return false };
        if let WorldAnswer::Failed(errno) = answer {
            let mut errors = Vec::new();
            match self.find(&from) {
                Ok(ino) if self.is_dir(ino) => errors.push(Errno::EPERM),
                Ok(_) => {}
                Err(errno) => errors.push(errno),
            }
            let below = to.names.len() > from.names.len() && to.names.starts_with(&from.names);
            if below && from.base == to.base {
                errors.push(Errno::ENOTDIR);
            }
            match self.place(to) {
                Ok(place) if place.there.is_some() => errors.push(Errno::EEXIST),
                Ok(_) => {}
                Err(errno) => errors.push(errno),
            }
            return errors.contains(errno);
        }
        match self.find(&from) {
            Ok(ino) if !self.is_dir(ino) => self.link_inode(ino, to, answer),
            _ => unknown(answer),
        }
    }

    pub(super) fn link_inode(&mut self, ino: WorldIno, to: &Path, answer: &WorldAnswer) -> bool {
        let place = match self.place(to) {
            Ok(place) if place.there.is_some() => return failed(Errno::EEXIST, answer),
            Ok(place) => place,
            Err(errno) => return failed(errno, answer),
        };
        if self.nlink(ino) == 0 {
            return failed(Errno::ENOENT, answer);
        }
        let node = self.node_mut(ino);
        (node.nlink, node.linked) = (node.nlink + 1, true);
        let nlink = node.nlink;
        self.insert(place.dir, place.name, ino);
        match answer {
            WorldAnswer::Entry(WorldSeen { id, nlink: seen, .. }) => {
                self.is(ino, *id) && *seen == nlink
            }
            _ => unknown(answer),
        }
    }
}
