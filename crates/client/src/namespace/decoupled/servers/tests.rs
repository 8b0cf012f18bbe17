#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use futures_util::future::join;
use saker_types::wire::At;
use saker_types::{FileKind, InodeId};

use super::*;
use crate::fake::setup::RW;
use crate::{Caller, ClientOptions, File, SetAttr};

/// Where the directory is in its cluster.
const PARENT: InodeId = 7;
const ROOT: InodeId = 500;
const IDS: IdRange = IdRange { first: 1 << 20, count: 1 << 20 };

fn root() -> Locator {
    Locator::entry(PARENT, Bytes::from_static(b"sub"), ROOT)
}

fn row(id: InodeId, kind: FileKind) -> Inode {
    let mut row = Inode::default();
    (row.attr.id, row.attr.mode, row.attr.nlink) = (id, kind.bits() | 0o755, 1);
    (row.attr.mtime_ns, row.attr.ctime_ns) = (id * 10, id * 10);
    row
}

fn entry(pid: InodeId, name: &str) -> RowPlace {
    RowPlace::Entry(EntryKey { pid, name: Bytes::copy_from_slice(name.as_bytes()) })
}

fn at(path: &str) -> At {
    let names = path.split('/').filter(|name| !name.is_empty());
    At::below(root(), names.map(|name| Bytes::copy_from_slice(name.as_bytes())).collect())
}

/// A client of a cluster that has the directory, and servers of it here.
struct Servers {
    cluster: Fs,
    servers: PrivateServers,
    who: Caller,
}

fn try_start(kept: KeptIn, options: ClientOptions) -> Result<Servers> {
    let (_, cluster) = crate::fake::start(options);
    let (root, row) = (root(), row(ROOT, FileKind::Directory));
    let started = PrivateServers::start(&cluster, kept, &root, row);
    let servers = cluster.block_on(started)?;
    Ok(Servers { cluster, servers, who: Caller::root() })
}

fn start(kept: KeptIn) -> Servers {
    try_start(kept, ClientOptions::default()).unwrap()
}

/// The same with ids.
fn in_memory() -> Servers {
    let t = start(KeptIn::Memory);
    t.run(t.servers.give_ids(IDS)).unwrap();
    t
}

impl Servers {
    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.cluster.block_on(future)
    }

    fn fs(&self) -> &Fs {
        self.servers.fs()
    }

    fn open(&self, path: &str) -> File {
        self.run(self.fs().open(&self.who, &at(path), RW)).unwrap().0
    }

    fn create(&self, path: &str, data: &str) -> InodeId {
        self.run(async {
            let (file, entry) = self.fs().create(&self.who, &at(path), 0o644, RW).await.unwrap();
            file.write(0, data.as_bytes()).await.unwrap();
            file.flush().await.unwrap();
            file.release().await;
            entry.attr.id
        })
    }

    fn read(&self, path: &str) -> Bytes {
        let file = self.open(path);
        self.run(file.read(0, 4096)).unwrap()
    }

    fn mkdir(&self, path: &str) -> InodeId {
        self.run(self.fs().mkdir(&self.who, &at(path), 0o755)).unwrap().attr.id
    }

    fn unlink(&self, path: &str) {
        self.run(self.fs().unlink(&self.who, &at(path))).unwrap();
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.run(self.fs().rename(&self.who, &at(from), &at(to), false, &[])).map(drop)
    }

    fn attr(&self, path: &str) -> Result<saker_types::Attr> {
        self.run(self.fs().getattr(&self.who, &at(path))).map(|entry| entry.attr)
    }

    fn names(&self, dir: &str) -> Vec<String> {
        let loc = match dir {
            "" => root(),
            dir => self.run(self.fs().lookup(&self.who, &at(dir))).unwrap().loc,
        };
        let mut stream = self.fs().readdir(&self.who, &loc, 0);
        let mut names = Vec::new();
        while let Some(item) = self.run(stream.next()).unwrap() {
            names.push(String::from_utf8(item.name.to_vec()).unwrap());
        }
        names.sort();
        names
    }

    fn changes(&self) -> Vec<RowChange> {
        self.run(self.servers.changes(false)).unwrap()
    }

    /// What differs, by name: the inode there now, and that of the cluster.
    fn differs(&self) -> BTreeMap<String, (InodeId, InodeId)> {
        let name = |place: &RowPlace| match place {
            RowPlace::Entry(key) => {
                let name = std::str::from_utf8(&key.name).unwrap();
                if key.pid == ROOT { name.to_owned() } else { format!("{}/{name}", key.pid) }
            }
            RowPlace::Attr { id, .. } => format!("#{id}"),
        };
        let told =
            |change: &RowChange| (change.row.as_ref().map_or(0, |row| row.attr.id), change.expect);
        self.changes().iter().map(|change| (name(&change.place), told(change))).collect()
    }

    fn merge(&self) {
        self.mark_merged(&self.changes());
        assert_eq!(self.changes(), []);
    }

    fn mark_merged(&self, changes: &[RowChange]) {
        let rows = changes.iter().map(RowChange::merged).collect();
        self.run(self.servers.mark_merged(rows)).unwrap();
    }
}

fn errno<T>(result: Result<T>) -> Errno {
    result.err().unwrap().errno()
}

#[test]
fn names_are_as_on_the_servers() {
    let t = in_memory();
    t.mkdir("a");
    t.mkdir("a/b");
    let file = t.create("a/b/f", "data");
    assert!((IDS.first..IDS.first + IDS.count).contains(&file));
    assert_eq!((t.read("a/b/f"), t.attr("a/b/f").unwrap().size), (Bytes::from("data"), 4));
    assert_eq!(errno(t.run(t.fs().mkdir(&t.who, &at("a/b"), 0o755))), Errno::EEXIST);
    assert_eq!(errno(t.run(t.fs().rmdir(&t.who, &at("a/b")))), Errno::ENOTEMPTY);
    t.rename("a/b/f", "g").unwrap();
    assert_eq!((errno(t.attr("a/b/f")), t.attr("g").unwrap().id), (Errno::ENOENT, file));
    // Directories move by the coordinator.
    t.mkdir("c");
    t.rename("a/b", "c/d").unwrap();
    assert_eq!(errno(t.rename("c", "c/d/e")), Errno::EINVAL);
    assert_eq!(
        (t.names(""), t.names("c")),
        (vec!["a".into(), "c".into(), "g".into()], vec!["d".into()])
    );
    assert_eq!(t.attr("c").unwrap().nlink, 3);
    t.run(t.fs().rmdir(&t.who, &at("a"))).unwrap();
    let mode = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    t.run(t.fs().setattr(&t.who, &at("c"), &mode)).unwrap();
    assert_eq!(t.attr("c").unwrap().mode & 0o777, 0o700);
    t.run(t.fs().symlink(&t.who, &at("s"), b"c/d")).unwrap();
    assert_eq!(t.run(t.fs().readlink(&t.who, &at("s"))).unwrap(), "c/d");
    // Somebody else may not look into it.
    let other = Caller { uid: 9, gid: 9, ..Caller::root() };
    assert_eq!(errno(t.run(t.fs().lookup(&other, &at("c/d")))), Errno::EACCES);
    // A handle's place, by the path from the cluster's root.
    let above = [Locator::entry(1, "top".into(), PARENT), root()];
    let c = t.run(t.fs().lookup(&t.who, &at("c"))).unwrap().loc;
    let d = t.run(t.fs().lookup(&t.who, &at("c/d"))).unwrap().loc;
    t.mkdir("m");
    let chain = [&above[..], &[c, d.clone()]].concat();
    let to = At::child(d, b"m");
    t.run(t.fs().rename(&t.who, &at("m"), &to, false, &chain)).unwrap();
    assert_eq!(t.names("c/d"), ["m"]);
}

#[test]
fn many_names_are_listed() {
    let t = in_memory();
    t.mkdir("d");
    for n in 0..10_000 {
        let at = at(&format!("d/{n:05}"));
        t.run(t.fs().mknod(&t.who, &at, FileKind::Regular.bits() | 0o644, 0)).unwrap();
    }
    let names = t.names("d");
    assert!(names.len() == 10_000 && names.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(t.servers.ids_left(), IDS.count - 10_001);
}

#[test]
fn xattrs_links_and_files_without_a_name() {
    let t = in_memory();
    let id = t.create("f", "data");
    t.run(t.fs().setxattr(&t.who, &at("f"), b"user.x", b"1", 0)).unwrap();
    t.run(t.fs().link(&t.who, &at("f"), &at("g"))).unwrap();
    assert_eq!(t.run(t.fs().getxattr(&t.who, &at("g"), b"user.x")).unwrap(), "1");
    assert_eq!((t.attr("g").unwrap().nlink, t.attr("g").unwrap().id), (2, id));
    let file = t.open("g");
    t.unlink("f");
    t.unlink("g");
    assert_eq!(errno(t.attr("g")), Errno::ENOENT);
    t.run(async {
        assert_eq!(file.read(0, 10).await.unwrap(), "data");
        file.write(4, b" and more").await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(file.read(0, 20).await.unwrap(), "data and more");
        let at = At::handle(file.locator());
        assert_eq!(t.fs().getattr(&t.who, &at).await.unwrap().attr.nlink, 0);
    });
    assert_eq!(t.changes(), [], "what has no name is nobody's business");
}

/// What a process that was killed leaves is what its files have now.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for found in std::fs::read_dir(from).unwrap() {
        let found = found.unwrap();
        let to = to.join(found.file_name());
        match found.file_type().unwrap().is_dir() {
            true => copy(&found.path(), &to),
            false => _ = std::fs::copy(found.path(), to).unwrap(),
        }
    }
}

#[test]
fn a_directory_has_everything_that_was_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let t = start(KeptIn::Dir(first.clone()));
    t.run(t.servers.give_ids(IDS)).unwrap();
    t.run(t.servers.insert(vec![(entry(ROOT, "old"), row(501, FileKind::Regular))])).unwrap();
    t.create("a", "data");
    t.mkdir("d");
    let last = t.create("d/b", "more");
    t.merge();
    t.rename("a", "d/c").unwrap();
    t.unlink("old");
    let (before, differs) = (t.attr("d").unwrap(), t.differs());
    assert_eq!(
        errno(try_start(KeptIn::Dir(first.clone()), ClientOptions::default()).map(drop)),
        Errno::EBUSY
    );
    copy(&first, &second);
    // It goes on, which nobody will know.
    t.create("late", "x");
    let t = start(KeptIn::Dir(second.clone()));
    assert_eq!((t.names(""), t.names("d")), (vec!["d".to_owned()], vec!["b".into(), "c".into()]));
    assert_eq!((t.attr("d").unwrap(), t.differs()), (before, differs));
    assert_eq!((t.read("d/b"), t.read("d/c")), (Bytes::from("more"), Bytes::from("data")));
    let next = t.create("next", "x");
    assert!(next > last && t.servers.ids_left() < IDS.count, "ids are not given out again");
    // And once more, after it has ended as it should.
    drop(t);
    let t = start(KeptIn::Dir(second.clone()));
    assert_eq!(t.names(""), ["d", "next"]);
    drop(t);
    let (_, cluster) = crate::fake::start(ClientOptions::default());
    let other = Locator { name: "other".into(), ..root() };
    let row = row(ROOT, FileKind::Directory);
    let started = PrivateServers::start(&cluster, KeptIn::Dir(second), &other, row);
    assert_eq!(errno(cluster.block_on(started).map(drop)), Errno::EINVAL);
}

#[test]
fn a_merge_is_known_whenever_the_process_ends() {
    const MANY: usize = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let t = start(KeptIn::Dir(path("first")));
    t.run(t.servers.give_ids(IDS)).unwrap();
    for n in 0..MANY {
        let at = at(&format!("{n:05}"));
        t.run(t.fs().mknod(&t.who, &at, FileKind::Regular.bits() | 0o644, 0)).unwrap();
    }
    let changes = t.changes();
    let rows: Arc<[MergedRow]> = changes.iter().map(RowChange::merged).collect();
    t.run(t.servers.begin_merge(rows.clone())).unwrap();
    copy(&path("first"), &path("begun"));
    let request = MergeReq { policy: 3, attempt: 9, ..MergeReq::default() };
    t.run(t.servers.ask_merge(&request)).unwrap();
    copy(&path("first"), &path("asked"));
    let half = t.run(t.servers.servers.run(|state| {
        let mut shard = state.shard.borrow_mut();
        shard.merge_is_made();
        shard.take_merged()
    }));
    assert!(half.unwrap().unwrap(), "there is more");
    copy(&path("first"), &path("half"));
    let open = |name: &str| {
        let t = start(KeptIn::Dir(path(name)));
        let unfinished = t.run(t.servers.unfinished_merge()).unwrap();
        (t, unfinished)
    };
    let (t, unfinished) = open("begun");
    assert_eq!((unfinished, t.changes().len()), (None, MANY), "it was not asked for");
    drop(t);
    let (t, unfinished) = open("asked");
    assert_eq!(unfinished, Some(Unfinished::Asked(request.encode_to_vec().into())));
    t.run(t.servers.finish_merge(false)).unwrap();
    assert_eq!((t.run(t.servers.unfinished_merge()).unwrap(), t.changes().len()), (None, MANY));
    // And now it is made, after something else was done.
    t.run(t.servers.begin_merge(rows)).unwrap();
    t.rename("00000", "moved").unwrap();
    t.run(t.servers.merge_is_made(Arc::default())).unwrap();
    let left = t.differs();
    let first = changes
        .iter()
        .find(|change| matches!(&change.place, RowPlace::Entry(key) if key.name == "00000"));
    let first = first.unwrap().row.as_ref().unwrap().attr.id;
    assert_eq!(left, BTreeMap::from([("00000".into(), (0, first)), ("moved".into(), (first, 0))]));
    drop(t);
    let (t, unfinished) = open("half");
    assert_eq!(unfinished, Some(Unfinished::Made));
    t.run(t.servers.finish_merge(true)).unwrap();
    assert_eq!((t.changes(), t.run(t.servers.unfinished_merge()).unwrap()), (vec![], None));
}

#[test]
fn changes_are_where_rows_and_cluster_differ() {
    let t = in_memory();
    assert_eq!(t.changes(), []);
    let linked = |id| Inode { home_slot: Some(3), ..row(id, FileKind::Regular) };
    let mut attributes = row(504, FileKind::Regular);
    attributes.attr.nlink = 2;
    t.run(t.servers.insert(vec![
        (entry(ROOT, "dir"), row(501, FileKind::Directory)),
        (entry(501, "f"), row(502, FileKind::Regular)),
        (entry(ROOT, "g"), row(503, FileKind::Regular)),
        (entry(ROOT, "h1"), linked(504)),
        (entry(ROOT, "h2"), linked(504)),
        (RowPlace::Attr { slot: 3, id: 504 }, attributes),
        (entry(ROOT, "empty"), row(505, FileKind::Directory)),
    ]))
    .unwrap();
    assert_eq!(t.changes(), []);
    let shown = t.attr("dir").unwrap();
    assert_eq!((shown.mtime_ns, shown.ctime_ns, shown.nlink), (5010, 5010, 2));
    assert_eq!((t.attr("").unwrap().nlink, t.attr("h2").unwrap().nlink), (4, 2));
    // Names that come and go change no row of a directory that was there.
    let new = t.create("dir/new", "data");
    assert_eq!(t.differs(), BTreeMap::from([("501/new".into(), (new, 0))]));
    assert!(t.attr("dir").unwrap().mtime_ns > 5010);
    let change = &t.changes()[0];
    let made = change.row.as_ref().unwrap();
    assert_eq!((&made.inline[..], made.append_end, &made.seen[..]), (&b"data"[..], 0, &[][..]));
    t.unlink("dir/new");
    assert_eq!(t.changes(), [], "made and removed");
    // Changed, moved, removed.
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    t.run(t.fs().setattr(&t.who, &at("g"), &mode)).unwrap();
    t.rename("dir/f", "k").unwrap();
    t.run(t.fs().rmdir(&t.who, &at("empty"))).unwrap();
    t.unlink("h1");
    let expected = BTreeMap::from([
        ("g".into(), (503, 503)),
        ("501/f".into(), (0, 502)),
        ("k".into(), (502, 0)),
        ("empty".into(), (0, 505)),
        ("h1".into(), (0, 504)),
        ("#504".into(), (504, 504)),
    ]);
    assert_eq!(t.differs(), expected);
    let was_directory = |change: &&RowChange| change.was_directory;
    assert_eq!(t.changes().iter().filter(was_directory).count(), 1);
    // What changes while a merge is under way still differs afterwards.
    let changes = t.changes();
    t.create("g2", "x");
    let mode = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    t.run(t.fs().setattr(&t.who, &at("k"), &mode)).unwrap();
    t.mark_merged(&changes);
    let differs = t.differs();
    assert_eq!(differs.keys().collect::<Vec<_>>(), ["g2", "k"]);
    assert_eq!(differs["k"], (502, 502));
    // A new directory has the times that are shown.
    t.merge();
    let dir = t.mkdir("fresh");
    t.create("fresh/f", "x");
    let shown = t.attr("fresh").unwrap();
    let changes = t.changes();
    let row =
        changes.iter().filter_map(|change| change.row.as_ref()).find(|row| row.attr.id == dir);
    let times = |attr: &saker_types::Attr| (attr.mtime_ns, attr.ctime_ns);
    assert_eq!(row.map(|row| times(&row.attr)), Some(times(&shown)));
    t.merge();
    // Swapped by way of a third name.
    t.rename("g", "x").unwrap();
    t.rename("k", "g").unwrap();
    t.rename("x", "k").unwrap();
    let expected = BTreeMap::from([("g".into(), (502, 503)), ("k".into(), (503, 502))]);
    assert_eq!(t.differs(), expected);
    t.merge();
}

#[test]
fn what_was_inserted_stays_as_it_has_become() {
    let t = in_memory();
    let rows = || {
        vec![
            (entry(ROOT, "a"), row(501, FileKind::Regular)),
            (entry(ROOT, "b"), row(502, FileKind::Regular)),
        ]
    };
    t.run(t.servers.insert(rows())).unwrap();
    t.unlink("a");
    t.rename("b", "c").unwrap();
    let before = t.changes();
    t.run(t.servers.insert(rows())).unwrap();
    assert_eq!((t.changes(), t.names("")), (before, vec!["c".to_owned()]));
    let both = vec![
        (entry(ROOT, "fine"), row(503, FileKind::Regular)),
        (entry(ROOT, "c"), row(504, FileKind::Regular)),
    ];
    assert_eq!(errno(t.run(t.servers.insert(both))), Errno::EEXIST);
    let none = vec![(entry(ROOT, "n"), Inode::default())];
    assert_eq!(errno(t.run(t.servers.insert(none))), Errno::EINVAL);
    assert_eq!(t.names(""), ["c"], "nothing of it was inserted");
}

#[test]
fn without_ids_nothing_is_made_until_there_are_some() {
    let options = ClientOptions { timeout: Duration::from_millis(100), ..ClientOptions::default() };
    let t = try_start(KeptIn::Memory, options).unwrap();
    let mode = FileKind::Regular.bits() | 0o644;
    let make = async |name| t.fs().mknod(&t.who, &at(name), mode, 0).await;
    assert_eq!(errno(t.run(make("none"))), Errno::ETIMEDOUT);
    t.run(t.servers.give_ids(IdRange { first: 1000, count: 2 })).unwrap();
    let ids = ["a", "b"].map(|name| t.run(make(name)).unwrap().attr.id);
    assert_eq!((ids, t.servers.ids_left()), ([1000, 1001], 0));
    let give = t.servers.give_ids(IdRange { first: 2000, count: 1 });
    let (made, given) = t.run(join(make("c"), give));
    given.unwrap();
    assert_eq!(made.unwrap().attr.id, 2000);
    // Names move without.
    t.rename("a", "d").unwrap();
    assert_eq!(t.names(""), ["b", "c", "d"]);
}

#[test]
fn who_asks_servers_that_cannot_go_on_is_told_at_once() {
    let t = in_memory();
    let (tell, told) = std::sync::mpsc::channel();
    t.servers.when_dead(move |why| tell.send(why.to_owned()).unwrap());
    let died = t.run(t.servers.servers.run(|_| panic!("as it is told")));
    assert_eq!(died, None::<()>);
    // Requests have a minute.
    let begun = time::now();
    assert_eq!(errno(t.attr("")), Errno::EIO);
    assert!(time::now() - begun < Duration::from_secs(20));
    assert!(told.recv_timeout(Duration::from_secs(20)).unwrap().contains("panicked"));
    assert_eq!(errno(t.run(t.servers.changes(false))), Errno::EIO);
}

#[test]
fn who_asks_after_the_end_is_told() {
    let options = ClientOptions { timeout: Duration::from_millis(50), ..ClientOptions::default() };
    let t = try_start(KeptIn::Memory, options).unwrap();
    let fs = t.fs().clone();
    assert!(t.attr("").is_ok());
    drop(t.servers);
    assert_eq!(errno(t.cluster.block_on(fs.getattr(&t.who, &at("")))), Errno::EIO);
}
