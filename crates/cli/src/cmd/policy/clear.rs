//! `saker policy clear`.

use std::path::PathBuf;

use crate::fail::Outcome;
use crate::session::{self, ClusterArg, each};

/// Take a directory's own policy away.
///
/// That of a directory above is in force then, or none. Does nothing where a directory has none of its
/// own. While a client holds the subtree: EBUSY.
#[derive(clap::Args)]
pub struct Args {
    /// The directories.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let (session, paths) = session::open(cluster, &args.paths)?;
    each(&paths, |path| {
        let (at, _) = session.find(path, true)?;
        session.run(path, session.fs.clear_policy(&session.who, &at))
    })
}
