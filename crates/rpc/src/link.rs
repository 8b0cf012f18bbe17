//! One TCP connection: a socket, what was read from it, and what is to be written to it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use mio::event::Event;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustix::net::{SendAncillaryBuffer, SendFlags, sockopt};

use crate::frame::{Decoder, Frame, FrameBounds, FrameError};

/// Payloads from this size on are not copied into the output buffer, bytes.
const COPY_BYTES_MAX: usize = 16 << 10;
/// An empty output buffer above this capacity is given back, bytes.
const KEEP_BYTES_MAX: usize = 1 << 20;
/// Parts that one system call writes.
const PARTS_MAX: usize = 64;

/// A silent peer is probed after this long, and then as often.
struct Keepalive {
    idle: Duration,
    interval: Duration,
}

/// Of a connection that was accepted: nobody waits for what comes.
const OF_ACCEPTED: Keepalive =
    Keepalive { idle: Duration::from_secs(5), interval: Duration::from_secs(2) };
/// Of one that was dialed: calls may wait on it for a peer that has forgotten it, which only the
/// answer to a probe tells.
const OF_DIALED: Keepalive =
    Keepalive { idle: Duration::from_secs(1), interval: Duration::from_secs(1) };
/// A connection is given up when the peer acknowledges nothing, data or probes, for this long.
/// (With this bound the kernel does not count probes.)
const UNACKED_MS_MAX: u32 = 11_000;
/// The same bytes are sent again at least this often. By itself TCP doubles the pause each time,
/// so that a network that is whole again after five seconds may be silent for five more.
const RETRANSMIT_MS_MAX: libc::c_int = 1_000;
/// `TCP_RTO_MAX_MS` of linux/tcp.h, since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Why a connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("closed by the peer")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Protocol(&'static str),
}

/// Frames to be written, in order. Small ones are merged into one buffer; large payloads are
/// kept as they are.
#[derive(Default)]
pub(crate) struct OutQueue {
    parts: VecDeque<Bytes>,
    /// What follows the last part.
    tail: BytesMut,
    bytes: usize,
}

impl OutQueue {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Appends a frame, which must fit its bounds.
    pub fn push(&mut self, frame: &Frame) {
        frame.encode_head(&mut self.tail);
        if frame.payload.len() < COPY_BYTES_MAX {
            self.tail.put_slice(&frame.payload);
        } else {
            self.seal();
            self.parts.push_back(frame.payload.clone());
        }
        self.bytes += frame.wire_len();
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.parts.push_back(self.tail.split().freeze());
        }
    }

    /// Writes until nothing is left (true) or the socket is full (false).
    pub fn write_to(&mut self, fd: impl AsFd) -> io::Result<bool> {
        while self.bytes > 0 {
            let written = match self.write_once(fd.as_fd()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.consume(written);
        }
        if self.tail.capacity() > KEEP_BYTES_MAX {
            self.tail = BytesMut::new();
        }
        Ok(true)
    }

    // NOSIGNAL: in a host program (C ABI, preload) a broken pipe must not kill the process.
    fn write_once(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        if self.parts.is_empty() {
            return rustix::net::send(fd, &self.tail, SendFlags::NOSIGNAL);
        }
        let parts = self.parts.iter().map(Bytes::as_ref).chain([self.tail.as_ref()]);
        let slices: Vec<IoSlice<'_>> = parts.take(PARTS_MAX).map(IoSlice::new).collect();
        let mut control = SendAncillaryBuffer::default();
        rustix::net::sendmsg(fd, &slices, &mut control, SendFlags::NOSIGNAL)
    }

    fn consume(&mut self, written: usize) {
        self.bytes -= written;
        let mut left = written;
        while left > 0 {
            let Some(part) = self.parts.front_mut() else {
                self.tail.advance(left);
                break;
            };
            let step = left.min(part.len());
            part.advance(step);
            left -= step;
            if part.is_empty() {
                self.parts.pop_front();
            }
        }
    }
}

/// A connection. Sockets are edge-triggered: `readable` remembers an edge until a read has
/// shown that nothing is left.
pub(crate) struct Link {
    stream: TcpStream,
    decoder: Decoder,
    /// What is to be written.
    pub out: OutQueue,
    readable: bool,
    /// The peer has closed, or an error waits: read until that is seen.
    hangup: bool,
}

impl Link {
    /// Takes over an accepted socket.
    pub fn accepted(stream: TcpStream, registry: &Registry, token: Token) -> io::Result<Link> {
        Link::new(stream, &OF_ACCEPTED, registry, token)
    }

    /// Registers a socket for both directions. One registration is enough: a full socket reports
    /// when there is room again.
    fn new(
        mut stream: TcpStream,
        keepalive: &Keepalive,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Link> {
        tune(&stream, keepalive)?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        let (decoder, out) = (Decoder::new(), OutQueue::default());
        Ok(Link { stream, decoder, out, readable: false, hangup: false })
    }

    /// Starts to connect to `addr`.
    pub fn dial(addr: SocketAddr, registry: &Registry, token: Token) -> io::Result<Link> {
        Link::new(TcpStream::connect(addr)?, &OF_DIALED, registry, token)
    }

    /// Whether a connection that was dialed stands now.
    pub fn connected(&self) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// From the next frame on.
    pub fn set_bounds(&mut self, bounds: FrameBounds) {
        self.decoder.set_bounds(bounds);
    }

    /// Bytes that were read and are not a frame yet.
    pub fn unfinished(&self) -> usize {
        self.decoder.unfinished()
    }

    /// Bytes that the frame will have which is being read.
    pub fn frame_bytes(&self) -> usize {
        self.decoder.frame_bytes()
    }

    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }

    /// Notes what the event says. Returns whether there may be something to read.
    pub fn note(&mut self, event: &Event) -> bool {
        self.hangup |= event.is_read_closed() || event.is_error();
        self.readable |= event.is_readable() || self.hangup;
        self.readable
    }

    /// The next frame, read from the socket if none is buffered; `None` when all was read.
    pub fn receive(&mut self) -> Result<Option<Frame>, LinkError> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(Some(frame));
            }
            if !self.read()? {
                return Ok(None);
            }
        }
    }

    /// The next frame, if all of it was read.
    pub fn buffered(&mut self) -> Result<Option<Frame>, LinkError> {
        Ok(self.decoder.next_frame()?)
    }

    /// Reads once from the socket. Returns whether anything came.
    pub fn read(&mut self) -> Result<bool, LinkError> {
        while self.readable {
            match self.decoder.read_from(&self.stream) {
                Ok(read) if read.bytes == 0 => return Err(LinkError::Closed),
                Ok(read) => {
                    self.readable = !read.drained || self.hangup;
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    /// Writes what waits. Returns whether all of it went.
    pub fn flush(&mut self) -> io::Result<bool> {
        self.out.write_to(&self.stream)
    }

    /// Takes the socket out of its poll; dropping the link then closes it.
    pub fn deregister(&mut self, registry: &Registry) {
        // Closing would do the same; nothing to do about a failure.
        let _ = registry.deregister(&mut self.stream);
    }
}

fn tune(stream: &TcpStream, keepalive: &Keepalive) -> io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, keepalive.idle)?;
    sockopt::set_tcp_keepintvl(stream, keepalive.interval)?;
    sockopt::set_tcp_user_timeout(stream, UNACKED_MS_MAX)?;
    match bound_retransmission(stream) {
        // The kernel is older: after a cut, silence lasts up to as long again.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        done => done,
    }
}

fn bound_retransmission(stream: &TcpStream) -> io::Result<()> {
    let (pause, len) = (RETRANSMIT_MS_MAX, size_of::<libc::c_int>() as libc::socklen_t);
    let (fd, level, from) = (stream.as_raw_fd(), libc::IPPROTO_TCP, &raw const pause);
    // SAFETY: the call reads an int from a pointer that is valid during it.
    match unsafe { libc::setsockopt(fd, level, TCP_RTO_MAX_MS, from.cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::net::UnixStream;

    fn frame(call: u64, payload: usize) -> Frame {
        let payload = vec![call as u8; payload].into();
        Frame { call, ..Frame::request(1, 0, vec![9; 50].into(), payload) }
    }

    /// Small and large frames arrive in order through a socket that takes only a part at a
    /// time.
    #[test]
    fn partial_writes_keep_the_order() {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let sizes = [0, 10, COPY_BYTES_MAX - 1, COPY_BYTES_MAX, 700_000, 5, 0, 300_000, 1];
        let sent: Vec<Frame> = sizes.iter().zip(1..).map(|(len, i)| frame(i, *len)).collect();
        let mut out = OutQueue::default();
        sent.iter().for_each(|f| out.push(f));
        assert_eq!(out.len(), sent.iter().map(Frame::wire_len).sum::<usize>());
        let (mut decoder, mut got, mut full) = (Decoder::new(), Vec::new(), 0);
        while got.len() < sent.len() {
            full += usize::from(!out.write_to(&near).unwrap());
            match decoder.read_from(&far) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            while let Some(frame) = decoder.next_frame().unwrap() {
                got.push(frame);
            }
        }
        assert_eq!(got, sent);
        assert!(out.is_empty());
        assert!(full > 0, "the socket was never full: the test shows nothing");
    }

    /// Asks the kernel; `None`: it does not know the option.
    fn retransmit_ms_max(stream: &TcpStream) -> Option<libc::c_int> {
        let (mut ms, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
        let (fd, level, to) = (stream.as_raw_fd(), libc::IPPROTO_TCP, &raw mut ms);
        // SAFETY: the call writes an int, and its length, to pointers to such.
        let ret = unsafe { libc::getsockopt(fd, level, TCP_RTO_MAX_MS, to.cast(), &raw mut len) };
        (ret == 0).then_some(ms)
    }

    #[test]
    fn bytes_are_sent_again_soon_on_both_sides() {
        let poll = mio::Poll::new().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let dialed = Link::dial(addr, poll.registry(), Token(1)).unwrap();
        let stream = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        let stream = TcpStream::from_std(stream);
        if retransmit_ms_max(&stream).is_none() {
            eprintln!("skipped: Linux before 6.15");
            return;
        }
        assert_ne!(retransmit_ms_max(&stream), Some(RETRANSMIT_MS_MAX), "the default");
        let accepted = Link::accepted(stream, poll.registry(), Token(2)).unwrap();
        for link in [dialed, accepted] {
            assert_eq!(retransmit_ms_max(&link.stream), Some(RETRANSMIT_MS_MAX));
        }
    }

    #[test]
    fn writing_to_a_closed_peer_is_an_error() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        let mut out = OutQueue::default();
        out.push(&frame(1, 0));
        assert_eq!(out.write_to(&near).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
