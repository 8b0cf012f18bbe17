//! `saker fs cat`.

use std::io::Write;
use std::path::PathBuf;

use saker_client::OpenFlags;

use crate::fail::{Context, Outcome};
use crate::session::{self, CliSession, ClusterArg, ClusterPath, each};

/// Write the content of files to the standard output.
#[derive(clap::Args)]
pub struct Args {
    #[allow(missing_docs)]
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

/// Bytes read at once.
const PIECE: usize = 1 << 20;

pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let (session, paths) = session::open(cluster, &args.paths)?;
    each(&paths, |path| cat(&session, path))
}

fn cat(session: &CliSession, path: &ClusterPath) -> Outcome {
    let (at, _) = session.find(path, true)?;
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    let (file, _) = session.run(path, session.fs.open(&session.who, &at, flags))?;
    let mut out = std::io::stdout().lock();
    let mut offset = 0;
    let copied = loop {
        let piece = match session.run(path, file.read(offset, PIECE)) {
            Ok(piece) if piece.is_empty() => break Ok(()),
            Ok(piece) => piece,
            Err(failure) => break Err(failure),
        };
        if let Err(error) = out.write_all(&piece) {
            break Err(error).about("standard output");
        }
        offset += piece.len() as u64;
    };
    session.fs.block_on(file.release());
    copied
}
