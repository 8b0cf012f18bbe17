#![allow(clippy::unwrap_used)]

use std::sync::mpsc;

use saker_runtime::fs::{Fault, FaultDir, FileOp, MemDir, OpKind, RealDir, fail_from, read_all};
use saker_types::Errno;

use super::*;

const CONFIG: JournalConfig = JournalConfig { uuid: [7; 16], shard: 3, segment_bytes: 4096 };

type Log = Vec<(Lsn, JournalRecordKind, Vec<u8>)>;

fn open_from(dir: &MemDir, from: Option<SegmentNo>) -> Result<(Journal, Log)> {
    let mut log = Vec::new();
    let from = from.map_or(ReplayFrom::Oldest, ReplayFrom::Segment);
    let journal = Journal::open(Arc::new(dir.clone()), CONFIG, from, &mut |lsn, kind, payload| {
        log.push((lsn, kind, payload.to_vec()));
        Ok(())
    })?;
    Ok((journal, log))
}

fn open(dir: &MemDir) -> (Journal, Log) {
    open_from(dir, None).unwrap()
}

fn payloads(log: &Log) -> Vec<&[u8]> {
    log.iter().map(|(_, _, payload)| &payload[..]).collect()
}

/// Overwrites bytes of a file, durably.
fn damage(dir: &MemDir, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let file = dir.open(name).unwrap();
    let mut data = read_all(&*file).unwrap();
    change(&mut data);
    file.truncate(0).unwrap();
    file.write_at(0, &data).unwrap();
    file.sync().unwrap();
}

#[test]
fn what_is_flushed_is_replayed_with_its_lsn_and_kind() {
    let dir = MemDir::new();
    let (mut journal, log) = open(&dir);
    assert_eq!((log.len(), journal.appended(), journal.durable()), (0, 0, 0));
    let first = journal.append(JournalRecordKind::Changes, b"first");
    let empty = journal.append(JournalRecordKind::Snapshot, b"");
    assert_eq!((journal.appended(), journal.durable()), (empty, 0));
    journal.flush().unwrap();
    assert_eq!(journal.durable(), empty);
    let third =
        journal.append_with(JournalRecordKind::Changes, |out| out.extend_from_slice(b"third"));
    journal.flush().unwrap();
    journal.append(JournalRecordKind::Changes, b"never flushed");
    drop(journal);

    let (journal, log) = open(&dir);
    let expected = [
        (first, JournalRecordKind::Changes, b"first".to_vec()),
        (empty, JournalRecordKind::Snapshot, b"".to_vec()),
        (third, JournalRecordKind::Changes, b"third".to_vec()),
    ];
    assert_eq!(log, expected);
    assert_eq!((journal.appended(), journal.durable()), (third, third));
}

/// The kernel takes pages that a disk did not take for clean: who is killed then, and replays them,
/// would go on from what a loss of power takes away.
#[test]
fn what_a_failed_flush_has_left_in_the_page_cache_is_not_replayed() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (dir, fails) = (MemDir::new(), Arc::new(AtomicBool::new(false)));
    let armed = fails.clone();
    let script = move |op: &FileOp<'_>| match op.kind {
        OpKind::Sync if armed.swap(false, Ordering::Relaxed) => Fault::Lose(Errno::EIO.0.into()),
        _ => Fault::None,
    };
    let failing = FaultDir::new(Arc::new(dir.clone()), Box::new(script));
    let oldest = ReplayFrom::Oldest;
    let mut journal =
        Journal::open(Arc::new(failing), CONFIG, oldest, &mut |_, _, _| Ok(())).unwrap();
    journal.append(JournalRecordKind::Changes, b"kept");
    journal.flush().unwrap();
    journal.append(JournalRecordKind::Changes, b"lost, and longer than the next");
    fails.store(true, Ordering::Relaxed);
    assert!(matches!(journal.flush(), Err(JournalError::Io { .. })));
    drop(journal);
    let (mut journal, log) = open(&dir);
    assert_eq!(payloads(&log), [b"kept"]);
    journal.append(JournalRecordKind::Changes, b"next");
    journal.flush().unwrap();
    drop(journal);
    for seed in 0..4 {
        let (_, log) = open(&dir.crash(seed));
        assert_eq!(payloads(&log), [b"kept", b"next"]);
    }
    assert_eq!(payloads(&open(&dir).1), [b"kept", b"next"]);
}

#[test]
fn a_flush_larger_than_the_segment_extends_it() {
    let dir = MemDir::new();
    let (mut journal, _) = open(&dir);
    for round in 0..5u8 {
        journal.append(JournalRecordKind::Changes, &vec![round; 10_000]);
        journal.flush().unwrap();
    }
    let (_, log) = open(&dir);
    assert_eq!(log.len(), 5);
    assert!(log.iter().zip(0u8..).all(|((_, _, p), round)| *p == vec![round; 10_000]));
}

#[test]
fn the_flusher_writes_while_more_is_appended() {
    let dir = MemDir::new();
    let (mut journal, _) = open(&dir);
    assert!(!journal.flush_begin(|| panic!("nothing to flush")).unwrap());
    let mut acknowledged = 0;
    for round in 0u64..200 {
        let lsn = journal.append(JournalRecordKind::Changes, &round.to_le_bytes());
        let (sender, notified) = mpsc::channel();
        assert!(journal.flush_begin(move || sender.send(()).unwrap()).unwrap());
        assert!(journal.flushing());
        journal.append(JournalRecordKind::Changes, b"meanwhile");
        assert!(!journal.flush_begin(|| panic!("already flushing")).unwrap());
        notified.recv().unwrap();
        journal.flush_finish().unwrap();
        assert_eq!(journal.durable(), lsn);
        if round % 3 == 0 {
            journal.flush().unwrap();
        }
        acknowledged = journal.durable();
    }
    assert_eq!(dir.list().unwrap(), ["wal-0000000000000000"]);
    let (_, log) = open(&dir.crash(1));
    assert_eq!(log.last().unwrap().0, acknowledged);
    // A flush inline takes what the flusher has first.
    journal.append(JournalRecordKind::Changes, b"a");
    journal.flush_begin(|| ()).unwrap();
    let last = journal.append(JournalRecordKind::Changes, b"b");
    journal.flush().unwrap();
    assert_eq!((journal.durable(), journal.flushing()), (last, false));
}

#[test]
fn rotation_and_trimming_keep_the_log_whole() {
    let dir = MemDir::new();
    let (mut journal, _) = open(&dir);
    for round in 0..6 {
        journal.append(JournalRecordKind::Changes, format!("before {round}").as_bytes());
        let segment = journal.rotate(format!("snapshot {round}").as_bytes()).unwrap();
        assert_eq!((segment, journal.segment()), (round + 1, round + 1));
        assert_eq!(journal.appended(), journal.durable());
        if round == 3 {
            let (_, log) = open(&dir);
            assert_eq!(log.len(), 8);
            journal.trim(3).unwrap();
            journal.trim(2).unwrap();
        }
    }
    journal.append(JournalRecordKind::Changes, b"after");
    journal.flush().unwrap();

    let (_, log) = open_from(&dir, Some(5)).unwrap();
    assert_eq!(payloads(&log), [&b"snapshot 4"[..], b"before 5", b"snapshot 5", b"after"]);
    assert_eq!(log[0].1, JournalRecordKind::Snapshot);
    let names: Vec<String> = (5..=6).map(segment_name).collect();
    assert_eq!(dir.list().unwrap(), names, "open drops what replay does not need");
}

#[test]
fn a_trimmed_segment_is_recycled_and_its_old_records_stay_dead() {
    let dir = MemDir::new();
    let (mut journal, _) = open(&dir);
    for round in 0..20u8 {
        // The same lengths in every segment, so that stale records lie where new ones end.
        for _ in 0..5 {
            journal.append(JournalRecordKind::Changes, &[round; 50]);
            journal.flush().unwrap();
        }
        let segment = journal.rotate(&[round; 50]).unwrap();
        journal.trim(segment).unwrap();
        let (_, log) = open_from(&dir.crash(u64::from(round)), Some(segment)).unwrap();
        assert_eq!(payloads(&log), [&[round; 50][..]]);
    }
    assert_eq!(dir.list().unwrap().len(), 2, "the current one and one to recycle");
}

#[test]
fn zeros_are_written_ahead_once() {
    let (writes, written) = mpsc::channel();
    let script = move |op: &FileOp<'_>| {
        if op.kind == OpKind::Write {
            writes.send((op.offset, op.len)).unwrap();
        }
        Fault::None
    };
    let dir: Arc<dyn Dir> = Arc::new(FaultDir::new(Arc::new(MemDir::new()), Box::new(script)));
    let config = JournalConfig { segment_bytes: 1 << 20, ..CONFIG };
    let mut journal =
        Journal::open(dir, config, ReplayFrom::Oldest, &mut |_, _, _| Ok(())).unwrap();
    let flushed = |journal: &mut Journal| -> Vec<(u64, u64)> {
        // What the making of a segment wrote.
        written.try_iter().for_each(drop);
        journal.append(JournalRecordKind::Changes, &[7; 200_000]);
        journal.flush().unwrap();
        written.try_iter().collect()
    };
    let header = SEGMENT_HEADER_BYTES as u64;
    let record = 200_000 + format::RECORD_HEADER_BYTES as u64;
    let end = |n: u64| header + n * record;
    assert_eq!(flushed(&mut journal), [(header, record), (end(1), ZEROS_AHEAD)]);
    assert_eq!(flushed(&mut journal), [(end(1), record)]);
    assert_eq!(flushed(&mut journal), [(end(2), record), (end(3), ZEROS_AHEAD)]);
    assert_eq!(flushed(&mut journal), [(end(3), record)]);
    let to_the_end = (end(5), (1 << 20) - end(5));
    assert_eq!(flushed(&mut journal), [(end(4), record), to_the_end]);
    // Another segment, and then one in the blocks of the first.
    let second = journal.rotate(b"").unwrap();
    journal.trim(second).unwrap();
    assert_eq!(flushed(&mut journal).len(), 2);
    journal.rotate(b"").unwrap();
    assert_eq!((0..5).map(|_| flushed(&mut journal).len()).sum::<usize>(), 5);
}

/// What the process that writes the log knows when it dies.
#[derive(Default)]
struct Story {
    appended: Vec<(Lsn, Vec<u8>)>,
    acknowledged: Lsn,
    /// Where a replay may start.
    trimmed_to: SegmentNo,
}

/// A script of everything a journal does. Stops at the first error.
fn write_story(dir: Arc<dyn Dir>, story: &mut Story) -> Result<()> {
    let mut journal = Journal::open(dir, CONFIG, ReplayFrom::Oldest, &mut |_, _, _| Ok(()))?;
    for round in 0u32..20 {
        for part in 0..=round % 3 {
            let payload = vec![(round * 8 + part) as u8; 200 + 400 * part as usize];
            story.appended.push((journal.append(JournalRecordKind::Changes, &payload), payload));
            if round % 5 < 3 {
                journal.write()?;
                assert_eq!(journal.written(), journal.appended());
            }
        }
        if round % 2 == 0 {
            journal.flush_begin(|| ())?;
            journal.flush_finish()?;
        } else {
            journal.flush()?;
        }
        story.acknowledged = journal.durable();
        if round % 4 == 3 {
            let snapshot = vec![round as u8; 700];
            // Both before the call: it may take effect and still fail.
            let lsn = journal.appended() + (format::RECORD_HEADER_BYTES + snapshot.len()) as u64;
            story.appended.push((lsn, snapshot.clone()));
            let segment = journal.rotate(&snapshot)?;
            story.acknowledged = journal.durable();
            if round > 4 {
                story.trimmed_to = segment - 1;
                journal.trim(segment - 1)?;
            }
        }
    }
    Ok(())
}

/// The log must be a run of what was appended, without a hole, up to at least what was
/// acknowledged.
fn check_replay(story: &Story, log: &Log, context: &str) {
    let replayed: Vec<(Lsn, &[u8])> = log.iter().map(|(l, _, p)| (*l, &p[..])).collect();
    let appended: Vec<(Lsn, &[u8])> = story.appended.iter().map(|(l, p)| (*l, &p[..])).collect();
    let start = replayed.first().map_or(0, |first| {
        appended.iter().position(|record| record == first).unwrap_or_else(|| panic!("{context}"))
    });
    assert_eq!(replayed, appended[start..start + replayed.len()], "{context}");
    let end = replayed.last().map_or(0, |record| record.0);
    assert!(end >= story.acknowledged, "{context}: {end} < {}", story.acknowledged);
}

#[test]
fn a_crash_at_any_point_loses_nothing_acknowledged() {
    let (mut points, mut torn_tails) = (0, 0);
    for point in 0.. {
        let disk = MemDir::new();
        let mut story = Story::default();
        let faulty = FaultDir::new(Arc::new(disk.clone()), fail_from(point));
        if write_story(Arc::new(faulty), &mut story).is_ok() {
            break;
        }
        points += 1;
        for seed in 0..12 {
            let context = format!("crash at {point}, seed {seed}");
            let crashed = disk.crash(seed);
            let (mut journal, log) = open(&crashed);
            check_replay(&story, &log, &context);
            torn_tails +=
                usize::from(journal.appended() < story.appended.last().map_or(0, |r| r.0));
            let from = (story.acknowledged > 0).then_some(story.trimmed_to);
            let (_, log) = open_from(&crashed, from).unwrap();
            check_replay(&story, &log, &context);

            // What a torn flush left must not come back under what is written next.
            let before = log.len();
            journal.append(JournalRecordKind::Changes, &[0xee; 21]);
            journal.flush().unwrap();
            let (_, log) = open(&crashed.crash(seed));
            assert_eq!(log.len(), before + 1, "{context}");
            assert_eq!(log[before].2, [0xee; 21], "{context}");
        }
    }
    assert!(points > 70, "{points}");
    assert!(torn_tails > 100, "{torn_tails}");
}

#[test]
fn a_killed_process_loses_nothing_it_wrote() {
    // Killed between write and sync: the page cache has the record, open replays it, so open
    // must make it durable.
    let disk = MemDir::new();
    drop(open(&disk));
    let faulty = FaultDir::new(Arc::new(disk.clone()), fail_from(1));
    let mut journal =
        Journal::open(Arc::new(faulty), CONFIG, ReplayFrom::Oldest, &mut |_, _, _| Ok(()));
    if let Ok(journal) = &mut journal {
        journal.append(JournalRecordKind::Changes, b"written");
        journal.flush().unwrap_err();
    }
    let (_, log) = open(&disk);
    for seed in 0..20 {
        assert_eq!(open(&disk.crash(seed)).1, log);
    }
}

#[test]
fn what_is_in_the_page_cache_survives_a_kill_and_is_flushed_from_there() {
    for seed in 0..20 {
        let disk = MemDir::new();
        let (mut journal, _) = open(&disk);
        let append = |journal: &mut Journal, what: &[u8]| {
            journal.append(JournalRecordKind::Changes, what);
        };
        append(&mut journal, b"flushed");
        journal.flush().unwrap();
        append(&mut journal, b"written");
        assert!(journal.written() < journal.appended());
        journal.write().unwrap();
        assert_eq!(journal.written(), journal.appended());
        assert!(journal.durable() < journal.written());
        append(&mut journal, b"not even that");
        // As the process leaves it, and as its machine does.
        let all = [&b"flushed"[..], b"written"];
        let lost_power = disk.crash(seed);
        let (_, log) = open(&lost_power);
        assert!([&all[..1], &all[..]].contains(&&payloads(&log)[..]), "{log:?}");
        // A sync is under way: what is appended meanwhile is written all the same.
        assert!(journal.flush_begin(|| ()).unwrap());
        append(&mut journal, b"meanwhile");
        journal.write().unwrap();
        assert_eq!(journal.written(), journal.appended());
        journal.flush_finish().unwrap();
        assert!(journal.durable() < journal.written());
        append(&mut journal, b"the rest");
        journal.flush().unwrap();
        assert_eq!(journal.durable(), journal.appended());
        // From here on past the page cache again, in the same block.
        append(&mut journal, b"the end");
        journal.flush().unwrap();
        let all: [&[u8]; 6] =
            [b"flushed", b"written", b"not even that", b"meanwhile", b"the rest", b"the end"];
        let (_, log) = open(&disk.crash(seed));
        assert_eq!(payloads(&log), all);
        drop(journal);
        assert_eq!(payloads(&open(&disk).1), all);
    }
}

/// The two would write the same block.
#[test]
fn nothing_is_written_to_the_page_cache_during_a_flush_past_it() {
    let (mut journal, _) = open(&MemDir::new());
    journal.append(JournalRecordKind::Changes, b"first");
    journal.flush_begin(|| ()).unwrap();
    journal.append(JournalRecordKind::Changes, b"second");
    journal.write().unwrap();
    assert!(journal.written() < journal.appended());
    journal.flush_finish().unwrap();
    journal.write().unwrap();
    assert_eq!(journal.written(), journal.appended());
}

#[test]
fn a_failed_flush_poisons_the_journal() {
    for background in [false, true] {
        for kind in [OpKind::Write, OpKind::Sync] {
            let disk = MemDir::new();
            drop(open(&disk));
            let mut armed = false;
            let script = move |op: &FileOp<'_>| {
                armed |= op.kind == OpKind::Write;
                match armed && op.kind == kind {
                    true => Fault::Fail(libc_enospc()),
                    false => Fault::None,
                }
            };
            let faulty = Arc::new(FaultDir::new(Arc::new(disk.clone()), Box::new(script)));
            let mut journal =
                Journal::open(faulty, CONFIG, ReplayFrom::Oldest, &mut |_, _, _| Ok(())).unwrap();
            journal.append(JournalRecordKind::Changes, b"lost");
            if background {
                journal.flush_begin(|| ()).unwrap();
            }
            let error = journal.flush().unwrap_err();
            let JournalError::Io { source, .. } = &error else { panic!("{error}") };
            assert_eq!(source.raw_os_error(), Some(libc_enospc()));
            let appended = journal.append(JournalRecordKind::Changes, b"more");
            assert!(appended > journal.durable());
            assert!(matches!(journal.flush(), Err(JournalError::Poisoned { .. })));
            assert!(matches!(journal.flush_begin(|| ()), Err(JournalError::Poisoned { .. })));
            assert!(matches!(journal.rotate(b""), Err(JournalError::Poisoned { .. })));
            assert!(matches!(journal.trim(9), Err(JournalError::Poisoned { .. })));
            assert_eq!(journal.durable(), 0);
        }
    }
}

fn libc_enospc() -> i32 {
    28
}

#[test]
fn a_flipped_bit_is_found_and_named() {
    let dir = MemDir::new();
    let (mut journal, _) = open(&dir);
    let mut ends = Vec::new();
    for round in 0..4u8 {
        ends.push(journal.append(JournalRecordKind::Changes, &[round; 40]));
        journal.flush().unwrap();
    }
    journal.rotate(b"snapshot").unwrap();
    let first = segment_name(0);
    let used = SEGMENT_HEADER_BYTES + ends[3] as usize;
    for bit in (0..used * 8).step_by(5) {
        let flipped = dir.crash(0);
        damage(&flipped, &first, |data| data[bit / 8] ^= 1 << (bit % 8));
        let error = open_from(&flipped, Some(0)).err().unwrap();
        let message = error.to_string();
        assert!(message.contains(&first), "{message}");
        match error {
            JournalError::Corrupt { offset, .. } if bit / 8 >= SEGMENT_HEADER_BYTES => {
                let start = offset as usize;
                assert!(start <= bit / 8 && bit / 8 < start + 61, "bit {bit}: offset {offset}");
            }
            JournalError::Corrupt { offset: 0, .. }
            | JournalError::NotSaker { .. }
            | JournalError::NewerFormat { .. }
                if bit / 8 < SEGMENT_HEADER_BYTES => {}
            error => panic!("bit {bit}: {error}"),
        }
    }
}

#[test]
fn a_segment_without_its_snapshot_is_no_empty_tail() {
    for from in [None, Some(1)] {
        let dir = MemDir::new();
        let (mut journal, _) = open(&dir);
        journal.append(JournalRecordKind::Changes, b"before");
        journal.flush().unwrap();
        journal.rotate(b"all that was before").unwrap();
        damage(&dir, &segment_name(1), |data| data[SEGMENT_HEADER_BYTES + 30] ^= 1);
        let error = open_from(&dir, from).err().unwrap();
        let at = SEGMENT_HEADER_BYTES as u64;
        assert!(matches!(error, JournalError::Corrupt { offset, .. } if offset == at), "{error}");
    }
}

#[test]
fn who_has_no_table_needs_all_segments() {
    let opens = |dir: &MemDir| {
        let opened =
            Journal::open(Arc::new(dir.clone()), CONFIG, ReplayFrom::Start, &mut |_, _, _| Ok(()));
        opened.map(drop)
    };
    let dir = MemDir::new();
    opens(&dir).unwrap();
    let (mut journal, _) = open(&dir);
    journal.rotate(b"").unwrap();
    opens(&dir.crash(0)).unwrap();
    journal.rotate(b"").unwrap();
    let trimmed = dir.crash(0);
    trimmed.remove(&segment_name(0)).unwrap();
    let error = opens(&trimmed).err().unwrap();
    assert!(matches!(error, JournalError::MissingSegment { segment: 0, .. }), "{error}");
    assert!(open_from(&trimmed, None).is_ok(), "their snapshots have all");
}

#[test]
fn in_the_last_segment_too_damage_before_a_later_flush_is_no_torn_tail() {
    let dir = MemDir::new();
    let (mut journal, _) = open(&dir);
    journal.append(JournalRecordKind::Changes, &[1; 40]);
    journal.flush().unwrap();
    journal.append(JournalRecordKind::Changes, &[2; 40]);
    journal.append(JournalRecordKind::Changes, &[3; 40]);
    journal.flush().unwrap();
    let at = SEGMENT_HEADER_BYTES + 30;
    let flipped = dir.crash(0);
    damage(&flipped, &segment_name(0), |data| data[at] ^= 1);
    let error = open_from(&flipped, None).err().unwrap();
    assert!(matches!(error, JournalError::Corrupt { offset: 128, .. }), "{error}");

    // A hole in the last flush is what a torn write leaves: cut, and what follows it is erased.
    damage(&dir, &segment_name(0), |data| data[at + 61] ^= 1);
    let (journal, log) = open(&dir);
    assert_eq!(payloads(&log), [&[1; 40][..]]);
    assert_eq!(journal.durable(), 61);
    let data = read_all(&*dir.open(&segment_name(0)).unwrap()).unwrap();
    assert!(data[SEGMENT_HEADER_BYTES + 61..].iter().all(|&byte| byte == 0));
}

#[test]
fn foreign_and_newer_files_are_refused_by_name() {
    let dir = MemDir::new();
    drop(open(&dir));
    let name = segment_name(0);
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let dir = dir.crash(0);
        damage(&dir, &name, change);
        open_from(&dir, None).err().unwrap()
    };
    let error = refused(&|data| data[8] = 2);
    assert!(matches!(error, JournalError::NewerFormat { version: 2, features: 0, .. }), "{error}");
    assert!(error.to_string().contains("newer"), "{error}");
    let error = refused(&|data| data[16] = 1);
    assert!(matches!(error, JournalError::NewerFormat { version: 1, .. }), "{error}");
    let error = refused(&|data| data[20] = 1);
    assert!(matches!(error, JournalError::NewerFormat { features: 1, .. }), "{error}");
    let error = refused(&|data| data[0] = b'X');
    assert!(matches!(error, JournalError::NotSaker { .. }), "{error}");
    let error = refused(&|data| data.truncate(3));
    assert!(matches!(error, JournalError::NotSaker { .. }), "{error}");
    let error = refused(&|data| data.truncate(60));
    assert!(matches!(error, JournalError::Corrupt { offset: 0, .. }), "{error}");

    // A compatible feature that this code does not know is no reason to refuse.
    let newer = dir.crash(0);
    damage(&newer, &name, |data| {
        data[12] = 1;
        let crc = crc32c::crc32c(&data[..SEGMENT_HEADER_BYTES - 4]);
        data[SEGMENT_HEADER_BYTES - 4..SEGMENT_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    });
    open(&newer);
}

#[test]
fn a_log_of_another_cluster_shard_or_place_is_refused() {
    let dir = MemDir::new();
    let (mut journal, _) = open(&dir);
    journal.rotate(b"").unwrap();
    let open_as = |config| {
        let opened =
            Journal::open(Arc::new(dir.clone()), config, ReplayFrom::Oldest, &mut |_, _, _| Ok(()));
        opened.err().unwrap().to_string()
    };
    let error = open_as(JournalConfig { uuid: [8; 16], ..CONFIG });
    assert!(error.contains("another cluster"), "{error}");
    let error = open_as(JournalConfig { shard: 4, ..CONFIG });
    assert!(error.contains("another shard"), "{error}");
    dir.rename(&segment_name(1), &segment_name(2)).unwrap();
    let error = open_from(&dir, Some(0)).err().unwrap();
    assert!(matches!(error, JournalError::MissingSegment { segment: 1, .. }), "{error}");
    let error = open_from(&dir, Some(2)).err().unwrap();
    assert!(matches!(error, JournalError::Misplaced { .. }), "{error}");
    let error = open_from(&dir, Some(3)).err().unwrap();
    assert!(matches!(error, JournalError::MissingSegment { segment: 3, .. }), "{error}");
    let error = open_from(&MemDir::new(), Some(0)).err().unwrap();
    assert!(matches!(error, JournalError::MissingSegment { segment: 0, .. }), "{error}");
}

#[test]
fn a_record_the_caller_cannot_apply_stops_the_open() {
    let dir = MemDir::new();
    let (mut journal, _) = open(&dir);
    journal.append(JournalRecordKind::Changes, b"bad");
    journal.flush().unwrap();
    let opened =
        Journal::open(Arc::new(dir), CONFIG, ReplayFrom::Oldest, &mut |_, _, _| Err("why".into()));
    let error = opened.err().unwrap();
    assert!(matches!(error, JournalError::Replay { offset: 128, .. }), "{error}");
}

#[test]
fn no_bytes_make_the_decoders_panic() {
    let mut data = Vec::new();
    let lsn = encode_record(&mut data, 100, 4, JournalRecordKind::Changes, |out| {
        out.extend_from_slice(&[9; 64])
    });
    assert_eq!(lsn, 100 + data.len() as u64);
    assert!(format::decode_record(&data, 100).is_some());
    assert!(format::decode_record(&data, 101).is_none());
    for len in 0..data.len() {
        assert!(format::decode_record(&data[..len], 100).is_none());
    }
    for bit in 0..data.len() * 8 {
        data[bit / 8] ^= 1 << (bit % 8);
        assert!(format::decode_record(&data, 100).is_none(), "bit {bit}");
        data[bit / 8] ^= 1 << (bit % 8);
    }
    let mut state = 1u32;
    for len in 0..2000 {
        let noise: Vec<u8> = (0..len % 200)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        assert!(format::decode_record(&noise, 0).is_none());
        assert!(JournalSegmentHeader::decode(&noise, "noise").is_err());
    }
}

#[test]
fn the_same_on_real_files() {
    let path = std::env::temp_dir().join(format!("saker-journal-{}", std::process::id()));
    let open = |from, log: &mut Log| {
        let dir = Arc::new(RealDir::open(&path).unwrap());
        Journal::open(dir, CONFIG, from, &mut |lsn, kind, payload| {
            log.push((lsn, kind, payload.to_vec()));
            Ok(())
        })
    };
    let mut journal = open(ReplayFrom::Oldest, &mut Vec::new()).unwrap();
    assert!(matches!(
        open(ReplayFrom::Oldest, &mut Vec::new()),
        Err(JournalError::Io { action: "lock", .. })
    ));
    for round in 0..10u8 {
        journal.append(JournalRecordKind::Changes, &[round; 3000]);
        journal.flush().unwrap();
        if round % 3 == 2 {
            let segment = journal.rotate(&[round; 5000]).unwrap();
            journal.trim(segment).unwrap();
        }
    }
    drop(journal);
    let mut log = Vec::new();
    open(ReplayFrom::Segment(3), &mut log).unwrap();
    assert_eq!(payloads(&log), [&[8; 5000][..], &[9; 3000][..]]);
    // Each life goes on in the middle of a block that it has not written itself.
    for (life, len) in (0u8..).zip([1, 1000, 4096, 7, 9000, 0]) {
        let mut journal = open(ReplayFrom::Segment(3), &mut Vec::new()).unwrap();
        journal.append(JournalRecordKind::Changes, &vec![life; len]);
        journal.flush().unwrap();
        journal.append(JournalRecordKind::Changes, &vec![life; 2 * len]);
        journal.write().unwrap();
        journal.append(JournalRecordKind::Changes, &vec![life; len]);
        if life % 2 == 0 {
            journal.flush().unwrap();
            journal.append(JournalRecordKind::Changes, &vec![life; len]);
            journal.flush().unwrap();
        }
        journal.append(JournalRecordKind::Changes, b"killed");
        journal.write().unwrap();
        drop(journal);
        let mut log = Vec::new();
        open(ReplayFrom::Segment(3), &mut log).unwrap();
        let len = vec![life; len];
        let long = [&len[..], &len].concat();
        let mut expected: Vec<&[u8]> = vec![&len, &long, &len, b"killed"];
        if life % 2 == 0 {
            expected.insert(3, &len);
        }
        assert!(payloads(&log).ends_with(&expected), "life {life}");
    }
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn a_snapshot_in_pieces_is_read_again_in_order_and_goes_on() {
    let dir = MemDir::new();
    let (mut journal, _) = open(&dir);
    journal.append(JournalRecordKind::Changes, b"before");
    let pieces = [&b"one"[..], b"two", &[3; 9000]];
    assert_eq!(journal.rotate_in_pieces(pieces).unwrap(), 1);
    assert_eq!(journal.appended(), journal.durable());
    journal.append(JournalRecordKind::Changes, b"after");
    journal.flush().unwrap();
    let (_, log) = open_from(&dir.crash(0), Some(1)).unwrap();
    let found: Vec<(JournalRecordKind, usize)> =
        log.iter().map(|(_, kind, data)| (*kind, data.len())).collect();
    let changes = |len| (JournalRecordKind::Changes, len);
    assert_eq!(found, [(JournalRecordKind::Snapshot, 3), changes(3), changes(9000), changes(5)]);
    // A piece that is damaged is no torn tail.
    let flipped = dir.crash(0);
    damage(&flipped, &segment_name(1), |data| data[SEGMENT_HEADER_BYTES + 5000] ^= 1);
    assert!(matches!(open_from(&flipped, Some(1)).err(), Some(JournalError::Corrupt { .. })));
}
