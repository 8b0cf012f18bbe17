//! Inodes whose chunks are set aside: nobody seems to know them, says fsck.
//!
//! Their chunks are as they were, so that whoever reads or writes one finds it, which ends its time
//! here: somebody knows it. What was here for [`QUARANTINE`] may be deleted, if no shard knows it
//! then (fsck asks). The list is a file of its own: it changes only with fsck, and is small.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crc32c::crc32c;
use prost::Message;
use saker_runtime::fs::{Dir, read_all, replace};
use saker_types::wire::ChunkQuarantineReq;
use saker_types::{Errno, Error, InodeId, Result};

use crate::backend::io_error;
use crate::wait::{WaitPolicy, locked};

/// What is set aside is kept for so long at least.
pub const QUARANTINE: Duration = Duration::from_secs(24 * 60 * 60);
/// Most inodes set aside: the list is written anew with each change.
const INODES_MAX: usize = 1 << 18;
/// Name of the file in the store's directory.
const FILE: &str = "QUARANTINE";
const MAGIC: [u8; 8] = *b"SAKERQUA";
const VERSION: u32 = 1;
/// Magic, version, three words of feature bits (none is defined yet), checksum of what follows.
const HEADER_BYTES: usize = 28;

/// The inodes set aside.
pub struct Quarantine {
    dir: Arc<dyn Dir>,
    /// When each was set aside, ns since the epoch.
    since: Mutex<Listed>,
    /// There are some.
    any: AtomicBool,
}

#[derive(Default)]
struct Listed {
    since: BTreeMap<InodeId, i64>,
    /// The file does not say so yet. If it is not written the time of what has left goes on, and
    /// shards are asked before that ends.
    changed: bool,
}

/// What the file says.
#[derive(Clone, PartialEq, prost::Message)]
struct Content {
    #[prost(uint64, repeated, tag = "1")]
    ids: Vec<InodeId>,
    #[prost(sfixed64, repeated, tag = "2")]
    since_ns: Vec<i64>,
}

impl Quarantine {
    /// The list in a store's directory.
    ///
    /// # Errors
    /// When it cannot be read. What is no list is none: its inodes' time begins anew.
    pub fn open(dir: Arc<dyn Dir>) -> io::Result<Quarantine> {
        let raw = match dir.open(FILE) {
            Ok(file) => read_all(&*file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let since = decode(&raw).unwrap_or_else(|| {
            tracing::warn!("{}/{FILE} is damaged; it begins anew", dir.label());
            BTreeMap::new()
        });
        let any = AtomicBool::new(!since.is_empty());
        let since = Mutex::new(Listed { since, changed: false });
        Ok(Quarantine { dir, since, any })
    }

    /// When an inode was set aside.
    pub fn since(&self, id: InodeId) -> Option<i64> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        locked(&self.since).since.get(&id).copied()
    }

    /// Somebody knows the inode, or it is deleted.
    ///
    /// # Errors
    /// EAGAIN: the list is being written.
    pub fn leave(&self, id: InodeId, wait: WaitPolicy) -> Result<()> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let listed = &mut *wait.lock(&self.since)?;
        if listed.since.remove(&id).is_some() {
            listed.changed = true;
            self.any.store(!listed.since.is_empty(), Ordering::Release);
        }
        Ok(())
    }

    /// Sets inodes aside and takes others back, durably. Returns which of those to delete have been
    /// here for long enough: they leave.
    ///
    /// # Errors
    /// ENOSPC when there are too many; the disk's.
    pub fn change(&self, req: &ChunkQuarantineReq, now_ns: i64) -> Result<Vec<InodeId>> {
        let listed = &mut *locked(&self.since);
        let mut since = listed.since.clone();
        for id in &req.aside {
            since.entry(*id).or_insert(now_ns);
        }
        for id in &req.back {
            since.remove(id);
        }
        let is_over = |id: &&InodeId| {
            let since = since.get(*id).copied();
            since.is_some_and(|since| now_ns.saturating_sub(since) >= QUARANTINE.as_nanos() as i64)
        };
        let ripe: Vec<InodeId> = req.delete.iter().filter(is_over).copied().collect();
        for id in &ripe {
            since.remove(id);
        }
        if since.len() > INODES_MAX {
            return Err(Error::new(Errno::ENOSPC).with_text("too many inodes are set aside"));
        }
        replace(&*self.dir, FILE, &encode(&since)).map_err(|e| io_error(FILE, &e))?;
        self.any.store(!since.is_empty(), Ordering::Release);
        *listed = Listed { since, changed: false };
        Ok(ripe)
    }

    /// Writes down who has left.
    ///
    /// # Errors
    /// The disk's.
    pub fn save(&self) -> Result<()> {
        let listed = &mut *locked(&self.since);
        if listed.changed {
            replace(&*self.dir, FILE, &encode(&listed.since)).map_err(|e| io_error(FILE, &e))?;
            listed.changed = false;
        }
        Ok(())
    }
}

fn encode(since: &BTreeMap<InodeId, i64>) -> Vec<u8> {
    let (ids, since_ns) = since.iter().unzip();
    let content = Content { ids, since_ns }.encode_to_vec();
    let mut out = vec![0; HEADER_BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[24..HEADER_BYTES].copy_from_slice(&crc32c(&content).to_le_bytes());
    out.extend_from_slice(&content);
    out
}

fn decode(raw: &[u8]) -> Option<BTreeMap<InodeId, i64>> {
    if raw.is_empty() {
        return Some(BTreeMap::new());
    }
    let (head, content) = raw.split_at_checked(HEADER_BYTES)?;
    let is_sound = head[..8] == MAGIC
        && head[8..12] == VERSION.to_le_bytes()
        && head[12..24].iter().all(|byte| *byte == 0)
        && head[24..] == crc32c(content).to_le_bytes();
    let content = Content::decode(content).ok().filter(|_| is_sound)?;
    let is_paired = content.ids.len() == content.since_ns.len();
    is_paired.then(|| content.ids.into_iter().zip(content.since_ns).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_runtime::fs::MemDir;

    use super::*;

    const DAY_NS: i64 = QUARANTINE.as_nanos() as i64;

    fn aside(ids: &[InodeId]) -> ChunkQuarantineReq {
        ChunkQuarantineReq { aside: ids.to_vec(), ..Default::default() }
    }

    fn delete(ids: &[InodeId]) -> ChunkQuarantineReq {
        ChunkQuarantineReq { delete: ids.to_vec(), ..Default::default() }
    }

    #[test]
    fn a_day_is_counted_from_the_first_time_through_crashes() {
        let mut dir = MemDir::new();
        let open = |dir: &MemDir| Quarantine::open(Arc::new(dir.clone())).unwrap();
        let list = open(&dir);
        assert_eq!(list.change(&delete(&[7]), 10 * DAY_NS).unwrap(), vec![], "never set aside");
        list.change(&aside(&[7, 8, 9]), 0).unwrap();
        list.change(&aside(&[7]), DAY_NS / 2).unwrap();
        for seed in 0..4 {
            dir = dir.crash(seed);
            let list = open(&dir);
            assert_eq!((list.since(7), list.since(1)), (Some(0), None));
            assert_eq!(list.change(&delete(&[7]), DAY_NS - 1).unwrap(), vec![]);
        }
        let list = open(&dir);
        list.leave(8, WaitPolicy::May).unwrap();
        list.save().unwrap();
        let back = ChunkQuarantineReq { back: vec![9], ..Default::default() };
        list.change(&back, DAY_NS).unwrap();
        let list = open(&dir.crash(9));
        assert_eq!(list.change(&delete(&[7, 8, 9]), DAY_NS).unwrap(), vec![7]);
        assert_eq!(list.change(&delete(&[7]), DAY_NS).unwrap(), vec![], "once");
    }

    #[test]
    fn a_damaged_list_is_none() {
        let dir = MemDir::new();
        let list = Quarantine::open(Arc::new(dir.clone())).unwrap();
        list.change(&aside(&[7]), 1).unwrap();
        let file = dir.open(FILE).unwrap();
        for at in 0..file.len().unwrap() {
            let mut byte = [0];
            file.read_at(at, &mut byte).unwrap();
            file.write_at(at, &[byte[0] ^ 1]).unwrap();
            let list = Quarantine::open(Arc::new(dir.clone())).unwrap();
            assert_eq!(list.since(7), None, "byte {at}");
            file.write_at(at, &byte).unwrap();
        }
        assert_eq!(Quarantine::open(Arc::new(dir)).unwrap().since(7), Some(1));
    }

    #[test]
    fn it_is_bounded() {
        let list = Quarantine::open(Arc::new(MemDir::new())).unwrap();
        let all: Vec<InodeId> = (1..=INODES_MAX as u64).collect();
        list.change(&aside(&all), 0).unwrap();
        assert_eq!(list.change(&aside(&[u64::MAX]), 0).unwrap_err().errno(), Errno::ENOSPC);
        list.change(&aside(&[1]), 0).unwrap();
    }
}
