//! `saker journal`: reads and repairs journals (Cudele section 4.3).
//!
//! Journals of MNodes, of the coordinator and of clients that hold decoupled subtrees have one format. No
//! command but `apply` writes to a journal that it reads.

use std::path::PathBuf;

use crate::fail::Outcome;

mod apply;
mod describe;
mod erase;
mod export;
mod import;
mod inspect;
mod read;
#[cfg(test)]
mod tests;
mod write;

/// Read, copy, repair and apply journals.
///
/// A journal is a directory with files wal-0000000000000000 and so on. DIR may also be the directory
/// of an MNode's worker, of a coordinator or of a client's subtree, or one such file.
///
/// No command but apply changes the journal that it reads. One that is in use can be read: its end may look torn
/// then. A server or client must not run on a journal while it is replaced by another.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Apply(apply::Args),
    Inspect(inspect::Args),
    Export(export::Args),
    Import(import::Args),
    Erase(erase::Args),
}

/// The journal that is read.
#[derive(clap::Args)]
struct Source {
    /// The journal's directory, or one of its files.
    #[arg(value_name = "DIR")]
    from: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<u8> {
    match &args.command {
        Command::Apply(args) => apply::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
        Command::Erase(args) => erase::run(args),
    }
}
