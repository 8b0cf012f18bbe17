//! What the tests of Saker stand on: a reference model of POSIX, random operations, systems to
//! try them on, and a comparison that tells where they part.

// Tests watch real processes: the clock and the files here are the machine's.
#![allow(clippy::disallowed_methods)]

pub mod cluster;
pub mod compare;
pub mod copier;
pub mod fsx;
pub mod generate;
pub mod history;
pub mod libfs;
pub mod local;
pub mod loop_disk;
pub mod map;
pub mod model;
pub mod mounts;
pub mod node;
pub mod op;
pub mod raw;
pub mod seeds;
pub mod settings;
pub mod shell;
pub mod stress;
pub mod testbed;
pub mod torment;
pub mod wait;
pub mod world;
