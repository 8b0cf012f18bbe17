//! Random operations on one file against a model in memory; see [`saker_sim::fsx`].
//!
//! ```text
//! fsx --path FILE [--other FILE] [--ops N] [--seed S] [--seeds N]
//! fsx --cluster DIR --path NAME …        through the library instead of a mount
//! ```
//!
//! `--other` is the same file through another mount: then two writers share it.
#![allow(clippy::disallowed_methods)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use saker_client::{ClientOptions, ClusterAddr, Fs};
use saker_sim::fsx::{LibFsFile, PosixFile, run, run_two};
use saker_types::Locator;
use saker_types::wire::At;

#[derive(Parser)]
#[command(about = "Random operations on one file against a model in memory")]
struct Args {
    /// The file; with --cluster its name in the root directory
    #[arg(long)]
    path: PathBuf,
    /// The same file through another mount, for a second writer
    #[arg(long)]
    other: Option<PathBuf>,
    /// Use the library on this cluster, not a mount
    #[arg(long)]
    cluster: Option<String>,
    /// Operations for each seed (and writer)
    #[arg(long, default_value_t = 20_000)]
    ops: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds
    #[arg(long, default_value_t = 1)]
    seeds: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    for seed in args.seed..args.seed + args.seeds {
        let start = Instant::now();
        match one(&args, seed) {
            Ok(said) => println!("seed {seed}: {said}, {:.1} s", start.elapsed().as_secs_f64()),
            Err(what) => {
                eprintln!("{what}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn one(args: &Args, seed: u64) -> Result<String, String> {
    let told = |e: std::io::Error| format!("{}: {e}", args.path.display());
    if let Some(other) = &args.other {
        let first = PosixFile::create(&args.path).map_err(told)?;
        let mut both = [first, PosixFile::create(other).map_err(told)?];
        run_two(&mut both, seed, args.ops)?;
        return Ok(format!("two writers, {} operations each", args.ops));
    }
    let report = match &args.cluster {
        None => run(&mut PosixFile::create(&args.path).map_err(told)?, seed, args.ops)?,
        Some(cluster) => {
            let addr = ClusterAddr::parse(cluster).map_err(|e| e.to_string())?;
            let fs = Fs::connect(&addr, ClientOptions::default()).map_err(|e| e.to_string())?;
            let name = args.path.as_os_str().as_encoded_bytes();
            let at = At::child(Locator::root(), name);
            let report = run(&mut LibFsFile::create(&fs, &at).map_err(told)?, seed, args.ops)?;
            fs.close().map_err(|e| e.to_string())?;
            report
        }
    };
    Ok(format!("{report:?}"))
}
