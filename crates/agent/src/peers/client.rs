//! A connection to another agent.

use std::io;
use std::time::Duration;

use saker_agent_api::{Ask, Hello, Reply, Request, VERSION, decode, encode};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::wire::{REPLY_BYTES_MAX, read_frame};

/// A connection, for one request at a time.
pub(crate) struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Connects and says the key.
    ///
    /// # Errors
    /// Of the connection; PermissionDenied: the key is another one.
    pub(crate) async fn open(addr: &str, key: &[u8], within: Duration) -> io::Result<Connection> {
        let stream = timeout(within, TcpStream::connect(addr)).await??;
        stream.set_nodelay(true)?;
        let mut connection = Connection { stream };
        let hello = Ask::Hello(Hello { version: VERSION, key: key.to_vec() });
        connection.call(hello, within).await?.checked()?;
        Ok(connection)
    }

    /// Asks, and waits for the answer, which may be an error. A connection whose call failed or was
    /// given up is of no use any more.
    ///
    /// # Errors
    /// Of the connection.
    pub(crate) async fn call(&mut self, ask: Ask, within: Duration) -> io::Result<Reply> {
        let frame = encode(&Request { ask: Some(ask) });
        timeout(within, self.stream.write_all(&frame)).await??;
        match read_frame(&mut self.stream, REPLY_BYTES_MAX, within).await? {
            Some(bytes) => decode(&bytes),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
