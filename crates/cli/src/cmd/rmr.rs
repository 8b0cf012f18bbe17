//! `saker rmr`: parallel removal of a tree.

use std::path::PathBuf;

use crate::fail::Outcome;
use crate::session::{self, ClusterArg, each};

/// Remove directories with all that is in them, with many requests at once.
///
/// Much faster than rm -r on a mount. PATH is a path in the cluster; a path below a Saker mount
/// is translated.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArg,
    #[allow(missing_docs)]
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<u8> {
    let (session, paths) = session::open(&args.cluster, &args.paths)?;
    each(&paths, |path| {
        let (at, entry) = session.find(path, false)?;
        if entry.attr.is_dir() {
            super::fs::remove_tree(&session, path, &at, &entry)
        } else {
            session.run(path, session.fs.unlink(&session.who, &at)).map(drop)
        }
    })
}
