//! Connections of a listener, each served by a task of its own.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::node::Node;

/// After an accept that failed, as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What connections come to.
pub(crate) trait Listener {
    /// A connection.
    type Stream;

    /// The next connection, and who connects, for the log.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, String)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<(TcpStream, String)> {
        let (stream, from) = self.accept().await?;
        Ok((stream, from.to_string()))
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<(UnixStream, String)> {
        let (stream, _) = self.accept().await?;
        Ok((stream, "a process".to_owned()))
    }
}

/// Serves for ever. A connection is refused while the listener has `max`.
pub(crate) async fn serve<L: Listener, F>(
    node: Arc<Node>,
    max: usize,
    listener: L,
    serve: impl Fn(Arc<Node>, L::Stream) -> F,
) where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(max));
    loop {
        match listener.next().await {
            Ok((stream, who)) => {
                let Ok(place) = room.clone().try_acquire_owned() else {
                    node.counters.refused.inc();
                    continue;
                };
                let (node, serving) = (node.clone(), serve(node.clone(), stream));
                tokio::spawn(async move {
                    node.counters.connections.add(1);
                    if let Err(error) = serving.await {
                        tracing::debug!("connection of {who}: {error}");
                    }
                    node.counters.connections.add(-1);
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("no connection can be accepted: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
