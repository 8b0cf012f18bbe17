//! Metrics: declared once, with a help text; counted with one atomic addition, without a lock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, counter, gauge};

/// Names a label and its value.
type Label = (&'static str, String);

/// The name that counts operations missing from a label table.
const OTHER: &str = "other";

/// Whether a metric only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Grows, from zero at the process's start. The name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A declared metric, for lists and documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// As it appears at `/metrics`: `saker_<noun>_<unit>`.
    pub name: &'static str,
    /// Whether it only grows.
    pub kind: MetricKind,
    /// One sentence without its full stop.
    pub help: &'static str,
}

/// A number that grows. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicI64>);

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds `n`, which may be negative.
    pub fn add(&self, n: i64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One counter for each operation number. Clones share them.
#[derive(Clone)]
pub struct OpCounters(Arc<Ops>);

struct Ops {
    label: &'static str,
    fixed: Vec<Label>,
    names: Vec<Option<&'static str>>,
    /// By operation number; one more, the last, for numbers that have no name.
    counts: Box<[AtomicU64]>,
}

impl OpCounters {
    /// Adds one to the counter of `op`.
    pub fn inc(&self, op: u16) {
        self.add(op, 1);
    }

    /// Adds `n` to the counter of `op`.
    pub fn add(&self, op: u16, n: u64) {
        self.counter(op).fetch_add(n, Ordering::Relaxed);
    }

    /// The counter of `op` now. Operations without a name share one.
    pub fn get(&self, op: u16) -> u64 {
        self.counter(op).load(Ordering::Relaxed)
    }

    fn counter(&self, op: u16) -> &AtomicU64 {
        let last = self.0.counts.len() - 1;
        &self.0.counts[usize::from(op).min(last)]
    }
}

impl Ops {
    fn new(label: &'static str, fixed: Vec<Label>, table: &[(u16, &'static str)]) -> Ops {
        let len = table.iter().map(|(op, _)| usize::from(*op) + 1).max().unwrap_or(0);
        let mut names = vec![None; len];
        for (op, name) in table {
            names[usize::from(*op)] = Some(*name);
        }
        Ops { label, fixed, names, counts: (0..=len).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Names with their counts; several numbers may share a name. Unnamed ones only if counted.
    fn totals(&self) -> BTreeMap<&'static str, u64> {
        let mut totals = BTreeMap::new();
        for (index, count) in self.counts.iter().enumerate() {
            let name = self.names.get(index).copied().flatten();
            let count = count.load(Ordering::Relaxed);
            if name.is_some() || count > 0 {
                *totals.entry(name.unwrap_or(OTHER)).or_insert(0) += count;
            }
        }
        totals
    }
}

enum Values {
    Counter(Counter),
    Gauge(Gauge),
    Ops(Vec<OpCounters>),
}

struct Family {
    metric: Metric,
    values: Values,
}

/// The metrics of a process. Clones share them. Declaring a metric again gives the same one, so
/// that the workers of one process may each declare what they count.
#[derive(Clone, Default)]
pub struct Registry {
    families: Arc<Mutex<BTreeMap<&'static str, Family>>>,
}

impl Registry {
    /// No metrics.
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Declares a counter; `name` must end in `_total`.
    pub fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        let make = || Values::Counter(Counter::default());
        self.declare(MetricKind::Counter, name, help, make, |values| match values {
            Values::Counter(counter) => Some(counter.clone()),
            _ => None,
        })
    }

    /// Declares a gauge.
    pub fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        let make = || Values::Gauge(Gauge::default());
        self.declare(MetricKind::Gauge, name, help, make, |values| match values {
            Values::Gauge(gauge) => Some(gauge.clone()),
            _ => None,
        })
    }

    /// Declares one counter for each operation number: `name{label="<name in table>"}`, with
    /// the labels in `fixed` besides. `name` must end in `_total`. Numbers missing from `table`
    /// are counted together, as `other`.
    pub fn op_counters(
        &self,
        name: &'static str,
        help: &'static str,
        fixed: &[(&'static str, &str)],
        label: &'static str,
        table: &[(u16, &'static str)],
    ) -> OpCounters {
        let fixed: Vec<Label> = fixed.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
        let make = || Values::Ops(Vec::new());
        self.declare(MetricKind::Counter, name, help, make, |values| {
            let Values::Ops(all) = values else {
                return None;
            };
            let known = all.iter().find(|ops| ops.0.fixed == fixed);
            Some(known.cloned().unwrap_or_else(|| {
                let ops = OpCounters(Arc::new(Ops::new(label, fixed, table)));
                all.push(ops.clone());
                ops
            }))
        })
    }

    /// Everything declared, by name.
    pub fn list(&self) -> Vec<Metric> {
        self.lock().values().map(|family| family.metric.clone()).collect()
    }

    /// The metrics now, in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }

    /// The one door for declarations.
    ///
    /// # Panics
    /// On a name that breaks the rules or is taken by a metric of another kind: a mistake in
    /// the program, seen at its start.
    fn declare<T>(
        &self,
        kind: MetricKind,
        name: &'static str,
        help: &'static str,
        make: impl FnOnce() -> Values,
        pick: impl FnOnce(&mut Values) -> Option<T>,
    ) -> T {
        let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        assert!(name.starts_with("saker_") && name.bytes().all(good), "metric name {name}");
        let total = name.ends_with("_total");
        assert_eq!(total, kind == MetricKind::Counter, "{name}: exactly counters end in _total");
        let mut families = self.lock();
        let family = families.entry(name).or_insert_with(|| {
            let metric = Metric { name, kind, help };
            Family { metric, values: make() }
        });
        match pick(&mut family.values) {
            Some(value) => value,
            None => panic!("{name} is declared twice, in two kinds"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Family>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

impl Collector for Registry {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in self.lock().values() {
            let Metric { name, kind, help } = family.metric;
            // prometheus-client appends `_total` to counters itself.
            let (name, kind) = match kind {
                MetricKind::Counter => {
                    (name.strip_suffix("_total").unwrap_or(name), MetricType::Counter)
                }
                MetricKind::Gauge => (name, MetricType::Gauge),
            };
            let help = format!("{help}.");
            let mut family_encoder = encoder.encode_descriptor(name, &help, None, kind)?;
            match &family.values {
                Values::Counter(value) => constant_counter(value.get(), &mut family_encoder)?,
                Values::Gauge(value) => {
                    gauge::ConstGauge::new(value.get()).encode(family_encoder)?;
                }
                Values::Ops(all) => {
                    all.iter().try_for_each(|ops| encode_ops(&ops.0, &mut family_encoder))?;
                }
            }
        }
        Ok(())
    }
}

fn constant_counter(value: u64, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
    encoder.encode_counter::<prometheus_client::encoding::NoLabelSet, _, u64>(&value, None)
}

fn encode_ops(ops: &Ops, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
    for (name, count) in ops.totals() {
        let mut labels = vec![(ops.label, name)];
        labels.extend(ops.fixed.iter().map(|(key, value)| (*key, value.as_str())));
        counter::ConstCounter::new(count).encode(encoder.encode_family(&labels.as_slice())?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[(u16, &str)] = &[(1, "lookup"), (4, "create"), (5, "open"), (6, "open")];

    #[test]
    fn names_come_out_as_declared() {
        let registry = Registry::new();
        let ops = registry.op_counters(
            "saker_mnode_requests_total",
            "Requests executed",
            &[],
            "op",
            TABLE,
        );
        ops.add(4, 5);
        ops.inc(5);
        ops.inc(6);
        registry.counter("saker_wal_flushes_total", "Journal flushes").add(3);
        registry.gauge("saker_mnode_inodes", "Inode rows").set(-7);
        let text = registry.encode();
        for line in [
            "saker_mnode_requests_total{op=\"create\"} 5",
            "saker_mnode_requests_total{op=\"lookup\"} 0",
            "saker_mnode_requests_total{op=\"open\"} 2",
            "saker_wal_flushes_total 3",
            "saker_mnode_inodes -7",
            "# HELP saker_mnode_requests Requests executed.",
            "# TYPE saker_mnode_requests counter",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing from\n{text}");
        }
        assert!(!text.contains("other"), "{text}");
    }

    #[test]
    fn fixed_labels_and_numbers_without_a_name() {
        let registry = Registry::new();
        let declare = |to| {
            let help = "Requests sent";
            registry.op_counters("saker_client_requests_total", help, &[("to", to)], "op", TABLE)
        };
        let (mnode, store) = (declare("mnode"), declare("store"));
        mnode.inc(1);
        declare("mnode").inc(1);
        for unnamed in [0, 3, 9, u16::MAX] {
            store.inc(unnamed);
        }
        let text = registry.encode();
        for line in [
            "saker_client_requests_total{op=\"lookup\",to=\"mnode\"} 2",
            "saker_client_requests_total{op=\"lookup\",to=\"store\"} 0",
            "saker_client_requests_total{op=\"other\",to=\"store\"} 4",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing from\n{text}");
        }
        assert_eq!(text.matches("# TYPE").count(), 1);
    }

    #[test]
    fn lists_and_shares_declarations() {
        let registry = Registry::new();
        registry.counter("saker_b_total", "B").inc();
        registry.counter("saker_b_total", "B").inc();
        registry.gauge("saker_a_bytes", "A");
        assert_eq!(registry.counter("saker_b_total", "B").get(), 2);
        let listed = registry.list();
        assert_eq!(listed.len(), 2);
        assert_eq!((listed[0].name, listed[0].kind), ("saker_a_bytes", MetricKind::Gauge));
        assert_eq!((listed[1].name, listed[1].help), ("saker_b_total", "B"));
    }

    #[test]
    #[should_panic(expected = "exactly counters end in _total")]
    fn a_counter_without_total_is_refused() {
        Registry::new().counter("saker_flushes", "Flushes");
    }

    #[test]
    #[should_panic(expected = "declared twice")]
    fn a_name_has_one_kind() {
        let registry = Registry::new();
        registry.counter("saker_x_total", "X");
        registry.op_counters("saker_x_total", "X", &[], "op", TABLE);
    }
}
