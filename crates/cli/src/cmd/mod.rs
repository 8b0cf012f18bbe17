//! The commands, one file each.

pub mod bench;
pub mod dataset;
pub mod down;
pub mod fs;
pub mod fsck;
pub mod journal;
pub mod mount;
pub mod policy;
pub mod rmr;
pub mod serve;
pub mod status;
pub mod supervise;
pub mod up;
