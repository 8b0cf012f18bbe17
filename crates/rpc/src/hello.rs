//! The first frames of a connection: who connects, to whom, speaking what.
//!
//! The side that connects sends a [`Hello`] and waits. The other side checks it with its
//! [`HelloPolicy`] and answers with a [`HelloReply`]; a nonzero status in its frame is a refusal,
//! its text says why, and the connection is closed.

use std::net::IpAddr;

use bytes::Bytes;
use prost::Message;

use crate::frame::{Frame, FrameKind};
use crate::{CallError, NodeNumber};

/// The oldest protocol this program speaks.
pub const PROTOCOL_MIN: u32 = 1;
/// The newest protocol this program speaks.
pub const PROTOCOL_MAX: u32 = 1;

/// Bytes of a cluster's uuid.
pub const CLUSTER_BYTES: usize = 16;

/// A cluster's uuid.
pub type ClusterId = [u8; CLUSTER_BYTES];

/// Status of a refusal: the message cannot be read.
pub const REFUSED_MALFORMED: u16 = 1;
/// Status of a refusal: no protocol that both speak.
pub const REFUSED_PROTOCOL: u16 = 2;
/// Status of a refusal: another cluster, or an unknown one where the policy wants it known.
pub const REFUSED_CLUSTER: u16 = 3;
/// Status of a refusal: a role that this server does not know.
pub const REFUSED_ROLE: u16 = 4;
/// Status of a refusal: a feature is missing that this server requires.
pub const REFUSED_FEATURES: u16 = 5;

/// Status of a refusal: there are as many connections as may be, and none of them is idle.
pub const REFUSED_BUSY: u16 = 6;
/// Bound of a hello's body, bytes.
pub const HELLO_BYTES_MAX: usize = 4096;

/// What kind of process speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum RoleKind {
    /// LibFS, in whatever process.
    Client = 1,
    /// A worker of an MNode.
    Shard = 2,
    /// The coordinator.
    Coordinator = 3,
    /// A chunk store.
    Store = 4,
    /// An administrator's tool.
    Tool = 5,
}

impl RoleKind {
    /// The role with this number on the wire.
    pub fn from_wire(number: u32) -> Option<RoleKind> {
        Some(match number {
            1 => RoleKind::Client,
            2 => RoleKind::Shard,
            3 => RoleKind::Coordinator,
            4 => RoleKind::Store,
            5 => RoleKind::Tool,
            _ => return None,
        })
    }
}

/// What the connecting side says.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Hello {
    /// The oldest protocol it speaks.
    #[prost(uint32, tag = "1")]
    pub protocol_min: u32,
    /// The newest protocol it speaks.
    #[prost(uint32, tag = "2")]
    pub protocol_max: u32,
    /// The cluster's uuid, 16 bytes; empty when it does not know it yet.
    #[prost(bytes = "bytes", tag = "3")]
    pub cluster: Bytes,
    /// A [`RoleKind`].
    #[prost(uint32, tag = "4")]
    pub role: u32,
    /// Its [`NodeNumber`]; 0 for clients and tools.
    #[prost(uint32, tag = "5")]
    pub node: u32,
    /// Its session; 0 when it has none.
    #[prost(uint64, tag = "6")]
    pub session: u64,
    /// The newest version of the cluster map that it knows.
    #[prost(uint64, tag = "7")]
    pub map_version: u64,
    /// Feature bits.
    #[prost(uint64, tag = "8")]
    pub features: u64,
}

impl Hello {
    /// A hello from `role`, number `node`, that speaks this program's protocols.
    pub fn new(role: RoleKind, node: NodeNumber, cluster: Option<ClusterId>) -> Hello {
        Hello {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
            cluster: cluster.map_or_else(Bytes::new, |id| Bytes::copy_from_slice(&id)),
            role: role as u32,
            node: node.0,
            session: 0,
            map_version: 0,
            features: 0,
        }
    }

    /// The same with a session.
    pub fn with_session(self, session: u64) -> Hello {
        Hello { session, ..self }
    }

    /// The frame that opens a connection.
    pub(crate) fn to_frame(&self) -> Frame {
        let body = self.encode_to_vec().into();
        Frame { kind: FrameKind::Hello, ..Frame::request(0, 0, body, Bytes::new()) }
    }
}

/// What the accepting side answers.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HelloReply {
    /// The protocol to speak; 0 in a refusal.
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The cluster's uuid; empty when the server does not know it yet.
    #[prost(bytes = "bytes", tag = "2")]
    pub cluster: Bytes,
    /// The server's [`RoleKind`].
    #[prost(uint32, tag = "3")]
    pub role: u32,
    /// The server's [`NodeNumber`].
    #[prost(uint32, tag = "4")]
    pub node: u32,
    /// The newest version of the cluster map that the server knows.
    #[prost(uint64, tag = "5")]
    pub map_version: u64,
    /// Feature bits of the server.
    #[prost(uint64, tag = "6")]
    pub features: u64,
    /// Why it was refused, for people.
    #[prost(string, tag = "7")]
    pub text: String,
}

/// A hello that was accepted: who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHello {
    /// The protocol that was agreed.
    pub protocol: u32,
    /// The cluster, if the peer knew it.
    pub cluster: Option<ClusterId>,
    /// What kind of process it is.
    pub role: RoleKind,
    /// Its number; [`NodeNumber::NONE`] for clients and tools.
    pub node: NodeNumber,
    /// Its session; 0 when it has none.
    pub session: u64,
    /// The newest map that it knew when it connected.
    pub map_version: u64,
    /// Its feature bits.
    pub features: u64,
    /// Where it connects from; `None` of this node itself.
    pub ip: Option<IpAddr>,
}

impl PeerHello {
    /// The shard or coordinator that speaks; `None`: somebody else, or a role and a number that
    /// do not go together.
    pub fn member(&self) -> Option<saker_types::NodeId> {
        use saker_types::NodeId as Id;
        match (self.role, Id::from_u32(self.node.0)?) {
            (RoleKind::Shard, id @ Id::Shard(_)) => Some(id),
            (RoleKind::Coordinator, id @ Id::Coordinator) => Some(id),
            _ => None,
        }
    }
}

/// Whom a server lets in.
#[derive(Clone, Debug, Default)]
pub struct HelloPolicy {
    /// This server's cluster; `None` while it does not know it, and then any is let in.
    pub cluster: Option<ClusterId>,
    /// Whether a peer may come without a cluster (a fresh node, a client's first contact).
    pub allow_unknown_cluster: bool,
    /// Feature bits that a peer must have.
    pub required_features: u64,
}

/// A refusal: the status and the text of the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One of the `REFUSED_` numbers.
    pub status: u16,
    /// Why, for people.
    pub text: String,
}

impl HelloPolicy {
    /// Decides about the first frame of a connection.
    ///
    /// # Errors
    /// The refusal to send back.
    pub fn check(&self, frame: &Frame) -> Result<PeerHello, Refusal> {
        let refuse = |status, text: String| Err(Refusal { status, text });
        let hello = match Hello::decode(frame.body.clone()) {
            Ok(hello) if frame.kind == FrameKind::Hello => hello,
            _ => return refuse(REFUSED_MALFORMED, "the first frame is not a hello".into()),
        };
        let (low, high) = (hello.protocol_min, hello.protocol_max);
        let protocol = high.min(PROTOCOL_MAX);
        if protocol < low.max(PROTOCOL_MIN) {
            let here = format!("{PROTOCOL_MIN}..={PROTOCOL_MAX}");
            let text = format!("protocols {low}..={high} are not spoken here, but {here}");
            return refuse(REFUSED_PROTOCOL, text);
        }
        let cluster = match ClusterId::try_from(hello.cluster.as_ref()) {
            Ok(id) => Some(id),
            Err(_) if hello.cluster.is_empty() => None,
            Err(_) => return refuse(REFUSED_MALFORMED, "a cluster uuid has 16 bytes".into()),
        };
        match (cluster, self.cluster) {
            (None, _) if !self.allow_unknown_cluster => {
                return refuse(REFUSED_CLUSTER, "a cluster uuid is required here".into());
            }
            (Some(theirs), Some(ours)) if theirs != ours => {
                return refuse(REFUSED_CLUSTER, "this server belongs to another cluster".into());
            }
            _ => {}
        }
        let Some(role) = RoleKind::from_wire(hello.role) else {
            return refuse(REFUSED_ROLE, format!("role {} is unknown here", hello.role));
        };
        let missing = self.required_features & !hello.features;
        if missing != 0 {
            return refuse(REFUSED_FEATURES, format!("features {missing:#x} are required here"));
        }
        let Hello { session, map_version, features, .. } = hello;
        let node = NodeNumber(hello.node);
        Ok(PeerHello { protocol, cluster, role, node, session, map_version, features, ip: None })
    }
}

/// The frame that answers a hello: `own` describes the server.
pub(crate) fn reply_frame(own: &Hello, outcome: Result<&PeerHello, &Refusal>) -> Frame {
    let (status, protocol, text) = match outcome {
        Ok(peer) => (0, peer.protocol, String::new()),
        Err(refusal) => (refusal.status, 0, refusal.text.clone()),
    };
    let (cluster, role, node) = (own.cluster.clone(), own.role, own.node);
    let (map_version, features) = (own.map_version, own.features);
    let reply = HelloReply { protocol, cluster, role, node, map_version, features, text };
    let body = reply.encode_to_vec().into();
    Frame { kind: FrameKind::HelloReply, status, ..Frame::request(0, 0, body, Bytes::new()) }
}

/// Reads the answer to `sent`. The reply is given back with a refusal, too.
pub(crate) fn check_reply(
    sent: &Hello,
    frame: &Frame,
) -> (Option<HelloReply>, Result<(), CallError>) {
    if frame.kind != FrameKind::HelloReply {
        return (None, Err(CallError::Refused));
    }
    let Ok(reply) = HelloReply::decode(frame.body.clone()) else {
        return (None, Err(CallError::Refused));
    };
    let spoken = (sent.protocol_min..=sent.protocol_max).contains(&reply.protocol);
    let cluster = &reply.cluster;
    let known = !sent.cluster.is_empty() && !cluster.is_empty();
    let good = frame.status == 0 && spoken && !(known && sent.cluster != cluster);
    (Some(reply), if good { Ok(()) } else { Err(CallError::Refused) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const OURS: ClusterId = [7; CLUSTER_BYTES];

    fn policy() -> HelloPolicy {
        HelloPolicy { cluster: Some(OURS), allow_unknown_cluster: false, required_features: 0b100 }
    }

    fn good() -> Hello {
        let hello = Hello::new(RoleKind::Shard, NodeNumber(3), Some(OURS)).with_session(99);
        Hello { features: 0b110, map_version: 5, ..hello }
    }

    fn status(hello: Hello) -> u16 {
        match policy().check(&hello.to_frame()) {
            Ok(_) => 0,
            Err(refusal) => {
                assert!(!refusal.text.is_empty());
                refusal.status
            }
        }
    }

    #[test]
    fn a_good_hello_is_accepted_as_sent() {
        let peer = policy().check(&good().to_frame()).unwrap();
        assert_eq!(
            peer,
            PeerHello {
                protocol: PROTOCOL_MAX,
                cluster: Some(OURS),
                role: RoleKind::Shard,
                node: NodeNumber(3),
                session: 99,
                map_version: 5,
                features: 0b110,
                ip: None,
            }
        );
    }

    #[test]
    fn each_mismatch_has_its_status() {
        assert_eq!(status(good()), 0);
        let newer = Hello { protocol_min: PROTOCOL_MAX + 1, protocol_max: 9, ..good() };
        assert_eq!(status(newer), REFUSED_PROTOCOL);
        assert_eq!(status(Hello { protocol_max: 0, ..good() }), REFUSED_PROTOCOL);
        let foreign = Bytes::from_static(&[8; CLUSTER_BYTES]);
        assert_eq!(status(Hello { cluster: foreign, ..good() }), REFUSED_CLUSTER);
        assert_eq!(status(Hello { cluster: Bytes::new(), ..good() }), REFUSED_CLUSTER);
        let short = Bytes::from_static(b"short");
        assert_eq!(status(Hello { cluster: short, ..good() }), REFUSED_MALFORMED);
        assert_eq!(status(Hello { role: 0, ..good() }), REFUSED_ROLE);
        assert_eq!(status(Hello { features: 0b010, ..good() }), REFUSED_FEATURES);
        let request = Frame::request(0, 0, good().encode_to_vec().into(), Bytes::new());
        let refusal = policy().check(&request).unwrap_err();
        assert_eq!(refusal.status, REFUSED_MALFORMED);
        let mut garbage = good().to_frame();
        garbage.body = Bytes::from_static(&[0xff; 9]);
        assert_eq!(policy().check(&garbage).unwrap_err().status, REFUSED_MALFORMED);
    }

    #[test]
    fn an_unknown_cluster_is_up_to_the_policy() {
        let fresh = Hello { cluster: Bytes::new(), ..good() }.to_frame();
        let open = HelloPolicy { allow_unknown_cluster: true, ..policy() };
        assert_eq!(open.check(&fresh).unwrap().cluster, None);
        let newborn = HelloPolicy { cluster: None, ..policy() };
        assert!(newborn.check(&good().to_frame()).is_ok());
    }

    #[test]
    fn replies_are_checked_by_the_client() {
        let own = Hello::new(RoleKind::Shard, NodeNumber(1), Some(OURS));
        let peer = policy().check(&good().to_frame()).unwrap();
        let accepted = reply_frame(&own, Ok(&peer));
        let (reply, outcome) = check_reply(&good(), &accepted);
        assert_eq!((reply.unwrap().node, outcome), (1, Ok(())));
        let other = Hello { cluster: Bytes::from_static(&[8; CLUSTER_BYTES]), ..good() };
        assert_eq!(check_reply(&other, &accepted).1, Err(CallError::Refused));
        let refusal = Refusal { status: REFUSED_ROLE, text: "no".into() };
        let (reply, outcome) = check_reply(&good(), &reply_frame(&own, Err(&refusal)));
        assert_eq!((reply.unwrap().text.as_str(), outcome), ("no", Err(CallError::Refused)));
        assert_eq!(check_reply(&good(), &good().to_frame()).1, Err(CallError::Refused));
    }
}
