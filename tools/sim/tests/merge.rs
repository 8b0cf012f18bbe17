//! Merging a decoupled subtree on real shards and a coordinator (docs/decisions/0063): all of it or
//! nothing, whoever dies when, and nobody sees a part. The client that holds the subtree is played by
//! the test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use saker_sim::testbed::{Message, Testbed, at, errno, shard};
use saker_types::change::table;
use saker_types::wire::*;
use saker_types::{Attr, Class, Errno, Error, FileKind, Inode, InodeId, Locator, NodeId, ShardNo};

const COORDINATOR: NodeId = NodeId::Coordinator;
const HOLDER: u64 = 0xAB;
/// Files of each shard in the new directory.
const NEW_FILES: usize = 2;

/// A subtree that the test's client holds.
struct Held {
    /// Where it changes something: a directory below the one that has the policy, as a client knows it
    /// that was there before the policy.
    root: Locator,
    /// The same as a path.
    path: String,
    policy: u64,
    epoch: u64,
    ids: IdRange,
}

/// What the client has done in it.
#[derive(Clone, Default)]
struct Changes {
    rows: Vec<StagedRow>,
    dirs: Vec<Locator>,
}

impl Held {
    fn ctx(&self, b: &mut Testbed) -> Ctx {
        Ctx { holder: HOLDER, hold: self.epoch, ..b.ctx() }
    }

    /// Rows for a shard.
    fn of_shard(b: &Testbed, changes: &Changes, no: ShardNo) -> Vec<StagedRow> {
        let owner = |row: &StagedRow| match (&row.entry, row.attr_slot) {
            (Some(entry), _) => b.map().owner(entry.pid, &entry.name),
            (None, slot) => {
                b.map().shard_of_slot(saker_types::placement::Slot::from_wire(slot.unwrap()))
            }
        };
        changes.rows.iter().filter(|row| owner(row) == no).cloned().collect()
    }

    fn stage(&self, b: &mut Testbed, attempt: u32, changes: &Changes) {
        for no in 0..b.shards().len() as ShardNo {
            let (rows, dirs) = (Held::of_shard(b, changes, no), changes.dirs.clone());
            let (policy, epoch) = (self.policy, self.epoch);
            let ctx = self.ctx(b);
            let request = StageReq { ctx, policy, epoch, attempt, rows, dirs, stored: None };
            b.run::<Empty>(Op::Stage, shard(no), &request).unwrap();
        }
    }

    fn request(&self, b: &mut Testbed, attempt: u32, changes: &Changes) -> MergeReq {
        let rows = |no| Held::of_shard(b, changes, no).len() as u64;
        let shards = (0..b.shards().len() as ShardNo)
            .map(|no| ShardRows { shard: no.into(), rows: rows(no) })
            .collect();
        let (policy, epoch, dirs) = (self.policy, self.epoch, changes.dirs.len() as u64);
        let ctx = self.ctx(b);
        MergeReq { ctx, policy, epoch, attempt, shards, dirs, release: false, dry_run: false }
    }

    /// Merges what is staged, however often it must be asked for.
    fn merge(&self, b: &mut Testbed, attempt: u32, changes: &Changes) -> Result<MergeReply, Error> {
        let request = self.request(b, attempt, changes);
        b.run(Op::Merge, COORDINATOR, &request)
    }
}

/// Gives a directory a policy, and holds its subtree, to change what is in the directory at `path`.
fn held(b: &mut Testbed, top: &str, path: &str) -> Held {
    let root = b.lookup(&at(path)).unwrap().loc.under(0);
    let pair = |key: &str, value: &str| PolicyPair { key: key.into(), value: value.into() };
    let pairs = vec![pair("consistency", "weak"), pair("durability", "local")];
    let request = SetPolicyReq { ctx: b.ctx(), at: at(top), pairs };
    let set: SetPolicyReply = b.run(Op::SetPolicy, COORDINATOR, &request).unwrap();
    let policy = set.policy;
    let request =
        HoldReq { ctx: b.ctx(), policy, holder: HOLDER, who: "the test".into(), force: false };
    let hold: HoldReply = b.run(Op::Hold, COORDINATOR, &request).unwrap();
    let request = ProvisionReq { policy, holder: HOLDER, count: 1000 };
    let ids: IdRange = b.run(Op::Provision, COORDINATOR, &request).unwrap();
    Held { root, path: path.to_owned(), policy, epoch: hold.policy.last_epoch, ids }
}

fn inode(id: InodeId, kind: FileKind) -> Inode {
    let attr = Attr {
        id,
        mode: kind.bits() | 0o755,
        nlink: 1,
        mtime_ns: 1_000,
        ctime_ns: 1_000,
        size: if kind == FileKind::Directory { 4096 } else { 0 },
        ..Attr::default()
    };
    Inode { attr, ..Inode::default() }
}

fn put(pid: InodeId, name: &str, expect: InodeId, row: Option<Inode>) -> StagedRow {
    let entry = Some(EntryKey { pid, name: Bytes::copy_from_slice(name.as_bytes()) });
    StagedRow { entry, row, expect, ..StagedRow::default() }
}

/// A directory whose files `keep`, `change`, `replace`, `remove` and `move` there are on each shard.
fn subtree(b: &mut Testbed) -> Held {
    let dir = format!("top/{}", b.name_on(shard(0), "dir"));
    b.mkdir("top").unwrap();
    b.mkdir(&dir).unwrap();
    for s in b.shards() {
        for kind in ["keep", "change", "replace", "remove", "move"] {
            let name = b.name_on(s, kind);
            b.create(&format!("{dir}/{name}")).unwrap();
        }
    }
    held(b, "top", &dir)
}

/// All that can be merged, on each shard, and with it a new directory, in which files are, and one with
/// two names; and what is there afterwards, by path below the root of the subtree.
fn changes(b: &mut Testbed, held: &Held) -> (Changes, BTreeMap<String, Option<InodeId>>) {
    let (root, dir) = (held.root.clone(), held.path.clone());
    let mut ids = held.ids.first..;
    let mut made = Changes { rows: Vec::new(), dirs: vec![root.clone()] };
    let mut after = BTreeMap::new();
    let new_dir = ids.next().unwrap();
    made.rows.push(put(root.id, "new", 0, Some(inode(new_dir, FileKind::Directory))));
    after.insert("new".to_owned(), Some(new_dir));
    let inside = |row: StagedRow| StagedRow { in_new_dir: true, ..row };
    for s in b.shards() {
        let mut there = |kind: &str| {
            let name = b.name_on(s, kind);
            let id = b.lookup(&at(&format!("{dir}/{name}"))).unwrap().attr.id;
            (name, id)
        };
        let (keep, id) = there("keep");
        after.insert(keep, Some(id));
        let (name, id) = there("change");
        let row = Inode { inline: "new".into(), ..inode(id, FileKind::Regular) };
        made.rows.push(put(root.id, &name, id, Some(row)));
        after.insert(name, Some(id));
        let (name, id) = there("replace");
        let new = ids.next().unwrap();
        made.rows.push(put(root.id, &name, id, Some(inode(new, FileKind::Regular))));
        after.insert(name, Some(new));
        let (name, id) = there("remove");
        made.rows.push(put(root.id, &name, id, None));
        after.insert(name, None);
        let (name, id) = there("move");
        let moves_to = Some(Locator::entry(new_dir, Bytes::copy_from_slice(name.as_bytes()), id));
        made.rows.push(StagedRow { moves_to, ..put(root.id, &name, id, None) });
        made.rows.push(inside(put(new_dir, &name, 0, Some(inode(id, FileKind::Regular)))));
        after.insert(name.clone(), None);
        after.insert(format!("new/{name}"), Some(id));
        for n in 0..NEW_FILES {
            let (name, id) = (b.name_on(s, &format!("f{n}-")), ids.next().unwrap());
            made.rows.push(inside(put(new_dir, &name, 0, Some(inode(id, FileKind::Regular)))));
            after.insert(format!("new/{name}"), Some(id));
        }
    }
    let (linked, slot) = (ids.next().unwrap(), 5);
    let mut attributes = inode(linked, FileKind::Regular);
    attributes.attr.nlink = 2;
    made.rows.push(StagedRow {
        attr_slot: Some(slot),
        row: Some(attributes),
        ..StagedRow::default()
    });
    for name in ["one", "two"] {
        let row = Inode { home_slot: Some(slot), ..inode(linked, FileKind::Regular) };
        made.rows.push(inside(put(new_dir, name, 0, Some(row))));
        after.insert(format!("new/{name}"), Some(linked));
    }
    (made, after)
}

/// What is at each of these paths.
fn seen(b: &mut Testbed, held: &Held, paths: &[String]) -> BTreeMap<String, Option<InodeId>> {
    let dir = held.path.clone();
    let mut found = BTreeMap::new();
    for path in paths {
        let id = match b.lookup(&at(&format!("{dir}/{path}"))) {
            Ok(entry) => Some(entry.attr.id),
            Err(e) if e.is(Class::Moved) => Some(e.moved.unwrap().id),
            Err(e) => {
                assert_eq!(e.errno(), Errno::ENOENT, "{path}: {e}");
                None
            }
        };
        found.insert(path.clone(), id);
    }
    found
}

fn staged_rows(b: &mut Testbed) -> usize {
    let mut count = 0;
    for s in b.shards() {
        let request = ScanReq { after: Bytes::new(), limit: 65_536 };
        let rows: ScanReply = b.run(Op::Scan, s, &request).unwrap();
        count += rows.rows.iter().filter(|row| row.key[0] == table::STAGED).count();
    }
    count
}

#[test]
fn a_merge_is_as_if_all_had_been_done_one_by_one() {
    let mut b = Testbed::new(3);
    let mut held = subtree(&mut b);
    let (made, after) = changes(&mut b, &held);
    let paths: Vec<String> = after.keys().cloned().collect();
    let before = seen(&mut b, &held, &paths);
    assert_ne!(before, after);
    held.stage(&mut b, 1, &made);
    let request = MergeReq { dry_run: true, ..held.request(&mut b, 1, &made) };
    let dry: MergeReply = b.run(Op::Merge, COORDINATOR, &request).unwrap();
    assert_eq!((dry.conflicts, dry.epoch), (vec![], held.epoch));
    assert_eq!(seen(&mut b, &held, &paths), before, "nothing has changed");
    let handle = held.root.clone().under(held.policy);
    let was = b.stat(&At::handle(handle.clone())).unwrap().attr;

    let merged = held.merge(&mut b, 1, &made).unwrap();
    assert_eq!((merged.conflicts, merged.epoch), (vec![], held.epoch + 1));
    assert_eq!(seen(&mut b, &held, &paths), after);
    let is = b.stat(&At::handle(handle)).unwrap().attr;
    assert_eq!((was.nlink, is.nlink), (2, 3));
    assert!(is.mtime_ns > was.mtime_ns && is.ctime_ns >= is.mtime_ns);
    let dir = held.path.clone();
    let new = b.stat(&at(&format!("{dir}/new"))).unwrap().attr;
    assert_eq!((new.nlink, new.mtime_ns), (2, 1_000), "the holder's time");
    assert_eq!(b.stat(&at(&format!("{dir}/new/two"))).unwrap().attr.nlink, 2);
    assert_eq!(staged_rows(&mut b), 0);
    b.check();
    // Its holder goes on in the next epoch; the last merge gives the subtree up.
    held.epoch = merged.epoch;
    let name = b.name_on(shard(1), "last");
    let rows =
        vec![put(held.root.id, &name, 0, Some(inode(held.ids.first + 900, FileKind::Regular)))];
    let last = Changes { rows, dirs: made.dirs.clone() };
    held.stage(&mut b, 1, &last);
    let request = MergeReq { release: true, ..held.request(&mut b, 1, &last) };
    let merged: MergeReply = b.run(Op::Merge, COORDINATOR, &request).unwrap();
    assert_eq!(merged.epoch, 0);
    b.lookup(&at(&format!("{dir}/{name}"))).unwrap();
    let refused = b.create(&format!("{dir}/other")).unwrap_err();
    assert!(refused.is(Class::NeedsHold), "nobody holds it");
    b.pass(Duration::from_millis(100));
    b.check();
}

/// Everything in it can be used as what was made one by one: listed, moved, removed.
#[test]
fn what_was_merged_can_be_removed() {
    let mut b = Testbed::new(3);
    let held = subtree(&mut b);
    let (made, after) = changes(&mut b, &held);
    held.stage(&mut b, 1, &made);
    let request = MergeReq { release: true, ..held.request(&mut b, 1, &made) };
    b.run::<MergeReply>(Op::Merge, COORDINATOR, &request).unwrap();
    let dir = held.path.clone();
    let request = SetPolicyReq { ctx: b.ctx(), at: at("top"), pairs: vec![] };
    b.run::<SetPolicyReply>(Op::SetPolicy, COORDINATOR, &request).unwrap();
    assert_eq!(errno(b.rmdir(&format!("{dir}/new"))), Errno::ENOTEMPTY);
    let moved = after.keys().find(|path| path.starts_with("new/f0")).unwrap();
    b.rename(&format!("{dir}/{moved}"), "elsewhere").unwrap();
    for (path, id) in after.iter().rev() {
        match path.as_str() {
            "new" => b.rmdir(&format!("{dir}/new")).map(drop).unwrap(),
            path if path == moved || id.is_none() => {}
            path => b.unlink(&format!("{dir}/{path}")).map(drop).unwrap(),
        }
    }
    b.rmdir(&dir).unwrap();
    b.rmdir("top").unwrap();
    b.unlink("elsewhere").unwrap();
    b.pass(Duration::from_secs(1));
    let tree = b.check();
    assert_eq!(tree.entries.len(), 1, "only the root is left");
}

/// A lookup that was asked, of one path.
struct Look {
    path: String,
    call: u64,
    begun: u64,
}

/// What lookups have shown.
#[derive(Default)]
struct Reader {
    under_way: Vec<Look>,
    /// Path, when it was asked for, when it was answered, what was there.
    seen: Vec<(String, u64, u64, Option<InodeId>)>,
    clock: u64,
}

impl Reader {
    fn is_its(m: &Message) -> bool {
        [Op::Lookup, Op::Fetch].contains(&m.op)
    }

    /// Asks for all paths, by the path and by a handle from before the policy.
    fn ask(&mut self, b: &mut Testbed, held: &Held, paths: &[String]) {
        let dir = held.path.clone();
        for path in paths {
            let names: Vec<Bytes> =
                path.split('/').map(|n| Bytes::copy_from_slice(n.as_bytes())).collect();
            for place in [at(&format!("{dir}/{path}")), At::below(held.root.clone(), names)] {
                let ctx = Ctx { wait_ms: 5_000, ..Ctx::default() };
                let ctx = Ctx { cred: saker_types::Cred::root(), ..ctx };
                let to = b.owner_of(&place);
                let request = EntryReq { ctx, at: place, full: false };
                let call = b.ask(Op::Lookup, to, &request);
                self.under_way.push(Look { path: path.clone(), call, begun: self.clock });
            }
        }
    }

    /// Takes the answers that have come.
    fn hear(&mut self, b: &mut Testbed) {
        while b.deliver(Reader::is_its) {}
        self.clock += 1;
        let (clock, seen) = (self.clock, &mut self.seen);
        self.under_way.retain(|look| match b.answer::<Entry>(look.call) {
            None => true,
            Some(answer) => {
                let found = match answer {
                    Ok(entry) => Some(Some(entry.attr.id)),
                    Err(e) if e.is(Class::Moved) => Some(Some(e.moved.unwrap().id)),
                    Err(e) if e.class == 0 && e.errno() == Errno::ENOENT => Some(None),
                    // It was not answered: the node died, or it has waited too long.
                    Err(e) => {
                        assert!(e.is(Class::Retry), "{e}");
                        None
                    }
                };
                seen.extend(found.map(|id| (look.path.clone(), look.begun, clock, id)));
                false
            }
        });
    }

    /// Who asks after somebody has seen something of the merge sees all of it.
    fn check(
        &self,
        before: &BTreeMap<String, Option<InodeId>>,
        after: &BTreeMap<String, Option<InodeId>>,
    ) {
        let is_new = |path: &String, id| before[path] != after[path] && id == after[path];
        let first = self.seen.iter().filter(|(path, _, _, id)| is_new(path, *id));
        let first = first.map(|(_, _, ended, _)| *ended).min().unwrap_or(u64::MAX);
        for (path, begun, _, id) in &self.seen {
            assert!([before[path], after[path]].contains(id), "{path}: {id:?}");
            assert!(*begun < first || *id == after[path], "{path} at {begun}, seen at {first}");
        }
    }
}

/// One message is delivered, or time goes on; and the reader's.
fn go_on(b: &mut Testbed, reader: &mut Reader) {
    b.deliver(|m| !Reader::is_its(m));
    b.advance(Duration::from_micros(200));
    reader.hear(b);
}

/// A merge during which a node dies after so many steps, if it lasts as long: false if it does not.
fn merge_with_death(victim: Option<NodeId>, steps: usize) -> bool {
    let mut b = Testbed::new(3);
    let held = subtree(&mut b);
    let (made, after) = changes(&mut b, &held);
    let paths: Vec<String> = after.keys().cloned().collect();
    let before = seen(&mut b, &held, &paths);
    held.stage(&mut b, 1, &made);
    let mut reader = Reader::default();
    let request = held.request(&mut b, 1, &made);
    let call = b.ask(Op::Merge, COORDINATOR, &request);
    let mut answer = None;
    for step in 0..steps {
        if step % 8 == 0 {
            reader.ask(&mut b, &held, &paths);
        }
        go_on(&mut b, &mut reader);
        answer = b.answer::<MergeReply>(call);
        if answer.is_some() {
            break;
        }
    }
    let is_over = answer.is_some();
    if let Some(victim) = victim {
        b.crash(victim);
        // Those who can go on without it.
        for _ in 0..10 {
            go_on(&mut b, &mut reader);
        }
        b.start(victim);
        b.open_session();
    }
    reader.ask(&mut b, &held, &paths);
    let text = format!("{victim:?} after {steps} steps");
    // In a new session, as of a client that was killed: with the number of its journal's attempt.
    let merged = held.merge(&mut b, 1, &made);
    assert_eq!(merged.expect(&text).epoch, held.epoch + 1, "{text}");
    for _ in 0..20 {
        go_on(&mut b, &mut reader);
    }
    reader.ask(&mut b, &held, &paths);
    b.pass(Duration::from_millis(200));
    reader.hear(&mut b);
    reader.check(&before, &after);
    assert_eq!(seen(&mut b, &held, &paths), after, "{text}");
    b.pass(Duration::from_secs(2));
    assert_eq!(staged_rows(&mut b), 0, "{text}");
    b.check();
    !is_over
}

#[test]
fn a_merge_survives_any_death() {
    let victims = [shard(0), shard(1), shard(2), COORDINATOR];
    for victim in victims {
        let mut steps = 0;
        while merge_with_death(Some(victim), steps) {
            steps += 1;
        }
        assert!(steps > 20, "a merge has {steps} steps");
    }
}

#[test]
fn who_reads_meanwhile_sees_nothing_or_all() {
    assert!(!merge_with_death(None, 10_000));
}

#[test]
fn others_who_were_let_in_are_in_the_way() {
    let mut b = Testbed::new(3);
    let held = subtree(&mut b);
    let (mut made, after) = changes(&mut b, &held);
    let dir = held.path.clone();
    // Another client makes what the holder makes, and removes what the holder changes.
    let other = b.mkdir(&format!("{dir}/new")).unwrap().attr.id;
    let changed = b.name_on(shard(1), "change");
    b.unlink(&format!("{dir}/{changed}")).unwrap();
    held.stage(&mut b, 1, &made);
    let merged = held.merge(&mut b, 1, &made).unwrap();
    let mut names: Vec<_> =
        merged.conflicts.iter().map(|c| (c.entry.name.to_vec(), c.there)).collect();
    names.sort();
    let mut wanted = vec![(b"new".to_vec(), other), (changed.as_bytes().to_vec(), 0)];
    wanted.sort();
    assert_eq!((names, merged.epoch), (wanted, held.epoch));
    b.check();
    assert_eq!(b.lookup(&at(&format!("{dir}/new"))).unwrap().attr.id, other);
    // The holder sees it, and does it otherwise.
    b.rmdir(&format!("{dir}/new")).unwrap();
    for row in &mut made.rows {
        let name = row.entry.as_ref().map(|entry| entry.name.clone());
        if name.is_some_and(|name| name == changed.as_bytes()) {
            row.expect = 0;
        }
    }
    held.stage(&mut b, 2, &made);
    assert_eq!(held.merge(&mut b, 2, &made).unwrap().conflicts, []);
    let paths: Vec<String> = after.keys().cloned().collect();
    assert_eq!(seen(&mut b, &held, &paths), after);
    b.pass(Duration::from_millis(100));
    assert_eq!(staged_rows(&mut b), 0);
    b.check();
}

#[test]
fn subtrees_are_merged_side_by_side_and_one_subtree_once() {
    let mut b = Testbed::new(3);
    let first = subtree(&mut b);
    b.mkdir("second").unwrap();
    let second = held(&mut b, "second", "second");
    let (made, after) = changes(&mut b, &first);
    let new = inode(second.ids.first, FileKind::Regular);
    let other = Changes {
        rows: vec![put(second.root.id, "f", 0, Some(new))],
        dirs: vec![second.root.clone()],
    };
    first.stage(&mut b, 1, &made);
    second.stage(&mut b, 1, &other);
    let requests = [
        first.request(&mut b, 1, &made),
        first.request(&mut b, 1, &made),
        second.request(&mut b, 1, &other),
    ];
    // The second one of the same comes while the first is made.
    let calls: Vec<u64> = requests.iter().map(|r| b.ask(Op::Merge, COORDINATOR, r)).collect();
    b.pass(Duration::from_millis(200));
    let answers: Vec<_> = calls.iter().map(|call| b.answer::<MergeReply>(*call).unwrap()).collect();
    assert_eq!(answers[0].as_ref().unwrap().epoch, first.epoch + 1);
    assert!(answers[1].as_ref().unwrap_err().is(Class::Retry));
    assert_eq!(answers[2].as_ref().unwrap().epoch, second.epoch + 1);
    assert_eq!(first.merge(&mut b, 1, &made).unwrap().epoch, first.epoch + 1, "it is made");
    let paths: Vec<String> = after.keys().cloned().collect();
    assert_eq!(seen(&mut b, &first, &paths), after);
    b.lookup(&at("second/f")).unwrap();
    b.check();
}

/// A client with a handle from before the policy comes between the check and the end, also when shards
/// start again there.
#[test]
fn nobody_comes_between_the_check_and_the_end() {
    let mut b = Testbed::new(3);
    let held = subtree(&mut b);
    let (made, after) = changes(&mut b, &held);
    held.stage(&mut b, 1, &made);
    let request = held.request(&mut b, 1, &made);
    let merge = b.ask(Op::Merge, COORDINATOR, &request);
    let applies = |m: &Message| m.asks(Op::ApplyMerge);
    for _ in 0..40 {
        b.settle_but(applies);
        b.advance(Duration::from_millis(1));
    }
    assert!(b.wire().iter().any(applies), "it is decided");
    let mut calls = Vec::new();
    for restarts in [false, true] {
        for s in b.shards() {
            if restarts {
                b.restart(s);
            }
        }
        if restarts {
            b.open_session_but(applies);
        }
        // Of each shard a name that is replaced, and a new one that is in nobody's way.
        for s in b.shards() {
            for kind in ["replace", "absent"] {
                let name = b.name_on(s, kind);
                let place = At::child(held.root.clone(), name.as_bytes());
                let request = b.create_req(place, FileKind::Regular);
                calls.push((kind, b.ask(Op::Create, s, &request)));
            }
        }
        b.settle_but(applies);
        for (_, call) in &calls {
            assert!(b.answer::<Entry>(*call).is_none_or(|a| a.unwrap_err().is(Class::Retry)));
        }
    }
    b.pass(Duration::from_secs(3));
    assert_eq!(b.answer::<MergeReply>(merge).unwrap().unwrap().epoch, held.epoch + 1);
    let paths: Vec<String> = after.keys().cloned().collect();
    assert_eq!(seen(&mut b, &held, &paths), after);
    b.check();
}

#[test]
fn what_was_staged_goes_when_the_hold_is_given_up() {
    let mut b = Testbed::new(3);
    let held = subtree(&mut b);
    let (made, after) = changes(&mut b, &held);
    let paths: Vec<String> = after.keys().cloned().collect();
    let before = seen(&mut b, &held, &paths);
    held.stage(&mut b, 1, &made);
    b.crash(shard(2));
    let (policy, epoch) = (held.policy, held.epoch);
    let release = ReleaseReq { ctx: held.ctx(&mut b), policy, epoch, force: false };
    let call = b.ask(Op::Release, COORDINATOR, &release);
    b.settle();
    b.start(shard(2));
    b.pass(Duration::from_secs(6));
    b.answer::<Empty>(call).unwrap().unwrap();
    assert_eq!(staged_rows(&mut b), 0, "also at the shard that was down");
    assert_eq!(errno(held.merge(&mut b, 1, &made)), Errno::ESTALE);
    assert_eq!(seen(&mut b, &held, &paths), before);
    b.check();
}

#[test]
fn an_open_file_that_moves_is_followed() {
    let mut b = Testbed::new(3);
    let held = subtree(&mut b);
    let (made, _) = changes(&mut b, &held);
    let dir = held.path.clone();
    let name = b.name_on(shard(1), "move");
    let entry = b.lookup(&at(&format!("{dir}/{name}"))).unwrap();
    held.stage(&mut b, 1, &made);
    held.merge(&mut b, 1, &made).unwrap();
    let answer = b.stat(&At::handle(entry.loc.clone())).unwrap();
    assert_eq!(answer.attr.id, entry.attr.id);
    assert_ne!(answer.loc.pid, entry.loc.pid);
    // Who has one open that was removed goes on with it.
    let removed = b.name_on(shard(1), "remove");
    assert_eq!(errno(b.lookup(&at(&format!("{dir}/{removed}")))), Errno::ENOENT);
    b.check();
}
