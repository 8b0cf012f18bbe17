//! `saker dataset info`: what a dataset is.

use saker_dataset::Manifest;

use super::{Packed, failure};
use crate::fail::{Context, Outcome};
use crate::format;

/// Say what a dataset is: files, bytes, partitions, digest.
///
/// The digest is of names, contents and targets of links: who has a dataset with the same digest
/// has the same data, however it was packed.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    dataset: Packed,
    /// Print one JSON document: what dataset.json says.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Outcome<u8> {
    let manifest = Manifest::read(&args.dataset.dir).map_err(failure)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&manifest).about("json")?);
        return Ok(0);
    }
    let stored: u64 = manifest.partitions.iter().map(|part| part.stored).sum();
    println!("digest       {}", manifest.digest);
    println!("files        {}", manifest.files);
    println!("directories  {}", manifest.directories);
    println!("others       {}", manifest.others);
    println!("bytes        {} ({})", manifest.bytes, format::bytes(manifest.bytes));
    println!("on disk      {stored} ({})", format::bytes(stored));
    println!("partitions   {}", manifest.partitions.len());
    for part in &manifest.partitions {
        println!("  {}  {} files, {}", part.name, part.files, format::bytes(part.stored));
    }
    Ok(0)
}
