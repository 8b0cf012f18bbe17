//! A subtree that is served inside of its client, on the stores of a real cluster.
#![allow(clippy::unwrap_used)]

mod client_support;

use std::time::Duration;

use bytes::Bytes;
use client_support::{Cluster, path};
use prost::Message;
use saker_client::{File, Fs, KeptIn, OpenFlags, PrivateServers, RowPlace, SetAttr, Transport};
use saker_runtime::rand::Rng;
use saker_sim::wait::until;
use saker_types::limits::CHUNK_BYTES;
use saker_types::wire::{At, ChunkReadReq, EntryKey, IdRange, Op};
use saker_types::{Inode, InodeId, Locator};

const RW: OpenFlags = OpenFlags::READ_WRITE;
const APPEND: OpenFlags = OpenFlags { append: true, ..RW };

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::seeded(seed).fill(&mut bytes);
    bytes
}

/// A cluster with a directory that its client has for itself.
struct Subtree {
    t: Cluster,
    root: Locator,
    servers: PrivateServers,
}

impl Subtree {
    /// `prepare` fills the directory before.
    fn start(kept: KeptIn, prepare: impl FnOnce(&Cluster)) -> Subtree {
        let t = Cluster::start(2, 3);
        t.run(t.fs.mkdir(&t.root, &path("/sub"), 0o755)).unwrap();
        prepare(&t);
        let entry = t.run(t.fs.getattr(&t.root, &path("/sub"))).unwrap();
        let servers = start(&t, kept, &entry.loc);
        t.run(servers.give_ids(IdRange { first: 1 << 30, count: 1 << 20 })).unwrap();
        Subtree { root: entry.loc, servers, t }
    }

    fn fs(&self) -> &Fs {
        self.servers.fs()
    }

    fn at(&self, name: &str) -> At {
        At::child(self.root.clone(), name.as_bytes())
    }

    fn open(&self, name: &str, flags: OpenFlags) -> File {
        self.t.run(self.fs().open(&self.t.root, &self.at(name), flags)).unwrap().0
    }

    fn write(&self, name: &str, data: &[u8]) -> InodeId {
        self.t.run(write(self.fs(), &self.t, &self.at(name), data))
    }

    fn read(&self, name: &str) -> Vec<u8> {
        let file = self.open(name, RW);
        self.t.run(read(&file))
    }

    /// Does a store have the first chunk of a file?
    fn is_stored(&self, id: InodeId) -> bool {
        let (map, reactor) = (self.t.fs.map(), self.t.fs.reactor().unwrap());
        let request = ChunkReadReq { id, len: 1, ..ChunkReadReq::default() };
        map.stores_of_chunk(id, 0).into_iter().any(|store| {
            let addr = map.stores[usize::from(store)].addr.parse().unwrap();
            let (body, none) = (request.encode_to_vec().into(), Bytes::new());
            let call = reactor.call(addr, Op::ChunkRead as u16, 1, body, none, TIMEOUT);
            !reactor.block_on(call).unwrap().payload.is_empty()
        })
    }
}

const TIMEOUT: Duration = Duration::from_secs(20);

fn start(t: &Cluster, kept: KeptIn, root: &Locator) -> PrivateServers {
    let attr = t.run(t.fs.getattr(&t.root, &path("/sub"))).unwrap().attr;
    let row = Inode { attr, ..Inode::default() };
    t.run(PrivateServers::start(&t.fs, kept, root, row)).unwrap()
}

async fn write(fs: &Fs, t: &Cluster, at: &At, data: &[u8]) -> InodeId {
    let (file, entry) = fs.create(&t.root, at, 0o644, RW).await.unwrap();
    for (i, part) in data.chunks(128 << 10).enumerate() {
        file.write((i * (128 << 10)) as u64, part).await.unwrap();
    }
    file.fsync().await.unwrap();
    file.release().await;
    entry.attr.id
}

async fn read(file: &File) -> Vec<u8> {
    let mut data = Vec::new();
    loop {
        let part = file.read(data.len() as u64, 1 << 20).await.unwrap();
        if part.is_empty() {
            return data;
        }
        data.extend_from_slice(&part);
    }
}

#[test]
fn large_files_are_on_the_stores_of_the_cluster() {
    let s = Subtree::start(KeptIn::Memory, |_| ());
    let data = pattern(2 * CHUNK_BYTES as usize + 777, 1);
    let id = s.write("f", &data);
    assert!(s.read("f") == data && s.is_stored(id));
    // A small file that grows leaves its row.
    let small = pattern(3000, 2);
    let grown = s.write("g", &small);
    assert!(!s.is_stored(grown));
    let file = s.open("g", APPEND);
    s.t.run(file.write(0, &data[..10_000])).unwrap();
    s.t.run(file.fsync()).unwrap();
    assert!(s.is_stored(grown) && s.read("g") == [&small[..], &data[..10_000]].concat());
    // Cut, and longer again.
    for size in [CHUNK_BYTES + 5, CHUNK_BYTES + 10] {
        let size = SetAttr { size: Some(size), ..SetAttr::default() };
        s.t.run(s.fs().setattr(&s.t.root, &s.at("f"), &size)).unwrap();
    }
    let kept = CHUNK_BYTES as usize + 5;
    assert!(s.read("f") == [&data[..kept], &[0; 5]].concat());
    // Nobody sees the names in the cluster.
    assert!(s.t.run(s.t.fs.lookup(&s.t.root, &path("/sub/f"))).is_err());
    // What was made here and is removed leaves nothing.
    let file = s.open("f", RW);
    s.t.run(s.fs().unlink(&s.t.root, &s.at("f"))).unwrap();
    assert!(s.t.run(file.read(0, 100)).unwrap() == data[..100]);
    s.t.run(file.release());
    until("the chunks are deleted", || !s.is_stored(id));
}

#[test]
fn files_of_the_cluster_keep_their_data() {
    let data = pattern(CHUNK_BYTES as usize + 100_000, 3);
    let s = Subtree::start(KeptIn::Memory, |t| {
        t.run(write(&t.fs, t, &path("/sub/old"), &data));
    });
    let attr = s.t.run(s.t.fs.getattr(&s.t.root, &path("/sub/old"))).unwrap().attr;
    let id = attr.id;
    let entry = EntryKey { pid: s.root.id, name: Bytes::from_static(b"old") };
    let row = (RowPlace::Entry(entry), Inode { attr, ..Inode::default() });
    s.t.run(s.servers.insert(vec![row])).unwrap();
    assert!(s.read("old") == data);
    s.t.run(s.fs().unlink(&s.t.root, &s.at("old"))).unwrap();
    // One that was made here goes later, and takes its data along.
    let made = s.write("new", &data[..100_000]);
    s.t.run(s.fs().unlink(&s.t.root, &s.at("new"))).unwrap();
    until("the new one's chunks are deleted", || !s.is_stored(made));
    assert!(s.is_stored(id));
    let file = s.t.run(s.t.fs.open(&s.t.root, &path("/sub/old"), RW)).unwrap().0;
    assert!(s.t.run(read(&file)) == data);
}

#[test]
fn large_files_are_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let kept = || KeptIn::Dir(dir.path().join("private"));
    let s = Subtree::start(kept(), |_| ());
    let data = pattern(CHUNK_BYTES as usize + 9, 4);
    s.write("f", &data);
    let Subtree { t, root, servers } = s;
    drop(servers);
    let servers = start(&t, kept(), &root);
    let s = Subtree { t, root, servers };
    assert!(s.read("f") == data);
}
