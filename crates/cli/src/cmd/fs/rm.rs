//! `saker fs rm`, and what `saker rmr` shares with it.

use std::path::PathBuf;

use saker_types::Errno;
use saker_types::wire::{At, Entry};

use crate::fail::{Failure, Outcome};
use crate::progress::Progress;
use crate::session::{self, CliSession, ClusterArg, ClusterPath, each};
use crate::signals;
use crate::tree::Removal;

/// Remove files and, with -r, directories.
#[derive(clap::Args)]
pub struct Args {
    /// Directories with all that is in them; many requests at once.
    #[arg(short, long)]
    recursive: bool,
    /// No error if it is not there.
    #[arg(short, long)]
    force: bool,
    #[allow(missing_docs)]
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let (session, paths) = session::open(cluster, &args.paths)?;
    each(&paths, |path| {
        let (at, entry) = session.look(path, false)?;
        match entry {
            None if args.force => Ok(()),
            None => Err(Failure::new(path, Errno::ENOENT)),
            Some(entry) if !entry.attr.is_dir() => {
                session.run(path, session.fs.unlink(&session.who, &at)).map(drop)
            }
            Some(_) if !args.recursive => Err(Failure::new(path, "is a directory (-r removes it)")),
            Some(entry) => remove_tree(&session, path, &at, &entry),
        }
    })
}

/// Removes a directory with all that is in it.
pub fn remove_tree(session: &CliSession, path: &ClusterPath, at: &At, entry: &Entry) -> Outcome {
    if at.path.is_empty() && entry.attr.id == saker_types::ROOT {
        return Err(Failure::new(path, "the root directory cannot be removed"));
    }
    signals::catch_interrupt();
    let progress = Progress::counting("removed");
    let tell = |removed: crate::tree::RemovalCounts,
                failure: Option<(&[u8], &saker_types::Error)>| {
        progress.set(removed.dirs + removed.others);
        if let Some((path, error)) = failure {
            progress.error(&format!("saker: {}: {error}", String::from_utf8_lossy(path)));
        }
    };
    let removal = Removal::new(&session.fs, &session.who, tell);
    let shown = path.to_string().into_bytes();
    let removed = session.fs.block_on(removal.run(entry.loc.clone(), at.clone(), shown));
    progress.done();
    if signals::interrupted() {
        let n = removed.dirs + removed.others;
        return Err(Failure::new(path, format!("interrupted; {n} entries were removed")));
    }
    match removed.failures {
        0 => Ok(()),
        n => Err(Failure::new(path, format!("{n} entries could not be removed"))),
    }
}
