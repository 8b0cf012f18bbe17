//! What owners hear of files that are open, or not any more.
#![allow(clippy::unwrap_used)]

use std::pin::pin;

use futures_util::poll;
use saker_types::Locator;
use saker_types::wire::Op;

use crate::fake::RequestFault;
use crate::fake::setup::{RW, at, setup};

/// What a client has closed, by number of the last open, as its owner is told.
#[test]
fn owners_are_told_what_was_closed() {
    let t = setup();
    let told = || {
        t.run(t.fs.core.tell_closed());
        let renewals = std::mem::take(&mut t.fake.model().renewals);
        renewals.iter().for_each(|told| assert_eq!(told.hold.number, told.closed_below));
        renewals.into_iter().map(|told| (told.closed, told.closed_below)).collect::<Vec<_>>()
    };
    let (first, second) = (t.create("f"), t.open("f", RW));
    let id = first.locator().id;
    drop(first);
    assert_eq!(told(), [], "it is open");
    t.write(&second, 0, b"unsaved");
    drop(second);
    assert_eq!(told(), [], "something waits to be written");
    t.run(t.fs.getattr(&t.root, &at("f"))).unwrap();
    let again = t.open("f", RW);
    assert_eq!(told(), [], "it is open again");
    drop(again);
    assert_eq!(told(), [(vec![id], 4)]);
    assert_eq!(told(), []);
    // An open that is under way may be of the same file.
    t.fake.fault(Op::Open, RequestFault::Slow);
    let place = at("f");
    let mut slow = pin!(t.fs.open(&t.root, &place, RW));
    assert!(t.run(async { poll!(slow.as_mut()) }).is_pending());
    drop(t.open("f", RW));
    assert_eq!(told(), [], "it may be open");
    t.fake.deliver_answers();
    let opened = t.run(slow).unwrap().0;
    assert_eq!(told(), [], "it is open again");
    drop(opened);
    assert_eq!(told(), [(vec![id], 6)]);
}

/// Each of its shards says that a file is at the other: it was moved there and back.
#[test]
fn nobody_is_looked_for_in_a_circle() {
    let t = setup();
    let file = t.create("f");
    let here = file.locator();
    let there = Locator { name: b"elsewhere"[..].into(), ..here.clone() };
    drop(file);
    t.fake.model().elsewhere = [there, here].into_iter().cycle().take(20).collect();
    t.run(t.fs.core.tell_closed());
    assert!(t.fake.model().renewals.len() <= 3);
}
