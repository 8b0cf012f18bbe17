//! The client's way to the network.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use saker_rpc::hello::{CLUSTER_BYTES, ClusterId};
use saker_rpc::{CallError, Frame, Hello, NodeId, Reactor, RoleKind, Transport};
use saker_runtime::time::Time;
use saker_types::wire::Op;
use saker_types::{ClusterMap, Errno, Error, Result};

/// A reply: status, body and payload.
pub(crate) type Reply = Frame;

/// Calls and pauses.
pub(crate) struct Net {
    /// `None`: whoever gave the transport drives it.
    reactor: Option<Arc<Reactor>>,
    /// The reactor, except where a test or a simulation takes its place.
    transport: Arc<dyn Transport>,
}

impl Net {
    /// Connections over TCP, made when they are needed.
    pub(crate) fn new() -> Result<Net> {
        let reactor = Reactor::new(Hello::new(RoleKind::Client, NodeId::NONE, None))
            .map_err(|e| Error::new(Errno::ENOMEM).with_text(format!("no reactor: {e}")))?;
        Ok(Net { transport: reactor.clone(), reactor: Some(reactor) })
    }

    /// The same with another way to send.
    #[cfg(test)]
    pub(crate) fn over(self, transport: Arc<dyn Transport>) -> Net {
        Net { transport, ..self }
    }

    /// A way to send that its owner drives: nothing here ever blocks.
    pub(crate) fn driven(transport: Arc<dyn Transport>) -> Net {
        Net { reactor: None, transport }
    }

    /// From now on only servers of this cluster are right.
    pub(crate) fn know_cluster(&self, map: &ClusterMap) -> Result<()> {
        let uuid: ClusterId = map.uuid.as_ref().try_into().map_err(|_| {
            Error::new(Errno::EPROTO)
                .with_text(format!("the cluster's uuid has not {CLUSTER_BYTES} bytes"))
        })?;
        if let Some(reactor) = &self.reactor {
            reactor.set_hello(Hello::new(RoleKind::Client, NodeId::NONE, Some(uuid)));
        }
        Ok(())
    }

    /// Sends a request and waits for the reply until `deadline`.
    pub(crate) async fn call(
        &self,
        to: SocketAddr,
        op: Op,
        trace: u64,
        body: Bytes,
        payload: Bytes,
        deadline: Time,
    ) -> std::result::Result<Reply, CallError> {
        let timeout = deadline - self.transport.now();
        self.transport.call(to, op as u16, trace, body, payload, timeout).await
    }

    /// Sends what was asked of the network and not sent yet. Waiting does so, too.
    pub(crate) fn flush(&self) {
        if let Some(reactor) = &self.reactor {
            reactor.flush();
        }
    }

    /// Waits until `time`.
    pub(crate) async fn sleep_until(&self, time: Time) {
        self.transport.sleep(time - self.transport.now()).await;
    }

    /// Runs a future on this thread, which drives the network while it waits.
    ///
    /// # Panics
    /// If somebody else drives it.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        let reactor = self.reactor.as_ref().expect("a client whose owner drives it never blocks");
        reactor.block_on(future)
    }
}
