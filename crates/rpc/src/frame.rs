//! The wire format: a header of 40 bytes, a body (a protobuf message) and a payload (file data, or the trailer of a
//! shard's reply: leases on names).
//!
//! Header, little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | magic |
//! | 2 | version of this layout |
//! | 3 | kind |
//! | 4..6 | op: the operation's number |
//! | 6..8 | status: 0 in requests and good replies |
//! | 8..12 | body length, bytes |
//! | 12..16 | payload length, bytes |
//! | 16..24 | call: pairs a reply with its request, unique per connection |
//! | 24..32 | trace id, 0 for none |
//! | 32..36 | flags, none defined yet |
//! | 36..40 | version of the newest cluster map that the sender knows; 0: it does not say |

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Length of the header, bytes.
pub const HEADER_BYTES: usize = 40;
/// Bound of a body, bytes.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Bound of a payload, bytes: a chunk of file data and what describes it.
pub const PAYLOAD_BYTES_MAX: usize = (4 << 20) + (64 << 10);
/// Bound of a whole frame, bytes.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + BODY_BYTES_MAX + PAYLOAD_BYTES_MAX;

const MAGIC: u16 = 0x5a4b;
const VERSION: u8 = 1;
/// A read asks for this much when no frame is known to be longer.
const READ_BYTES: usize = 64 << 10;
/// A buffer grows to so many times more than what has arrived of a frame.
const GROWTH: usize = 4;
/// A read is not tried with less room than this.
const READ_BYTES_MIN: usize = 16 << 10;

const _: () = {
    // Lengths are u32 on the wire; a maximum frame must be countable in one.
    assert!(FRAME_BYTES_MAX < u32::MAX as usize);
    assert!(READ_BYTES_MIN <= READ_BYTES && HEADER_BYTES < READ_BYTES_MIN);
    assert!(PAYLOAD_BYTES_MAX >= 4 << 20, "a chunk fits");
};

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// The first frame of the side that connected.
    Hello = 1,
    /// The answer to it. A nonzero status is a refusal; the connection is closed then.
    HelloReply = 2,
    /// Asks for an operation.
    Request = 3,
    /// Answers one.
    Reply = 4,
    /// The sender will neither send nor read any more.
    Goodbye = 5,
}

impl FrameKind {
    fn from_wire(byte: u8) -> Result<FrameKind, FrameError> {
        Ok(match byte {
            1 => FrameKind::Hello,
            2 => FrameKind::HelloReply,
            3 => FrameKind::Request,
            4 => FrameKind::Reply,
            5 => FrameKind::Goodbye,
            other => return Err(FrameError::Kind(other)),
        })
    }
}

/// Why bytes are not a frame. The connection that they came from cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first two bytes are wrong.
    #[error("not a frame (magic {0:#06x})")]
    Magic(u16),
    /// A layout that this program does not know.
    #[error("frame version {0} is unknown")]
    Version(u8),
    /// Not one of [`FrameKind`].
    #[error("frame kind {0} is unknown")]
    Kind(u8),
    /// Flags that this program does not know.
    #[error("frame flags {0:#x} are unknown")]
    Flags(u32),
    /// The body is above its bound.
    #[error("a body of {0} bytes is above the bound")]
    Body(u32),
    /// The payload is above its bound.
    #[error("a payload of {0} bytes is above the bound")]
    Payload(u32),
}

/// One message.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    /// What it is for.
    pub kind: FrameKind,
    /// The operation's number; a reply has its request's.
    pub op: u16,
    /// 0, or in a reply what went wrong.
    pub status: u16,
    /// Pairs a reply with its request. Set by whoever sends the request.
    pub call: u64,
    /// Follows one user's request through all processes and logs; 0 for none.
    pub trace: u64,
    /// Version of the newest cluster map that the sender knows. Set by the outbox of a role.
    pub map_version: u32,
    /// A protobuf message, at most [`BODY_BYTES_MAX`].
    pub body: Bytes,
    /// File data, or the trailer of a shard's reply; at most [`PAYLOAD_BYTES_MAX`].
    pub payload: Bytes,
}

impl Frame {
    /// A request; `call` is filled in by the sender.
    pub fn request(op: u16, trace: u64, body: Bytes, payload: Bytes) -> Frame {
        Frame {
            kind: FrameKind::Request,
            op,
            status: 0,
            call: 0,
            trace,
            map_version: 0,
            body,
            payload,
        }
    }

    /// The reply to this request: call, op and trace are copied.
    pub fn reply(&self, status: u16, body: Bytes, payload: Bytes) -> Frame {
        Frame { kind: FrameKind::Reply, status, body, payload, ..self.without_content() }
    }

    /// The header's fields alone, for a request that is answered later.
    pub fn without_content(&self) -> Frame {
        Frame { body: Bytes::new(), payload: Bytes::new(), ..*self }
    }

    /// Whether body and payload keep to their bounds.
    pub fn fits(&self) -> bool {
        self.body.len() <= BODY_BYTES_MAX && self.payload.len() <= PAYLOAD_BYTES_MAX
    }

    /// Bytes on the wire.
    pub fn wire_len(&self) -> usize {
        HEADER_BYTES + self.body.len() + self.payload.len()
    }

    /// Appends header and body. The payload's bytes must follow.
    ///
    /// # Panics
    /// When the frame does not fit its bounds: senders check [`Frame::fits`] first.
    pub(crate) fn encode_head(&self, out: &mut BytesMut) {
        assert!(self.fits(), "{self:?} is above its bounds");
        out.reserve(HEADER_BYTES + self.body.len());
        out.put_u16_le(MAGIC);
        out.put_u8(VERSION);
        out.put_u8(self.kind as u8);
        out.put_u16_le(self.op);
        out.put_u16_le(self.status);
        out.put_u32_le(self.body.len() as u32);
        out.put_u32_le(self.payload.len() as u32);
        out.put_u64_le(self.call);
        out.put_u64_le(self.trace);
        out.put_u32_le(0);
        out.put_u32_le(self.map_version);
        out.put_slice(&self.body);
    }

    /// The whole frame as bytes.
    ///
    /// # Panics
    /// When the frame does not fit its bounds.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.wire_len());
        self.encode_head(&mut out);
        out.put_slice(&self.payload);
        out.freeze()
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Frame { kind, op, status, call, trace, body, payload, .. } = self;
        write!(f, "{kind:?}(op {op}, status {status}, call {call}, trace {trace:x}, ")?;
        write!(f, "body {} B, payload {} B)", body.len(), payload.len())
    }
}

/// A decoded header.
#[derive(Clone, Copy)]
struct Header {
    kind: FrameKind,
    op: u16,
    status: u16,
    body_len: usize,
    payload_len: usize,
    call: u64,
    trace: u64,
    map_version: u32,
}

impl Header {
    /// Reads a header; its lengths are within bounds.
    fn decode(bytes: &[u8; HEADER_BYTES], bounds: &FrameBounds) -> Result<Header, FrameError> {
        let mut bytes = &mut bytes.as_slice();
        let from = &mut bytes;
        let magic = from.get_u16_le();
        if magic != MAGIC {
            return Err(FrameError::Magic(magic));
        }
        let version = from.get_u8();
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let kind = FrameKind::from_wire(from.get_u8())?;
        let (op, status) = (from.get_u16_le(), from.get_u16_le());
        let (body_len, payload_len) = (from.get_u32_le(), from.get_u32_le());
        if body_len as usize > bounds.body_max {
            return Err(FrameError::Body(body_len));
        }
        if payload_len as usize > bounds.payload_max {
            return Err(FrameError::Payload(payload_len));
        }
        let (call, trace) = (from.get_u64_le(), from.get_u64_le());
        let (flags, map_version) = (from.get_u32_le(), from.get_u32_le());
        if flags != 0 {
            return Err(FrameError::Flags(flags));
        }
        let (body_len, payload_len) = (body_len as usize, payload_len as usize);
        Ok(Header { kind, op, status, body_len, payload_len, call, trace, map_version })
    }

    /// Bytes of the frame after the header.
    fn rest(&self) -> usize {
        self.body_len + self.payload_len
    }
}

/// Turns a stream of bytes into frames. Body and payload share the buffer that was read into.
pub struct Decoder {
    buffer: BytesMut,
    /// The header of the frame whose rest the buffer starts with, once it is complete.
    header: Option<Header>,
    bounds: FrameBounds,
}

/// How large the frames of a stream may be.
#[derive(Clone, Copy, Debug)]
pub struct FrameBounds {
    /// Bytes of a body.
    pub body_max: usize,
    /// Bytes of a payload.
    pub payload_max: usize,
}

impl Default for FrameBounds {
    fn default() -> FrameBounds {
        FrameBounds { body_max: BODY_BYTES_MAX, payload_max: PAYLOAD_BYTES_MAX }
    }
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder { buffer: BytesMut::new(), header: None, bounds: FrameBounds::default() }
    }
}

/// What one read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBytes {
    /// Bytes read; 0 when the peer has closed.
    pub bytes: usize,
    /// Whether there was room for more, so that the socket had nothing left.
    pub drained: bool,
}

impl Decoder {
    /// A decoder at the start of a stream.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// From the next header on frames have other bounds.
    pub fn set_bounds(&mut self, bounds: FrameBounds) {
        self.bounds = bounds;
    }

    /// Bytes that were read and are not a frame yet.
    pub fn unfinished(&self) -> usize {
        self.buffer.len() + self.header.map_or(0, |_| HEADER_BYTES)
    }

    /// Bytes that the frame will have which is being read, as far as its header is there.
    pub fn frame_bytes(&self) -> usize {
        self.header.map_or(HEADER_BYTES, |header| HEADER_BYTES + header.rest())
    }

    /// Appends bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Reads once from a file descriptor.
    ///
    /// # Errors
    /// The system's, also `WouldBlock` and `Interrupted`.
    pub fn read_from(&mut self, fd: impl AsFd) -> io::Result<ReadBytes> {
        let missing = self.header.map_or(0, |h| h.rest().saturating_sub(self.buffer.len()));
        let room = self.buffer.capacity() - self.buffer.len();
        if room < missing.max(READ_BYTES_MIN) {
            // By what has arrived, not by what the header promises.
            let more = (missing + HEADER_BYTES).min(GROWTH * self.buffer.len());
            if room < more.max(READ_BYTES_MIN) {
                self.buffer.reserve(more.max(READ_BYTES));
            }
        }
        let spare = self.buffer.spare_capacity_mut();
        let room = spare.len();
        let (filled, _) = rustix::io::read(fd, spare)?;
        let bytes = filled.len();
        let len = self.buffer.len() + bytes;
        // SAFETY: `rustix::io::read` returned the first `bytes` bytes of the spare capacity as
        // initialized, and they follow the initialized `len - bytes` bytes.
        unsafe { self.buffer.set_len(len) };
        Ok(ReadBytes { bytes, drained: bytes < room })
    }

    /// The next complete frame.
    ///
    /// # Errors
    /// When the bytes are not a frame; the decoder must not be used any more.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let Some(bytes) = self.buffer.first_chunk::<HEADER_BYTES>() else {
                    return Ok(None);
                };
                let header = Header::decode(bytes, &self.bounds)?;
                self.buffer.advance(HEADER_BYTES);
                *self.header.insert(header)
            }
        };
        if self.buffer.len() < header.rest() {
            return Ok(None);
        }
        self.header = None;
        let mut content = self.buffer.split_to(header.rest()).freeze();
        let body = content.split_to(header.body_len);
        let Header { kind, op, status, call, trace, map_version, .. } = header;
        Ok(Some(Frame { kind, op, status, call, trace, map_version, body, payload: content }))
    }
}

#[cfg(test)]
mod tests;
