//! Two-phase commit (docs/protocol.md, rules 10 to 14). One participant for all drivers: an owner
//! that moves or links files ([`driver`]), and the coordinator, which invalidates between
//! prepare and commit.

pub mod driver;
pub mod participant;
mod swap;
