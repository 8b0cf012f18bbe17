//! The kernel's FUSE protocol, and nothing of Saker.
//!
//! [`FuseTransport`] takes requests from `/dev/fuse` or by io_uring and gives each to a [`Dispatch`],
//! whose [`Reply`] goes back; [`Device::notify`] tells the kernel what it has not asked for. A
//! [`Request`] can be made without a kernel, too, so that whatever serves a mount can be driven by
//! somebody who plays it.

pub mod abi;
mod notify;
mod reply;
mod request;
mod transport;

pub use notify::Notification;
pub use reply::Reply;
pub use request::{Body, Request};
pub use transport::{
    Device, Dispatch, EventLoop, FuseTransport, LONG_WAITS_MAX, MAX_WRITE_BYTES, Mode, Shape,
    TransportInUse,
};
