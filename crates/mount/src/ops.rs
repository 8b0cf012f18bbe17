//! The operations: parse -> client call -> reply, one file for each group.

mod attr;
mod create;
mod dir;
mod file;
mod init;
mod link;
mod lock;
mod lookup;
mod misc;
mod undo;
mod xattr;

pub(crate) use dir::OpenDir;
pub(crate) use file::{OPEN_AGE_MAX, OpenFile};
#[cfg(test)]
pub(crate) use init::negotiate;
pub(crate) use link::protects_links;
pub(crate) use lock::Waiters;
