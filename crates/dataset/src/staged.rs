//! A dataset on one node of a job: which partitions the node keeps, and reading them.
//!
//! ```text
//! DIR/datasets/NAME@VERSION/
//!     node                number of this node in stage.json
//!     stage.json          who keeps what, and where the rest is: written first
//!     table.saker         all files of the dataset
//!     part-NNNNN.saker    partitions that this node keeps; .partial until they are whole
//!     broadcast.saker     files that every node keeps
//!     dataset.json        the dataset's manifest: written last, when the table is there
//! ```
//!
//! A process that reads opens the files itself: there is no service on the way to what its node
//! keeps. What the node does not keep comes from the node's agent.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::dataset::{TABLE, partition_name, sync_dir, write_whole};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::format::{BROADCAST_MAGIC, HEADER_BYTES, PAGE_BYTES, Preamble, crc_of};
use crate::inode::FileData;
use crate::table::{Ino, Table};

/// File that says what is staged.
const STAGE: &str = "stage.json";
/// File with the files that every node keeps.
const BROADCAST: &str = "broadcast.saker";
/// Of [`Stage`].
const FORMAT: u32 = 1;

/// What is staged, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Version of this file.
    pub format: u32,
    /// NAME@VERSION.
    pub name: String,
    /// Digest of the dataset's files.
    pub digest: Digest,
    /// Digest of its table, by which agents know that they have the same one.
    pub table_digest: Digest,
    /// Partitions of the dataset.
    pub partitions: u32,
    /// Agents (`host:port`), in the order that says who keeps what.
    pub nodes: Vec<String>,
    /// Nodes that keep each partition.
    pub replicas: u32,
    /// Directories whose files every node keeps.
    pub broadcast: Vec<String>,
    /// Where the dataset comes from: a directory, or a URL.
    pub origin: String,
}

impl Stage {
    /// The version of this program.
    pub const FORMAT: u32 = FORMAT;

    /// Nodes that keep a partition, as numbers; the first asks the origin for it, and the others the
    /// one before them. Spread so that what a lost node kept is kept by many others.
    pub fn keepers(&self, partition: u32) -> impl Iterator<Item = usize> + use<> {
        let nodes = self.nodes.len();
        let first = partition as usize;
        // Each round of partitions has another distance.
        let step = match nodes {
            0 | 1 => 0,
            _ => 1 + (first / nodes) % (nodes - 1),
        };
        let replicas = (self.replicas as usize).min(nodes);
        let mut found = Vec::with_capacity(replicas);
        let mut at = first;
        while found.len() < replicas {
            let node = at % nodes;
            match found.contains(&node) {
                // The distance divides the number of nodes.
                true => at += 1,
                false => {
                    found.push(node);
                    at += step;
                }
            }
        }
        found.into_iter()
    }

    /// Reads the one of a staged dataset.
    ///
    /// # Errors
    /// Of the system, foreign, newer, damaged.
    pub fn read(dir: &Path) -> Result<Stage> {
        let path = dir.join(STAGE);
        let text = std::fs::read(&path).map_err(|e| Error::io(&path, e))?;
        Stage::parse(&text, &path)
    }

    /// The one in the bytes of its file, which is called `path` in errors.
    ///
    /// # Errors
    /// Foreign, newer.
    pub fn parse(text: &[u8], path: &Path) -> Result<Stage> {
        let stage: Stage =
            serde_json::from_slice(text).map_err(|_| Error::Foreign(path.to_owned()))?;
        match stage.format {
            FORMAT => Ok(stage),
            format => {
                let what = format!("format {format}");
                Err(Error::Newer { path: path.to_owned(), what })
            }
        }
    }

    /// The bytes of its file.
    pub fn to_json(&self) -> Vec<u8> {
        (serde_json::to_string_pretty(self).expect("it has no maps") + "\n").into_bytes()
    }

    /// Writes it, so that it is there whole or not at all.
    ///
    /// # Errors
    /// Of the system.
    pub fn write(&self, dir: &Path) -> Result<()> {
        write_whole(&dir.join(STAGE), &self.to_json())
    }
}

/// Where a file's bytes are on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// The file that has them.
    pub path: PathBuf,
    /// First byte there. The rest is as the table says.
    pub offset: u64,
}

/// A staged dataset, as processes of the node read it.
pub struct Staged {
    dir: PathBuf,
    table: Table,
    broadcast: Option<Broadcast>,
}

impl Staged {
    /// Maps the table of a staged dataset.
    ///
    /// # Errors
    /// Of the table; it is not there before staging has begun.
    pub fn open(dir: &Path) -> Result<Staged> {
        let table = Table::open(&dir.join(TABLE))?;
        let broadcast = match Broadcast::open(dir) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => None,
            other => Some(other?),
        };
        Ok(Staged { dir: dir.to_owned(), table, broadcast })
    }

    /// Says whether both have the same files, and the same ones for every node.
    pub fn is_same(&self, other: &Staged) -> bool {
        let places = |staged: &Staged| {
            let broadcast = staged.broadcast.as_ref();
            broadcast.map(|broadcast| broadcast.places().as_bytes().to_vec())
        };
        self.table.is_same(&other.table) && places(self) == places(other)
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// All files.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Where a file's bytes are, if this node keeps them. That the partition's file is there is
    /// found out by opening it: without one, the node's agent has to be asked.
    pub fn local(&self, ino: Ino, data: &FileData) -> Local {
        match self.broadcast.as_ref().and_then(|broadcast| broadcast.find(ino)) {
            Some(offset) => Local { path: self.dir.join(BROADCAST), offset },
            None => {
                let path = self.dir.join(partition_name(data.partition));
                Local { path, offset: data.offset }
            }
        }
    }
}

/// First bytes of broadcast.saker; after the files' data come the [`Place`]s.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct BroadcastHeader {
    preamble: Preamble,
    /// First byte of the places, and how many there are.
    places: u64,
    count: u64,
    /// CRC32C of the places.
    places_crc: u32,
    /// CRC32C of what is before.
    crc: u32,
}

/// Where a file is; in the order of the inodes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Place {
    ino: u32,
    reserved: u32,
    offset: u64,
}

/// The files that every node keeps.
pub struct Broadcast {
    map: Mmap,
    places: std::ops::Range<usize>,
}

impl Broadcast {
    fn open(dir: &Path) -> Result<Broadcast> {
        let path = dir.join(BROADCAST);
        let file = File::open(&path).map_err(|e| Error::io(&path, e))?;
        // SAFETY: files of datasets are written once, under another name.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(&path, e))?;
        let (header, _) = BroadcastHeader::read_from_prefix(&map[..])
            .map_err(|_| Error::truncated(&path, "no header"))?;
        header.preamble.check(BROADCAST_MAGIC, &path)?;
        if crc_of(&header) != header.crc {
            return Err(Error::damaged(&path, "the header"));
        }
        let bytes = header.count.checked_mul(size_of::<Place>() as u64);
        let end = bytes.and_then(|bytes| header.places.checked_add(bytes));
        if end != Some(map.len() as u64) || !header.places.is_multiple_of(PAGE_BYTES) {
            return Err(Error::truncated(&path, "bytes are missing"));
        }
        let places = header.places as usize..map.len();
        if crc32c::crc32c(&map[places.clone()]) != header.places_crc {
            return Err(Error::damaged(&path, "the places of its files"));
        }
        Ok(Broadcast { map, places })
    }

    fn places(&self) -> &[Place] {
        <[Place]>::ref_from_bytes(&self.map[self.places.clone()]).unwrap_or_default()
    }

    fn find(&self, ino: Ino) -> Option<u64> {
        let places = self.places();
        let n = places.binary_search_by_key(&ino, |place| place.ino).ok()?;
        Some(places[n].offset)
    }

    /// Removes the one of a staged dataset. Who has it open goes on reading it.
    ///
    /// # Errors
    /// Of the system.
    pub fn remove(dir: &Path) -> Result<()> {
        let path = dir.join(BROADCAST);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(&path, e)),
            _ => sync_dir(dir),
        }
    }

    /// Says whether a staged dataset has one.
    pub fn is_there(dir: &Path) -> bool {
        dir.join(BROADCAST).exists()
    }

    /// Writes the one of a staged dataset: the files `inos`, whose stored bytes `read` gives.
    ///
    /// # Errors
    /// Of the system, and of `read`.
    pub fn write<E: From<Error>>(
        dir: &Path,
        table: &Table,
        mut inos: Vec<Ino>,
        mut read: impl FnMut(Ino, &FileData) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        inos.sort_unstable();
        inos.dedup();
        let (path, new) = (dir.join(BROADCAST), dir.join("broadcast.partial"));
        let io = |e| Error::io(&new, e);
        let mut out = std::io::BufWriter::new(File::create(&new).map_err(io)?);
        out.write_all(&[0; HEADER_BYTES as usize]).map_err(io)?;
        let (mut pos, mut places) = (HEADER_BYTES, Vec::new());
        let pad = |out: &mut std::io::BufWriter<File>, pos: &mut u64| {
            let next = pos.next_multiple_of(PAGE_BYTES);
            let gap = &[0; PAGE_BYTES as usize][..(next - *pos) as usize];
            *pos = next;
            out.write_all(gap).map_err(io)
        };
        for ino in inos {
            let Some(data) = table.inode(ino).data() else { continue };
            // Pages of one in the partition are pages here, so that it can be mapped.
            if data.offset.is_multiple_of(PAGE_BYTES) {
                pad(&mut out, &mut pos)?;
            }
            let stored = read(ino, &data)?;
            if stored.len() as u64 != data.stored {
                return Err(Error::damaged(&new, "not as many bytes as the table says").into());
            }
            out.write_all(&stored).map_err(io)?;
            places.push(Place { ino, reserved: 0, offset: pos });
            pos += data.stored;
        }
        pad(&mut out, &mut pos)?;
        out.write_all(places.as_bytes()).map_err(io)?;
        let mut header = BroadcastHeader {
            preamble: Preamble::new(BROADCAST_MAGIC),
            places: pos,
            count: places.len() as u64,
            places_crc: crc32c::crc32c(places.as_bytes()),
            crc: 0,
        };
        header.crc = crc_of(&header);
        let file = out.into_inner().map_err(|e| io(e.into_error()))?;
        std::os::unix::fs::FileExt::write_all_at(&file, header.as_bytes(), 0).map_err(io)?;
        file.sync_all().map_err(io)?;
        std::fs::rename(&new, &path).map_err(io)?;
        Ok(sync_dir(dir)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(nodes: usize, replicas: u32) -> Stage {
        Stage {
            format: FORMAT,
            name: "a@1".into(),
            digest: Digest([0; 32]),
            table_digest: Digest([0; 32]),
            partitions: 0,
            nodes: (0..nodes).map(|n| format!("n{n}:7460")).collect(),
            replicas,
            broadcast: Vec::new(),
            origin: "/data/a".into(),
        }
    }

    #[test]
    fn each_node_keeps_as_many_partitions() {
        for nodes in 1..=9 {
            for replicas in 1..=nodes as u32 + 1 {
                let stage = stage(nodes, replicas);
                let mut kept = vec![0; nodes];
                let partitions = (nodes * (nodes - 1).max(1)) as u32;
                for partition in 0..partitions {
                    let keepers: Vec<usize> = stage.keepers(partition).collect();
                    assert_eq!(keepers.len(), nodes.min(replicas as usize));
                    assert_eq!(keepers[0], partition as usize % nodes);
                    let mut sorted = keepers.clone();
                    sorted.sort_unstable();
                    sorted.dedup();
                    assert_eq!(sorted.len(), keepers.len(), "{keepers:?}");
                    keepers.iter().for_each(|node| kept[*node] += 1);
                }
                assert!(kept.iter().all(|n| n == &kept[0]), "{nodes} {replicas} {kept:?}");
            }
        }
    }

    #[test]
    fn what_a_node_kept_is_kept_by_many() {
        let stage = stage(8, 2);
        let with_0 = (0..56).map(|p| stage.keepers(p).collect::<Vec<_>>());
        let with_0 = with_0.filter(|keepers| keepers.contains(&0));
        let others: std::collections::BTreeSet<usize> = with_0.flatten().collect();
        assert_eq!(others.len(), 8);
    }
}
