//! Torments a cluster of the built `saker` and says what came of it; needs root and /dev/fuse.
//! Exit code 1: something is wrong.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use saker_sim::torment::{self, Options};

/// Kill processes of a real cluster, or take their power, while clients work on two mounts; then
/// check that each client was told the truth.
///
/// Ten minutes as in docs/torment.md:
///   cargo build --release -p saker-cli -p saker-sim
///   target/release/torment --seconds 600
///   target/release/torment --power-loss 20
#[derive(Parser)]
#[command(name = "torment", verbatim_doc_comment)]
struct Args {
    /// How long processes are killed.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Let the power fail so many times instead.
    #[arg(long, value_name = "ROUNDS")]
    power_loss: Option<usize>,
    /// Milliseconds from kill to kill.
    #[arg(long, default_value_t = 1_900)]
    period_ms: u64,
    /// Milliseconds that a client waits between two operations.
    #[arg(long, default_value_t = 5)]
    think_ms: u64,
    /// Of operations and kills; the interleaving is the machine's.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(code) = torment::enter() {
        return code;
    }
    let think = Duration::from_millis(args.think_ms);
    let report = match args.power_loss {
        Some(rounds) => torment::lose_power(args.seed, rounds, think),
        None => torment::kill(&Options {
            seed: args.seed,
            length: Duration::from_secs(args.seconds),
            period: Duration::from_millis(args.period_ms),
            think,
        }),
    };
    print!("{report}");
    if report.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
