//! What a benchmark says: one JSON document, or a table.

use std::collections::BTreeMap;
use std::time::Duration;

use saker_runtime::thread;
use serde::Serialize;

use super::counters::Counts;
use super::load::{Load, Measured};
use crate::fail::{Context, Outcome};

/// Room for the name of a phase.
const PHASE_WIDTH: usize = 21;

/// All phases (contract.md).
#[derive(Serialize)]
pub struct Report {
    /// What was measured.
    pub system: String,
    /// Cores of this machine.
    pub cores: usize,
    /// Were they kept awake?
    pub spin: bool,
    /// Directories above each file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// In the order in which they ran.
    pub phases: Vec<Phase>,
    /// Throughput of one phase in terms of another.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ratios: BTreeMap<String, f64>,
    /// One document at the end instead of a table.
    #[serde(skip)]
    json: bool,
}

/// One phase.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// What was done.
    pub phase: String,
    /// Threads.
    pub threads: usize,
    /// Operations under way on each.
    pub inflight: usize,
    /// Operations that succeeded.
    pub ops: u64,
    /// Wall time.
    pub seconds: f64,
    /// Operations in a second.
    pub ops_per_s: f64,
    /// File data moved in a second; 0 when none is.
    pub mib_per_s: f64,
    /// Latencies; only the mean where single ones were not taken.
    pub mean_us: f64,
    #[allow(missing_docs)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    #[allow(missing_docs)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    #[allow(missing_docs)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_us: Option<f64>,
    /// Operations that failed.
    pub errors: u64,
    /// CPU time of each process.
    pub cpu_us_per_op: BTreeMap<String, f64>,
    /// Requests that MNodes served, by operation of the wire; only of clusters on this machine.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests_per_op: BTreeMap<String, f64>,
    /// Bytes that stores read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_read_bytes: Option<u64>,
}

impl Phase {
    /// From what was measured. `bytes`: file data of one operation.
    pub fn new(
        name: &str,
        load: Load,
        measured: &Measured,
        bytes: u64,
        cpu: BTreeMap<String, Duration>,
    ) -> Phase {
        let ops: u64 = measured.done.iter().sum();
        let seconds = measured.time.as_secs_f64().max(1e-9);
        let ops_per_s = ops as f64 / seconds;
        let us = |ns: f64| ns / 1e3;
        let latency = &measured.latency_ns;
        let per_op = |time: Duration| time.as_secs_f64() * 1e6 / ops.max(1) as f64;
        Phase {
            phase: name.to_owned(),
            threads: load.threads,
            inflight: load.inflight,
            ops,
            seconds,
            ops_per_s,
            mib_per_s: ops_per_s * bytes as f64 / (1 << 20) as f64,
            mean_us: us(latency.mean()),
            p50_us: Some(us(latency.value_at_quantile(0.5) as f64)),
            p99_us: Some(us(latency.value_at_quantile(0.99) as f64)),
            max_us: Some(us(latency.max() as f64)),
            errors: measured.errors,
            cpu_us_per_op: cpu.into_iter().map(|(name, time)| (name, per_op(time))).collect(),
            requests_per_op: BTreeMap::new(),
            store_read_bytes: None,
        }
    }

    /// Adds what the servers say.
    pub fn count(&mut self, counts: &Counts) {
        let per_op = |(op, n): (&String, &u64)| (op.clone(), *n as f64 / self.ops.max(1) as f64);
        self.requests_per_op = counts.requests.iter().map(per_op).collect();
        self.store_read_bytes = Some(counts.store_read_bytes);
    }
}

impl Report {
    /// Compares the throughput of two phases; does nothing where one did not run.
    pub fn ratio(&mut self, of: &str, to: &str) {
        let speed = |name: &str| {
            let phase = self.phases.iter().find(|phase| phase.phase == name)?;
            (phase.ops > 0).then_some(phase.ops_per_s)
        };
        if let (true, Some(a), Some(b)) = (of != to, speed(of), speed(to)) {
            self.ratios.insert(format!("{of} / {to}"), a / b);
        }
    }

    /// An empty report; its table begins to be printed.
    pub fn begin(system: String, spin: bool, depth: Option<u32>, json: bool) -> Report {
        let cores = thread::parallelism();
        if !json {
            let awake = if spin { ", cores kept awake" } else { "" };
            println!("{system} ({cores} cores{awake})");
            println!(
                "{:<PHASE_WIDTH$} {:>9} {:>8} {:>10} {:>8} {:>9} {:>9} {:>9} {:>9} {:>6}  CPU us/op",
                "phase",
                "ops",
                "seconds",
                "ops/s",
                "MiB/s",
                "mean us",
                "p50 us",
                "p99 us",
                "max us",
                "errors"
            );
        }
        Report { system, cores, spin, depth, phases: Vec::new(), ratios: BTreeMap::new(), json }
    }

    /// A phase has ended; its row is printed at once, so that a long run shows what it has.
    pub fn add(&mut self, phase: Phase) {
        if !self.json {
            println!("{}", phase.row());
        }
        self.phases.push(phase);
    }

    /// Prints what goes below the table, or else the document.
    pub fn end(&self) -> Outcome {
        if self.json {
            println!("{}", serde_json::to_string_pretty(self).about("report")?);
            return Ok(());
        }
        for phase in self.phases.iter().filter(|phase| !phase.requests_per_op.is_empty()) {
            println!("{}", phase.counts_text());
        }
        for (name, ratio) in &self.ratios {
            println!("{name}: {ratio:.2}");
        }
        Ok(())
    }
}

impl Phase {
    /// Its row of the table.
    fn row(&self) -> String {
        format!(
            "{:<PHASE_WIDTH$} {:>9} {:>8.2} {:>10.0} {:>8.1} {:>9.1} {:>9} {:>9} {:>9} {:>6}  {}",
            self.phase,
            self.ops,
            self.seconds,
            self.ops_per_s,
            self.mib_per_s,
            self.mean_us,
            figure(self.p50_us),
            figure(self.p99_us),
            figure(self.max_us),
            self.errors,
            cpu_text(&self.cpu_us_per_op),
        )
    }

    /// `open: requests per operation: open 1.00; read by stores: 0.0 MiB`.
    fn counts_text(&self) -> String {
        let mut ops: Vec<_> = self.requests_per_op.iter().collect();
        ops.sort_by(|a, b| b.1.total_cmp(a.1));
        let requests: Vec<String> = ops.iter().map(|(op, n)| format!("{op} {n:.3}")).collect();
        let mib = self.store_read_bytes.unwrap_or(0) as f64 / (1 << 20) as f64;
        let Phase { phase, .. } = self;
        format!("{phase}: requests per op: {}; stores read {mib:.1} MiB", requests.join(", "))
    }
}

/// A figure that some phases do not have.
fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

/// Roles of one kind together: `client 3.1, mnode 9.8`.
fn cpu_text(per_process: &BTreeMap<String, f64>) -> String {
    let mut kinds: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, us) in per_process {
        let numbered = name.rsplit_once('-').filter(|(_, n)| n.parse::<u32>().is_ok());
        *kinds.entry(numbered.map_or(name.as_str(), |(kind, _)| kind)).or_default() += us;
    }
    let parts: Vec<String> = kinds.iter().map(|(kind, us)| format!("{kind} {us:.1}")).collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;

    #[test]
    fn figures_follow_from_what_was_measured() {
        let mut latency_ns = Histogram::new(3).unwrap();
        [10_000u64, 20_000, 30_000, 1_000_000].iter().for_each(|ns| latency_ns += *ns);
        let measured = Measured {
            done: vec![3, 1],
            errors: 2,
            first_error: None,
            time: Duration::from_secs(2),
            latency_ns,
        };
        let cpu = BTreeMap::from([("mnode-0".to_owned(), Duration::from_micros(40))]);
        let load = Load { threads: 2, inflight: 1 };
        let phase = Phase::new("write", load, &measured, 1 << 20, cpu);
        assert_eq!((phase.ops, phase.errors, phase.ops_per_s, phase.mib_per_s), (4, 2, 2.0, 2.0));
        assert!((phase.p50_us.unwrap() - 20.0).abs() < 0.1);
        assert!((phase.max_us.unwrap() - 1000.0).abs() < 1.0);
        assert_eq!(phase.cpu_us_per_op["mnode-0"], 10.0);
    }

    #[test]
    fn roles_of_a_kind_are_added() {
        let all = [("client", 1.0), ("mnode-0", 2.0), ("mnode-1", 3.5)];
        let all = all.into_iter().map(|(name, us)| (name.to_owned(), us)).collect();
        assert_eq!(cpu_text(&all), "client 1.0, mnode 5.5");
    }
}
