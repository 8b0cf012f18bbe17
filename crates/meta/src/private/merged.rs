//! What the cluster has after a merge, so that a private shard knows it at any time at which its process may
//! end.
//!
//! ```text
//! begin_merge(rows)…  what the cluster will have is kept beside the base
//! ask_merge(request)  from here on the merge may be made
//! merge_is_made()     one record: it was
//! take_merged()…      some of it becomes the base, until there is no more
//! ```
//!
//! A shard that is opened again says which of these was the last. Without them a new name that was merged, and
//! has moved here since, would be there twice: nobody would know that the cluster has the first.

use std::ops::ControlFlow;

use bytes::Bytes;
use saker_engine::Engine;
use saker_types::change::table;
use saker_types::{Error, Inode, InodeId};

use super::{Base, RowChange, RowPlace, as_merged, base_key, damaged, hash_of};
use crate::shard::Shard;

/// Rows that become the base at once.
const TAKEN_ROWS: usize = 16_384;
/// The one row that says how far a merge has come.
const MERGE_KEY: &[u8] = &[table::MERGE];

/// What the cluster has at a place after a merge.
#[derive(Clone, Debug, PartialEq)]
pub struct MergedRow {
    /// Where.
    pub place: RowPlace,
    base: Option<Base>,
}

impl MergedRow {
    /// This row, as the cluster has it.
    pub fn of(place: RowPlace, row: &Inode) -> MergedRow {
        let hash = hash_of(&as_merged(row.clone()));
        let base = Base { id: row.attr.id, hash, is_directory: row.attr.is_dir() };
        MergedRow { place, base: Some(base) }
    }

    /// Nothing.
    pub fn none(place: RowPlace) -> MergedRow {
        MergedRow { place, base: None }
    }

    /// A directory, of which only the place is as it was here.
    pub fn directory_at(place: RowPlace, id: InodeId) -> MergedRow {
        MergedRow { place, base: Some(Base { id, hash: 0, is_directory: true }) }
    }

    /// The directory that is there, if one is.
    pub fn directory(&self) -> Option<InodeId> {
        self.base.filter(|base| base.is_directory).map(|base| base.id)
    }
}

impl RowChange {
    /// What the cluster has when this is merged.
    pub fn merged(&self) -> MergedRow {
        let base = self.row.as_ref().map(|row| Base {
            id: row.attr.id,
            hash: self.hash,
            is_directory: row.attr.is_dir(),
        });
        MergedRow { place: self.place.clone(), base }
    }
}

/// A merge whose end the base does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// It was about to be asked for with this request.
    Asked(Bytes),
    /// It was made.
    Made,
}

impl Shard {
    /// The cluster has these now. Each is known or not, should this process end meanwhile.
    pub fn mark_merged(&mut self, rows: &[MergedRow]) {
        for row in rows {
            self.seal_if_large();
            let key = self.key_of(&row.place);
            self.put_merged(&key, row.base);
        }
        self.seal();
    }

    /// These the cluster will have if the merge is made that is going to be asked for; others were said
    /// before.
    pub fn begin_merge(&mut self, rows: &[MergedRow]) {
        for row in rows {
            self.seal_if_large();
            let key = self.key_of(&row.place);
            let value = row.base.map_or_else(Bytes::new, Base::to_bytes);
            self.put(merging_key(&key), value);
        }
        self.seal();
    }

    /// The merge of all that was said is about to be asked for.
    pub fn ask_merge(&mut self, request: &[u8]) {
        self.put(MERGE_KEY.into(), [&[0], request].concat().into());
        self.seal();
    }

    /// It was made.
    pub fn merge_is_made(&mut self) {
        self.put(MERGE_KEY.into(), Bytes::from_static(&[1]));
        self.seal();
    }

    /// Whether a merge may have been made, or was, that is not in the base yet.
    ///
    /// # Errors
    /// EIO when that cannot be read.
    pub fn unfinished_merge(&mut self) -> Result<Option<Unfinished>, Error> {
        let said = self.get(MERGE_KEY)?;
        Ok(match said {
            None => None,
            Some(said) if said.first() == Some(&0) => Some(Unfinished::Asked(said.slice(1..))),
            Some(_) => Some(Unfinished::Made),
        })
    }

    /// Some of what was merged becomes the base. True: there is more.
    ///
    /// # Errors
    /// EIO when it cannot be read.
    pub fn take_merged(&mut self) -> Result<bool, Error> {
        let is_more = self.end_merging(|shard, key, value| {
            let base = match value.is_empty() {
                true => None,
                false => Some(Base::parse(value).ok_or_else(|| damaged("what was merged"))?),
            };
            shard.put_merged(key, base);
            Ok(())
        })?;
        if !is_more {
            self.delete(MERGE_KEY.into());
            self.seal();
        }
        Ok(is_more)
    }

    /// The merge is not made: some of what was said of it is forgotten. True: there is more.
    ///
    /// # Errors
    /// EIO when it cannot be read.
    pub fn forget_merge(&mut self) -> Result<bool, Error> {
        // First, or it would be taken for one of fewer rows.
        self.delete(MERGE_KEY.into());
        self.end_merging(|_, _, _| Ok(()))
    }

    /// Ends what is said of some rows. True: there are more.
    fn end_merging(
        &mut self,
        mut end: impl FnMut(&mut Shard, &[u8], &[u8]) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let mut rows = Vec::new();
        let scanned = self.engine.scan(&[table::MERGING], &[table::MERGING + 1], |key, value| {
            rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            match rows.len() < TAKEN_ROWS {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        scanned.map_err(|e| damaged(&e.to_string()))?;
        let is_more = rows.len() == TAKEN_ROWS;
        for (key, value) in rows {
            self.seal_if_large();
            end(self, &key[1..], &value)?;
            self.delete(key);
        }
        self.seal();
        Ok(is_more)
    }

    fn put_merged(&mut self, key: &[u8], base: Option<Base>) {
        match base {
            Some(base) => self.put_base(key, base),
            // Its number stays one of the cluster's: a file may have another name there by now.
            None => self.delete(base_key(key)),
        }
    }
}

fn merging_key(key: &[u8]) -> Bytes {
    [&[table::MERGING], key].concat().into()
}
