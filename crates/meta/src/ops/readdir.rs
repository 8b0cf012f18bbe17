//! readdir: this shard's share of a directory, in the order of the rows' keys (rule 19).

use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message;
use saker_engine::Engine;
use saker_types::change::{entry_key, parse_entry_key};
use saker_types::wire::{DirEntry, ReaddirReply, ReaddirReq};
use saker_types::{Access, Errno, Error, Inode, InodeId, Key};

use crate::request::{Rq, Step, Stop, Wait};
use crate::shard::{Shard, encoded};

/// Most entries of one answer.
const ENTRIES_MAX: usize = 2_048;
/// About the most bytes of one answer.
const REPLY_BYTES_MAX: usize = 512 << 10;

impl Shard {
    /// Serves a listing; waits for entries of the directory that were prepared before it (rule 14).
    pub(crate) fn readdir(&mut self, rq: &Rq, msg: &ReaddirReq) -> Step<Bytes> {
        let dir = self.directory(rq, &msg.ctx.cred, &msg.at)?;
        dir.check(&msg.ctx.cred, Access::R)?;
        let holding = self.prepared_below(dir.id).map(|(_, txn)| *txn);
        if let Some(txn) = rq.waits_for(dir.id, holding) {
            return Err(Stop::Wait(Wait::Txn(txn)));
        }
        let limit = (msg.limit as usize).clamp(1, ENTRIES_MAX);
        let (start, end) = bounds(dir.id, msg);
        let mut reply = ReaddirReply { entries: Vec::new(), end: true };
        let mut bytes = 0;
        let mut corrupt = None;
        let scanned = self.engine.scan(&start, &end, |key, value| {
            if reply.entries.len() >= limit || bytes >= REPLY_BYTES_MAX {
                reply.end = false;
                return ControlFlow::Break(());
            }
            match dir_entry(key, value) {
                Some(entry) => {
                    bytes += entry.encoded_len();
                    reply.entries.push(entry);
                    ControlFlow::Continue(())
                }
                None => {
                    corrupt = Some(key.to_vec());
                    ControlFlow::Break(())
                }
            }
        });
        if let Err(e) = scanned {
            tracing::error!("cannot list directory {:#x}: {e}", dir.id);
            return Err(Errno::EIO.into());
        }
        match corrupt {
            Some(key) => {
                tracing::error!("row {key:?} does not decode");
                Err(Error::new(Errno::EIO).into())
            }
            None => Ok(encoded(&reply)),
        }
    }
}

fn bounds(pid: InodeId, msg: &ReaddirReq) -> (Bytes, Bytes) {
    let key = |order, name: &[u8]| entry_key(&Key { pid, order, name: name.to_vec() });
    let mut start = key(msg.after_order, &msg.after_name).to_vec();
    // The smallest key after the last one seen; all names of an order come after no name.
    start.push(0);
    let start = if msg.after_name.is_empty() { key(msg.after_order, b"") } else { start.into() };
    (start, entry_key(&Key { pid: pid + 1, order: 0, name: Vec::new() }))
}

fn dir_entry(key: &[u8], value: &[u8]) -> Option<DirEntry> {
    let key = parse_entry_key(key)?;
    let inode = Inode::decode(value).ok()?;
    Some(DirEntry {
        name: key.name.into(),
        order: key.order,
        attr: inode.attr,
        home_slot: inode.home_slot,
    })
}
