//! `saker bench meta`: operations on names and attributes.

use std::io;
use std::sync::Arc;

use super::Common;
use super::load::{Operation, Share, Until};
use super::phases::{Bench, Program};
use super::target::{DirPath, Target};
use crate::fail::Outcome;

/// Measure metadata: mkdir, create, getattr, open, unlink, rmdir.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Also look at files below directories that are not there: an MNode that does not have a
    /// directory asks its owner before it says so.
    #[arg(long)]
    missing: bool,
    /// Before getattr and open are measured, look at each file once: so the figures are those of
    /// a second pass.
    #[arg(long)]
    again: bool,
}

/// What a worker does to its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaAction {
    /// Makes an empty file, and closes it.
    Create,
    /// stat(2).
    Getattr,
    /// stat(2) below a directory that is not there.
    Missing,
    /// Opens, and closes.
    Open,
    /// unlink(2).
    Unlink,
    /// mkdir(2).
    Mkdir,
    /// rmdir(2).
    Rmdir,
}

#[derive(Clone)]
struct MetaOp {
    what: MetaAction,
    dirs: Arc<Vec<DirPath>>,
    /// Entries of each worker; operations on what is there go round and round.
    there: Arc<Vec<u64>>,
}

impl<T: Target> Operation<T> for MetaOp {
    async fn run(&self, target: &T, worker: usize, n: u64) -> io::Result<()> {
        let dir = &self.dirs[worker % self.dirs.len()];
        let there = || self.there[worker].max(1);
        let place = |prefix: &str, n: u64| target.place(dir, &format!("{prefix}{worker}-{n}"));
        match self.what {
            MetaAction::Create => target.create(&place("f", n)).await,
            MetaAction::Getattr => target.getattr(&place("f", n % there())).await,
            MetaAction::Missing => {
                let none = dir.iter().cloned().chain([format!("none{worker}-{n}")]).collect();
                match target.getattr(&target.place(&none, "f")).await {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                    Err(error) => Err(error),
                    Ok(()) => Err(io::Error::other("a file below a directory that is not there")),
                }
            }
            MetaAction::Open => target.open(&place("f", n % there())).await,
            MetaAction::Unlink => target.unlink(&place("f", n)).await,
            MetaAction::Mkdir => target.mkdir(&place("d", n)).await,
            MetaAction::Rmdir => target.rmdir(&place("d", n)).await,
        }
    }
}

/// Entries of the workers in some directories: one directory for each of them, or one for all.
pub struct Entries {
    /// Said after the name of each phase.
    pub label: &'static str,
    /// Where they are.
    pub dirs: Arc<Vec<DirPath>>,
}

impl Entries {
    /// Makes entries, as long as the time allows; returns how many of each worker there are.
    pub fn make<T: Target>(&self, bench: &mut Bench<T>, what: MetaAction) -> Outcome<Vec<u64>> {
        let none = vec![0; bench.load.workers()];
        self.phase(bench, what, self.label, bench.until, Share::Open, &none)
    }

    /// Looks at entries, as long as the time allows.
    pub fn look<T: Target>(
        &self,
        bench: &mut Bench<T>,
        what: MetaAction,
        there: &[u64],
    ) -> Outcome {
        self.phase(bench, what, self.label, bench.until, Share::round(there), there).map(drop)
    }

    /// Looks at each entry once, however long it takes.
    fn look_once<T: Target>(
        &self,
        bench: &mut Bench<T>,
        what: MetaAction,
        there: &[u64],
    ) -> Outcome {
        self.each(bench, what, ", first", there)
    }

    /// Removes all that was made, however long it takes.
    pub fn remove<T: Target>(
        &self,
        bench: &mut Bench<T>,
        what: MetaAction,
        there: &[u64],
    ) -> Outcome {
        self.each(bench, what, self.label, there)
    }

    fn each<T: Target>(
        &self,
        bench: &mut Bench<T>,
        what: MetaAction,
        label: &str,
        there: &[u64],
    ) -> Outcome {
        let all = Until { ops: None, time: None };
        let share = Share::Each(Arc::new(there.to_vec()));
        self.phase(bench, what, label, all, share, there).map(drop)
    }

    fn phase<T: Target>(
        &self,
        bench: &mut Bench<T>,
        what: MetaAction,
        label: &str,
        until: Until,
        share: Share,
        there: &[u64],
    ) -> Outcome<Vec<u64>> {
        let name = format!("{what:?}{label}").to_lowercase();
        let (dirs, there) = (Arc::clone(&self.dirs), Arc::new(there.to_vec()));
        bench.phase(&name, until, share, 0, &MetaOp { what, dirs, there })
    }
}

impl Program for Args {
    fn common(&self) -> &Common {
        &self.common
    }

    fn phases<T: Target>(&self, bench: &mut Bench<T>) -> Outcome {
        let private = Entries { label: "", dirs: bench.private_dirs()? };
        let dirs = private.make(bench, MetaAction::Mkdir)?;
        let files = private.make(bench, MetaAction::Create)?;
        for what in [MetaAction::Getattr, MetaAction::Open] {
            if self.again {
                private.look_once(bench, what, &files)?;
            }
            private.look(bench, what, &files)?;
        }
        if self.missing {
            private.look(bench, MetaAction::Missing, &files)?;
        }
        private.remove(bench, MetaAction::Unlink, &files)?;
        private.remove(bench, MetaAction::Rmdir, &dirs)
    }
}
