//! How the owner of a directory learns its totals, which its shards change without it (SwitchFS
//! §5).
//!
//! Whoever changes totals does so in this order: the change is in the batch, it is noted with the
//! tracker, and when that is known the reply leaves. Whoever reads looks first whether anything was
//! noted, and collects then: so a change that was answered before a read began is in what it
//! collects (rule 22). [`Fanout`] keeps nothing, and always collects. A dirty set takes a directory
//! out before it is collected; where it knows of no change, what was collected last is current. The
//! reads of a directory that is being collected wait for that, and a set that begins anew knows
//! nothing, so that everything is collected once.
//!
//! The set is keyed by directories alone: entries of one are on all shards, and nobody but its
//! owner keeps what was collected.

use std::rc::Rc;
use std::time::Duration;

use saker_rpc::hub::Hub;
use saker_runtime::failpoint;
use saker_types::wire::Totals;
use saker_types::{Class, Error, InodeId};

/// Collections without a freeze.
const ROUNDS: usize = 3;
/// First freeze; doubled while answers come too late.
const FREEZE_MS: u32 = 20;
/// Longest freeze.
const FREEZE_MS_MAX: u32 = 1_000;

/// The totals of a directory by shard.
pub(crate) type Vector = Rc<Vec<Totals>>;

/// What a tracker collects from.
pub(crate) trait TotalsSource {
    /// Asks all shards once, by one map of the slots; each holds new changes back for `freeze_ms`.
    ///
    /// # Errors
    /// Class `Retry` if a shard does not answer, or stands by another map.
    async fn ask_all(&self, dir: InodeId, freeze_ms: u32) -> Result<Vec<Totals>, Error>;

    /// What was collected last.
    fn last(&self, dir: InodeId) -> Option<Vector>;

    /// Keeps what was collected.
    fn keep(&self, dir: InodeId, vector: &Vector);

    /// Its clock.
    fn hub(&self) -> &Hub;
}

/// Knows which directories' totals may have changed since they were collected.
pub(crate) trait Tracker {
    /// The batch that is about to end has changed the totals of a directory on this shard.
    fn note_change(&mut self, dir: InodeId);

    /// The totals of a directory on all shards, current at one instant during the call.
    ///
    /// # Errors
    /// The source's.
    async fn collect<S: TotalsSource>(source: &S, dir: InodeId) -> Result<Vector, Error>;
}

/// The tracker that shards have.
pub(crate) type InUse = Fanout;

/// Tracks nothing: all shards are asked each time.
///
/// A collection that equals the last one was current at an instant between the two, because
/// versions only grow; so it is current now if it equals what was collected last, or the collection
/// just before. After three that differ, new changes to the directory are held back for a moment: a
/// collection all of whose answers arrive within that moment is current, too.
#[derive(Default)]
pub(crate) struct Fanout;

impl Tracker for Fanout {
    fn note_change(&mut self, _: InodeId) {}

    async fn collect<S: TotalsSource>(source: &S, dir: InodeId) -> Result<Vector, Error> {
        let mut last = source.last(dir);
        for _ in 0..ROUNDS {
            let vector = match source.ask_all(dir, 0).await {
                Ok(vector) => Rc::new(vector),
                // Some shard had prepared entries all the time, or slots are moving.
                Err(error) if error.is(Class::Retry) => break,
                Err(error) => return Err(error),
            };
            if last.as_ref() == Some(&vector) {
                return Ok(vector);
            }
            source.keep(dir, &vector);
            last = Some(vector);
        }
        failpoint!("collect.freezes");
        let mut freeze_ms = FREEZE_MS;
        loop {
            let start = source.hub().now();
            let vector = Rc::new(source.ask_all(dir, freeze_ms).await?);
            let frozen = Duration::from_millis(freeze_ms.into());
            if source.hub().now() < start + frozen {
                source.keep(dir, &vector);
                return Ok(vector);
            }
            freeze_ms = (freeze_ms * 2).min(FREEZE_MS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;

    use futures_util::FutureExt;
    use saker_runtime::time::Time;

    use super::*;

    /// Shards that give these answers one after the other; each takes so long.
    #[derive(Default)]
    struct Shards {
        answers: RefCell<VecDeque<u64>>,
        asked: RefCell<Vec<u32>>,
        kept: RefCell<Option<Vector>>,
        takes: Cell<Duration>,
        hub: Hub,
    }

    impl TotalsSource for Shards {
        async fn ask_all(&self, _: InodeId, freeze_ms: u32) -> Result<Vec<Totals>, Error> {
            self.asked.borrow_mut().push(freeze_ms);
            self.hub.begin(self.hub.now() + self.takes.get(), 0);
            let version = self.answers.borrow_mut().pop_front();
            let version = version.ok_or_else(|| Error::retry("slots are moving"))?;
            Ok(vec![Totals { version, ..Totals::default() }])
        }

        fn last(&self, _: InodeId) -> Option<Vector> {
            self.kept.borrow().clone()
        }

        fn keep(&self, _: InodeId, vector: &Vector) {
            self.kept.replace(Some(vector.clone()));
        }

        fn hub(&self) -> &Hub {
            &self.hub
        }
    }

    /// The version that is collected, and with which freezes.
    fn collected(shards: &Shards, answers: &[u64], takes_ms: u64) -> (Option<u64>, Vec<u32>) {
        shards.answers.replace(answers.iter().copied().collect());
        shards.asked.borrow_mut().clear();
        shards.takes.set(Duration::from_millis(takes_ms));
        let vector = Fanout::collect(shards, 1).now_or_never().unwrap();
        (vector.ok().map(|vector| vector[0].version), shards.asked.take())
    }

    #[test]
    fn a_collection_that_shows_nothing_new_is_current() {
        let shards = Shards::default();
        shards.hub.begin(Time::ZERO, 0);
        assert_eq!(collected(&shards, &[5, 5], 1), (Some(5), vec![0, 0]));
        assert_eq!(collected(&shards, &[5], 1), (Some(5), vec![0]), "as it was kept");
        assert_eq!(collected(&shards, &[6, 7, 7], 1), (Some(7), vec![0; 3]));
    }

    #[test]
    fn changes_without_a_pause_are_held_back_until_all_have_answered() {
        let shards = Shards::default();
        shards.hub.begin(Time::ZERO, 0);
        assert_eq!(collected(&shards, &[1, 2, 3, 4], 1), (Some(4), vec![0, 0, 0, 20]));
        let slow = collected(&shards, &[5, 6, 7, 8, 9, 10], 50);
        assert_eq!(slow, (Some(10), vec![0, 0, 0, 20, 40, 80]), "in time the third time");
        // What is no answer is no vector.
        assert_eq!(collected(&shards, &[], 1), (None, vec![0, 20]));
        assert_eq!(collected(&shards, &[10], 1), (Some(10), vec![0]));
    }
}
