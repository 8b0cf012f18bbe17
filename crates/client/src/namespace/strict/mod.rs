//! The strict namespace: each operation is a request to the owner of a name, and what is acknowledged
//! is durable and visible to all.

pub(crate) mod names;
pub(crate) mod readdir;
mod rename;
pub(crate) mod reports;
pub(crate) mod statfs;
mod xattr;

use std::sync::Arc;

use saker_types::wire::At;
use saker_types::{Errno, Error, Result, limits};

use crate::core::Core;

/// The namespace of the shards. It keeps nothing of its own.
#[derive(Clone, Copy)]
pub(crate) struct Strict<'a>(pub(crate) &'a Arc<Core>);

/// Refuses places that no server would take; the server judges the rest.
pub(crate) fn check_place(at: &At) -> Result<()> {
    if let Some(long) = at.path.iter().position(|name| name.len() > limits::NAME_BYTES_MAX) {
        return Err(Error::at(Errno::ENAMETOOLONG, long));
    }
    if at.path.len() > limits::COMPONENTS_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
