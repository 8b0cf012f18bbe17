//! `saker fs du`.

use std::path::PathBuf;

use crate::fail::{Failure, Outcome};
use crate::format;
use crate::progress::Progress;
use crate::session::{self, CliSession, ClusterArg, ClusterPath, each};
use crate::signals;
use crate::tree::{Met, walk};

/// Count the bytes and entries of trees.
///
/// Sizes are those of stat: holes count, copies on several stores do not.
#[derive(clap::Args)]
pub struct Args {
    /// Sizes with units, as 1.5G.
    #[arg(short = 'H', long)]
    human: bool,
    #[allow(missing_docs)]
    #[arg(value_name = "PATH", default_value = "/")]
    paths: Vec<PathBuf>,
}

pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let (session, paths) = session::open(cluster, &args.paths)?;
    signals::catch_interrupt();
    each(&paths, |path| du(&session, path, args.human))
}

fn du(session: &CliSession, path: &ClusterPath, human: bool) -> Outcome {
    let (_, entry) = session.find(path, false)?;
    let (mut bytes, mut entries, mut failures) = (entry.attr.size, 1u64, 0u64);
    if entry.attr.is_dir() {
        bytes = 0;
        let progress = Progress::counting("entries");
        let shown = path.to_string().into_bytes();
        let visit = |met: Met<'_>| {
            match met {
                Met::Entry(_, item) => {
                    entries += 1;
                    progress.add(1);
                    if !item.attr.is_dir() {
                        bytes += item.attr.size;
                    }
                }
                Met::Failed(path, error) => {
                    failures += 1;
                    let path = String::from_utf8_lossy(path);
                    progress.error(&format!("saker: {path}: {error}"));
                }
            }
            true
        };
        let ended = walk(&session.fs, &session.who, &entry.loc, &shown, visit);
        progress.done();
        if !ended {
            return Err(Failure::new(path, "interrupted"));
        }
    }
    let size = if human { format::bytes(bytes) } else { bytes.to_string() };
    println!("{size}\t{entries}\t{path}");
    match failures {
        0 => Ok(()),
        n => Err(Failure::new(path, format!("{n} directories could not be read"))),
    }
}
