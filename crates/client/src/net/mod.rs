//! The client's way to the network.

pub(crate) mod cluster;
pub(crate) mod connect;
pub(crate) mod groups;
pub(crate) mod request;
pub(crate) mod route;
pub(crate) mod seen;
pub(crate) mod session;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use saker_rpc::hello::{CLUSTER_BYTES, ClusterId};
use saker_rpc::{CallError, Frame, Hello, NodeNumber, Reactor, RoleKind, Transport};
use saker_runtime::time::Time;
use saker_types::wire::Op;
use saker_types::{ClusterMap, Errno, Error, Result};

/// A reply: status, body and payload.
pub(crate) type ReplyFrame = Frame;

/// Calls and pauses.
pub(crate) struct Net {
    /// `None`: whoever gave the transport drives it.
    reactor: Option<Arc<Reactor>>,
    /// What is asked in the reactor's place: by a test, a simulation, or a client of servers in this process.
    transport: Option<Arc<dyn Transport>>,
}

impl Net {
    /// Connections over TCP, made when they are needed.
    pub(crate) fn new() -> Result<Net> {
        let hello = Hello::new(RoleKind::Client, NodeNumber::NONE, None);
        let reactor = Reactor::new(hello).map_err(no_reactor)?;
        Ok(Net { transport: None, reactor: Some(reactor) })
    }

    /// The same with another way to send.
    #[cfg(test)]
    pub(crate) fn over(self, transport: Arc<dyn Transport>) -> Net {
        Net { transport: Some(transport), ..self }
    }

    /// Another way to send, for threads that wait in the `block_on` of this reactor.
    pub(crate) fn beside(reactor: Arc<Reactor>, transport: Arc<dyn Transport>) -> Net {
        Net { reactor: Some(reactor), transport: Some(transport) }
    }

    /// The reactor; none if somebody else drives the network.
    pub(crate) fn reactor(&self) -> Option<&Arc<Reactor>> {
        self.reactor.as_ref()
    }

    /// A way to send that its owner drives: nothing here ever blocks.
    pub(crate) fn driven(transport: Arc<dyn Transport>) -> Net {
        Net { reactor: None, transport: Some(transport) }
    }

    /// Does somebody else drive it?
    pub(crate) fn is_driven(&self) -> bool {
        self.reactor.is_none()
    }

    /// From now on only servers of this cluster are right.
    pub(crate) fn know_cluster(&self, map: &ClusterMap) -> Result<()> {
        let uuid: ClusterId = map.uuid.as_ref().try_into().map_err(|_| {
            Error::new(Errno::EPROTO)
                .with_text(format!("the cluster's uuid has not {CLUSTER_BYTES} bytes"))
        })?;
        // Over another transport, it is said for whom that is.
        if let (Some(reactor), None) = (&self.reactor, &self.transport) {
            reactor.set_hello(Hello::new(RoleKind::Client, NodeNumber::NONE, Some(uuid)));
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
    ) -> std::result::Result<ReplyFrame, CallError> {
        let call = self.over_transport(|transport| {
            let timeout = deadline - transport.now();
            transport.call(to, op as u16, trace, body, payload, timeout)
        });
        call.await
    }

    /// What the calling thread sends over.
    fn over_transport<T>(&self, f: impl FnOnce(&dyn Transport) -> T) -> T {
        match (&self.transport, &self.reactor) {
            (Some(transport), _) => f(&**transport),
            (None, Some(reactor)) => reactor.with_local(|local| f(local)),
            (None, None) => unreachable!("a client without a reactor was given a transport"),
        }
    }

    /// A reactor of the caller's own.
    pub(crate) fn sibling(&self) -> Result<Arc<Reactor>> {
        let reactor = self.reactor.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        reactor.sibling().map_err(no_reactor)
    }

    /// Sends what was asked of the network and not sent yet. Waiting does so, too.
    pub(crate) fn flush(&self) {
        if let Some(reactor) = &self.reactor {
            reactor.with_local(Reactor::flush);
        }
    }

    /// Waits until `time`.
    pub(crate) async fn sleep_until(&self, time: Time) {
        let sleep = self.over_transport(|transport| transport.sleep(time - transport.now()));
        sleep.await;
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

fn no_reactor(error: io::Error) -> Error {
    Error::new(Errno::ENOMEM).with_text(format!("no reactor: {error}"))
}

#[cfg(test)]
mod tests;
