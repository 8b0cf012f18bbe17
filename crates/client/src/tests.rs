//! The client as a whole.
#![allow(clippy::unwrap_used)]

use saker_types::Locator;

use crate::fake::setup::{at, setup};

#[test]
fn closing_the_client_writes_out_and_ends_the_session() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, b"kept");
    drop(file);
    t.fs.close().unwrap();
    assert_eq!(t.content("f"), b"kept");
    assert_eq!(t.fake.log(), ["create", "close", "renew", "close_session"]);
    t.create("g");
}

#[test]
fn futures_may_move_between_threads() {
    fn check<T: Send>(_: &T) {}
    let t = setup();
    let file = t.create("f");
    check(&file.read(0, 1));
    check(&file.write(0, b"x"));
    check(&file.flush());
    check(&t.fs.getattr(&t.root, &at("f")));
    check(&t.fs.resolve(&t.root, b"/f", true));
    check(&t.fs.statfs());
    check(&t.fs.readdir(&t.root, &Locator::root(), 0).next());
}
