//! `saker serve`: one role, in the foreground.

use std::path::{Path, PathBuf};

use saker_rpc::StopHandle;
use saker_runtime::{config, telemetry, thread};
use serde::de::DeserializeOwned;

use crate::fail::{Context, Failure, Outcome};
use crate::memory;
use crate::signals::{Signal, Signals};

mod agent;

/// Run one role of a cluster in the foreground, until SIGTERM or SIGINT.
///
/// This is what `saker up` and systemd units call. Logs go to stderr (SAKER_LOG filters them),
/// metrics and /healthz are served at the `http` address of the settings.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    role: ServedRole,
}

#[derive(clap::Subcommand)]
enum ServedRole {
    /// Directory changes and the cluster map.
    Coordinator(Settings),
    /// A metadata node.
    Mnode(Settings),
    /// File data.
    Store(Settings),
    Agent(agent::Args),
}

#[derive(clap::Args)]
struct Settings {
    /// Its settings (TOML), as `saker up` writes them to D/etc/ROLE-N.toml.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<u8> {
    // Before any thread is started, so that all of them leave the signals to us.
    let signals = Signals::block().about("signals")?;
    telemetry::init();
    raise_file_limit();
    memory::give_back();
    let (stop, agent_stop) = (StopHandle::new(), saker_agent::Stop::new());
    stop_at_signal(signals, {
        let (stop, agent_stop) = (stop.clone(), agent_stop.clone());
        move || {
            stop.stop();
            agent_stop.stop();
        }
    })?;
    let (name, served) = match &args.role {
        ServedRole::Coordinator(settings) => {
            ("coordinator", saker_coordinator::serve(load(&settings.config)?, &stop))
        }
        ServedRole::Mnode(settings) => ("mnode", saker_meta::serve(load(&settings.config)?, &stop)),
        ServedRole::Store(settings) => {
            ("store", saker_store::serve(load(&settings.config)?, &stop))
        }
        ServedRole::Agent(args) => ("agent", saker_agent::serve(args.config()?, &agent_stop)),
    };
    served.map_err(|why| Failure::new(name, why))?;
    tracing::info!("{name} has stopped");
    Ok(0)
}

fn load<T: DeserializeOwned>(file: &Path) -> Outcome<T> {
    let loaded = config::load(file).map_err(|why| Failure::new("settings", why))?;
    Ok(loaded.value)
}

fn stop_at_signal(signals: Signals, stop: impl FnOnce() + Send + 'static) -> Outcome {
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
        stop();
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
