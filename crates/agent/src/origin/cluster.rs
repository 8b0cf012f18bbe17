//! A dataset that a Saker cluster keeps.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustix::io::Errno;
use saker_client::datasets::FrozenDataset;
use saker_client::{ClientOptions, ClusterAddr, Fs};
use saker_dataset::{Digest, TABLE};

use super::{MANIFEST, Origin};
use crate::error::{Error, Result};

/// What such a place begins with.
pub(super) const SCHEME: &str = "saker://";

/// It, and where it is.
pub(super) struct ClusterOrigin(Arc<Shared>);

struct Shared {
    place: String,
    addr: ClusterAddr,
    name: String,
    /// Once somebody has asked.
    connected: Mutex<Option<(Fs, FrozenDataset)>>,
}

impl ClusterOrigin {
    /// Of what follows the scheme: `HOST:PORT[,HOST:PORT]/NAME@VERSION`.
    ///
    /// # Errors
    /// EINVAL.
    pub(super) fn new(place: &str, rest: &str) -> Result<ClusterOrigin> {
        let wrong = |why: &str| Error::new(Errno::INVAL, format!("{place}: {why}"));
        let parts = rest.split_once('/').filter(|(addr, _)| addr.contains(':'));
        let (addr, name) = parts.ok_or_else(|| wrong("not saker://HOST:PORT/NAME@VERSION"))?;
        saker_client::datasets::check_name(name).map_err(|e| wrong(&e.to_string()))?;
        let addr = ClusterAddr::parse(addr).map_err(|e| wrong(&e.to_string()))?;
        let (place, name) = (place.to_owned(), name.to_owned());
        let connected = Mutex::default();
        Ok(ClusterOrigin(Arc::new(Shared { place, addr, name, connected })))
    }

    /// Runs on a thread that may wait for the cluster.
    fn ask(
        &self,
        ask: impl FnOnce(&Shared, Fs, FrozenDataset) -> Result<Bytes> + Send + 'static,
    ) -> BoxFuture<'_, Result<Bytes>> {
        let shared = self.0.clone();
        let run = move || {
            let (fs, dataset) = shared.connected()?;
            ask(&shared, fs, dataset)
        };
        async move {
            let ran = tokio::task::spawn_blocking(run).await;
            ran.map_err(|e| Error::io("thread", std::io::Error::other(e)))?
        }
        .boxed()
    }
}

impl Shared {
    fn failed(&self, what: &str, error: &saker_client::saker_types::Error) -> Error {
        let errno = Errno::from_raw_os_error(error.errno().0.into());
        Error::new(errno, format!("{}/{what}: {error}", self.place))
    }

    fn connected(&self) -> Result<(Fs, FrozenDataset)> {
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connected) = &*connected {
            return Ok(connected.clone());
        }
        let failed = |e| self.failed("", &e);
        let fs = Fs::connect(&self.addr, ClientOptions::default()).map_err(failed)?;
        let found = fs.block_on(fs.datasets().find(&self.name)).map_err(failed)?;
        let missing = || Error::new(Errno::NOENT, format!("{}: not there", self.place));
        let dataset = found.ok_or_else(missing)?;
        Ok(connected.insert((fs, dataset)).clone())
    }

    /// The object that is a file of the packed dataset, and its bytes.
    fn object(&self, dataset: &FrozenDataset, name: &str) -> Result<(Digest, u64)> {
        let manifest = &dataset.manifest;
        if name == TABLE {
            return Ok((manifest.table_digest, manifest.table_bytes));
        }
        let part = manifest.partitions.iter().find(|part| part.name == name);
        let part = part.map(|part| (part.digest, part.stored));
        part.ok_or_else(|| Error::new(Errno::NOENT, format!("{}/{name}: not there", self.place)))
    }
}

impl Drop for Shared {
    /// Files of the dataset are open as long as this is connected, and their leases are renewed.
    fn drop(&mut self) {
        let connected = self.connected.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((fs, _)) = connected.take() {
            // It changes nothing, so that it holds no subtree.
            _ = fs.close();
        }
    }
}

impl Origin for ClusterOrigin {
    fn get(&self, name: &str) -> BoxFuture<'_, Result<Bytes>> {
        let name = name.to_owned();
        self.ask(move |shared, fs, dataset| {
            if name == MANIFEST {
                let text = serde_json::to_vec_pretty(&dataset.manifest);
                return Ok(text.map_err(|e| Error::io(MANIFEST, std::io::Error::from(e)))?.into());
            }
            let (digest, bytes) = shared.object(&dataset, &name)?;
            let read = fs.block_on(fs.datasets().read(&digest, 0..bytes));
            read.map_err(|e| shared.failed(&name, &e))
        })
    }

    fn read(&self, name: &str, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        let name = name.to_owned();
        self.ask(move |shared, fs, dataset| {
            let (digest, _) = shared.object(&dataset, &name)?;
            let read = fs.block_on(fs.datasets().read(&digest, range));
            read.map_err(|e| shared.failed(&name, &e))
        })
    }
}
