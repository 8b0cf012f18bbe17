//! Whoever can reach a port can send anything. It harms nobody but the sender, and no name gets
//! into the file system that is none.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::process::{Command, Stdio};

use bytes::Bytes;
use prost::Message;
use rustix::process::{Resource, getrlimit, setrlimit};
use saker_client::{Caller, Fs};
use saker_engine::sessions::SESSIONS_PER_ADDRESS_MAX;
use saker_rpc::node::bounds::CLIENTS_PER_ADDRESS_MAX;
use saker_sim::cluster::{ClusterShape, RunningCluster};
use saker_sim::generate::Random;
use saker_sim::raw::{Raw, header};
use saker_sim::wait::until;
use saker_types::wire::{self, At, Op};
use saker_types::{Class, Cred, Errno, Error, Locator};

/// Addresses of all ports but HTTP, with the role's name.
fn ports(cluster: &RunningCluster) -> Vec<(String, String)> {
    let mut ports = Vec::new();
    for role in cluster.roles().into_iter().filter(|role| role.role != "mount") {
        for addr in role.addr.split(',') {
            ports.push((format!("{}-{}", role.role, role.n), addr.to_owned()));
        }
    }
    ports
}

/// The whole cluster serves: coordinator, shards and stores.
fn assert_serves(fs: &Fs, n: u64) {
    let who = Caller::root();
    let at = |name: &str| At::below(Locator::root(), vec![Bytes::from(format!("{name}-{n}"))]);
    fs.block_on(async {
        fs.mkdir(&who, &at("dir"), 0o755).await.unwrap();
        let flags = saker_client::OpenFlags::from_linux(0o2);
        for name in ["file-a", "file-b", "file-c", "file-d"] {
            let (file, _) = fs.create(&who, &at(name), 0o644, flags).await.unwrap();
            file.write(0, &[7; 100_000]).await.unwrap();
            file.fsync().await.unwrap();
            assert_eq!(file.read(99_990, 100).await.unwrap().as_ref(), [7; 10]);
            file.release().await;
            fs.unlink(&who, &at(name)).await.unwrap();
        }
        fs.rmdir(&who, &at("dir")).await.unwrap();
    });
}

#[test]
fn garbage_on_any_port_harms_nobody() {
    let cluster = RunningCluster::start(ClusterShape::default());
    let fs = cluster.connect();
    assert_serves(&fs, 0);
    let mut rng = Random::new(1);
    let ports = ports(&cluster);
    assert!(ports.len() >= 7, "{ports:?}");
    for (n, (role, addr)) in ports.iter().enumerate() {
        let pids: Vec<i32> = cluster.roles().iter().map(|role| role.pid).collect();
        for length in [1, 39, 40, 41, 1000, 100_000] {
            let mut raw = Raw::connect(addr).unwrap();
            let bytes: Vec<u8> = (0..length).map(|_| rng.any() as u8).collect();
            // It may close before everything is sent.
            let _ = raw.send(&bytes);
            drop(raw);
        }
        // Random bytes behind a good hello, and behind a good header.
        for _ in 0..20 {
            let mut raw = Raw::connect(addr).unwrap();
            assert_eq!(raw.hello(rng.any()).unwrap().0, 0, "{role}");
            let op = rng.pick(Op::ALL);
            let length = rng.below(300) as u32;
            let body: Vec<u8> = (0..length).map(|_| rng.any() as u8).collect();
            let _ = raw.send(&header(3, *op as u16, length, 0, 1));
            let _ = raw.send(&body);
            let _ = raw.send(&[rng.any() as u8; 50]);
        }
        // A frame that is cut off, frames that claim more than a frame may hold.
        let mut cut = Raw::connect(addr).unwrap();
        cut.send(&header(1, 0, 1000, 0, 0)).unwrap();
        cut.send(&[0; 10]).unwrap();
        drop(cut);
        for (body, payload) in [(u32::MAX, 0), (0, u32::MAX), (u32::MAX, u32::MAX), (2 << 20, 0)] {
            let mut raw = Raw::connect(addr).unwrap();
            raw.hello(rng.any()).unwrap();
            raw.send(&header(3, 1, body, payload, 1)).unwrap();
            assert!(raw.is_closed_by_peer(), "{role} waits for {body} + {payload} bytes");
        }
        // A request before any hello.
        let mut rude = Raw::connect(addr).unwrap();
        rude.send(&header(3, 1, 0, 0, 1)).unwrap();
        assert!(rude.is_closed_by_peer(), "{role} serves without hello");
        assert_serves(&fs, n as u64 + 1);
        let now: Vec<i32> = cluster.roles().iter().map(|role| role.pid).collect();
        assert_eq!(pids, now, "a process died of garbage at {role}");
    }
    fs.close().unwrap();
    cluster.fsck();
}

/// Connections that say nothing, or hang in the middle of a frame, block nobody.
#[test]
fn silent_connections_block_nobody() {
    let cluster = RunningCluster::start(ClusterShape::default());
    let mut idle = Vec::new();
    for (_, addr) in ports(&cluster) {
        for _ in 0..50 {
            idle.push(Raw::connect(&addr).unwrap());
            let mut half = Raw::connect(&addr).unwrap();
            half.send(&header(1, 0, 100, 0, 0)[..20]).unwrap();
            idle.push(half);
        }
    }
    let fs = cluster.connect();
    assert_serves(&fs, 0);
    fs.close().unwrap();
}

fn ctx(session: u64, seq: u64) -> wire::Ctx {
    let (map_version, wait_ms) = (0, 5000);
    wire::Ctx { cred: Cred::root(), session, seq, map_version, wait_ms, ..wire::Ctx::default() }
}

fn requests(ctx: wire::Ctx, at: At) -> Vec<(Op, Vec<u8>)> {
    let good = At::below(Locator::root(), vec![Bytes::from_static(b"target")]);
    let create = |mode, target: &'static [u8]| {
        let (ctx, at, target) = (ctx.clone(), at.clone(), Bytes::from_static(target));
        let request = wire::CreateReq {
            ctx,
            at,
            mode,
            rdev: 0,
            target,
            exclusive: false,
            access: 6,
            truncate: false,
            umask: 0,
            wary: false,
            hold: wire::Hold::default(),
        };
        request.encode_to_vec()
    };
    let rename = |from: &At, to: &At| {
        let (ctx, from, to) = (ctx.clone(), from.clone(), to.clone());
        wire::RenameReq { ctx, from, to, ..wire::RenameReq::default() }.encode_to_vec()
    };
    let link = wire::LinkReq { ctx: ctx.clone(), from: good.clone(), to: at.clone() };
    let lookup = wire::EntryReq { ctx: ctx.clone(), at: at.clone(), full: false };
    vec![
        (Op::Create, create(0o100_644, b"")),
        (Op::Mkdir, create(0o040_755, b"")),
        (Op::Mknod, create(0o100_644, b"")),
        (Op::Symlink, create(0o120_777, b"x")),
        (Op::Rename, rename(&good, &at)),
        (Op::Rename, rename(&at, &good)),
        (Op::Link, link.encode_to_vec()),
        (Op::Lookup, lookup.encode_to_vec()),
    ]
}

#[test]
fn names_that_are_none_are_refused_by_the_server() {
    let cluster = RunningCluster::start(ClusterShape::default());
    let fs = cluster.connect();
    let who = Caller::root();
    let flags = saker_client::OpenFlags::from_linux(0o2);
    let target = At::below(Locator::root(), vec![Bytes::from_static(b"target")]);
    fs.block_on(fs.create(&who, &target, 0o644, flags)).unwrap();
    let long = [b'x'; 256];
    let bad: [&[u8]; 7] = [b"", b".", b"..", b"a/b", b"/", b"a\0b", &long];
    let shards = ports(&cluster).into_iter().filter(|(role, _)| !role.starts_with("store"));
    for (n, (role, addr)) in shards.enumerate() {
        let session = 0xbad0_0000 + n as u64;
        let mut raw = Raw::connect(&addr).unwrap();
        assert_eq!(raw.hello(session).unwrap().0, 0);
        raw.call(Op::OpenSession, &wire::SessionReq { session }).unwrap();
        let mut seq = 0;
        for name in bad {
            let name = Bytes::copy_from_slice(name);
            let last = At::below(Locator::root(), vec![name.clone()]);
            let middle = At::below(Locator::root(), vec![name, Bytes::from_static(b"x")]);
            for at in [last, middle] {
                for n in 0..requests(ctx(session, 0), at.clone()).len() {
                    seq += 1;
                    let (op, body) = requests(ctx(session, seq), at.clone()).swap_remove(n);
                    let (status, body) = raw.call_bytes(op, &body).unwrap();
                    assert_ne!(status, 0, "{role} took {op:?} of {at:?}");
                    let error = Error::decode(body.as_slice()).unwrap();
                    let routing = [Class::UseCoordinator, Class::UseOwner, Class::RefreshMap];
                    let refused = [Errno::EINVAL, Errno::ENAMETOOLONG, Errno::EPROTO]
                        .contains(&error.errno())
                        || routing.iter().any(|class| error.is(*class));
                    assert!(refused, "{role}: {op:?} of {at:?}: {error:?}");
                }
            }
        }
    }
    // Nothing got in.
    fs.block_on(async {
        let mut listing = fs.readdir(&who, &Locator::root(), 0);
        let item = listing.next().await.unwrap().unwrap();
        assert_eq!(item.name.as_ref(), b"target");
        assert!(listing.next().await.unwrap().is_none());
    });
    fs.close().unwrap();
    cluster.fsck();
}

/// An MNode one of whose workers cannot start ends, and says why: the others alone would look as
/// if it served.
#[test]
fn damage_to_one_workers_journal_ends_its_mnode() {
    let cluster =
        RunningCluster::start(ClusterShape { mnodes: 1, stores: 1, ..ClusterShape::default() });
    let dir = cluster.scratch().join("workers");
    let saker = |words: &[&str]| {
        let mut command = Command::new(saker_sim::cluster::binary());
        command.args(words);
        command
    };
    let path = dir.to_str().unwrap();
    let up = ["up", "--mnodes", "1", "--stores", "1", "--workers", "2", "--no-supervise", "--dir"];
    assert!(saker(&[&up[..], &[path]].concat()).status().unwrap().success());
    assert!(saker(&["down", "--dir", path]).status().unwrap().success());
    let journal = dir.join("data/mnode-0/shard-1/journal/wal-0000000000000000");
    let mut data = fs::read(&journal).unwrap();
    data[20] ^= 0xff;
    fs::write(&journal, data).unwrap();
    let settings = dir.join("etc/mnode-0.toml");
    let mut mnode = saker(&["serve", "mnode", "--config", settings.to_str().unwrap()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ended = None;
    until("the end of the MNode", || {
        ended = mnode.try_wait().unwrap();
        ended.is_some()
    });
    let said = String::from_utf8(mnode.wait_with_output().unwrap().stderr).unwrap();
    assert_eq!(ended.and_then(|status| status.code()), Some(1), "{said}");
    assert!(said.contains("shard-1/journal/wal-"), "{said}");
}

/// A client that asks and never acknowledges is told to, and nobody else notices; nor does the
/// next start.
#[test]
fn results_that_nobody_acknowledges_are_bounded() {
    let cluster =
        RunningCluster::start(ClusterShape { mnodes: 1, stores: 1, ..ClusterShape::default() });
    let fs = cluster.connect();
    let place = At::below(Locator::root(), vec![Bytes::from_static(b"file")]);
    let flags = saker_client::OpenFlags::from_linux(2);
    fs.block_on(async {
        let (file, _) = fs.create(&Caller::root(), &place, 0o644, flags).await.unwrap();
        file.write(0, &[7; 4000]).await.unwrap();
        file.fsync().await.unwrap();
        file.release().await;
    });
    let (_, addr) = ports(&cluster).into_iter().find(|(role, _)| role == "mnode-0").unwrap();
    let mut raw = Raw::connect(&addr).unwrap();
    let session = 0x600d;
    raw.hello(session).unwrap();
    assert_eq!(raw.call(Op::OpenSession, &wire::SessionReq { session }).unwrap().0, 0);
    // The answer to an append of nothing is the whole row.
    let append = |raw: &mut Raw, seq, ack| {
        let ctx = wire::Ctx { ack, ..ctx(session, seq) };
        let request = wire::AppendReq { ctx, at: place.clone(), ..wire::AppendReq::default() };
        raw.call(Op::Append, &request).unwrap()
    };
    let first = append(&mut raw, 1, 0);
    assert!(first.0 == 0 && first.1.len() > 4000, "{first:?}");
    let refused = (2..20_000).find_map(|seq| match append(&mut raw, seq, 0) {
        (0, _) => None,
        (_, error) => Some((seq, Error::decode(&error[..]).unwrap())),
    });
    let (kept, error) = refused.expect("it keeps everything");
    assert!(error.is(Class::Retry) && error.text.contains("acknowledge"), "{error:?}");
    assert!(kept as usize * 4000 <= saker_types::limits::SESSION_RESULTS_BYTES_MAX, "{kept}");
    assert_serves(&fs, 0);
    // Nothing was dropped that may be asked for, also by a restart.
    assert!(append(&mut raw, 1, 0) == first);
    cluster.signal("mnode-0", rustix::process::Signal::KILL);
    cluster.up();
    let mut raw = Raw::connect(&addr).unwrap();
    raw.hello(session).unwrap();
    assert!(append(&mut raw, 1, 0) == first);
    assert_ne!(append(&mut raw, kept, 0).0, 0);
    assert_eq!(append(&mut raw, kept, kept).0, 0, "acknowledged");
    assert_serves(&fs, 1);
    fs.close().unwrap();
}

/// Sessions and idle connections of strangers keep nobody out.
#[test]
fn floods_keep_nobody_out() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let cluster =
        RunningCluster::start(ClusterShape { mnodes: 1, stores: 1, ..ClusterShape::default() });
    let fs = cluster.connect();
    assert_serves(&fs, 0);
    let members = || ports(&cluster).into_iter().filter(|(role, _)| !role.starts_with("store"));
    for (_, addr) in members() {
        let _idle: Vec<Raw> = (0..CLIENTS_PER_ADDRESS_MAX + 50)
            .map(|_| {
                let mut raw = Raw::connect(&addr).unwrap();
                raw.hello(1).unwrap();
                raw
            })
            .collect();
        // A client that has been here goes on, and a new one comes in.
        assert_serves(&fs, 1);
        let new = cluster.connect();
        assert_serves(&new, 2);
        new.close().unwrap();
    }
    // Last, for whoever is new would need a session, too.
    for (role, addr) in members() {
        let mut raw = Raw::connect(&addr).unwrap();
        raw.hello(1).unwrap();
        let sessions: Vec<_> = (0..=SESSIONS_PER_ADDRESS_MAX as u64)
            .map(|n| wire::SessionReq { session: 10_000_000 + n })
            .collect();
        let answers =
            sessions.chunks(500).flat_map(|some| raw.calls(Op::OpenSession, some).unwrap());
        let refused: Vec<_> = answers.filter(|(status, _)| *status != 0).collect();
        let (status, error) = refused.first().expect("a bound");
        let error = Error::decode(&error[..]).unwrap();
        assert!(*status == Errno::EBUSY.0 && error.is(Class::Retry), "{role}: {error:?}");
        assert_serves(&fs, 3);
    }
    fs.close().unwrap();
}
