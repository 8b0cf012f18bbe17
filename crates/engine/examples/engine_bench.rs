//! `engine_bench DIR [SECONDS]`: the engine's raw figures on the disk that holds DIR.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(dir) = args.next() else {
        eprintln!("engine_bench: usage: engine_bench DIR [SECONDS]");
        return ExitCode::from(2);
    };
    let seconds = args.next().and_then(|text| text.parse().ok()).unwrap_or(5.0);
    match saker_engine::bench::raw(dir.as_ref(), seconds) {
        Ok(figures) => {
            print!("{figures}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("engine_bench: {dir}: {error}");
            ExitCode::FAILURE
        }
    }
}
