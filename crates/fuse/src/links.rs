//! Files with several names, whose attributes the kernel keeps.
//!
//! The kernel counts one link less of what it removes. But what it removes may be only a name to it
//! (`ops::lookup`), and so may be the target of a rename: then it does not know that a file which it
//! holds by another name has lost this one, and would tell the old link count as long as it keeps
//! the attributes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;
use saker_runtime::time::{self, Time};
use saker_types::{Attr, InodeId};

/// Files that are noted. Beyond that the kernel may not keep the attributes of one more.
const FILES_MAX: usize = 4096;
/// The kernel counts from when it reads the reply, and in ticks.
const SLACK: Duration = Duration::from_millis(100);
/// How often to look for files that are over, when there is no room.
const SWEEP: Duration = Duration::from_millis(20);

/// Files with several names whose attributes the kernel may still keep.
#[derive(Default)]
pub(crate) struct Links {
    files: Mutex<Files>,
    /// Held while the kernel is told of files that are noted no more.
    pub(crate) telling: async_lock::Mutex<()>,
}

#[derive(Default)]
struct Files {
    /// Until when the kernel keeps them.
    until: FxHashMap<InodeId, Time>,
    swept: Option<Time>,
}

impl Links {
    /// The kernel is about to be told these attributes, which it might keep for `fresh`. For how long
    /// it may.
    pub(crate) fn told(&self, attr: &Attr, fresh: Duration) -> Duration {
        if attr.nlink < 2 || attr.is_dir() || fresh.is_zero() {
            return fresh;
        }
        let now = time::now();
        let mut files = self.files();
        if files.until.len() >= FILES_MAX && files.swept.is_none_or(|then| now.since(then) >= SWEEP)
        {
            files.swept = Some(now);
            files.until.retain(|_, until| *until > now);
        }
        if files.until.len() >= FILES_MAX && !files.until.contains_key(&attr.id) {
            return Duration::ZERO;
        }
        let until = files.until.entry(attr.id).or_insert(now);
        *until = (now + fresh + SLACK).max(*until);
        fresh
    }

    /// A name was removed: the files that may have had it. They are noted no more.
    pub(crate) fn take(&self) -> Vec<InodeId> {
        let mut files = self.files();
        // Hardly ever is there one; to empty a table takes time for its size.
        if files.until.is_empty() {
            return Vec::new();
        }
        let now = time::now();
        files.until.drain().filter(|(_, until)| *until > now).map(|(id, _)| id).collect()
    }

    /// Is there none? Not while the kernel is being told of some.
    pub(crate) fn is_empty(&self) -> bool {
        self.telling.try_lock().is_some() && self.files().until.is_empty()
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn file(id: InodeId, nlink: u32) -> Attr {
        Attr { id, nlink, mode: 0o100_644, ..Attr::default() }
    }

    #[test]
    fn only_what_has_several_names_and_is_kept_is_noted() {
        let links = Links::default();
        for (attr, fresh) in [
            (file(5, 1), LONG),
            (Attr { mode: 0o040_755, ..file(6, 3) }, LONG),
            (file(7, 2), Duration::ZERO),
            (file(8, 2), LONG),
        ] {
            assert_eq!(links.told(&attr, fresh), fresh);
        }
        assert!(!links.is_empty());
        assert_eq!(links.take(), [8]);
        assert!(links.take().is_empty() && links.is_empty(), "the kernel was told");
        links.told(&file(8, 2), Duration::from_nanos(1));
        assert_eq!(links.take(), [8], "it may not have read it yet");
        links.told(&file(8, 2), Duration::from_nanos(1));
        time::sleep(SLACK);
        assert!(links.take().is_empty(), "it keeps them no more");
    }

    #[test]
    fn there_is_an_end_to_what_is_noted() {
        let links = Links::default();
        for id in 0..FILES_MAX as u64 {
            assert_eq!(links.told(&file(id, 2), LONG), LONG);
        }
        assert_eq!(links.told(&file(1 << 40, 2), LONG), Duration::ZERO);
        assert_eq!(links.told(&file(7, 2), LONG), LONG, "it is noted");
        assert_eq!(links.take().len(), FILES_MAX);
        assert_eq!(links.told(&file(1 << 40, 2), LONG), LONG);
    }
}
