#![allow(clippy::unwrap_used)]
use super::*;
use saker_runtime::rand::Rng;

fn sample(kind: FrameKind, body: usize, payload: usize) -> Frame {
    Frame {
        kind,
        op: 0x0102,
        status: 0x0304,
        call: 0x0506_0708_090a_0b0c,
        trace: u64::MAX - 1,
        map_version: 0x0d0e_0f10,
        body: vec![0xb0; body].into(),
        payload: vec![0xda; payload].into(),
    }
}

fn decode_all(bytes: &[u8]) -> Result<Vec<Frame>, FrameError> {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    let mut frames = Vec::new();
    while let Some(frame) = decoder.next_frame()? {
        frames.push(frame);
    }
    Ok(frames)
}

#[test]
fn every_kind_round_trips() {
    use FrameKind::{Goodbye, Hello, HelloReply, Reply, Request};
    let frames: Vec<Frame> = [Hello, HelloReply, Request, Reply, Goodbye]
        .into_iter()
        .enumerate()
        .map(|(i, kind)| sample(kind, i * 7, (4 - i) * 5))
        .collect();
    let stream: Vec<u8> = frames.iter().flat_map(|f| f.to_bytes().to_vec()).collect();
    assert_eq!(decode_all(&stream).unwrap(), frames);
}

#[test]
fn the_layout_is_fixed() {
    let mut frame = sample(FrameKind::Reply, 1, 2);
    frame.trace = 0x0d0e;
    let bytes = frame.to_bytes();
    let mut expected = vec![0x4b, 0x5a, 1, 4, 2, 1, 4, 3, 1, 0, 0, 0, 2, 0, 0, 0];
    expected.extend([0x0c, 0x0b, 0x0a, 9, 8, 7, 6, 5, 0x0e, 0x0d, 0, 0, 0, 0, 0, 0]);
    expected.extend([0, 0, 0, 0, 0x10, 0x0f, 0x0e, 0x0d, 0xb0, 0xda, 0xda]);
    assert_eq!(bytes, expected);
}

#[test]
fn any_split_gives_the_same_frames() {
    let frames = [sample(FrameKind::Request, 13, 9), sample(FrameKind::Reply, 0, 0)];
    let stream: Vec<u8> = frames.iter().flat_map(|f| f.to_bytes().to_vec()).collect();
    for cut in 0..=stream.len() {
        let mut decoder = Decoder::new();
        let mut got = Vec::new();
        for part in [&stream[..cut], &stream[cut..]] {
            decoder.push(part);
            while let Some(frame) = decoder.next_frame().unwrap() {
                got.push(frame);
            }
        }
        assert_eq!(got, frames, "cut at {cut}");
    }
}

#[test]
fn a_truncated_frame_is_not_a_frame() {
    let bytes = sample(FrameKind::Request, 11, 6).to_bytes();
    for len in 0..bytes.len() {
        assert_eq!(decode_all(&bytes[..len]), Ok(vec![]), "{len} bytes");
    }
}

#[test]
fn a_maximum_frame_passes() {
    let frame = sample(FrameKind::Request, BODY_BYTES_MAX, PAYLOAD_BYTES_MAX);
    assert!(frame.fits());
    assert_eq!(frame.wire_len(), FRAME_BYTES_MAX);
    assert_eq!(decode_all(&frame.to_bytes()).unwrap(), [frame]);
}

#[test]
fn lengths_are_refused_before_their_bytes_arrive() {
    let over = |at: usize, len: usize| {
        let mut bytes = sample(FrameKind::Request, 0, 0).to_bytes().to_vec();
        bytes[at..at + 4].copy_from_slice(&(len as u32).to_le_bytes());
        let mut decoder = Decoder::new();
        decoder.push(&bytes);
        let result = decoder.next_frame();
        assert!(decoder.buffer.capacity() < READ_BYTES, "memory was set aside");
        result.unwrap_err()
    };
    assert_eq!(over(8, BODY_BYTES_MAX + 1), FrameError::Body(BODY_BYTES_MAX as u32 + 1));
    assert_eq!(over(8, u32::MAX as usize), FrameError::Body(u32::MAX));
    assert_eq!(over(12, PAYLOAD_BYTES_MAX + 1), FrameError::Payload(PAYLOAD_BYTES_MAX as u32 + 1));
    let large = sample(FrameKind::Request, BODY_BYTES_MAX + 1, 0);
    assert!(!large.fits());
}

#[test]
fn each_header_field_is_checked() {
    let good = sample(FrameKind::Request, 0, 0).to_bytes();
    let broken = |at: usize, value: u8| {
        let mut bytes = good.to_vec();
        bytes[at] = value;
        decode_all(&bytes)
    };
    assert_eq!(broken(0, 0), Err(FrameError::Magic(0x5a00)));
    assert_eq!(broken(2, 9), Err(FrameError::Version(9)));
    assert_eq!(broken(3, 0), Err(FrameError::Kind(0)));
    assert_eq!(broken(3, 6), Err(FrameError::Kind(6)));
    assert_eq!(broken(32, 1), Err(FrameError::Flags(1)));
    assert_eq!(broken(35, 1), Err(FrameError::Flags(1 << 24)));
}

/// Random streams, and good streams with random damage: an error or frames, never a panic, and
/// never more bytes in frames than were given.
#[test]
fn garbage_never_panics() {
    let mut rng = Rng::seeded(0x5a4b);
    let mut refused = 0;
    for round in 0..20_000 {
        let mut bytes = vec![0; rng.below(300) as usize];
        rng.fill(&mut bytes);
        if round % 2 == 0 {
            let frame = sample(FrameKind::Request, rng.below(40) as usize, rng.below(40) as usize);
            let mut stream = frame.to_bytes().to_vec();
            let at = rng.below(stream.len() as u64) as usize;
            stream[at] ^= rng.u64() as u8;
            stream.extend(bytes);
            bytes = stream;
        }
        match decode_all(&bytes) {
            Ok(frames) => {
                let used: usize = frames.iter().map(Frame::wire_len).sum();
                assert!(used <= bytes.len());
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 15_000, "{refused}");
}

#[test]
fn reads_from_a_socket() {
    use std::io::Write;
    let (mut from, to) = std::os::unix::net::UnixStream::pair().unwrap();
    let frames = [
        sample(FrameKind::Request, 5, 0),
        sample(FrameKind::Request, 300_000, 1_000_000),
        sample(FrameKind::Goodbye, 0, 0),
    ];
    let stream: Vec<u8> = frames.iter().flat_map(|f| f.to_bytes().to_vec()).collect();
    let writer = std::thread::spawn(move || from.write_all(&stream).unwrap());
    let mut decoder = Decoder::new();
    let mut got = Vec::new();
    loop {
        while let Some(frame) = decoder.next_frame().unwrap() {
            got.push(frame);
        }
        if decoder.read_from(&to).unwrap().bytes == 0 {
            break;
        }
    }
    writer.join().unwrap();
    assert_eq!(got, frames);
}
