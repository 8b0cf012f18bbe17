//! Pure data of Saker: identities, attributes, errors, placement, wire messages, the change
//! format of the journal. No I/O, no clock, no async.
//!
//! Start with [`id`] and [`inode`] for what a row is, [`placement`] for where it lives,
//! [`wire`] for what travels, [`change`] for what the journals hold.

pub mod access;
pub mod acl;
pub mod change;
pub mod error;
pub mod id;
pub mod inode;
pub mod limits;
pub mod name;
pub mod placement;
pub mod policy;
pub mod slot;
pub mod time;
pub mod wire;

pub use access::{Access, Cred};
pub use error::{Class, Errno, Error, Result};
pub use id::{FROZEN_DATASETS_MAX, InodeId, NodeId, ROOT, ShardNo, StoreNo, TxnId};
pub use inode::{Attr, FileKind, Inode, Locator, Unflushed};
pub use name::{Key, check_name};
pub use placement::ClusterMap;
pub use time::Stamp;
