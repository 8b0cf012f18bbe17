//! Torments a cluster of the built `saker` and says what came of it; needs root and /dev/fuse.
//! Exit code 1: something is wrong.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use saker_sim::torment::{self, TormentOptions};

/// Kill processes of a real cluster, take their power, or disturb their networks, disks and clocks
/// while clients work on two mounts; then check that each client was told the truth.
///
/// Ten minutes as in docs/torment.md:
///   cargo build --release -p saker-cli -p saker-sim
///   target/release/torment --seconds 600
///   target/release/torment --power-loss 20
///   target/release/torment --faults 300
#[derive(Parser)]
#[command(name = "torment", verbatim_doc_comment)]
struct Args {
    /// How long processes are killed.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Let the power fail so many times instead.
    #[arg(long, value_name = "ROUNDS")]
    power_loss: Option<usize>,
    /// Disturb networks, disks, processes and clocks for so long instead.
    #[arg(long, value_name = "SECONDS", conflicts_with = "power_loss")]
    faults: Option<u64>,
    /// Milliseconds from kill to kill.
    #[arg(long, default_value_t = 1_900)]
    period_ms: u64,
    /// Milliseconds that a client waits between two operations.
    #[arg(long, default_value_t = 5)]
    think_ms: u64,
    /// Of operations, kills and faults; the interleaving is the machine's.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(code) = torment::enter() {
        return code;
    }
    let (seed, think) = (args.seed, Duration::from_millis(args.think_ms));
    let report = match (args.power_loss, args.faults) {
        (Some(rounds), _) => torment::lose_power(seed, rounds, think),
        (None, Some(seconds)) => torment::suffer_faults(seed, Duration::from_secs(seconds), think),
        (None, None) => torment::kill(&TormentOptions {
            seed,
            length: Duration::from_secs(args.seconds),
            period: Duration::from_millis(args.period_ms),
            think,
        }),
    };
    print!("{report}");
    if report.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
