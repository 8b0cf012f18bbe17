//! The client of the agent of another node, for commands.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::{Ask, FRAME_BYTES_MAX, Hello, Reply, Request, VERSION, decode, encode};

/// A connection to an agent over TCP.
pub struct Remote {
    stream: TcpStream,
}

impl Remote {
    /// Connects to the agent at `host:port`. Neither this nor an answer may take longer than
    /// `timeout`.
    ///
    /// # Errors
    /// Of the system; what the agent answers.
    pub fn connect(addr: &str, key: &[u8], timeout: Duration) -> io::Result<Remote> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for to in addr.to_socket_addrs()? {
            match TcpStream::connect_timeout(&to, timeout) {
                Ok(stream) => return Remote::greet(stream, key, timeout),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn greet(stream: TcpStream, key: &[u8], timeout: Duration) -> io::Result<Remote> {
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        let mut remote = Remote { stream };
        remote.call(Ask::Hello(Hello { version: VERSION, key: key.to_vec() }))?;
        Ok(remote)
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// What the agent answers, in its words; of the connection, which is of no use then.
    pub fn call(&mut self, ask: Ask) -> io::Result<Reply> {
        self.stream.write_all(&encode(&Request { ask: Some(ask) }))?;
        let mut len = [0; 4];
        self.stream.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > FRAME_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too long an answer"));
        }
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        decode::<Reply>(&bytes)?.checked()
    }
}
