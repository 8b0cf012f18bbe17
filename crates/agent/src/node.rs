//! The parts of an agent.

use std::path::PathBuf;
use std::sync::Arc;

use saker_runtime::telemetry::Registry;
use tokio::sync::{Mutex, Semaphore};

use crate::config::Config;
use crate::counters::Counters;
use crate::datasets::Datasets;
use crate::dir::Dir;
use crate::error::{Error, Result};
use crate::files::Files;
use crate::outputs::Outputs;
use crate::peers::pool::Peers;

/// Bytes of answers to other agents that are in memory at once, in KiB.
const SERVED_KIB_MAX: usize = 256 << 10;

/// Files that are read for processes at once: four blocks of each are in memory.
const READS_MAX: usize = 64;

/// What the parts of an agent have in common.
pub(crate) struct Node {
    pub(crate) config: Config,
    /// Where staged datasets are.
    pub(crate) dir: PathBuf,
    pub(crate) key: Arc<[u8]>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) datasets: Datasets,
    pub(crate) peers: Peers,
    pub(crate) files: Arc<Files>,
    pub(crate) outputs: Outputs,
    /// Of answers to other agents, in KiB.
    pub(crate) served: Semaphore,
    /// Of files that are read for processes.
    pub(crate) reads: Semaphore,
    /// Datasets are staged and unstaged one after the other.
    pub(crate) control: Mutex<()>,
}

impl Node {
    /// # Errors
    /// Of the key's file.
    pub(crate) fn new(config: Config, dir: &Dir, registry: &Registry) -> Result<Node> {
        let key: Arc<[u8]> = key(&config)?.into();
        let counters = Arc::new(Counters::new(registry));
        Ok(Node {
            dir: dir.datasets(),
            outputs: Outputs::new(dir.outputs()),
            counters: counters.clone(),
            datasets: Datasets::default(),
            peers: Peers::new(key.clone(), config.timeout()),
            files: Arc::new(Files::new(config.memory_bytes, counters)),
            served: Semaphore::new(SERVED_KIB_MAX),
            reads: Semaphore::new(READS_MAX),
            control: Mutex::new(()),
            key,
            config,
        })
    }
}

/// The key of the job; empty without one.
fn key(config: &Config) -> Result<Vec<u8>> {
    let Some(path) = &config.key_file else { return Ok(Vec::new()) };
    let key = std::fs::read(path).map_err(|e| Error::file(path, e))?;
    match key.trim_ascii() {
        [] => Err(Error::new(rustix::io::Errno::INVAL, format!("{}: empty", path.display()))),
        key => Ok(key.to_vec()),
    }
}
