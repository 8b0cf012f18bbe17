//! `saker bench traverse`: every file of a tree once, in random order (FalconFS §6.4).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use saker_runtime::rand::{self, Rng};

use super::Common;
use super::content::Content;
use super::load::{Operation, Share, Until};
use super::phases::{Bench, Program};
use super::target::{DirPath, Target};
use crate::fail::{Context, Failure, Outcome};
use crate::signals;

/// Measure a random traversal of a tree: open, read, compare and close each file once.
///
/// --depth levels of directories, --fanout in each, hold --files files (default: 100000) of --size
/// bytes, evenly spread over the directories of the last level. Contents follow from the number of
/// the file, and all of what is read is compared. For a cluster the requests that its MNodes
/// served for each operation are told, and the bytes that its stores read.
///
/// Without --prepare and --read the tree is made, read and removed. With them, what is between is
/// yours: unmount, mount, drop caches.
///
/// Examples:
///   saker bench traverse --path /mnt/other --prepare --depth 7 --fanout 4 --files 1000000
///   saker bench traverse --path /mnt/other --read --depth 7 --fanout 4 --files 1000000 --json
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Directories in each directory above the last level.
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    fanout: u64,
    /// Bytes of a file.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    size: u64,
    /// Only make the tree, as saker-bench-tree, and leave it there. One that is there is kept if it
    /// is of the same shape, and is an error otherwise.
    #[arg(long, conflicts_with = "read")]
    prepare: bool,
    /// Only read the tree that --prepare has left.
    #[arg(long)]
    read: bool,
}

/// Name of a tree that is left.
const KEPT: &str = "saker-bench-tree";
/// File in the tree that says what it is, written when the tree is whole.
const LABEL: &str = "tree";
const FILES_DEFAULT: u64 = 100_000;
/// Directories of a tree: more are a slip of the hand.
const DIRS_MAX: u64 = 100_000_000;

/// The shape of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tree {
    levels: u32,
    fanout: u64,
    files: u64,
    size: u64,
}

impl Tree {
    /// Directories of one level.
    fn dirs(&self, level: u32) -> u64 {
        self.fanout.saturating_pow(level)
    }

    /// The `n`-th directory of a level.
    fn dir(&self, level: u32, n: u64) -> DirPath {
        (1..=level).map(|above| format!("d{}", n / self.dirs(level - above))).collect()
    }

    /// Directory and name of the `n`-th file.
    fn file(&self, n: u64) -> (DirPath, String) {
        (self.dir(self.levels, n % self.dirs(self.levels)), format!("f{n}"))
    }

    /// What the `n`-th file holds.
    fn content(&self, n: u64) -> Content {
        Content::new(n, self.size as usize)
    }

    /// What the tree says of itself.
    fn label(&self) -> String {
        let Tree { levels, fanout, files, size } = self;
        format!("{levels} levels of {fanout} directories, {files} files of {size} bytes\n")
    }
}

/// What is done to each entry of a tree.
#[derive(Clone)]
enum Step {
    /// Makes the directories of a level.
    Mkdir(u32),
    /// Writes the files.
    Write,
    /// Reads them in this order.
    Read(Arc<Vec<u64>>),
}

#[derive(Clone)]
struct TreeOp {
    tree: Tree,
    step: Step,
    /// Workers draw from one sequence.
    next: Arc<AtomicU64>,
}

impl<T: Target> Operation<T> for TreeOp {
    async fn run(&self, target: &T, _: usize, _: u64) -> io::Result<()> {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let place = |n: u64| {
            let (dir, name) = self.tree.file(n);
            target.place(&dir, &name)
        };
        match &self.step {
            Step::Mkdir(level) => {
                let above = self.tree.dir(level - 1, n / self.tree.fanout);
                target.mkdir(&target.place(&above, &format!("d{n}"))).await
            }
            Step::Write => target.write(&place(n), &self.tree.content(n).bytes()).await,
            Step::Read(order) => {
                let n = order[n as usize];
                let content = target.read(&place(n), self.tree.size as usize).await?;
                match self.tree.content(n).is(&content) {
                    true => Ok(()),
                    false => Err(io::Error::other("other content than was written")),
                }
            }
        }
    }
}

/// All numbers below `count` in random order.
fn shuffled(count: u64, rng: &mut Rng) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
    order
}

impl Args {
    fn tree(&self) -> Outcome<Tree> {
        let files = self.common.files.unwrap_or(FILES_DEFAULT);
        let tree = Tree { levels: self.common.depth, fanout: self.fanout, files, size: self.size };
        match tree.dirs(tree.levels) <= DIRS_MAX {
            true => Ok(tree),
            false => Err(Failure::usage("--depth", "too many directories with this --fanout")),
        }
    }
}

impl Program for Args {
    fn common(&self) -> &Common {
        &self.common
    }

    fn kept_dir(&self) -> Option<&'static str> {
        (self.prepare || self.read).then_some(KEPT)
    }

    fn phases<T: Target>(&self, bench: &mut Bench<T>) -> Outcome {
        let tree = self.tree()?;
        if self.read || self.prepare {
            let there = is_there(bench, &tree)?;
            if self.read && !there {
                return Err(Failure::new("bench traverse", "there is no tree: --prepare makes it"));
            }
            if self.prepare && there {
                return Ok(());
            }
        }
        if self.prepare {
            let context = format!("bench: making {KEPT} (a broken one is yours to remove)");
            bench.target.make_base().about(context)?;
        }
        if !self.read {
            make(bench, tree)?;
        }
        match self.prepare {
            true => Ok(()),
            false => read(bench, tree, self.common.time()?),
        }
    }
}

/// Is a whole tree of this shape there? An error if it is of another one.
fn is_there<T: Target>(bench: &Bench<T>, tree: &Tree) -> Outcome<bool> {
    let target = &bench.target;
    let (place, label) = (target.place(&DirPath::new(), LABEL), tree.label());
    match target.block_on(target.read(&place, label.len())) {
        Err(_) => Ok(false),
        Ok(found) if found == label.as_bytes() => Ok(true),
        Ok(_) => Err(Failure::new("bench traverse", "the tree that is there has another shape")),
    }
}

fn make<T: Target>(bench: &mut Bench<T>, tree: Tree) -> Outcome {
    let operation = |step| TreeOp { tree, step, next: Arc::default() };
    for level in 1..=tree.levels {
        let until = Until { ops: Some(tree.dirs(level)), time: None };
        let mkdir = operation(Step::Mkdir(level));
        let made = bench.unreported("mkdir", until, Share::Open, &mkdir)?;
        if made.errors > 0 {
            return Err(Failure::new("bench traverse", "not all directories could be made"));
        }
    }
    let until = Until { ops: Some(tree.files), time: None };
    let done = bench.phase("write tree", until, Share::Open, tree.size, &operation(Step::Write))?;
    if signals::interrupted() || done.iter().sum::<u64>() < tree.files {
        return Err(Failure::new("bench traverse", "not all files could be made"));
    }
    let target = &bench.target;
    let place = target.place(&DirPath::new(), LABEL);
    target
        .block_on(target.write(&place, tree.label().as_bytes()))
        .about("bench: labelling its tree")
}

fn read<T: Target>(bench: &mut Bench<T>, tree: Tree, time: Option<std::time::Duration>) -> Outcome {
    let order = shuffled(tree.files, &mut Rng::seeded(rand::u64()));
    let step = Step::Read(Arc::new(order));
    let until = Until { ops: Some(tree.files), time };
    let operation = TreeOp { tree, step, next: Arc::default() };
    bench.phase("traverse", until, Share::Open, tree.size, &operation).map(drop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const TREE: Tree = Tree { levels: 3, fanout: 2, files: 17, size: 5 };

    #[test]
    fn every_directory_is_made_below_one_that_is_there() {
        let mut there = BTreeSet::from([DirPath::new()]);
        for level in 1..=TREE.levels {
            for n in 0..TREE.dirs(level) {
                let above = TREE.dir(level - 1, n / TREE.fanout);
                assert!(there.contains(&above));
                let dir = TREE.dir(level, n);
                assert_eq!(dir, [above.as_slice(), &[format!("d{n}")]].concat());
                assert!(there.insert(dir));
            }
        }
        let leaf = |n| TREE.file(n).0;
        assert!((0..TREE.files).all(|n| leaf(n).len() == 3 && there.contains(&leaf(n))));
        assert_eq!((0..8).map(leaf).collect::<BTreeSet<_>>().len(), 8, "spread over all");
    }

    #[test]
    fn an_order_holds_each_file_once() {
        let order = shuffled(1000, &mut Rng::seeded(7));
        assert_eq!(order.iter().copied().collect::<BTreeSet<_>>().len(), 1000);
        assert_ne!(order, shuffled(1000, &mut Rng::seeded(8)));
    }
}
