//! The number of links to one inode has a bound.
#![allow(clippy::unwrap_used)]

use saker_sim::testbed::{RequestResult, Testbed, at};
use saker_types::wire::{At, Entry, LinkReq, Op};
use saker_types::{Errno, Locator, limits};

/// Links a home as a name; everything before it was answered.
fn link(b: &mut Testbed, home: &Locator, to: &str) -> RequestResult<Entry> {
    let mut ctx = b.ctx();
    ctx.ack = ctx.seq;
    let request = LinkReq { ctx, from: At::handle(home.clone()), to: at(to) };
    b.run(Op::Link, b.owner_of(&request.from), &request)
}

#[test]
fn the_last_link_that_fits_is_made_and_no_other() {
    let mut b = Testbed::new(2);
    b.create("first").unwrap();
    let home = b.link("first", "second").unwrap().loc;
    for n in 2..limits::LINKS_MAX {
        link(&mut b, &home, &format!("n{n}")).unwrap();
    }
    assert_eq!(b.stat(&at("first")).unwrap().attr.nlink, limits::LINKS_MAX);
    assert_eq!(link(&mut b, &home, "more").unwrap_err().errno(), Errno::EMLINK);
    b.unlink("n2").unwrap();
    assert_eq!(link(&mut b, &home, "more").unwrap().attr.nlink, limits::LINKS_MAX);
}
