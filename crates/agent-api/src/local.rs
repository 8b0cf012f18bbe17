//! The client of the node's own agent.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::{
    Ask, FRAME_BYTES_MAX, Hello, Nothing, OpenFile, OutputOp, OutputRequest, Reply, Request,
    SOCKET, VERSION,
};
use crate::{decode, encode};

/// A connection to the agent of this node. For one thread at a time; a child must make its own.
pub struct Local {
    stream: UnixStream,
}

impl Local {
    /// Connects to the agent that serves a directory.
    ///
    /// # Errors
    /// Of the system; what the agent answers.
    pub fn connect(dir: &Path) -> io::Result<Local> {
        Local::greet(UnixStream::connect(dir.join(SOCKET))?)
    }

    /// Takes a connection to an agent's socket, and says hello.
    ///
    /// # Errors
    /// Of the system; what the agent answers.
    pub fn greet(stream: UnixStream) -> io::Result<Local> {
        let mut local = Local { stream };
        local.call(Ask::Hello(Hello { version: VERSION, key: Vec::new() }))?;
        Ok(local)
    }

    /// A file's data, whole: a sealed memfd. To read it with an offset of one's own, open it again
    /// as `/proc/self/fd/N`.
    ///
    /// # Errors
    /// What the agent answers; of the connection, which is of no use then.
    pub fn open(&mut self, dataset: &str, ino: u32) -> io::Result<OwnedFd> {
        let (_, fd) = self.call(Ask::Open(OpenFile { dataset: dataset.to_owned(), ino }))?;
        fd.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an answer without a file"))
    }

    /// A file that was opened is closed: the agent need not keep it any more.
    ///
    /// # Errors
    /// Of the connection.
    pub fn close(&mut self, dataset: &str, ino: u32) -> io::Result<()> {
        let ask = Ask::Close(OpenFile { dataset: dataset.to_owned(), ino });
        self.stream.write_all(&encode(&Request { ask: Some(ask) }))
    }

    /// Asks, and waits for the answer and for the descriptor that came with it.
    ///
    /// # Errors
    /// What the agent answers; of the connection, which is of no use then.
    pub fn call(&mut self, ask: Ask) -> io::Result<(Reply, Option<OwnedFd>)> {
        let (reply, fd) = self.exchange(ask)?;
        match reply.errno {
            0 => Ok((reply, fd)),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// The same, with an error that the agent answers in its words instead of by its number.
    ///
    /// # Errors
    /// What the agent answers; of the connection, which is of no use then.
    pub fn ask(&mut self, ask: Ask) -> io::Result<Reply> {
        self.exchange(ask)?.0.checked()
    }

    /// Asks about an output file, for as long as it takes.
    ///
    /// # Errors
    /// What the agent answers; of the connection, which is of no use then.
    pub fn output(&mut self, request: OutputRequest) -> io::Result<(Reply, Option<OwnedFd>)> {
        let wait =
            OutputRequest { op: Some(OutputOp::Wait(Nothing {})), ..OutputRequest::default() };
        let (mut reply, mut fd) = self.call(Ask::Output(request))?;
        while reply.going_on {
            (reply, fd) = self.call(Ask::Output(wait.clone()))?;
        }
        Ok((reply, fd))
    }

    fn exchange(&mut self, ask: Ask) -> io::Result<(Reply, Option<OwnedFd>)> {
        self.stream.write_all(&encode(&Request { ask: Some(ask) }))?;
        let mut fd = None;
        let mut len = [0; 4];
        self.receive(&mut len, &mut fd)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > FRAME_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too long an answer"));
        }
        let mut bytes = vec![0; len];
        self.receive(&mut bytes, &mut fd)?;
        Ok((decode(&bytes)?, fd))
    }

    /// Reads until a buffer is full, and keeps the descriptor that comes.
    fn receive(&mut self, mut into: &mut [u8], fd: &mut Option<OwnedFd>) -> io::Result<()> {
        while !into.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let got =
                match recvmsg(&self.stream, &mut [IoSliceMut::new(into)], &mut ancillary, flags) {
                    Err(rustix::io::Errno::INTR) => continue,
                    got => got?,
                };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    *fd = fds.into_iter().last();
                }
            }
            if got.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            into = &mut into[got.bytes..];
        }
        Ok(())
    }
}
