//! Random operations through three clients of a cluster of four MNodes and two stores agree with
//! the reference model: results, errnos, attributes, times, and after each fifty the whole tree.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use saker_sim::cluster::{ClusterShape, RunningCluster};
use saker_sim::compare::{ComparePlan, CompareReport, run};
use saker_sim::libfs::LibFsTarget;
use saker_sim::model::ModelRules;
use saker_sim::op::{FsOp, OpResult, OpStep, TestedFs, User, Value};
use saker_sim::settings;

const CLIENTS: usize = 3;

fn plan(seed: u64, steps: usize) -> ComparePlan {
    let (clients, tree_every) = (CLIENTS, 50);
    let (dots, noatime, any_true_error, coarse_times) = (false, true, true, false);
    ComparePlan { seed, steps, clients, tree_every, dots, noatime, any_true_error, coarse_times }
}

fn clients(cluster: &RunningCluster) -> Vec<saker_client::Fs> {
    (0..CLIENTS).map(|_| cluster.connect()).collect()
}

#[test]
fn a_cluster_agrees_with_the_model() {
    let cluster = RunningCluster::start(ClusterShape::default());
    let clients = clients(&cluster);
    let (seeds, steps) = settings::runs(20, 540);
    let mut total = CompareReport::default();
    for seed in seeds {
        let target = LibFsTarget::new(clients.clone(), &format!("seed-{seed}")).unwrap();
        let report = run(plan(seed, steps), ModelRules::plain(), target);
        total.add(&report.unwrap_or_else(|difference| panic!("{difference}")));
    }
    eprintln!("{total}");
    total.assert_balanced();
    clients.iter().for_each(|fs| fs.close().unwrap());
    cluster.fsck();
}

/// A cluster in which unlink claims success and does nothing.
struct Unlinkless(LibFsTarget);

impl TestedFs for Unlinkless {
    fn apply(&mut self, who: &User, step: &OpStep) -> OpResult<i64> {
        match step.op {
            FsOp::Unlink { .. } => Ok(Value::Done),
            _ => self.0.apply(who, step),
        }
    }

    fn flush(&mut self, fd: usize) -> Result<(), saker_types::Errno> {
        self.0.flush(fd)
    }
}

#[test]
fn a_broken_unlink_is_noticed() {
    let cluster = RunningCluster::start(ClusterShape::default());
    let target = LibFsTarget::new(clients(&cluster), "broken").unwrap();
    let found = run(plan(1, 540), ModelRules::plain(), Unlinkless(target));
    assert!(found.is_err());
}
