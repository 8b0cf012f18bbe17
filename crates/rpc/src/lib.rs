//! Frames over TCP: how Saker's processes talk to each other.
//!
//! - [`frame`]: the wire format, and a decoder that trusts nobody.
//! - [`hello`]: the first frame of a connection, and who is let in.
//! - [`node`]: the shell that drives a single-threaded role (shard, coordinator) over sockets.
//! - [`service`]: a multi-threaded server for handlers that wait for disks (stores).
//! - [`local`]: roles without sockets, on a thread of the process that asks them.
//! - [`client`]: calls from many threads, without a thread of its own.
//!
//! A call's error says what is known about its outcome: see [`CallError`].

#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod bootstrap;
pub mod client;
pub mod frame;
pub mod hello;
pub mod hub;
mod link;
pub mod local;
pub mod mark;
mod member;
pub mod node;
pub mod service;
mod sync;
pub mod txn;

pub use bytes::Bytes;
pub use client::{Call, CallPromise, Reactor, Sleep, SleepPromise, Transport};
pub use frame::{Frame, FrameKind};
pub use hello::{Hello, HelloPolicy, HelloReply, PeerHello, RoleKind};
pub use node::{
    CallId, Conditions, ConnId, FlushDone, Input, Outbox, Outgoing, ReplyTo, Shell, ShellConfig,
    StateMachine, StopHandle,
};
pub use service::{Blocked, Lane, Service, ServiceConfig, ServiceOutcome, serve};

/// A server process's (or shard's) number in the cluster, given by the coordinator. Clients and
/// tools have [`NodeNumber::NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeNumber(pub u32);

impl NodeNumber {
    /// Nobody's number.
    pub const NONE: NodeNumber = NodeNumber(0);
}

/// Why a call has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CallError {
    /// The connection broke after the request may have left: the outcome is unknown.
    #[error("the connection broke; the outcome is unknown")]
    Disconnected,
    /// The deadline passed: the outcome is unknown.
    #[error("no reply in time; the outcome is unknown")]
    Timeout,
    /// The request was not sent: no address, or no connection could be made.
    #[error("unreachable; nothing was sent")]
    Unreachable,
    /// The request was not sent: the peer's hello was a refusal, or not from whom we wanted.
    #[error("refused at hello; nothing was sent")]
    Refused,
    /// The request was not sent: too many wait for this peer already.
    #[error("too many calls wait for this peer; nothing was sent")]
    Overloaded,
    /// The request was not sent: its body or payload is above the frame's bounds.
    #[error("the request is larger than a frame may be; nothing was sent")]
    TooLarge,
    /// Whoever answers was in this process, and is no more. Nobody will be there again.
    #[error("the servers in this process have ended; the outcome is unknown")]
    Ended,
}

impl CallError {
    /// Whether the request may have been executed.
    pub fn outcome_unknown(self) -> bool {
        match self {
            CallError::Disconnected | CallError::Timeout | CallError::Ended => true,
            CallError::Unreachable
            | CallError::Refused
            | CallError::Overloaded
            | CallError::TooLarge => false,
        }
    }
}
