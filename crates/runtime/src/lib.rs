//! The only door to the clock, randomness, threads, files, settings and telemetry.
//!
//! Everything above this crate asks here instead of the standard library, so that one place can
//! decide what time it is and what the dice say.

// This is the door.
#![allow(clippy::disallowed_methods)]

pub mod config;
pub mod fs;
pub mod net;
pub mod rand;
pub mod sim;
mod sync;
pub mod task;
pub mod telemetry;
pub mod thread;
pub mod time;
