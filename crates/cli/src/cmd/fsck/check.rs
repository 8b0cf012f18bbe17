//! The checks: what rows and chunks must be like, compared with what they are.

use std::collections::{HashMap, HashSet};

use saker_types::limits::CHUNK_BYTES;
use saker_types::wire::IdRange;
use saker_types::{ClusterMap, InodeId, ROOT};

use super::chunks::{Chunked, Chunks};
use super::problem::{ProblemKind, Problems, Subject};
use super::rows::{Count, Rows};

/// One look at the whole cluster.
pub struct Look {
    /// Inodes that have a row.
    pub inodes: u64,
    /// Chunks, copies counted once.
    pub chunks: u64,
    /// Chunks with fewer copies than there should be.
    pub under_replicated: u64,
    pub problems: Problems,
    /// Inodes whose chunks are set aside, and whether a row knows them.
    pub aside: Vec<(InodeId, bool)>,
    /// Parent of each directory, sorted by id.
    pub parents: Vec<(InodeId, InodeId)>,
}

/// Checks everything. `given`: inode numbers that clients have for what they have not merged yet.
/// `strict`: nobody writes, so chunks beyond the end are errors, too.
pub fn check(
    map: &ClusterMap,
    mut rows: Rows,
    mut chunks: Chunks,
    given: &[IdRange],
    strict: bool,
) -> Look {
    let mut problems = std::mem::take(&mut rows.problems);
    problems.append(std::mem::take(&mut chunks.problems));
    rows.dirs.sort_unstable();
    let ids = unique_ids(&rows, &mut problems);
    check_tree(&rows, &mut problems);
    check_links(map, &mut rows, &mut problems);
    check_totals(&mut rows, &mut problems);
    check_orphans(&rows, &ids, &mut problems);
    let aside = check_chunks(&mut rows, &ids, &chunks, given, strict, &mut problems);
    let inodes = (rows.dirs.len() + rows.others.len() + rows.attributes.len()) as u64;
    let Chunks { total, under_replicated, .. } = chunks;
    Look { inodes, chunks: total, under_replicated, problems, aside, parents: rows.dirs }
}

/// All ids that have a row, sorted; tells of those that have two.
fn unique_ids(rows: &Rows, problems: &mut Problems) -> Vec<InodeId> {
    let dirs = rows.dirs.iter().map(|(id, _)| *id);
    let attributes = rows.attributes.iter().map(|row| row.id);
    let mut ids: Vec<InodeId> = dirs.chain(attributes).chain(rows.others.iter().copied()).collect();
    ids.sort_unstable();
    let mut last = 0;
    for pair in ids.windows(2) {
        if pair[0] == pair[1] && pair[0] != last {
            last = pair[0];
            let is_dir = |id| rows.dirs.binary_search_by_key(&id, |(dir, _)| *dir).is_ok();
            let (kind, detail) = match is_dir(last) {
                true => {
                    (ProblemKind::DuplicateDirectory, "more than one row has this directory's id")
                }
                false => (ProblemKind::DuplicateInode, "more than one row has this inode's id"),
            };
            problems.add(kind, Subject::Inode(last), detail);
        }
    }
    ids.dedup();
    ids
}

/// Every entry's parent is a directory that is reached from the root.
fn check_tree(rows: &Rows, problems: &mut Problems) {
    let index_of = |id| rows.dirs.binary_search_by_key(&id, |(dir, _)| *dir).ok();
    let Some(root) = index_of(ROOT) else {
        problems.add(ProblemKind::NoRoot, Subject::All, "the root directory has no row");
        return;
    };
    let mut missing: HashMap<InodeId, u64> = HashMap::new();
    for count in &rows.counted {
        if index_of(count.dir).is_none() {
            *missing.entry(count.dir).or_default() += count.entries;
        }
    }
    for (id, entries) in missing {
        let detail = format!("{entries} entries belong to directory {id}, which does not exist");
        problems.add(ProblemKind::MissingParent, Subject::Inode(id), detail);
    }
    for (index, reach) in reaches(rows, root, index_of).into_iter().enumerate() {
        // Below a missing directory: that one is told of.
        if reach == Reach::Cycle {
            let detail = "the way up from this directory does not end at the root";
            problems.add(ProblemKind::Unreachable, Subject::Inode(rows.dirs[index].0), detail);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Unknown,
    /// On the way that is being walked.
    Walking,
    Root,
    Missing,
    Cycle,
}

/// Where the way up from each directory ends.
fn reaches(rows: &Rows, root: usize, index_of: impl Fn(InodeId) -> Option<usize>) -> Vec<Reach> {
    let mut reach = vec![Reach::Unknown; rows.dirs.len()];
    reach[root] = Reach::Root;
    let mut way = Vec::new();
    for start in 0..rows.dirs.len() {
        let mut at = Some(start);
        let end = loop {
            let Some(here) = at else { break Reach::Missing };
            match reach[here] {
                Reach::Unknown => {
                    reach[here] = Reach::Walking;
                    way.push(here);
                    at = index_of(rows.dirs[here].1);
                }
                Reach::Walking => break Reach::Cycle,
                known => break known,
            }
        };
        way.drain(..).for_each(|index| reach[index] = end);
    }
    reach
}

/// References and attribute rows of hard links agree.
fn check_links(map: &ClusterMap, rows: &mut Rows, problems: &mut Problems) {
    rows.references.sort_unstable();
    rows.attributes.sort_unstable_by_key(|row| row.id);
    let mut referenced = HashSet::new();
    for group in rows.references.chunk_by(|a, b| a.0 == b.0) {
        let (id, slot) = group[0];
        let subject = Subject::Inode(id);
        referenced.insert(id);
        if group.iter().any(|(_, other)| *other != slot) {
            let detail = "its names do not agree where its attributes are";
            problems.add(ProblemKind::MissingAttributes, subject, detail);
            continue;
        }
        let home = map.shard_of_slot(slot);
        let found = rows.attributes.binary_search_by_key(&id, |row| row.id);
        match found.map(|index| rows.attributes[index]) {
            Err(_) => {
                let detail = format!("{} names, but no attribute row", group.len());
                problems.add(ProblemKind::MissingAttributes, subject, detail);
            }
            Ok(row) if row.home != slot => {
                let detail = format!("attributes in slot {}, wanted in {}", row.home.0, slot.0);
                problems.add(ProblemKind::MissingAttributes, subject, detail);
            }
            Ok(row) if row.shard != home => {
                let detail = format!("attributes on shard {}, wanted on shard {home}", row.shard);
                problems.add(ProblemKind::MissingAttributes, subject, detail);
            }
            Ok(row) if row.nlink as usize != group.len() => {
                let detail = format!("link count {}, but {} names", row.nlink, group.len());
                problems.add(ProblemKind::LinkCount, subject, detail);
            }
            Ok(_) => {}
        }
    }
    for row in rows.attributes.iter().filter(|row| !referenced.contains(&row.id)) {
        let detail = format!("attributes on shard {} that no name refers to", row.shard);
        problems.add(ProblemKind::StrayAttributes, Subject::Inode(row.id), detail);
    }
}

/// The totals of each directory on each shard are what is there.
fn check_totals(rows: &mut Rows, problems: &mut Problems) {
    let place = |count: &Count| (count.shard, count.dir);
    rows.counted.sort_unstable_by_key(place);
    rows.totals.sort_unstable_by_key(place);
    let nothing = |of: &Count| Count { entries: 0, subdirs: 0, ..*of };
    let find = |list: &[Count], of: &Count| match list.binary_search_by_key(&place(of), place) {
        Ok(index) => list[index],
        Err(_) => nothing(of),
    };
    let without_row = rows
        .counted
        .iter()
        .filter(|count| rows.totals.binary_search_by_key(&place(count), place).is_err());
    let pairs = rows
        .totals
        .iter()
        .map(|said| (*said, find(&rows.counted, said)))
        .chain(without_row.map(|found| (nothing(found), *found)));
    for (said, found) in pairs.filter(|(said, found)| said != found) {
        problems.add(
            ProblemKind::WrongTotals,
            Subject::Totals(said.shard, said.dir),
            totals_text(said, found),
        );
    }
}

/// The difference in words.
pub fn totals_text(said: Count, found: Count) -> String {
    format!(
        "on shard {} the totals say {} entries and {} directories; there are {} and {}",
        said.shard, said.entries, said.subdirs, found.entries, found.subdirs
    )
}

fn check_orphans(rows: &Rows, ids: &[InodeId], problems: &mut Problems) {
    for id in rows.orphans.iter().filter(|id| ids.binary_search(id).is_ok()) {
        let detail = "its id has both a row and an orphan's record";
        problems.add(ProblemKind::LivingOrphan, Subject::Inode(*id), detail);
    }
}

/// Every chunk belongs to an inode, and lies within its size. What is set aside may belong to none.
fn check_chunks(
    rows: &mut Rows,
    ids: &[InodeId],
    chunks: &Chunks,
    given: &[IdRange],
    strict: bool,
    problems: &mut Problems,
) -> Vec<(InodeId, bool)> {
    let mut aside = Vec::new();
    rows.chunked.sort_unstable();
    let orphans: HashSet<InodeId> = rows.orphans.iter().copied().collect();
    let jobs: HashSet<InodeId> = rows.jobs.iter().copied().collect();
    let staged: HashSet<InodeId> = rows.staged.iter().copied().collect();
    let is_given = |id| given.iter().any(|ids| (ids.first..ids.first + ids.count).contains(&id));
    for inode in &chunks.inodes {
        let Chunked { id, .. } = *inode;
        let has_row = ids.binary_search(&id).is_ok() || orphans.contains(&id);
        let is_known = has_row || staged.contains(&id) || is_given(id);
        if inode.aside {
            aside.push((id, is_known));
        }
        if !is_known && inode.aside {
            continue;
        }
        if !is_known {
            let detail = format!("{} chunks of an inode that does not exist", inode.chunks);
            problems.add(ProblemKind::LeakedChunks, Subject::Inode(id), detail);
            continue;
        }
        if !has_row {
            // How large it is its client knows.
            continue;
        }
        let found = rows.chunked.binary_search_by_key(&id, |(id, _)| *id);
        let size = found.map_or(0, |index| rows.chunked[index].1);
        // An open file's size becomes known when it is flushed, a cut takes effect in a moment.
        if strict && !jobs.contains(&id) && inode.last >= size.div_ceil(CHUNK_BYTES) {
            let detail = format!("chunk {} of a file with {size} bytes", inode.last);
            problems.add(ProblemKind::BeyondEnd, Subject::Inode(id), detail);
        }
    }
    aside
}
