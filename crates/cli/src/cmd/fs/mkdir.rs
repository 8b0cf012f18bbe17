//! `saker fs mkdir`.

use std::path::PathBuf;

use saker_types::{Errno, FileKind};

use crate::fail::{Context, Failure, Outcome};
use crate::session::{self, CliSession, ClusterArg, ClusterPath, each};

/// Make directories.
#[derive(clap::Args)]
pub struct Args {
    /// Also those above, and no error if it is there.
    #[arg(short, long)]
    parents: bool,
    /// Permission bits, octal (default: 777 less the umask).
    #[arg(short, long, value_parser = octal)]
    mode: Option<u32>,
    #[allow(missing_docs)]
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("not an octal mode".to_owned()),
    }
}

pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let (mut session, paths) = session::open(cluster, &args.paths)?;
    let mode = args.mode.unwrap_or(0o777);
    if args.mode.is_some() {
        session.who.umask = 0;
    }
    each(&paths, |path| match args.parents {
        true => make_all(&session, path, mode),
        false => make(&session, path, mode),
    })
}

fn make(session: &CliSession, path: &ClusterPath, mode: u32) -> Outcome {
    let (at, entry) = session.look(path, false)?;
    if entry.is_some() {
        return Err(Failure::new(path, Errno::EEXIST));
    }
    session.run(path, session.fs.mkdir(&session.who, &at, mode | FileKind::Directory.bits()))?;
    Ok(())
}

/// Makes a directory and those above it, as far as they are missing.
pub fn make_all(session: &CliSession, path: &ClusterPath, mode: u32) -> Outcome {
    let mut above = Vec::new();
    for name in path.path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
        above.push(b'/');
        above.extend_from_slice(name);
        let step = ClusterPath { path: above.clone(), shown: path.shown.clone() };
        let (at, entry) = session.look(&step, true)?;
        match entry {
            Some(entry) if entry.attr.is_dir() => continue,
            Some(_) => return Err(Failure::new(path, Errno::ENOTDIR)),
            None => {}
        }
        let made = session.fs.mkdir(&session.who, &at, mode | FileKind::Directory.bits());
        match session.fs.block_on(made) {
            // Somebody else made it at the same time.
            Err(error) if error.errno() == Errno::EEXIST => {}
            made => drop(made.about(path)?),
        }
    }
    Ok(())
}
