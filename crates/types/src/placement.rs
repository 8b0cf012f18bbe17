//! Placement: which shard owns a name, which stores hold a chunk (FalconFS §4.2).

use std::collections::BTreeSet;
use std::net::SocketAddr;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::id::SHARDS_MAX;
use crate::limits::{CHUNK_BYTES, SLOTS};
use crate::name::NameHash;
pub use crate::slot::Slot;
use crate::wire::At;
use crate::{Errno, Error, InodeId, Key, Locator, NodeId, Result, ShardNo, StoreNo};

/// A shard of the cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ShardInfo {
    /// MNode it belongs to.
    #[prost(uint32, tag = "1")]
    pub mnode: u32,
    /// `host:port` it listens on.
    #[prost(string, tag = "2")]
    pub addr: String,
    /// Its allocator of inode ids, from 1 to [`SHARDS_MAX`]; never given to another shard.
    #[prost(uint32, tag = "3")]
    pub allocator: u32,
}

/// A store of the cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StoreInfo {
    /// `host:port` it listens on.
    #[prost(string, tag = "1")]
    pub addr: String,
}

/// The cluster map: who is there and who owns what. Kept by the coordinator, cached by all.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClusterMap {
    /// Grows with every change of shards, stores or slots.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// The cluster's uuid, 16 bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub uuid: Bytes,
    /// Seed of [`NameHash`]; constant for the life of the cluster.
    #[prost(uint64, tag = "3")]
    pub hash_seed: u64,
    /// Index is the [`ShardNo`], which is never another shard's: rows name shards by it, and
    /// transactions their drivers.
    #[prost(message, repeated, tag = "4")]
    pub shards: Vec<ShardInfo>,
    /// Index is the [`StoreNo`].
    #[prost(message, repeated, tag = "5")]
    pub stores: Vec<StoreInfo>,
    /// Slot -> shard: `SLOTS` little-endian u16.
    #[prost(bytes = "bytes", tag = "6")]
    pub slots: Bytes,
    /// `host:port` of the coordinator.
    #[prost(string, tag = "7")]
    pub coordinator: String,
    /// Copies of each chunk.
    #[prost(uint32, tag = "8")]
    pub replicas: u32,
    /// Largest file kept in its inode row, in bytes.
    #[prost(uint64, tag = "9")]
    pub inline_max: u64,
    /// Name of the cluster, shown as the source of mounts.
    #[prost(string, tag = "10")]
    pub name: String,
    /// How its rows are to be read: [`FORMAT`].
    #[prost(uint32, tag = "11")]
    pub format: u32,
    /// The version with which slots were moved last: maps that agree in it give each slot to the
    /// same shard.
    #[prost(uint64, tag = "12")]
    pub slots_version: u64,
}

/// Of clusters that this version makes and knows. 0: ids of 64 bits, times since 1970. 1: rows of
/// inodes without their slots.
pub const FORMAT: u32 = 2;

/// The slot table of a new cluster: round robin, so that every shard has its share exactly.
pub fn initial_slots(shards: usize) -> Bytes {
    assert!(shards > 0 && shards <= SHARDS_MAX, "a cluster has 1 to {SHARDS_MAX} shards");
    (0..SLOTS).flat_map(|slot| ((slot % shards) as u16).to_le_bytes()).collect::<Vec<u8>>().into()
}

impl ClusterMap {
    /// Refuses a cluster whose rows this version would misread.
    pub fn check_format(&self) -> Result<()> {
        if self.format == FORMAT {
            return Ok(());
        }
        Err(Error::new(Errno::EPROTO).with_text(format!(
            "the cluster was made by another version of Saker (format {}, this one has {FORMAT}) \
             and cannot be opened",
            self.format
        )))
    }

    /// Refuses a map that would make routing panic or lie.
    pub fn check(&self) -> Result<()> {
        self.check_format()?;
        let bad =
            |why: &str| Err(Error::new(Errno::EPROTO).with_text(format!("cluster map: {why}")));
        if self.slots.len() != SLOTS * 2 {
            return bad("slot table has the wrong size");
        }
        if self.slots_version > self.version {
            return bad("slots of a later version");
        }
        if self.uuid.len() != 16 {
            return bad("no uuid");
        }
        if self.shards.is_empty() || self.shards.len() > SHARDS_MAX || self.stores.len() > SLOTS {
            return bad("number of shards or stores");
        }
        if self.shards.iter().any(|s| s.allocator == 0 || s.allocator as usize > SHARDS_MAX) {
            return bad("a shard cannot give out ids");
        }
        let (slots, _) = self.slots.as_chunks::<2>();
        if slots.iter().any(|s| usize::from(u16::from_le_bytes(*s)) >= self.shards.len()) {
            return bad("a slot belongs to no shard");
        }
        let mut addrs =
            self.shards.iter().map(|s| &s.addr).chain(self.stores.iter().map(|s| &s.addr));
        if addrs.any(|a| a.parse::<SocketAddr>().is_err())
            || self.coordinator.parse::<SocketAddr>().is_err()
        {
            return bad("an address is not host:port");
        }
        Ok(())
    }

    /// The key of a name in a directory.
    pub fn key(&self, pid: InodeId, name: &[u8]) -> Key {
        Key::new(pid, name, self.hash_seed)
    }

    /// The slot of a name in a directory. All that is routed by names is routed by this.
    pub fn slot_of(&self, pid: InodeId, name: &[u8]) -> Slot {
        self.slot_of_hash(pid, NameHash::of(name, self.hash_seed))
    }

    /// The key of a name in a directory, and its slot.
    pub fn place(&self, pid: InodeId, name: &[u8]) -> (Key, Slot) {
        let hash = NameHash::of(name, self.hash_seed);
        let key = Key { pid, order: hash.order(), name: name.to_vec() };
        (key, self.slot_of_hash(pid, hash))
    }

    /// Names are routed by their hash alone, in all directories (FalconFS §4.2).
    fn slot_of_hash(&self, _pid: InodeId, hash: NameHash) -> Slot {
        hash.slot()
    }

    /// The shard that owns a slot.
    pub fn shard_of_slot(&self, slot: Slot) -> ShardNo {
        let i = usize::from(slot.0) * 2;
        u16::from_le_bytes([self.slots[i], self.slots[i + 1]])
    }

    /// The shard that owns a name in a directory.
    pub fn owner(&self, pid: InodeId, name: &[u8]) -> ShardNo {
        self.shard_of_slot(self.slot_of(pid, name))
    }

    /// The slot of what is at a locator: an entry, or the attributes of a hard link.
    pub fn slot_at(&self, loc: &Locator) -> Slot {
        match loc.home_slot {
            Some(slot) => Slot::from_wire(slot),
            None => self.slot_of(loc.pid, &loc.name),
        }
    }

    /// The slot that a request is routed by: that of its last name, or of its anchor when it has
    /// none.
    ///
    /// Of a longer path the directory of the last name is not known before it is resolved. This is
    /// the map's answer then; whoever has resolved it asks [`ClusterMap::owner`] again. Where the
    /// answers differ the request has come to a shard that may read nothing there, and answers
    /// `Class::RefreshMap`. They never differ yet: a table of exceptions needs an answer that names the
    /// slot.
    pub fn route(&self, at: &At) -> Slot {
        match at.path.split_last() {
            None => self.slot_at(&at.anchor),
            Some((name, [])) => self.slot_of(at.anchor.id, name),
            Some((name, _)) => NameHash::of(name, self.hash_seed).slot(),
        }
    }

    /// The shard that a request is sent to.
    pub fn shard_for(&self, at: &At) -> ShardNo {
        self.shard_of_slot(self.route(at))
    }

    /// The same map after a slot went to another shard.
    #[must_use]
    pub fn with_slot_at(&self, slot: Slot, shard: ShardNo) -> ClusterMap {
        let mut slots = self.slots.to_vec();
        let i = usize::from(slot.0) * 2;
        slots[i..i + 2].copy_from_slice(&shard.to_le_bytes());
        let version = self.version + 1;
        ClusterMap { version, slots_version: version, slots: slots.into(), ..self.clone() }
    }

    /// Where a node listens.
    pub fn addr(&self, node: NodeId) -> Option<SocketAddr> {
        match node {
            NodeId::Coordinator => &self.coordinator,
            NodeId::Shard(n) => &self.shards.get(usize::from(n))?.addr,
            NodeId::Store(n) => &self.stores.get(usize::from(n))?.addr,
        }
        .parse()
        .ok()
    }

    /// The stores that hold chunk `index` of inode `id`, first choice first: rendezvous hashing,
    /// so that a store that comes or goes moves only its share and no location is stored.
    pub fn stores_of_chunk(&self, id: InodeId, index: u64) -> Vec<StoreNo> {
        let mut scored: Vec<(u64, StoreNo)> = (0..self.stores.len() as u16)
            .map(|store| {
                let mut key = [0u8; 18];
                key[..8].copy_from_slice(&id.to_le_bytes());
                key[8..16].copy_from_slice(&index.to_le_bytes());
                key[16..].copy_from_slice(&store.to_le_bytes());
                (xxh3_64(&key), store)
            })
            .collect();
        scored.sort_unstable_by(|a, b| b.cmp(a));
        scored.truncate(self.replicas.max(1) as usize);
        scored.into_iter().map(|(_, store)| store).collect()
    }

    /// The stores that may hold data of inode `id`, whose file has `size` bytes.
    pub fn stores_of_file(&self, id: InodeId, size: u64) -> BTreeSet<StoreNo> {
        let chunks = size.div_ceil(CHUNK_BYTES);
        let mut stores = BTreeSet::new();
        for index in 0..chunks {
            if stores.len() == self.stores.len() {
                break;
            }
            stores.extend(self.stores_of_chunk(id, index));
        }
        stores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(shards: usize, stores: usize) -> ClusterMap {
        ClusterMap {
            uuid: Bytes::from_static(&[7; 16]),
            hash_seed: 42,
            shards: (1..=shards as u32).map(shard).collect(),
            stores: vec![StoreInfo { addr: "127.0.0.1:1".into() }; stores],
            slots: initial_slots(shards),
            coordinator: "127.0.0.1:1".into(),
            replicas: 1,
            format: FORMAT,
            ..Default::default()
        }
    }

    fn shard(allocator: u32) -> ShardInfo {
        ShardInfo { addr: "127.0.0.1:1".into(), allocator, ..Default::default() }
    }

    #[test]
    fn a_files_stores_are_those_of_its_chunks() {
        let map = map(1, 5);
        assert!(map.stores_of_file(9, 0).is_empty());
        let mut stores: BTreeSet<_> = map.stores_of_chunk(9, 0).into_iter().collect();
        assert_eq!(map.stores_of_file(9, 1), stores);
        stores.extend(map.stores_of_chunk(9, 1));
        assert_eq!(map.stores_of_file(9, CHUNK_BYTES + 1), stores);
        assert_eq!(map.stores_of_file(9, u64::MAX).len(), 5);
    }

    #[test]
    fn names_and_chunks_spread_evenly() {
        let map = map(4, 4);
        map.check().unwrap();
        let (mut names, mut chunks) = ([0; 4], [0; 4]);
        for i in 0..40_000u64 {
            names[usize::from(map.owner(1, format!("file-{i}").as_bytes()))] += 1;
            chunks[usize::from(map.stores_of_chunk(i, 3)[0])] += 1;
        }
        assert!(
            names.iter().chain(&chunks).all(|n| (9_500..10_500).contains(n)),
            "{names:?} {chunks:?}"
        );
    }

    #[test]
    fn a_request_goes_to_the_owner_of_its_last_name_or_of_its_anchor() {
        let map = map(4, 1);
        let dir = Locator::entry(7, Bytes::from_static(b"dir"), 9);
        let file = At::child(dir.clone(), b"file");
        assert_eq!(map.route(&file), map.slot_of(9, b"file"));
        let deep = At { path: vec![Bytes::from_static(b"x"), file.path[0].clone()], ..file };
        assert_eq!(map.shard_for(&deep), map.owner(1, b"file"), "of whichever directory");
        assert_eq!(map.route(&At::handle(dir)), map.slot_of(7, b"dir"));
        assert_eq!(map.route(&At::handle(Locator::home(9, 5))), Slot(5));
        assert_eq!(map.route(&At::locks(9)), Slot::of_locks(9));
        let (key, slot) = map.place(9, b"file");
        assert_eq!((key, slot), (map.key(9, b"file"), map.slot_of(9, b"file")));
    }

    #[test]
    fn a_new_store_moves_only_its_share_of_chunks() {
        let (four, five) = (map(1, 4), map(1, 5));
        let moved =
            (0..10_000).filter(|&i| four.stores_of_chunk(i, 0) != five.stores_of_chunk(i, 0));
        assert!((1_800..2_200).contains(&moved.count()));
    }

    #[test]
    fn maps_that_would_mislead_are_refused() {
        let good = map(2, 2);
        for break_it in [
            (|m: &mut ClusterMap| m.slots = Bytes::from_static(&[0; 4])) as fn(&mut ClusterMap),
            |m| m.shards.truncate(1),
            |m| m.uuid = Bytes::new(),
            |m| m.coordinator = "nowhere".into(),
            |m| m.format = 0,
            |m| m.slots_version = m.version + 1,
            |m| m.shards[1].allocator = 0,
            |m| m.shards[1].allocator = SHARDS_MAX as u32 + 1,
        ] {
            let mut bad = good.clone();
            break_it(&mut bad);
            assert!(bad.check().is_err());
        }
    }
}
