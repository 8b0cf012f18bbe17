//! `saker policy sync`

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::fail::{Context, Failure, Outcome};
use crate::mountpoint;

/// Make durable what was done in a subtree and answered, where its policy keeps it.
///
/// Under a policy that is weak or invisible with durability global, the journal of the mount that
/// holds the subtree is saved in the cluster: what was done until now outlives the mount and its
/// machine. With durability local it is on the disk of the mount's machine afterwards, and with none
/// nothing is kept. Under strong/none the journals of the MNodes are flushed. Under any other policy
/// everything is durable already.
///
/// PATH is in a mount of this machine. The same is done by fsync(2) of a directory in the subtree, and
/// for weak and invisible policies every sync_interval.
#[derive(clap::Args)]
pub struct Args {
    /// The subtrees' directories, or places in them.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(args: &Args) -> Outcome<u8> {
    for path in &args.paths {
        sync(path)?;
    }
    Ok(0)
}

fn sync(path: &Path) -> Outcome {
    if mountpoint::inside(path)?.is_none() {
        return Err(Failure::new(path.display(), "it is not in a mount of Saker"));
    }
    let dir = match path.is_dir() {
        true => path,
        false => path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")),
    };
    let opened = File::open(dir).about(dir.display())?;
    opened.sync_all().map_err(|error| match error.raw_os_error() {
        Some(libc::ESTALE) => {
            let why = "this mount has lost its hold of the subtree, and what it had not saved";
            Failure::new(path.display(), why)
        }
        _ => Failure::new(path.display(), format!("it is not durable: {error}")),
    })
}
