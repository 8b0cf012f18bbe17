#![allow(clippy::unwrap_used)]

use saker_runtime::fs::MemDir;
use saker_runtime::sim;

use super::*;
use crate::conformance::{self, EngineUnderTest, IDENTITY};

/// On a disk in memory.
struct OnDisk {
    disk: MemDir,
    sizes: Sizes,
}

const SMALL: Sizes = Sizes { overlay_bytes: 4000, replay_bytes: 16_000, segment_bytes: 8 << 10 };

fn home(disk: &MemDir, sizes: Sizes) -> Result<EmbeddedOptions> {
    let config = EmbeddedConfig { merge_threads: 0, ..EmbeddedConfig::default() };
    let table = EmbeddedTable::open_in(disk.sub_dir("table").unwrap(), &config)?;
    let journal = disk.sub_dir("journal").unwrap();
    Ok(EmbeddedOptions { journal, table: Some(Arc::new(table)), sizes })
}

impl EngineUnderTest for OnDisk {
    type Engine = Embedded;

    fn open(&mut self, on_recovered: &mut OnRecovered<'_>) -> Result<Embedded> {
        Embedded::open(home(&self.disk, self.sizes)?, IDENTITY, on_recovered)
    }

    fn lose_power(&mut self, seed: u64) {
        self.disk = self.disk.crash(seed);
    }
}

#[test]
fn conforms() {
    for seed in 0..20 {
        sim::start(seed);
        let replay_bytes = if seed.is_multiple_of(2) { SMALL.replay_bytes } else { 500 };
        let sizes = Sizes { replay_bytes, ..SMALL };
        let mut subject = OnDisk { disk: MemDir::new(), sizes };
        conformance::run(&mut subject, seed);
        let segments = subject.disk.sub_dir("journal").unwrap().list().unwrap();
        let first = segments.iter().filter(|name| name.starts_with("wal-")).min().unwrap();
        assert!(first.as_str() > "wal-0000000000000000", "checkpoints were taken: {segments:?}");
    }
    sim::stop();
}

fn decisions(disk: &MemDir) -> (Embedded, Vec<What>) {
    let journal: Arc<dyn Dir> = Arc::new(disk.clone());
    let home = EmbeddedOptions { journal, table: None, sizes: Sizes::of_facts(500) };
    let mut facts = Vec::new();
    let engine = Embedded::open(home, IDENTITY, &mut |recovered| {
        match recovered {
            Recovered::Anew => facts.clear(),
            Recovered::Fact(fact) => facts.push(fact),
        }
        Ok(())
    });
    (engine.unwrap(), facts)
}

#[test]
fn facts_without_a_table_are_said_again_and_the_rest_is_dropped() {
    let disk = MemDir::new();
    let (mut engine, _) = decisions(&disk);
    let fact = |n| What::IdsReserved(n);
    for n in 1..=200 {
        let changes = vec![saker_types::change::Change { what: Some(fact(n)) }];
        engine.commit(&Record { changes });
        engine.end_step(Time::from_ns(n), || [fact(n)].into_iter()).unwrap();
    }
    engine.flush().unwrap();
    drop(engine);
    let disk = disk.crash(1);
    let (_, facts) = decisions(&disk);
    assert_eq!(facts.last(), Some(&fact(200)));
    assert!(facts.len() < 50, "{} facts", facts.len());
    // The segment that is written, and one to be written again.
    assert!(disk.list().unwrap().len() <= 3, "{:?}", disk.list());
}
