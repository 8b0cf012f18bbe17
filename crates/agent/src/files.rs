//! Files in memory: those that processes have open, each once, and the latest of the others.
//!
//! FanStore §5.4: a file is in memory until the last process closes it. What is kept beyond that is
//! a setting.

use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use quick_cache::Weighter;
use quick_cache::unsync::Cache;
use rustc_hash::FxBuildHasher;

use crate::counters::Counters;
use crate::error::Result;

/// A staged dataset (its number in this process) and a file's number in its table.
pub(crate) type Key = (u64, u32);
/// A file in memory, and its bytes.
pub(crate) type InMemory = (Arc<File>, u64);
type Fetch = Shared<BoxFuture<'static, Result<InMemory>>>;

/// Memory that a kept file takes besides its data: inode, descriptor, entries. Bounds their number.
const FILE_BYTES: u64 = 4 << 10;

struct BySize;

impl Weighter<Key, InMemory> for BySize {
    fn weight(&self, _key: &Key, file: &InMemory) -> u64 {
        file.1 + FILE_BYTES
    }
}

/// A file that somebody has open, or waits for.
struct Open {
    fetch: Fetch,
    users: u64,
}

/// All files in memory.
pub(crate) struct Files {
    state: Mutex<State>,
    counters: Arc<Counters>,
}

struct State {
    open: BTreeMap<Key, Open>,
    /// `None`: nothing is kept after the last close.
    kept: Option<Cache<Key, InMemory, BySize, FxBuildHasher>>,
}

/// A process has a file open, until this is dropped.
pub(crate) struct Opened {
    files: Arc<Files>,
    key: Key,
}

impl Files {
    /// Keeps files of `memory_bytes` that nobody has open.
    pub(crate) fn new(memory_bytes: u64, counters: Arc<Counters>) -> Files {
        let kept = (memory_bytes > 0).then(|| {
            let items = (memory_bytes / (64 << 10)).clamp(16, 1 << 20) as usize;
            Cache::with(items, memory_bytes, BySize, FxBuildHasher, Default::default())
        });
        Files { state: Mutex::new(State { open: BTreeMap::new(), kept }), counters }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file: the one in memory, or what `fetch` gives. Who asks for the same one meanwhile gets
    /// the same answer.
    ///
    /// # Errors
    /// Of the fetch.
    pub(crate) async fn open<F>(
        self: &Arc<Files>,
        key: Key,
        fetch: impl FnOnce() -> F,
    ) -> Result<(Opened, Arc<File>)>
    where
        F: Future<Output = Result<InMemory>> + Send + 'static,
    {
        let (opened, fetch) = self.enter(key, fetch);
        let (file, _) = fetch.await?;
        Ok((opened, file))
    }

    fn enter<F>(self: &Arc<Files>, key: Key, fetch: impl FnOnce() -> F) -> (Opened, Fetch)
    where
        F: Future<Output = Result<InMemory>> + Send + 'static,
    {
        let mut state = self.lock();
        let State { open, kept } = &mut *state;
        let mut kept = || kept.as_mut().and_then(|kept| kept.remove(&key)).map(|(_, file)| file);
        let entry = match open.get_mut(&key) {
            Some(entry) => {
                self.counters.hits.inc();
                entry
            }
            None => {
                let fetch = match kept() {
                    Some(file) => {
                        self.counters.hits.inc();
                        self.counted(std::future::ready(Ok(file))).boxed().shared()
                    }
                    None => self.counted(fetch()).boxed().shared(),
                };
                open.entry(key).or_insert(Open { fetch, users: 0 })
            }
        };
        entry.users += 1;
        self.counters.open_files.add(1);
        (Opened { files: self.clone(), key }, entry.fetch.clone())
    }

    /// A fetch whose bytes count as soon as it has ended.
    fn counted<F>(&self, fetch: F) -> impl Future<Output = Result<InMemory>> + Send + 'static
    where
        F: Future<Output = Result<InMemory>> + Send + 'static,
    {
        let counters = self.counters.clone();
        async move {
            let file = fetch.await?;
            counters.open_bytes.add(file.1 as i64);
            Ok(file)
        }
    }

    fn close(&self, key: Key) {
        self.counters.open_files.add(-1);
        let mut state = self.lock();
        let State { open, kept } = &mut *state;
        let Some(entry) = open.get_mut(&key) else { return };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        let Some(entry) = open.remove(&key) else { return };
        let Some(Ok(file)) = entry.fetch.peek() else { return };
        self.counters.open_bytes.add(-(file.1 as i64));
        if let Some(kept) = kept {
            kept.insert(key, file.clone());
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.files.close(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use saker_runtime::telemetry::Registry;

    use super::*;
    use crate::memfd;

    fn files(memory_bytes: u64) -> Arc<Files> {
        Arc::new(Files::new(memory_bytes, Arc::new(Counters::new(&Registry::new()))))
    }

    async fn file(fetched: Arc<AtomicU64>) -> Result<InMemory> {
        fetched.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        Ok((Arc::new(memfd::create("x", 100).unwrap()), 100))
    }

    #[tokio::test]
    async fn a_file_is_fetched_once_while_it_is_open() {
        let (files, fetched) = (files(0), Arc::new(AtomicU64::new(0)));
        let open = || files.open((1, 1), || file(fetched.clone()));
        let (a, b) = tokio::join!(open(), open());
        let (a, b) = (a.unwrap(), b.unwrap());
        assert!(Arc::ptr_eq(&a.1, &b.1));
        drop(a);
        let c = open().await.unwrap();
        assert_eq!(fetched.load(Ordering::Relaxed), 1);
        drop((b, c));
        open().await.unwrap();
        assert_eq!(fetched.load(Ordering::Relaxed), 2);
        assert!(files.lock().open.is_empty());
        assert_eq!(files.counters.open_bytes.get(), 0);
        assert_eq!(files.counters.open_files.get(), 0);
    }

    #[tokio::test]
    async fn as_much_is_kept_as_may_be() {
        let (files, fetched) = (files(4 * (100 + FILE_BYTES)), Arc::new(AtomicU64::new(0)));
        for _ in 0..2 {
            for n in 0..2 {
                files.open((1, n), || file(fetched.clone())).await.unwrap();
            }
        }
        assert_eq!(fetched.load(Ordering::Relaxed), 2, "both are kept");
        assert_eq!(files.counters.open_bytes.get(), 0);
        for n in 0..1000 {
            files.open((1, n), || file(fetched.clone())).await.unwrap();
        }
        let kept = files.lock().kept.as_ref().map(|kept| kept.weight());
        assert!(kept.is_some_and(|bytes| bytes <= 4 * (100 + FILE_BYTES)), "{kept:?}");
    }

    #[tokio::test]
    async fn a_failure_is_not_kept() {
        let files = files(1 << 20);
        let failed = || async { Err(crate::Error::new(rustix::io::Errno::IO, "no")) };
        let (a, b) = tokio::join!(files.open((1, 1), failed), files.open((1, 1), failed));
        assert!(a.is_err() && b.is_err());
        files.open((1, 1), || file(Arc::default())).await.unwrap();
    }
}
