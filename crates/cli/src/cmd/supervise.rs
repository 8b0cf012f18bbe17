//! `saker supervise`: the process that `saker up` leaves behind to watch the roles.

use std::path::PathBuf;

use saker_runtime::telemetry;

use crate::fail::{Context, Failure, Outcome};
use crate::layout::ClusterDir;
use crate::process;
use crate::signals::Signals;
use crate::supervisor::Supervisor;

/// Watches the processes of a cluster's directory; `saker up` starts this.
#[derive(clap::Args)]
pub struct Args {
    /// The cluster's directory.
    #[arg(long, value_name = "D")]
    dir: PathBuf,
}

/// Runs until SIGTERM; the roles live on.
pub fn run(args: &Args) -> Outcome<u8> {
    let signals = Signals::block().about("signals")?;
    telemetry::init();
    watch(&ClusterDir::new(&args.dir)?, &signals)?;
    Ok(0)
}

/// Supervises a directory in this process.
pub fn watch(dir: &ClusterDir, signals: &Signals) -> Outcome {
    let _only_one = lock(dir)?;
    let me = std::process::id();
    let own_args: Vec<_> = std::env::args_os().skip(1).collect();
    let process = process::Process::with_args(me, &own_args)
        .ok_or_else(|| Failure::new("supervisor", "/proc does not show this process"))?;
    let pid_file = dir.supervisor_pid_file();
    process::note_pid(&pid_file, &process);
    let result = Supervisor::new(dir.clone()).and_then(|mut supervisor| supervisor.run(signals));
    process::remove_pid_file(&pid_file);
    result
}

/// Two supervisors would start everything twice.
fn lock(dir: &ClusterDir) -> Outcome<std::fs::File> {
    let path = dir.path().join("run").join("supervisor.lock");
    let file = std::fs::File::create(&path).about(path.display())?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(Failure::new(dir.path().display(), "another supervisor is at work"))
        }
        Err(std::fs::TryLockError::Error(e)) => Err(Failure::new(path.display(), e)),
    }
}
