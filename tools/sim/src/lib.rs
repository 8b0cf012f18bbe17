//! What the tests of Saker stand on: a reference model of POSIX, random operations, systems to
//! try them on, and a comparison that tells where they part.

pub mod cluster;
pub mod compare;
pub mod generate;
pub mod libfs;
pub mod local;
pub mod model;
pub mod op;
pub mod raw;
pub mod settings;
