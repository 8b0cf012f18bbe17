//! `saker dataset`: frozen datasets.

use std::fmt::Display;
use std::path::PathBuf;

use saker_dataset::{Dataset, Error};
use saker_types::Errno;

use crate::fail::{Failure, Outcome};
use crate::signals;

mod export;
mod freeze;
mod frozen;
mod info;
mod job;
mod list;
mod pack;
mod stage;
mod top;
mod unstage;
mod verify;

/// Make and use frozen datasets: many files packed into a few.
///
/// A dataset is a directory of partitions, which have the files, and dataset.json, which says what
/// they are. None of it changes once it is made.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Pack(pack::Args),
    Freeze(freeze::Args),
    Frozen(frozen::ListArgs),
    #[command(alias = "rm")]
    Remove(frozen::RemoveArgs),
    Gc(frozen::GcArgs),
    #[command(alias = "ls")]
    List(list::Args),
    Info(info::Args),
    Verify(verify::Args),
    Export(export::Args),
    Stage(stage::Args),
    Unstage(unstage::Args),
    Top(top::Args),
}

/// A dataset that is there.
#[derive(clap::Args)]
pub struct Packed {
    /// The dataset's directory.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl Packed {
    fn open(&self) -> Outcome<Dataset> {
        Dataset::open(&self.dir).map_err(failure)
    }
}

/// An error of a dataset says itself which file it is about.
fn failure(error: Error) -> Failure {
    Failure::new("dataset", error)
}

/// Says once that another command is waited for, and ends the wait at Ctrl-C.
fn waits_for(command: &'static str) -> impl FnMut() -> saker_types::Result<()> {
    let mut is_said = false;
    move || {
        if !std::mem::replace(&mut is_said, true) {
            crate::complain!("saker: waiting for {command} to end");
        }
        if signals::interrupted() { Err(Errno::EINTR.into()) } else { Ok(()) }
    }
}

/// Paths as they are printed: what is no text is replaced.
fn shown(path: &[u8]) -> impl Display {
    String::from_utf8_lossy(path).into_owned()
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<u8> {
    match &args.command {
        Command::Pack(args) => pack::run(args),
        Command::Freeze(args) => freeze::run(args),
        Command::Frozen(args) => frozen::list(args),
        Command::Remove(args) => frozen::remove(args),
        Command::Gc(args) => frozen::collect(args),
        Command::List(args) => list::run(args),
        Command::Info(args) => info::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Export(args) => export::run(args),
        Command::Stage(args) => stage::run(args),
        Command::Unstage(args) => unstage::run(args),
        Command::Top(args) => top::run(args),
    }
}
