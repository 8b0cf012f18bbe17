//! `saker bench small`: whole small files.

use std::io;
use std::sync::Arc;

use super::Common;
use super::content::Content;
use super::load::{Operation, Share, Until};
use super::phases::{Bench, Program};
use super::target::{DirPath, Target};
use crate::fail::Outcome;

/// Measure small files: write them (open, write, close), read them (open, read, close), and read
/// them again.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Bytes of a file.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    size: u64,
    /// Write so many files, however long that takes, and read these over and over: without it, who
    /// writes faster has more files to read.
    #[arg(long, value_name = "N", conflicts_with = "files")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    set: Option<u64>,
}

#[derive(Clone)]
struct SmallOp {
    dirs: Arc<Vec<DirPath>>,
    content: Arc<Vec<u8>>,
    /// Files of each worker that are there to be read; none: write.
    written: Option<Arc<Vec<u64>>>,
}

impl<T: Target> Operation<T> for SmallOp {
    async fn run(&self, target: &T, worker: usize, n: u64) -> io::Result<()> {
        let place = |n: u64| target.place(&self.dirs[worker], &format!("s{worker}-{n}"));
        match &self.written {
            None => target.write(&place(n), &self.content).await,
            Some(written) => {
                let place = place(n % written[worker].max(1));
                target.read(&place, self.content.len()).await.map(drop)
            }
        }
    }
}

impl Program for Args {
    fn common(&self) -> &Common {
        &self.common
    }

    fn phases<T: Target>(&self, bench: &mut Bench<T>) -> Outcome {
        let content = Arc::new(Content::new(self.size, self.size as usize).bytes());
        let write = SmallOp { dirs: bench.private_dirs()?, content, written: None };
        let until = bench.until;
        let set = self.set.map(|files| Until { ops: Some(files), time: None });
        let written = bench.phase("write", set.unwrap_or(until), Share::Open, self.size, &write)?;
        let share = Share::round(&written);
        let read = SmallOp { written: Some(Arc::new(written)), ..write };
        // The first time what was cached when it was written may have to go.
        for phase in ["read", "read, again"] {
            bench.phase(phase, until, share.clone(), self.size, &read)?;
        }
        Ok(())
    }
}
