//! Where things are in the header of a ring's entry (`struct fuse_uring_req_header`).

use std::ops::Range;

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 288;
/// [`InHeader`](super::InHeader) of a request, [`OutHeader`](super::OutHeader) of its answer.
pub(crate) const IN_OUT: Range<usize> = 0..128;
/// The operation's structure.
pub(crate) const OP_IN: Range<usize> = 128..256;
/// [`RingEntInOut`](super::RingEntInOut).
pub(crate) const ENT_IN_OUT: Range<usize> = 256..HEADER_BYTES;
