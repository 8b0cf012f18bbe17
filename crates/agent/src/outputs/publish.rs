//! From private files to published ones.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::io::Errno;
use saker_agent_api::FinishOutput;
use saker_runtime::time::{self, Time};
use tokio::sync::{Mutex as AsyncMutex, Notify};

use super::deliver::{place_here, send};
use super::path::OutputPath;
use super::place::Place;
use super::private::{Key, Phase, Private};
use crate::error::{Error, Result};
use crate::node::Node;

/// How long it is remembered how a file came to its home.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Private files of a node, at most: each takes a descriptor.
const PRIVATE_MAX: usize = 1 << 16;

type Turn = AsyncMutex<()>;

/// All files that are not at their homes.
#[derive(Default)]
pub(crate) struct Privates {
    all: Mutex<BTreeMap<u64, Arc<Private>>>,
    /// Of those that are gone: how that ended.
    ended: Mutex<BTreeMap<u64, (Time, Result<()>)>>,
    /// Files of one path are delivered one after the other.
    turns: Mutex<BTreeMap<Key, Weak<Turn>>>,
    last_number: AtomicU64,
    /// There are more than before.
    pub(super) more: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Privates {
    /// Adds one. What is finished is never refused.
    ///
    /// # Errors
    /// ENFILE: there are too many.
    pub(super) fn insert(&self, private: Private) -> Result<Arc<Private>> {
        let private = Arc::new(private);
        if let Some(number) = private.number() {
            self.last_number.fetch_max(number, Ordering::AcqRel);
        }
        let mut all = lock(&self.all);
        if all.len() >= PRIVATE_MAX && private.phase() == Phase::Written {
            private.remove();
            return Err(Error::new(Errno::NFILE, "too many output files are being written"));
        }
        all.insert(private.token, private.clone());
        self.more.notify_one();
        Ok(private)
    }

    /// The number of what leaves next.
    pub(super) fn next_number(&self) -> u64 {
        let now = u64::try_from(time::wall_ns()).unwrap_or(0);
        let next = |last: u64| now.max(last.saturating_add(1));
        let last = self
            .last_number
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(next(last)));
        next(last.unwrap_or_else(|last| last))
    }

    pub(super) fn get(&self, token: u64) -> Option<Arc<Private>> {
        lock(&self.all).get(&token).cloned()
    }

    /// All that are so.
    pub(super) fn all(&self, is_so: impl Fn(&Private) -> bool) -> Vec<Arc<Private>> {
        lock(&self.all).values().filter(|private| is_so(private)).cloned().collect()
    }

    /// Files of a dataset that leave and have not come to their homes.
    pub(crate) fn leaving(&self, dataset: &str) -> u64 {
        self.all(|p| p.key.0 == dataset && p.number().is_some()).len() as u64
    }

    /// Ends one, and remembers how.
    pub(super) fn end(&self, private: &Private, how: Result<()>) {
        private.remove();
        let now = time::now();
        let mut ended = lock(&self.ended);
        ended.retain(|_, (then, _)| now.since(*then) < REMEMBERED);
        ended.insert(private.token, (now, how));
        lock(&self.all).remove(&private.token);
    }

    /// Ends all of a dataset.
    pub(crate) fn end_all(&self, dataset: &str) {
        for private in self.all(|private| private.key.0 == dataset) {
            self.end(&private, Err(Error::new(Errno::IO, "the outputs were removed")));
        }
    }

    fn how_ended(&self, token: u64) -> Option<Result<()>> {
        lock(&self.ended).get(&token).map(|(_, how)| how.clone())
    }

    fn turn(&self, key: &Key) -> Arc<Turn> {
        let mut turns = lock(&self.turns);
        if let Some(turn) = turns.get(key).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Turn::default());
        turns.insert(key.clone(), Arc::downgrade(&turn));
        turn
    }

    /// The one of a path that is to be delivered first.
    fn first(&self, key: &Key) -> Option<Arc<Private>> {
        let leaving = self.all(|private| private.key == *key && private.number().is_some());
        leaving.into_iter().min_by_key(|private| private.number())
    }
}

/// The creator of a file says that it is finished. Published when that returns, unless somebody
/// still writes it: says whether.
///
/// # Errors
/// EIO: the home does not answer; the file is delivered later. Of the home.
pub(super) async fn commit(node: &Arc<Node>, token: u64) -> Result<bool> {
    let privates = &node.outputs.private;
    let Some(private) = privates.get(token) else {
        let lost = || Err(Error::new(Errno::IO, "no such private file"));
        return privates.how_ended(token).unwrap_or_else(lost).map(|()| false);
    };
    if tokio::task::block_in_place(|| private.has_writers()) {
        let noted = tokio::task::block_in_place(|| private.advance(Phase::Committed));
        privates.more.notify_one();
        return noted.map(|()| true);
    }
    let published = publish(node, &private).await;
    if let Err(error) = &published {
        tracing::warn!("{}: {} is not at its home: {error}", private.key.0, private.key.1);
    }
    published.map(|()| false)
}

/// A file that nobody writes any more goes to its home.
///
/// # Errors
/// As of [`commit`].
pub(super) async fn publish(node: &Arc<Node>, private: &Private) -> Result<()> {
    let privates = &node.outputs.private;
    let leaving = Phase::Leaving(privates.next_number());
    let noted = tokio::task::block_in_place(|| private.advance(leaving));
    let delivered = deliver_all(node, &private.key).await;
    privates.how_ended(private.token).unwrap_or(noted.and(delivered))
}

/// Delivers all files of a path that leave, in order.
///
/// # Errors
/// Of the first that stays.
pub(super) async fn deliver_all(node: &Arc<Node>, key: &Key) -> Result<()> {
    let privates = &node.outputs.private;
    let turn = privates.turn(key);
    let _turn = turn.lock().await;
    while let Some(private) = privates.first(key) {
        match deliver(node, &private).await {
            Err(error) if !is_final(&error) => {
                private.set_late();
                node.counters.output_failures.inc();
                tracing::debug!("{}: {} stays here for now: {error}", key.0, key.1);
                return Err(error);
            }
            how => {
                match &how {
                    Ok(()) => node.counters.outputs.inc(),
                    Err(error) => tracing::warn!("{}: {} is dropped: {error}", key.0, key.1),
                }
                privates.end(&private, how);
            }
        }
    }
    Ok(())
}

/// Another attempt would fail as well.
fn is_final(error: &Error) -> bool {
    let errno = error.errno;
    [libc::EEXIST, libc::EISDIR, libc::ENOTDIR, libc::ENAMETOOLONG].contains(&errno)
}

async fn deliver(node: &Arc<Node>, private: &Private) -> Result<()> {
    let (dataset, path): (&str, &OutputPath) = (&private.key.0, &private.key.1);
    let place = Place::of(node, dataset)?;
    let (mode, mtime_ns, size) = private.attributes()?;
    let (exclusive, writing) = (private.exclusive, private.token);
    let closed_ns = private.number().unwrap_or(0);
    let late = private.is_late.load(Ordering::Acquire);
    let attributes =
        FinishOutput { mode, mtime_ns, exclusive, writing, closed_ns, late, ..Default::default() };
    let file = private.file.clone();
    if !place.is_mine(path) {
        send(&place, path, file, size, attributes).await?;
    } else if private.data.exists() {
        place_here(&place, path, private.data.clone(), file, size, attributes).await?;
    }
    node.counters.output_bytes.add(size);
    place.ensure_parents(path).await
}
