//! `saker serve`: one role, in the foreground.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::fail::Outcome;

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
    let _ = (args.role, &args.config);
    Ok(0)
}
