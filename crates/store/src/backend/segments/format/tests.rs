#![allow(clippy::unwrap_used)]
use super::*;

const IDENTITY: StoreIdentity = StoreIdentity { cluster: [7; 16], store: 3 };

#[test]
fn segment_headers_are_checked() {
    let header = SegmentHeader { identity: IDENTITY, segment: 9, salt: 77 };
    let good = header.encode();
    assert_eq!(SegmentHeader::decode(&good, &IDENTITY, 9), Ok(header));
    let decode = |bytes: &[u8]| SegmentHeader::decode(bytes, &IDENTITY, 9).unwrap_err();
    for at in 8..60 {
        let mut bad = good;
        bad[at] ^= 0x40;
        let error = decode(&bad);
        match at {
            8..12 | 16..24 => assert!(matches!(error, FormatError::Newer { .. }), "{at} {error}"),
            _ => assert_eq!(error, FormatError::Damaged, "{at}"),
        }
    }
    assert_eq!(decode(&good[..100]), FormatError::NotASegment);
    assert_eq!(decode(&[0; 512]), FormatError::NotASegment);
    let other = |cluster, store| StoreIdentity { cluster: [cluster; 16], store };
    let as_other = |identity, n| SegmentHeader::decode(&good, &identity, n).unwrap_err();
    assert!(matches!(as_other(other(8, 3), 9), FormatError::ForeignCluster(_)));
    assert_eq!(as_other(other(7, 4), 9), FormatError::ForeignStore(3));
    assert_eq!(as_other(IDENTITY, 10), FormatError::ForeignSegment(9));
}

#[test]
fn records_come_back_and_no_bit_may_flip() {
    let payload: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
    let mut sums = Vec::new();
    assert_eq!(block_sums(&payload, &mut sums), crc32c(&payload));
    let place = RecordLocation { segment: 5, pos: 1024 };
    let record = RecordHeader {
        kind: RecordKind::Write,
        seq: 11,
        durable_seq: 10,
        id: 42,
        index: 6,
        truncate_gen: 2,
        version: 11,
        offset: 300,
        len: 10_000,
    };
    let mut bytes = Vec::new();
    encode(&mut bytes, &record, &[4, 0, 9], &sums, &payload);
    seal(&mut bytes, &Seal { seq: 11, durable_seq: 10, version: 11, place, salt: 99 });
    let head = Head::decode(&bytes, place, 99).unwrap().unwrap();
    assert_eq!(head.record, record);
    assert_eq!(head.replicas(), [4, 0, 9]);
    assert_eq!((0..3).map(|i| head.sum(i)).collect::<Vec<_>>(), sums);
    assert_eq!(&bytes[head.head_bytes..], payload);
    let head_bytes = head.head_bytes;
    for (place, salt) in [
        (RecordLocation { segment: 6, pos: 1024 }, 99),
        (RecordLocation { segment: 5, pos: 1536 }, 99),
        (place, 98),
    ] {
        assert!(Head::decode(&bytes, place, salt).unwrap().is_none());
    }
    assert!(Head::decode(&bytes[..head_bytes - 1], place, 99).unwrap().is_none());
    for bit in 0..head_bytes * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Head::decode(&bad, place, 99).unwrap().is_none(), "bit {bit}");
    }
}

#[test]
fn sums_of_pieces_make_the_sum_of_the_whole() {
    let data: Vec<u8> = (0..3 * BLOCK_BYTES + 17).map(|i| (i * i) as u8).collect();
    let mut sum = Sum::default();
    sum.push(&data[..100]);
    for block in data[100..].chunks(BLOCK_BYTES) {
        if block.len() == BLOCK_BYTES { sum.push_block(crc32c(block)) } else { sum.push(block) }
    }
    assert_eq!(sum.get(), crc32c(&data));
}
