//! Which member of which cluster a data directory belongs to: a small file, written once.

use std::io;

use crc32c::crc32c;
use saker_runtime::fs::{Dir, read_all, write_aside};
use saker_types::ClusterMap;
use saker_types::change::DIR_ID_BYTES;

use crate::hello::{CLUSTER_BYTES, ClusterId, RoleKind};

/// Name of the file in the data directory.
const FILE: &str = "MEMBER";
const MAGIC: [u8; 8] = *b"SAKERMEM";
const VERSION: u32 = 1;
/// Magic, version, three words of feature bits (compatible, incompatible, read-only compatible;
/// none is defined yet), cluster, role, number, id, checksum.
const BYTES: usize = 8 + 4 + 12 + CLUSTER_BYTES + 4 + 4 + DIR_ID_BYTES + 4;
const CLUSTER_AT: usize = 24;
const ROLE_AT: usize = CLUSTER_AT + CLUSTER_BYTES;
const NUMBER_AT: usize = ROLE_AT + 4;
const ID_AT: usize = NUMBER_AT + 4;
const CHECKSUM_AT: usize = ID_AT + DIR_ID_BYTES;

/// Whose a data directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// The cluster.
    pub(crate) cluster: ClusterId,
    /// An MNode's is [`RoleKind::Shard`].
    pub(crate) role: RoleKind,
    /// Number of the MNode or store.
    pub(crate) n: u32,
    /// Drawn at random for this directory: an empty one cannot pass for it.
    pub(crate) id: [u8; DIR_ID_BYTES],
}

impl Member {
    /// A directory that belongs to this member from now on.
    pub(crate) fn new(cluster: ClusterId, role: RoleKind, n: u32) -> Member {
        let mut id = [0; DIR_ID_BYTES];
        saker_runtime::rand::fill(&mut id);
        Member { cluster, role, n, id }
    }

    /// Is it of the map's cluster?
    pub(crate) fn is_of(&self, map: &ClusterMap) -> bool {
        map.uuid == self.cluster[..]
    }

    fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[CLUSTER_AT..ROLE_AT].copy_from_slice(&self.cluster);
        out[ROLE_AT..NUMBER_AT].copy_from_slice(&(self.role as u32).to_le_bytes());
        out[NUMBER_AT..ID_AT].copy_from_slice(&self.n.to_le_bytes());
        out[ID_AT..CHECKSUM_AT].copy_from_slice(&self.id);
        let sum = crc32c(&out[..CHECKSUM_AT]);
        out[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Member, &'static str> {
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| "it has the wrong length")?;
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if bytes[..8] != MAGIC {
            return Err("it is none of Saker's");
        }
        if word(8) > VERSION || word(16) != 0 || word(20) != 0 {
            return Err("a newer program wrote it");
        }
        if word(CHECKSUM_AT) != crc32c(&bytes[..CHECKSUM_AT]) {
            return Err("it is damaged");
        }
        let role = RoleKind::from_wire(word(ROLE_AT)).ok_or("it names an unknown role")?;
        let (mut cluster, mut id) = ([0; CLUSTER_BYTES], [0; DIR_ID_BYTES]);
        cluster.copy_from_slice(&bytes[CLUSTER_AT..ROLE_AT]);
        id.copy_from_slice(&bytes[ID_AT..CHECKSUM_AT]);
        Ok(Member { cluster, role, n: word(NUMBER_AT), id })
    }
}

/// Whose `dir` is; `None`: nobody's yet.
///
/// # Errors
/// When the file cannot be read or used.
pub(crate) fn load(dir: &dyn Dir) -> io::Result<Option<Member>> {
    let file = match dir.open(FILE) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let member = Member::decode(&read_all(&*file)?);
    member.map(Some).map_err(|why| io::Error::other(format!("{}/{FILE}: {why}", dir.label())))
}

/// Makes `dir` the member's, durably, if it is nobody's: a disk may be mounted there at any moment,
/// and its mark must stay.
pub(crate) fn mark(dir: &dyn Dir, member: &Member) -> io::Result<()> {
    let unfinished = write_aside(dir, FILE, &member.encode())?;
    // From here on a disk that is mounted has no unfinished one.
    if load(dir)?.is_none() {
        dir.rename(&unfinished, FILE)?;
    }
    dir.sync()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_runtime::fs::MemDir;

    use super::*;

    #[test]
    fn is_kept_and_checked() {
        let dir = MemDir::new();
        assert_eq!(load(&dir).unwrap(), None);
        let member = Member::new([9; CLUSTER_BYTES], RoleKind::Store, 300);
        // A start that was cut short.
        dir.create("MEMBER.new").unwrap();
        mark(&dir, &member).unwrap();
        let other = Member::new([9; CLUSTER_BYTES], RoleKind::Store, 300);
        mark(&dir, &other).unwrap();
        let dir = dir.crash(1);
        assert_eq!(load(&dir).unwrap(), Some(member), "it was there before");
        let file = dir.open(FILE).unwrap();
        for at in 0..BYTES as u64 {
            let mut byte = [0];
            file.read_at(at, &mut byte).unwrap();
            file.write_at(at, &[byte[0] ^ 1]).unwrap();
            assert!(load(&dir).is_err(), "byte {at}");
            file.write_at(at, &byte).unwrap();
        }
        file.truncate(5).unwrap();
        assert!(load(&dir).unwrap_err().to_string().contains("length"));
    }
}
