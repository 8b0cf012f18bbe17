//! Interleavings that break the naive form of the namespace protocol (docs/protocol.md), each
//! played by hand on the testbed.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use saker_sim::testbed::{Testbed, at, errno, shard, with_dir};
use saker_types::wire::*;
use saker_types::{Class, Errno, FileKind, NodeId};

const COORDINATOR: NodeId = NodeId::Coordinator;

#[test]
fn operations_keep_the_tree_whole() {
    let mut b = Testbed::new(3);
    b.mkdir("a").unwrap();
    b.mkdir("a/b").unwrap();
    for i in 0..12 {
        b.create(&format!("a/b/f{i}")).unwrap();
    }
    for i in 0..12 {
        b.rename(&format!("a/b/f{i}"), &format!("a/g{i}")).unwrap();
    }
    for i in 0..6 {
        b.link(&format!("a/g{i}"), &format!("a/b/l{i}")).unwrap();
        b.rename(&format!("a/g{}", i + 6), &format!("a/b/l{i}")).unwrap();
    }
    b.rename("a/b", "c").unwrap();
    assert_eq!(errno(b.rmdir("c")), Errno::ENOTEMPTY);
    b.symlink("c", "s").unwrap();
    for i in 0..6 {
        b.unlink(&format!("c/l{i}")).unwrap();
    }
    b.rmdir("c").unwrap();
    let tree = b.check();
    assert_eq!(tree.entries.len(), 3 + 6, "root, a, s, six files");
}

#[test]
fn a_create_that_came_before_the_invalidation_keeps_the_directory() {
    let (mut b, dir) = with_dir(3);
    let file = format!("{dir}/{}", b.name_on(shard(1), "f"));
    let request = RemoveReq { ctx: b.ctx(), at: at(&dir) };
    let rmdir = b.ask(Op::Rmdir, COORDINATOR, &request);
    // Prepared at the owner; shard 1 has not heard of it.
    b.settle_but(|m| m.asks(Op::Invalidate) && m.is_to(shard(1)));
    let request = b.create_req(at(&file), FileKind::Regular);
    let create = b.ask(Op::Create, shard(1), &request);
    b.settle_but(|m| m.asks(Op::Invalidate));
    b.answer::<Entry>(create).unwrap().unwrap();
    b.settle();
    assert_eq!(errno(b.answer::<Empty>(rmdir).unwrap()), Errno::ENOTEMPTY);
    b.lookup(&at(&file)).unwrap();
    b.check();
}

#[test]
fn a_create_that_comes_after_the_invalidation_finds_nothing() {
    let (mut b, dir) = with_dir(3);
    let file = format!("{dir}/{}", b.name_on(shard(1), "f"));
    let request = RemoveReq { ctx: b.ctx(), at: at(&dir) };
    let rmdir = b.ask(Op::Rmdir, COORDINATOR, &request);
    // Shard 1 has acknowledged, another has not heard yet.
    b.settle_but(|m| m.asks(Op::Invalidate) && m.is_to(shard(2)));
    let request = b.create_req(at(&file), FileKind::Regular);
    let create = b.ask(Op::Create, shard(1), &request);
    b.settle_but(|m| m.asks(Op::Invalidate));
    assert!(b.answer::<Entry>(create).is_none(), "it waits for the outcome");
    b.settle();
    b.answer::<Empty>(rmdir).unwrap().unwrap();
    b.pass(Duration::from_millis(100));
    assert_eq!(errno(b.answer::<Entry>(create).unwrap()), Errno::ENOENT);
    b.check();
}

#[test]
fn a_create_by_the_old_path_meets_the_renamed_directory_or_nothing() {
    for shard_told_late in [1, 2] {
        let (mut b, dir) = with_dir(3);
        let file = b.name_on(shard(1), "f");
        let request = b.rename_req(&dir, "elsewhere");
        let rename = b.ask(Op::Rename, COORDINATOR, &request);
        let late = |m: &saker_sim::testbed::Message| {
            m.asks(Op::Invalidate) && m.is_to(shard(shard_told_late))
        };
        b.settle_but(late);
        let request = b.create_req(at(&format!("{dir}/{file}")), FileKind::Regular);
        let create = b.ask(Op::Create, shard(1), &request);
        b.settle_but(late);
        let early = b.answer::<Entry>(create);
        assert_eq!(early.is_some(), shard_told_late == 1);
        b.settle();
        b.answer::<RenameReply>(rename).unwrap().unwrap();
        b.pass(Duration::from_millis(100));
        match early {
            Some(created) => {
                created.unwrap();
                b.lookup(&at(&format!("elsewhere/{file}"))).unwrap();
            }
            None => assert_eq!(errno(b.answer::<Entry>(create).unwrap()), Errno::ENOENT),
        }
        b.check();
    }
}

#[test]
fn a_late_answer_to_a_fetch_is_discarded() {
    let mut b = Testbed::new(3);
    let dir = b.name_on(shard(0), "dir");
    b.mkdir(&dir).unwrap();
    let file = format!("{dir}/{}", b.name_on(shard(1), "f"));
    let request = b.create_req(at(&file), FileKind::Regular);
    let create = b.ask(Op::Create, shard(1), &request);
    b.settle_but(|m| m.answers(Op::Fetch));
    b.rmdir_but(&dir, |m| m.answers(Op::Fetch)).unwrap();
    b.pass(Duration::from_millis(100));
    assert_eq!(errno(b.answer::<Entry>(create).unwrap()), Errno::ENOENT);
    b.check();
}

#[test]
fn what_a_fetch_said_is_not_used_after_an_invalidation() {
    let mut b = Testbed::new(3);
    let dir = b.name_on(shard(0), "dir");
    let made = b.mkdir(&dir).unwrap();
    let name = b.name_on(shard(1), "f");
    // The directory is frozen on shard 1, whose replica does not know it.
    let freeze = CollectReq { dir: made.attr.id, freeze_ms: 500 };
    b.run::<CollectReply>(Op::Collect, shard(1), &freeze).unwrap();
    let place = At::child(made.loc, name.as_bytes());
    let request = b.create_req(place, FileKind::Regular);
    let create = b.ask(Op::Create, shard(1), &request);
    b.settle();
    assert!(b.answer::<Entry>(create).is_none(), "it resolved the directory and waits");
    b.rmdir(&dir).unwrap();
    b.pass(Duration::from_secs(1));
    assert_eq!(errno(b.answer::<Entry>(create).unwrap()), Errno::ENOENT);
    b.check();
}

#[test]
fn a_retry_after_a_restart_gets_the_first_answer() {
    let mut b = Testbed::new(2);
    let name = b.name_on(shard(1), "d");
    let request = b.create_req(at(&name), FileKind::Directory);
    let first: Entry = b.run(Op::Mkdir, shard(1), &request).unwrap();
    b.restart(shard(1));
    let again: Entry = b.run(Op::Mkdir, shard(1), &request).unwrap();
    assert_eq!(first, again);
    let request = RemoveReq { ctx: b.ctx(), at: at(&name) };
    b.run::<Empty>(Op::Rmdir, COORDINATOR, &request).unwrap();
    b.restart(COORDINATOR);
    b.run::<Empty>(Op::Rmdir, COORDINATOR, &request).unwrap();
    b.check();
}

/// Plays a mutation of several nodes, lets `victim` crash before message number `at` is
/// delivered, and sends it again until it is answered. Returns false when it needs no message
/// of that number.
fn crash_at<R: prost::Message + Default>(
    b: &mut Testbed,
    (op, to): (Op, NodeId),
    request: &impl prost::Message,
    victim: NodeId,
    step: usize,
) -> bool {
    let call = b.ask(op, to, request);
    for _ in 0..step {
        if !b.deliver(|_| true) {
            return false;
        }
    }
    b.restart(victim);
    b.pass(Duration::from_secs(2));
    if b.answer::<R>(call).is_none_or(|answer| answer.is_err_and(|e| e.is(Class::Retry))) {
        b.run::<R>(op, to, request).unwrap_or_else(|e| panic!("step {step}: {e}"));
    }
    b.pass(Duration::from_secs(8));
    true
}

#[test]
fn a_rename_of_a_file_survives_any_crash() {
    for victim in [0, 1, 2] {
        for step in 0.. {
            let mut b = Testbed::new(3);
            let (from, to) = (b.name_on(shard(0), "from"), b.name_on(shard(1), "to"));
            b.create(&from).unwrap();
            // What is replaced is a hard link whose home is the third shard.
            let home = b.name_on(shard(2), "home");
            b.create(&home).unwrap();
            b.link(&home, &to).unwrap();
            let request = b.rename_req(&from, &to);
            let whom = (Op::Rename, shard(0));
            if !crash_at::<RenameReply>(&mut b, whom, &request, shard(victim), step) {
                break;
            }
            let tree = b.check();
            assert_eq!(tree.attributes.values().next().unwrap().attr.nlink, 1);
            assert_eq!(errno(b.lookup(&at(&from))), Errno::ENOENT);
            b.lookup(&at(&to)).unwrap();
        }
    }
}

#[test]
fn a_rename_of_a_directory_survives_any_crash() {
    for victim in [COORDINATOR, shard(0), shard(1), shard(2)] {
        for step in 0.. {
            let mut b = Testbed::new(3);
            let (from, to) = (b.name_on(shard(0), "from"), b.name_on(shard(1), "to"));
            b.mkdir(&from).unwrap();
            b.mkdir(&to).unwrap();
            b.create(&format!("{from}/f")).unwrap();
            let request = b.rename_req(&from, &to);
            let whom = (Op::Rename, COORDINATOR);
            if !crash_at::<RenameReply>(&mut b, whom, &request, victim, step) {
                break;
            }
            b.check();
            assert_eq!(errno(b.lookup(&at(&from))), Errno::ENOENT);
            b.lookup(&at(&format!("{to}/f"))).unwrap();
        }
    }
}

#[test]
fn a_link_and_its_unlink_survive_any_crash() {
    for victim in [0, 1] {
        for step in 0.. {
            let mut b = Testbed::new(2);
            let (from, to) = (b.name_on(shard(0), "from"), b.name_on(shard(1), "to"));
            b.create(&from).unwrap();
            let request = LinkReq { ctx: b.ctx(), from: at(&from), to: at(&to) };
            if !crash_at::<Entry>(&mut b, (Op::Link, shard(0)), &request, shard(victim), step) {
                break;
            }
            b.check();
            assert_eq!(b.stat(&at(&to)).unwrap().attr.nlink, 2);
        }
        for step in 0.. {
            let mut b = Testbed::new(2);
            let (from, to) = (b.name_on(shard(0), "from"), b.name_on(shard(1), "to"));
            b.create(&from).unwrap();
            b.link(&from, &to).unwrap();
            let request = RemoveReq { ctx: b.ctx(), at: at(&to) };
            if !crash_at::<Empty>(&mut b, (Op::Unlink, shard(1)), &request, shard(victim), step) {
                break;
            }
            b.check();
            assert_eq!(b.stat(&at(&from)).unwrap().attr.nlink, 1);
        }
    }
}

#[test]
fn a_directory_does_not_replace_the_one_it_is_in() {
    let mut b = Testbed::new(3);
    b.mkdir("a").unwrap();
    b.mkdir("a/b").unwrap();
    assert_eq!(errno(b.rename("a/b", "a")), Errno::ENOTEMPTY);
    b.check();
}

#[test]
fn a_file_is_no_directory_even_while_it_is_locked() {
    let mut b = Testbed::new(3);
    for n in 0..3 {
        let (file, below) = (b.name_on(shard(0), "file"), b.name_on(shard(n), "below"));
        let to = format!("{file}/{below}");
        if n == 0 {
            b.create(&file).unwrap();
        }
        let request = LinkReq { ctx: b.ctx(), from: at(&file), to: at(&to) };
        assert_eq!(errno(b.run::<Entry>(Op::Link, shard(0), &request)), Errno::ENOTDIR);
        let (ctx, from, to) = (b.ctx(), at(&file), at(&to));
        let request = RenameReq { ctx, from, to, ..RenameReq::default() };
        assert_eq!(errno(b.run::<RenameReply>(Op::Rename, shard(0), &request)), Errno::ENOTDIR);
    }
    b.check();
}

#[test]
fn noreplace_minds_another_name_of_the_same_file() {
    let mut b = Testbed::new(2);
    for n in 0..2 {
        let (from, to) = (b.name_on(shard(0), &format!("from{n}-")), b.name_on(shard(n), "to"));
        b.create(&from).unwrap();
        b.link(&from, &to).unwrap();
        for (other, flags) in [(&to, 1), (&from, 1)] {
            let request = RenameReq { flags, ..b.rename_req(&from, other) };
            assert_eq!(errno(b.run::<RenameReply>(Op::Rename, shard(0), &request)), Errno::EEXIST);
        }
        b.rename(&from, &to).unwrap();
        b.lookup(&at(&from))
            .map(|_| ())
            .or_else(|e| e.is(Class::Moved).then_some(()).ok_or(e))
            .unwrap();
    }
    b.mkdir("d").unwrap();
    let request = RenameReq { flags: 1, ..b.rename_req("d", "d") };
    assert_eq!(errno(b.run::<RenameReply>(Op::Rename, COORDINATOR, &request)), Errno::EEXIST);
    b.check();
}

#[test]
fn a_handle_from_before_the_link_survives_the_end_of_its_name() {
    for how in ["unlink", "rename here", "rename there"] {
        let mut b = Testbed::new(2);
        let (first, second) = (b.name_on(shard(0), "first"), b.name_on(shard(1), "second"));
        let handle = At::handle(b.create(&first).unwrap().loc);
        b.link(&first, &second).unwrap();
        assert_eq!(b.stat(&handle).unwrap().attr.nlink, 2);
        let other = match how {
            "rename there" => b.name_on(shard(1), "other"),
            _ => b.name_on(shard(0), "other"),
        };
        b.create(&other).unwrap();
        match how {
            "unlink" => _ = b.unlink(&first).unwrap(),
            _ => _ = b.rename(&other, &first).unwrap(),
        }
        assert_eq!(b.stat(&handle).unwrap().attr.nlink, 1, "{how}");
        b.unlink(&second).unwrap();
        assert_eq!(b.stat(&handle).unwrap().attr.nlink, 0, "{how}");
        b.check();
    }
}

#[test]
fn a_hard_linked_symlink_is_followed_by_both_names() {
    let mut b = Testbed::new(3);
    b.symlink("target", "s").unwrap();
    for n in 0..3 {
        let to = b.name_on(shard(n), "t");
        b.link("s", &to).unwrap();
        for name in ["s", &to] {
            let e = b.lookup(&at(&format!("{name}/x"))).unwrap_err();
            assert!(e.is(Class::Symlink), "{e:?}");
            assert_eq!(&e.target[..], b"target");
        }
    }
    b.check();
}

#[test]
fn the_sticky_bit_asks_who_owns_a_hard_link() {
    let mut b = Testbed::new(2);
    b.mkdir("tmp").unwrap();
    let all = SetattrReq { ctx: b.ctx(), at: at("tmp"), mode: Some(0o1777), ..Default::default() };
    b.setattr(&all).unwrap();
    let user = |uid| saker_types::Cred { uid, gid: uid, groups_known: true, ..Default::default() };
    for n in 0..2 {
        let first = format!("tmp/{}", b.name_on(shard(0), &format!("first{n}-")));
        let second = format!("tmp/{}", b.name_on(shard(n), "second"));
        let mut request = b.create_req(at(&first), FileKind::Regular);
        request.ctx.cred = user(5);
        b.run::<Entry>(Op::Create, shard(0), &request).unwrap();
        b.link(&first, &second).unwrap();
        for (uid, allowed) in [(6, false), (5, true)] {
            let mut request = RemoveReq { ctx: b.ctx(), at: at(&second) };
            request.ctx.cred = user(uid);
            let answer = b.run::<Empty>(Op::Unlink, shard(n), &request);
            match allowed {
                true => _ = answer.unwrap(),
                false => assert_eq!(errno(answer), Errno::EPERM),
            }
        }
    }
    b.check();
}

#[test]
fn a_stat_of_a_directory_that_moves_meanwhile_is_no_error() {
    let (mut b, dir) = with_dir(3);
    let ctx = Ctx { wait_ms: 5_000, ..Ctx::default() };
    let request = EntryReq { ctx, at: at(&dir), full: true };
    let stat = b.ask(Op::Getattr, shard(0), &request);
    b.settle_but(|m| m.asks(Op::Collect));
    let request = b.rename_req(&dir, "elsewhere");
    let rename = b.ask(Op::Rename, COORDINATOR, &request);
    b.settle_but(|m| m.asks(Op::Collect));
    b.answer::<RenameReply>(rename).unwrap().unwrap();
    b.settle();
    let e = b.answer::<Entry>(stat).unwrap().unwrap_err();
    assert!(e.is(Class::Retry), "{e:?}");
    b.check();
}

#[test]
fn a_freeze_is_not_shortened_by_another() {
    let mut b = Testbed::new(1);
    let id = b.mkdir("d").unwrap().attr.id;
    for freeze_ms in [1_000, 20] {
        b.run::<CollectReply>(Op::Collect, shard(0), &CollectReq { dir: id, freeze_ms }).unwrap();
    }
    let request = b.create_req(at("d/f"), FileKind::Regular);
    let create = b.ask(Op::Create, shard(0), &request);
    b.pass(Duration::from_millis(900));
    assert!(b.answer::<Entry>(create).is_none());
    b.pass(Duration::from_millis(200));
    b.answer::<Entry>(create).unwrap().unwrap();
}

#[test]
fn a_truncation_is_executed_once_whenever_its_shard_crashes() {
    for stored_before in [false, true] {
        let mut b = Testbed::new(2);
        let name = b.name_on(shard(1), "f");
        b.create(&name).unwrap();
        let request = EntryReq { ctx: b.ctx(), at: at(&name), ..EntryReq::default() };
        let spilled: Entry = b.run(Op::Spill, shard(1), &request).unwrap();
        let ctx = b.ctx();
        let request = SetattrReq { ctx, at: at(&name), size: Some(0), ..Default::default() };
        let first = b.ask(Op::Setattr, shard(1), &request);
        b.settle_but(|m| match stored_before {
            true => m.answers(Op::ChunkTruncate),
            false => m.asks(Op::ChunkTruncate),
        });
        assert_eq!(b.stored.len(), usize::from(stored_before));
        b.take(|m| m.op == Op::ChunkTruncate);
        b.restart(shard(1));
        // A retry, and another change of the file: both wait until the stores have cut.
        let retry = b.ask(Op::Setattr, shard(1), &request);
        let ctx = b.ctx();
        let longer = SetattrReq { ctx, at: at(&name), size: Some(9), ..Default::default() };
        let other = b.ask(Op::Setattr, shard(1), &longer);
        b.settle_but(|m| m.asks(Op::ChunkTruncate));
        assert!(b.answer::<Entry>(retry).is_none() && b.answer::<Entry>(other).is_none());
        b.settle();
        let answer = b.answer::<Entry>(retry).unwrap().unwrap();
        assert_eq!((answer.attr.size, answer.loc), (0, spilled.loc));
        assert!(b.answer::<Entry>(first).unwrap().unwrap_err().is(Class::Retry), "lost");
        assert_eq!(b.answer::<Entry>(other).unwrap().unwrap().attr.size, 9);
        let again: Entry = b.run(Op::Setattr, shard(1), &request).unwrap();
        assert_eq!(again.attr.size, 0, "the first answer");
        let now = b.stat(&at(&name)).unwrap().attr;
        assert_eq!((now.size, now.truncate_gen, now.chunked), (9, 1, false));
        b.check();
    }
}

#[test]
fn names_that_no_key_can_hold_are_refused() {
    let mut b = Testbed::new(1);
    let long = saker_types::Locator { name: vec![b'x'; 70_000].into(), ..Default::default() };
    let request = RemoveReq { ctx: b.ctx(), at: At::child(long.clone(), b"f") };
    assert_eq!(errno(b.run::<Empty>(Op::Unlink, shard(0), &request)), Errno::ENAMETOOLONG);
    let request = EntryReq { at: At::handle(long.clone()), ..EntryReq::default() };
    assert_eq!(errno(b.run::<Entry>(Op::Getattr, shard(0), &request)), Errno::ENAMETOOLONG);
    let (ctx, from, to) = (b.ctx(), at("f"), At::child(long, b"g"));
    let request = LinkReq { ctx, from, to };
    assert_eq!(errno(b.run::<Entry>(Op::Link, shard(0), &request)), Errno::ENAMETOOLONG);
}

#[test]
fn strangers_neither_lock_nor_hide_anything() {
    let mut b = Testbed::new(1);
    b.mkdir("d").unwrap();
    // A driver that would never tell the outcome.
    for driver in [NodeId::Store(0), NodeId::Coordinator, shard(0)] {
        let prepare = PrepareReq {
            ctx: b.ctx(),
            driver: driver.to_u32(),
            number: 7,
            at: at("d"),
            intent: Intent::RemoveDir.into(),
            ..PrepareReq::default()
        };
        assert_eq!(errno(b.run::<Vote>(Op::Prepare, shard(0), &prepare)), Errno::EPERM);
        let decide = DecideReq { driver: driver.to_u32(), number: 7, commit: true };
        assert_eq!(errno(b.run::<Empty>(Op::Decide, shard(0), &decide)), Errno::EPERM);
    }
    let invalidate = InvalidateReq::default();
    assert_eq!(
        errno(b.run::<InvalidateReply>(Op::Invalidate, shard(0), &invalidate)),
        Errno::EPERM
    );
    let fetch = FetchReq { pid: 1, name: "d".into(), ..FetchReq::default() };
    assert_eq!(errno(b.run::<Dentry>(Op::Fetch, shard(0), &fetch)), Errno::EPERM);
    for node in [shard(0), COORDINATOR] {
        let outcome = OutcomeReq { number: 7 };
        assert_eq!(errno(b.run::<OutcomeReply>(Op::Outcome, node, &outcome)), Errno::EPERM);
    }
    b.create("d/f").unwrap();
    b.check();
}

#[test]
fn a_mutation_is_not_passed_on() {
    let mut b = Testbed::new(2);
    let name = b.name_on(shard(1), "f");
    // Passed on, it would run at a shard where its client may have no session any more.
    let end = SessionReq { session: b.ctx().session };
    b.run::<Empty>(Op::CloseSession, shard(1), &end).unwrap();
    let request = b.create_req(at(&name), FileKind::Regular);
    let e = b.run::<Entry>(Op::Create, shard(0), &request).unwrap_err();
    assert!(e.is(Class::RefreshMap), "{e:?}");
    assert_eq!(b.check().entries.len(), 1, "the root");
    // Reads may be.
    let request = EntryReq { at: at(&name), ..EntryReq::default() };
    assert_eq!(errno(b.run::<Entry>(Op::Lookup, shard(0), &request)), Errno::ENOENT);
}

#[test]
fn a_set_group_id_bit_that_is_lost_is_lost_everywhere() {
    let (mut b, dir) = with_dir(2);
    let all = SetattrReq {
        ctx: b.ctx(),
        at: at(&dir),
        mode: Some(0o2777),
        uid: Some(5),
        gid: Some(9),
        ..Default::default()
    };
    b.setattr(&all).unwrap();
    let name = |b: &Testbed, n: u16| format!("{dir}/{}", b.name_on(shard(n), "f"));
    let first = name(&b, 1);
    assert_eq!(b.create(&first).unwrap().attr.gid, 9);
    b.unlink(&first).unwrap();
    // The same mode, asked for by an owner that is not of the group: chmod(2) takes the bit.
    let mut same =
        SetattrReq { ctx: b.ctx(), at: at(&dir), mode: Some(0o2777), ..Default::default() };
    same.ctx.cred = saker_types::Cred { uid: 5, gid: 5, groups_known: true, ..Default::default() };
    assert_eq!(b.setattr(&same).unwrap().attr.mode & 0o7777, 0o777);
    for n in 0..2 {
        let file = name(&b, n);
        assert_eq!(b.create(&file).unwrap().attr.gid, 0, "shard {n}");
    }
    b.check();
}

#[test]
fn totals_of_removed_directories_go_whoever_crashes() {
    for victim in [None, Some(COORDINATOR), Some(shard(0)), Some(shard(1))] {
        let mut b = Testbed::new(2);
        let dir = b.name_on(shard(0), "dir");
        let id = b.mkdir(&dir).unwrap().attr.id;
        for n in 0..2 {
            let file = format!("{dir}/{}", b.name_on(shard(n), "f"));
            b.create(&file).unwrap();
            b.unlink(&file).unwrap();
        }
        b.rmdir(&dir).unwrap();
        b.pass(Duration::from_secs(2));
        victim.into_iter().for_each(|node| b.restart(node));
        assert!(b.tree().totals.contains_key(&id), "a handle may be open");
        for _ in 0..70 {
            b.advance(Duration::from_secs(1));
            b.settle();
        }
        assert!(!b.tree().totals.contains_key(&id), "{victim:?}");
    }
}

#[test]
fn many_orphans_end_in_slices() {
    let mut b = Testbed::new(1);
    for n in 0..300 {
        b.create(&format!("f{n}")).unwrap();
        b.unlink(&format!("f{n}")).unwrap();
    }
    let orphans = |b: &mut Testbed| {
        let call = b.ask(Op::Statfs, shard(0), &Empty {});
        b.settle();
        b.answer::<ShardStats>(call).unwrap().unwrap().orphans
    };
    for _ in 0..59 {
        b.advance(Duration::from_secs(1));
        b.settle();
    }
    assert_eq!(orphans(&mut b), 300);
    b.advance(Duration::from_secs(2));
    let left = orphans(&mut b);
    assert!((100..300).contains(&left), "{left} after one step");
    b.pass(Duration::from_secs(1));
    assert_eq!(orphans(&mut b), 0);
}
