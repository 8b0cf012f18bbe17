//! `saker policy set`.

use std::path::{Path, PathBuf};

use saker_types::policy::Policy;

use super::written;
use crate::fail::{Failure, Outcome};
use crate::session::{self, ClusterArg};

/// Give a directory a policy, in place of the one that it has.
///
/// It counts from when the command ends, for all clients. What is already there stays as it is. While a
/// client holds the subtree, the policy cannot be changed: EBUSY.
///
/// A file with an unknown or repeated key, a value of the wrong type, or a composition that makes no
/// sense is refused with its position, and nothing is changed.
#[derive(clap::Args)]
pub struct Args {
    /// The directory.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The policy in YAML or JSON; - is the standard input.
    #[arg(value_name = "FILE", conflicts_with = "keys", required_unless_present = "keys")]
    file: Option<PathBuf>,
    #[command(flatten)]
    keys: written::GivenKeys,
}

/// Runs the command.
pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let policy = given(&args.keys, args.file.as_deref())?;
    let (session, paths) = session::open(cluster, std::slice::from_ref(&args.path))?;
    for path in &paths {
        let (at, _) = session.find(path, true)?;
        session.run(path, session.fs.set_policy(&session.who, &at, &policy))?;
    }
    Ok(0)
}

fn given(keys: &written::GivenKeys, file: Option<&Path>) -> Outcome<Policy> {
    match (keys.policy()?, file) {
        (Some(policy), _) => Ok(policy),
        (None, Some(file)) => written::read(file),
        (None, None) => Err(Failure::usage("policy", "neither a file nor a key is given")),
    }
}
