//! The commands, one file each.

pub mod down;
pub mod serve;
pub mod supervise;
pub mod up;
