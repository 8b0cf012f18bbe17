//! Frames.

use std::io;

use prost::Message;

/// Longest message.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// A message as it goes over a connection.
pub fn encode(message: &impl Message) -> Vec<u8> {
    let len = message.encoded_len();
    let mut frame = Vec::with_capacity(4 + len);
    frame.extend_from_slice(&(len as u32).to_le_bytes());
    message.encode(&mut frame).expect("a vector has room");
    frame
}

/// The message in a frame's bytes, without their length.
///
/// # Errors
/// `InvalidData`.
pub fn decode<M: Message + Default>(bytes: &[u8]) -> io::Result<M> {
    M::decode(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{
        Ask, Hello, Named, OpenFile, OutputOp, OutputRequest, PutOutput, ReadStored, Request,
        StageDataset, Stored,
    };

    #[test]
    fn requests_come_through_and_cut_ones_do_not() {
        let open = || OpenFile { dataset: "a@1".into(), ino: 7 };
        let named = || Named { dataset: "a@1".into() };
        let asks = [
            Ask::Hello(Hello { version: 1, key: vec![9; 32] }),
            Ask::Open(open()),
            Ask::Close(open()),
            Ask::Read(ReadStored {
                dataset: "a@1".into(),
                table_digest: vec![1; 32],
                partition: 3,
                offset: u64::MAX,
                bytes: 4 << 20,
                what: Stored::Table.into(),
            }),
            Ask::Stage(StageDataset { stage: b"{}".to_vec(), node: 5 }),
            Ask::Unstage(named()),
            Ask::Status(named()),
            Ask::Layout(named()),
            Ask::RemoveOutputs(named()),
            Ask::Output(OutputRequest {
                dataset: "a@1".into(),
                path: b"dir/file".to_vec(),
                nodes: 1,
                id: 2,
                op: Some(OutputOp::Put(PutOutput { offset: 3, data: vec![4; 5] })),
            }),
        ];
        for ask in asks {
            let request = Request { ask: Some(ask) };
            let frame = encode(&request);
            let len = u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize;
            assert_eq!(len, frame.len() - 4);
            assert_eq!(decode::<Request>(&frame[4..]).unwrap(), request);
            for cut in 5..frame.len() {
                assert!(decode::<Request>(&frame[4..cut]).is_err(), "{request:?} cut at {cut}");
            }
        }
    }
}
