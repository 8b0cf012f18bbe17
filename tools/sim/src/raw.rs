//! A client that keeps no rules: it sends what it is told, byte by byte. It knows the frame's
//! layout by itself, so that a mistake in the library's encoder cannot hide one in its decoder.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use prost::Message;

use saker_types::wire::Op;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 40;
const MAGIC: u16 = 0x5a4b;
const KIND_HELLO: u8 = 1;
const KIND_REQUEST: u8 = 3;

/// A header; lengths are whatever is said.
pub fn header(kind: u8, op: u16, body_len: u32, payload_len: u32, call: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES);
    out.extend(MAGIC.to_le_bytes());
    out.extend([1, kind]);
    out.extend(op.to_le_bytes());
    out.extend(0u16.to_le_bytes());
    out.extend(body_len.to_le_bytes());
    out.extend(payload_len.to_le_bytes());
    out.extend(call.to_le_bytes());
    out.resize(HEADER_BYTES, 0);
    out
}

/// A hello as LibFS sends it: protocol 1, role client.
#[derive(Clone, PartialEq, prost::Message)]
struct Hello {
    #[prost(uint32, tag = "1")]
    protocol_min: u32,
    #[prost(uint32, tag = "2")]
    protocol_max: u32,
    #[prost(uint32, tag = "4")]
    role: u32,
    #[prost(uint64, tag = "6")]
    session: u64,
}

/// A connection.
pub struct Raw {
    stream: TcpStream,
    calls: u64,
}

/// A reply: its status, 0 is good, and its body.
pub type RawReply = (u16, Vec<u8>);

impl Raw {
    /// Connects, and says nothing.
    pub fn connect(addr: &str) -> std::io::Result<Raw> {
        let stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        stream.set_nodelay(true)?;
        Ok(Raw { stream, calls: 0 })
    }

    /// Says hello as a client and takes the answer.
    pub fn hello(&mut self, session: u64) -> std::io::Result<RawReply> {
        let hello = Hello { protocol_min: 1, protocol_max: 1, role: 1, session }.encode_to_vec();
        self.send(&header(KIND_HELLO, 0, hello.len() as u32, 0, 0))?;
        self.send(&hello)?;
        self.reply()
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends a request and takes its reply.
    pub fn call(&mut self, op: Op, message: &impl Message) -> std::io::Result<RawReply> {
        self.call_bytes(op, &message.encode_to_vec())
    }

    /// The same with any body.
    pub fn call_bytes(&mut self, op: Op, body: &[u8]) -> std::io::Result<RawReply> {
        self.calls += 1;
        self.send(&header(KIND_REQUEST, op as u16, body.len() as u32, 0, self.calls))?;
        self.send(body)?;
        self.reply()
    }

    /// The same with many requests at once: their replies.
    pub fn calls(&mut self, op: Op, messages: &[impl Message]) -> std::io::Result<Vec<RawReply>> {
        let mut out = Vec::new();
        for message in messages {
            self.calls += 1;
            let body = message.encode_to_vec();
            out.extend(header(KIND_REQUEST, op as u16, body.len() as u32, 0, self.calls));
            out.extend(body);
        }
        self.send(&out)?;
        messages.iter().map(|_| self.reply()).collect()
    }

    fn reply(&mut self) -> std::io::Result<RawReply> {
        let mut head = [0; HEADER_BYTES];
        self.stream.read_exact(&mut head)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let mut body = vec![0; word(8) as usize];
        self.stream.read_exact(&mut body)?;
        let mut payload = vec![0; word(12) as usize];
        self.stream.read_exact(&mut payload)?;
        Ok((u16::from_le_bytes([head[6], head[7]]), body))
    }

    /// Waits until the other side closes; what it still says is dropped. False: it does not.
    pub fn is_closed_by_peer(mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return false;
                }
                Err(_) => return true,
            }
        }
    }
}
