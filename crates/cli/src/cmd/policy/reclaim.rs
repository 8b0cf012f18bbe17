//! `saker policy reclaim`.

use std::path::PathBuf;

use crate::fail::Outcome;
use crate::session::{self, ClusterArg, each};

/// End the hold of a subtree whose client has died.
///
/// What that client has not merged does not become part of the namespace. If its journal is on a
/// machine that comes back, do not reclaim the subtree, but mount there again with the same
/// journal_dir: the mount goes on with it.
#[derive(clap::Args)]
pub struct Args {
    /// The subtrees' directories, or places in them.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Also from a client that lives; for the superuser.
    #[arg(long)]
    force: bool,
}

/// Runs the command.
pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let (session, paths) = session::open(cluster, &args.paths)?;
    each(&paths, |path| {
        let (at, _) = session.find(path, true)?;
        session.run(path, session.fs.reclaim(&session.who, &at, args.force))
    })
}
