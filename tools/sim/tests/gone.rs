//! Ids that have no name, or have left it: files made without one (O_TMPFILE), and directories that
//! somebody holds while others move them.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use saker_sim::testbed::{Testbed, at, errno, shard};
use saker_types::change::table;
use saker_types::wire::*;
use saker_types::{Class, Errno, FileKind, Locator, NodeId};

/// Gone records of all shards.
fn records(b: &mut Testbed) -> usize {
    let mut count = 0;
    for shard in b.shards() {
        let request = ScanReq { after: Default::default(), limit: 65_536 };
        let rows: ScanReply = b.run(Op::Scan, shard, &request).unwrap();
        count += rows.rows.iter().filter(|row| row.key[0] == table::GONE).count();
    }
    count
}

fn tmpfile(b: &mut Testbed, on: NodeId, exclusive: bool) -> Entry {
    let place = at(&b.name_on(on, "nameless"));
    let request = CreateReq { exclusive, ..b.create_req(place, FileKind::Regular) };
    b.run(Op::Tmpfile, on, &request).unwrap()
}

fn link_req(b: &mut Testbed, from: &Locator, to: &str) -> LinkReq {
    LinkReq { ctx: b.ctx(), from: At::handle(from.clone()), to: at(to) }
}

#[test]
fn a_file_without_a_name_gets_one() {
    for n in 0..2 {
        let mut b = Testbed::new(2);
        let made = tmpfile(&mut b, shard(0), false);
        assert_eq!(made.attr.nlink, 0);
        assert_eq!(b.check().entries.len(), 1, "the root alone");
        let to = b.name_on(shard(n), "to");
        let (ctx, at_it) = (b.ctx(), At::handle(made.loc.clone()));
        let data = Some(bytes::Bytes::from_static(b"data"));
        let close = CloseReq {
            ctx,
            at: at_it.clone(),
            size: 4,
            inline: data,
            base_version: 1,
            ..Default::default()
        };
        assert!(!b.run::<CloseReply>(Op::Close, shard(0), &close).unwrap().conflict);
        let request = link_req(&mut b, &made.loc, &to);
        let linked: Entry = b.run(Op::Link, shard(0), &request).unwrap();
        assert_eq!((linked.attr.id, linked.attr.nlink, linked.attr.size), (made.attr.id, 1, 4));
        for place in [at_it, at(&to)] {
            assert_eq!(b.stat(&place).unwrap().attr.nlink, 1, "also by the handle from before");
        }
        b.link(&to, "second").unwrap();
        assert_eq!(b.stat(&at("second")).unwrap().attr.nlink, 2);
        b.check();
        b.pass(Duration::from_secs(130));
        assert_eq!(b.stat(&at(&to)).unwrap().attr.id, made.attr.id);
        assert_eq!(records(&mut b), 0);
    }
}

fn spill(b: &mut Testbed, name: &str) -> Locator {
    let loc = b.create(name).unwrap().loc;
    let request = EntryReq { ctx: b.ctx(), at: At::handle(loc.clone()), ..EntryReq::default() };
    let owner = b.owner(name);
    b.run::<Entry>(Op::Spill, owner, &request).unwrap();
    loc
}

/// Are its chunks deleted as soon as its name is gone?
fn goes_at_once(b: &mut Testbed, name: &str) -> bool {
    let asked = |b: &Testbed| b.stored.iter().filter(|(op, _)| *op == Op::ChunkDelete).count();
    let before = asked(b);
    b.unlink(name).unwrap();
    b.pass(Duration::from_millis(10));
    asked(b) > before
}

#[test]
fn space_of_what_nobody_has_open_comes_back_at_once() {
    let mut b = Testbed::new(2);
    let on_0 = |b: &mut Testbed, name| b.name_on(shard(0), name);
    let names = ["old", "opened", "renewed", "moved", "new"].map(|name| on_0(&mut b, name));
    let [old, opened, renewed, moved, new] = &names;
    let handles = [old, opened, renewed].map(|name| spill(&mut b, name));
    let elsewhere = b.name_on(shard(1), "elsewhere");
    spill(&mut b, &elsewhere);
    b.pass(Duration::from_secs(200));
    let request = OpenReq { ctx: b.ctx(), at: at(opened), access: 4, ..OpenReq::default() };
    b.run::<Entry>(Op::Open, shard(0), &request).unwrap();
    let request = RenewReq { handles: vec![handles[2].clone()], ..RenewReq::default() };
    b.run::<RenewReply>(Op::Renew, shard(0), &request).unwrap();
    // Where it was nobody had it open.
    b.rename(&elsewhere, moved).unwrap();
    spill(&mut b, new);
    b.pass(Duration::from_secs(58));
    for name in [opened, renewed, new] {
        assert!(!goes_at_once(&mut b, name), "{name}");
    }
    for name in [old, moved] {
        assert!(goes_at_once(&mut b, name), "{name}");
    }
    assert_eq!(b.stat(&At::handle(handles[1].clone())).unwrap().attr.nlink, 0);
    assert_eq!(errno(b.stat(&At::handle(handles[0].clone()))), Errno::ESTALE);
    b.pass(Duration::from_secs(130));
    assert_eq!(records(&mut b), 0);
    // A shard that has just started knows nothing.
    spill(&mut b, "last");
    b.pass(Duration::from_secs(200));
    b.restart(shard(0));
    b.restart(shard(1));
    assert!(!goes_at_once(&mut b, "last"));
    b.check();
}

/// A client opens a file; small files, too, are followed, for they may grow.
fn open(b: &mut Testbed, place: At, client: u64, number: u64) -> Locator {
    let owner = b.owner_of(&place);
    let hold = Hold { client, number };
    let request = OpenReq { ctx: b.ctx(), at: place, access: 4, hold, ..OpenReq::default() };
    b.run::<Entry>(Op::Open, owner, &request).unwrap().loc
}

/// It has closed what it had opened by lower numbers. Where the file is if it is not there.
fn close(b: &mut Testbed, loc: &Locator, client: u64, below: u64) -> Option<Locator> {
    let request = RenewReq {
        hold: Hold { client, number: below },
        closed: vec![loc.id],
        closed_below: below,
        ..RenewReq::default()
    };
    let owner = b.owner_of(&At::handle(loc.clone()));
    let moved = b.run::<RenewReply>(Op::Renew, owner, &request).unwrap().moved;
    b.pass(Duration::from_millis(10));
    moved.into_iter().next()
}

/// A new file of a client's own, which has it open; with chunks if it is `large`.
fn create_held(b: &mut Testbed, name: &str, client: u64, large: bool) -> Locator {
    let hold = Hold { client, number: 1 };
    let request = CreateReq { hold, ..b.create_req(at(name), FileKind::Regular) };
    let loc = b.run::<Entry>(Op::Create, b.owner(name), &request).unwrap().loc;
    if large {
        grow(b, &loc);
    }
    loc
}

fn grow(b: &mut Testbed, loc: &Locator) {
    let request = EntryReq { ctx: b.ctx(), at: At::handle(loc.clone()), ..EntryReq::default() };
    let owner = b.owner_of(&request.at);
    b.run::<Entry>(Op::Spill, owner, &request).unwrap();
}

fn is_deleted(b: &mut Testbed, loc: &Locator) -> bool {
    let place = At::handle(loc.clone());
    b.stat(&place).is_err_and(|error| errno::<Entry>(Err(error)) == Errno::ESTALE)
}

#[test]
fn space_of_what_was_closed_comes_back_at_once() {
    let mut b = Testbed::new(2);
    let (a, c) = (1, 2);
    let name = b.name_on(shard(0), "own");
    let own = create_held(&mut b, &name, a, true);
    close(&mut b, &own, a, 2);
    assert!(goes_at_once(&mut b, &name), "its maker has closed it");

    // Two have it open, one since it was small.
    let name = b.name_on(shard(0), "shared");
    let shared = create_held(&mut b, &name, a, false);
    open(&mut b, at(&name), c, 1);
    grow(&mut b, &shared);
    close(&mut b, &shared, a, 2);
    assert!(!goes_at_once(&mut b, &name), "another has it open");
    // That one is opened again, and the end of what was opened before comes late.
    open(&mut b, At::handle(shared.clone()), c, 2);
    close(&mut b, &shared, c, 2);
    assert!(!is_deleted(&mut b, &shared), "it is open");
    // A client that is not known to have it open says nothing of those that have.
    close(&mut b, &shared, a, 9);
    close(&mut b, &shared, 0, 9);
    assert!(!is_deleted(&mut b, &shared), "it is open");
    close(&mut b, &shared, c, 3);
    assert!(is_deleted(&mut b, &shared), "nobody has it open");

    // A file without a name.
    let place = at(&b.name_on(shard(0), "nameless"));
    let hold = Hold { client: a, number: 1 };
    let request = CreateReq { hold, ..b.create_req(place, FileKind::Regular) };
    let nameless = b.run::<Entry>(Op::Tmpfile, shard(0), &request).unwrap().loc;
    grow(&mut b, &nameless);
    close(&mut b, &nameless, a, 1);
    assert!(!is_deleted(&mut b, &nameless));
    close(&mut b, &nameless, a, 2);
    assert!(is_deleted(&mut b, &nameless));
    assert_eq!(records(&mut b), 0);
    b.check();
}

/// It may have been executed long before.
#[test]
fn an_open_counts_from_its_answer() {
    let mut b = Testbed::new(1);
    let hold = Hold { client: 7, number: 1 };
    // Stores take their time to cut.
    let loc = spill(&mut b, "cut");
    let place = At::handle(loc.clone());
    let request = OpenReq { ctx: b.ctx(), at: place, access: 6, truncate: true, hold };
    b.ask(Op::Open, shard(0), &request);
    for _ in 0..1_300 {
        b.settle_but(|m| m.asks(Op::ChunkTruncate));
        b.advance(Duration::from_millis(100));
    }
    b.pass(Duration::from_secs(2));
    b.open_session();
    grow(&mut b, &loc);
    assert!(!goes_at_once(&mut b, "cut"));

    // Its first answer was lost.
    let request = CreateReq { hold, ..b.create_req(at("kept"), FileKind::Regular) };
    let loc = b.run::<Entry>(Op::Create, shard(0), &request).unwrap().loc;
    grow(&mut b, &loc);
    for n in 0..4 {
        b.pass(Duration::from_secs(35));
        // A client that is alive.
        b.mkdir(&format!("d{n}")).unwrap();
    }
    let again = b.run::<Entry>(Op::Create, shard(0), &request).unwrap();
    assert_eq!((again.loc, again.created), (loc, true));
    assert!(!goes_at_once(&mut b, "kept"));
    b.check();
}

#[test]
fn orphans_end_also_while_more_is_opened_than_is_noted() {
    let mut b = Testbed::new(1);
    b.pass(Duration::from_secs(70));
    b.open_session();
    create_held(&mut b, "file", 7, true);
    for round in 1..=4 {
        for part in 0..129 {
            let ids = (1 << 50) + part * 2_048..(1 << 50) + (part + 1) * 2_048;
            let handles = ids.map(|id| Locator { id, name: "x".into(), ..Locator::default() });
            let hold = Hold { client: 99, number: round };
            let request = RenewReq { handles: handles.collect(), hold, ..RenewReq::default() };
            b.run::<RenewReply>(Op::Renew, shard(0), &request).unwrap();
        }
        if round == 1 {
            b.create("small").unwrap();
            b.unlink("small").unwrap();
            assert!(!goes_at_once(&mut b, "file"), "somebody may have opened it");
            assert_eq!(records(&mut b), 2);
        }
        b.pass(Duration::from_secs(45));
    }
    assert_eq!(records(&mut b), 0);
    b.check();
}

/// Also of what has no name any more: by /proc, or by a client whose last handle was closed just now.
#[test]
fn what_is_opened_again_stays() {
    let mut b = Testbed::new(1);
    b.pass(Duration::from_secs(70));
    b.open_session();
    let loc = create_held(&mut b, "file", 7, true);
    assert!(!goes_at_once(&mut b, "file"));
    b.pass(Duration::from_secs(58));
    open(&mut b, At::handle(loc.clone()), 7, 2);
    close(&mut b, &loc, 7, 2);
    b.pass(Duration::from_secs(10));
    assert!(!is_deleted(&mut b, &loc), "it was opened ten seconds ago");
    close(&mut b, &loc, 7, 3);
    assert!(is_deleted(&mut b, &loc));
    assert_eq!(records(&mut b), 0);
    b.check();
}

#[test]
fn who_has_a_file_open_is_known_where_it_moves() {
    let mut b = Testbed::new(2);
    // A shard that has just started does not know who has open what others have made.
    b.pass(Duration::from_secs(70));
    // Sessions that nobody has used have ended meanwhile.
    b.open_session();
    let (a, c) = (1, 2);
    let [from, to] = [0, 1].map(|n| b.name_on(shard(n), "file"));
    let loc = create_held(&mut b, &from, a, true);
    open(&mut b, at(&from), c, 1);
    close(&mut b, &loc, c, 2);
    b.rename(&from, &to).unwrap();
    let moved = close(&mut b, &loc, a, 1).expect("it says where it is");
    assert_eq!(close(&mut b, &moved, a, 1), None);
    assert!(!goes_at_once(&mut b, &to), "it is open");
    assert!(!is_deleted(&mut b, &moved));
    close(&mut b, &moved, a, 2);
    assert!(is_deleted(&mut b, &moved));

    // Two that change places.
    for back in [false, true] {
        let loc = create_held(&mut b, &from, a, true);
        let other = create_held(&mut b, &to, a, true);
        let (one, two) = if back { (&to, &from) } else { (&from, &to) };
        b.exchange(one, two).unwrap();
        for (name, loc) in [(&to, loc), (&from, other)] {
            assert!(!goes_at_once(&mut b, name), "it is open");
            assert!(!is_deleted(&mut b, &loc));
        }
    }

    // Of what the other shard has opened, but not closed, nothing is known after a restart.
    let loc = create_held(&mut b, &from, a, true);
    b.restart(shard(0));
    b.rename(&from, &to).unwrap();
    let moved = close(&mut b, &loc, a, 2).expect("it says where it is");
    close(&mut b, &moved, a, 2);
    assert!(!goes_at_once(&mut b, &to), "somebody may have it open");
    b.pass(Duration::from_secs(200));
    assert_eq!(records(&mut b), 0);
    b.check();
}

/// Whoever reads zeros of an orphan, since its chunks are deleted, must not hear that it is there.
#[test]
fn an_orphan_whose_chunks_are_deleted_is_not_there() {
    let mut b = Testbed::new(2);
    let name = b.name_on(shard(0), "f");
    let made = b.create(&name).unwrap();
    let handle = At::handle(made.loc);
    let request = EntryReq { ctx: b.ctx(), at: handle.clone(), ..EntryReq::default() };
    b.run::<Entry>(Op::Spill, shard(0), &request).unwrap();
    b.unlink(&name).unwrap();
    b.pass(Duration::from_secs(59));
    assert_eq!(b.stat(&handle).unwrap().attr.nlink, 0, "somebody may have it open");
    b.advance(Duration::from_secs(2));
    b.settle_but(|m| m.asks(Op::ChunkDelete));
    assert!(b.wire().iter().any(|m| m.asks(Op::ChunkDelete)));
    let request = EntryReq { ctx: b.ctx(), at: handle, ..EntryReq::default() };
    let call = b.ask(Op::Getattr, shard(0), &request);
    b.settle_but(|m| m.asks(Op::ChunkDelete));
    assert_eq!(errno(b.answer::<Entry>(call).unwrap()), Errno::ESTALE);
    // Nor when it begins again, which may be after some stores have deleted it.
    b.restart(shard(0));
    b.pass(Duration::from_secs(1));
    assert_eq!(records(&mut b), 1);
    assert_eq!(errno(b.stat(&request.at)), Errno::ESTALE);
    b.pass(Duration::from_secs(61));
    assert_eq!(records(&mut b), 0);
    b.check();
}

#[test]
fn what_may_not_be_linked_is_not() {
    let mut b = Testbed::new(2);
    let never = tmpfile(&mut b, shard(0), true);
    let request = link_req(&mut b, &never.loc, "to");
    assert_eq!(errno(b.run::<Entry>(Op::Link, shard(0), &request)), Errno::ENOENT);
    // A file that lost its last name does not come back.
    let name = b.name_on(shard(0), "removed");
    let removed = b.create(&name).unwrap();
    b.unlink(&name).unwrap();
    let request = link_req(&mut b, &removed.loc, "to");
    assert_eq!(errno(b.run::<Entry>(Op::Link, shard(0), &request)), Errno::ENOENT);
    let made = tmpfile(&mut b, shard(0), false);
    b.create("taken").unwrap();
    let request = link_req(&mut b, &made.loc, "taken");
    assert_eq!(errno(b.run::<Entry>(Op::Link, shard(0), &request)), Errno::EEXIST);
    // Refused, it is as it was: it may be linked elsewhere, or ends with its lease.
    b.stat(&At::handle(made.loc.clone())).unwrap();
    b.pass(Duration::from_secs(130));
    assert_eq!(records(&mut b), 0);
    assert_eq!(errno(b.stat(&At::handle(made.loc))), Errno::ESTALE);
    b.check();
}

#[test]
fn a_link_of_a_file_without_a_name_survives_any_crash() {
    for victim in [0, 1] {
        for step in 0.. {
            let mut b = Testbed::new(2);
            let made = tmpfile(&mut b, shard(0), false);
            let to = b.name_on(shard(1), "to");
            let request = link_req(&mut b, &made.loc, &to);
            let call = b.ask(Op::Link, shard(0), &request);
            if !(0..step).all(|_| b.deliver(|_| true)) {
                break;
            }
            b.restart(shard(victim));
            b.pass(Duration::from_secs(2));
            let lost = |e: saker_types::Error| e.is(Class::Retry);
            if b.answer::<Entry>(call).is_none_or(|answer| answer.is_err_and(lost)) {
                b.run::<Entry>(Op::Link, shard(0), &request).unwrap();
            }
            b.pass(Duration::from_secs(8));
            assert_eq!(b.stat(&at(&to)).unwrap().attr.id, made.attr.id);
            assert_eq!(b.stat(&At::handle(made.loc)).unwrap().attr.nlink, 1);
            b.check();
        }
    }
}

#[test]
fn a_directory_that_somebody_holds_is_found_however_long_ago_it_moved() {
    let mut b = Testbed::new(3);
    let names: Vec<String> = (0..3).map(|n| b.name_on(shard(n), "dir")).collect();
    let held = b.mkdir(&names[0]).unwrap().loc;
    b.mkdir("below").unwrap();
    let mut path = names[0].clone();
    for name in [&names[1], &names[2], &names[0], &names[1]] {
        let to = format!("below/{name}");
        b.rename(&path, &to).unwrap();
        path = to;
        b.rename(&path, name).unwrap();
        path = name.clone();
        b.pass(Duration::from_secs(600));
        b.restart(shard(0));
        b.pass(Duration::from_secs(600));
        // The client's own sessions have ended meanwhile.
        b.open_session();
        let (mut place, mut hops) = (held.clone(), 0);
        let file = b.name_on(shard(2), &format!("f-{hops}-"));
        loop {
            let target = At::child(place.clone(), file.as_bytes());
            let request = b.create_req(target, FileKind::Regular);
            match b.run::<Entry>(Op::Create, shard(2), &request) {
                Err(e) if e.is(Class::Moved) => place = *e.moved.unwrap(),
                made => {
                    assert_eq!(made.unwrap().loc.pid, held.id);
                    break;
                }
            }
            hops += 1;
            assert!(hops < 5, "it is not found");
        }
        b.unlink(&format!("{path}/{file}")).unwrap();
        b.check();
    }
    b.rmdir(&path).unwrap();
    // The next change of a directory tells everybody that it is gone.
    b.mkdir("last").unwrap();
    b.rmdir("last").unwrap();
    b.pass(Duration::from_secs(130));
    let request = b.create_req(At::child(held, b"f"), FileKind::Regular);
    let owner = b.owner("f");
    assert_eq!(errno(b.run::<Entry>(Op::Create, owner, &request)), Errno::ENOENT);
    assert_eq!(records(&mut b), 0);
    b.check();
}
