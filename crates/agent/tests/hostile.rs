//! Wrong keys, garbage, and what processes and peers may not ask.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use common::Job;
use saker_agent_api::{Ask, Hello, OpenFile, ReadStored, Remote, Request, Stored, VERSION, encode};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Not a test: the process of an agent.
#[test]
fn agent_process() {
    common::agent_process();
}

fn with_keys(keys: [&str; 2]) -> Job {
    let mut job = Job::new::<2>(Path::new("/usr/include/asm-generic"), 2, "none");
    for (agent, key) in job.agents.iter_mut().zip(keys) {
        let mut config = agent.config.clone();
        let file = config.dir.with_extension("key");
        fs::write(&file, key).unwrap();
        config.key_file = Some(file);
        *agent = common::Agent::new(config);
    }
    job.start();
    job
}

#[test]
fn a_job_with_a_key_works() {
    let job = with_keys(["secret\n", "secret"]);
    job.stage(&job.layout(1));
    job.agents.iter().for_each(|agent| assert!(job.compare(agent) > 0));
    assert!(job.total("peer_reads_total") > 0);
    assert!(Remote::connect(&job.nodes[0], b"secret", TIMEOUT).is_ok());
}

#[test]
fn another_key_is_refused() {
    let job = with_keys(["secret", "secreT"]);
    for key in [&b""[..], b"secre", b"secreT", b"secret\0", &[b'x'; 3000]] {
        let error = Remote::connect(&job.nodes[0], key, TIMEOUT).err().unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
    }
    assert_eq!(job.agents[0].counter("refused_connections_total"), 5);
    // Each has half of the files, and the rest from the origin: no peer lets it in.
    job.stage(&job.layout(1));
    job.agents.iter().for_each(|agent| assert!(job.compare(agent) > 0));
    assert_eq!(job.total("peer_reads_total"), 0);
    assert_eq!(job.total("served_reads_total"), 0);
}

#[test]
fn garbage_harms_nobody() {
    let mut job = Job::new::<2>(Path::new("/usr/include/asm-generic"), 2, "none");
    job.start();
    job.stage(&job.layout(1));
    let hello =
        encode(&Request { ask: Some(Ask::Hello(Hello { version: VERSION, key: Vec::new() })) });
    let old =
        encode(&Request { ask: Some(Ask::Hello(Hello { version: VERSION + 1, key: Vec::new() })) });
    let noise: Vec<u8> =
        (0..100_000u32).map(|n| (n.wrapping_mul(2654435761) >> 24) as u8).collect();
    let tails: [Vec<u8>; 8] = [
        vec![],
        vec![0xff; 4],
        vec![0, 0, 0, 0x40],
        vec![0, 0, 0, 0],
        vec![3, 0, 0, 0, 1],
        noise.clone(),
        [&[8, 0, 0, 0][..], &noise[..8]].concat(),
        hello.clone(),
    ];
    let socket = job.agents[0].config.dir.join("agent.sock");
    for head in [&b""[..], &hello, &old] {
        for tail in &tails {
            let bytes = [head, tail].concat();
            let mut tcp = TcpStream::connect(&job.nodes[0]).unwrap();
            // It may be closed while it is written.
            let _ = tcp.write_all(&bytes);
            let _ = tcp.shutdown(std::net::Shutdown::Write);
            let _ = tcp.read_to_end(&mut Vec::new());
            let mut unix = UnixStream::connect(&socket).unwrap();
            let _ = unix.write_all(&bytes);
            let _ = unix.shutdown(std::net::Shutdown::Write);
            let _ = unix.read_to_end(&mut Vec::new());
        }
    }
    job.agents.iter().for_each(|agent| assert!(job.compare(agent) > 0));
    assert!(!job.agents[0].log().contains("panicked"));
}

#[test]
fn processes_do_not_keep_peers_out() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    // As many connections as peers may have.
    const CONNECTIONS: usize = 4096;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit })
        .unwrap();
    let mut job = Job::new::<1>(Path::new("/usr/include/asm-generic"), 1, "none");
    job.start();
    let socket = job.agents[0].config.dir.join("agent.sock");
    let processes: Vec<_> =
        (0..CONNECTIONS).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let hello = Request { ask: Some(Ask::Hello(Hello { version: VERSION, key: Vec::new() })) };
    let hello = encode(&hello);
    processes.iter().for_each(|mut process| process.write_all(&hello).unwrap());
    let open = || job.agents[0].counter("connections");
    common::until("all are connected", || open() > CONNECTIONS as u64);
    Remote::connect(&job.nodes[0], b"", TIMEOUT).unwrap();
}

#[test]
fn peers_may_read_what_is_there_and_no_more() {
    let mut job = Job::new::<2>(Path::new("/usr/include/asm-generic"), 2, "none");
    job.start();
    let layout = job.layout(1);
    job.stage(&layout);
    let mut peer = Remote::connect(&job.nodes[0], b"", TIMEOUT).unwrap();
    let table = fs::read(job.packed.join("table.saker")).unwrap();
    let len = job.packed.join("part-00000.saker").metadata().unwrap().len();
    let read = |what: Stored, partition, offset, bytes| ReadStored {
        dataset: "linux@1".into(),
        table_digest: layout.table_digest.0.to_vec(),
        partition,
        offset,
        bytes,
        what: what.into(),
    };
    let got = peer.call(Ask::Read(read(Stored::Table, 0, 10, 100))).unwrap();
    assert_eq!((&got.data[..], got.available), (&table[10..110], table.len() as u64));
    let wrong = [
        read(Stored::Partition, 0, len - 10, 11),
        read(Stored::Partition, 0, u64::MAX, 1),
        read(Stored::Partition, 0, u64::MAX, u64::MAX),
        read(Stored::Partition, 0, 0, 5 << 20),
        read(Stored::Partition, 1, 0, 10),
        read(Stored::Partition, u32::MAX, 0, 10),
        ReadStored { what: 77, ..read(Stored::Partition, 0, 0, 10) },
        ReadStored { table_digest: vec![0; 32], ..read(Stored::Partition, 0, 0, 10) },
        ReadStored { dataset: "../x".into(), ..read(Stored::Partition, 0, 0, 10) },
    ];
    for ask in wrong {
        assert!(peer.call(Ask::Read(ask.clone())).is_err(), "{ask:?}");
    }
    let past = peer.call(Ask::Read(read(Stored::Manifest, 0, u64::MAX, 10))).unwrap();
    assert!(past.data.is_empty());
    let open = OpenFile { dataset: "linux@1".into(), ino: 1 };
    assert!(peer.call(Ask::Open(open)).is_err());
    assert!(peer.call(Ask::Read(read(Stored::Partition, 0, 0, 0))).unwrap().available == len);
}
