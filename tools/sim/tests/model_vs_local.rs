//! The reference model is right: it agrees with a real local file system, errno by errno.
//! Needs root, for the users.
#![allow(clippy::unwrap_used)]

use saker_sim::compare::{ComparePlan, CompareReport, Difference, run};
use saker_sim::local::LocalFs;
use saker_sim::model::ModelRules;
use saker_sim::op::{FsOp, OpResult, OpStep, TestedFs, User, Value};
use saker_sim::settings;

fn plan(seed: u64, steps: usize) -> ComparePlan {
    ComparePlan {
        seed,
        steps,
        clients: 1,
        tree_every: 50,
        dots: true,
        noatime: false,
        any_true_error: false,
        coarse_times: false,
    }
}

fn compared(below: &std::path::Path, plan: ComparePlan) -> Result<CompareReport, Difference> {
    let dir = tempfile::tempdir_in(below).unwrap();
    let rules = ModelRules { ends_at_16_tib: !plan.coarse_times, ..ModelRules::of_kernel() };
    run(plan, rules, LocalFs::new(dir.path()).unwrap())
}

fn on_directory(below: &std::path::Path, tmpfs: bool) {
    let (seeds, steps) = settings::runs(20, 500);
    let mut total = CompareReport::default();
    for seed in seeds {
        let plan = ComparePlan { coarse_times: tmpfs, ..plan(seed, steps) };
        // A clock that is set back meanwhile gives two changes the same time. What is wrong with the
        // model, which is what is tested here, comes again with the same seed.
        let report = compared(below, plan).or_else(|first| {
            eprintln!("{}: once more, after {first}", below.display());
            compared(below, plan)
        });
        total.add(&report.unwrap_or_else(|difference| panic!("{difference}")));
    }
    eprintln!("{}: {total}", below.display());
    total.assert_balanced();
}

#[test]
fn model_agrees_with_the_disk() {
    if settings::needs_root("model_agrees_with_the_disk") {
        on_directory(&settings::scratch(), false);
    }
}

#[test]
fn model_agrees_with_tmpfs() {
    if settings::needs_root("model_agrees_with_tmpfs") {
        on_directory(std::path::Path::new("/dev/shm"), true);
    }
}

/// A system in which one kind of operation claims success and does nothing.
struct Broken<T>(T, &'static str);

impl<T: TestedFs> TestedFs for Broken<T> {
    fn apply(&mut self, who: &User, step: &OpStep) -> OpResult<i64> {
        if FsOp::KINDS[step.op.kind()] == self.1 {
            Ok(Value::Done)
        } else {
            self.0.apply(who, step)
        }
    }
}

#[test]
fn a_broken_operation_is_noticed() {
    if !settings::needs_root("a_broken_operation_is_noticed") {
        return;
    }
    let broken = [
        "mkdir",
        "mknod",
        "symlink",
        "write",
        "ftruncate",
        "truncate",
        "chmod",
        "chown",
        "utimes",
        "unlink",
        "rmdir",
        "rename",
        "link",
        "setxattr",
        "removexattr",
    ];
    for kind in broken {
        let dir = tempfile::tempdir().unwrap();
        let target = Broken(LocalFs::new(dir.path()).unwrap(), kind);
        let found = run(plan(1, 500), ModelRules::of_kernel(), target);
        assert!(found.is_err(), "a {kind} that does nothing was not noticed");
    }
}
