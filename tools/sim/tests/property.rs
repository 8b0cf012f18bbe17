//! Random operations through three clients of a cluster of four MNodes and two stores agree with
//! the reference model: results, errnos, attributes, times, and after each fifty the whole tree.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use saker_sim::cluster::{Cluster, Shape};
use saker_sim::compare::{Plan, Report, run};
use saker_sim::libfs::LibFs;
use saker_sim::model::Rules;
use saker_sim::op::{Op, Outcome, Step, Target, User, Value};
use saker_sim::settings;

const CLIENTS: usize = 3;

fn plan(seed: u64, steps: usize) -> Plan {
    let (clients, tree_every) = (CLIENTS, 50);
    let (dots, noatime, any_true_error, coarse_times) = (false, true, true, false);
    Plan { seed, steps, clients, tree_every, dots, noatime, any_true_error, coarse_times }
}

fn clients(cluster: &Cluster) -> Vec<saker_client::Fs> {
    (0..CLIENTS).map(|_| cluster.connect()).collect()
}

#[test]
fn a_cluster_agrees_with_the_model() {
    let cluster = Cluster::start(Shape::default());
    let clients = clients(&cluster);
    let (seeds, steps) = settings::runs(20, 540);
    let mut total = Report::default();
    for seed in seeds {
        let target = LibFs::new(clients.clone(), &format!("seed-{seed}")).unwrap();
        let report = run(plan(seed, steps), Rules::plain(), target);
        total.add(&report.unwrap_or_else(|difference| panic!("{difference}")));
    }
    eprintln!("{total}");
    total.assert_balanced();
    clients.iter().for_each(saker_client::Fs::close);
    cluster.fsck();
}

/// A cluster in which unlink claims success and does nothing.
struct Unlinkless(LibFs);

impl Target for Unlinkless {
    fn apply(&mut self, who: &User, step: &Step) -> Outcome<i64> {
        match step.op {
            Op::Unlink { .. } => Ok(Value::Done),
            _ => self.0.apply(who, step),
        }
    }

    fn flush(&mut self, slot: usize) -> Result<(), saker_types::Errno> {
        self.0.flush(slot)
    }
}

#[test]
fn a_broken_unlink_is_noticed() {
    let cluster = Cluster::start(Shape::default());
    let target = LibFs::new(clients(&cluster), "broken").unwrap();
    let found = run(plan(1, 540), Rules::plain(), Unlinkless(target));
    assert!(found.is_err());
}
