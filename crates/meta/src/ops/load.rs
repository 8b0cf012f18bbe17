//! Whole rows of a directory, for who holds its subtree and will answer by itself. In the order of the
//! rows' keys, as a listing.

use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message;
use saker_engine::Engine;
use saker_types::change::{entry_key, parse_entry_key};
use saker_types::placement::Slot;
use saker_types::wire::{LoadReply, LoadReq, LoadedRow};
use saker_types::{Access, Errno, Inode, InodeId, Key, limits};

use super::needs_no_path;
use crate::request::{Attempt, Rq, Stop, Wait};
use crate::shard::{Shard, encoded};

/// Most rows of one answer.
const ROWS_MAX: usize = 2_048;
/// About the most bytes of one answer: one row of them may have as many attributes as it likes.
const REPLY_BYTES_MAX: usize = 512 << 10;

impl Shard {
    /// Serves a page; waits for entries of the directory that were prepared before it (rule 14).
    pub(crate) fn load(&mut self, rq: &Rq, msg: &LoadReq) -> Attempt<Bytes> {
        needs_no_path(&msg.at)?;
        let dir = self.directory(rq, &msg.ctx.cred, &msg.at)?;
        self.must_hold_here(&msg.ctx, rq.policy.get())?;
        dir.check(&msg.ctx.cred, Access::R)?;
        if !msg.homes.is_empty() {
            return self.load_homes(msg);
        }
        let holding = self.prepared_below(dir.id).map(|(_, txn)| *txn);
        if let Some(txn) = rq.waits_for(dir.id, holding) {
            return Err(Stop::Wait(Wait::Txn(txn)));
        }
        let mut reply = self.load_entries(dir.id, msg)?;
        let anchor = &msg.at.anchor;
        if msg.after_name.is_empty() && self.owns(anchor.pid, &anchor.name) {
            let key = self.map.key(anchor.pid, &anchor.name);
            let row = self.entry_free(&key)?.filter(|row| row.attr.id == dir.id);
            reply.dir = row.map(|row| (*row).clone());
        }
        Ok(encoded(&reply))
    }

    fn load_entries(&mut self, dir: InodeId, msg: &LoadReq) -> Attempt<LoadReply> {
        let limit = if msg.limit == 0 { ROWS_MAX } else { (msg.limit as usize).min(ROWS_MAX) };
        let (start, end) = bounds(dir, msg);
        let mut reply = LoadReply { end: true, ..LoadReply::default() };
        let (mut bytes, mut corrupt) = (0, None);
        let scanned = self.engine.scan(&start, &end, |key, value| {
            if reply.rows.len() >= limit || bytes + value.len() > REPLY_BYTES_MAX && bytes > 0 {
                reply.end = false;
                return ControlFlow::Break(());
            }
            bytes += key.len() + value.len();
            match loaded(key, value) {
                Some(row) => {
                    reply.rows.push(row);
                    ControlFlow::Continue(())
                }
                None => {
                    corrupt = Some(key.to_vec());
                    ControlFlow::Break(())
                }
            }
        });
        if let Err(e) = scanned {
            tracing::error!("cannot load directory {dir:#x}: {e}");
            return Err(Errno::EIO.into());
        }
        if let Some(key) = corrupt {
            tracing::error!("row {key:?} does not decode");
            return Err(Errno::EIO.into());
        }
        Ok(reply)
    }

    fn load_homes(&mut self, msg: &LoadReq) -> Attempt<Bytes> {
        let mut reply = LoadReply { end: true, ..LoadReply::default() };
        let mut bytes = 0;
        for loc in msg.homes.iter().take(limits::COMPONENTS_MAX) {
            let row = match loc.home_slot.map(Slot::from_wire) {
                Some(home) => {
                    self.must_own_slot(home)?;
                    self.attr_free(home, loc.id)?
                }
                None => {
                    let key = self.own_key(loc.pid, &loc.name)?;
                    self.entry_free(&key)?.filter(|row| row.attr.id == loc.id)
                }
            };
            let Some(row) = row else { continue };
            bytes += row.encoded_len();
            if bytes > REPLY_BYTES_MAX && !reply.rows.is_empty() {
                reply.end = false;
                break;
            }
            reply.rows.push(LoadedRow { row: (*row).clone(), ..LoadedRow::default() });
        }
        Ok(encoded(&reply))
    }
}

fn bounds(pid: InodeId, msg: &LoadReq) -> (Bytes, Bytes) {
    let key = |order, name: &[u8]| entry_key(&Key { pid, order, name: name.to_vec() });
    let mut start = key(msg.after_order, &msg.after_name).to_vec();
    if !msg.after_name.is_empty() {
        start.push(0);
    }
    (start.into(), entry_key(&Key { pid: pid + 1, order: 0, name: Vec::new() }))
}

fn loaded(key: &[u8], value: &[u8]) -> Option<LoadedRow> {
    let key = parse_entry_key(key)?;
    let row = Inode::decode(value).ok()?;
    Some(LoadedRow { name: key.name.into(), order: key.order, row })
}
