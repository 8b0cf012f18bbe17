//! Subtrees that a client has for itself (Cudele): `servers` serves one in this process.

mod servers;

pub use servers::{KeptIn, PrivateServers};
