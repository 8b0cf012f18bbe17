#![allow(clippy::unwrap_used)]
use saker_types::placement::Slot;
use saker_types::policy::{Consistency, Durability, Policy, PolicyId};
use saker_types::wire::{
    ApplyMergeReq, At, CheckMergeReply, CheckMergeReq, CollectReply, CollectReq, Empty, Entry,
    EntryKey, EntryReq, LoadReply, LoadReq, MergeConflict, Op, PolicyState, ReaddirReply,
    ReaddirReq, RemoveReq, Removed, StageReq, StagedRow,
};
use saker_types::{Class, FileKind, Inode, ROOT, Stamp};

use super::*;
use crate::rows::new_attr;
use crate::testing::{Tester, at, errno};

const HOLDER: u64 = 70;
const EPOCH: u64 = 3;
/// Inodes that the holder was given.
const NEW: InodeId = 1 << 40;
/// When the holder made them.
const MADE_NS: Stamp = 1_000;

fn policy() -> u64 {
    PolicyId::new(5, &Policy::cell(Consistency::Weak, Durability::Local)).0
}

/// What the coordinator says of the policy.
fn tell(t: &mut Tester, hold: u64) {
    let holder = if hold == 0 { 0 } else { HOLDER };
    let state = PolicyState { hold, holder, ..PolicyState::default() };
    let mut s = t.shard();
    s.policies.learn(policy(), state);
    s.merges_are_over(policy(), state);
}

/// The subtree is closed, as by an invalidation.
fn doubt(t: &mut Tester) {
    t.shard().policies.invalidate(policy());
}

/// A directory `d` with files `old` and `gone`, whose subtree is held; its id.
fn held() -> (Tester, InodeId) {
    let mut t = Tester::new();
    let dir = t.mkdir("d").unwrap().attr.id;
    for name in ["d/old", "d/gone"] {
        t.create(name).unwrap();
    }
    t.edit("d", |row| row.policy = policy());
    t.shard().replica.invalidate(ROOT, b"d");
    tell(&mut t, EPOCH);
    (t, dir)
}

fn row(id: InodeId, kind: FileKind) -> Inode {
    let attr = new_attr(id, kind.bits() | 0o755, 0, 0, MADE_NS);
    Inode { attr, ..Inode::default() }
}

fn file(id: InodeId) -> Option<Inode> {
    Some(row(id, FileKind::Regular))
}

/// A row at a name of a directory that was there.
fn staged(dir: InodeId, name: &str, expect: InodeId, row: Option<Inode>) -> StagedRow {
    let entry = Some(EntryKey { pid: dir, name: Bytes::copy_from_slice(name.as_bytes()) });
    StagedRow { entry, row, expect, ..StagedRow::default() }
}

fn loc(dir: InodeId) -> Locator {
    Locator::entry(ROOT, "d".into(), dir)
}

fn holder(t: &mut Tester) -> Ctx {
    Ctx { holder: HOLDER, hold: EPOCH, seq: 0, ..t.ctx() }
}

fn stage_req(t: &mut Tester, attempt: u32, rows: Vec<StagedRow>, dirs: Vec<Locator>) -> StageReq {
    StageReq { ctx: holder(t), policy: policy(), epoch: EPOCH, attempt, rows, dirs, stored: None }
}

fn stage(t: &mut Tester, attempt: u32, dir: InodeId, rows: Vec<StagedRow>) -> Result<Empty, Error> {
    let request = stage_req(t, attempt, rows, vec![loc(dir)]);
    t.ask(Op::Stage, &request)
}

fn check_req(attempt: u32, rows: u64) -> CheckMergeReq {
    let (policy, epoch) = (policy(), EPOCH);
    CheckMergeReq { policy, epoch, attempt, rows, dirs: 1, dry_run: false }
}

fn check(t: &mut Tester, attempt: u32, rows: u64) -> Result<Vec<MergeConflict>, Error> {
    let answer = t.command::<CheckMergeReply>(Op::CheckMerge, &check_req(attempt, rows));
    answer.map(|answer| answer.conflicts)
}

fn apply(t: &mut Tester, attempt: u32) -> Stamp {
    let time_ns = t.shard().wall_ns() + 5_000_000_000;
    let request = ApplyMergeReq { policy: policy(), epoch: EPOCH, attempt, time_ns };
    t.command::<Empty>(Op::ApplyMerge, &request).unwrap();
    time_ns
}

/// Stages rows and merges them; when that was.
fn merge(t: &mut Tester, dir: InodeId, rows: Vec<StagedRow>) -> Stamp {
    let count = rows.len() as u64;
    stage(t, 1, dir, rows).unwrap();
    doubt(t);
    assert_eq!(check(t, 1, count).unwrap(), []);
    let time_ns = apply(t, 1);
    tell(t, EPOCH + 1);
    time_ns
}

/// Puts an entry by hand.
fn insert(t: &mut Tester, dir: InodeId, name: &str, row: Inode) {
    let mut s = t.shard();
    let key = s.map.key(dir, name.as_bytes());
    assert!(s.insert_entry(&key, row).is_ok());
    s.seal();
}

fn rows_left(t: &Tester) -> usize {
    let mut count = 0;
    let scanned = t.shard().engine.scan(&[table::STAGED], &[table::STAGED + 1], |_, _| {
        count += 1;
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    count
}

fn lookup(t: &mut Tester, at: At) -> Result<Entry, Error> {
    let ctx = Ctx { seq: 0, ..t.ctx() };
    t.ask(Op::Lookup, &EntryReq { ctx, at, full: false })
}

#[test]
fn what_is_staged_is_seen_when_it_is_merged() {
    let (mut t, dir) = held();
    let inodes = t.shard().inode_count;
    let sub = staged(dir, "sub", 0, Some(row(NEW, FileKind::Directory)));
    let below = StagedRow { in_new_dir: true, ..staged(NEW, "f", 0, file(NEW + 1)) };
    let rows = vec![sub, below, staged(dir, "new", 0, file(NEW + 2))];
    stage(&mut t, 1, dir, rows.clone()).unwrap();
    stage(&mut t, 1, dir, rows.clone()).unwrap();
    assert_eq!((rows_left(&t), t.counts(dir)), (4, (2, 0)), "three rows and a directory");
    assert_eq!(errno(t.lookup("d/new")), Errno::ENOENT);
    t.restart();
    tell(&mut t, EPOCH);
    let before = t.shard().totals(dir).unwrap();
    let time_ns = merge(&mut t, dir, rows);
    assert_eq!((t.counts(dir), t.counts(NEW), rows_left(&t)), ((4, 1), (1, 0), 0));
    assert_eq!(t.shard().inode_count, inodes + 3);
    let after = t.shard().totals(dir).unwrap();
    assert!(after.version > before.version && after.mtime_ns == time_ns, "{after:?}");
    assert_eq!(t.shard().totals(NEW).unwrap().mtime_ns, 0, "its row's own time counts");
    assert_eq!(t.row("d/sub").unwrap().attr.mtime_ns, MADE_NS);
    assert_eq!(t.lookup("d/sub/f").unwrap().attr.id, NEW + 1);
    t.restart();
    tell(&mut t, EPOCH + 1);
    assert_eq!(t.lookup("d/new").unwrap().attr.id, NEW + 2);
    assert_eq!((t.counts(dir), t.shard().inode_count), ((4, 1), inodes + 3));
    // Told again, as after a lost answer.
    apply(&mut t, 1);
    assert_eq!(t.counts(dir), (4, 1));
}

#[test]
fn files_are_replaced_changed_moved_and_removed() {
    let (mut t, dir) = held();
    t.edit("d/old", |row| (row.attr.truncate_gen, row.attr.data_version) = (7, 9));
    let (old, gone) = (t.row("d/old").unwrap().attr.id, t.row("d/gone").unwrap().attr.id);
    let inodes = t.shard().inode_count;
    let mut changed = file(old);
    changed.as_mut().unwrap().inline = "x".into();
    merge(
        &mut t,
        dir,
        vec![staged(dir, "old", old, changed), staged(dir, "gone", gone, file(NEW))],
    );
    let row = t.row("d/old").unwrap();
    assert_eq!((row.attr.truncate_gen, row.attr.data_version, &row.inline[..]), (7, 10, &b"x"[..]));
    assert_eq!(t.gone(old), None);
    assert_eq!(t.row("d/gone").unwrap().attr.id, NEW);
    assert!(t.gone(gone).unwrap().orphan.is_some(), "who has it open reads on");
    assert_eq!((t.counts(dir), t.shard().inode_count), ((2, 0), inodes));

    let (mut t, dir) = held();
    let (old, gone) = (t.row("d/old").unwrap().attr.id, t.row("d/gone").unwrap().attr.id);
    let to = Locator::entry(dir, "there".into(), old);
    let moved = StagedRow { moves_to: Some(to.clone()), ..staged(dir, "old", old, None) };
    let rows = vec![moved, staged(dir, "there", 0, file(old)), staged(dir, "gone", gone, None)];
    merge(&mut t, dir, rows);
    assert_eq!((t.row("d/old"), t.row("d/gone"), t.counts(dir)), (None, None, (1, 0)));
    assert_eq!(t.gone(old).unwrap().moved, Some(to), "it is no orphan");
    assert_eq!(t.gone(gone).unwrap().orphan.unwrap().attr.id, gone);
    assert_eq!(t.shard().inode_count, inodes - 1);
}

#[test]
fn a_file_gets_more_names() {
    let (mut t, dir) = held();
    let (old, inodes) = (t.row("d/old").unwrap().attr.id, t.shard().inode_count);
    let home = 77;
    let reference = |id| Some(Inode { home_slot: Some(home), ..row(id, FileKind::Regular) });
    let mut attributes = row(old, FileKind::Regular);
    attributes.attr.nlink = 2;
    let attributes = Some(attributes);
    let rows = vec![
        staged(dir, "old", old, reference(old)),
        staged(dir, "second", 0, reference(old)),
        StagedRow { attr_slot: Some(home), row: attributes, ..StagedRow::default() },
    ];
    merge(&mut t, dir, rows);
    assert_eq!(t.attr_row(old).unwrap().attr.nlink, 2);
    assert_eq!((t.counts(dir), t.shard().inode_count), ((3, 0), inodes));
    let ctx = Ctx { holder: HOLDER, hold: EPOCH + 1, ..t.ctx() };
    t.ask::<Removed>(Op::Unlink, &RemoveReq { ctx, at: at("d/second") }).unwrap();
    assert_eq!(t.attr_row(old).unwrap().attr.nlink, 1);
    assert!(t.shard().attr_row(Slot(home as u16), old).unwrap().is_some());
}

#[test]
fn what_does_not_fit_is_told_and_changes_nothing() {
    let (mut t, dir) = held();
    let (old, gone) = (t.row("d/old").unwrap().attr.id, t.row("d/gone").unwrap().attr.id);
    let sub = NEW + 50;
    insert(&mut t, dir, "sub", row(sub, FileKind::Directory));
    t.edit("d/gone", |row| row.home_slot = Some(9));
    let cases = [
        (staged(dir, "old", 0, file(NEW)), Some((old, false))),
        (staged(dir, "old", NEW + 9, file(NEW)), Some((old, false))),
        (staged(dir, "absent", NEW + 9, None), Some((0, false))),
        (staged(dir, "sub", sub, None), Some((sub, false))),
        (staged(dir, "gone", gone, None), Some((gone, true))),
        (staged(dir, "old", old, None), None),
        (staged(dir, "absent", 0, file(NEW)), None),
    ];
    for (attempt, (what, wanted)) in (1..).zip(cases) {
        stage(&mut t, attempt, dir, vec![what.clone()]).unwrap();
        let dry = CheckMergeReq { dry_run: true, ..check_req(attempt, 1) };
        let found: CheckMergeReply = t.command(Op::CheckMerge, &dry).unwrap();
        let found: Vec<_> = found.conflicts.iter().map(|c| (c.there, c.linked)).collect();
        assert_eq!(found, Vec::from_iter(wanted), "{what:?}");
        assert_eq!(t.lookup("d/old").unwrap().attr.id, old, "nobody waits for a dry run");
    }
}

#[test]
fn rows_and_directories_are_those_that_the_client_counts() {
    let (mut t, dir) = held();
    stage(&mut t, 1, dir, vec![staged(dir, "a", 0, file(NEW)), staged(dir, "b", 0, file(NEW + 1))])
        .unwrap();
    // The next attempt has one row less.
    stage(&mut t, 2, dir, vec![staged(dir, "b", 0, file(NEW + 1))]).unwrap();
    assert_eq!(errno(stage(&mut t, 1, dir, vec![])), Errno::ESTALE, "it comes late");
    let error = check(&mut t, 2, 2).unwrap_err();
    assert_eq!(error.errno(), Errno::ESTALE);
    assert!(error.text.contains("1 rows of the merge, not 2"), "{}", error.text);
    let two = CheckMergeReq { dirs: 2, ..check_req(2, 1) };
    assert_eq!(errno(t.command::<CheckMergeReply>(Op::CheckMerge, &two)), Errno::ESTALE);
    doubt(&mut t);
    assert_eq!(check(&mut t, 2, 1).unwrap(), []);
    apply(&mut t, 2);
    tell(&mut t, EPOCH + 1);
    assert_eq!((t.row("d/a"), rows_left(&t)), (None, 0));
    assert_eq!(t.row("d/b").unwrap().attr.id, NEW + 1);
}

#[test]
fn a_directory_that_has_moved_or_was_not_told_is_no_place() {
    let (mut t, dir) = held();
    let elsewhere = Locator::entry(ROOT, "e".into(), dir);
    let rows = vec![staged(dir, "a", 0, file(NEW))];
    let request = stage_req(&mut t, 1, rows.clone(), vec![elsewhere]);
    t.ask::<Empty>(Op::Stage, &request).unwrap();
    doubt(&mut t);
    let found = check(&mut t, 1, 1).unwrap();
    assert_eq!((found.len(), found[0].entry.pid, found[0].entry.name.len()), (1, dir, 0));
    tell(&mut t, EPOCH);
    let new = StagedRow { in_new_dir: true, ..rows[0].clone() };
    for (attempt, row) in [(2, new), (3, staged(NEW, "f", 0, file(NEW + 1)))] {
        stage(&mut t, attempt, dir, vec![row]).unwrap();
        let error = check(&mut t, attempt, 1).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL);
        assert!(error.text.contains("neither new nor told"), "{}", error.text);
        tell(&mut t, EPOCH);
    }
}

#[test]
fn only_the_holder_stages_what_makes_sense() {
    let (mut t, dir) = held();
    let rows = vec![staged(dir, "a", 0, file(NEW))];
    let good = stage_req(&mut t, 1, rows, vec![loc(dir)]);
    let other = Ctx { holder: HOLDER + 1, ..good.ctx.clone() };
    for late in [
        StageReq { ctx: other, ..good.clone() },
        StageReq { epoch: EPOCH - 1, ..good.clone() },
        StageReq { epoch: EPOCH + 1, ..good.clone() },
    ] {
        assert_eq!(errno(t.ask::<Empty>(Op::Stage, &late)), Errno::ESTALE);
    }
    let directory = Some(row(NEW, FileKind::Directory));
    let mut two_names = row(NEW, FileKind::Regular);
    two_names.attr.nlink = 2;
    let of_home = |expect, row| StagedRow { attr_slot: Some(4), row, expect, ..Default::default() };
    for bad in [
        StagedRow::default(),
        staged(dir, "a", 0, None),
        staged(dir, "", 0, file(NEW)),
        staged(dir, "a/b", 0, file(NEW)),
        staged(dir, "a", 0, file(0)),
        staged(dir, "a", 0, Some(Inode::default())),
        staged(dir, "a", 0, Some(two_names)),
        staged(dir, "a", NEW, directory.clone()),
        of_home(0, directory),
        of_home(0, None),
        of_home(5, file(NEW)),
    ] {
        let request = StageReq { rows: vec![bad.clone()], ..good.clone() };
        let error = t.ask::<Empty>(Op::Stage, &request).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL, "{bad:?}");
    }
    let many = vec![staged(dir, "a", 0, file(NEW)); saker_types::limits::STAGE_ROWS_MAX + 1];
    let request = StageReq { rows: many, ..good.clone() };
    assert_eq!(errno(t.ask::<Empty>(Op::Stage, &request)), Errno::E2BIG);
    assert_eq!(rows_left(&t), 0);
    // A client commands no merge.
    let answer = t.ask::<CheckMergeReply>(Op::CheckMerge, &check_req(1, 1));
    assert_eq!(errno(answer), Errno::EPERM);
    tell(&mut t, 0);
    assert_eq!(errno(t.ask::<Empty>(Op::Stage, &good)), Errno::ESTALE);
}

/// What a client asks that has a handle of the directory from before the policy.
fn from_before(t: &mut Tester, dir: InodeId) -> Vec<Result<(), Error>> {
    let ctx = Ctx { seq: 0, ..t.ctx() };
    let readdir = ReaddirReq { ctx, at: At::handle(loc(dir)), ..ReaddirReq::default() };
    let collect = CollectReq { dir, freeze_ms: 0 };
    let old = t.row("d/old").unwrap().attr.id;
    vec![
        lookup(t, At::child(loc(dir), b"new")).map(drop),
        lookup(t, At::handle(loc(dir))).map(drop),
        lookup(t, At::handle(Locator::entry(dir, "old".into(), old))).map(drop),
        t.ask::<ReaddirReply>(Op::Readdir, &readdir).map(drop),
        t.command::<CollectReply>(Op::Collect, &collect).map(drop),
    ]
}

#[test]
fn whoever_comes_to_the_subtree_waits_while_it_is_merged() {
    let (mut t, dir) = held();
    // Its row says nothing of a policy, as long as nobody looks.
    t.edit("d", |row| row.policy = 0);
    stage(&mut t, 1, dir, vec![staged(dir, "new", 0, file(NEW))]).unwrap();
    assert!(from_before(&mut t, dir)[1..].iter().all(Result::is_ok));
    doubt(&mut t);
    let told = lookup(&mut t, At::handle(loc(dir).under(policy()))).unwrap_err();
    assert!(told.is(Class::Retry), "the state is not known");
    assert_eq!(check(&mut t, 1, 1).unwrap(), []);
    for _ in 0..2 {
        for answer in from_before(&mut t, dir) {
            assert!(answer.unwrap_err().is(Class::Retry));
        }
        t.lookup("d").unwrap();
        // Also if it starts again meanwhile.
        t.restart();
    }
    apply(&mut t, 1);
    assert!(lookup(&mut t, At::child(loc(dir), b"new")).unwrap_err().is(Class::Retry));
    tell(&mut t, EPOCH + 1);
    assert!(from_before(&mut t, dir).iter().all(Result::is_ok));
}

#[test]
fn a_name_in_use_is_no_conflict_but_waits() {
    let (mut t, dir) = held();
    let old = t.row("d/old").unwrap().attr.id;
    stage(&mut t, 1, dir, vec![staged(dir, "old", old, None)]).unwrap();
    t.shard().set_busy(old);
    assert!(check(&mut t, 1, 1).unwrap_err().is(Class::Retry));
    t.shard().clear_busy(old);
    let key = t.shard().map.key(dir, b"old");
    let txn = saker_types::TxnId { driver: saker_types::NodeId::Coordinator, number: 9 };
    t.shard().row_locks.lock_entry(&key, txn);
    assert!(check(&mut t, 1, 1).unwrap_err().is(Class::Retry));
    t.shard().row_locks.unlock_entry(&key);
    assert_eq!(check(&mut t, 1, 1).unwrap(), []);
}

#[test]
fn what_came_after_the_check_is_replaced_or_put_beside() {
    let (mut t, dir) = held();
    let rows = ["file", "dir", "away"].iter().enumerate();
    let rows = rows.map(|(n, name)| staged(dir, name, 0, file(NEW + n as u64))).collect();
    stage(&mut t, 1, dir, rows).unwrap();
    assert_eq!(check(&mut t, 1, 3).unwrap(), []);
    // As after a restart, by a client with an old handle.
    let kinds = [("file", FileKind::Regular), ("dir", FileKind::Directory)];
    for (n, (name, kind)) in kinds.into_iter().enumerate() {
        insert(&mut t, dir, name, row(NEW + 10 + n as u64, kind));
    }
    apply(&mut t, 1);
    tell(&mut t, EPOCH + 1);
    assert_eq!(t.row("d/file").unwrap().attr.id, NEW, "the holder's side wins");
    assert!(t.gone(NEW + 10).unwrap().orphan.is_some());
    assert_eq!(t.row("d/dir").unwrap().attr.id, NEW + 11);
    let beside = format!("d/dir.merged-{}", NEW + 1);
    assert_eq!(t.row(&beside).unwrap().attr.id, NEW + 1);
    assert_eq!(t.counts(dir), (6, 1));
}

#[test]
fn many_rows_are_put_piece_by_piece() {
    let (mut t, dir) = held();
    let count = PIECE_ROWS as u64 * 3;
    let name = |n: u64| format!("f{n}");
    let all: Vec<StagedRow> = (0..count).map(|n| staged(dir, &name(n), 0, file(NEW + n))).collect();
    for some in all.chunks(1_000) {
        stage(&mut t, 1, dir, some.to_vec()).unwrap();
    }
    doubt(&mut t);
    assert_eq!(check(&mut t, 1, count).unwrap(), []);
    assert!(t.waited >= 2, "others had their turn");
    // It dies when a part of it is there.
    let request = ApplyMergeReq { policy: policy(), epoch: EPOCH, attempt: 1, time_ns: 5 };
    t.command_for_steps(Op::ApplyMerge, &request, 2);
    t.restart();
    let left = rows_left(&t) as u64;
    assert!(left > 0 && left < count, "{left} are left");
    assert_eq!(t.counts(dir).0, count - left + 1 + 2, "and the directory's own");
    apply(&mut t, 1);
    tell(&mut t, EPOCH + 1);
    assert_eq!((t.counts(dir), rows_left(&t)), ((count + 2, 0), 0));
    assert_eq!(t.lookup(&format!("d/{}", name(count - 1))).unwrap().attr.id, NEW + count - 1);
}

#[test]
fn what_is_staged_goes_with_its_hold() {
    for restarts in [false, true] {
        let (mut t, dir) = held();
        stage(&mut t, 1, dir, vec![staged(dir, "new", 0, file(NEW))]).unwrap();
        if restarts {
            t.restart();
        }
        tell(&mut t, EPOCH);
        t.lookup("d/old").unwrap();
        assert_eq!(rows_left(&t), 2, "it goes on");
        tell(&mut t, 0);
        t.lookup("d/old").unwrap();
        assert_eq!((rows_left(&t), t.row("d/new")), (0, None));
        assert!(!t.shard().merges.concern(policy()));
    }
}

#[test]
fn the_holder_loads_whole_rows() {
    let (mut t, dir) = held();
    t.edit("d/old", |row| row.inline = "data".into());
    let request = LoadReq { ctx: holder(&mut t), at: At::handle(loc(dir)), ..LoadReq::default() };
    let all: LoadReply = t.ask(Op::Load, &request).unwrap();
    assert!(all.end && all.rows.is_sorted_by_key(|row| row.order));
    assert_eq!((all.rows.len(), all.dir.unwrap().attr.id), (2, dir));
    assert!(all.rows.iter().any(|row| row.name == "old" && row.row.inline == "data"));
    let first: LoadReply = t.ask(Op::Load, &LoadReq { limit: 1, ..request.clone() }).unwrap();
    assert_eq!((first.rows.len(), first.end), (1, false));
    let (after_order, after_name) = (first.rows[0].order, first.rows[0].name.clone());
    let rest: LoadReply =
        t.ask(Op::Load, &LoadReq { after_order, after_name, ..request.clone() }).unwrap();
    assert_eq!((rest.rows, rest.end, rest.dir), (all.rows[1..].to_vec(), true, None));
    let other = Ctx { holder: 0, hold: 0, ..request.ctx.clone() };
    let answer = t.ask::<LoadReply>(Op::Load, &LoadReq { ctx: other, ..request.clone() });
    assert_eq!(errno(answer), Errno::ESTALE);
    let root = LoadReq { at: at(""), ..request.clone() };
    assert_eq!(errno(t.ask::<LoadReply>(Op::Load, &root)), Errno::EINVAL, "it is in no subtree");
    let mut linked = row(NEW, FileKind::Regular);
    linked.attr.nlink = 2;
    t.shard().put_attr_row(Slot(9), linked.clone());
    let homes = vec![Locator::home(NEW, 9), Locator::home(NEW + 1, 9)];
    let found: LoadReply = t.ask(Op::Load, &LoadReq { homes, ..request }).unwrap();
    assert_eq!(found.rows.into_iter().map(|row| row.row).collect::<Vec<_>>(), [linked]);
}
