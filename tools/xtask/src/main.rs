//! Checks of the repository that cargo has no lint for.
//!
//! - `cargo xtask deps`: the crates depend on each other only as ARCHITECTURE.md draws it.
//! - `cargo xtask circles`: the modules of a crate do not import each other in a circle.
//! - `cargo xtask sleeps`: tests wait for conditions, or say why they need real time.
//! - `cargo xtask words`: names are the terms that ARCHITECTURE.md lists.
//! - `cargo xtask names`: no two types that a whole crate sees have the same name.
//! - `cargo xtask metrics HOST:PORT…`: docs/metrics.md lists every metric that roles expose.

// No part of the system: reads the repository directly.
#![allow(clippy::disallowed_methods)]

use std::process::ExitCode;

mod circles;
mod deps;
mod metrics;
mod names;
mod sleeps;
mod sources;
mod words;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args.as_slice() {
        ["circles"] => circles::check(),
        ["deps"] => deps::check(),
        ["names"] => names::check(),
        ["sleeps"] => sleeps::check(),
        ["words"] => words::check(),
        ["metrics", addrs @ ..] if !addrs.is_empty() => metrics::check(addrs),
        _ => {
            eprintln!(
                "usage: cargo xtask circles | deps | names | sleeps | words | metrics HOST:PORT…"
            );
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("xtask: {problem}"));
            ExitCode::FAILURE
        }
    }
}
