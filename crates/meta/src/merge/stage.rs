//! Rows of a merge come from the holder of the subtree, and are kept beside the namespace.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_rpc::hub::decode_error;
use saker_types::change::{entry_key, slot_key, staged_key, table};
use saker_types::limits::{STAGE_BYTES_MAX, STAGE_ROWS_MAX};
use saker_types::placement::Slot;
use saker_types::wire::{
    ChunkReadReq, Empty, Op, StageReq, StagedRow, StagedValue, StoredAt, StoredRows,
};
use saker_types::{Errno, Error, FileKind, Inode, Locator, NodeId, check_name};

use crate::request::{Attempt, Rq, Stop};
use crate::shard::{Shard, ShardHandle, encoded};

/// How long one store may take to send rows.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

fn refused(why: &str) -> Stop {
    Error::new(Errno::EINVAL).with_text(format!("a row cannot be merged: {why}")).into()
}

fn too_many() -> Stop {
    Error::new(Errno::E2BIG).with_text("too many rows are staged with one request").into()
}

/// Reads rows from a store that has them.
async fn read_stored(h: &ShardHandle, at: &StoredAt) -> Result<StoredRows, Error> {
    let request = ChunkReadReq {
        id: at.id,
        index: at.index,
        offset: at.offset,
        len: at.len,
        ..ChunkReadReq::default()
    };
    let body = Bytes::from(request.encode_to_vec());
    let mut refused = Error::new(Errno::EIO).with_text("no store has the rows of the merge");
    let stores = h.shard().map.stores_of_chunk(at.id, at.index);
    for store in stores {
        let (to, op) = (NodeId::Store(store), Op::ChunkRead);
        let answer = h.hub.call(to, op, 0, body.clone(), Bytes::new(), READ_TIMEOUT).await;
        let frame = match answer {
            Ok(frame) if frame.status == 0 => frame,
            Ok(frame) => {
                refused = decode_error(&frame);
                continue;
            }
            Err(error) => {
                refused = Error::retry(&error.to_string());
                continue;
            }
        };
        let is_whole =
            frame.payload.len() as u64 == at.len && saker_engine::crc32c(&frame.payload) == at.crc;
        match StoredRows::decode(frame.payload) {
            Ok(rows) if is_whole => return Ok(rows),
            _ => {
                let text = format!("store {store} has other rows of the merge");
                refused = Error::new(Errno::EIO).with_text(text);
            }
        }
    }
    Err(refused)
}

impl Shard {
    /// Keeps rows for a merge: those of the request, or those that it says are in the stores.
    pub(crate) fn stage(&mut self, rq: &Rq, msg: &StageReq) -> Attempt<Bytes> {
        let Some(stored) = msg.stored else { return self.stage_rows(msg, rq.raw.len()) };
        self.must_hold(&msg.ctx, msg.policy, msg.epoch)?;
        if stored.len > STAGE_BYTES_MAX as u64 {
            return Err(too_many());
        }
        let msg = msg.clone();
        Err(self.task(move |h| async move {
            let StoredRows { rows, dirs } = read_stored(&h, &stored).await?;
            let msg = StageReq { rows, dirs, stored: None, ..msg };
            match h.shard().stage_rows(&msg, stored.len as usize) {
                Ok(reply) => Ok(reply),
                Err(Stop::Fail(error)) => Err(error),
                Err(Stop::Wait(_) | Stop::Task(_)) => Err(Error::retry("the hold is looked at")),
            }
        }))
    }

    fn stage_rows(&mut self, msg: &StageReq, bytes: usize) -> Attempt<Bytes> {
        let StageReq { policy, epoch, attempt, .. } = *msg;
        let count = msg.rows.len() + msg.dirs.len();
        if count > STAGE_ROWS_MAX || bytes > STAGE_BYTES_MAX {
            return Err(too_many());
        }
        self.heard_of_map(msg.ctx.map_version);
        self.must_hold(&msg.ctx, policy, epoch)?;
        self.may_grow()?;
        let rows = msg.rows.iter().map(|row| self.staged_row(attempt, row));
        let rows = rows.collect::<Attempt<Vec<(Bytes, StagedValue)>>>()?;
        if msg.dirs.iter().any(|dir| dir.id == 0 || dir.home_slot.is_some()) {
            return Err(refused("it is in no directory"));
        }
        if !self.merges.stage((policy, epoch), attempt) {
            let text = "rows of a later attempt are staged";
            return Err(Error::new(Errno::ESTALE).with_text(text).into());
        }
        let dirs = msg.dirs.iter().map(|dir| {
            let of = [&[table::STAGED_DIR][..], &dir.id.to_be_bytes()].concat();
            let value = StagedValue { attempt, dir: Some(dir.clone()), ..StagedValue::default() };
            (Bytes::from(of), value)
        });
        for (of, value) in rows.into_iter().chain(dirs) {
            self.put(staged_key(policy, epoch, &of), value.encode_to_vec().into());
        }
        Ok(encoded(&Empty {}))
    }

    /// Key of the row that it will be, and what is kept of it. Of another shard's: RefreshMap.
    fn staged_row(&self, attempt: u32, staged: &StagedRow) -> Attempt<(Bytes, StagedValue)> {
        let StagedRow { expect, in_new_dir, .. } = *staged;
        let row = staged.row.as_ref().map(clean);
        if let Some(row) = &row {
            check_row(staged, row)?;
        }
        let key = match (&staged.entry, staged.attr_slot) {
            (Some(entry), None) => {
                check_name(&entry.name)?;
                if row.is_none() && expect == 0 {
                    return Err(refused("it neither puts nor removes anything"));
                }
                entry_key(&self.own_key(entry.pid, &entry.name)?)
            }
            (None, Some(slot)) => {
                let (Some(row), 0) = (&row, expect) else {
                    return Err(refused("attributes of a file with several names must be new"));
                };
                let home = Slot::from_wire(slot);
                self.must_own_slot(home)?;
                slot_key(table::ATTR, home, row.attr.id)
            }
            _ => return Err(refused("it has either a name or a home")),
        };
        if let Some(Locator { home_slot: None, name, .. }) = &staged.moves_to {
            check_name(name)?;
        }
        let moves_to = staged.moves_to.clone();
        Ok((key, StagedValue { row, expect, attempt, in_new_dir, moves_to, dir: None }))
    }
}

/// The row without what another server knows of it.
fn clean(row: &Inode) -> Inode {
    let mut row = row.clone();
    row.seen.clear();
    if row.attr.is_dir() {
        // What a directory's rows have: the rest is counted.
        row.attr.nlink = 1;
    }
    row
}

fn check_row(staged: &StagedRow, row: &Inode) -> Attempt<()> {
    let kind = FileKind::of_mode(row.attr.mode).filter(|_| row.attr.id != 0);
    let Some(kind) = kind else { return Err(refused("it is no inode")) };
    let is_home = staged.attr_slot.is_some();
    match kind {
        FileKind::Directory if is_home || row.home_slot.is_some() => {
            Err(refused("a directory has one name"))
        }
        FileKind::Directory if staged.expect == row.attr.id => {
            Err(refused("a directory that was there is changed by itself"))
        }
        _ if is_home && row.home_slot.is_some() => Err(refused("attributes are no reference")),
        _ if is_home && row.attr.nlink == 0 => Err(refused("the file has no name")),
        _ if !is_home && row.home_slot.is_none() && row.attr.nlink != 1 => {
            Err(refused("a file with several names has its attributes at its home"))
        }
        _ => Ok(()),
    }
}
