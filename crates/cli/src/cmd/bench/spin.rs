//! Idle-priority loops that keep the cores awake.

use std::process::{Child, Command, Stdio};

use saker_runtime::thread;

use crate::fail::{Context, Outcome};
use crate::procfs;

/// Keep one core awake; `saker bench --spin` starts this.
#[derive(clap::Args)]
pub struct Args {
    /// Which core.
    core: usize,
}

/// Loops for ever at the lowest priority; ends with its parent. Between sessions priority does not
/// count (sched(7), "autogroup"): where servers wait for a disk, `kernel.sched_autogroup_enabled`
/// must be 0, or each wake-up waits for the scheduler's tick.
pub fn run(args: &Args) -> Outcome<u8> {
    procfs::end_with_parent();
    // SAFETY: these calls read their arguments only; all bytes of cpu_set_t and sched_param may
    // be zero. Failures are harmless: the loop then runs elsewhere, or with a little more weight.
    unsafe {
        libc::nice(19);
        let param: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &param);
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(args.core, &mut cores);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &cores);
    }
    loop {
        std::hint::spin_loop();
    }
}

/// Running loops; dropping it ends them.
pub struct Spinners(Vec<Child>);

impl Spinners {
    /// One for each core, in processes of their own: their CPU time is not the benchmark's.
    pub fn start() -> Outcome<Spinners> {
        let program = procfs::this_program().about("saker")?;
        let mut spinners = Spinners(Vec::new());
        for core in 0..thread::parallelism() {
            let mut command = Command::new(&program);
            command.args(["bench", "spinner", &core.to_string()]).stdin(Stdio::null());
            spinners.0.push(command.spawn().about("spinner")?);
        }
        Ok(spinners)
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It cannot have ended by itself; if it has, there is nothing to end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
