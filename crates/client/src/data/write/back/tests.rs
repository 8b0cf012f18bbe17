//! What is never synced.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::fake::setup::{pattern, setup};

#[test]
fn what_is_never_synced_is_written_out_when_its_writer_pauses() {
    let t = setup();
    let file = t.create("f");
    let inode = t.fs.core.inodes.get(file.locator().id).unwrap();
    let written_at = || inode.with(|s| s.written_at());
    let look = |after: Duration| t.run(t.fs.core.write_out_old(written_at() + after));
    for len in [10, 20_000, 30_000] {
        t.write(&file, 0, &pattern(len, 1));
        look(Duration::ZERO);
        assert!(t.fs.is_dirty(file.locator().id), "its writer may go on");
        look(Duration::from_secs(1));
        assert!(t.content("f") == pattern(len, 1));
        assert!(!t.fs.is_dirty(file.locator().id), "its owner knows");
    }
    t.fake.log();
    look(Duration::from_secs(1));
    assert!(t.fake.log().is_empty(), "once");
}

#[test]
fn what_is_never_synced_is_written_out_in_time_while_its_writer_goes_on() {
    let t = setup();
    let file = t.create("f");
    t.write(&file, 0, b"abc");
    let inode = t.fs.core.inodes.get(file.locator().id).unwrap();
    let (since, max) = (inode.with(|s| s.dirty_since()), t.fs.core.options.write_back);
    for (after, is_old) in [(max - Duration::from_secs(1), false), (max, true)] {
        let now = since + after;
        inode.with(|s| s.set_written_at(now));
        t.run(t.fs.core.write_out_old(now));
        assert_eq!(!t.fs.is_dirty(file.locator().id), is_old, "{after:?}");
    }
    assert_eq!(t.content("f"), b"abc");
}
