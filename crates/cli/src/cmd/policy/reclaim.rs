//! `saker policy reclaim`.

use std::path::PathBuf;

use crate::fail::Outcome;
use crate::session::{self, ClusterArg, each};

/// End the hold of a subtree whose client has died.
///
/// Under a policy that is weak or invisible with durability global, what that client has saved in the
/// cluster is merged first, so that others see it: what it has done up to its last fsync, sync or
/// merge. Under any other, what it has not merged does not become part of the namespace. If its
/// journal is on a machine that comes back, do not reclaim the subtree, but mount there again with the
/// same journal_dir: the mount goes on with it.
#[derive(clap::Args)]
pub struct Args {
    /// The subtrees' directories, or places in them.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Also from a client that lives; for the superuser.
    #[arg(long)]
    force: bool,
    /// Do not merge what is saved in the cluster: it is lost.
    #[arg(long)]
    discard: bool,
}

/// Runs the command.
pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let (session, paths) = session::open(cluster, &args.paths)?;
    each(&paths, |path| {
        let (at, _) = session.find(path, true)?;
        match args.discard {
            true => session.run(path, session.fs.give_up(&session.who, &at, args.force)),
            false => session.run(path, session.fs.reclaim(&session.who, &at, args.force)),
        }
    })
}
