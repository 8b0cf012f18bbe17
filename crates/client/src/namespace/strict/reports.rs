//! Which answers are older than what this client has done.
//!
//! What is written here the owner hears later. What it said before of the file must not be told to anybody who may
//! have seen the write. While the file is open, its state knows better. When it was closed meanwhile, nothing does:
//! so it is remembered when the owner heard of each file, of many files in one number.

use std::sync::atomic::{AtomicU64, Ordering};

use saker_runtime::time::{self, Time};
use saker_types::InodeId;

/// Files of one number: when one of them was told of, answers about the others count as old, too, and are asked for
/// again. A power of two.
const CELLS: usize = 4_096;

/// When owners have heard of what was written here.
pub(crate) struct Reports(Box<[AtomicU64]>);

impl Default for Reports {
    fn default() -> Reports {
        Reports((0..CELLS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Reports {
    fn cell(&self, id: InodeId) -> &AtomicU64 {
        &self.0[id as usize % CELLS]
    }

    /// The owner has just heard. To be noted before the file's state forgets that there was something to hear.
    pub(crate) fn note(&self, id: InodeId) {
        self.cell(id).fetch_max(time::now().as_ns(), Ordering::SeqCst);
    }

    /// May the owner have heard of this file since? Then what it was asked at `asked` may be old.
    pub(crate) fn is_after(&self, id: InodeId, asked: Time) -> bool {
        self.cell(id).load(Ordering::SeqCst) >= asked.as_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_old_if_the_owner_heard_since() {
        let reports = Reports::default();
        let asked = time::now();
        assert!(!reports.is_after(7, asked));
        reports.note(7);
        assert!(reports.is_after(7, asked));
        assert!(!reports.is_after(8, asked), "of another file");
        assert!(reports.is_after(7 + CELLS as u64, asked), "which cannot be told apart");
        // Real time: later is what the clock says.
        time::sleep(std::time::Duration::from_millis(1));
        assert!(!reports.is_after(7, time::now()));
    }
}
