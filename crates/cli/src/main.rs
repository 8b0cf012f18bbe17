//! `saker`: the roles of a Saker cluster and the tools around it, in one program.
//!
//! [`args`] says what the command line looks like, [`cmd`] has one file per command. A command
//! returns its exit code, or a [`fail::Failure`], which is printed as one line here.

// The files here are the user's, the kernel's (/proc) and settings of a cluster's directory, and
// no simulation holds them. Clock, chance and threads go through the runtime all the same.
#![allow(clippy::disallowed_methods)]

mod args;
mod cmd;
mod fail;
mod format;
mod layout;
mod memory;
mod mountpoint;
mod ports;
mod probe;
mod process;
mod procfs;
mod progress;
mod session;
mod signals;
mod supervisor;
mod tree;
mod wire;

use std::process::ExitCode;

use mimalloc::MiMalloc;

// A request and its reply are some small allocations, often freed by another thread. Without huge
// pages, which gain nothing here: with them a mount took 80 MiB instead of 58.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let (name, outcome) = args::parse_and_run();
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            crate::complain!("{name}: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
