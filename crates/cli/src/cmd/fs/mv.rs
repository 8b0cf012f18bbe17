//! `saker fs mv`.

use std::path::PathBuf;

use crate::fail::{Failure, Outcome};
use crate::session::{self, ClusterArg, each};

/// Rename, or move into a directory.
#[derive(clap::Args)]
pub struct Args {
    /// Do not replace what is there.
    #[arg(short)]
    no_clobber: bool,
    /// Exchange the two.
    #[arg(long, conflicts_with = "no_clobber")]
    exchange: bool,
    /// What to move.
    #[arg(value_name = "FROM", required = true)]
    from: Vec<PathBuf>,
    /// New name, or the directory to move into.
    #[arg(value_name = "TO")]
    to: PathBuf,
}

pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let all: Vec<PathBuf> = args.from.iter().chain([&args.to]).cloned().collect();
    let (session, mut paths) = session::open(cluster, &all)?;
    let Some(to) = paths.pop() else { return Ok(0) };
    if paths.len() > 1 && !session.find(&to, true)?.1.attr.is_dir() {
        return Err(Failure::usage(&to, saker_types::Errno::ENOTDIR));
    }
    each(&paths, |from| {
        let to = match args.exchange {
            true => to.clone(),
            false => super::destination(&session, &to, from.file_name())?,
        };
        let (from_at, _) = session.find(from, false)?;
        let (to_at, _) = session.look(&to, false)?;
        let (fs, who) = (&session.fs, &session.who);
        if args.exchange {
            return session.run(from, fs.exchange(who, &from_at, &to_at, [&[], &[]])).map(drop);
        }
        let renamed = fs.rename(who, &from_at, &to_at, args.no_clobber, &[]);
        session.run(from, renamed).map(drop)
    })
}
