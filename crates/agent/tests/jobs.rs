//! Jobs of several nodes: staging, reading, dying agents, damaged copies.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{Agent, Job, make_large, pack_tree, until};
use saker_agent_api::{Ask, Local, Named};
use saker_dataset::{Manifest, Partition, Staged};

const SOURCE: &str = "/usr/include/linux";

/// Not a test: the process of an agent.
#[test]
fn agent_process() {
    common::agent_process();
}

#[test]
fn every_node_reads_every_file() {
    for (replicas, partitions, codec) in [(1, 4, "lz4"), (2, 9, "none"), (4, 4, "zstd")] {
        let mut job = Job::new::<4>(Path::new(SOURCE), partitions, codec);
        job.start();
        job.stage(&job.layout(replicas));
        let from_origin = job.total("origin_read_bytes_total");
        assert!(from_origin <= job.packed_bytes(), "{from_origin} of {}", job.packed_bytes());
        for agent in &job.agents {
            assert!(job.compare(agent) > 100);
        }
        assert_eq!(job.total("origin_read_bytes_total"), from_origin, "files come from peers");
        assert_eq!(job.total("read_failures_total"), 0);
        let remote = job.total("peer_reads_total") > 0 && job.total("local_reads_total") > 0;
        assert!(remote);
        // What was open is closed with the connections.
        until("all is closed", || job.total("open_files") == 0);
        assert_eq!(job.total("open_bytes"), 0);
        // Each keeps its share, as the layout says.
        let kept: u32 = job.agents.iter().map(|a| a.status().datasets[0].partitions_whole).sum();
        assert_eq!(kept, partitions * replicas);
    }
}

#[test]
fn files_outlive_the_agent_that_gave_them_and_are_shared() {
    let mut job = Job::new::<2>(Path::new(SOURCE), 2, "lz4");
    job.start();
    job.stage(&job.layout(1));
    let agent = &job.agents[0];
    let files = job.files();
    let (ino, path) = files.iter().max_by_key(|(_, path)| path.metadata().unwrap().len()).unwrap();
    let mut first = Local::connect(&agent.config.dir).unwrap();
    let mut second = Local::connect(&agent.config.dir).unwrap();
    let a = first.open("linux@1", *ino).unwrap();
    let b = second.open("linux@1", *ino).unwrap();
    let inode = |fd: &std::os::fd::OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
    assert_eq!(inode(&a), inode(&b), "one copy in memory");
    assert_eq!((agent.counter("cache_hits_total"), agent.counter("open_files")), (1, 2));
    first.close("linux@1", *ino).unwrap();
    until("one is closed", || agent.counter("open_files") == 1);
    drop(second);
    until("both are closed", || agent.counter("open_files") == 0);
    assert_eq!(agent.counter("open_bytes"), 0);
    job.agents[0].kill();
    assert_eq!(common::read(a), fs::read(path).unwrap());
    let mut local = Local::connect(&job.agents[1].config.dir).unwrap();
    assert_eq!(local.open("nothing@1", 1).unwrap_err().raw_os_error(), Some(2));
    assert_eq!(local.open("linux@1", 0).unwrap_err().raw_os_error(), Some(22), "a directory");
    assert_eq!(local.open("linux@1", u32::MAX).unwrap_err().raw_os_error(), Some(22));
}

#[test]
fn files_are_closed_that_were_open_when_their_dataset_was_staged_anew() {
    let mut job = Job::new::<2>(Path::new(SOURCE), 2, "lz4");
    job.start();
    job.stage(&job.layout(1));
    let agent = &job.agents[0];
    let inos: Vec<_> = job.files().into_keys().take(2).collect();
    let mut local = Local::connect(&agent.config.dir).unwrap();
    let opened: Vec<_> = inos.iter().map(|ino| local.open("linux@1", *ino).unwrap()).collect();
    job.stage(&job.layout(2));
    local.close("linux@1", inos[0]).unwrap();
    until("the first is closed", || agent.counter("open_files") == 1);
    agent.ask(Ask::Unstage(Named { dataset: "linux@1".into() })).unwrap();
    local.close("linux@1", inos[1]).unwrap();
    until("the second is closed", || agent.counter("open_files") == 0);
    assert_eq!(agent.counter("open_bytes"), 0);
    drop(opened);
}

#[test]
fn readers_do_not_notice_that_agents_die() {
    let mut job = Job::new::<4>(Path::new(SOURCE), 4, "none");
    job.start();
    job.stage(&job.layout(2));
    let (dead, rest) = job.agents.split_at_mut(1);
    let (stop, read) = (AtomicBool::new(false), AtomicUsize::new(0));
    let files: Vec<_> = {
        let table = saker_dataset::Table::open(&job.packed.join("table.saker")).unwrap();
        (0..table.len()).filter(|ino| table.inode(*ino).data().is_some()).collect()
    };
    let contents = contents(&job.packed);
    std::thread::scope(|scope| {
        for agent in &*rest {
            let (stop, read, files, contents) = (&stop, &read, &files, &contents);
            scope.spawn(move || {
                let mut local = Local::connect(&agent.config.dir).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    for ino in files {
                        let fd = local.open("linux@1", *ino).unwrap();
                        assert!(common::read(fd) == contents[*ino as usize], "file {ino}");
                        local.close("linux@1", *ino).unwrap();
                        read.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let more = |n: usize| {
            let before = read.load(Ordering::Relaxed);
            until("files are read", || read.load(Ordering::Relaxed) > before + n);
        };
        for _ in 0..3 {
            more(200);
            dead[0].kill();
            more(200);
            dead[0].start();
        }
        dead[0].kill();
        more(3 * files.len());
        stop.store(true, Ordering::Relaxed);
    });
    let failures: u64 = rest.iter().map(|agent| agent.counter("read_failures_total")).sum();
    assert!(failures > 0, "it was missed");
    assert!(rest.iter().all(|agent| agent.counter("open_failures_total") == 0));
}

#[test]
fn agents_that_hang_are_passed_over() {
    let mut job = Job::new::<3>(Path::new(SOURCE), 3, "none");
    job.start();
    let layout = job.layout(2);
    job.stage(&layout);
    job.agents[0].signal(rustix::process::Signal::STOP);
    for agent in &job.agents[1..] {
        job.compare(agent);
        assert!(agent.counter("read_failures_total") > 0, "it was missed");
        assert_eq!(agent.counter("open_failures_total"), 0);
    }
    // Staged while it hangs: it was to be asked for the table, and for partitions.
    for (n, agent) in job.agents.iter().enumerate().skip(1) {
        agent.stage(&saker_dataset::Stage { name: "linux@2".into(), ..layout.clone() }, n).unwrap();
    }
    until("the others are complete", || job.agents[1..].iter().all(Agent::is_complete));
    job.agents[0].signal(rustix::process::Signal::CONT);
    job.compare(&job.agents[0]);
    let served = || job.agents[0].counter("served_reads_total");
    let before = served();
    until("it is asked again", || {
        job.compare(&job.agents[1]);
        served() > before
    });
}

/// Contents of all files, by number.
fn contents(packed: &Path) -> Vec<Vec<u8>> {
    let dataset = saker_dataset::Dataset::open(packed).unwrap();
    let file = |ino| {
        let mut all = Vec::new();
        if dataset.table().inode(ino).data().is_some() {
            let keep = |block: Vec<u8>| {
                all.extend_from_slice(&block);
                Ok(())
            };
            dataset.read(ino, keep).unwrap();
        }
        all
    };
    (0..dataset.table().len()).map(file).collect()
}

#[test]
fn staging_goes_on_after_kills() {
    let source = tempfile::tempdir().unwrap();
    make_large(source.path(), 24, 3 << 20);
    let mut job = Job::new::<3>(source.path(), 3, "none");
    job.start();
    let layout = job.layout(2);
    for (n, agent) in job.agents.iter().enumerate() {
        agent.stage(&layout, n).unwrap();
    }
    let mut kills = 0;
    for round in 0..12usize {
        let agent = &mut job.agents[round % 3];
        let part = || agent.status().datasets[0].bytes_there;
        let before = part();
        // Killed in the middle: as soon as a little more is there.
        until("staging goes on", || part() > before || agent.is_complete());
        kills += usize::from(!agent.is_complete());
        agent.kill();
        agent.start();
    }
    until("all is staged", || job.agents.iter().all(Agent::is_complete));
    assert!(kills >= 2, "{kills} kills in the middle");
    let manifest = Manifest::read(&job.packed).unwrap();
    for (n, agent) in job.agents.iter().enumerate() {
        let dir = agent.dataset("linux@1");
        Staged::open(&dir).unwrap().table().verify().unwrap();
        for (number, info) in manifest.partitions.iter().enumerate() {
            let path = dir.join(&info.name);
            let keeps = layout.keepers(number as u32).any(|keeper| keeper == n);
            assert_eq!(path.exists(), keeps);
            if keeps {
                assert_eq!(
                    fs::read(&path).unwrap(),
                    fs::read(job.packed.join(&info.name)).unwrap()
                );
                Partition::open(&path).unwrap().verify().unwrap();
            }
        }
        let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".partial")), "{left:?}");
    }
    job.agents.iter().for_each(|agent| assert!(job.compare(agent) == 24));
}

#[test]
fn damaged_copies_are_passed_over() {
    let mut job = Job::new::<3>(Path::new(SOURCE), 3, "lz4");
    job.start();
    let layout = job.layout(2);
    job.stage(&layout);
    // All data of the partition on its first keeper.
    let part = "part-00000.saker";
    let keepers: Vec<usize> = layout.keepers(0).collect();
    let path = job.agents[keepers[0]].dataset("linux@1").join(part);
    let file = fs::File::options().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    file.write_all_at(&vec![0x5a; (len / 2) as usize], 4096).unwrap();
    for agent in &job.agents {
        job.compare(agent);
    }
    assert!(job.agents[keepers[0]].counter("damaged_reads_total") > 10);
    let other = (0..3).find(|n| !keepers.contains(n)).unwrap();
    assert!(job.agents[other].counter("damaged_reads_total") > 10);
    assert_eq!(job.total("open_failures_total"), 0);
    // The origin's, too, and the second keeper's: the file cannot be read, and says so.
    let file = fs::File::options().write(true).open(job.packed.join(part)).unwrap();
    file.write_all_at(&vec![0x5a; (len / 2) as usize], 4096).unwrap();
    job.agents[keepers[1]].kill();
    let table = saker_dataset::Table::open(&job.packed.join("table.saker")).unwrap();
    let ino = (0..table.len())
        .find(|ino| {
            table.inode(*ino).data().is_some_and(|d| d.partition == 0 && d.offset < len / 4)
        })
        .unwrap();
    let mut local = Local::connect(&job.agents[other].config.dir).unwrap();
    assert_eq!(local.open("linux@1", ino).unwrap_err().raw_os_error(), Some(5));
    assert!(job.agents[other].log().contains("no copy can be read"));
}

#[test]
fn a_damaged_origin_or_neighbour_is_found_while_staging() {
    let source = tempfile::tempdir().unwrap();
    make_large(source.path(), 6, 1 << 20);
    let mut job = Job::new::<2>(source.path(), 1, "none");
    job.start();
    let layout = job.layout(2);
    job.agents[0].stage(&layout, 0).unwrap();
    until("the first is complete", || job.agents[0].is_complete());
    let flip = |path: &Path| {
        let file = fs::File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 100_000).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 100_000).unwrap();
    };
    // One bit, on the disk of the node before.
    flip(&job.agents[0].dataset("linux@1").join("part-00000.saker"));
    job.agents[1].stage(&layout, 1).unwrap();
    until("the second is complete", || job.agents[1].is_complete());
    assert!(job.agents[1].counter("damaged_reads_total") == 1, "found");
    assert!(job.agents[1].counter("origin_read_bytes_total") > 6 << 20, "from the origin then");
    job.compare(&job.agents[1]);
    // At the origin: nobody can help.
    flip(&job.packed.join("part-00000.saker"));
    let agent = &job.agents[1];
    agent.ask(Ask::Unstage(Named { dataset: "linux@1".into() })).unwrap();
    let alone = saker_dataset::Stage { nodes: vec![job.nodes[1].clone()], ..layout };
    agent.stage(&alone, 0).unwrap();
    until("it is said", || agent.status().datasets[0].error.contains("checksum"));
    assert!(!agent.is_complete());
    flip(&job.packed.join("part-00000.saker"));
    until("it is mended", || agent.is_complete());
}

#[test]
fn dead_nodes_are_passed_over_while_staging() {
    let mut job = Job::new::<4>(Path::new(SOURCE), 8, "none");
    // Nodes 0 and 2 never come: others depend on them for the table and for partitions.
    for n in [1, 3] {
        job.agents[n].start();
    }
    let layout = job.layout(4);
    for n in [1, 3] {
        job.agents[n].stage(&layout, n).unwrap();
    }
    until("those there are complete", || [1, 3].iter().all(|n| job.agents[*n].is_complete()));
    for n in [1, 3] {
        job.compare(&job.agents[n]);
    }
}

#[test]
fn broadcast_files_are_on_every_node() {
    let source = tempfile::tempdir().unwrap();
    make_large(source.path(), 40, 100_000);
    fs::create_dir(source.path().join("val/deep")).unwrap();
    fs::write(source.path().join("val/deep/empty"), "").unwrap();
    make_large(&source.path().join("val/large"), 2, 9 << 20);
    let mut job = Job::new::<4>(source.path(), 6, "lz4");
    job.start();
    let layout = saker_dataset::Stage { broadcast: vec!["val".into()], ..job.layout(1) };
    job.stage(&layout);
    let from_origin = job.total("origin_read_bytes_total");
    assert!(from_origin <= job.packed_bytes(), "{from_origin}");
    let files = job.files();
    for agent in &job.agents {
        let staged = Staged::open(&agent.dataset("linux@1")).unwrap();
        for (ino, path) in &files {
            let data = staged.table().inode(*ino).data().unwrap();
            let place = staged.local(*ino, &data);
            let is_broadcast = place.path.ends_with("broadcast.saker");
            assert_eq!(is_broadcast, path.starts_with(source.path().join("val")));
        }
    }
    // Without any peer and without the origin.
    fs::rename(&job.packed, job.temporary.path().join("away")).unwrap();
    let (one, others) = job.agents.split_at_mut(1);
    others.iter_mut().for_each(Agent::kill);
    let mut local = Local::connect(&one[0].config.dir).unwrap();
    for (ino, path) in files.iter().filter(|(_, p)| p.starts_with(source.path().join("val"))) {
        let fd = local.open("linux@1", *ino).unwrap();
        assert!(common::read(fd) == fs::read(path).unwrap(), "{}", path.display());
    }
    assert_eq!(one[0].counter("read_failures_total"), 0);
}

#[test]
fn a_version_does_not_change() {
    let mut job = Job::new::<1>(Path::new(SOURCE), 2, "none");
    job.start();
    let layout = job.layout(1);
    job.stage(&layout);
    let other = job.temporary.path().join("other");
    let manifest = pack_tree(Path::new("/usr/include/asm-generic"), &other, 2, "none");
    let changed = saker_dataset::Stage {
        digest: manifest.digest,
        table_digest: manifest.table_digest,
        origin: other.display().to_string(),
        ..layout.clone()
    };
    let error = job.agents[0].stage(&changed, 0).unwrap_err().to_string();
    assert!(error.contains("staged already") && error.contains(&manifest.digest.to_string()));
    job.compare(&job.agents[0]);
    // The same once more changes nothing; another name, and the name after it was removed, do.
    job.agents[0].stage(&layout, 0).unwrap();
    job.stage(&saker_dataset::Stage { name: "linux@2".into(), ..changed.clone() });
    assert_eq!(job.agents[0].status().datasets.len(), 2);
    job.agents[0].ask(Ask::Unstage(Named { dataset: "linux@1".into() })).unwrap();
    assert!(!job.agents[0].dataset("linux@1").exists());
    job.stage(&changed);
    for name in ["linux", "../x@1", ".@1"] {
        let wrong = saker_dataset::Stage { name: name.into(), ..layout.clone() };
        let error = job.agents[0].stage(&wrong, 0).unwrap_err().to_string();
        assert!(error.contains("no NAME@VERSION"), "{error}");
    }
}

#[test]
fn nodes_may_change() {
    let mut job = Job::new::<3>(Path::new(SOURCE), 6, "none");
    job.start();
    let all = job.layout(1);
    let two = saker_dataset::Stage { nodes: job.nodes[..2].to_vec(), ..all.clone() };
    for n in 0..2 {
        job.agents[n].stage(&two, n).unwrap();
    }
    until("two are complete", || job.agents[..2].iter().all(Agent::is_complete));
    job.stage(&all);
    job.agents.iter().for_each(|agent| assert!(job.compare(agent) > 0));
    // An agent that starts again has what it had, without its origin.
    fs::rename(&job.packed, job.temporary.path().join("away")).unwrap();
    for agent in &mut job.agents {
        agent.kill();
        agent.start();
        assert!(agent.is_complete());
    }
    fs::rename(job.temporary.path().join("away"), &job.packed).unwrap();
    job.agents.iter().for_each(|agent| assert!(job.compare(agent) > 0));
    assert_eq!(job.total("origin_reads_total"), 0);
}

#[test]
fn what_was_cut_on_the_disk_is_fetched_again() {
    let mut job = Job::new::<2>(Path::new(SOURCE), 4, "lz4");
    job.start();
    let layout = saker_dataset::Stage { broadcast: vec!["netfilter".into()], ..job.layout(1) };
    job.stage(&layout);
    let dir = job.agents[0].dataset("linux@1");
    for name in ["part-00000.saker", "table.saker", "broadcast.saker", "dataset.json"] {
        let path = dir.join(name);
        let whole = fs::read(&path).unwrap();
        for len in [0, whole.len() / 2, whole.len() - 2] {
            job.agents[0].kill();
            fs::write(&path, &whole[..len]).unwrap();
            job.agents[0].start();
            until(&format!("{name} is whole"), || job.agents[0].is_complete());
            assert!(fs::read(&path).unwrap() == whole, "{name}");
        }
    }
    assert!(job.compare(&job.agents[0]) > 100);
}

#[test]
fn a_missing_origin_is_named_and_waited_for() {
    let mut job = Job::new::<1>(Path::new(SOURCE), 2, "none");
    job.start();
    let away = job.temporary.path().join("away");
    fs::rename(&job.packed, &away).unwrap();
    let mut layout = {
        fs::rename(&away, &job.packed).unwrap();
        let layout = job.layout(1);
        fs::rename(&job.packed, &away).unwrap();
        layout
    };
    let agent = &job.agents[0];
    agent.stage(&layout, 0).unwrap();
    let packed = job.packed.display().to_string();
    until("it is said", || agent.status().datasets[0].error.contains(&packed));
    fs::rename(&away, &job.packed).unwrap();
    // Sent again: tried again at once.
    agent.stage(&layout, 0).unwrap();
    until("it is staged", || agent.is_complete());
    layout.name = "linux@2".into();
    layout.origin = "ftp://nowhere/x".into();
    agent.stage(&layout, 0).unwrap();
    until("it is said", || agent.status().datasets[1].error.contains("ftp://nowhere"));
}
