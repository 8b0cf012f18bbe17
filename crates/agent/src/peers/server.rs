//! Connections of other agents and of commands, over TCP.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use saker_agent_api::{Ask, Hello, OutputOp, OutputRequest, Reply, VERSION};
use tokio::net::{TcpListener, TcpStream};

use crate::error::{Error, Result};
use crate::node::Node;
use crate::stored::{self, READ_BYTES_MAX};
use crate::wire::{REQUEST_BYTES_MAX, read_hello, read_request, reply_of, write_reply};
use crate::{connections, control, outputs};

/// Connections at once.
const CONNECTIONS_MAX: usize = 4096;
/// A connection without a request for so long is closed.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// Serves for ever.
pub(crate) async fn run(node: Arc<Node>, listener: TcpListener) {
    connections::serve(node, CONNECTIONS_MAX, listener, serve).await;
}

async fn serve(node: Arc<Node>, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let hello = read_hello(&mut stream).await;
    let admitted = hello.and_then(|hello| Ok(admit(&node, &hello)?));
    if let Err(error) = admitted {
        node.counters.refused.inc();
        let refusal = Error::new(Errno::ACCESS, &error);
        write_reply(&mut stream, &reply_of(Err(refusal))).await?;
        return Err(error);
    }
    write_reply(&mut stream, &Reply::default()).await?;
    while let Some(request) = read_request(&mut stream, REQUEST_BYTES_MAX, IDLE_MAX).await? {
        // Until the answer has left.
        let _room = node.served.acquire_many(room(request.ask.as_ref())).await;
        let reply = reply_of(answer(&node, request.ask).await);
        write_reply(&mut stream, &reply).await?;
    }
    Ok(())
}

/// Memory that an answer takes, in KiB.
fn room(ask: Option<&Ask>) -> u32 {
    let bytes = match ask {
        Some(Ask::Read(read)) => read.bytes.min(READ_BYTES_MAX),
        Some(Ask::Output(OutputRequest { op: Some(OutputOp::Read(read)), .. })) => {
            read.bytes.min(READ_BYTES_MAX)
        }
        _ => 0,
    };
    (bytes >> 10) as u32 + 1
}

/// Compares keys in a time that says nothing of them: as digests, whose comparison is constant.
fn admit(node: &Node, hello: &Hello) -> Result<()> {
    if hello.version != VERSION {
        let what = format!("version {} of the protocol; this agent has {VERSION}", hello.version);
        return Err(Error::new(Errno::PROTO, what));
    }
    if blake3::hash(&hello.key) != blake3::hash(&node.key) && !node.key.is_empty() {
        return Err(Error::new(Errno::ACCESS, "another key than this agent's"));
    }
    Ok(())
}

async fn answer(node: &Arc<Node>, ask: Option<Ask>) -> Result<Reply> {
    match ask {
        Some(Ask::Read(read)) => stored::read(node, read).await,
        Some(Ask::Output(ask)) => outputs::answer_peer(node, ask).await,
        Some(Ask::Open(_) | Ask::Close(_)) => {
            Err(Error::new(Errno::OPNOTSUPP, "files are opened by processes of the node only"))
        }
        Some(Ask::Hello(_)) | None => Err(Error::new(Errno::INVAL, "not a request")),
        Some(ask) => control::answer(node, ask).await,
    }
}
