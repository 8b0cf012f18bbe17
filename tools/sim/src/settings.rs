//! Settings of test runs, from the environment.

use std::path::PathBuf;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Seeds and steps a seed: `SAKER_SEED` repeats one, `SAKER_SEEDS` and `SAKER_OPS` run longer.
pub fn runs(seeds: u64, steps: usize) -> (Vec<u64>, usize) {
    let steps = number("SAKER_OPS").map_or(steps, |n| n as usize);
    let seeds = match number("SAKER_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("SAKER_SEEDS").unwrap_or(seeds)).collect(),
    };
    (seeds, steps)
}

/// True as root; else says that the test is skipped. `SAKER_REQUIRE_ROOT` forbids skipping.
pub fn needs_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        assert!(std::env::var_os("SAKER_REQUIRE_ROOT").is_none(), "{test} needs root");
        eprintln!("{test}: skipped, needs root");
    }
    root
}

/// A directory on a disk for trees that tests make: `CARGO_TARGET_TMPDIR` or the system's.
pub fn scratch() -> PathBuf {
    std::env::var_os("SAKER_SCRATCH").map_or_else(std::env::temp_dir, PathBuf::from)
}
