#![allow(clippy::unwrap_used)]
use super::*;
use crate::Caller;

fn entry(size: u64, data_version: u64, inline: &'static [u8]) -> Entry {
    Entry {
        attr: Attr { id: 7, size, data_version, ctime_ns: data_version, ..Attr::default() },
        loc: Locator::entry(1, Bytes::from_static(b"f"), 7),
        inline: Bytes::from_static(inline),
        ..Entry::default()
    }
}

fn chunked(size: u64, data_version: u64) -> Entry {
    let mut entry = entry(size, data_version, b"");
    entry.attr.chunked = true;
    entry
}

fn data(inode: &OpenInode) -> Option<Vec<u8>> {
    inode.with(|s| s.inline().map(|d| d.to_vec()))
}

#[test]
fn handles_share_one_inode_until_the_last_is_closed() {
    let inodes = OpenInodes::default();
    let (a, b) = (
        inodes.open(&entry(3, 1, b"abc"), Time::ZERO),
        inodes.open(&entry(3, 1, b"abc"), Time::ZERO),
    );
    assert!(Arc::ptr_eq(&a, &b));
    inodes.close(&a);
    assert!(inodes.get(7).is_some());
    inodes.close(&b);
    assert!(inodes.get(7).is_none());
}

#[test]
fn a_dirty_inode_outlives_its_handles_until_it_is_clean() {
    let inodes = OpenInodes::default();
    let inode = inodes.open(&entry(0, 1, b""), Time::ZERO);
    assert!(!inodes.any_dirty() && inodes.dirty(7).is_none());
    inode.with(|s| s.write_inline(0, b"xy", &Caller::root()));
    assert!(inodes.any_dirty() && inodes.dirty(7).is_some());
    inodes.close(&inode);
    inodes.sweep();
    assert!(inodes.get(7).is_some());
    inode.with(|s| s.discard());
    inodes.sweep();
    assert!(inodes.get(7).is_none() && !inodes.any_dirty());
}

#[test]
fn an_open_brings_fresh_data_unless_it_is_older_or_the_file_dirty() {
    let inodes = OpenInodes::default();
    let inode = inodes.open(&entry(3, 4, b"abc"), Time::ZERO);
    inodes.open(&entry(5, 5, b"fresh"), Time::ZERO);
    assert_eq!(data(&inode).unwrap(), b"fresh");
    inodes.open(&entry(3, 4, b"abc"), Time::ZERO);
    assert_eq!(data(&inode).unwrap(), b"fresh", "an answer that was overtaken changes nothing");
    inode.with(|s| s.write_inline(5, b"!", &Caller::root()));
    inodes.open(&entry(2, 6, b"no"), Time::ZERO);
    assert_eq!(data(&inode).unwrap(), b"fresh!");
    let (size, base) = inode.with(|s| (s.attr().size, s.attr().data_version));
    assert_eq!((size, base), (6, 5), "unsaved bytes belong to the version they were put over");
    assert!(inode.with(|s| s.is_overtaken()));
    inode.with(|s| s.rebase(&entry(2, 6, b"no")));
    assert!(!inode.with(|s| s.is_overtaken()));
}

#[test]
fn attributes_alone_make_data_of_another_version_unknown() {
    let inodes = OpenInodes::default();
    let inode = inodes.open(&entry(3, 4, b"abc"), Time::ZERO);
    let generation = inode.with(|s| s.generation());
    inode.with(|s| s.answered(&entry(3, 4, b""), None));
    assert_eq!(data(&inode).unwrap(), b"abc");
    inode.with(|s| s.answered(&entry(9, 5, b""), None));
    assert_eq!(data(&inode), None);
    assert!(inode.with(|s| s.generation()) > generation, "what was read ahead is wrong now");
}

#[test]
fn writes_beyond_the_data_leave_zeros() {
    let inodes = OpenInodes::default();
    let inode = inodes.open(&entry(2, 1, b"ab"), Time::ZERO);
    inode.with(|s| s.write_inline(4, b"ef", &Caller::root()));
    assert_eq!(data(&inode).unwrap(), b"ab\0\0ef");
    inode.with(|s| s.write_inline(1, b"B", &Caller::root()));
    assert_eq!(data(&inode).unwrap(), b"aB\0\0ef");
    assert_eq!(inode.with(|s| s.unsaved()), [(1, 2), (4, 6)]);
}

#[test]
fn a_conflict_puts_our_bytes_over_theirs() {
    let inodes = OpenInodes::default();
    let inode = inodes.open(&entry(3, 1, b"abc"), Time::ZERO);
    inode.with(|s| s.write_inline(1, b"X", &Caller::root()));
    assert!(inode.with(|s| s.rebase(&entry(5, 2, b"theirs"))).is_empty());
    assert_eq!(data(&inode).unwrap(), b"tXeirs");
    assert_eq!(inode.with(|s| s.attr().data_version), 2);
    assert!(inode.is_dirty());
    // Truncated by somebody else: what we wrote is later, the rest is gone.
    inode.with(|s| s.rebase(&entry(0, 3, b"")));
    assert_eq!(data(&inode).unwrap(), b"\0X");
    assert_eq!(inode.with(|s| s.attr().size), 2);
}

#[test]
fn a_conflict_with_a_chunked_file_gives_our_bytes_back() {
    let inodes = OpenInodes::default();
    let inode = inodes.open(&entry(3, 1, b"abc"), Time::ZERO);
    inode.with(|s| {
        s.write_inline(0, b"A", &Caller::root());
        s.write_inline(2, b"C", &Caller::root());
    });
    let pieces = inode.with(|s| s.rebase(&chunked(9_000, 2)));
    let expected = vec![(0, Bytes::from_static(b"A")), (2, Bytes::from_static(b"C"))];
    assert_eq!(pieces, expected);
    assert!(inode.with(|s| s.attr().chunked && s.unsaved().is_empty() && s.attr().size == 9_000));
}
