#![allow(clippy::unwrap_used)]
//! A store on simulated disks, against a model that knows for each byte what it may be.

mod conforms;
mod deleted;
pub mod disk;
mod epochs;
mod faults;
mod model;
mod place;
mod random;
mod stress;
