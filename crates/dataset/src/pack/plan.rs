//! What goes where.

use std::collections::HashMap;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::Options;
use super::source::{Entry, Source};
use saker_types::FileKind;

use crate::digest::Digest;
use crate::error::{Error, Result};

/// All that is to be packed, in the order of the paths.
pub struct Plan {
    entries: Vec<Entry>,
    /// Of each entry, the first name of the same file; itself if it is that.
    first: Vec<usize>,
    /// Of each entry, the hash that says its partition.
    hashes: Vec<u64>,
}

impl Plan {
    /// Lists a source.
    ///
    /// # Errors
    /// The source's; Invalid for a path that is there twice.
    pub fn of(source: &dyn Source) -> Result<Plan> {
        let mut entries = source.list()?;
        entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        let path = |entry: &Entry| String::from_utf8_lossy(&entry.path).into_owned();
        for pair in entries.windows(2) {
            if pair[0].path == pair[1].path {
                return Err(Error::invalid(Path::new(&path(&pair[0])), "listed twice"));
            }
        }
        if let Some(odd) = entries.iter().find(|entry| entry.meta.kind().is_none()) {
            return Err(Error::invalid(Path::new(&path(odd)), "a kind of file that is not known"));
        }
        check_ways(&entries)?;
        let mut links = HashMap::new();
        let first = entries.iter().enumerate();
        let first = first.map(|(n, entry)| match entry.link {
            0 => n,
            link => *links.entry(link).or_insert(n),
        });
        let first: Vec<usize> = first.collect();
        let hashes = first.iter().map(|n| xxh3_64(&entries[*n].path)).collect();
        Ok(Plan { entries, first, hashes })
    }

    /// Files, and their bytes.
    pub fn totals(&self) -> (u64, u64) {
        let files = self.entries.iter().enumerate().filter(|(n, entry)| {
            self.first[*n] == *n && entry.meta.kind() == Some(FileKind::Regular)
        });
        files.fold((0, 0), |(files, bytes), (_, entry)| (files + 1, bytes + entry.meta.size))
    }

    pub(super) fn entry(&self, n: usize) -> &Entry {
        &self.entries[n]
    }

    /// The first name of the file that entry `n` names, if it is another one.
    pub(super) fn links_to(&self, n: usize) -> Option<usize> {
        (self.first[n] != n).then_some(self.first[n])
    }

    /// Entries of a partition, in order.
    pub(super) fn of_partition(&self, number: u32, of: u32) -> Vec<usize> {
        let is_its = |n: &usize| (self.hashes[*n] % u64::from(of)) as u32 == number;
        (0..self.entries.len()).filter(is_its).collect()
    }

    /// Says whether two plans, with options, give the same partitions.
    pub(super) fn fingerprint(&self, options: &Options) -> Digest {
        let mut hasher = blake3::Hasher::new();
        let mut field = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        field(format!("{} {}", options.partitions, options.codec).as_bytes());
        for (n, Entry { path, meta, version, .. }) in self.entries.iter().enumerate() {
            field(path);
            let numbers = [
                self.first[n] as u64,
                *version,
                meta.mode.into(),
                meta.uid.into(),
                meta.gid.into(),
                meta.size,
                meta.mtime.0 as u64,
                meta.mtime.1.into(),
                meta.rdev.into(),
            ];
            numbers.iter().for_each(|n| field(&n.to_le_bytes()));
            field(&meta.target);
            for (name, value) in &meta.xattrs {
                field(name);
                field(value);
            }
        }
        Digest(*hasher.finalize().as_bytes())
    }
}

/// Refuses files below what is no directory: a list may lead through links. In the order of paths all
/// that is below something comes after it.
fn check_ways(entries: &[Entry]) -> Result<()> {
    let others = entries.iter().filter(|entry| entry.meta.kind() != Some(FileKind::Directory));
    for entry in others {
        let mut below = entry.path.clone();
        below.push(b'/');
        let next = entries.partition_point(|other| other.path < below);
        if let Some(inner) = entries.get(next).filter(|other| other.path.starts_with(&below)) {
            let [inner, path] = [&inner.path, &entry.path].map(|p| String::from_utf8_lossy(p));
            let what =
                format!("leads through {path}, which is no directory; name it by its own path");
            return Err(Error::invalid(Path::new(&*inner), what));
        }
    }
    Ok(())
}
