//! Locks that are lost.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use saker_types::Errno;

use crate::fake::setup::{RW, Setup, pattern, setup};
use crate::{File, Lock};

fn lock(t: &Setup, file: &File) {
    let lock = Lock { exclusive: true, ..Lock::whole(7, true) };
    t.run(file.set_lock(&lock, Duration::ZERO)).unwrap();
}

#[test]
fn under_a_lock_that_is_lost_nothing_is_written() {
    // Heard of by a renewal, or by a write that comes when it is overdue.
    for overdue in [false, true] {
        for len in [100, 20_000] {
            let t = setup();
            let (file, other) = (t.create("f"), t.open("f", RW));
            let errno = |result: saker_types::Result<()>| result.unwrap_err().errno();
            lock(&t, &file);
            t.write(&file, 0, &pattern(len, 1));
            t.run(file.fsync()).unwrap();
            t.write(&file, 0, &pattern(len + 50, 2));
            t.fake.model().locked.clear();
            match overdue {
                true => t.fs.core.locks.forget_leases(),
                false => t.run(t.fs.core.locks.renew(&t.fs.core.cluster, &t.fs.core.inodes)),
            }
            t.fake.log();
            assert_eq!(errno(t.run(file.write(0, b"x")).map(drop)), Errno::EIO);
            assert_eq!(errno(t.run(file.fsync())), Errno::EIO);
            assert_eq!(errno(t.run(file.unlock(&Lock::whole(7, true)))), Errno::EIO);
            assert_eq!(
                errno(t.run(file.set_lock(&Lock::whole(7, true), Duration::ZERO))),
                Errno::EIO
            );
            assert_eq!(errno(t.run(other.fsync())), Errno::EIO, "it may have been its data");
            t.run(other.fsync()).unwrap();
            assert!(t.content("f") == pattern(len, 1), "{len} {overdue}");
            assert!(t.read(&other, 0, len + 50) == pattern(len, 1));
            // A holder that relied on nothing goes on, and so does one that begins anew.
            t.write(&other, 0, b"other");
            t.flush(&other);
            t.run(file.release());
            let again = t.open("f", RW);
            lock(&t, &again);
            t.write(&again, 5, b"again");
            t.run(again.unlock(&Lock::whole(7, true))).unwrap();
            assert_eq!(t.content("f")[..10], b"otheragain"[..]);
        }
    }
}
