//! Requests to single nodes, for tools that look at each of them: status and fsck.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_rpc::{Hello, NodeNumber, Reactor, RoleKind, Transport};
use saker_types::wire::{MapReq, Op};
use saker_types::{ClusterMap, Error};

use crate::fail::{Context, Failure, Outcome};

/// Connections of a tool.
pub struct Wire(Arc<Reactor>);

impl Wire {
    /// Connections are made when they are needed.
    pub fn new() -> Outcome<Wire> {
        Reactor::new(Hello::new(RoleKind::Tool, NodeNumber::NONE, None)).map(Wire).about("network")
    }

    /// Runs a future on this thread. Nothing in it may block.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }

    /// Asks one node once.
    ///
    /// # Errors
    /// In words: no answer, or the node's error.
    pub async fn call<A: Message + Default>(
        &self,
        to: SocketAddr,
        op: Op,
        request: &impl Message,
        within: Duration,
    ) -> Result<A, String> {
        let body = Bytes::from(request.encode_to_vec());
        let reply = self.0.call(to, op as u16, 0, body, Bytes::new(), within).await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                let refusal = self.0.hello_reply(to).map(|hello| hello.text);
                return Err(match refusal.filter(|text| !text.is_empty()) {
                    Some(text) => format!("{to}: {error}: {text}"),
                    None => format!("{to}: {error}"),
                });
            }
        };
        let broken = |why: prost::DecodeError| format!("{to}: its answer cannot be read: {why}");
        match reply.status {
            0 => A::decode(reply.body).map_err(broken),
            _ => Err(format!("{to}: {}", Error::decode(reply.body).map_err(broken)?)),
        }
    }

    /// The cluster map, from the first coordinator that answers.
    pub fn map(&self, coordinators: &[SocketAddr], within: Duration) -> Outcome<ClusterMap> {
        let mut last = Failure::new("cluster", "no coordinator is given");
        for to in coordinators {
            let request = MapReq { newer_than: 0 };
            let map = self.block_on(self.call::<ClusterMap>(*to, Op::Map, &request, within));
            match map.and_then(|map| map.check().map(|()| map).map_err(|e| e.to_string())) {
                Ok(map) => return Ok(map),
                Err(why) => last = unreachable(&why),
            }
        }
        Err(last)
    }
}

fn unreachable(why: &str) -> Failure {
    Failure::new("coordinator", format!("{why}; is the cluster up? (`saker status`, `saker up`)"))
}
