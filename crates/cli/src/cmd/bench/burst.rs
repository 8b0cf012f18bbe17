//! `saker bench burst`: bursts of operations in one directory after the other (FalconFS §6.5).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Common;
use super::content::Content;
use super::load::{Operation, Share, Until};
use super::phases::{Bench, Program};
use super::target::{DirPath, Target};
use crate::fail::{Failure, Outcome};

/// Measure bursts: all threads together write, then read, so many files of one directory before
/// they go on to the next one, as labelling does. Each size of a burst is compared with the first.
///
/// Every directory holds as many files as the largest burst has; they are made before, and
/// overwritten whole. What is read is compared with what was written.
///
/// Example:
///   saker bench burst --path /mnt/other --threads 64 --bursts 1,10,100 --seconds 5
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Sizes of bursts, in operations.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,10,100")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    bursts: Vec<u64>,
    /// Directories.
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    dirs: u32,
    /// Bytes of a file.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    size: u64,
}

/// What is done to each file.
#[derive(Clone, Copy)]
enum What {
    Make,
    Write,
    Read,
}

/// Draws operations for all workers from one sequence.
#[derive(Clone)]
struct BurstOp {
    what: What,
    burst: u64,
    dirs: Arc<Vec<DirPath>>,
    files_per_dir: u64,
    content: Arc<Vec<u8>>,
    next: Arc<AtomicU64>,
}

impl BurstOp {
    /// Directory and file of the `n`-th operation.
    fn nth(&self, n: u64) -> (usize, u64) {
        let (burst, within) = (n / self.burst, n % self.burst);
        let dirs = self.dirs.len() as u64;
        let round = burst / dirs;
        ((burst % dirs) as usize, (round * self.burst + within) % self.files_per_dir)
    }
}

impl<T: Target> Operation<T> for BurstOp {
    async fn run(&self, target: &T, _: usize, _: u64) -> io::Result<()> {
        let (dir, file) = self.nth(self.next.fetch_add(1, Ordering::Relaxed));
        let place = target.place(&self.dirs[dir], &format!("f{dir}-{file}"));
        match self.what {
            What::Make => return target.write(&place, &self.content).await,
            What::Write => return target.overwrite(&place, &self.content).await,
            What::Read => {}
        }
        match target.read(&place, self.content.len()).await? == self.content.as_slice() {
            true => Ok(()),
            false => Err(io::Error::other("other content than was written")),
        }
    }
}

impl Program for Args {
    fn common(&self) -> &Common {
        &self.common
    }

    fn phases<T: Target>(&self, bench: &mut Bench<T>) -> Outcome {
        let files_per_dir = self.bursts.iter().copied().max().unwrap_or(1);
        let make = BurstOp {
            what: What::Make,
            burst: files_per_dir,
            dirs: bench.make_dirs("b", self.dirs as usize)?,
            files_per_dir,
            content: Arc::new(Content::new(self.size, self.size as usize).bytes()),
            next: Arc::default(),
        };
        let all = Until { ops: Some(files_per_dir * u64::from(self.dirs)), time: None };
        let made = bench.unreported("making files", all, Share::Open, &make)?;
        if made.errors > 0 {
            return Err(Failure::new("bench burst", "not all files could be made"));
        }
        for (name, what) in [("write", What::Write), ("read", What::Read)] {
            for burst in &self.bursts {
                let operation =
                    BurstOp { what, burst: *burst, next: Arc::default(), ..make.clone() };
                let phase = format!("{name}, bursts of {burst}");
                bench.phase(&phase, bench.until, Share::Open, self.size, &operation)?;
                bench.ratio(&phase, &format!("{name}, bursts of {}", self.bursts[0]));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_stays_in_its_directory_and_the_next_goes_on() {
        let dirs = Arc::new(vec![DirPath::new(); 3]);
        let content = Arc::default();
        let next = Arc::default();
        let operation =
            BurstOp { what: What::Read, burst: 2, dirs, files_per_dir: 4, content, next };
        let places: Vec<_> = (0..8).map(|n| operation.nth(n)).collect();
        let expected = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (0, 2), (0, 3)];
        assert_eq!(places, expected);
    }
}
