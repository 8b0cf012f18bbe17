//! Stores with which a request failed recently, so that they are not tried with every one.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use saker_runtime::time::Time;
use saker_types::StoreNo;

/// A store stays among them for this long.
const FOR: Duration = Duration::from_secs(5);

/// Those stores, and until when.
#[derive(Default)]
pub(crate) struct FailingStores(Mutex<BTreeMap<StoreNo, Time>>);

impl FailingStores {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<StoreNo, Time>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It did not work with this store.
    pub(crate) fn add(&self, store: StoreNo, now: Time) {
        self.lock().insert(store, now + FOR);
    }

    /// Did a request fail recently?
    pub(crate) fn has(&self, store: StoreNo, now: Time) -> bool {
        let mut failing_stores = self.lock();
        if failing_stores.is_empty() {
            return false;
        }
        failing_stores.retain(|_, until| *until > now);
        failing_stores.contains_key(&store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_forgotten_after_a_while() {
        let failing_stores = FailingStores::default();
        let start = Time::default();
        failing_stores.add(3, start);
        assert!(failing_stores.has(3, start + FOR / 2) && !failing_stores.has(2, start));
        assert!(!failing_stores.has(3, start + FOR));
    }
}
