//! How long the cluster does not serve after something was killed: one who asks all the time.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use bytes::Bytes;
use saker_client::{Caller, Fs, OpenFlags};
use saker_types::wire::At;
use saker_types::{Locator, Result};

use super::PATIENCE;

/// Names of one probe: with the number of the probe they hash over all shards.
const NAMES: u8 = 8;
/// Bytes of a file: too many for an inode's row, so that stores are asked.
const BYTES: usize = 5_000;
/// Pause while a mount does not answer.
const PAUSE: Duration = Duration::from_millis(10);

/// A death, or the end of a fault, and when all was served again.
#[derive(Clone, Debug)]
pub struct Outage {
    /// Whose.
    pub role: String,
    /// When.
    pub killed: Instant,
    /// How long until a probe that began after it had ended well.
    pub lasted: Option<Duration>,
}

/// Asks all the time.
pub struct Prober {
    outages: Arc<Mutex<Vec<Outage>>>,
    stop: Arc<AtomicBool>,
    probes: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Prober {
    /// Begins, below these directories of the mounts.
    pub fn start(fs: Fs, tops: Vec<PathBuf>) -> Prober {
        let outages: Arc<Mutex<Vec<Outage>>> = Arc::default();
        let (stop, probes) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (o, s, p) = (outages.clone(), stop.clone(), probes.clone());
        let thread = std::thread::spawn(move || {
            while !s.load(Ordering::Relaxed) {
                let began = Instant::now();
                probe(&fs, p.fetch_add(1, Ordering::Relaxed))?;
                tops.iter().for_each(|top| touch(top, &s));
                let ended = Instant::now();
                let mut outages = o.lock().unwrap_or_else(PoisonError::into_inner);
                for outage in outages.iter_mut().filter(|outage| outage.lasted.is_none()) {
                    if outage.killed <= began {
                        outage.lasted = Some(ended - outage.killed);
                    }
                }
            }
            _ = fs.close();
            Ok(())
        });
        Prober { outages, stop, probes, thread: Some(thread) }
    }

    /// Something was killed just now.
    pub fn killed(&self, role: &str) {
        let outage = Outage { role: role.to_owned(), killed: Instant::now(), lasted: None };
        self.outages.lock().unwrap_or_else(PoisonError::into_inner).push(outage);
    }

    /// What kept somebody from serving ended just now.
    pub fn healed(&self, role: &str) {
        self.killed(role);
    }

    /// Waits until service is back from everything; how long it was away the last time. None: it
    /// does not come back.
    pub fn back(&self) -> Option<Duration> {
        let start = Instant::now();
        let dead = || self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        while self.is_away() && !dead() && start.elapsed() < PATIENCE {
            sleep(PAUSE);
        }
        let outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        outages.last()?.lasted
    }

    fn is_away(&self) -> bool {
        let outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        outages.iter().any(|outage| outage.lasted.is_none())
    }

    /// Ends when service is back from everything; all outages, and how many probes there were.
    ///
    /// # Errors
    /// That of a probe: none may fail.
    pub fn stop(mut self) -> Result<(Vec<Outage>, usize)> {
        self.back();
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the prober does not panic")?;
        }
        let outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok((outages, self.probes.load(Ordering::Relaxed)))
    }
}

/// Uses the whole cluster through the library: the coordinator (rmdir, which all shards take part
/// in), shards by names, stores by data.
fn probe(fs: &Fs, n: usize) -> Result<()> {
    let who = Caller::root();
    let at = |path: &[String]| {
        At::below(Locator::root(), path.iter().map(|name| Bytes::from(name.clone())).collect())
    };
    let dir = format!("probe-{n}");
    fs.block_on(async {
        fs.mkdir(&who, &at(std::slice::from_ref(&dir)), 0o755).await?;
        for i in 0..NAMES {
            let place = at(&[dir.clone(), format!("name-{n}-{i}")]);
            let flags = OpenFlags { write: true, read: true, ..OpenFlags::default() };
            let (file, _) = fs.create(&who, &place, 0o644, flags).await?;
            file.write(0, &[i; BYTES]).await?;
            file.flush().await?;
            assert_eq!(file.read(0, 2 * BYTES).await?.as_ref(), [i; BYTES]);
            file.release().await;
            fs.unlink(&who, &place).await?;
        }
        fs.rmdir(&who, &at(&[dir])).await.map(drop)
    })
}

/// Uses a mount until it answers.
fn touch(top: &std::path::Path, stop: &AtomicBool) {
    let name = top.join("probe");
    let works = || std::fs::create_dir(&name).and_then(|()| std::fs::remove_dir(&name)).is_ok();
    while !works() && !stop.load(Ordering::Relaxed) {
        // What a mount that died in between has left.
        let _ = std::fs::remove_dir(&name);
        sleep(PAUSE);
    }
}
