//! The change format: what a journal record says, and the keys of the tables' rows.
//!
//! A record is one batch: its changes take effect together or not at all. Rows are absolute
//! (put, delete), so that replaying a record twice does no harm; journals of clients (Cudele) and
//! of shards share this format.

use bytes::Bytes;

use crate::inode::{Inode, Locator};
use crate::slot::Slot;
use crate::wire::{EntryKey, Holds, PolicyReply, Row};
use crate::{ClusterMap, InodeId, Key, NodeId};

/// First byte of a row's key: what the row is.
pub mod table {
    /// Entry: `pid` (8 bytes, big endian), `order` (8), name -> [`Inode`](crate::Inode).
    pub const ENTRY: u8 = b'I';
    /// Attribute row of a hard-linked inode: home `slot` (2), `id` (8) -> [`Inode`](crate::Inode).
    pub const ATTR: u8 = b'A';
    /// Gone record: `slot` (2) of the name that the inode left, or of its home, `id` (8) ->
    /// [`Gone`](super::Gone).
    pub const GONE: u8 = b'G';
    /// A store job under way: `id` (8) -> [`StoreJob`](super::StoreJob).
    pub const JOB: u8 = b'P';
    /// Totals of a directory: `id` (8) -> [`Totals`](crate::wire::Totals).
    pub const TOTALS: u8 = b'T';
    /// What has come with a `slot` (2) of a directory `id` (8), while another shard owns it: entries
    /// and subdirectories -> [`Totals`](crate::wire::Totals).
    pub const SHARE: u8 = b'S';
    /// Locks on a file: `slot` (2), `id` (8) -> [`FileLocks`](crate::wire::FileLocks).
    pub const LOCKS: u8 = b'L';
    /// What a merge will put: `policy` (8), `epoch` (8), then the key of the entry or attribute row, or
    /// [`STAGED_DIR`] and the `id` (8) of a directory -> [`StagedValue`](crate::wire::StagedValue).
    pub const STAGED: u8 = b'M';
    /// In keys of [`STAGED`]: what follows is a directory in which rows are staged.
    pub const STAGED_DIR: u8 = b'D';
    /// Of a private shard: what the cluster has at the key of an entry or attribute row, which follows: `id`
    /// (8 bytes), a hash of the row (8), whether it is a directory's (1).
    pub const BASE: u8 = b'B';
    /// Of a private shard: `id` (8) of an inode that the cluster has; the value is empty.
    pub const BASE_ID: u8 = b'C';
    /// Of a private shard: what the cluster will have, when a merge is made, at the key of an entry or
    /// attribute row, which follows; as in [`BASE`], empty for nothing.
    pub const MERGING: u8 = b'Q';
    /// Of a private shard, one row: 1 if that merge was made, else 0 and
    /// [`MergeReq`](crate::wire::MergeReq).
    pub const MERGE: u8 = b'R';
    /// Of a private shard: the first `id` (8) of a range that it may give out -> their count (8).
    pub const IDS: u8 = b'N';
}

/// Key of an entry's row.
pub fn entry_key(key: &Key) -> Bytes {
    let mut out = Vec::with_capacity(17 + key.name.len());
    out.push(table::ENTRY);
    out.extend_from_slice(&key.pid.to_be_bytes());
    out.extend_from_slice(&key.order.to_be_bytes());
    out.extend_from_slice(&key.name);
    out.into()
}

/// Where the keys of rows begin that are staged for a merge in an epoch of a policy's hold.
pub fn staged_prefix(policy: u64, epoch: u64) -> [u8; 17] {
    let mut out = [0; 17];
    out[0] = table::STAGED;
    out[1..9].copy_from_slice(&policy.to_be_bytes());
    out[9..].copy_from_slice(&epoch.to_be_bytes());
    out
}

/// Key of what is staged for the row with this key, or of a directory ([`table::STAGED_DIR`]).
pub fn staged_key(policy: u64, epoch: u64, of: &[u8]) -> Bytes {
    [&staged_prefix(policy, epoch)[..], of].concat().into()
}

/// Policy and epoch of such a key, and what is behind them; `None` if it is none.
pub fn parse_staged_key(raw: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (&[table::STAGED], rest) = raw.split_first_chunk::<1>()? else { return None };
    let (policy, rest) = rest.split_first_chunk::<8>()?;
    let (epoch, of) = rest.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*policy), u64::from_be_bytes(*epoch), of))
}

/// The entry of a row's key; `None` if it is no entry's.
pub fn parse_entry_key(raw: &[u8]) -> Option<Key> {
    let (&[table::ENTRY], rest) = raw.split_first_chunk::<1>()? else { return None };
    let (pid, rest) = rest.split_first_chunk::<8>()?;
    let (order, name) = rest.split_first_chunk::<8>()?;
    Some(Key {
        pid: u64::from_be_bytes(*pid),
        order: u64::from_be_bytes(*order),
        name: name.to_vec(),
    })
}

/// Key of a row that belongs to an inode id, in one of the tables keyed by it.
pub fn id_key(table: u8, id: InodeId) -> Bytes {
    let mut out = [0; 9];
    out[0] = table;
    out[1..].copy_from_slice(&id.to_be_bytes());
    Bytes::copy_from_slice(&out)
}

/// Key of a row that a slot has of an inode, in one of the tables keyed by both: those of a slot
/// are one range.
pub fn slot_key(table: u8, slot: Slot, id: InodeId) -> Bytes {
    let mut out = [0; 11];
    out[0] = table;
    out[1..3].copy_from_slice(&slot.0.to_be_bytes());
    out[3..].copy_from_slice(&id.to_be_bytes());
    Bytes::copy_from_slice(&out)
}

/// Slot and inode of such a key; `None` if it is none.
pub fn parse_slot_key(raw: &[u8]) -> Option<(Slot, InodeId)> {
    let (&[table, high, low], id) = raw.split_first_chunk()?;
    let slot = Slot(u16::from_be_bytes([high, low]));
    let is_one = matches!(table, table::ATTR | table::GONE | table::SHARE | table::LOCKS);
    let id = InodeId::from_be_bytes(id.try_into().ok()?);
    is_one.then_some((slot, id))
}

/// What became of an id that is no longer at its name (rule 16).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Gone {
    /// It moved there.
    #[prost(message, optional, tag = "1")]
    pub moved: Option<Locator>,
    /// It is an orphan with these attributes and small-file data; its chunks die with the record.
    #[prost(message, optional, tag = "2")]
    pub orphan: Option<Inode>,
    /// Moved: it is a directory, whose record is kept until the directory is removed.
    #[prost(bool, tag = "3")]
    pub directory: bool,
    /// Orphan: it never had a name (O_TMPFILE), and may get one.
    #[prost(bool, tag = "4")]
    pub linkable: bool,
    /// Orphan: its chunks are being deleted, so that it must not be found any more.
    #[prost(bool, tag = "5")]
    pub deleting: bool,
}

/// Work on stores that a crash must not forget: the cut of a truncation, or a spill, the move of
/// a small file's data from its row to chunk 0.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StoreJob {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub truncate_gen: u64,
    /// Bytes of the file that remain.
    #[prost(uint64, tag = "2")]
    pub cut: u64,
    /// The mutation that it is part of: a retry after a crash gets its answer (rule 15).
    #[prost(uint64, tag = "3")]
    pub session: u64,
    #[prost(uint64, tag = "4")]
    #[allow(missing_docs)]
    pub seq: u64,
    /// Where the inode is; it does not move while it is cut.
    #[prost(message, optional, tag = "5")]
    pub loc: Option<Locator>,
    /// Before the cut, which then ends where the data does, the row's data is written to chunk 0
    /// under the generation before.
    #[prost(bool, tag = "6")]
    pub spill: bool,
}

/// A prepared transaction on a participant: exactly what commit will do.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Prepared {
    /// The driver ([`NodeId::to_u32`](crate::NodeId::to_u32)).
    #[prost(uint32, tag = "1")]
    pub driver: u32,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub number: u64,
    /// Entry that is locked; absent when an attribute row is.
    #[prost(message, optional, tag = "3")]
    pub entry: Option<EntryKey>,
    /// Attribute row that is locked; 0: none.
    #[prost(uint64, tag = "4")]
    pub attr_id: InodeId,
    /// [`Intent`](crate::wire::Intent).
    #[prost(int32, tag = "5")]
    pub intent: i32,
    /// Row that commit puts; absent: commit removes what is there.
    #[prost(message, optional, tag = "6")]
    pub row: Option<Inode>,
    /// Nlink: what commit adds.
    #[prost(sint32, tag = "7")]
    pub delta: i32,
    /// TakeDir: where it goes.
    #[prost(message, optional, tag = "8")]
    pub moves_to: Option<Locator>,
    /// Insert: who may have the file open; absent: that is not known.
    #[prost(message, optional, tag = "9")]
    pub holds: Option<Holds>,
    /// Home slot of the attribute row that is locked.
    #[prost(uint32, tag = "10")]
    pub attr_slot: u32,
}

/// Who must hear of a decision: the owner, at that moment, of a slot in which rows were prepared; or
/// a node, whatever it owns (replicas of a new directory).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Participant {
    #[allow(missing_docs)]
    Slot(Slot),
    #[allow(missing_docs)]
    Node(NodeId),
}

impl Participant {
    /// The form in a row: a slot's number, or [`NodeId::to_u32`], which is above all slots.
    pub fn to_u32(self) -> u32 {
        match self {
            Participant::Slot(slot) => slot.into(),
            Participant::Node(node) => node.to_u32(),
        }
    }

    /// Inverse of [`Participant::to_u32`].
    pub fn from_u32(raw: u32) -> Option<Participant> {
        match u16::try_from(raw) {
            Ok(slot) => Some(Participant::Slot(Slot(slot))),
            Err(_) => NodeId::from_u32(raw).map(Participant::Node),
        }
    }

    /// Who that is by a map.
    pub fn node(self, map: &ClusterMap) -> NodeId {
        match self {
            Participant::Slot(slot) => NodeId::Shard(map.shard_of_slot(slot)),
            Participant::Node(node) => node,
        }
    }
}

/// A committed transaction on its driver, kept until all participants have acknowledged (rule 13).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Decision {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub number: u64,
    /// Who must hear of it ([`Participant::to_u32`]).
    #[prost(uint32, repeated, tag = "2")]
    pub participants: Vec<u32>,
}

/// Result of a mutation, for retries (rule 15).
#[derive(Clone, PartialEq, prost::Message)]
pub struct StoredResult {
    #[prost(uint64, tag = "1")]
    #[allow(missing_docs)]
    pub session: u64,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub seq: u64,
    /// The session's acknowledged watermark then.
    #[prost(uint64, tag = "3")]
    pub ack: u64,
    /// Status of the reply frame.
    #[prost(uint32, tag = "4")]
    pub status: u32,
    /// Body of the reply frame.
    #[prost(bytes = "bytes", tag = "5")]
    pub body: Bytes,
    /// The slot with which it goes; absent: it stays with its node (the coordinator's).
    #[prost(uint32, optional, tag = "6")]
    pub slot: Option<u32>,
}

/// Number of a transaction, and whether it committed.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct TxnEnd {
    #[prost(uint32, tag = "1")]
    #[allow(missing_docs)]
    pub driver: u32,
    #[prost(uint64, tag = "2")]
    #[allow(missing_docs)]
    pub number: u64,
}

/// Bytes of the id of an MNode's or store's data directory.
pub const DIR_ID_BYTES: usize = 16;

/// An MNode or store has served from this directory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Joined {
    /// 2 an MNode, 4 a store: a role's number in a hello.
    #[prost(uint32, tag = "1")]
    pub role: u32,
    /// Number of the MNode or store.
    #[prost(uint32, tag = "2")]
    pub n: u32,
    /// What the directory was given when it was empty: [`DIR_ID_BYTES`] random bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub dir: Bytes,
}

/// How far a shard or store has come ([`MarkReq`](crate::wire::MarkReq)).
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Marked {
    /// 2 a shard, 4 a store: a role's number in a hello.
    #[prost(uint32, tag = "1")]
    pub role: u32,
    /// Number of the shard or store.
    #[prost(uint32, tag = "2")]
    pub n: u32,
    /// The highest mark that it has told.
    #[prost(uint64, tag = "3")]
    pub mark: u64,
    /// Of that mark.
    #[prost(fixed64, tag = "4")]
    pub token: u64,
}

/// One change.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum What {
    /// A row is now this.
    #[prost(message, tag = "1")]
    Put(Row),
    /// A row is gone.
    #[prost(bytes = "bytes", tag = "2")]
    Delete(Bytes),
    /// A mutation was answered.
    #[prost(message, tag = "3")]
    Result(StoredResult),
    /// A session began here.
    #[prost(uint64, tag = "4")]
    SessionOpen(u64),
    /// A session ended.
    #[prost(uint64, tag = "5")]
    SessionClose(u64),
    /// A participant voted yes.
    #[prost(message, boxed, tag = "6")]
    Prepared(Box<Prepared>),
    /// A participant learned the outcome; its rows are in the same record.
    #[prost(message, tag = "7")]
    PreparedEnd(TxnEnd),
    /// A driver decided to commit; its own rows and the result are in the same record.
    #[prost(message, tag = "8")]
    Decision(Decision),
    /// All participants have acknowledged.
    #[prost(uint64, tag = "9")]
    DecisionEnd(u64),
    /// Ids below this count may have been given out.
    #[prost(uint64, tag = "10")]
    IdsReserved(u64),
    /// The number of inodes changed by this.
    #[prost(sint64, tag = "11")]
    Inodes(i64),
    /// The newest cluster map known (coordinator, and as a start for a shard).
    #[prost(bytes = "bytes", tag = "12")]
    Map(Bytes),
    /// Where an MNode or store has its data (coordinator).
    #[prost(message, tag = "13")]
    Joined(Joined),
    /// The coordinator knows that ids below this count may have been given out (shard).
    #[prost(uint64, tag = "14")]
    IdsTold(u64),
    /// How far a shard or store has come (coordinator).
    #[prost(message, tag = "15")]
    Marked(Marked),
    /// A policy, with who holds its subtree (coordinator).
    #[prost(message, boxed, tag = "16")]
    Policy(Box<PolicyReply>),
    /// A policy whose directory was removed (coordinator).
    #[prost(uint64, tag = "17")]
    PolicyEnd(u64),
}

/// A change, as a field of a record.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Change {
    #[prost(oneof = "What", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17")]
    #[allow(missing_docs)]
    pub what: Option<What>,
}

/// A journal record: one batch.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Record {
    #[prost(message, repeated, tag = "1")]
    #[allow(missing_docs)]
    pub changes: Vec<Change>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_sort_as_readdir_lists() {
        let a = Key { pid: 1, order: 0x10, name: b"zz".to_vec() };
        let b = Key { pid: 1, order: 0x20, name: b"a".to_vec() };
        let c = Key { pid: 2, order: 0x00, name: b"a".to_vec() };
        assert!(entry_key(&a) < entry_key(&b) && entry_key(&b) < entry_key(&c));
        for key in [a, b, c] {
            assert_eq!(parse_entry_key(&entry_key(&key)), Some(key));
        }
        assert_eq!(parse_entry_key(b"I123"), None);
        assert_eq!(parse_entry_key(&slot_key(table::ATTR, Slot(1), 7)), None);
    }

    #[test]
    fn staged_rows_of_an_epoch_are_one_range() {
        let inner = slot_key(table::ATTR, Slot(4), 9);
        let key = staged_key(7, 3, &inner);
        assert_eq!(parse_staged_key(&key), Some((7, 3, &inner[..])));
        assert!(key > staged_prefix(7, 3)[..] && key < staged_prefix(7, 4)[..]);
        assert_eq!(parse_staged_key(&staged_prefix(7, 3)[..16]), None);
        assert_eq!(parse_staged_key(&inner), None);
    }

    #[test]
    fn rows_of_a_slot_are_one_range() {
        let key = |slot, id| slot_key(table::GONE, Slot(slot), id);
        assert!(key(2, u64::MAX) < key(3, 0) && key(0xFF, 9) < key(0x100, 1));
        assert_eq!(parse_slot_key(&key(0xDEF0, 7)), Some((Slot(0xDEF0), 7)));
        assert_eq!(parse_slot_key(&id_key(table::TOTALS, 7)), None);
        assert_eq!(parse_slot_key(&key(1, 1)[..10]), None);
    }

    #[test]
    fn participants_are_slots_or_nodes() {
        for who in [
            Participant::Slot(Slot(0)),
            Participant::Slot(Slot(u16::MAX)),
            Participant::Node(NodeId::Shard(0)),
        ] {
            assert_eq!(Participant::from_u32(who.to_u32()), Some(who));
        }
        assert_eq!(Participant::from_u32(0x5_0000), None);
    }
}
