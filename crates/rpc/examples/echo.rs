//! Prints what a round trip costs: `echo [IN_FLIGHT [SECONDS [THREADS]]]`; without arguments, for
//! several loads.

use saker_rpc::bench::{EchoFigures, echo_on};

const SECONDS: f64 = 3.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    println!(
        "{:>7} {:>9} {:>10} {:>9} {:>16} {:>16}",
        "threads", "in flight", "ops/s", "mean us", "client CPU us/op", "server CPU us/op"
    );
    if let Some(in_flight) = args.first() {
        let seconds = args.get(1).map_or(Ok(SECONDS), |arg| arg.parse())?;
        let threads = args.get(2).map_or(Ok(1), |arg| arg.parse())?;
        print(&echo_on(threads, in_flight.parse()?, seconds)?);
        return Ok(());
    }
    for (threads, in_flight) in [(1, 1), (1, 16), (1, 512), (2, 1), (2, 256)] {
        print(&echo_on(threads, in_flight, SECONDS)?);
    }
    Ok(())
}

fn print(figures: &EchoFigures) {
    println!(
        "{:>7} {:>9} {:>10.0} {:>9.1} {:>16.2} {:>16.2}",
        figures.threads,
        figures.in_flight,
        figures.ops_per_s(),
        figures.mean_us(),
        figures.client_us_per_op(),
        figures.server_us_per_op(),
    );
}
