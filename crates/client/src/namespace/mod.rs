//! Names and attributes: what the owners of names are asked for.

pub(crate) mod groups;
pub(crate) mod names;
pub(crate) mod path;
pub(crate) mod readdir;
pub(crate) mod reports;
pub(crate) mod seen;
pub(crate) mod statfs;
pub(crate) mod xattr;
