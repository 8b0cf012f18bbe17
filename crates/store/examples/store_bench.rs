//! Measures a store without a network: `store_bench DIR [GiB] [THREADS] [WRITE KiB]`.

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use common::{Failure, open};
use saker_runtime::thread;
use saker_runtime::time::{now, thread_cpu};
use saker_store::SegmentStore;
use saker_store::wait::WaitPolicy;
use saker_types::wire::{ChunkReadReq, ChunkWriteReq};

const CHUNK_BYTES: u64 = 4 << 20;

/// Runs `step` with 0..count, shared among threads; reports.
fn phase(
    name: &str,
    store: &Arc<SegmentStore>,
    threads: u64,
    (count, bytes): (u64, u64),
    step: fn(&SegmentStore, u64, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let start = now();
    let spawn = |number: u64| {
        let store = store.clone();
        thread::spawn("bench", move || -> Result<Duration, Failure> {
            let start = thread_cpu();
            for i in (number..count).step_by(threads as usize) {
                step(&store, i, bytes)?;
            }
            Ok(thread_cpu() - start)
        })
    };
    let running = (0..threads).map(spawn).collect::<Result<Vec<_>, _>>()?;
    let mut cpu = Duration::ZERO;
    for thread in running {
        cpu += thread.join().map_err(|_| "a thread panicked")??;
    }
    let seconds = (now() - start).as_secs_f64();
    println!(
        "{name}: {:.0} ops/s, {:.0} MiB/s, {:.1} us CPU per op",
        count as f64 / seconds,
        (count * bytes) as f64 / seconds / f64::from(1 << 20),
        cpu.as_secs_f64() * 1e6 / count as f64
    );
    Ok(())
}

fn place(i: u64, bytes: u64) -> (u64, u64, u64) {
    let at = i * bytes;
    (1 + at / (64 * CHUNK_BYTES), at / CHUNK_BYTES % 64, at % CHUNK_BYTES)
}

fn write(store: &SegmentStore, i: u64, bytes: u64) -> Result<(), Failure> {
    thread_local! {
        static DATA: Vec<u8> = (0..CHUNK_BYTES).map(|i| (i * 7 + i / 250) as u8).collect();
    }
    let (id, index, offset) = place(i, bytes);
    DATA.with(|data| {
        let data = &data[..bytes as usize];
        let replicas = vec![0];
        // What a client pays, too.
        let crc = crc32c::crc32c(data);
        let req = ChunkWriteReq { id, index, offset, replicas, crc, ..ChunkWriteReq::default() };
        store.write(&req, data, WaitPolicy::May)?;
        Ok(())
    })
}

fn write_sync(store: &SegmentStore, i: u64, bytes: u64) -> Result<(), Failure> {
    write(store, i, bytes)?;
    store.flush()?;
    Ok(())
}

fn read(store: &SegmentStore, i: u64, bytes: u64) -> Result<(), Failure> {
    let (id, index, offset) = place(i, bytes);
    let (data, _) = store.read(
        &ChunkReadReq { id, index, offset, len: bytes, ..Default::default() },
        WaitPolicy::May,
    )?;
    if data.len() as u64 == bytes { Ok(()) } else { Err("a short read".into()) }
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().ok_or("usage: store_bench DIR [GiB] [THREADS] [KiB]")?);
    let mut number = |default: u64| args.next().map_or(Ok(default), |text| text.parse());
    let (gib, threads, bytes) = (number(2)?, number(2)?, number(64)? << 10);
    let count = (gib << 30) / bytes;
    let store = open(&path)?;
    store.start()?;
    phase("write", &store, threads, (count, bytes), write)?;
    let start = now();
    store.flush()?;
    println!("sync after it: {:.2} s", (now() - start).as_secs_f64());
    phase("read", &store, threads, (count, bytes), read)?;
    phase("read chunks", &store, threads, (count * bytes / CHUNK_BYTES, CHUNK_BYTES), read)?;
    phase("write+sync, 8 threads", &store, 8, (400, bytes), write_sync)?;
    phase("overwrite", &store, threads, (count, bytes), write)?;
    store.stop();
    drop(store);
    let start = now();
    let store = open(&path)?;
    println!("open after a kill: {:.3} s", (now() - start).as_secs_f64());
    phase("read, index cold", &store, threads, (count, bytes), read)?;
    println!("{:?}", store.stat()?);
    Ok(())
}
