//! The agents of a job: which there are, asking them, starting one.

pub mod agents;
pub mod daemon;
pub mod nodes;
