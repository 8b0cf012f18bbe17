//! readdir: this shard's share of a directory, in the order of the rows' keys (rule 19).

use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message;
use saker_engine::Engine;
use saker_types::change::{entry_key, parse_entry_key};
use saker_types::wire::{DirEntry, ReaddirReply, ReaddirReq};
use saker_types::{Access, Errno, Error, Inode, InodeId, Key};

use crate::request::{Attempt, Rq, Stop, Wait};
use crate::shard::{Shard, encoded};

/// Most entries of one answer.
const ENTRIES_MAX: usize = 2_048;
/// About the most bytes of one answer.
const REPLY_BYTES_MAX: usize = 512 << 10;

impl Shard {
    /// Serves a listing; waits for entries of the directory that were prepared before it (rule 14).
    pub(crate) fn readdir(&mut self, rq: &Rq, msg: &ReaddirReq) -> Attempt<Bytes> {
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
        policy: inode.policy,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use saker_types::wire::Op;

    use super::*;
    use crate::testing::{Tester, at, errno, user};

    fn list(t: &mut Tester, path: &str, after: Option<&DirEntry>) -> Result<ReaddirReply, Error> {
        let (ctx, at) = (t.ctx(), at(path));
        let (after_order, after_name) =
            after.map(|entry| (entry.order, entry.name.clone())).unwrap_or_default();
        t.ask(Op::Readdir, &ReaddirReq { ctx, at, after_order, after_name, limit: 3 })
    }

    #[test]
    fn goes_on_after_the_last_entry_until_the_end() {
        let mut t = Tester::new();
        t.mkdir("d").unwrap();
        t.create("other").unwrap();
        let names: BTreeSet<String> = (0..10).map(|n| format!("f{n}")).collect();
        names.iter().for_each(|name| drop(t.create(&format!("d/{name}")).unwrap()));
        let (mut listed, mut is_over) = (Vec::new(), false);
        while !is_over {
            let reply = list(&mut t, "d", listed.last()).unwrap();
            assert!(reply.entries.len() == 3 || reply.end);
            is_over = reply.end;
            listed.extend(reply.entries);
        }
        assert!(listed.is_sorted_by_key(|entry| (entry.order, entry.name.clone())));
        let found: Vec<_> = listed.iter().map(|e| std::str::from_utf8(&e.name).unwrap()).collect();
        assert_eq!(found.len(), names.len(), "each once");
        assert!(found.into_iter().all(|name| names.contains(name)));
    }

    #[test]
    fn a_directory_is_listed_by_those_who_may_read_it() {
        let mut t = Tester::new();
        t.create("f").unwrap();
        let request = t.create_req("d", saker_types::FileKind::Directory);
        let mode = saker_types::FileKind::Directory.bits() | 0o711;
        let request = saker_types::wire::CreateReq { mode, ..request };
        t.ask::<saker_types::wire::Entry>(Op::Mkdir, &request).unwrap();
        assert!(list(&mut t, "d", None).unwrap().end);
        assert_eq!(errno(list(&mut t, "f", None)), Errno::ENOTDIR);
        assert_eq!(errno(list(&mut t, "absent", None)), Errno::ENOENT);
        t.cred = user(5);
        assert_eq!(errno(list(&mut t, "d", None)), Errno::EACCES);
    }
}
