//! Rows of several runs in one order, and which runs are made one.

use std::ops::Range;
use std::sync::Arc;

use saker_runtime::fs::Dir;

use super::run::{Cursor, Row, Run};
use crate::table::TableError;

type Result<T> = std::result::Result<T, TableError>;

/// So many runs of about the same size are made one. Fewer would write each row more often, more
/// would make reads look into more runs.
const RUNS_MERGED_MIN: usize = 4;

/// Which runs, newest first, to make one of at most `rows_max` rows, if any. `rows` says how large
/// each is; those that are `busy` are left alone.
///
/// A run joins those newer than it if it is not much larger than they are together. So each row is
/// written about once for every factor of four between the table and a checkpoint, and there are
/// about three runs for every such factor.
pub(super) fn runs_to_merge(rows: &[u64], busy: &[bool], rows_max: u64) -> Option<Range<usize>> {
    (0..rows.len()).find_map(|start| {
        let mut together = 0;
        let joins = |n: &usize| {
            let alike = *n == start || rows[*n] <= together + together / 4;
            together += rows[*n];
            alike && !busy[*n] && together <= rows_max
        };
        let end = start + (start..rows.len()).take_while(joins).count();
        (end - start >= RUNS_MERGED_MIN).then_some(start..end)
    })
}

/// Goes through the rows of several runs in order of keys; of those with the same key it shows
/// the newest run's.
pub(super) struct Merge {
    /// Newest first.
    cursors: Vec<Cursor>,
    /// The cursor whose row is shown.
    shown: Option<usize>,
    key: Vec<u8>,
}

impl Merge {
    /// All rows of these runs, newest first.
    pub(super) fn all(runs: &[Arc<Run>], dir: &dyn Dir) -> Result<Merge> {
        Merge::of(runs.iter().map(|run| Cursor::all(run, dir)))
    }

    /// The rows whose keys are not before `start`.
    pub(super) fn seek(runs: &[Arc<Run>], start: &[u8]) -> Result<Merge> {
        Merge::of(runs.iter().map(|run| Cursor::seek(run, start)))
    }

    fn of(cursors: impl Iterator<Item = Result<Cursor>>) -> Result<Merge> {
        let cursors = cursors.filter(|cursor| !matches!(cursor, Ok(cursor) if cursor.is_at_end()));
        Ok(Merge { cursors: cursors.collect::<Result<_>>()?, shown: None, key: Vec::new() })
    }

    /// The next row; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Row<'_>>> {
        if let Some(shown) = self.shown.take() {
            self.leave(shown)?;
        }
        let keys = self.cursors.iter().map(|cursor| cursor.row().map(|row| row.key()));
        // Of equal ones `min_by` takes the first, which is the newest run's.
        let next = keys.enumerate().min_by(|(_, a), (_, b)| a.cmp(b));
        self.shown = next.map(|(at, _)| at);
        Ok(self.shown.and_then(|at| self.cursors[at].row()))
    }

    /// Goes on from the row that was shown, and from older ones of the same key.
    fn leave(&mut self, shown: usize) -> Result<()> {
        self.key.clear();
        self.key.extend(self.cursors[shown].row().iter().flat_map(Row::key));
        let mut ended = false;
        for cursor in &mut self.cursors[shown..] {
            if cursor.row().is_some_and(|row| row.key() == self.key) {
                cursor.advance()?;
                ended |= cursor.is_at_end();
            }
        }
        if ended {
            self.cursors.retain(|cursor| !cursor.is_at_end());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs_after(checkpoints: u64) -> (Vec<u64>, u64) {
        let (mut runs, mut written) = (Vec::new(), 0);
        for n in 0..checkpoints {
            runs.insert(0, 900 + n % 200);
            written += runs[0];
            while let Some(merged) = runs_to_merge(&runs, &vec![false; runs.len()], u64::MAX) {
                let rows: u64 = runs.drain(merged.clone()).sum();
                runs.insert(merged.start, rows);
                written += rows;
            }
        }
        let rows: u64 = runs.iter().sum();
        (runs, written / rows)
    }

    #[test]
    fn there_are_few_runs_and_each_row_is_written_few_times() {
        for checkpoints in [1, 3, 4, 63, 64, 1000, 4095] {
            let (runs, written) = runs_after(checkpoints);
            assert!(runs.len() <= 18, "{checkpoints}: {runs:?}");
            assert!(written <= 7, "{checkpoints}: each row {written} times");
        }
        assert_eq!(runs_after(64).0.len(), 1);
    }

    #[test]
    fn busy_runs_are_left_alone_and_large_ones_to_who_has_the_time() {
        assert_eq!(runs_to_merge(&[1, 1, 1, 1], &[false; 4], 9), Some(0..4));
        assert_eq!(runs_to_merge(&[1, 1, 1, 1], &[false, true, false, false], 9), None);
        let rows = [1, 1, 1, 1, 1, 1];
        assert_eq!(runs_to_merge(&rows, &[true, true, false, false, false, false], 9), Some(2..6));
        assert_eq!(runs_to_merge(&[1, 1, 1, 9], &[false; 4], 9), None);
        assert_eq!(runs_to_merge(&[5, 1, 1, 1, 1, 12], &[false; 6], 9), Some(0..5));
        assert_eq!(runs_to_merge(&[5, 1, 1, 1, 1, 12], &[false; 6], 8), Some(0..4));
        assert_eq!(runs_to_merge(&[1, 1, 1, 1], &[false; 4], 3), None);
    }
}
