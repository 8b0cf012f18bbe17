//! Open files and their data: in the rows of small ones, else in chunks on stores, or from a source
//! elsewhere.

pub(crate) mod ahead;
pub(crate) mod chunk_io;
pub(crate) mod failing_stores;
pub(crate) mod file;
pub(crate) mod holds;
pub(crate) mod idle;
pub(crate) mod lease;
pub(crate) mod memory;
pub(crate) mod open_inode;
pub(crate) mod ranges;
pub(crate) mod read;
pub(crate) mod short_circuit;
pub(crate) mod source;
pub(crate) mod sparse;
pub(crate) mod write;
