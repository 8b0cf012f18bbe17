//! A node's disk: memory that loses what was not synced, behind a script of faults.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use saker_runtime::fs::{Dir, Fault, FaultDir, FileOp, MemDir, OpKind};

/// What goes wrong with the disk's operations, counted from the start of the run.
#[derive(Clone, Debug, Default)]
pub struct DiskPlan {
    /// Operations that changed the disk, or what of it is durable.
    pub done: u64,
    /// The machine dies with this one: it takes effect, and nothing after it.
    pub dies_at: Option<u64>,
    /// Errors still to come: a kind of operation and its errno, with or without effect.
    pub errors: Vec<(OpKind, i32, bool)>,
}

/// A disk. Clones are the same.
#[derive(Clone)]
pub struct SimDisk {
    dir: MemDir,
    plan: Arc<Mutex<DiskPlan>>,
    /// How often its machine has lost power.
    power_losses: u64,
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> SimDisk {
        SimDisk { dir: MemDir::new(), plan: Arc::default(), power_losses: 0 }
    }

    /// The faults.
    pub fn plan(&self) -> MutexGuard<'_, DiskPlan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As it is, without faults.
    pub fn plain(&self) -> Arc<dyn Dir> {
        Arc::new(self.dir.clone())
    }

    /// As the roles see it.
    pub fn dir(&self) -> Arc<dyn Dir> {
        let plan = self.plan.clone();
        let script = move |op: &FileOp<'_>| {
            let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
            plan.fate(op)
        };
        Arc::new(FaultDir::new(Arc::new(self.dir.clone()), Box::new(script)))
    }

    /// Since when its page cache lives.
    pub fn cached_since(&self) -> u64 {
        self.power_losses + 1
    }

    /// Has its machine died with an operation?
    pub fn is_dead(&self) -> bool {
        let plan = self.plan();
        plan.dies_at.is_some_and(|at| at <= plan.done)
    }

    /// Another disk, with what is durable on this one.
    pub fn copy(&self) -> SimDisk {
        SimDisk { dir: self.dir.crash(0), plan: Arc::default(), power_losses: self.power_losses }
    }

    /// Power was lost, and is back.
    pub fn lose_power(&mut self, seed: u64) {
        self.dir = self.dir.crash_flipping(seed);
        self.power_losses += 1;
        let mut plan = self.plan();
        if plan.dies_at.is_some_and(|at| at <= plan.done) {
            plan.dies_at = None;
        }
    }
}

impl Default for SimDisk {
    fn default() -> SimDisk {
        SimDisk::new()
    }
}

impl DiskPlan {
    fn fate(&mut self, op: &FileOp<'_>) -> Fault {
        if !op.kind.mutates() {
            return Fault::None;
        }
        self.done += 1;
        match self.dies_at {
            Some(at) if self.done == at => return Fault::FailAfter(libc::EIO),
            Some(at) if self.done > at => return Fault::Fail(libc::EIO),
            _ => {}
        }
        let Some(at) = self.errors.iter().position(|(kind, ..)| *kind == op.kind) else {
            return Fault::None;
        };
        match self.errors.remove(at) {
            (_, errno, true) => Fault::FailAfter(errno),
            // The pages stay, and the disk never gets them.
            (OpKind::Sync, errno, false) => Fault::Lose(errno),
            (_, errno, false) => Fault::Fail(errno),
        }
    }
}
