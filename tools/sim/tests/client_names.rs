//! The client library against servers in this process: names and small files.
#![allow(clippy::unwrap_used)]

mod client_support;

use client_support::{Cluster, path};
use saker_client::{OpenFlags, SetAttr};
use saker_types::wire::At;
use saker_types::{Errno, FileKind, Locator};

const RW: OpenFlags = OpenFlags::READ_WRITE;

#[test]
fn a_tree_is_made_listed_moved_and_removed() {
    let t = Cluster::start(3, 0);
    t.run(async {
        let (fs, who) = (&t.fs, &t.root);
        fs.mkdir(who, &path("/a"), 0o755).await.unwrap();
        fs.mkdir(who, &path("/a/b"), 0o755).await.unwrap();
        fs.mkdir(who, &path("/c"), 0o755).await.unwrap();
        let exists = fs.mkdir(who, &path("/a/b"), 0o755).await.unwrap_err();
        assert_eq!(exists.errno(), Errno::EEXIST);
        let (file, entry) = fs.create(who, &path("/a/b/f"), 0o640, RW).await.unwrap();
        assert!(entry.created);
        file.write(0, b"hello").await.unwrap();
        file.flush().await.unwrap();
        file.release().await;
        fs.symlink(who, &path("/c/link"), b"../a/b/f").await.unwrap();
        let found = fs.resolve(who, b"/c/../c/link", true).await.unwrap();
        assert_eq!(found.at, path("/a/b/f"));
        assert_eq!(found.entry.unwrap().attr.size, 5);
        let kept = fs.resolve(who, b"/c/link", false).await.unwrap();
        assert_eq!(kept.entry.unwrap().attr.kind(), FileKind::Symlink);
        assert!(fs.resolve(who, b"/a/nothing", true).await.unwrap().entry.is_none());
        assert!(fs.resolve(who, b"/nothing/x", true).await.is_err());

        fs.rename(who, &path("/a/b"), &path("/c/d"), false, &[]).await.unwrap();
        let into_itself = fs.rename(who, &path("/c"), &path("/c/d/e"), false, &[]).await;
        assert_eq!(into_itself.unwrap_err().errno(), Errno::EINVAL);
        let (file, _) = fs.open(who, &path("/c/d/f"), RW).await.unwrap();
        assert_eq!(file.read(1, 10).await.unwrap(), "ello");
        let attr = fs.getattr(who, &path("/c")).await.unwrap().attr;
        assert_eq!(attr.nlink, 3, "/c/d");

        let busy = fs.rmdir(who, &path("/c/d")).await.unwrap_err();
        assert_eq!(busy.errno(), Errno::ENOTEMPTY);
        fs.unlink(who, &path("/c/d/f")).await.unwrap();
        assert_eq!(file.read(0, 10).await.unwrap(), "hello", "open files outlive their names");
        file.write(5, b"!").await.unwrap();
        file.fsync().await.unwrap();
        fs.rmdir(who, &path("/c/d")).await.unwrap();
        assert_eq!(fs.lookup(who, &path("/c/d")).await.unwrap_err().errno(), Errno::ENOENT);
    });
}

#[test]
fn an_open_file_is_followed_when_another_client_moves_it() {
    let t = Cluster::start(3, 0);
    let (other, who) = (t.connect(), &t.root);
    let (file, _) = t.run(t.fs.create(who, &path("/f"), 0o644, RW)).unwrap();
    t.run(file.write(0, b"one")).unwrap();
    other.block_on(async {
        for (from, to) in [("/f", "/g"), ("/g", "/h"), ("/h", "/i")] {
            other.rename(who, &path(from), &path(to), false, &[]).await.unwrap();
        }
        other.link(who, &path("/i"), &path("/hard")).await.unwrap();
    });
    t.run(file.flush()).unwrap();
    other.block_on(async {
        let (read, entry) = other.open(who, &path("/hard"), RW).await.unwrap();
        assert_eq!((entry.attr.nlink, entry.attr.size), (2, 3));
        assert_eq!(read.read(0, 9).await.unwrap(), "one");
        other.unlink(who, &path("/i")).await.unwrap();
        other.unlink(who, &path("/hard")).await.unwrap();
    });
    t.run(file.write(3, b"two")).unwrap();
    t.run(file.flush()).unwrap();
    assert_eq!(t.run(file.read(0, 9)).unwrap(), "onetwo");
}

#[test]
fn two_clients_see_each_others_small_writes() {
    let t = Cluster::start(2, 0);
    let (other, who) = (t.connect(), &t.root);
    let (a, _) = t.run(t.fs.create(who, &path("/f"), 0o644, RW)).unwrap();
    let (b, _) = other.block_on(other.open(who, &path("/f"), RW)).unwrap();
    t.run(a.write(0, b"aaaa")).unwrap();
    other.block_on(b.write(2, b"bb")).unwrap();
    t.run(a.flush()).unwrap();
    other.block_on(b.flush()).unwrap();
    let (c, _) = t.run(t.fs.open(who, &path("/f"), RW)).unwrap();
    assert_eq!(t.run(c.read(0, 9)).unwrap(), "aabb");
    let append = OpenFlags { append: true, ..RW };
    let (x, _) = t.run(t.fs.open(who, &path("/f"), append)).unwrap();
    let (y, _) = other.block_on(other.open(who, &path("/f"), append)).unwrap();
    for _ in 0..10 {
        t.run(x.write(0, b"x")).unwrap();
        other.block_on(y.write(0, b"y")).unwrap();
    }
    let cut = SetAttr { size: Some(8), ..SetAttr::default() };
    let handle = At::handle(y.locator());
    let entry = other.block_on(other.setattr(who, &handle, &cut)).unwrap();
    assert_eq!(entry.attr.size, 8);
    let (d, _) = t.run(t.fs.open(who, &path("/f"), RW)).unwrap();
    assert_eq!(t.run(d.read(0, 99)).unwrap(), "aabbxyxy");
}

#[test]
fn a_large_directory_is_listed_once_with_everything() {
    let t = Cluster::start(4, 0);
    t.run(async {
        let (fs, who) = (&t.fs, &t.root);
        fs.mkdir(who, &path("/d"), 0o755).await.unwrap();
        let dir = fs.lookup(who, &path("/d")).await.unwrap().loc;
        let names: Vec<String> = (0..1_500).map(|i| format!("f{i}")).collect();
        let made = names.iter().map(|name| async {
            fs.mknod(who, &At::child(dir.clone(), name.as_bytes()), 0o100_644, 0).await
        });
        for result in futures_util::future::join_all(made).await {
            result.unwrap();
        }
        fs.link(who, &path("/d/f7"), &path("/d/hard")).await.unwrap();
        let mut seen = Vec::new();
        let mut stream = fs.readdir(who, &dir, 0);
        while let Some(item) = stream.next().await.unwrap() {
            if item.name == "hard" {
                assert_eq!(item.attr.nlink, 2);
            }
            let at = At::handle(item.loc);
            if seen.len() % 100 == 0 {
                assert_eq!(fs.getattr(who, &at).await.unwrap().attr.id, item.attr.id);
            }
            seen.push(String::from_utf8(item.name.to_vec()).unwrap());
        }
        let mut expected = names.clone();
        expected.push("hard".to_owned());
        expected.sort();
        seen.sort();
        assert_eq!(seen, expected);
        assert_eq!(fs.statfs().await.unwrap().inodes, 1_500 + 2);
    });
}

#[test]
fn xattrs_and_access() {
    let t = Cluster::start(1, 0);
    t.run(async {
        let (fs, who) = (&t.fs, &t.root);
        fs.mknod(who, &path("/f"), 0o100_600, 0).await.unwrap();
        let f = path("/f");
        fs.setxattr(who, &f, b"user.a", b"1", 0).await.unwrap();
        fs.setxattr(who, &f, b"user.b", b"", 0).await.unwrap();
        let exists = fs.setxattr(who, &f, b"user.a", b"2", 1).await.unwrap_err();
        assert_eq!(exists.errno(), Errno::EEXIST);
        assert_eq!(fs.getxattr(who, &f, b"user.a").await.unwrap(), "1");
        let names = fs.listxattr(who, &f).await.unwrap();
        let mut names: Vec<&[u8]> = names.split(|b| *b == 0).filter(|n| !n.is_empty()).collect();
        names.sort();
        assert_eq!(names, [&b"user.a"[..], b"user.b"]);
        fs.removexattr(who, &f, b"user.a").await.unwrap();
        let gone = fs.getxattr(who, &f, b"user.a").await.unwrap_err();
        assert_eq!(gone.errno(), Errno::ENODATA);
        let nobody = saker_client::Caller { uid: 9, gid: 9, ..t.root.clone() };
        assert!(fs.access(&nobody, &f, 0).await.is_ok());
        assert_eq!(fs.access(&nobody, &f, 4).await.unwrap_err().errno(), Errno::EACCES);
        assert!(fs.access(who, &At::handle(Locator::root()), 7).await.is_ok());
    });
}
