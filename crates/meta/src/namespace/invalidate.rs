//! The coordinator's broadcast: entries become invalid before a directory changes (rule 5).
//!
//! A shard runs one request at a time, so that the invalidation has passed its guard when it
//! runs: what resolved the entry before has been applied, what comes later asks the owner and
//! waits there. For the same reason the emptiness of a directory may be told in the same step
//! (rule 6): from here on nothing can be created in it through this shard until the change is
//! decided, and what is removed later only makes a "not empty" that was true when it was told.

use std::time::Duration;

use bytes::Bytes;
use saker_runtime::failpoint;
use saker_runtime::sim::mutation;
use saker_types::InodeId;
use saker_types::change::{id_key, table};
use saker_types::wire::{Emptiness, InvalidateReply, InvalidateReq};

use crate::request::Attempt;
use crate::shard::{Shard, encoded};

impl Shard {
    /// Serves an invalidation.
    pub(crate) fn invalidate(&mut self, msg: &InvalidateReq) -> Attempt<Bytes> {
        self.metrics.invalidations.inc();
        let skipped = mutation("invalidation acknowledged without the guard pass");
        for key in msg.keys.iter().filter(|_| !skipped) {
            self.replica.invalidate(key.pid, &key.name);
            self.spoil_replicas(key);
        }
        for policy in &msg.policies {
            self.policies.invalidate(*policy);
            if self.merges.concern(*policy) {
                self.ask_policy(*policy);
            }
        }
        failpoint!("invalidate.served");
        for dir in &msg.forget {
            self.forget_totals(*dir)?;
            for slot in self.leases.kept(*dir) {
                if self.gone(slot, *dir)?.is_some_and(|gone| gone.directory) {
                    self.drop_gone(slot, *dir)?;
                }
            }
            self.leases.forget(*dir);
        }
        let emptiness = match msg.empty_dir {
            0 => Emptiness::Empty,
            dir => self.emptiness(dir)?,
        };
        if msg.bar {
            let waits = Duration::from_millis(msg.waits_ms.into());
            self.name_leases.bar(&msg.keys, waits, self.hub.now());
        }
        let kept = self.name_leases.left(&msg.keys, self.hub.now());
        let kept_ms = kept.as_micros().div_ceil(1000) as u32;
        Ok(encoded(&InvalidateReply { emptiness: emptiness.into(), kept_ms }))
    }

    /// Has the directory entries on this shard? Prepared rows could go either way.
    fn emptiness(&mut self, dir: InodeId) -> Attempt<Emptiness> {
        let locked: Vec<Bytes> = self.prepared_below(dir).map(|(key, _)| key.clone()).collect();
        let mut present = self.totals(dir)?.entries;
        for key in &locked {
            if self.get(key)?.is_some() {
                present = present.saturating_sub(1);
            }
        }
        Ok(match (present, locked.is_empty()) {
            (0, true) => Emptiness::Empty,
            (0, false) => Emptiness::Undecided,
            _ => Emptiness::NotEmpty,
        })
    }

    /// A directory was removed long ago: its totals go.
    fn forget_totals(&mut self, dir: InodeId) -> Attempt<()> {
        let totals = self.totals(dir)?;
        if totals.version > 0 && totals.entries == 0 {
            self.dirty_totals.remove(&dir);
            self.delete(id_key(table::TOTALS, dir));
        }
        Ok(())
    }
}
