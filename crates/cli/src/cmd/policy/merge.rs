//! `saker policy merge`

use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::fail::{Context, Failure, Outcome};

/// Merge what was done in a decoupled subtree: from then on others see it, all at once.
///
/// PATH is in a mount of this machine: its client holds the subtree, and goes on with it afterwards.
/// Where others have changed the same names meanwhile, what was done through this mount counts;
/// directories of others that are in the way get the name NAME.conflict-NUMBER.
#[derive(clap::Args)]
pub struct Args {
    /// The subtree's directory, or a place in it.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Only say how many names would be merged, and which of them others have changed.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Reading it says what would be merged; setting it merges.
const MERGE: &str = "user.saker.policy.merge";
/// What the last merge did.
const MERGED: &str = "user.saker.policy.merged";
/// Largest value of an extended attribute (XATTR_SIZE_MAX).
const VALUE_BYTES_MAX: usize = 64 << 10;

#[derive(serde::Deserialize)]
struct Report {
    names: u64,
    kept_back: u64,
    conflict_count: u64,
    conflicts: Vec<Conflict>,
}

#[derive(serde::Deserialize)]
struct Conflict {
    name: String,
}

pub fn run(args: &Args) -> Outcome<u8> {
    let mut text = report(&args.path, MERGE)?;
    if !args.dry_run {
        setxattr(&args.path, MERGE, b"", XattrFlags::empty())
            .map_err(|error| refused(&args.path, error))?;
        text = report(&args.path, MERGED)?;
    }
    if args.json {
        println!("{text}");
        return Ok(0);
    }
    let report: Report = serde_json::from_str(&text).about(args.path.display())?;
    let verb = if args.dry_run { "would be merged" } else { "merged" };
    println!("{} names {verb}", report.names);
    if report.kept_back > 0 {
        println!("{} changes are not merged yet", report.kept_back);
    }
    if report.conflict_count > 0 {
        println!("{} were changed by others, too:", report.conflict_count);
        for conflict in &report.conflicts {
            println!("  {}", conflict.name);
        }
        if report.conflict_count > report.conflicts.len() as u64 {
            println!("  ...");
        }
    }
    Ok(0)
}

fn report(path: &Path, attribute: &str) -> Outcome<String> {
    let mut value = vec![0; VALUE_BYTES_MAX];
    let bytes = getxattr(path, attribute, &mut value[..]).map_err(|error| refused(path, error))?;
    Ok(String::from_utf8_lossy(&value[..bytes]).into_owned())
}

fn refused(path: &Path, error: Errno) -> Failure {
    let why = match error {
        Errno::NODATA | Errno::OPNOTSUPP => "it is not in a mount of Saker".to_owned(),
        Errno::INVAL => "no policy is in force here under which something is merged".to_owned(),
        Errno::NOENT if path.exists() => {
            "this mount does not hold the subtree: it has nothing to merge".to_owned()
        }
        error => error.to_string(),
    };
    Failure::new(path.display(), why)
}
