//! `saker serve`: one role, in the foreground.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use saker_rpc::StopHandle;
use saker_runtime::{config, telemetry, thread};
use serde::de::DeserializeOwned;

use crate::fail::{Context, Failure, Outcome};
use crate::memory;
use crate::signals::{Signal, Signals};

/// Run one role of a cluster in the foreground, until SIGTERM or SIGINT.
///
/// This is what `saker up` and systemd units call. Logs go to stderr (SAKER_LOG filters them),
/// metrics and /healthz are served at the `http` address of the settings.
#[derive(clap::Args)]
pub struct Args {
    /// Which role.
    #[arg(value_enum)]
    role: ServedRole,
    /// Its settings (TOML), as `saker up` writes them to D/etc/ROLE-N.toml.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServedRole {
    /// Directory changes and the cluster map.
    Coordinator,
    /// A metadata node.
    Mnode,
    /// File data.
    Store,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<u8> {
    // Before any thread is started, so that all of them leave the signals to us.
    let signals = Signals::block().about("signals")?;
    telemetry::init();
    raise_file_limit();
    memory::give_back();
    let stop = StopHandle::new();
    stop_at_signal(signals, stop.clone())?;
    let file = &args.config;
    let served = match args.role {
        ServedRole::Coordinator => saker_coordinator::serve(load(file)?, &stop),
        ServedRole::Mnode => saker_meta::serve(load(file)?, &stop),
        ServedRole::Store => saker_store::serve(load(file)?, &stop),
    };
    let name = args.role.to_possible_value();
    let name = name.as_ref().map_or("serve", |value| value.get_name());
    served.map_err(|why| Failure::new(name, why))?;
    tracing::info!("{name} has stopped");
    Ok(0)
}

fn load<T: DeserializeOwned>(file: &Path) -> Outcome<T> {
    let loaded = config::load(file).map_err(|why| Failure::new("settings", why))?;
    Ok(loaded.value)
}

fn stop_at_signal(signals: Signals, stop: StopHandle) -> Outcome {
    let wait = move || {
        loop {
            match signals.wait() {
                Ok(Signal::Reload) => tracing::info!("SIGHUP: there is nothing to read again"),
                Ok(Signal::Stop) => break,
                Err(error) => {
                    tracing::error!("signals cannot be read: {error}");
                    break;
                }
            }
        }
        tracing::info!("stopping");
        stop.stop();
    };
    thread::spawn("signals", wait).map(drop).about("thread")
}

/// Each connection and each file that is read takes a descriptor: as many as the system allows.
pub(super) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("the limit of open files stays as it is: {error}");
    }
}
