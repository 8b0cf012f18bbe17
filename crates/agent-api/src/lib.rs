//! What agents are asked, and their blocking clients (FanStore §5.4).
//!
//! A message is a frame: four bytes with its length, little-endian, and a protobuf message. Requests
//! of a connection are answered in order. The same messages go over TCP between agents, and over a
//! Unix socket from processes of the node, where a reply may carry a descriptor.
//!
//! This crate is what the preload library needs of agents: no threads, no executor.

// Read by programs of users: nothing that a simulation holds.
#![allow(clippy::disallowed_methods)]

mod frame;
mod local;
mod messages;
mod outputs;
mod remote;

pub use frame::{FRAME_BYTES_MAX, decode, encode};
pub use local::Local;
pub use messages::*;
pub use outputs::*;
pub use remote::Remote;

/// Of the messages; the first request of a connection says it.
pub const VERSION: u32 = 1;

/// Where agents listen for each other.
pub const PORT: u16 = 7460;

/// The agent's socket in its directory.
pub const SOCKET: &str = "agent.sock";
/// The staged datasets in an agent's directory.
pub const DATASETS: &str = "datasets";
/// Output files in an agent's directory: `outputs/NAME@VERSION/files/...`.
pub const OUTPUTS: &str = "outputs";
/// What the directory of a dataset's output files is called after its name.
pub const OUTPUT_SUFFIX: &str = ".out";
