//! The rules of the namespace protocol (docs/protocol.md), one by one, where no other test is
//! about the rule itself: interleavings and crashes, each played by hand on the testbed.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use saker_meta::ShardLimits;
use saker_sim::testbed::{Message, Testbed, at, errno, shard, with_dir};
use saker_types::change::{id_key, table};
use saker_types::limits::{
    NAME_CONTENDED, NAME_KEEP, NAME_KEEP_MARGIN, NAME_KEEP_MAX, NAME_LEASE_MAX,
};
use saker_types::wire::*;
use saker_types::{Class, Errno, FileKind, NodeId};

const COORDINATOR: NodeId = NodeId::Coordinator;

fn create(b: &mut Testbed, to: NodeId, path: &str) -> u64 {
    let request = b.create_req(at(path), FileKind::Regular);
    b.ask(Op::Create, to, &request)
}

/// Rule 1: the prepare of a rename carries a path, which is resolved where it is written.
#[test]
fn a_prepare_that_comes_late_finds_the_directory_removed() {
    let (mut b, dir) = with_dir(3);
    let (from, to) = (b.name_on(shard(2), "f"), b.name_on(shard(1), "g"));
    b.create(&from).unwrap();
    let request = b.rename_req(&from, &format!("{dir}/{to}"));
    let rename = b.ask(Op::Rename, shard(2), &request);
    b.settle_but(|m| m.asks(Op::Prepare));
    let prepare = b.take(|m| m.asks(Op::Prepare));
    assert_eq!(prepare.len(), 1);
    b.rmdir(&dir).unwrap();
    b.put(prepare);
    b.pass(Duration::from_secs(1));
    assert_eq!(errno(b.answer::<RenameReply>(rename).unwrap()), Errno::ENOENT);
    b.lookup(&at(&from)).unwrap();
    b.check();
}

/// Rule 2: a replica that has dropped an entry still remembers the invalidation.
#[test]
fn a_replica_without_room_is_only_slower() {
    // Else what the walk before has found is remembered, too.
    let coalesce_prefixes = false;
    let limits = ShardLimits {
        replica: 1,
        coalesce_prefixes,
        segment_bytes: 64 << 10,
        ..ShardLimits::default()
    };
    let mut b = Testbed::with_limits(3, limits);
    let dir = b.name_on(shard(0), "dir");
    b.mkdir(&dir).unwrap();
    for i in 0..8 {
        b.mkdir(&format!("{dir}/sub{i}")).unwrap();
    }
    let names: Vec<String> = (0..3).map(|n| b.name_on(shard(n), "f")).collect();
    for i in 0..8 {
        for name in &names {
            b.create(&format!("{dir}/sub{i}/{name}")).unwrap();
        }
    }
    // The answer to a fetch of a cold entry is overtaken by its invalidation.
    let late = b.name_on(shard(1), "late");
    let call = create(&mut b, shard(1), &format!("{dir}/{late}"));
    b.settle_but(|m| m.answers(Op::Fetch));
    let answers = b.take(|m| m.answers(Op::Fetch));
    b.rename(&dir, "elsewhere").unwrap();
    b.put(answers);
    b.pass(Duration::from_millis(200));
    assert_eq!(errno(b.answer::<Entry>(call).unwrap()), Errno::ENOENT);
    for name in &names {
        b.lookup(&at(&format!("elsewhere/sub7/{name}"))).unwrap();
    }
    b.check();
}

/// Eager replication, which lazy replication is measured against: nobody fetches what a mkdir has
/// told to all; a decision that is told late says nothing after an invalidation (rule 2).
#[test]
fn a_directory_made_everywhere_is_fetched_by_nobody() {
    let limits =
        ShardLimits { lazy_replication: false, segment_bytes: 64 << 10, ..ShardLimits::default() };
    let mut b = Testbed::with_limits(3, limits);
    let (dir, file) = (b.name_on(shard(0), "dir"), b.name_on(shard(1), "f"));
    b.mkdir(&dir).unwrap();
    b.pass(Duration::from_millis(10));
    let call = create(&mut b, shard(1), &format!("{dir}/{file}"));
    b.settle_but(|m| m.asks(Op::Fetch));
    assert!(b.answer::<Entry>(call).unwrap().is_ok(), "without a fetch");

    let late = b.name_on(shard(0), "late");
    let request = b.create_req(at(&late), FileKind::Directory);
    let made = b.ask(Op::Mkdir, shard(0), &request);
    let told = |m: &Message| m.asks(Op::Decide) && m.is_to(shard(1));
    b.settle_but(told);
    assert!(b.answer::<Entry>(made).unwrap().is_ok());
    let decisions = b.take(told);
    assert_eq!(decisions.len(), 1);
    b.rmdir_but(&late, told).unwrap();
    b.put(decisions);
    b.pass(Duration::from_millis(200));
    let call = create(&mut b, shard(1), &format!("{late}/{file}"));
    b.settle();
    assert_eq!(errno(b.answer::<Entry>(call).unwrap()), Errno::ENOENT);
    b.check();
}

/// A change of directories that waited with nothing locked for longer than its client is not made: who
/// asked for it has heard that it failed, and has gone on.
#[test]
fn a_rename_that_waits_for_longer_than_its_client_is_not_made() {
    let (mut b, dir) = with_dir(2);
    b.mkdir("a").unwrap();
    b.mkdir("c").unwrap();
    // This one has the turn, and waits for a shard.
    let request = b.rename_req(&dir, "moved");
    let first = b.ask(Op::Rename, COORDINATOR, &request);
    let held = |m: &Message| m.asks(Op::Invalidate) && m.is_to(shard(0));
    b.settle_but(held);
    let mut request = b.rename_req("a", "b");
    request.ctx.wait_ms = 300;
    let given_up = b.ask(Op::Rename, COORDINATOR, &request);
    let mut request = b.rename_req("c", "d");
    request.ctx.wait_ms = 300;
    b.ask(Op::Rename, COORDINATOR, &request);
    for _ in 0..20 {
        b.settle_but(held);
        b.advance(Duration::from_millis(10));
    }
    // The client of the third still waits, and says so.
    request.ctx.attempt += 1;
    request.ctx.wait_ms = 5_000;
    let asked_again = b.ask(Op::Rename, COORDINATOR, &request);
    for _ in 0..20 {
        b.settle_but(held);
        b.advance(Duration::from_millis(10));
    }
    b.pass(Duration::from_secs(1));
    assert!(b.answer::<RenameReply>(first).unwrap().is_ok());
    let e = b.answer::<RenameReply>(given_up).unwrap().unwrap_err();
    assert!(e.is(Class::Retry), "{e:?}");
    b.lookup(&at("a")).unwrap();
    assert!(b.answer::<RenameReply>(asked_again).unwrap().is_ok());
    b.lookup(&at("d")).unwrap();
    b.check();
}

/// Rule 4: a parked request is told to try again at its deadline, and has changed nothing.
#[test]
fn a_parked_request_is_answered_at_its_deadline() {
    let (mut b, dir) = with_dir(2);
    let request = RemoveReq { ctx: b.ctx(), at: at(&dir) };
    b.ask(Op::Rmdir, COORDINATOR, &request);
    let held = |m: &Message| m.asks(Op::Invalidate) && m.is_to(shard(0));
    b.settle_but(held);
    let name = b.name_on(shard(1), "f");
    let mut request = b.create_req(at(&format!("{dir}/{name}")), FileKind::Regular);
    request.ctx.wait_ms = 300;
    let call = b.ask(Op::Create, shard(1), &request);
    for _ in 0..40 {
        b.settle_but(held);
        b.advance(Duration::from_millis(10));
    }
    b.settle_but(held);
    let e = b.answer::<Entry>(call).unwrap().unwrap_err();
    assert!(e.is(Class::Retry), "{e:?}");
    b.pass(Duration::from_secs(6));
    b.check();
}

/// Plays a change of a directory, lets `victim` crash before message number `step` is delivered,
/// and sends it again until it is answered. False: it needs no message of that number.
fn crash_at<R: prost::Message + Default>(
    b: &mut Testbed,
    op: Op,
    request: &impl prost::Message,
    victim: NodeId,
    step: usize,
) -> bool {
    let call = b.ask(op, COORDINATOR, request);
    for _ in 0..step {
        if !b.deliver(|_| true) {
            return false;
        }
    }
    b.restart(victim);
    b.pass(Duration::from_secs(2));
    if b.answer::<R>(call).is_none_or(|answer| answer.is_err_and(|e| e.is(Class::Retry))) {
        b.run::<R>(op, COORDINATOR, request).unwrap_or_else(|e| panic!("step {step}: {e}"));
    }
    b.pass(Duration::from_secs(8));
    true
}

/// Rules 5 and 7: the coordinator, the owner or another shard dies at each step.
#[test]
fn an_rmdir_survives_any_crash() {
    for victim in [COORDINATOR, shard(0), shard(1)] {
        for step in 0.. {
            let (mut b, dir) = with_dir(2);
            let request = RemoveReq { ctx: b.ctx(), at: at(&dir) };
            if !crash_at::<Empty>(&mut b, Op::Rmdir, &request, victim, step) {
                assert!(step > 5, "crashes at {step} places only");
                break;
            }
            assert_eq!(errno(b.lookup(&at(&dir))), Errno::ENOENT);
            for n in 0..2 {
                let file = format!("{dir}/{}", b.name_on(shard(n), "f"));
                assert_eq!(errno(b.create(&file)), Errno::ENOENT, "{victim} at {step}");
            }
            assert_eq!(b.check().entries.len(), 1);
        }
    }
}

/// The same for chmod and chown.
#[test]
fn a_chmod_of_a_directory_survives_any_crash() {
    for victim in [COORDINATOR, shard(0), shard(1)] {
        for step in 0.. {
            let (mut b, dir) = with_dir(2);
            let (mode, uid) = (Some(0o700), Some(5));
            let request =
                SetattrReq { ctx: b.ctx(), at: at(&dir), mode, uid, ..Default::default() };
            if !crash_at::<Entry>(&mut b, Op::Setattr, &request, victim, step) {
                assert!(step > 5, "crashes at {step} places only");
                break;
            }
            let attr = b.stat(&at(&dir)).unwrap().attr;
            assert_eq!((attr.mode & 0o7777, attr.uid), (0o700, 5));
            // No replica lets others in any more.
            for n in 0..2 {
                let file = format!("{dir}/{}", b.name_on(shard(n), "f"));
                let mut request = b.create_req(at(&file), FileKind::Regular);
                request.ctx.cred =
                    saker_types::Cred { uid: 6, gid: 6, groups_known: true, ..Default::default() };
                let made = b.run::<Entry>(Op::Create, shard(n), &request);
                assert_eq!(errno(made), Errno::EACCES, "{victim} at {step}");
            }
            b.check();
        }
    }
}

/// Rule 6: a row that is prepared counts as present, and as nothing certain.
#[test]
fn a_directory_with_a_prepared_entry_is_not_removed() {
    for commits in [true, false] {
        let (mut b, dir) = with_dir(3);
        let (from, to) = (b.name_on(shard(2), "f"), b.name_on(shard(1), "g"));
        b.create(&from).unwrap();
        let request = b.rename_req(&from, &format!("{dir}/{to}"));
        let rename = b.ask(Op::Rename, shard(2), &request);
        // Prepared at shard 1; its vote is on the way.
        b.settle_but(|m| m.answers(Op::Prepare));
        let votes = b.take(|m| m.answers(Op::Prepare));
        let request = RemoveReq { ctx: b.ctx(), at: at(&dir) };
        let rmdir = b.ask(Op::Rmdir, COORDINATOR, &request);
        b.settle();
        let e = b.answer::<Empty>(rmdir).unwrap().unwrap_err();
        assert!(e.is(Class::Retry), "undecided: {e:?}");
        if commits {
            b.put(votes);
        }
        b.pass(Duration::from_secs(8));
        match commits {
            true => {
                b.answer::<RenameReply>(rename).unwrap().unwrap();
                assert_eq!(errno(b.rmdir(&dir)), Errno::ENOTEMPTY);
            }
            false => _ = b.rmdir(&dir).unwrap(),
        }
        b.check();
    }
}

/// Rule 7: without the coordinator only those wait who come to what it has prepared.
#[test]
fn a_coordinator_that_is_down_stops_nobody_else() {
    let (mut b, dir) = with_dir(2);
    b.mkdir("other").unwrap();
    let request = RemoveReq { ctx: b.ctx(), at: at(&dir) };
    b.ask(Op::Rmdir, COORDINATOR, &request);
    b.settle_but(|m| m.answers(Op::Invalidate));
    b.crash(COORDINATOR);
    let file = b.name_on(shard(1), "f");
    let waits = create(&mut b, shard(1), &format!("{dir}/{file}"));
    b.pass(Duration::from_secs(2));
    assert!(b.answer::<Entry>(waits).is_none());
    b.create(&format!("other/{file}")).unwrap();
    b.rename(&format!("other/{file}"), &b.name_on(shard(0), "g")).unwrap();
    b.mkdir("third").unwrap();
    b.start(COORDINATOR);
    b.pass(Duration::from_secs(3));
    b.answer::<Entry>(waits).unwrap().unwrap();
    b.check();
}

/// Rule 8: what is no directory is not in any replica; nobody announces its end.
#[test]
fn a_symlink_that_becomes_a_directory_is_one_everywhere() {
    let mut b = Testbed::new(3);
    let link = b.name_on(shard(0), "link");
    for n in 0..3 {
        let path = format!("{link}/{}", b.name_on(shard(n), "f"));
        assert_eq!(errno(b.lookup(&at(&path))), Errno::ENOENT);
    }
    b.symlink("somewhere", &link).unwrap();
    for n in 0..3 {
        let path = format!("{link}/{}", b.name_on(shard(n), "f"));
        assert!(b.lookup(&at(&path)).unwrap_err().is(Class::Symlink));
    }
    b.unlink(&link).unwrap();
    b.mkdir(&link).unwrap();
    for n in 0..3 {
        let path = format!("{link}/{}", b.name_on(shard(n), "f"));
        b.create(&path).unwrap();
    }
    b.check();
}

/// Rules 10 and 11: two files change places head on; one gives way, nobody waits.
#[test]
fn two_renames_head_on_do_not_wait_for_each_other() {
    let mut b = Testbed::new(2);
    let (x, y) = (b.name_on(shard(0), "x"), b.name_on(shard(1), "y"));
    b.create(&x).unwrap();
    b.create(&y).unwrap();
    let (there, back) = (b.rename_req(&x, &y), b.rename_req(&y, &x));
    let first = b.ask(Op::Rename, shard(0), &there);
    let second = b.ask(Op::Rename, shard(1), &back);
    // Both have their own entry locked when the other's prepare comes. No time passes.
    b.settle();
    let answers = [first, second].map(|call| b.answer::<RenameReply>(call).unwrap());
    assert!(answers.iter().any(|a| a.as_ref().is_err_and(|e| e.is(Class::Retry))), "{answers:?}");
    b.pass(Duration::from_secs(8));
    assert_eq!(b.check().prepared, 0);
}

/// Rule 14: after the answer to a rename, whoever looks at its target waits for the decision.
#[test]
fn who_looks_after_the_answer_sees_the_file() {
    let (mut b, dir) = with_dir(2);
    let (from, to) = (b.name_on(shard(0), "f"), b.name_on(shard(1), "g"));
    b.create(&from).unwrap();
    let target = format!("{dir}/{to}");
    let request = b.rename_req(&from, &target);
    let rename = b.ask(Op::Rename, shard(0), &request);
    let held = |m: &Message| m.asks(Op::Decide);
    b.settle_but(held);
    b.answer::<RenameReply>(rename).unwrap().unwrap();
    let ctx = Ctx { wait_ms: 5_000, ..Ctx::default() };
    let loc = b.lookup_but(&at(&dir), held).loc;
    let look =
        b.ask(Op::Lookup, shard(1), &EntryReq { ctx: ctx.clone(), at: at(&target), full: false });
    let request = ReaddirReq { ctx, at: At::handle(loc.clone()), limit: 9, ..Default::default() };
    let list = b.ask(Op::Readdir, shard(1), &request);
    let request = EntryReq { at: At::handle(loc), full: true, ..EntryReq::default() };
    let stat = b.ask(Op::Getattr, shard(0), &request);
    b.settle_but(held);
    assert!(b.answer::<Entry>(look).is_none());
    assert!(b.answer::<ReaddirReply>(list).is_none());
    assert!(b.answer::<Entry>(stat).is_none());
    b.settle();
    b.answer::<Entry>(look).unwrap().unwrap();
    assert_eq!(b.answer::<ReaddirReply>(list).unwrap().unwrap().entries.len(), 1);
    b.answer::<Entry>(stat).unwrap().unwrap();
    b.check();
}

/// Files of shard 0 that are to be moved into a directory, to names of shard 1.
fn moves_into(b: &mut Testbed, dir: &str, count: usize) -> Vec<RenameReq> {
    let places = (0..count).map(|n| {
        let (from, to) =
            (b.name_on(shard(0), &format!("f{n}-")), b.name_on(shard(1), &format!("g{n}-")));
        (from, format!("{dir}/{to}"))
    });
    let places: Vec<_> = places.collect();
    let mut requests = Vec::new();
    for (from, to) in &places {
        b.create(from).unwrap();
        requests.push(b.rename_req(from, to));
    }
    requests
}

/// Rules 14 and 20: files that come all the time keep nobody from listing a directory, or from its
/// attributes.
#[test]
fn a_directory_is_seen_while_files_move_into_it_without_a_pause() {
    for lists in [true, false] {
        let (mut b, dir) = with_dir(2);
        let found = b.lookup(&at(&dir)).unwrap();
        let moves = moves_into(&mut b, &dir, 2);
        let held = |m: &Message| m.asks(Op::Decide);
        b.ask(Op::Rename, shard(0), &moves[0]);
        b.settle_but(held);
        let ctx = Ctx { wait_ms: 5_000, ..Ctx::default() };
        let list = ReaddirReq { ctx, at: At::handle(found.loc), limit: 9, ..Default::default() };
        let freeze = CollectReq { dir: found.attr.id, freeze_ms: 1_000 };
        let look = match lists {
            true => b.ask(Op::Readdir, shard(1), &list),
            false => b.ask(Op::Collect, shard(1), &freeze),
        };
        b.settle_but(held);
        let first = b.take(held);
        // The next one is under way before the first has ended.
        b.ask(Op::Rename, shard(0), &moves[1]);
        b.settle_but(held);
        let second = b.take(held);
        b.put(first);
        b.settle();
        let seen = match lists {
            true => b.answer::<ReaddirReply>(look).map(|reply| reply.unwrap().entries.len() as u64),
            false => b.answer::<CollectReply>(look).map(|reply| reply.unwrap().totals.entries),
        };
        assert_eq!(seen, Some(1), "lists: {lists}");
        b.put(second);
        b.pass(Duration::from_secs(8));
        b.check();
    }
}

/// Rule 13: participants that hear nothing ask, and hear what the driver's journal says.
#[test]
fn a_decision_reaches_those_whom_nobody_told() {
    for driver_crashes in [false, true] {
        let mut b = Testbed::new(2);
        let (from, to) = (b.name_on(shard(0), "f"), b.name_on(shard(1), "g"));
        b.create(&from).unwrap();
        let request = b.rename_req(&from, &to);
        let rename = b.ask(Op::Rename, shard(0), &request);
        b.settle_but(|m| m.asks(Op::Decide));
        b.answer::<RenameReply>(rename).unwrap().unwrap();
        if driver_crashes {
            b.restart(shard(0));
        }
        for _ in 0..300 {
            b.advance(Duration::from_millis(10));
            b.take(|m| m.asks(Op::Decide));
            b.settle_but(|m| m.asks(Op::Decide));
        }
        let call = b.ask(Op::Statfs, shard(1), &Empty {});
        b.settle_but(|m| m.asks(Op::Decide));
        assert_eq!(b.answer::<ShardStats>(call).unwrap().unwrap().prepared, 0);
        b.pass(Duration::from_secs(8));
        b.lookup(&at(&to)).unwrap();
        b.check();
    }
}

/// Rule 15: below the watermark nothing runs any more, and a session that has ended is refused.
#[test]
fn what_was_acknowledged_does_not_run_again() {
    let mut b = Testbed::new(1);
    let made = b.create_req(at("f"), FileKind::Regular);
    b.run::<Entry>(Op::Create, shard(0), &made).unwrap();
    let mut remove = RemoveReq { ctx: b.ctx(), at: at("f") };
    remove.ctx.ack = remove.ctx.seq;
    b.run::<Empty>(Op::Unlink, shard(0), &remove).unwrap();
    b.restart(shard(0));
    let e = b.run::<Entry>(Op::Create, shard(0), &made).unwrap_err();
    assert!(e.is(Class::Fatal), "{e:?}");
    let session = made.ctx.session;
    b.run::<Empty>(Op::CloseSession, shard(0), &SessionReq { session }).unwrap();
    let request = b.create_req(at("g"), FileKind::Regular);
    let e = b.run::<Entry>(Op::Create, shard(0), &request).unwrap_err();
    assert!(e.is(Class::SessionLost), "{e:?}");
    assert_eq!(b.check().entries.len(), 1);
}

/// Rule 13: a commit that cannot read a row changes nothing, and is told again.
#[test]
fn a_commit_that_cannot_read_changes_nothing() {
    for crashes in [false, true] {
        let mut b = Testbed::new(2);
        b.mkdir("a").unwrap();
        let other = b.mkdir("b").unwrap().attr.id;
        // Both names of the directory are shard 0's: two parts of one transaction.
        let (from, to) = (b.name_on(shard(0), "from"), b.name_on(shard(0), "to"));
        let (from, to) = (format!("a/{from}"), format!("b/{to}"));
        b.mkdir(&from).unwrap();
        let request = b.rename_req(&from, &to);
        let rename = b.ask(Op::Rename, COORDINATOR, &request);
        b.settle_but(|m| m.asks(Op::Decide));
        b.answer::<RenameReply>(rename).unwrap().unwrap();
        b.set_unreadable(Some(id_key(table::TOTALS, other)));
        b.settle();
        if crashes {
            b.restart(shard(0));
        }
        b.set_unreadable(None);
        b.pass(Duration::from_secs(12));
        b.lookup(&at(&to)).unwrap();
        assert_eq!(errno(b.lookup(&at(&from))), Errno::ENOENT);
        b.check();
    }
}

/// A rename on one shard that cannot read a row changes nothing.
#[test]
fn a_rename_that_cannot_read_changes_nothing() {
    let mut b = Testbed::new(1);
    b.mkdir("a").unwrap();
    let other = b.mkdir("b").unwrap().attr.id;
    b.create("a/f").unwrap();
    b.set_unreadable(Some(id_key(table::TOTALS, other)));
    assert_eq!(errno(b.rename("a/f", "b/f")), Errno::EIO);
    assert_eq!(errno(b.create("b/g")), Errno::EIO);
    b.set_unreadable(None);
    b.lookup(&at("a/f")).unwrap();
    assert_eq!(b.check().entries.len(), 4);
}

/// With a lease on all names on the way.
fn leased(path: &str) -> At {
    let at = at(path);
    let keep_ms = vec![NAME_KEEP_MAX.as_millis() as u32; at.path.len() - 1];
    At { keep_ms, ..at }
}

/// Looks up what may be there; the names on the way that are lent.
fn lent(b: &mut Testbed, at: &At) -> Vec<KeptDir> {
    if let Err(error) = b.lookup(at) {
        assert_eq!(error.errno(), Errno::ENOENT);
    }
    b.lent(at)
}

/// Gives answers to a request for so long, and says after how long there was one.
fn answered_after<R: prost::Message + Default>(b: &mut Testbed, call: u64) -> Duration {
    const STEP: Duration = Duration::from_millis(5);
    for steps in 0..400 {
        b.settle();
        if let Some(answer) = b.answer::<R>(call) {
            answer.unwrap();
            return STEP * steps;
        }
        b.advance(STEP);
    }
    panic!("no answer");
}

/// Directories `a/b`, and a file in it; if `kept`, both names are kept.
fn with_names(kept: bool) -> (Testbed, &'static str) {
    let (mut b, file) = (Testbed::new(3), "a/b/f");
    b.mkdir("a").unwrap();
    b.mkdir("a/b").unwrap();
    b.create(file).unwrap();
    if kept {
        assert_eq!(lent(&mut b, &leased(file)).len(), 2);
    }
    (b, file)
}

/// A mount that keeps names (decision 20): they lead to what they led to until it stops.
#[test]
fn a_directory_stays_where_it_is_while_a_mount_keeps_its_name() {
    for (from, to) in [("a", "c"), ("a/b", "c")] {
        let (mut b, _) = with_names(true);
        b.advance(NAME_LEASE_MAX / 4);
        let request = b.rename_req(from, to);
        let call = b.ask(Op::Rename, COORDINATOR, &request);
        b.settle();
        // It is there for all until the change, and nobody can keep it any more.
        let waits = answered_after::<RenameReply>(&mut b, call);
        assert!(
            waits + NAME_LEASE_MAX / 4 >= NAME_LEASE_MAX && waits < NAME_LEASE_MAX,
            "{from}: {waits:?}"
        );
        b.check();
    }
    // What nobody keeps, or nobody keeps any more.
    let (mut b, _) = with_names(false);
    let request = b.rename_req("a", "c");
    let call = b.ask(Op::Rename, COORDINATOR, &request);
    assert_eq!(answered_after::<RenameReply>(&mut b, call), Duration::ZERO);
    assert_eq!(lent(&mut b, &leased("c/b/f")).len(), 2);
    b.advance(NAME_LEASE_MAX);
    let request = b.rename_req("c/b", "a");
    let call = b.ask(Op::Rename, COORDINATOR, &request);
    assert_eq!(answered_after::<RenameReply>(&mut b, call), Duration::ZERO);
    b.check();
}

/// Each name for as long as its mount asked for.
#[test]
fn a_change_waits_for_its_own_names_only() {
    let short = NAME_KEEP + NAME_KEEP_MARGIN;
    for (from, longest) in [("a", NAME_LEASE_MAX), ("a/b", short)] {
        let (mut b, file) = with_names(false);
        let keep_ms = [NAME_KEEP_MAX, NAME_KEEP].map(|keep| keep.as_millis() as u32).to_vec();
        assert_eq!(lent(&mut b, &At { keep_ms, ..at(file) }).len(), 2);
        let request = b.rename_req(from, "c");
        let call = b.ask(Op::Rename, COORDINATOR, &request);
        let waits = answered_after::<RenameReply>(&mut b, call);
        let least = longest - Duration::from_millis(5);
        assert!((least..=longest).contains(&waits), "{from}: {waits:?}");
    }
}

/// A lookup of what is not there keeps the names on the way to it, too, and so does a change.
#[test]
fn each_answer_lends_the_names_on_the_way() {
    let (mut b, _) = with_names(false);
    assert_eq!(lent(&mut b, &leased("a/b/none")).len(), 2);
    assert_eq!(lent(&mut b, &at("a/b/none")), []);
    assert_eq!(lent(&mut b, &leased("a/none/f")).len(), 1, "as far as it came");
    for path in ["a/b/g", "a/b/f"] {
        let request = b.create_req(leased(path), FileKind::Regular);
        let made = b.run::<Entry>(Op::Create, b.owner_of(&request.at), &request);
        assert_eq!((made.is_ok(), b.lent(&request.at).len()), (path == "a/b/g", 2));
        // The answer to a retry is the first one's, and lends nothing.
        let again = b.run::<Entry>(Op::Create, b.owner_of(&request.at), &request);
        assert_eq!((again, b.lent(&request.at)), (made, vec![]));
    }
    let request = RemoveReq { ctx: b.ctx(), at: leased("a/b/g") };
    b.run::<Removed>(Op::Unlink, b.owner("g"), &request).unwrap();
    assert_eq!(b.lent(&request.at).len(), 2);
}

/// Also where another shard than the owner was asked.
#[test]
fn an_answer_that_is_passed_on_lends_the_names_on_the_way() {
    let (mut b, file) = with_names(false);
    let request = EntryReq { at: leased(file), ..EntryReq::default() };
    let other = b.shards().into_iter().find(|shard| *shard != b.owner("f")).unwrap();
    b.run::<Entry>(Op::Lookup, other, &request).unwrap();
    assert_eq!(b.lent(&request.at).len(), 2);
}

/// Whoever asks the coordinator is lent nothing, and so nobody has to wait.
#[test]
fn a_prepare_lends_no_names() {
    let (mut b, _) = with_names(false);
    b.mkdir("a/b/d").unwrap();
    let request = RemoveReq { ctx: b.ctx(), at: leased("a/b/d") };
    b.run::<Removed>(Op::Rmdir, COORDINATOR, &request).unwrap();
    assert_eq!(b.lent(&request.at), []);
    let request = b.rename_req("a", "c");
    let call = b.ask(Op::Rename, COORDINATOR, &request);
    assert_eq!(answered_after::<RenameReply>(&mut b, call), Duration::ZERO);
}

/// A client that moves directories that others have just read in waits for long once.
#[test]
fn after_a_long_wait_leases_are_short_for_a_while() {
    let short = NAME_KEEP + NAME_KEEP_MARGIN;
    let mut b = Testbed::new(3);
    let names: Vec<String> = (0..4).map(|i| format!("d{i}")).collect();
    for name in &names {
        b.mkdir(name).unwrap();
        b.create(&format!("{name}/f")).unwrap();
    }
    let mut waits = Vec::new();
    for name in &names {
        if waits.len() == 3 {
            b.advance(NAME_CONTENDED);
        }
        let file = format!("{name}/f");
        assert_eq!(lent(&mut b, &leased(&file)).len(), 1);
        let request = b.rename_req(name, &format!("{name}-done"));
        let call = b.ask(Op::Rename, COORDINATOR, &request);
        waits.push(answered_after::<RenameReply>(&mut b, call));
    }
    assert!(waits[0] > short && waits[3] > short, "{waits:?}");
    assert!(waits[1] <= short && waits[2] <= short && waits[1] > NAME_KEEP, "{waits:?}");
    b.check();
}

/// By names that lead elsewhere than what the client saw of the way: here through what moves, which is
/// locked.
#[test]
fn a_rename_whose_path_is_another_than_its_chain_is_refused_at_once() {
    let mut b = Testbed::new(3);
    b.mkdir("a").unwrap();
    b.mkdir("d").unwrap();
    let name = (0..).map(|i| format!("x{i}")).find(|name| b.owner(name) != b.owner("a")).unwrap();
    for flags in [rename_flags::EXCHANGE, 0] {
        let RenameReq { to_chain, .. } = b.rename_req("a", &format!("d/{name}"));
        let request = b.rename_req("a", &format!("a/{name}"));
        let call = b.ask(Op::Rename, COORDINATOR, &RenameReq { to_chain, flags, ..request });
        b.settle();
        let answer = b.answer::<RenameReply>(call).expect("it waits for nothing");
        assert_eq!(errno(answer), Errno::ESTALE);
    }
    b.check();
}

/// A name that is exchanged, and one that is replaced, was kept, too.
#[test]
fn a_kept_name_is_neither_exchanged_nor_replaced() {
    for flags in [rename_flags::EXCHANGE, 0] {
        let (mut b, _) = with_names(false);
        b.mkdir("c").unwrap();
        b.mkdir("a/b/d").unwrap();
        b.create("a/b/d/g").unwrap();
        assert_eq!(lent(&mut b, &leased("a/b/d/g")).len(), 3);
        b.unlink("a/b/d/g").unwrap();
        let request = RenameReq { flags, ..b.rename_req("c", "a/b/d") };
        let call = b.ask(Op::Rename, COORDINATOR, &request);
        assert!(
            answered_after::<RenameReply>(&mut b, call)
                >= NAME_LEASE_MAX - Duration::from_millis(5)
        );
        b.check();
    }
}

/// rmdir waits, too, but not to say that there is something in the directory.
#[test]
fn a_directory_whose_name_is_kept_is_removed_later() {
    let (mut b, file) = with_names(true);
    let remove = |b: &mut Testbed| {
        let request = RemoveReq { ctx: b.ctx(), at: at("a/b") };
        b.ask(Op::Rmdir, COORDINATOR, &request)
    };
    let call = remove(&mut b);
    b.settle();
    assert_eq!(errno(b.answer::<Removed>(call).unwrap()), Errno::ENOTEMPTY);
    b.unlink(file).unwrap();
    let call = remove(&mut b);
    assert!(answered_after::<Removed>(&mut b, call) > Duration::ZERO);
    b.check();
}

/// A kept name is known to all: so a directory that hides what is below it waits.
#[test]
fn a_directory_is_closed_when_nobody_keeps_names_below_it() {
    for (path, mode, waits, kept) in [
        ("a", 0o775, false, true),
        ("a", 0o750, true, false),
        // Its own name is for all to know.
        ("a/b", 0o700, true, true),
        ("a/b", 0o777, false, true),
    ] {
        let (mut b, _) = with_names(true);
        let ctx = b.ctx();
        let request = SetattrReq { ctx, at: at(path), mode: Some(mode), ..SetattrReq::default() };
        let call = b.ask(Op::Setattr, COORDINATOR, &request);
        assert_eq!(
            answered_after::<Entry>(&mut b, call) > Duration::ZERO,
            waits,
            "{path} {mode:o}"
        );
        let now = lent(&mut b, &leased("a/b/f"));
        assert_eq!(!now.is_empty(), kept, "{path} {mode:o}");
    }
    // The root has no name; who may search it decides all the same.
    let (mut b, _) = with_names(true);
    let (ctx, root) = (b.ctx(), at(""));
    let request = SetattrReq { ctx, at: root, mode: Some(0o700), ..SetattrReq::default() };
    let call = b.ask(Op::Setattr, COORDINATOR, &request);
    assert!(answered_after::<Entry>(&mut b, call) > Duration::ZERO);
}

/// What a shard gave before it died counts, and a coordinator that asks again hears it again.
#[test]
fn a_lease_outlives_shards_and_lost_answers() {
    for shard_no in 0..3 {
        let (mut b, _) = with_names(true);
        b.restart(shard(shard_no));
        let request = b.rename_req("a", "c");
        let call = b.ask(Op::Rename, COORDINATOR, &request);
        assert!(
            answered_after::<RenameReply>(&mut b, call)
                >= NAME_LEASE_MAX - Duration::from_millis(5)
        );
        b.check();
    }
    let (mut b, _) = with_names(true);
    let request = b.rename_req("a", "c");
    let call = b.ask(Op::Rename, COORDINATOR, &request);
    b.settle_but(|m| m.answers(Op::Invalidate));
    assert_eq!(b.take(|m| m.answers(Op::Invalidate)).len(), 3);
    // The calls time out, or their connections break.
    let asked_again = |b: &Testbed| b.wire().iter().any(|m| m.asks(Op::Invalidate));
    let mut passed = Duration::ZERO;
    while !asked_again(&b) {
        b.advance(Duration::from_millis(10));
        passed += Duration::from_millis(10);
        assert!(passed < Duration::from_secs(20), "it does not ask again");
    }
    let waits = answered_after::<RenameReply>(&mut b, call);
    assert!(
        waits + passed >= NAME_LEASE_MAX - Duration::from_millis(10),
        "{passed:?} and {waits:?}"
    );
    b.check();
}

/// Whoever walks there while a change waits goes on, and keeps no name that is about to change; nor does
/// the change wait for ever.
#[test]
fn no_lease_is_given_on_a_name_that_is_about_to_change() {
    let (mut b, _) = with_names(true);
    let request = b.rename_req("a/b", "c");
    let rename = b.ask(Op::Rename, COORDINATOR, &request);
    b.settle();
    let saker_types::Attr { id, mode, uid, gid, .. } = b.lookup(&at("a")).unwrap().attr;
    // The other has to wait for long.
    let keep_ms = NAME_KEEP.as_millis() as u32;
    let a = KeptDir { id, mode, uid, gid, keep_ms, policy: 0 };
    let (step, mut waits) = (Duration::from_millis(20), Duration::ZERO);
    let answer = loop {
        assert!(waits <= NAME_LEASE_MAX + step, "it waits for ever");
        assert_eq!(lent(&mut b, &leased("a/b/f")), [a]);
        b.advance(step);
        waits += step;
        b.settle();
        if let Some(answer) = b.answer::<RenameReply>(rename) {
            break answer;
        }
    };
    answer.unwrap();
    assert_eq!(errno(b.lookup(&at("a/b/f"))), Errno::ENOENT);
    // Another directory may change meanwhile, although renames of directories take turns.
    let (mut b, _) = with_names(true);
    b.mkdir("d").unwrap();
    let request = b.rename_req("a/b", "c");
    let rename = b.ask(Op::Rename, COORDINATOR, &request);
    b.settle();
    let request = b.rename_req("d", "e");
    let other = b.ask(Op::Rename, COORDINATOR, &request);
    assert_eq!(answered_after::<RenameReply>(&mut b, other), Duration::ZERO);
    assert!(answered_after::<RenameReply>(&mut b, rename) > Duration::ZERO);
    b.check();
}
