//! The same system calls on a mount and on a local disk, side by side: results, errnos and
//! attributes agree with each other and with the model. Needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use saker_sim::cluster::{ClusterShape, RunningCluster, can_mount};
use saker_sim::compare::{ComparePlan, CompareReport, run};
use saker_sim::local::LocalFs;
use saker_sim::model::ModelRules;
use saker_sim::op::{OpResult, OpStep, TestedFs, User, Value};
use saker_sim::settings;

/// A mount that is compared with a disk at each step; the runner compares the mount with the
/// model.
struct Twins {
    mount: LocalFs,
    disk: LocalFs,
}

impl TestedFs for Twins {
    fn apply(&mut self, who: &User, step: &OpStep) -> OpResult<i64> {
        let mount = self.mount.apply(who, step);
        let disk = self.disk.apply(who, step);
        match (&mount, &disk) {
            (Ok(Value::Stat(a)), Ok(Value::Stat(b))) => {
                let [a, b] = [a, b].map(|stat| (stat.mode, stat.uid, stat.gid, stat.nlink));
                assert_eq!(a, b, "{step:?}");
            }
            // Which of several errors comes first is between the kernel and the file system; the
            // runner sees to it that it is a true one.
            (Err(_), Err(_)) => {}
            _ => assert_eq!(mount, disk, "{step:?}"),
        }
        mount
    }
}

#[test]
fn a_mount_agrees_with_a_disk() {
    if !can_mount("a_mount_agrees_with_a_disk") {
        return;
    }
    let cluster = RunningCluster::start(ClusterShape { mount: true, ..ClusterShape::default() });
    let (seeds, steps) = settings::runs(10, 500);
    let mut total = CompareReport::default();
    for seed in seeds {
        let name = format!("seed-{seed}");
        let (mount, disk) = (cluster.mount().join(&name), cluster.scratch().join(&name));
        std::fs::create_dir(&mount).unwrap();
        std::fs::create_dir(&disk).unwrap();
        let target =
            Twins { mount: LocalFs::new(&mount).unwrap(), disk: LocalFs::new(&disk).unwrap() };
        let (clients, tree_every) = (1, 50);
        let (dots, noatime, any_true_error, coarse_times) = (true, false, true, false);
        let plan = ComparePlan {
            seed,
            steps,
            clients,
            tree_every,
            dots,
            noatime,
            any_true_error,
            coarse_times,
        };
        let report = run(plan, ModelRules::of_mount(), target);
        total.add(&report.unwrap_or_else(|difference| panic!("{difference}")));
    }
    eprintln!("{total}");
    total.assert_balanced();
}
