//! What a shard that owns all names answers about the directories on the way.
#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use prost::Message;
use saker_engine::memory::MemoryStorage;
use saker_rpc::hub::Asker;
use saker_rpc::node::{ConnId, ReplyTo};
use saker_runtime::time::Time;
use saker_types::wire::{CreateReq, Entry, EntryReq, Op, PolicyState, ReaddirReply, ReaddirReq};
use saker_types::{Attr, ROOT};

use super::*;
use crate::request::Stage;
use crate::testing::{map, open};

fn alone() -> Rc<RefCell<Shard>> {
    open(0, &MemoryStorage::new(), &map())
}

fn request(op: Op, body: &impl Message) -> Rq {
    let raw = Bytes::from(body.encode_to_vec());
    Rq {
        from: ReplyTo { conn: ConnId(1), call: 1, trace: 1, op },
        ip: None,
        msg: Msg::decode(op, &raw).unwrap(),
        raw,
        slot: None,
        stage: Cell::new(Stage::Admitted),
        deadline: Time::MAX,
        asker: Asker::default(),
        found: RefCell::default(),
        met: RefCell::default(),
        kept: RefCell::default(),
        policy: Cell::default(),
    }
}

fn ask<A: Message + Default>(shard: &mut Shard, rq: &Rq) -> A {
    let Ok(answer) = shard.execute(rq) else { panic!("no answer") };
    A::decode(answer).unwrap()
}

fn put(shard: &mut Shard, pid: InodeId, name: &'static str, id: InodeId, mode: u32, policy: u64) {
    shard.policies.learn(policy, PolicyState::default());
    let attr = Attr { id, mode, nlink: 1, ..Attr::default() };
    let key = shard.map.key(pid, name.as_bytes());
    assert!(shard.insert_entry(&key, Inode { attr, policy, ..Inode::default() }).is_ok());
}

fn lookup(shard: &mut Shard, anchor: Locator, path: &[&'static str]) -> Entry {
    let path = path.iter().map(|name| Bytes::from_static(name.as_bytes())).collect();
    let at = At::below(anchor, path);
    ask(shard, &request(Op::Lookup, &EntryReq { at, ..EntryReq::default() }))
}

#[test]
fn what_is_below_a_directory_with_a_policy_is_told_it() {
    let (dir, file) = (0o040_755, 0o100_644);
    let shard = alone();
    let shard = &mut *shard.borrow_mut();
    put(shard, ROOT, "plain", 11, dir, 0);
    put(shard, ROOT, "p", 12, dir, 7);
    put(shard, 12, "sub", 13, dir, 0);
    put(shard, 13, "f", 14, file, 0);
    put(shard, 13, "other", 15, dir, 9);
    put(shard, 15, "f", 16, file, 0);
    let root = Locator::root;
    for (path, policy) in [
        (&["plain"][..], 0),
        (&["p"], 7),
        (&["p", "sub"], 7),
        (&["p", "sub", "f"], 7),
        (&["p", "sub", "other"], 9),
        (&["p", "sub", "other", "f"], 9),
        (&["plain"], 0),
    ] {
        // The second time the walk is shared.
        for _ in 0..2 {
            assert_eq!(lookup(shard, root(), path).loc.policy, policy, "{path:?}");
        }
    }
    // From an anchor on: it inherits what the client was told.
    let sub = lookup(shard, root(), &["p", "sub"]).loc;
    let found = lookup(shard, sub.clone(), &["f"]);
    assert_eq!(found.loc.policy, 7);
    assert_eq!(lookup(shard, sub.clone(), &["other", "f"]).loc.policy, 9);
    assert_eq!(lookup(shard, found.loc, &[]).loc.policy, 7, "by handle");
    let at = At::child(sub.clone(), b"new");
    let create = CreateReq { at: at.clone(), mode: dir, ..CreateReq::default() };
    let made: Entry = ask(shard, &request(Op::Mkdir, &create));
    assert_eq!(made.loc.policy, 7);
    let list = ReaddirReq { at: At::handle(sub), limit: 10, ..ReaddirReq::default() };
    let listed: ReaddirReply = ask(shard, &request(Op::Readdir, &list));
    let own: Vec<_> = listed.entries.iter().map(|e| (&e.name[..], e.policy)).collect();
    assert!(own.contains(&(b"other", 9)) && own.contains(&(b"f", 0)), "{own:?}");
}

#[test]
fn a_name_that_may_be_kept_is_told_with_its_policy() {
    let shard = alone();
    let shard = &mut *shard.borrow_mut();
    put(shard, ROOT, "p", 12, 0o040_755, 7);
    put(shard, 12, "sub", 13, 0o040_755, 0);
    put(shard, 13, "f", 14, 0o100_644, 0);
    let path = ["p", "sub", "f"].map(|name| Bytes::from_static(name.as_bytes()));
    let at = At { keep_ms: vec![50, 50], ..At::below(Locator::root(), path.to_vec()) };
    let rq = request(Op::Lookup, &EntryReq { at, ..EntryReq::default() });
    let _: Entry = ask(shard, &rq);
    let told: Vec<_> = rq.kept.borrow().iter().map(|dir| (dir.id, dir.policy)).collect();
    assert_eq!(told, [(12, 7), (13, 7)]);
}

#[test]
fn what_the_coordinator_says_of_a_policy_counts_until_it_is_invalidated() {
    let shard = alone();
    let shard = &mut *shard.borrow_mut();
    put(shard, ROOT, "p", 12, 0o040_755, 7);
    put(shard, 12, "f", 13, 0o100_644, 0);
    put(shard, ROOT, "q", 14, 0o040_755, 9);
    shard.policies.invalidate(7);
    let at = At::below(Locator::root(), ["p", "f"].map(Bytes::from).to_vec());
    let rq = request(Op::Lookup, &EntryReq { at, ..EntryReq::default() });
    let waits = |shard: &mut Shard| match shard.execute(&rq) {
        Err(Stop::Wait(wait)) => wait,
        _ => panic!("it does not wait"),
    };
    assert_eq!(waits(shard), Wait::Policy(7));
    // Another one has taken its place: what is told is what counts now.
    shard.policies.learn(7, PolicyState { successor: Some(9), ..PolicyState::default() });
    assert_eq!(ask::<Entry>(shard, &rq).loc.policy, 9);
    shard.policies.learn(7, PolicyState { successor: Some(0), ..PolicyState::default() });
    assert_eq!(ask::<Entry>(shard, &rq).loc.policy, 0);
}
