//! Random histories with kills and losses of power.

use saker_runtime::rand::Rng;

use super::disk::Machine;
use super::model::{CHUNK_BYTES, CHUNK_USED, CHUNKS, Crash, Model, may_die};
use crate::backend::segments::SegmentStore;

const FILES: usize = 3;

fn data(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    rng.fill(&mut data);
    data
}

/// One random call. Returns false if it failed.
fn step(rng: &mut Rng, model: &mut Model, store: &SegmentStore) -> bool {
    let file = rng.below(FILES as u64) as usize;
    let index = rng.below(CHUNKS);
    match rng.below(100) {
        0..8 => {
            let offset = rng.below(CHUNK_USED as u64) as usize;
            let len = 1 + rng.below((CHUNK_USED - offset) as u64) as usize;
            may_die(model.punch(store, (file, index), offset, len))
        }
        8..70 => {
            let offset = rng.below(CHUNK_USED as u64) as usize;
            let max = if rng.chance(1, 4) { CHUNK_USED } else { 5_000 };
            let len = rng.below((CHUNK_USED - offset).min(max) as u64 + 1) as usize;
            let sync = rng.chance(1, 10);
            may_die(model.write(store, (file, index), offset, &data(rng, len), sync))
        }
        70..80 => may_die(model.sync(store)),
        80..86 => {
            let cut = match rng.below(3) {
                0 => rng.below(CHUNKS + 1) * CHUNK_BYTES,
                _ => rng.below(CHUNKS) * CHUNK_BYTES + rng.below(CHUNK_USED as u64),
            };
            may_die(model.truncate(store, file, cut))
        }
        86..89 => may_die(model.delete(store, &[file, (file + 1) % FILES])),
        89..94 => may_die(store.checkpoint()),
        _ => {
            store.maintain();
            true
        }
    }
}

fn history(seed: u64, steps: usize) {
    let mut rng = Rng::seeded(seed);
    let mut machine = Machine::new();
    let mut model = Model::new(FILES);
    let mut store = machine.open();
    for _ in 0..steps {
        match rng.below(100) {
            0..3 => {
                drop(store);
                store = machine.open();
                model.check(&store, Crash::Kill);
            }
            3..6 => {
                drop(store);
                machine = machine.power_loss(rng.u64());
                store = machine.open();
                model.check(&store, Crash::Power);
            }
            6..16 => {
                let from = rng.below(CHUNK_USED as u64) as usize;
                let to = from + rng.below((CHUNK_USED - from) as u64 + 1) as usize;
                let at = (rng.below(FILES as u64) as usize, rng.below(CHUNKS));
                model.read(&store, at, from, to);
            }
            _ => assert!(step(&mut rng, &mut model, &store), "a call failed on a good disk"),
        }
    }
    model.check(&store, Crash::Kill);
}

#[test]
fn random_histories_agree_with_the_model() {
    for seed in 0..25 {
        println!("seed {seed}");
        history(seed, 400);
    }
}

/// Runs a script until the machine dies at the change number `count`. Returns whether it lived.
fn script(machine: &Machine, model: &mut Model, seed: u64, count: i64) -> bool {
    let mut rng = Rng::seeded(seed);
    let Ok(store) = machine.open_dying(count) else { return false };
    for _ in 0..25 {
        if !step(&mut rng, model, &store) {
            return false;
        }
    }
    store.checkpoint().is_ok()
}

/// Crashes at every single change of disk or table, on top of some history.
fn crash_everywhere(seed: u64) {
    let mut start = Machine::new();
    let mut start_model = Model::new(FILES);
    {
        let mut rng = Rng::seeded(seed + 1_000);
        let store = start.open();
        for _ in 0..30 {
            step(&mut rng, &mut start_model, &store);
        }
        start_model.sync(&store).unwrap();
    }
    for count in 0.. {
        // Everything is synced, so losing power copies the machine, but for the table's rest.
        start = start.power_loss(seed);
        let machine = start.power_loss(seed);
        let mut model = start_model.clone();
        let lived = script(&machine, &mut model, seed, count);
        for power_seed in 0..3 {
            let after = machine.power_loss(seed * 100 + power_seed);
            model.clone().check(&after.open(), Crash::Power);
            // What recovery did must survive, too.
            let again = after.power_loss(power_seed);
            model.clone().check(&again.open(), Crash::Power);
        }
        let store = machine.open();
        model.check(&store, Crash::Kill);
        store.maintain();
        store.checkpoint().unwrap();
        model.check(&store, Crash::Kill);
        drop(store);
        model.check(&machine.open(), Crash::Kill);
        if lived {
            assert!(count > 20, "the script does too little");
            return;
        }
    }
}

#[test]
fn a_crash_at_any_change_loses_nothing() {
    for seed in 0..4 {
        println!("seed {seed}");
        crash_everywhere(seed);
    }
}
