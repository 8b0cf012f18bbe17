#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn after_a_flush_that_fails_the_page_cache_has_what_the_disk_has_not() {
    let fails = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let armed = fails.clone();
    let script = move |op: &FileOp<'_>| match op.kind == OpKind::Sync
        && armed.swap(false, std::sync::atomic::Ordering::Relaxed)
    {
        true => Fault::Lose(libc::EIO),
        false => Fault::None,
    };
    let disk = MemDir::new();
    let dir = FaultDir::new(Arc::new(disk.clone()), Box::new(script));
    let file = dir.create("f").unwrap();
    dir.sync().unwrap();
    file.write_at(0, b"kept").unwrap();
    file.sync().unwrap();
    file.write_at(4, b"lost").unwrap();
    fails.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(file.sync().is_err());
    // It seems to be there, and the next flush lies.
    file.sync().unwrap();
    assert_eq!(read_all(&*file).unwrap(), b"keptlost");
    assert_eq!(read_all_durable(&*file).unwrap(), b"kept");
    assert!(!is_durable(&*file).unwrap() && !is_cached_as(&*file, b"kept").unwrap());
    file.write_at(8, b"more").unwrap();
    file.sync().unwrap();
    for seed in 0..4 {
        let file = disk.crash(seed).open("f").unwrap();
        assert_eq!(read_all(&*file).unwrap(), b"kept\0\0\0\0more");
    }
}

#[test]
fn memory_conforms() {
    conformance::run(&MemDir::new());
}

#[test]
fn real_conforms() {
    let path = std::env::temp_dir().join(format!("saker-fs-{}", std::process::id()));
    conformance::run(&RealDir::open(&path).unwrap());
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn a_wrapper_without_faults_conforms() {
    conformance::run(&FaultDir::new(Arc::new(MemDir::new()), Box::new(|_| Fault::None)));
}

#[test]
fn a_real_directory_is_locked_against_another_handle() {
    let path = std::env::temp_dir().join(format!("saker-lock-{}", std::process::id()));
    let first = RealDir::open(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "others cannot look into it");
    first.lock().unwrap();
    let second = RealDir::open(&path).unwrap();
    assert_eq!(second.lock().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(first);
    second.lock().unwrap();
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn what_was_synced_survives_every_crash() {
    let dir = MemDir::new();
    let file = dir.create("a").unwrap();
    file.write_at(0, &[1; 2000]).unwrap();
    file.sync().unwrap();
    dir.sub_dir("sub").unwrap().create("inner").unwrap();
    dir.sync().unwrap();
    for seed in 0..50 {
        let crashed = dir.crash(seed);
        assert_eq!(crashed.list().unwrap(), ["a", "sub"]);
        assert_eq!(read_all(&*crashed.open("a").unwrap()).unwrap(), [1; 2000]);
    }
}

#[test]
fn what_was_not_synced_survives_whole_torn_or_not_at_all() {
    let dir = MemDir::new();
    let file = dir.create("a").unwrap();
    file.write_at(0, &[1; 2048]).unwrap();
    file.sync().unwrap();
    dir.sync().unwrap();
    file.write_at(100, &[2; 1900]).unwrap();
    let (mut whole, mut none, mut torn) = (0, 0, 0);
    for seed in 0..100 {
        let data = read_all(&*dir.crash(seed).open("a").unwrap()).unwrap();
        assert_eq!(data, read_all(&*dir.crash(seed).open("a").unwrap()).unwrap());
        match data.iter().filter(|&&byte| byte == 2).count() {
            1900 => whole += 1,
            0 => none += 1,
            _ => torn += 1,
        }
        for sector in data.chunks(512).skip(1).take(2) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector was torn");
        }
    }
    assert!(whole > 10 && none > 10 && torn > 10, "{whole} {none} {torn}");
}

#[test]
fn names_that_were_not_synced_may_be_lost() {
    let dir = MemDir::new();
    dir.create("old").unwrap();
    dir.create("moved").unwrap();
    dir.sync().unwrap();
    dir.remove("old").unwrap();
    dir.rename("moved", "target").unwrap();
    dir.create("new").unwrap().sync().unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let names = dir.crash(seed).list().unwrap();
        let moved = names.iter().filter(|name| *name == "moved" || *name == "target").count();
        assert_eq!(moved, 1, "a rename is atomic");
        seen.insert(names);
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
    dir.sync().unwrap();
    assert_eq!(dir.crash(1).list().unwrap(), ["new", "target"]);
}

#[test]
fn a_script_fails_shortens_and_flips() {
    let memory = MemDir::new();
    let mut calls = 0;
    let script: Script = Box::new(move |op| {
        if op.kind == OpKind::Write {
            calls += 1;
        }
        match (op.kind, calls) {
            (OpKind::Write, 1) => Fault::Fail(libc::ENOSPC),
            (OpKind::Write, 2) => Fault::Short(2, libc::EIO),
            (OpKind::Write, 3) => Fault::FlipBit(0),
            (OpKind::Sync, 3) => Fault::FailAfter(libc::EIO),
            _ => Fault::None,
        }
    });
    let dir = FaultDir::new(Arc::new(memory.clone()), script);
    let file = dir.create("a").unwrap();
    assert_eq!(file.write_at(0, b"xxxx").unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(file.len().unwrap(), 0);
    assert_eq!(file.append(b"abcd").unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(read_all(&*file).unwrap(), b"ab");
    file.write_at(0, b"abcd").unwrap();
    assert_eq!(read_all(&*file).unwrap(), b"`bcd");
    file.sync().unwrap_err();
    dir.sync().unwrap();
    assert_eq!(read_all(&*memory.crash(0).open("a").unwrap()).unwrap(), b"`bcd");
}

#[test]
fn a_process_that_died_does_nothing_more() {
    let memory = MemDir::new();
    let dir = FaultDir::new(Arc::new(memory.clone()), fail_from(1));
    let file = dir.create("a").unwrap();
    file.write_at(0, b"last").unwrap_err();
    file.write_at(0, b"late").unwrap_err();
    dir.open("a").err().unwrap();
    assert_eq!(read_all(&*memory.open("a").unwrap()).unwrap(), b"last");
}

/// Makes the kernel forget 64 KiB of a file. By advice: what somebody holds for a moment stays.
fn drop_pages(file: &dyn File, same: &std::fs::File) {
    let start = std::time::Instant::now();
    // To try to read would begin to read ahead.
    let held = |page: u64| file.is_cached(page * 4096, 1).unwrap_or(false);
    loop {
        rustix::fs::fadvise(same, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if !(0..16).any(held) {
            return;
        }
        // Real time: pages may be kept for a moment.
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "the kernel keeps pages");
        std::thread::yield_now();
    }
}

#[test]
fn what_is_on_the_disk_only_is_not_waited_for() {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let path = tempfile::tempdir().unwrap();
    let file = RealDir::open(path.path()).unwrap().create("a").unwrap();
    file.write_at(0, &[7; 1 << 16]).unwrap();
    file.sync().unwrap();
    let mut buf = [0; 100];
    assert_eq!(file.read_cached(5000, &mut buf).unwrap(), Some(100));
    let same = std::fs::File::open(path.path().join("a")).unwrap();
    let in_memory = rustix::fs::fstatfs(&same).unwrap().f_type == TMPFS_MAGIC;
    if !in_memory {
        drop_pages(&*file, &same);
    }
    let says = |said: Option<bool>, cached| assert!(said.is_none_or(|said| said == cached));
    says(file.is_cached(5000, 20_000), in_memory);
    if in_memory {
        assert_eq!(file.read_cached(5000, &mut buf).unwrap(), Some(100));
    } else {
        // The kernel begins to read it, and now and then has it before it looks.
        let start = std::time::Instant::now();
        while file.read_cached(5000, &mut buf).unwrap().is_some() {
            assert!(start.elapsed() < std::time::Duration::from_secs(10), "it is waited for");
            std::thread::sleep(std::time::Duration::from_millis(1));
            drop_pages(&*file, &same);
        }
    }
    assert_eq!(file.read_at(5000, &mut buf).unwrap(), 100);
    assert_eq!(file.read_cached(5000, &mut buf).unwrap(), Some(100));
    assert_eq!(buf, [7; 100]);
    file.expect_random_reads();
    if !in_memory {
        drop_pages(&*file, &same);
    }
    file.read_at(8192, &mut [0; 8192]).unwrap();
    says(file.is_cached(8192, 8192), true);
    says(file.is_cached(9000, 1), true);
    says(file.is_cached(8192, 1 << 15), in_memory);
}
