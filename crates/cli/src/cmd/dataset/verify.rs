//! `saker dataset verify`: compares a dataset with its checksums.

use std::io::Write;

use saker_dataset::Error;
use serde_json::json;

use super::{Packed, failure, shown};
use crate::fail::{Context, FAILED, Outcome};
use crate::progress::Progress;
use crate::{format, signals};

/// Read a whole dataset and compare it with its checksums and digests.
///
/// Exits with 1 if anything is wrong, and names it.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    dataset: Packed,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Outcome<u8> {
    signals::catch_interrupt();
    let dataset = args.dataset.open()?;
    let manifest = dataset.manifest();
    let bar = Progress::of_bytes(manifest.bytes);
    let problems = dataset.verify(|bytes| {
        bar.add(bytes);
        if signals::interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    });
    bar.done();
    let problems = problems.map_err(failure)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let problems: Vec<_> = problems
            .iter()
            .map(|problem| {
                let path = problem.path.as_deref().map(|path| shown(path).to_string());
                json!({ "path": path, "what": problem.what })
            })
            .collect();
        let all = json!({
            "digest": manifest.digest, "files": manifest.files, "bytes": manifest.bytes,
            "problems": problems,
        });
        writeln!(out, "{all:#}").about("stdout")?;
    } else {
        for problem in &problems {
            match &problem.path {
                Some(path) => writeln!(out, "{}: {}", shown(path), problem.what),
                None => writeln!(out, "{}", problem.what),
            }
            .about("stdout")?;
        }
        let (files, bytes) = (manifest.files, format::bytes(manifest.bytes));
        match problems.len() {
            0 => writeln!(out, "{files} files, {bytes}: as they were packed"),
            n => writeln!(out, "{files} files, {bytes}: {n} problems"),
        }
        .about("stdout")?;
    }
    Ok(if problems.is_empty() { 0 } else { FAILED })
}
