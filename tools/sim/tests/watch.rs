//! Whether a shard knows an inode, as fsck asks before it sets chunks aside: whatever moves while
//! rows are scanned, an inode that is there is met.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use saker_sim::testbed::{Message, Testbed, at, shard};
use saker_types::change::{parse_entry_key, table};
use saker_types::wire::*;
use saker_types::{Errno, Inode, InodeId, NodeId};

const WATCH: u64 = 7;

fn watch(b: &mut Testbed, on: NodeId, ids: &[InodeId]) -> Vec<InodeId> {
    let request = WatchReq { watch: WATCH, ids: ids.to_vec() };
    let call = b.ask(Op::Watch, on, &request);
    alone::<WatchReply>(b, Op::Watch, call).known
}

/// The answer to a call; nothing else moves meanwhile.
fn alone<R: prost::Message + Default>(b: &mut Testbed, op: Op, call: u64) -> R {
    loop {
        if let Some(answer) = b.answer::<R>(call) {
            return answer.unwrap();
        }
        assert!(b.deliver(|m| m.asks(op) || m.answers(op)));
    }
}

/// Inodes that have an entry on a shard, as a scan sees them.
fn scanned(b: &mut Testbed, on: NodeId) -> Vec<InodeId> {
    let request = ScanReq { after: Bytes::new(), limit: 65_536 };
    let call = b.ask(Op::Scan, on, &request);
    let rows = alone::<ScanReply>(b, Op::Scan, call).rows;
    let entries = rows.into_iter().filter(|row| row.key[0] == table::ENTRY);
    let inode = |row: Row| {
        parse_entry_key(&row.key).unwrap();
        prost::Message::decode(row.value).map(|inode: Inode| inode.attr.id).unwrap()
    };
    entries.map(inode).collect()
}

/// A rename from shard 1 to shard 0 that stops at any message; shard 0 is scanned before it goes
/// on, shard 1 after. So the scans meet the file nowhere, or only by chance.
#[test]
fn an_inode_that_moves_while_rows_are_scanned_is_met() {
    let mut missed = 0;
    for stops_after in 0..8 {
        for begins_after in 0..=stops_after {
            let mut b = Testbed::new(2);
            let (from, to) = (b.name_on(shard(1), "from"), b.name_on(shard(0), "to"));
            let id = b.create(&from).unwrap().attr.id;
            let request = b.rename_req(&from, &to);
            let rename = b.ask(Op::Rename, shard(1), &request);
            let mut steps = 0;
            let mut go_to = |b: &mut Testbed, step| {
                while steps < step && b.deliver(|_: &Message| true) {
                    steps += 1;
                }
            };
            go_to(&mut b, begins_after);
            let mut met = watch(&mut b, shard(0), &[id, 1 << 50]);
            met.extend(watch(&mut b, shard(1), &[id, 1 << 50]));
            let mut seen = scanned(&mut b, shard(0));
            go_to(&mut b, stops_after);
            seen.extend(scanned(&mut b, shard(1)));
            missed += u32::from(!seen.contains(&id));
            met.extend(watch(&mut b, shard(0), &[]));
            met.extend(watch(&mut b, shard(1), &[]));
            assert!(met.contains(&id) || seen.contains(&id), "{begins_after} {stops_after}");
            assert!(!met.contains(&(1 << 50)));
            b.settle();
            b.answer::<RenameReply>(rename).unwrap().unwrap();
            b.check();
        }
    }
    assert!(missed > 3, "the scans alone have met it all the time: this tests nothing");
}

#[test]
fn who_has_started_again_since_cannot_say() {
    let mut b = Testbed::new(1);
    let id = b.create("f").unwrap().attr.id;
    assert!(watch(&mut b, shard(0), &[id]).is_empty());
    b.restart(shard(0));
    let ended = WatchReq { watch: WATCH, ids: Vec::new() };
    let answer = b.run::<WatchReply>(Op::Watch, shard(0), &ended);
    assert_eq!(answer.unwrap_err().errno(), Errno::ESTALE);
    b.stat(&at("f")).unwrap();
}
