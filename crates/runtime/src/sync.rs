//! What threads share goes by these names: `tools/specs` compiles the files that use them once
//! more, with types whose interleavings a checker chooses.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};
