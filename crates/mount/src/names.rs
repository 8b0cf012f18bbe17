//! What the kernel knows by which names: the one place where a walk of its becomes a path that
//! servers are asked for.
//!
//! `nodes` has what the kernel holds, `hint` tells what a LOOKUP is for, and `threads` where the
//! walk that it is a part of began.

pub mod hint;
pub(crate) mod nodes;
pub(crate) mod threads;
pub(crate) mod walk;
