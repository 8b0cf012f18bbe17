//! Drives the model and a target side by side and tells where they part.

use std::collections::{HashMap, VecDeque};

use saker_types::Errno;

use crate::generate::Generator;
use crate::model::{Model, ModelIno, ModelRules, ModelTime, UNDEFINED};
use crate::op::{
    CHECK_FD, FDS, FsOp, How, OpResult, OpStat, OpStep, PathFrom, TestedFs, User, Value, users,
};

/// Steps shown before the one that failed.
const LOG_STEPS: usize = 40;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct ComparePlan {
    /// Seed of the generator.
    pub seed: u64,
    /// Random steps.
    pub steps: usize,
    /// Clients that take turns.
    pub clients: usize,
    /// Compare the whole tree after so many steps.
    pub tree_every: usize,
    /// Names of operations may end in `.` and `..`.
    pub dots: bool,
    /// Times set by utimes stay: nothing else changes atime.
    pub noatime: bool,
    /// Of several errors that are true of an operation with two names, any will do.
    pub any_true_error: bool,
    /// Two changes may get the same time (the kernel's coarse clock).
    pub coarse_times: bool,
}

/// Counts of one or more runs, per kind of operation.
#[derive(Clone, Debug, Default)]
pub struct CompareReport {
    /// Tried on the target.
    pub tried: [u64; FsOp::KINDS.len()],
    /// Of them, those that succeeded.
    pub succeeded: [u64; FsOp::KINDS.len()],
}

impl CompareReport {
    /// Steps in all.
    pub fn total(&self) -> u64 {
        self.tried.iter().sum()
    }

    /// Adds another run.
    pub fn add(&mut self, other: &CompareReport) {
        for kind in 0..FsOp::KINDS.len() {
            self.tried[kind] += other.tried[kind];
            self.succeeded[kind] += other.succeeded[kind];
        }
    }

    /// Panics unless each kind was at least 1% of the steps, and succeeded and (where it can)
    /// failed.
    pub fn assert_balanced(&self) {
        for (kind, name) in FsOp::KINDS.iter().enumerate() {
            let (tried, good) = (self.tried[kind], self.succeeded[kind]);
            assert!(tried * 100 >= self.total(), "{name}: only {tried} of {}", self.total());
            assert!(good * 10 >= tried, "{name}: only {good} of {tried} succeeded");
        }
    }
}

impl std::fmt::Display for CompareReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} steps:", self.total())?;
        for (kind, name) in FsOp::KINDS.iter().enumerate() {
            write!(f, " {name} {}/{}", self.succeeded[kind], self.tried[kind])?;
        }
        Ok(())
    }
}

/// A difference, in words, with the steps that led to it.
pub type Difference = String;

/// The model beside a target.
pub struct Comparison<T> {
    model: Model,
    target: T,
    users: Vec<User>,
    plan: ComparePlan,
    /// Inode numbers: the model's to the target's, and back.
    inos: HashMap<ModelIno, u64>,
    inos_back: HashMap<u64, ModelIno>,
    /// Times when last seen: the model's and the target's.
    seen: HashMap<ModelIno, (OpStat<ModelTime>, OpStat<i64>)>,
    /// What is seen is so through a merge: of some inodes the times are those of the merge.
    is_merged_view: bool,
    log: VecDeque<String>,
    report: CompareReport,
}

/// What was at some time, to go back to.
#[derive(Clone)]
pub struct Moment {
    model: Model,
    inos: HashMap<ModelIno, u64>,
    inos_back: HashMap<u64, ModelIno>,
    seen: HashMap<ModelIno, (OpStat<ModelTime>, OpStat<i64>)>,
}

impl Moment {
    /// Was it there?
    pub fn has(&self, ino: ModelIno) -> bool {
        self.model.lives(ino)
    }
}

/// Runs a plan on a target.
pub fn run<T: TestedFs>(
    plan: ComparePlan,
    rules: ModelRules,
    target: T,
) -> Result<CompareReport, Difference> {
    let mut runner = Comparison::new(plan, rules, target);
    let out = runner.run();
    out.map_err(|difference| runner.describe(&difference))?;
    Ok(runner.report)
}

impl<T: TestedFs> Comparison<T> {
    /// Nothing is there yet.
    pub fn new(plan: ComparePlan, rules: ModelRules, target: T) -> Comparison<T> {
        Comparison {
            model: Model::new(rules),
            target,
            users: users(),
            plan,
            inos: HashMap::new(),
            inos_back: HashMap::new(),
            seen: HashMap::new(),
            is_merged_view: false,
            log: VecDeque::new(),
            report: CompareReport::default(),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let mut generator = Generator::new(self.plan.seed, self.plan.clients, self.plan.dots);
        for n in 1..=self.plan.steps {
            let step = generator.step(&self.model);
            self.try_step(&step)?;
            if n % self.plan.tree_every == 0 || n == self.plan.steps {
                let other = (step.client + 1) % self.plan.clients;
                self.compare_trees(other)?;
            }
        }
        Ok(())
    }

    fn try_step(&mut self, step: &OpStep) -> Result<(), String> {
        let kind = step.op.kind();
        self.log_step(step);
        if let Some(worked) = self.execute(step)? {
            self.report.tried[kind] += 1;
            self.report.succeeded[kind] += u64::from(worked);
            self.probe(step)?;
        }
        Ok(())
    }

    /// One step, as a generator drew it.
    ///
    /// # Errors
    /// A difference.
    pub fn step(&mut self, step: &OpStep) -> Result<(), Difference> {
        self.try_step(step).map_err(|why| self.describe(&why))
    }

    /// Everything that is there, as one client sees it.
    ///
    /// # Errors
    /// A difference.
    pub fn tree_of(&mut self, client: usize) -> Result<(), Difference> {
        self.compare_trees(client).map_err(|why| self.describe(&why))
    }

    /// The same by a client that sees it through a merge: times of directories, and when inodes with several names
    /// were changed, may be those of the merge.
    ///
    /// # Errors
    /// A difference.
    pub fn merged_tree_of(&mut self, client: usize) -> Result<(), Difference> {
        self.is_merged_view = true;
        let same = self.tree_of(client);
        self.is_merged_view = false;
        same
    }

    /// Notes an event between the steps, for the description of a difference.
    pub fn note(&mut self, event: &str) {
        self.log_line(event.to_owned());
    }

    /// What is so now.
    pub fn moment(&self) -> Moment {
        let (model, inos) = (self.model.clone(), self.inos.clone());
        Moment { model, inos, inos_back: self.inos_back.clone(), seen: self.seen.clone() }
    }

    /// What was done since has not been: the target is as it was, but that it may have other times of
    /// directories, and of changes of inodes with several names.
    pub fn go_back(&mut self, to: Moment) {
        let Moment { model, inos, inos_back, seen } = to;
        (self.model, self.inos, self.inos_back, self.seen) = (model, inos, inos_back, seen);
        let others = self.model.inos().into_iter();
        let others: Vec<ModelIno> = others.filter(|ino| self.is_timed_by_merge(*ino)).collect();
        self.model.forget_change_times(&others);
        others.iter().for_each(|ino| _ = self.seen.remove(ino));
    }

    /// What was written through open files is flushed.
    ///
    /// # Errors
    /// Of the target.
    pub fn flush_all(&mut self) -> Result<(), Errno> {
        for fd in 0..FDS {
            if self.model.handle(fd).is_some_and(|handle| handle.dirty) {
                self.target.flush(fd)?;
                self.model.flushed(fd);
            }
        }
        Ok(())
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The model, for what happens to it beside the steps.
    pub fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// The target.
    pub fn target(&mut self) -> &mut T {
        &mut self.target
    }

    /// Counts until now.
    pub fn report(&self) -> &CompareReport {
        &self.report
    }

    fn is_timed_by_merge(&self, ino: ModelIno) -> bool {
        self.model.is_dir(ino) || self.model.is_linked(ino)
    }

    /// Does a step on both and compares; true if it succeeded, none if it is not defined.
    fn execute(&mut self, step: &OpStep) -> Result<Option<bool>, String> {
        let client = match step.op.handle().and_then(|fd| self.model.handle(fd)) {
            Some(handle) => handle.client,
            None => step.client,
        };
        let lenient = self.is_lenient(step);
        let stale = matches!(step.op, FsOp::Read { fd, .. } if self.model.is_stale(fd));
        let user = self.users[step.user].clone();
        let dirty = self.dirty_elsewhere(client);
        let others = if self.plan.any_true_error {
            self.model.true_errors(&user, &step.op)
        } else {
            Vec::new()
        };
        let expected = self.model.apply(&user, step);
        if expected == Err(UNDEFINED) {
            return Ok(None);
        }
        for fd in dirty {
            let flushed = self.target.flush(fd);
            flushed.map_err(|e| format!("flush of file {fd} failed: {e:?}"))?;
            self.model.flushed(fd);
        }
        let got = self.target.apply(&user, step);
        let same = match (&expected, &got) {
            (Ok(Value::Bytes(_)), Ok(Value::Bytes(_))) if stale => Ok(()),
            (Err(_), Err(e)) if lenient && matches!(*e, Errno::ENOENT | Errno::ESTALE) => Ok(()),
            (Err(_), Err(e)) if others.contains(e) => Ok(()),
            (Ok(Value::Stat(model)), Ok(Value::Stat(real))) => self.compare_stat(model, real),
            _ if untimed(&expected) == untimed(&got) => Ok(()),
            _ => Err("results differ".to_owned()),
        };
        same.map_err(|why| self.difference(&why, step, &expected, &got))?;
        Ok(Some(expected.is_ok()))
    }

    fn difference(
        &mut self,
        why: &str,
        step: &OpStep,
        expected: &OpResult<ModelTime>,
        got: &OpResult<i64>,
    ) -> String {
        let OpStep { client, user, op } = step;
        let mut text = format!(
            "{why}\n  step     client {client} user {user} {op:?}\n  expected {expected:?}\n  \
             got      {got:?}"
        );
        let parent = |at: &PathFrom| (!at.path.is_empty()).then(|| at.parent());
        for at in op.paths().into_iter().flat_map(|at| [Some(at.clone()), parent(at)]).flatten() {
            let root = self.users[0].clone();
            let op = FsOp::Stat { at: at.clone(), follow: false };
            let step = OpStep { client: *client, user: 0, op };
            let model = self.model.apply(&root, &step);
            let real = self.target.apply(&root, &step);
            text += &format!("\n  at {at:?}\n    model  {model:?}\n    target {real:?}");
        }
        text
    }

    /// Below a removed directory the kernel checks permissions first; a server that no longer
    /// knows the directory cannot.
    fn is_lenient(&self, step: &OpStep) -> bool {
        step.op.paths().iter().any(|at| at.base.is_some_and(|s| self.model.held_is_gone(s)))
    }

    /// Files that another client wrote and has not flushed (close-to-open consistency).
    fn dirty_elsewhere(&self, client: usize) -> Vec<usize> {
        let dirty =
            |fd: &usize| self.model.handle(*fd).is_some_and(|h| h.dirty && h.client != client);
        (0..FDS).filter(dirty).collect()
    }

    /// Looks at what the step changed, or must not have changed.
    fn probe(&mut self, step: &OpStep) -> Result<(), String> {
        let mut places: Vec<PathFrom> = Vec::new();
        for at in step.op.paths() {
            places.push(at.clone());
            if !at.path.is_empty() {
                places.push(at.parent());
            }
        }
        let stats = places.into_iter().map(|at| FsOp::Stat { at, follow: false });
        let fstat = step.op.handle().map(|fd| FsOp::Fstat { fd });
        for op in stats.chain(fstat) {
            self.execute(&OpStep { client: step.client, user: 0, op })?;
        }
        Ok(())
    }

    /// Walks the model's tree and compares everything, as root, through one client.
    fn compare_trees(&mut self, client: usize) -> Result<(), String> {
        for (at, ino) in self.model.tree() {
            let mode = self.model.mode(ino);
            let mut ops = vec![FsOp::Stat { at: at.clone(), follow: false }];
            match mode & 0o170_000 {
                0o040_000 => ops.push(FsOp::Readdir { at: at.clone() }),
                0o120_000 => ops.push(FsOp::Readlink { at: at.clone() }),
                0o100_000 => {
                    let how = How { read: true, ..How::default() };
                    let len = self.model.attributes(ino).size as usize + 1;
                    ops.push(FsOp::Open { at: at.clone(), how, fd: CHECK_FD });
                    ops.push(FsOp::Read { fd: CHECK_FD, offset: 0, len });
                    ops.push(FsOp::Close { fd: CHECK_FD });
                }
                _ => {}
            }
            if matches!(mode & 0o170_000, 0o040_000 | 0o100_000) {
                ops.push(FsOp::Listxattr { at: at.clone() });
                for name in self.model.xattr_names(ino) {
                    ops.push(FsOp::Getxattr { at: at.clone(), name });
                }
            }
            for op in ops {
                self.execute(&OpStep { client, user: 0, op })
                    .map_err(|why| format!("in the comparison of trees: {why}"))?;
            }
        }
        Ok(())
    }

    fn compare_stat(
        &mut self,
        model: &OpStat<ModelTime>,
        real: &OpStat<i64>,
    ) -> Result<(), String> {
        self.compare_ino(model.ino, real.ino)?;
        let is_dir = model.mode & 0o170_000 == 0o040_000;
        let fields = [
            ("mode", u64::from(model.mode), u64::from(real.mode)),
            ("uid", model.uid.into(), real.uid.into()),
            ("gid", model.gid.into(), real.gid.into()),
            ("nlink", model.nlink.into(), real.nlink.into()),
            ("size", if is_dir { 0 } else { model.size }, if is_dir { 0 } else { real.size }),
        ];
        for (name, expected, got) in fields {
            if expected != got {
                return Err(format!(
                    "{name} differs: {expected} (0{expected:o}), not {got} (0{got:o})"
                ));
            }
        }
        if is_dir && model.nlink == 0 {
            return Ok(()); // removed: its times mean nothing
        }
        let before = self.seen.get(&model.ino);
        if self.is_merged_view {
            return self.compare_merged_times(model, real);
        }
        let old = |pick: fn(&OpStat<ModelTime>) -> ModelTime, real: fn(&OpStat<i64>) -> i64| {
            before.map(|(m, r)| (pick(m), real(r)))
        };
        let coarse = self.plan.coarse_times;
        compare_time("mtime", model.mtime, real.mtime, old(|s| s.mtime, |s| s.mtime), coarse)?;
        compare_time("ctime", model.ctime, real.ctime, old(|s| s.ctime, |s| s.ctime), coarse)?;
        if self.plan.noatime {
            compare_time("atime", model.atime, real.atime, old(|s| s.atime, |s| s.atime), coarse)?;
        }
        self.seen.insert(model.ino, (model.clone(), real.clone()));
        Ok(())
    }

    /// Files have the times that their holder saw.
    fn compare_merged_times(
        &self,
        model: &OpStat<ModelTime>,
        real: &OpStat<i64>,
    ) -> Result<(), String> {
        let Some((_, before)) = self.seen.get(&model.ino) else { return Ok(()) };
        let is_dir = self.model.is_dir(model.ino);
        let is_changed_by_merge = self.is_timed_by_merge(model.ino);
        for (what, is_compared, expected, got) in [
            ("atime", self.plan.noatime, before.atime, real.atime),
            ("mtime", !is_dir, before.mtime, real.mtime),
            ("ctime", !is_changed_by_merge, before.ctime, real.ctime),
        ] {
            if is_compared && expected != got {
                return Err(format!("{what} is {got} after the merge, and was {expected}"));
            }
        }
        Ok(())
    }

    /// One inode has one number for as long as it lives, and no other has it.
    fn compare_ino(&mut self, model: ModelIno, real: u64) -> Result<(), String> {
        let known = *self.inos.entry(model).or_insert(real);
        if known != real {
            return Err(format!("inode number differs: {known} earlier, {real} now"));
        }
        let owner = *self.inos_back.entry(real).or_insert(model);
        if owner != model {
            if self.model.lives(owner) {
                return Err(format!("inode number {real} is also that of another inode"));
            }
            self.inos_back.insert(real, model);
        }
        Ok(())
    }

    fn log_step(&mut self, step: &OpStep) {
        let OpStep { client, user, op } = step;
        self.log_line(format!("client {client} user {user} {op:?}"));
    }

    fn log_line(&mut self, line: String) {
        if self.log.len() == LOG_STEPS {
            self.log.pop_front();
        }
        self.log.push_back(line);
    }

    fn describe(&self, difference: &str) -> Difference {
        let log: Vec<&str> = self.log.iter().map(String::as_str).collect();
        format!(
            "seed {}: {difference}\nlast steps:\n  {}\nrepeat with SAKER_SEED={} SAKER_OPS={}",
            self.plan.seed,
            log.join("\n  "),
            self.plan.seed,
            self.plan.steps,
        )
    }
}

/// A time changes when the model's does, never back, and keeps what was set.
fn compare_time(
    what: &str,
    model: ModelTime,
    real: i64,
    before: Option<(ModelTime, i64)>,
    coarse: bool,
) -> Result<(), String> {
    if let ModelTime::Set(ns) = model {
        return if ns == real { Ok(()) } else { Err(format!("{what} is {real}, was set to {ns}")) };
    }
    match before {
        Some((old, real_old)) if old == model && real != real_old => {
            Err(format!("{what} changed without reason: {real_old} -> {real}"))
        }
        Some((old, real_old))
            if old != model
                && real == real_old
                && !coarse
                && !matches!(model, ModelTime::Maybe(_)) =>
        {
            Err(format!("{what} did not change: {real}"))
        }
        Some((ModelTime::Step(_) | ModelTime::Maybe(_), real_old)) if real < real_old => {
            Err(format!("{what} went back: {real_old} -> {real}"))
        }
        _ => Ok(()),
    }
}

/// Results without attributes, which are compared apart.
fn untimed<T: Clone>(outcome: &OpResult<T>) -> OpResult<()> {
    match outcome {
        Ok(Value::Done) => Ok(Value::Done),
        Ok(Value::Bytes(bytes)) => Ok(Value::Bytes(bytes.clone())),
        Ok(Value::Names(names)) => Ok(Value::Names(names.clone())),
        Ok(Value::Stat(stat)) => Ok(Value::Stat(OpStat {
            ino: stat.ino,
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            nlink: stat.nlink,
            size: stat.size,
            atime: (),
            mtime: (),
            ctime: (),
        })),
        Err(errno) => Err(*errno),
    }
}
