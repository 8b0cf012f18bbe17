use std::collections::BTreeMap;

use super::*;
use crate::codec::Codec;
use crate::inode::Meta;

fn meta(mode: u32) -> Meta {
    Meta { mode, uid: 1, gid: 2, mtime: (-5, 7), ..Meta::default() }
}

fn file(builder: &mut Builder, path: &str, partition: u32) -> Ino {
    let ino = builder.add(path.as_bytes(), &meta(0o100_644)).unwrap();
    let data =
        FileData { partition, offset: 4096, stored: 10, size: 10, codec: Codec::None, check: 0 };
    builder.set_data(ino, data, &[(10, 77)], Digest::of(path.as_bytes())).unwrap();
    ino
}

fn link(builder: &mut Builder, path: &str, target: &str) {
    let target = target.as_bytes().to_vec();
    builder.add(path.as_bytes(), &Meta { target, ..meta(0o120_777) }).unwrap();
}

fn example() -> Table {
    let mut builder = Builder::new();
    file(&mut builder, "a/b/deep", 0);
    let ino = file(&mut builder, "a/file", 1);
    builder.link(b"other", ino).unwrap();
    builder.add(b"a", &meta(0o040_750)).unwrap();
    builder.add(b"empty", &meta(0o040_700)).unwrap();
    let xattrs = vec![(b"user.x".to_vec(), b"value".to_vec()), (b"user.y".to_vec(), Vec::new())];
    builder.add(b"pipe", &Meta { xattrs, ..meta(0o010_600) }).unwrap();
    link(&mut builder, "to-b", "a/./b/");
    link(&mut builder, "a/up", "../other");
    link(&mut builder, "out", "/etc/passwd");
    link(&mut builder, "loop", "loop");
    link(&mut builder, "gone", "nothing/here");
    builder.finish(true)
}

#[test]
fn what_was_added_is_there() {
    let table = example();
    table.verify().unwrap();
    let names = |dir| table.children(dir).map(|(name, _)| name.to_vec()).collect::<Vec<_>>();
    let mut root = names(ROOT);
    root.sort();
    let wanted = ["a", "empty", "gone", "loop", "other", "out", "pipe", "to-b"];
    assert_eq!(root, wanted.map(|name| name.as_bytes().to_vec()));
    let a = table.lookup(ROOT, b"a").unwrap();
    assert_eq!((table.inode(a).mode, table.inode(a).nlink, table.inode(a).size), (0o040_750, 3, 3));
    assert_eq!(table.inode(ROOT).nlink, 4);
    let ino = table.lookup(a, b"file").unwrap();
    assert_eq!(table.lookup(ROOT, b"other"), Some(ino));
    let of = table.inode(ino);
    assert_eq!((of.nlink, of.uid, of.gid, of.mtime_s, of.mtime_ns), (2, 1, 2, -5, 7));
    let data = of.data().unwrap();
    assert_eq!((data.partition, data.offset, data.size, data.blocks()), (1, 4096, 10, 1));
    assert_eq!(table.block(&data, 0), Some((0..10, 77)));
    assert_eq!(table.block(&data, 1), None);
    assert_eq!(table.digest(ino), Some(Digest::of(b"a/file")));
    let pipe = table.lookup(ROOT, b"pipe").unwrap();
    assert_eq!(table.xattrs(pipe), [(&b"user.x"[..], &b"value"[..]), (b"user.y", b"")]);
    assert!(table.xattrs(ino).is_empty());
    assert_eq!(names(table.lookup(ROOT, b"empty").unwrap()), [b""; 0]);
    assert_eq!(names(ino), [b""; 0], "a file");
    let b = table.lookup(a, b"b").unwrap();
    assert_eq!((table.parent(b), table.parent(a), table.path_of(b)), (a, ROOT, b"a/b".to_vec()));
    for name in [&b""[..], b"A", b"aa", b".", &[7; 300]] {
        assert_eq!(table.lookup(ROOT, name), None);
    }
}

#[test]
fn paths_are_followed_as_the_kernel_does() {
    let table = example();
    let found = |path: &str, follow| table.resolve(ROOT, path.as_bytes(), follow);
    let ino = |path: &str| match found(path, false) {
        Resolved::Found(ino) => ino,
        other => panic!("{path}: {other:?}"),
    };
    let (a, b) = (ino("a"), ino("a/b"));
    for (path, wanted) in [
        ("", ROOT),
        ("./a/../a//.", a),
        ("to-b/.", b),
        ("to-b/deep", ino("a/b/deep")),
        ("to-b/../file", ino("other")),
        ("a/up", ino("other")),
        ("empty/", ino("empty")),
    ] {
        assert_eq!(found(path, true), Resolved::Found(wanted), "{path}");
    }
    assert_eq!(table.inode(ino("a/up")).kind(), FileKind::Symlink);
    assert_eq!(table.target(ino("a/up")), Some(&b"../other"[..]));
    assert_eq!(found("to-b/", false), Resolved::Found(b), "a directory is meant");
    let missing = |dir, name: &str| Resolved::Missing { dir, name: name.as_bytes().to_vec() };
    let outside = |path: &str| Resolved::Outside { path: path.as_bytes().to_vec() };
    for (path, wanted) in [
        ("new", missing(ROOT, "new")),
        ("a/b/new", missing(b, "new")),
        ("new/x", Resolved::NoDirectory),
        ("gone", Resolved::NoDirectory),
        ("other/x", Resolved::NotDirectory),
        ("other/", Resolved::NotDirectory),
        ("other/.", Resolved::NotDirectory),
        ("loop", Resolved::Loop),
        ("out", outside("/etc/passwd")),
        ("out/x", outside("/etc/passwd/x")),
        ("a/../../up", outside("../up")),
    ] {
        assert_eq!(found(path, true), wanted, "{path}");
    }
    assert_eq!(found(&"n".repeat(256), true), Resolved::TooLong);
    assert_eq!(table.resolve(ino("other"), b"x", true), Resolved::NotDirectory);
}

#[test]
fn any_number_of_names_is_found() {
    for count in [1, 2, 3, 1_000, 50_000] {
        let mut builder = Builder::new();
        let names: BTreeMap<String, Ino> = (0..count)
            .map(|n| format!("d/file-{n}"))
            .map(|name| (name.clone(), file(&mut builder, &name, 0)))
            .collect();
        let table = builder.finish(false);
        let dir = table.lookup(ROOT, b"d").unwrap();
        for (name, ino) in &names {
            assert_eq!(table.lookup(dir, &name.as_bytes()[2..]), Some(*ino));
            assert_eq!(table.lookup(dir, format!("{name}x").as_bytes()), None);
        }
        assert_eq!(table.children(dir).count(), count);
        assert_eq!(table.children_from(dir, count as u64 - 1).count(), 1);
        // 72 bytes an inode, 16 a name.
        let names: usize = names.keys().map(String::len).sum();
        assert!(table.as_bytes().len() <= count * 88 + names + 500);
    }
}

#[test]
fn tables_are_merged() {
    let mut other = Builder::new();
    file(&mut other, "a/b/more", 2);
    let ino = file(&mut other, "x", 2);
    other.link(b"y/z", ino).unwrap();
    let data = FileData {
        partition: 2,
        offset: 0,
        stored: 100,
        size: 9 << 20,
        codec: Codec::Lz4,
        check: 0,
    };
    let big = other.add(b"big", &meta(0o100_600)).unwrap();
    other.set_data(big, data, &[(40, 1), (70, 2), (100, 3)], Digest([3; 32])).unwrap();
    let other = other.finish(true);
    let mut both = Builder::new();
    both.merge(&other).unwrap();
    both.merge(&example()).unwrap();
    let both = both.finish(true);
    both.verify().unwrap();
    let ino = |path: &[u8]| match both.resolve(ROOT, path, false) {
        Resolved::Found(ino) => ino,
        other => panic!("{other:?}"),
    };
    assert_eq!(both.inode(ino(b"a")).mode, 0o040_750, "described by one of them");
    assert_eq!(both.children(ino(b"a/b")).count(), 2);
    assert_eq!((ino(b"x"), both.inode(ino(b"x")).nlink), (ino(b"y/z"), 2));
    assert_eq!(both.xattrs(ino(b"pipe")).len(), 2);
    assert_eq!(both.target(ino(b"a/up")), Some(&b"../other"[..]));
    let data = both.inode(ino(b"big")).data().unwrap();
    let blocks = [(0..40, 1), (40..70, 2), (70..100, 3)];
    assert_eq!(blocks.clone().map(Some), [0, 1, 2].map(|n| both.block(&data, n)));
    assert_eq!(both.block(&data, 3), None);
    assert_eq!(both.digest(ino(b"big")), Some(Digest([3; 32])));
    assert_eq!(both.partitions(), 3);
    let mut twice = Builder::new();
    twice.merge(&other).unwrap();
    assert!(twice.merge(&other).is_err(), "each path is there once");
}

#[test]
fn impossible_paths_are_refused() {
    let mut builder = Builder::new();
    file(&mut builder, "f", 0);
    builder.add(b"d", &meta(0o040_700)).unwrap();
    for path in
        [&b"f"[..], b"f/x", b"d", b"a//b", b"/a", b"a/", b"a/../b", b".", b"x\0", &[b'n'; 256]]
    {
        assert!(builder.add(path, &meta(0o040_700)).is_err(), "{path:?}");
    }
    assert!(builder.link(b"d", 1).is_err());
}

/// Whatever is wrong with a table's bytes: an error or something else that is there, no panic and no
/// endless walk.
#[test]
fn garbage_is_survived() {
    let whole = example().as_bytes().to_vec();
    let path = Path::new("garbage");
    let words = |bytes: &[u8]| -> Vec<u64> {
        let chunks = bytes.chunks(8);
        chunks
            .map(|c| u64::from_le_bytes(std::array::from_fn(|n| c.get(n).copied().unwrap_or(0))))
            .collect()
    };
    let look = |table: &Table| {
        let _ = table.verify();
        for ino in 0..table.len() {
            let _ = (table.parent(ino), table.target(ino), table.xattrs(ino), table.digest(ino));
            let _ = table.children(ino).take(100).count();
            let _ = table.path_of(ino);
            if let Some(data) = table.inode(ino).data() {
                let _ = (0..3).filter(|n| table.block(&data, *n).is_some()).count();
            }
            for path in ["a/b/deep", "to-b/deep", "loop", "x", "a/up"] {
                let _ = table.resolve(ino, path.as_bytes(), true);
            }
        }
    };
    for len in (0..whole.len()).step_by(8) {
        match Table::of_words(path, words(&whole[..len])) {
            Err(Error::Truncated { .. }) => {}
            Ok(_) => panic!("{len} of {} bytes are taken", whole.len()),
            Err(other) => panic!("{other}"),
        }
    }
    for at in 0..whole.len() {
        for to in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= to;
            if let Ok(table) = Table::of_words(path, words(&bytes)) {
                look(&table);
                let counts = table.parts.iter().any(|part| part.contains(&at));
                assert!(table.verify().is_err() || to == 0 || !counts, "byte {at}");
            }
        }
    }
    let mut newer = whole.clone();
    newer[8] = 2;
    assert!(matches!(Table::of_words(path, words(&newer)), Err(Error::Newer { .. })));
    newer[0] = b'x';
    assert!(matches!(Table::of_words(path, words(&newer)), Err(Error::Foreign(_))));
}

/// What another builder would never make: whole by its checksums, and refused.
#[test]
fn tables_that_lead_elsewhere_are_refused() {
    let merged = |table: &Table| Builder::new().merge(table).map_err(|e| e.to_string());
    let patched = |find: &[u8], put: &[u8]| {
        let mut bytes = example().as_bytes().to_vec();
        let at = bytes.windows(find.len()).position(|w| w == find).unwrap();
        bytes[at..at + put.len()].copy_from_slice(put);
        let words = bytes.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect();
        Table::of_words(Path::new("patched"), words).unwrap()
    };
    merged(&example()).unwrap();
    for name in [&b"../ot"[..], b"/othe", b"o/her", b"o\0her"] {
        let error = merged(&patched(b"other", name)).unwrap_err();
        assert!(error.contains("impossible name"), "{error}");
    }
    // A file below a link, and a directory that two names lead to.
    let mut link = Builder::new();
    let target = b"elsewhere".to_vec();
    link.add(b"d", &Meta { target, ..meta(0o120_777) }).unwrap();
    let mut below = Builder::new();
    file(&mut below, "d/f", 0);
    for [first, second] in [[&link, &below], [&below, &link]] {
        let (first, second) = (first.clone().finish(true), second.clone().finish(true));
        let mut both = Builder::new();
        both.merge(&first).unwrap();
        assert!(both.merge(&second).is_err());
    }
    let mut deep = Builder::new();
    let path = vec!["n".repeat(255); 17].join("/");
    deep.add(path.as_bytes(), &meta(0o040_700)).unwrap();
    assert!(merged(&deep.finish(true)).unwrap_err().contains("4,095"));
}

#[test]
fn a_small_table_takes_little_memory() {
    let mut builder = Builder::new();
    for n in 0..100 {
        let target = vec![b'x'; if n == 0 { 4000 } else { 1 }];
        builder.add(format!("l{n}").as_bytes(), &Meta { target, ..meta(0o120_777) }).unwrap();
    }
    // All links share the first one's target.
    let long = builder.inodes.iter().find(|inode| inode.size == 4000).copied().unwrap();
    for inode in &mut builder.inodes[1..] {
        (inode.offset, inode.size) = (long.offset, long.size);
    }
    let error = Builder::new().merge(&builder.finish(true)).unwrap_err().to_string();
    assert!(error.contains("two inodes"), "{error}");
}
