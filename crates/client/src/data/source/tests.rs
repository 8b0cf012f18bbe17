//! A file whose data comes from memory, as programs see it.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use saker_types::{Attr, Locator};

use super::*;
use crate::{Fallocate, File, Lock};

const READ: OpenFlags = OpenFlags::READ;

fn entry(size: u64) -> Entry {
    let attr = Attr { id: 7, mode: 0o100_644, size, ..Attr::default() };
    Entry { attr, loc: Locator { id: 7, ..Locator::default() }, ..Entry::default() }
}

fn open(size: u64, flags: OpenFlags) -> Result<File> {
    File::of_source(entry(size), flags, Bytes::from_static(b"0123456789"))
}

fn run<T>(future: impl Future<Output = T>) -> T {
    futures_util::FutureExt::now_or_never(future).unwrap()
}

#[test]
fn it_is_read_up_to_its_end() {
    let file = open(10, READ).unwrap();
    for (offset, len, data) in
        [(0, 4, "0123"), (8, 4, "89"), (10, 4, ""), (u64::MAX, 4, ""), (3, 0, "")]
    {
        assert_eq!(run(file.read(offset, len)).unwrap(), data, "{offset}");
    }
    assert_eq!((file.entry().attr.size, file.locator().id, file.cuts()), (10, 7, 0));
    let blind = open(10, OpenFlags { read: false, ..READ }).unwrap();
    assert_eq!(run(blind.read(0, 4)).unwrap_err().errno(), Errno::EBADF);
    let longer = open(11, READ).unwrap();
    assert_eq!(run(longer.read(8, 4)).unwrap_err().errno(), Errno::EIO, "it has not so many");
    assert_eq!(run(file.seek(Seek::Data, 3)).unwrap(), 3);
    assert_eq!(run(file.seek(Seek::Hole, 3)).unwrap(), 10);
    assert_eq!(run(file.seek(Seek::Hole, 10)).unwrap_err().errno(), Errno::ENXIO);
}

#[test]
fn it_cannot_be_written() {
    for flags in [
        OpenFlags { write: true, ..READ },
        OpenFlags { truncate: true, ..READ },
        OpenFlags { append: true, write: true, ..READ },
    ] {
        assert_eq!(open(10, flags).err().unwrap().errno(), Errno::EROFS);
    }
    let file = open(10, READ).unwrap();
    let errno = |result: Result<()>| result.unwrap_err().errno();
    assert_eq!(errno(run(file.write(0, b"x")).map(drop)), Errno::EBADF);
    assert_eq!(errno(run(file.fallocate(Fallocate::Grow, 0, 9))), Errno::EBADF);
    assert_eq!(errno(run(file.copy_to(0, &file, 5, 2)).map(drop)), Errno::EBADF);
    run(file.fsync()).unwrap();
    run(file.flush()).unwrap();
    run(file.still_holds_locks()).unwrap();
    run(file.release());
}

#[test]
fn nobody_locks_it() {
    let file = open(10, READ).unwrap();
    let lock = Lock::whole(1, false);
    assert_eq!(run(file.test_lock(&lock)).unwrap(), None);
    run(file.set_lock(&lock, Duration::ZERO)).unwrap();
    run(file.unlock(&lock)).unwrap();
    run(file.unlock_all(1, false));
}
