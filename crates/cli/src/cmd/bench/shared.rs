//! `saker bench shared`: all workers in one directory (FalconFS §6.5).

use super::Common;
use super::meta::{Entries, MetaAction};
use super::phases::{Bench, Program};
use super::target::Target;
use crate::fail::Outcome;

/// Measure one directory in which all work: create, getattr and unlink, each after the same in
/// private directories, and the ratio of the two.
///
/// Example:
///   saker bench shared --path /mnt/other --threads 128 --seconds 5
///   saker bench shared --path /mnt/a --path /mnt/b --threads 2
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

impl Program for Args {
    fn common(&self) -> &Common {
        &self.common
    }

    fn phases<T: Target>(&self, bench: &mut Bench<T>) -> Outcome {
        let private = Entries { label: ", private", dirs: bench.private_dirs()? };
        let shared = Entries { label: ", shared", dirs: bench.make_dirs("shared", 1)? };
        let both = [private, shared];
        let mut files = Vec::new();
        for entries in &both {
            files.push(entries.make(bench, MetaAction::Create)?);
        }
        for (entries, files) in both.iter().zip(&files) {
            entries.look(bench, MetaAction::Getattr, files)?;
        }
        for (entries, files) in both.iter().zip(files) {
            entries.remove(bench, MetaAction::Unlink, &files)?;
        }
        for what in ["create", "getattr", "unlink"] {
            bench.ratio(&format!("{what}, shared"), &format!("{what}, private"));
        }
        Ok(())
    }
}
