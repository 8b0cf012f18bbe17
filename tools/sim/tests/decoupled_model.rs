//! Random operations in decoupled subtrees agree with the reference model: what their holder is answered, what
//! others see after a merge, and what is there after the holder was killed, which is what
//! [`saker_types::policy::explain`] says.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::HashSet;

use saker_client::{Caller, ClientOptions};
use saker_sim::cluster::{ClusterShape, RunningCluster};
use saker_sim::compare::{ComparePlan, CompareReport, Comparison, Difference, Moment};
use saker_sim::generate::{Generator, Random};
use saker_sim::libfs::LibFsTarget;
use saker_sim::model::{Model, ModelIno, ModelRules, ROOT_INO};
use saker_sim::op::{OpResult, OpStep, TestedFs, User, users};
use saker_sim::settings;
use saker_types::Errno;
use saker_types::policy::Policy;
use saker_types::policy::explain::{Crash, Loss};

/// Who holds the subtree, and who does not.
const HOLDER: usize = 0;
const OTHER: usize = 1;
/// Steps before the directory gets its policy.
const STEPS_BEFORE: usize = 120;
/// Of a hundred steps so many are followed by a merge, and by a kill.
const MERGES_PERCENT: usize = 4;
const KILLS_PERCENT: usize = 2;
/// What is larger is in chunks, as in a cluster that is started without saying more.
const INLINE_MAX: u64 = 4096;

/// A decoupled policy: consistency, durability, and whether others are let in.
type Cell = [&'static str; 3];

const CELLS: [Cell; 5] = [
    ["invisible", "none", "allow"],
    ["weak", "none", "allow"],
    ["invisible", "local", "allow"],
    ["weak", "local", "allow"],
    ["weak", "none", "block"],
];

/// A client of a subtree that can be killed.
struct Holder {
    target: LibFsTarget,
    /// After a merge another client removes something, as if the merge had left it out.
    leaves_out: bool,
}

impl TestedFs for Holder {
    fn apply(&mut self, who: &User, step: &OpStep) -> OpResult<i64> {
        self.target.apply(who, step)
    }

    fn flush(&mut self, fd: usize) -> Result<(), Errno> {
        self.target.flush(fd)
    }
}

impl Holder {
    fn merge(&self) {
        let fs = self.target.client(HOLDER);
        let merged = fs.block_on(fs.merge_subtree(&Caller::root(), &self.target.top(), false));
        match merged {
            Ok(report) => {
                assert_eq!((report.conflicts, report.kept_back), (vec![], 0));
            }
            // It has not changed anything yet.
            Err(error) => assert_eq!(error.errno(), Errno::ENOENT, "{error}"),
        }
        if self.leaves_out {
            self.leave_out();
        }
    }

    fn leave_out(&self) {
        let (fs, root) = (self.target.client(OTHER), Caller::root());
        let top = fs.block_on(fs.lookup(&root, &self.target.top())).unwrap().loc;
        let mut names = fs.readdir(&root, &top, 0);
        while let Some(item) = fs.block_on(names.next()).unwrap() {
            if !item.attr.is_dir() {
                let at = saker_types::wire::At::child(top, &item.name);
                fs.block_on(fs.unlink(&root, &at)).unwrap();
                return;
            }
        }
    }
}

/// A run in one subtree.
struct Run<'a> {
    cluster: &'a RunningCluster,
    policy: Policy,
    compared: Comparison<Holder>,
    journals: tempfile::TempDir,
    rng: Random,
    /// As it was merged last.
    merged: Moment,
    /// Files whose data must not be changed now.
    fixed: HashSet<ModelIno>,
    /// Those that are, or were, in chunks.
    chunked: HashSet<ModelIno>,
    kills: usize,
    merges: usize,
}

fn plan(seed: u64, steps: usize) -> ComparePlan {
    let (clients, tree_every) = (1, 50);
    let (dots, noatime, any_true_error, coarse_times) = (false, true, true, false);
    ComparePlan { seed, steps, clients, tree_every, dots, noatime, any_true_error, coarse_times }
}

fn options(journals: &tempfile::TempDir) -> ClientOptions {
    ClientOptions {
        journal_dir: Some(journals.path().join("journals")),
        ..ClientOptions::default()
    }
}

impl<'a> Run<'a> {
    /// A directory with something in it, and then with a policy.
    fn start(
        cluster: &'a RunningCluster,
        cell: Cell,
        plan: ComparePlan,
        generator: &mut Generator,
        leaves_out: bool,
    ) -> Result<Run<'a>, Difference> {
        let journals = tempfile::tempdir().unwrap();
        let clients = vec![cluster.connect_with(options(&journals)), cluster.connect()];
        let name = format!("{}-{}", cell.join("-"), plan.seed);
        let target = LibFsTarget::new(clients, &name).unwrap();
        let mut compared =
            Comparison::new(plan, ModelRules::plain(), Holder { target, leaves_out });
        let mut chunked = HashSet::new();
        for _ in 0..STEPS_BEFORE {
            let step = generator.step(compared.model());
            compared.step(&step)?;
            note_chunked(compared.model(), &mut chunked);
        }
        // A handle from before works under the policy from before.
        compared.target().target.close_all().unwrap();
        compared.model_mut().close_all();
        let [consistency, durability, interfere] = cell;
        let pairs = [
            ("consistency", consistency),
            ("durability", durability),
            ("interfere_policy", interfere),
        ];
        let policy = Policy::from_pairs(pairs).unwrap();
        let target = &compared.target().target;
        let fs = target.client(OTHER);
        fs.block_on(fs.set_policy(&Caller::root(), &target.top(), &policy)).unwrap();
        compared.note("the directory gets its policy");
        compared.model_mut().forget_change_times(&[ROOT_INO]);
        let (merged, rng) = (compared.moment(), Random::new(plan.seed));
        let mut run = Run {
            cluster,
            policy,
            compared,
            journals,
            rng,
            merged,
            fixed: HashSet::new(),
            chunked,
            kills: 0,
            merges: 0,
        };
        run.is_merged();
        Ok(run)
    }

    fn go(&mut self, generator: &mut Generator, steps: usize) -> Result<(), Difference> {
        for n in 1..=steps {
            let step = generator.step(self.compared.model());
            if self.may(&step) {
                self.compared.step(&step)?;
            }
            note_chunked(self.compared.model(), &mut self.chunked);
            if n % 50 == 0 {
                self.compared.tree_of(HOLDER)?;
            }
            if self.rng.chance(MERGES_PERCENT) {
                self.merge()?;
            }
            if self.rng.chance(KILLS_PERCENT) {
                self.kill()?;
            }
        }
        self.merge()?;
        // Who ends lets others in.
        self.compared.target().target.close_all().unwrap();
        self.compared.model_mut().close_all();
        self.compared.target().target.client(HOLDER).close().unwrap();
        self.compared.merged_tree_of(OTHER)?;
        self.compared.target().target.client(OTHER).close().unwrap();
        Ok(())
    }

    fn lets_others_in(&self) -> bool {
        self.policy.pairs().contains(&("interfere_policy", "allow".to_owned()))
    }

    fn loses_unmerged(&self) -> bool {
        match self.policy.loses(Crash::ClientKilled) {
            Loss::Unmerged => true,
            Loss::Nothing | Loss::KeptOnClient => false,
            loss => panic!("{loss}: how to test that is not known"),
        }
    }

    fn merge(&mut self) -> Result<(), Difference> {
        self.merges += 1;
        self.compared.note("merge");
        // Times are seen before, to be compared with.
        self.compared.tree_of(HOLDER)?;
        self.compared.target().merge();
        self.compared.flush_all().unwrap();
        self.is_merged();
        if self.lets_others_in() {
            self.compared.merged_tree_of(OTHER)?;
        }
        self.compared.tree_of(HOLDER)
    }

    /// What is there now is what a client without a journal goes back to.
    fn is_merged(&mut self) {
        let model = self.compared.model();
        let inos = model.inos().into_iter();
        // docs/policies.md, "What is not there yet": data of files with several names is not merged, and what is
        // in chunks is changed at once.
        let is_fixed = |ino: &ModelIno| {
            model.is_linked(*ino) || self.loses_unmerged() && self.chunked.contains(ino)
        };
        self.fixed = inos.filter(is_fixed).collect();
        self.merged = self.compared.moment();
    }

    /// Is what a step does to data promised?
    fn may(&self, step: &OpStep) -> bool {
        let before = self.compared.model();
        let mut after = before.clone();
        _ = after.apply(&users()[step.user], step);
        let keeps = |ino: &ModelIno| {
            let (was, is) = (before.data_state(*ino), after.data_state(*ino));
            is.is_none() || was == is
        };
        let grows = |ino: ModelIno| {
            let was_merged = self.merged.has(ino);
            let is = after.data_state(ino);
            was_merged && is.is_some_and(|(size, _)| size > INLINE_MAX) && !keeps(&ino)
        };
        let any_grows = || self.loses_unmerged() && before.inos().into_iter().any(grows);
        self.fixed.iter().all(keeps) && !any_grows()
    }

    fn kill(&mut self) -> Result<(), Difference> {
        self.kills += 1;
        self.compared.note("the holder is killed");
        // What was written is answered when it is flushed.
        self.compared.flush_all().unwrap();
        self.compared.target().target.client(HOLDER).abandon();
        // Its directory of journals is free when nothing of it is left.
        let other = self.compared.target().target.client(OTHER).clone();
        self.compared.target().target.replace(HOLDER, other);
        let next = self.cluster.connect_with(options(&self.journals));
        self.compared.target().target.replace(HOLDER, next);
        let is_lost = self.loses_unmerged();
        let target = &self.compared.target().target;
        if is_lost {
            let other = target.client(OTHER);
            let reclaimed = other.block_on(other.reclaim(&Caller::root(), &target.top(), true));
            // Nobody may have held it yet.
            assert!(reclaimed.err().is_none_or(|error| error.errno() == Errno::ESTALE));
            self.compared.go_back(self.merged.clone());
        } else {
            let fs = target.client(HOLDER);
            fs.block_on(fs.resume_subtrees());
        }
        self.compared.model_mut().close_all();
        self.compared.tree_of(HOLDER)
    }
}

fn note_chunked(model: &Model, chunked: &mut HashSet<ModelIno>) {
    let is_large =
        |ino: &ModelIno| model.data_state(*ino).is_some_and(|(size, _)| size > INLINE_MAX);
    chunked.extend(model.inos().into_iter().filter(is_large));
}

fn run(
    cluster: &RunningCluster,
    cell: Cell,
    seed: u64,
    steps: usize,
    leaves_out: bool,
) -> Result<(CompareReport, [usize; 2]), Difference> {
    let mut generator = Generator::new(seed, 1, false);
    let mut run = Run::start(cluster, cell, plan(seed, steps), &mut generator, leaves_out)?;
    run.go(&mut generator, steps)?;
    Ok((run.compared.report().clone(), [run.merges, run.kills]))
}

#[test]
fn decoupled_subtrees_agree_with_the_model() {
    let cluster = RunningCluster::start(ClusterShape::default());
    let (seeds, steps) = settings::runs(1, 300);
    let mut total = CompareReport::default();
    let mut events = [0; 2];
    for seed in seeds {
        for cell in CELLS {
            let done = run(&cluster, cell, seed, steps, false);
            let (report, counts) =
                done.unwrap_or_else(|difference| panic!("{}: {difference}", cell.join("/")));
            total.add(&report);
            (0..2).for_each(|n| events[n] += counts[n]);
        }
    }
    let [merges, kills] = events;
    eprintln!("{total}\n{merges} merges, {kills} kills");
    assert!(merges > kills && kills > 0);
    // Chunks of files that are lost with their client are left.
    cluster.saker(&["fsck", "--repair"]);
    cluster.fsck();
}

#[test]
fn a_merge_that_leaves_something_out_is_noticed() {
    let cluster = RunningCluster::start(ClusterShape::default());
    let found = run(&cluster, CELLS[1], 1, 300, true);
    assert!(found.is_err());
}
