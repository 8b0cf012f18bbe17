//! Frames on asynchronous streams.

use std::io;
use std::time::Duration;

use saker_agent_api::{FRAME_BYTES_MAX, Hello, Reply, Request, decode, encode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::error::Result;

/// Longest first request: it comes from anybody.
pub(crate) const HELLO_BYTES_MAX: usize = 4 << 10;
/// Longest request: a stage with its list of nodes.
pub(crate) const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Longest answer.
pub(crate) const REPLY_BYTES_MAX: usize = FRAME_BYTES_MAX;
/// The rest of a frame must come within.
const REST_WITHIN: Duration = Duration::from_secs(30);
/// The first request of a connection must come within.
pub(crate) const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// The bytes of the next frame; `None` at the end of the stream.
///
/// # Errors
/// Of the stream; `InvalidData`: longer than `bytes_max`; `TimedOut`: it does not begin within
/// `begin_within`, or its rest does not come.
pub(crate) async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    bytes_max: usize,
    begin_within: Duration,
) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 4];
    match timeout(begin_within, stream.read(&mut len[..1])).await?? {
        0 => return Ok(None),
        _ => timeout(REST_WITHIN, stream.read_exact(&mut len[1..])).await??,
    };
    let len = u32::from_le_bytes(len) as usize;
    if len > bytes_max {
        let what = format!("a frame of {len} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let mut bytes = vec![0; len];
    timeout(REST_WITHIN, stream.read_exact(&mut bytes)).await??;
    Ok(Some(bytes))
}

/// The next request; `None` at the end of the stream.
///
/// # Errors
/// As [`read_frame`]; `InvalidData`: no message.
pub(crate) async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
    bytes_max: usize,
    begin_within: Duration,
) -> io::Result<Option<Request>> {
    let frame = read_frame(stream, bytes_max, begin_within).await?;
    frame.map(|bytes| decode(&bytes)).transpose()
}

/// The first request of a connection.
///
/// # Errors
/// As [`read_frame`]; `InvalidData`: it is another one.
pub(crate) async fn read_hello(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Hello> {
    let request = read_request(stream, HELLO_BYTES_MAX, HELLO_WITHIN).await?;
    match request.and_then(|request| request.ask) {
        Some(saker_agent_api::Ask::Hello(hello)) => Ok(hello),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no hello")),
    }
}

/// Sends an answer.
///
/// # Errors
/// Of the stream; `TimedOut`: nobody reads it.
pub(crate) async fn write_reply(
    stream: &mut (impl AsyncWrite + Unpin),
    reply: &Reply,
) -> io::Result<()> {
    timeout(REST_WITHIN, stream.write_all(&encode(reply))).await?
}

/// An answer, or the error as one.
pub(crate) fn reply_of(answer: Result<Reply>) -> Reply {
    answer.unwrap_or_else(|error| Reply {
        errno: error.errno,
        error: error.to_string(),
        ..Reply::default()
    })
}
