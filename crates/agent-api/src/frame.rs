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
