//! `saker dataset export`: a dataset as ordinary files.

use std::path::PathBuf;

use saker_dataset::Error;

use super::{Packed, failure};
use crate::fail::Outcome;
use crate::progress::Progress;
use crate::{format, signals};

/// Write the files of a dataset out as ordinary files.
///
/// Owners and extended attributes are set as far as this user may set them.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    dataset: Packed,
    /// Where to: a directory that is empty or not there.
    #[arg(value_name = "TO")]
    to: PathBuf,
}

pub fn run(args: &Args) -> Outcome<u8> {
    signals::catch_interrupt();
    let dataset = args.dataset.open()?;
    let manifest = dataset.manifest();
    let bar = Progress::of_bytes(manifest.bytes);
    let exported = dataset.export(&args.to, |bytes| {
        bar.add(bytes);
        if signals::interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    });
    bar.done();
    let left_out = exported.map_err(failure)?;
    println!("{} files, {}", manifest.files, format::bytes(manifest.bytes));
    if left_out > 0 {
        crate::complain!("{left_out} devices are left out: only root can make them");
    }
    Ok(0)
}
