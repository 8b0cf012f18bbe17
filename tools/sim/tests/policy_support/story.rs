//! What a client did in a directory, as it was told, and what may be left of that after a crash.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use saker_sim::generate::Random;
use saker_types::policy::explain::{FLUSH_DELAY_MAX, Loss};

/// Directories in which files are made: one was there before, the other one the client makes.
pub const OLD: &str = "old";
pub const NEW: &str = "new";
/// Every so manieth file is too large for its row.
const LARGE_EVERY: u32 = 7;
const LARGE_BYTES: usize = 9_000;
const SMALL_BYTES_MAX: u32 = 600;
/// No data.
const EMPTY: u32 = 0;

/// Names of files below a directory, with the number of their content.
pub type Files = BTreeMap<String, u32>;

/// One answer.
enum Change {
    Put(String, u32),
    Remove(String),
    Rename(String, String),
}

/// What is lost may be lost of all names together, or of those of some servers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// There is one journal: what is left is as it was at one moment.
    Whole,
    /// Each name is as it was at one moment.
    EachName,
}

/// What was answered, one after the other.
#[derive(Default)]
pub struct Story {
    /// Before the first change.
    base: Files,
    changes: Vec<(Change, Instant)>,
    now: Files,
    /// Changes that an fsync came after.
    synced: usize,
    /// Changes that were merged.
    merged: usize,
    /// The last number that a name or a content was given.
    last: u32,
    /// For messages.
    doing: String,
}

/// Is a content too large for the row of its file?
pub fn is_large(content: u32) -> bool {
    content != EMPTY && content.is_multiple_of(LARGE_EVERY)
}

fn bytes_of(content: u32) -> Vec<u8> {
    if content == EMPTY {
        return Vec::new();
    }
    let len =
        if is_large(content) { LARGE_BYTES } else { (1 + content % SMALL_BYTES_MAX) as usize };
    let mut bytes = format!("{content} ").into_bytes();
    bytes.extend((0..len).map(|n| b'a' + ((n as u32 + content) % 26) as u8));
    bytes
}

fn content_of(bytes: &[u8]) -> Option<u32> {
    let number = String::from_utf8_lossy(bytes.split(|byte| *byte == b' ').next()?).into_owned();
    let content = if bytes.is_empty() { EMPTY } else { number.parse().ok()? };
    (bytes_of(content) == bytes).then_some(content)
}

/// What is found in a directory.
///
/// # Panics
/// If a file has what nobody wrote.
pub fn look(dir: &Path) -> io::Result<Files> {
    let mut found = Files::new();
    for entry in fs::read_dir(dir)? {
        let sub = entry?.path();
        for file in fs::read_dir(&sub)? {
            let path = file?.path();
            let bytes = fs::read(&path)?;
            let content = content_of(&bytes);
            let content = content
                .unwrap_or_else(|| panic!("{}: {} strange bytes", path.display(), bytes.len()));
            found.insert(path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned(), content);
        }
    }
    Ok(found)
}

impl Story {
    /// It begins with what is there.
    pub fn from(base: Files, last: u32) -> Story {
        Story { now: base.clone(), base, last, ..Story::default() }
    }

    /// The last number that a name or a content was given; later ones are greater.
    pub fn last_number(&self) -> u32 {
        self.last
    }

    /// What there is, as the client was told.
    pub fn now(&self) -> &Files {
        &self.now
    }

    /// Everything until now was merged.
    pub fn was_merged(&mut self) {
        self.merged = self.changes.len();
    }

    /// As it was when it was merged.
    pub fn merged(&self) -> Files {
        self.after(self.merged)
    }

    fn told(&mut self, change: Change) {
        apply(&mut self.now, &change);
        self.changes.push((change, Instant::now()));
    }

    fn after(&self, count: usize) -> Files {
        let mut files = self.base.clone();
        self.changes[..count].iter().for_each(|(change, _)| apply(&mut files, change));
        files
    }

    /// Does something in `root`: a change or two, or fsync of a file and of its directory.
    ///
    /// # Panics
    /// If that fails.
    pub fn step(&mut self, root: &Path, rng: &mut Random) {
        if let Err(error) = self.try_step(root, rng) {
            panic!("{}: {}: {error}", root.display(), self.doing);
        }
    }

    fn try_step(&mut self, root: &Path, rng: &mut Random) -> io::Result<()> {
        let names: Vec<String> = self.now.keys().cloned().collect();
        let dir = *rng.pick(&[OLD, NEW]);
        self.last += 1;
        let free = format!("{dir}/f{}", self.last);
        if names.len() < 10 || rng.chance(35) {
            let mut file = OpenOptions::new();
            return self.write(root, file.write(true).create_new(true), free, rng);
        }
        let name = rng.pick(&names).clone();
        match rng.below(100) {
            0..20 if !is_large(self.now[&name]) => {
                let mut file = OpenOptions::new();
                return self.write(root, file.write(true).truncate(true), name, rng);
            }
            0..50 => {
                let to = if rng.chance(75) { free } else { rng.pick(&names).clone() };
                if to != name {
                    self.doing = format!("rename {name} to {to}");
                    fs::rename(root.join(&name), root.join(&to))?;
                    self.told(Change::Rename(name, to));
                }
            }
            50..85 => {
                self.doing = format!("remove {name}");
                fs::remove_file(root.join(&name))?;
                self.told(Change::Remove(name));
            }
            _ => self.sync(root, &name)?,
        }
        Ok(())
    }

    fn write(
        &mut self,
        root: &Path,
        how: &OpenOptions,
        name: String,
        rng: &mut Random,
    ) -> io::Result<()> {
        self.doing = format!("write {name}");
        let mut file = how.open(root.join(&name))?;
        self.told(Change::Put(name.clone(), EMPTY));
        if rng.chance(80) {
            self.last += 1;
            file.write_all(&bytes_of(self.last))?;
            // What it said is told by close(2).
            drop(file);
            self.told(Change::Put(name.clone(), self.last));
        }
        if rng.chance(10) { self.sync(root, &name) } else { Ok(()) }
    }

    /// fsync of a file, and of its directory.
    fn sync(&mut self, root: &Path, name: &str) -> io::Result<()> {
        self.doing = format!("sync {name}");
        let path = root.join(name);
        File::open(&path)?.sync_all()?;
        File::open(path.parent().unwrap())?.sync_all()?;
        self.synced = self.changes.len();
        Ok(())
    }

    /// So many files with chunks are not found, or have lost their content.
    pub fn large_lost(&self, found: &Files) -> usize {
        let written = self.changes.iter().filter_map(|(change, _)| match change {
            Change::Put(_, content) if is_large(*content) => Some(content),
            _ => None,
        });
        written.filter(|content| !found.values().any(|is| is == *content)).count()
    }

    /// How many changes must be there, and how many may be, after a crash that loses this.
    pub fn kept(&self, loss: Loss, crashed: Instant) -> std::ops::RangeInclusive<usize> {
        let all = self.changes.len();
        let durable = self.synced.max(self.merged);
        match loss {
            Loss::Nothing | Loss::KeptOnClient => all..=all,
            Loss::LastMoments => {
                let old = |(_, told): &&(Change, Instant)| *told + FLUSH_DELAY_MAX <= crashed;
                durable.max(self.changes.iter().take_while(old).count())..=all
            }
            Loss::SinceSync => durable..=all,
            Loss::Unmerged => self.merged..=self.merged,
        }
    }

    /// Is what was found what so many of the changes have made? How many of all are lost.
    ///
    /// # Errors
    /// What is wrong.
    pub fn judge(
        &self,
        found: &Files,
        kept: std::ops::RangeInclusive<usize>,
        scope: Scope,
    ) -> Result<usize, String> {
        let may_be: Vec<Files> = kept.clone().map(|count| self.after(count)).collect();
        let lost = may_be.iter().rev().position(|files| files == found);
        let most = may_be.last().unwrap();
        match (lost, scope) {
            (Some(lost), _) => Ok(lost + self.changes.len() - kept.end()),
            (None, Scope::EachName) => self.judge_names(found, &may_be, &kept),
            (None, Scope::Whole) => Err(format!(
                "as after none of {kept:?} of {} changes; as after {:?}; least: {}; most: {}",
                self.changes.len(),
                (0..=self.changes.len()).rev().find(|count| self.after(*count) == *found),
                difference(&may_be[0], found),
                difference(most, found),
            )),
        }
    }

    fn judge_names(
        &self,
        found: &Files,
        may_be: &[Files],
        kept: &std::ops::RangeInclusive<usize>,
    ) -> Result<usize, String> {
        let names: BTreeSet<&String> = may_be.iter().flatten().map(|(name, _)| name).collect();
        if let Some(name) = found.keys().find(|name| !names.contains(name)) {
            return Err(format!("{name} is there"));
        }
        for name in names {
            let is = found.get(name);
            if !may_be.iter().any(|files| files.get(name) == is) {
                let was: Vec<_> = may_be.iter().map(|files| files.get(name)).collect();
                return Err(format!("{name} is {is:?}, and was {was:?} after {kept:?} changes"));
            }
        }
        // A file has one name, also if it was given another one.
        let contents = |files: &Files| -> BTreeSet<u32> { files.values().copied().collect() };
        let always = may_be.iter().map(contents).reduce(|one, other| &one & &other).unwrap();
        for content in always.into_iter().filter(|content| *content != EMPTY) {
            let count = found.values().filter(|is| **is == content).count();
            if count != 1 {
                return Err(format!("the file with content {content} has {count} names"));
            }
        }
        let most = may_be.last().unwrap();
        Ok(most.iter().filter(|(name, is)| found.get(*name) != Some(*is)).count().max(1))
    }
}

fn apply(files: &mut Files, change: &Change) {
    match change {
        Change::Put(name, content) => drop(files.insert(name.clone(), *content)),
        Change::Remove(name) => drop(files.remove(name)),
        Change::Rename(from, to) => {
            let content = files.remove(from).unwrap();
            files.insert(to.clone(), content);
        }
    }
}

/// Names that are not as they should be.
fn difference(wanted: &Files, found: &Files) -> String {
    let names: BTreeSet<&String> = wanted.keys().chain(found.keys()).collect();
    let differ = names.into_iter().filter(|name| wanted.get(*name) != found.get(*name));
    let differ: Vec<String> = differ
        .map(|name| format!("{name}: {:?} for {:?}", found.get(name), wanted.get(name)))
        .collect();
    format!("{} differ {:?}", differ.len(), &differ[..differ.len().min(8)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The judge finds what is missing, and what is too much.
    #[test]
    fn what_is_wrong_is_found() {
        let mut story = Story::default();
        for (name, content) in [("old/a", 1), ("old/b", 2), ("new/c", 3)] {
            story.told(Change::Put(name.to_owned(), content));
        }
        story.told(Change::Rename("old/a".to_owned(), "new/a".to_owned()));
        let found = story.after(3);
        assert_eq!(story.judge(&found, 2..=4, Scope::Whole), Ok(1));
        assert!(story.judge(&found, 4..=4, Scope::Whole).is_err());
        assert!(story.judge(&found, 0..=2, Scope::Whole).is_err());
        let mut holes = story.after(4);
        holes.remove("old/b");
        assert!(story.judge(&holes, 0..=4, Scope::Whole).is_err());
        assert_eq!(story.judge(&holes, 1..=4, Scope::EachName), Ok(1));
        assert!(story.judge(&holes, 2..=4, Scope::EachName).is_err());
        // Neither name of one that was renamed.
        holes.remove("new/a");
        assert!(story.judge(&holes, 1..=4, Scope::EachName).is_err());
        let crashed = Instant::now() + FLUSH_DELAY_MAX;
        assert_eq!(story.kept(Loss::LastMoments, crashed), 4..=4);
        assert_eq!(story.kept(Loss::LastMoments, crashed - FLUSH_DELAY_MAX * 2), 0..=4);
        story.merged = 2;
        assert_eq!(story.kept(Loss::Unmerged, crashed), 2..=2);
        assert_eq!(story.kept(Loss::SinceSync, crashed), 2..=4);
    }

    #[test]
    fn contents_are_told_apart() {
        for content in 0..50 {
            assert_eq!(content_of(&bytes_of(content)), Some(content));
        }
        let mut torn = bytes_of(14);
        torn.truncate(4_096);
        assert_eq!(content_of(&torn), None);
    }
}
