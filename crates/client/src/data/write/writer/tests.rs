#![allow(clippy::unwrap_used)]
use super::*;
use saker_rpc::Sleep;

fn put_fully(writer: &mut Writer, mut offset: u64, mut data: &[u8], max: usize) {
    while !data.is_empty() {
        let taken = writer.put(offset, data, max);
        offset += taken as u64;
        data = &data[taken..];
    }
}

fn queued(writer: &Writer) -> Vec<(u64, Vec<u8>)> {
    writer.queue.iter().map(|p| (p.offset, p.data.to_vec())).collect()
}

#[test]
fn adjacent_writes_become_one_piece() {
    let mut writer = Writer::default();
    for i in 0..5u8 {
        put_fully(&mut writer, u64::from(i) * 2, &[i, i], 8);
    }
    assert_eq!(queued(&writer), [(0, vec![0, 0, 1, 1, 2, 2, 3, 3])]);
    assert_eq!(writer.range(), Some(0..10));
    writer.seal();
    assert_eq!(queued(&writer)[1], (8, vec![4, 4]));
}

#[test]
fn a_write_into_the_buffer_changes_it_and_others_queue_it() {
    let mut writer = Writer::default();
    put_fully(&mut writer, 10, b"abcdef", 100);
    put_fully(&mut writer, 12, b"XY", 100);
    put_fully(&mut writer, 14, b"12345", 100);
    put_fully(&mut writer, 90, b"z", 100);
    writer.seal();
    let expected = vec![(10, b"abXYef".to_vec()), (14, b"12345".to_vec()), (90, b"z".to_vec())];
    assert_eq!(queued(&writer), expected, "in the order of the writes");
}

#[test]
fn pieces_end_at_chunks() {
    let mut writer = Writer::default();
    put_fully(&mut writer, CHUNK_BYTES - 3, &[7; 8], 1 << 20);
    writer.put_all(2 * CHUNK_BYTES - 1, Bytes::from_static(b"ab"));
    let offsets: Vec<(u64, usize)> =
        writer.queue.iter().map(|p| (p.offset, p.data.len())).collect();
    let expected =
        [(CHUNK_BYTES - 3, 3), (CHUNK_BYTES, 5), (2 * CHUNK_BYTES - 1, 1), (2 * CHUNK_BYTES, 1)];
    assert_eq!(offsets, expected);
}

/// Lets all pieces take off that may; each lands when its sleep ends.
fn take_off(writer: &mut Writer) -> Vec<saker_rpc::client::SleepPromise> {
    let mut promises = Vec::new();
    while let Some(piece) = writer.next_to_fly() {
        let (promise, sleep) = Sleep::new();
        promises.push(promise);
        let flown = piece.clone();
        writer.fly(&flown, async move {
            sleep.await;
            Landed { piece, truncate_gen: 0, losses: 0, result: Ok(Vec::new()) }
        });
    }
    promises
}

#[test]
fn what_has_landed_may_have_to_fly_again_before_others() {
    let mut writer = Writer::default();
    writer.put_all(0, Bytes::from_static(b"older"));
    drop(take_off(&mut writer));
    assert!(poll(writer.nudge()).is_ready());
    writer.put_all(3, Bytes::from_static(b"newer"));
    assert!(writer.next_to_fly().is_none());
    let landed = writer.take_landed().unwrap();
    writer.put_back(landed.piece);
    assert_eq!(writer.next_to_fly().unwrap().data, "older");
    assert_eq!(writer.next_to_fly().unwrap().data, "newer");
}

fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
    std::pin::pin!(future).poll(&mut Context::from_waker(std::task::Waker::noop()))
}

#[test]
fn overlapping_pieces_fly_one_after_the_other() {
    let mut writer = Writer::default();
    for (offset, data) in [(0, &b"old"[..]), (100, b"far"), (2, b"new")] {
        put_fully(&mut writer, offset, data, 64);
        writer.seal();
    }
    let promises = take_off(&mut writer);
    assert_eq!((promises.len(), writer.queue.len()), (2, 1));
    assert!(poll(writer.next_landed()).is_pending());
    assert_eq!(writer.range(), Some(0..103));
    drop(promises);
    for _ in 0..2 {
        let Poll::Ready(Some(landed)) = poll(writer.next_landed()) else { panic!("flies on") };
        assert!(landed.result.is_ok());
    }
    assert_eq!(take_off(&mut writer).len(), 1);
    assert!(writer.is_queue_empty() && !writer.is_landed());
    poll(writer.nudge()).is_ready().then_some(()).unwrap();
    assert!(writer.take_landed().is_some());
    assert!(matches!(poll(writer.next_landed()), Poll::Ready(None)));
    assert_eq!(writer.range(), None);
}

#[test]
fn bytes_in_flight_are_bounded() {
    let mut writer = Writer::default();
    let piece = vec![0; FLYING_BYTES_MAX / 4];
    for i in 0..6u64 {
        writer.put_all(i * CHUNK_BYTES, Bytes::from(piece.clone()));
    }
    assert_eq!(take_off(&mut writer).len(), 4);
    assert_eq!(writer.queue.len(), 2);
}

#[test]
fn what_has_not_taken_off_can_be_forgotten() {
    let mut writer = Writer::default();
    put_fully(&mut writer, 0, b"abc", 64);
    writer.put_back(Piece::of(50, Bytes::from_static(b"x")));
    writer.clear();
    assert!(writer.is_queue_empty() && writer.range().is_none());
}

#[test]
fn a_hole_is_one_piece_until_its_parts_take_off() {
    let mut writer = Writer::default();
    writer.put_hole(CHUNK_BYTES - 5, 1 << 44);
    writer.put_all(1 << 44, Bytes::from_static(b"after"));
    assert_eq!(writer.queue.len(), 2);
    assert_eq!(writer.range(), Some(CHUNK_BYTES - 5..(1 << 44) + 5));
    let parts: Vec<_> = std::iter::from_fn(|| writer.next_to_fly()).take(3).collect();
    let parts: Vec<_> = parts.iter().map(|piece| piece.offset..piece.end()).collect();
    let chunk = |n: u64| n * CHUNK_BYTES..(n + 1) * CHUNK_BYTES;
    assert_eq!(parts, [CHUNK_BYTES - 5..CHUNK_BYTES, chunk(1), chunk(2)]);
    assert_eq!(writer.range(), Some(3 * CHUNK_BYTES..(1 << 44) + 5));
    writer.clear();
    writer.put_hole(7, 9);
    assert_eq!(writer.next_to_fly().map(|piece| piece.offset..piece.end()), Some(7..9));
    assert!(writer.is_queue_empty());
}
