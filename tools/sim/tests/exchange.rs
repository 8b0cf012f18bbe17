//! RENAME_EXCHANGE on the testbed: of files by the owner of the first name, of directories by the
//! coordinator; interleavings and crashes.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use saker_sim::testbed::{Testbed, at, errno, shard};
use saker_types::wire::*;
use saker_types::{Class, Cred, Errno, FileKind, NodeId};

const COORDINATOR: NodeId = NodeId::Coordinator;

fn id(b: &mut Testbed, path: &str) -> u64 {
    b.stat(&at(path)).unwrap().attr.id
}

/// What is made at a name: a file, a file whose second name is on shard 2, or a directory with a
/// file in it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Made {
    File,
    Linked,
    Dir,
}

fn make(b: &mut Testbed, path: &str, made: Made) -> u64 {
    match made {
        Made::File => b.create(path).unwrap().attr.id,
        Made::Linked => {
            let home = b.name_on(shard(2), &format!("home-of-{path}"));
            let id = b.create(&home).unwrap().attr.id;
            b.link(&home, path).unwrap();
            id
        }
        Made::Dir => {
            let id = b.mkdir(path).unwrap().attr.id;
            b.create(&format!("{path}/in-{path}")).unwrap();
            id
        }
    }
}

const KINDS: [Made; 3] = [Made::File, Made::Linked, Made::Dir];

#[test]
fn all_kinds_change_places_wherever_they_are() {
    for (first, second) in KINDS.into_iter().flat_map(|a| KINDS.map(|b| (a, b))) {
        for n in [0, 1] {
            let mut b = Testbed::new(3);
            b.mkdir("d").unwrap();
            let from = b.name_on(shard(0), "from");
            let to = b.name_on(shard(n), "to");
            let (x, y) = (make(&mut b, &from, first), make(&mut b, &to, second));
            let below = format!("d/{to}");
            b.rename(&to, &below).unwrap();
            let old = [at(&from), at(&below)].map(|at| b.stat(&at).unwrap().loc);
            let reply = b.exchange(&from, &below).unwrap();
            assert_eq!((id(&mut b, &from), id(&mut b, &below)), (y, x), "{first:?} {second:?}");
            for (loc, id) in [(reply.loc, x), (reply.other.unwrap(), y)] {
                assert_eq!(b.stat(&At::handle(loc)).unwrap().attr.id, id);
            }
            // Handles from before find them.
            for loc in old {
                assert_eq!(b.stat(&At::handle(loc.clone())).unwrap().attr.id, loc.id);
            }
            if first == Made::Dir {
                b.stat(&at(&format!("{below}/in-{from}"))).unwrap();
            }
            let subdirs = u32::from(first == Made::Dir);
            assert_eq!(b.stat(&at("d")).unwrap().attr.nlink, 2 + subdirs);
            b.check();
        }
    }
}

#[test]
fn an_exchange_survives_any_crash() {
    let pairs = [
        (Made::File, Made::File),
        (Made::Linked, Made::File),
        (Made::File, Made::Dir),
        (Made::Dir, Made::Linked),
        (Made::Dir, Made::Dir),
    ];
    for (first, second) in pairs {
        let has_dir = [first, second].contains(&Made::Dir);
        let driver = if has_dir { COORDINATOR } else { shard(0) };
        for victim in [COORDINATOR, shard(0), shard(1), shard(2)] {
            for step in 0.. {
                let mut b = Testbed::new(3);
                let (from, to) = (b.name_on(shard(0), "from"), b.name_on(shard(1), "to"));
                let (x, y) = (make(&mut b, &from, first), make(&mut b, &to, second));
                let flags = rename_flags::EXCHANGE;
                let request = RenameReq { flags, ..b.rename_req(&from, &to) };
                let call = b.ask(Op::Rename, driver, &request);
                if !(0..step).all(|_| b.deliver(|_| true)) {
                    break;
                }
                b.restart(victim);
                b.pass(Duration::from_secs(2));
                let lost = |e: &saker_types::Error| e.is(Class::Retry);
                if b.answer::<RenameReply>(call)
                    .is_none_or(|answer| answer.is_err_and(|e| lost(&e)))
                {
                    // The same number: had it been executed, it would be answered, not undone.
                    b.run::<RenameReply>(Op::Rename, driver, &request).unwrap();
                }
                b.pass(Duration::from_secs(8));
                let now = (id(&mut b, &from), id(&mut b, &to));
                assert_eq!(now, (y, x), "{first:?} {second:?}, {victim} after {step} messages");
                b.check();
            }
        }
    }
}

#[test]
fn no_directory_goes_below_itself() {
    let mut b = Testbed::new(3);
    b.mkdir("a").unwrap();
    b.mkdir("a/b").unwrap();
    b.mkdir("a/b/c").unwrap();
    b.create("a/f").unwrap();
    for (one, other) in [("a", "a/b"), ("a", "a/b/c"), ("a", "a/f"), ("a/b", "a/b/c")] {
        assert_eq!(errno(b.exchange(one, other)), Errno::EINVAL, "{one} {other}");
        assert_eq!(errno(b.exchange(other, one)), Errno::EINVAL, "{other} {one}");
    }
    b.exchange("a/b", "a/f").unwrap();
    b.exchange("a/f/c", "a/b").unwrap();
    b.check();
}

#[test]
fn both_must_be_there() {
    let mut b = Testbed::new(3);
    b.create("f").unwrap();
    b.mkdir("d").unwrap();
    for n in 0..3 {
        let absent = b.name_on(shard(n), "absent");
        for there in ["f", "d"] {
            assert_eq!(errno(b.exchange(there, &absent)), Errno::ENOENT);
            assert_eq!(errno(b.exchange(&absent, there)), Errno::ENOENT);
        }
    }
    let request = RenameReq { flags: 3, ..b.rename_req("f", "d") };
    let owner = b.owner("f");
    assert_eq!(errno(b.run::<RenameReply>(Op::Rename, owner, &request)), Errno::EINVAL);
    b.exchange("f", "f").unwrap();
    b.exchange("d", "d").unwrap();
    b.link("f", "same").unwrap();
    b.exchange("f", "same").unwrap();
    b.check();
}

#[test]
fn a_create_meets_the_old_or_the_new_directory_and_never_the_wrong_one() {
    for told_late in [1, 2] {
        let mut b = Testbed::new(3);
        let (one, other) = (b.name_on(shard(0), "one"), b.name_on(shard(2), "other"));
        let (first, second) = (b.mkdir(&one).unwrap().attr.id, b.mkdir(&other).unwrap().attr.id);
        let file = b.name_on(shard(1), "f");
        let path = format!("{one}/{file}");
        // Shard 1 has the old entry in its replica.
        assert_eq!(errno(b.stat(&at(&path))), Errno::ENOENT);
        let flags = rename_flags::EXCHANGE;
        let request = RenameReq { flags, ..b.rename_req(&one, &other) };
        let exchange = b.ask(Op::Rename, COORDINATOR, &request);
        let late =
            |m: &saker_sim::testbed::Message| m.asks(Op::Invalidate) && m.is_to(shard(told_late));
        b.settle_but(late);
        let request = b.create_req(at(&path), FileKind::Regular);
        let create = b.ask(Op::Create, shard(1), &request);
        b.settle_but(late);
        let before = b.answer::<Entry>(create);
        assert_eq!(before.is_some(), told_late == 1, "else it waits for the outcome");
        b.settle();
        b.answer::<RenameReply>(exchange).unwrap().unwrap();
        b.pass(Duration::from_millis(100));
        let made = before.or_else(|| b.answer::<Entry>(create)).unwrap().unwrap();
        assert_eq!(made.loc.pid, if told_late == 1 { first } else { second });
        b.check();
    }
}

#[test]
fn the_sticky_bit_asks_who_owns_both() {
    let user = |uid| Cred { uid, gid: uid, groups_known: true, ..Default::default() };
    for (n, home) in [(0, 0), (0, 1), (1, 0), (1, 2)] {
        let mut b = Testbed::new(3);
        b.mkdir("tmp").unwrap();
        let all =
            SetattrReq { ctx: b.ctx(), at: at("tmp"), mode: Some(0o1777), ..Default::default() };
        b.setattr(&all).unwrap();
        let make = |b: &mut Testbed, name: String| {
            let mut request = b.create_req(at(&name), FileKind::Regular);
            request.ctx.cred = user(5);
            let owner = b.owner_of(&request.at);
            b.run::<Entry>(Op::Create, owner, &request).unwrap();
            name
        };
        let (from, to, first) = (
            b.name_on(shard(0), "from"),
            b.name_on(shard(n), "to"),
            b.name_on(shard(home), "first"),
        );
        let [from, to, first] = [from, to, first].map(|name| format!("tmp/{name}"));
        make(&mut b, from.clone());
        make(&mut b, first.clone());
        b.link(&first, &to).unwrap();
        // A linked inode as the source, as the target, replaced, and exchanged.
        for (one, other) in [(&from, &to), (&to, &from)] {
            for flags in [rename_flags::EXCHANGE, 0] {
                let mut request = RenameReq { flags, ..b.rename_req(one, other) };
                request.ctx.cred = user(6);
                let owner = b.owner_of(&request.from);
                let refused = b.run::<RenameReply>(Op::Rename, owner, &request);
                assert_eq!(errno(refused), Errno::EPERM);
                let mut request = RenameReq { flags, ..b.rename_req(one, other) };
                request.ctx.cred = user(5);
                b.run::<RenameReply>(Op::Rename, owner, &request).unwrap();
            }
            // Whatever was replaced is made again.
            make(&mut b, one.clone());
            b.check();
        }
    }
}
