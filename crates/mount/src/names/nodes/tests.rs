#![allow(clippy::unwrap_used, clippy::disallowed_methods)]
use saker_client::Caller;
use saker_types::limits::NAME_KEEP_MAX;
use saker_types::wire::KeptDir;

use super::*;
use crate::names::walk::WalkStep;

const DIR: u32 = 0o040_755;
const FILE: u32 = 0o100_644;

fn name(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn entry(pid: u64, name: &'static str, id: u64, mode: u32) -> Entry {
    let loc = Locator::entry(pid, name.into(), id);
    Entry { attr: Attr { id, mode, ..Attr::default() }, loc, ..Entry::default() }
}

fn plain() -> Nodes {
    Nodes::new(Gauge::default(), false, Leases::Hot)
}

fn guessing() -> Nodes {
    Nodes::new(Gauge::default(), true, Leases::Hot)
}

fn held(nodes: &Nodes) -> i64 {
    nodes.lock().count.get()
}

/// Holds `name` in `dir`, whose inode is `pid`.
fn hold(
    nodes: &Nodes,
    dir: FuseNodeId,
    pid: u64,
    text: &'static str,
    id: u64,
    mode: u32,
) -> FuseNodeId {
    nodes.count_lookup(dir, &name(text), &entry(pid, text, id, mode))
}

/// A walk from `start` to `dir` that has passed the names that the table has.
fn went(nodes: &Nodes, start: FuseNodeId, dir: FuseNodeId) -> Walk {
    let table = nodes.lock();
    let (mut at, mut steps) = (dir, Vec::new());
    while at != start {
        let node = table.get(at).unwrap();
        let (above, name) = node.names.last().cloned().unwrap();
        let id = match &node.what {
            What::Known { loc, .. } => loc.id,
            What::Guess(_) => 0,
        };
        steps.insert(0, WalkStep { node: at, name, id, found: false, unhinted: false });
        at = above;
    }
    Walk { start, steps }
}

fn path(at: &At) -> String {
    let names: Vec<_> = at.path.iter().map(|name| String::from_utf8_lossy(name)).collect();
    format!("{}:{}", at.anchor.id, names.join("/"))
}

#[test]
fn nodes_stay_until_all_references_are_given_back() {
    let nodes = plain();
    for _ in 0..3 {
        assert_eq!(hold(&nodes, ROOT, 1, "a", 10, DIR), 10);
    }
    nodes.forget(10, 2);
    assert_eq!(nodes.locate(10).unwrap().name, "a");
    assert_eq!(nodes.mode(10), DIR);
    nodes.forget(10, 1);
    assert_eq!(nodes.locate(10).unwrap_err().errno(), Errno::ESTALE);
    assert_eq!(nodes.mode(10), 0);
    nodes.forget(10, 5);
    nodes.forget(ROOT, u64::MAX);
    assert_eq!(held(&nodes), 0);
    assert_eq!(nodes.locate(ROOT).unwrap(), Locator::root());
}

#[test]
fn forgetting_more_than_was_held_does_not_wrap() {
    let nodes = plain();
    hold(&nodes, ROOT, 1, "a", 10, DIR);
    nodes.forget(10, 9);
    hold(&nodes, ROOT, 1, "a", 10, DIR);
    nodes.forget(10, 1);
    assert_eq!(held(&nodes), 0);
}

#[test]
fn chains_follow_moves() {
    let nodes = plain();
    hold(&nodes, ROOT, 1, "a", 10, DIR);
    hold(&nodes, 10, 10, "b", 20, DIR);
    hold(&nodes, 20, 20, "c", 30, DIR);
    let names = |mut id| -> Vec<Bytes> {
        let mut names = Vec::new();
        while id != ROOT {
            let loc = nodes.locate(id).unwrap();
            id = nodes.above(id, &loc);
            names.insert(0, loc.name);
        }
        names
    };
    assert_eq!(names(30), ["a", "b", "c"]);
    assert!(names(ROOT).is_empty());
    let z = entry(1, "z", 20, DIR);
    nodes.renamed([(10, &name("b")), (ROOT, &name("z"))], &z.loc);
    assert_eq!(names(30), ["z", "c"]);
    nodes.refresh(&entry(10, "y", 20, DIR));
    assert_eq!(names(30), ["a", "y", "c"]);
}

#[test]
fn above_what_is_held_may_be_a_guess() {
    let nodes = guessing();
    let walked = nodes.pass(ROOT, &name("a")).unwrap().node;
    hold(&nodes, walked, 10, "b", 20, DIR);
    let loc = nodes.locate(20).unwrap();
    assert_eq!(loc.pid, 10);
    assert_eq!(nodes.above(20, &loc), walked);
    assert_eq!(nodes.locate(walked).unwrap_err().errno(), Errno::ESTALE);
    nodes.confirm(walked, &entry(1, "a", 10, DIR)).unwrap();
    assert_eq!(nodes.above(20, &loc), walked);
}

#[test]
fn what_is_not_held_is_not_added_by_news_of_it() {
    let nodes = plain();
    nodes.refresh(&entry(1, "a", 10, DIR));
    nodes.renamed([(1, &name("b")), (1, &name("a"))], &entry(1, "a", 10, DIR).loc);
    assert_eq!(held(&nodes), 0);
}

#[test]
fn pages_are_kept_only_when_they_were_read_at_this_version() {
    let nodes = plain();
    hold(&nodes, ROOT, 1, "f", 10, FILE);
    let version = |n| DataVersion::of(&Attr { data_version: n, ..Attr::default() });
    assert!(!nodes.keep_pages(10, version(1)), "nothing is known");
    assert!(!nodes.keep_pages(10, version(1)), "the first open may not have returned");
    nodes.filled(10, version(1));
    assert!(nodes.keep_pages(10, version(1)));
    assert!(!nodes.keep_pages(10, version(2)));
    assert!(!nodes.keep_pages(10, version(1)), "the pages are on their way out");
    nodes.filled(10, version(2));
    nodes.forget(10, 1);
    hold(&nodes, ROOT, 1, "f", 10, FILE);
    assert!(!nodes.keep_pages(10, version(2)), "forgotten with its pages");
}

#[test]
fn what_is_held_is_removed_as_it_was_last_seen() {
    let nodes = guessing();
    let sized = |id, size, data_version| {
        let mut entry = entry(1, "f", id, FILE);
        (entry.attr.size, entry.attr.data_version) = (size, data_version);
        entry
    };
    let seen = || nodes.pretend(ROOT, &name("f"), false).map(|(_, attr)| attr.unwrap().size);
    nodes.count_lookup(ROOT, &name("f"), &sized(10, 5, 1));
    assert_eq!(seen(), Some(5));
    nodes.refresh(&sized(10, 7, 2));
    assert_eq!(seen(), Some(7));
    assert!(nodes.pretend(ROOT, &name("f"), true).is_none(), "it is no directory");
    nodes.forget(10, 3);
    nodes.count_lookup(ROOT, &name("f"), &sized(10, 7, 2));
    nodes.mark_attr_stale(10);
    assert_eq!(seen(), None, "the kernel knows of a write");
    nodes.vanished(ROOT, &name("f"));
    nodes.count_lookup(ROOT, &name("f"), &sized(11, 9, 3));
    assert_eq!(seen(), Some(9));
    nodes.refresh(&sized(11, 5, 2));
    assert_eq!(seen(), None, "whether the kernel heeds a late reply is not known");
    nodes.vanished(ROOT, &name("f"));
    nodes.count_lookup(ROOT, &name("f"), &sized(12, 0, 1));
    hold(&nodes, ROOT, 1, "g", 12, FILE);
    nodes.vanished(ROOT, &name("g"));
    assert_eq!(seen(), None, "the kernel counts one link less");
}

#[test]
fn what_is_held_in_a_sticky_directory_is_looked_up() {
    let nodes = guessing();
    hold(&nodes, ROOT, 1, "d", 20, DIR | access::S_ISVTX);
    hold(&nodes, 20, 20, "f", 21, FILE);
    hold(&nodes, 20, 20, "e", 22, DIR);
    assert!(nodes.pretend(20, &name("f"), false).is_none());
    assert!(nodes.pretend(20, &name("e"), true).is_none());
    nodes.refresh(&entry(1, "d", 20, DIR));
    assert_eq!(nodes.pretend(20, &name("f"), false).unwrap().0, 21);
    assert_eq!(nodes.pretend(20, &name("e"), true).unwrap().0, 22);
    nodes.forget(21, 2);
    nodes.forget(22, 2);
    assert_eq!(held(&nodes), 1);
}

#[test]
fn names_do_not_keep_the_frame_alive() {
    let frame = Bytes::from(vec![b'x'; 1 << 16]);
    let mut e = entry(1, "", 10, DIR);
    e.loc.name = frame.slice(0..3);
    let nodes = guessing();
    nodes.count_lookup(ROOT, &frame.slice(0..3), &e);
    assert_eq!(nodes.locate(10).unwrap().name, "xxx");
    drop(e);
    assert!(frame.try_into_mut().is_ok(), "nobody else holds it");
}

#[test]
fn counts_are_exact_under_contention() {
    let nodes = std::sync::Arc::new(guessing());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let nodes = std::sync::Arc::clone(&nodes);
            std::thread::spawn(move || {
                for i in 0..1000 {
                    hold(&nodes, ROOT, 1, "f", 10 + i % 7, FILE);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    for id in 10..17 {
        let held = if id < 16 { 4 * 143 } else { 4 * 142 };
        nodes.forget(id, held - 1);
        assert!(nodes.locate(id).is_ok());
        nodes.forget(id, 1);
        assert!(nodes.locate(id).is_err());
    }
    let table = nodes.lock();
    assert!(table.names.is_empty(), "names go with their nodes");
}

#[test]
fn what_is_walked_through_is_named_by_its_path() {
    let nodes = guessing();
    let Passed { node: a, attr: none, .. } = nodes.pass(ROOT, &name("a")).unwrap();
    assert!(none.is_none(), "nothing is known of it");
    let b = nodes.pass(a, &name("b")).unwrap().node;
    assert_eq!(path(&nodes.child(&went(&nodes, ROOT, b), &name("c")).unwrap()), "1:a/b/c");
    assert_eq!(nodes.pass(ROOT, &name("a")).unwrap().node, a, "always the same node");
    assert!(nodes.locate(b).is_err());
    let NodeIdentity::Guess(at) = nodes.place(b).unwrap() else { panic!("a guess") };
    assert_eq!((path(&at), at.expect), ("1:a/b".into(), vec![0, 0]));
    // It is looked up for its own sake: the same node, known from now on.
    assert_eq!(hold(&nodes, a, 7, "b", 20, DIR), b);
    let at = nodes.child(&went(&nodes, ROOT, b), &name("c")).unwrap();
    assert_eq!((path(&at), at.expect), ("1:a/b/c".into(), vec![0, 20]));
    assert_eq!(nodes.pass(a, &name("b")).unwrap().attr.unwrap().id, 20);
    assert_eq!(
        path(&nodes.child(&went(&nodes, b, b), &name("c")).unwrap()),
        "20:c",
        "the walk began there"
    );
    assert_eq!(
        path(&nodes.child(&went(&nodes, a, b), &name("c")).unwrap()),
        "1:a/b/c",
        "not in a guess"
    );
    assert_eq!(held(&nodes), 2);
    nodes.forget(b, 3);
    nodes.forget(a, 2);
    assert_eq!(held(&nodes), 0);
    assert_eq!(hold(&nodes, ROOT, 1, "z", 20, DIR), 20, "the alias went with the node");
}

#[test]
fn a_file_is_never_walked_through_nor_said_to_be_free() {
    let nodes = guessing();
    hold(&nodes, ROOT, 1, "f", 10, FILE);
    assert!(nodes.pass(ROOT, &name("f")).is_none());
    assert!(!nodes.may_be_free(ROOT, &name("f")));
    assert!(nodes.pretend(ROOT, &name("f"), true).is_none(), "a file");
    nodes.vanished(ROOT, &name("f"));
    assert!(nodes.may_be_free(ROOT, &name("f")));
    let (gone, _) = nodes.pretend(ROOT, &name("f"), false).unwrap();
    assert!(nodes.pass(ROOT, &name("f")).is_none(), "said to be a file");
    assert!(!nodes.may_be_free(ROOT, &name("f")), "held");
    nodes.forget(gone, 1);
    assert!(nodes.may_be_free(ROOT, &name("f")));
    nodes.note_conflict(ROOT, &name("f"));
    assert!(!nodes.may_be_free(ROOT, &name("f")));
    hold(&nodes, ROOT, 1, "f", 11, FILE);
    nodes.forget(11, 1);
    assert!(!nodes.may_be_free(ROOT, &name("f")), "the kernel may look it up twice");
    assert!(nodes.pass(ROOT, &name("f")).is_none());
}

#[test]
fn a_wrong_guess_is_looked_up_before_it_is_walked_through_again() {
    let nodes = guessing();
    let l = nodes.pass(ROOT, &name("l")).unwrap().node;
    let error = |e| nodes.mark_stale(&went(&nodes, ROOT, l), &e);
    assert!(!error(Error::symlink(1, "t".into())), "the last component itself");
    assert!(!error(Error::at(Errno::ENOTDIR, 0)), "true, whatever else is known");
    assert!(!error(Error::new(Errno::EACCES)));
    assert!(nodes.pass(ROOT, &name("l")).is_some());
    assert!(error(Error::symlink(0, "t".into())));
    assert!(nodes.pass(ROOT, &name("l")).is_none());
    let link = hold(&nodes, ROOT, 1, "l", 30, 0o120_777);
    assert_ne!(link, l);
    assert!(nodes.pass(ROOT, &name("l")).is_none(), "a link as long as it is held");
    nodes.forget(link, 1);
    assert!(nodes.pass(ROOT, &name("l")).is_none(), "and for a while after that");
}

#[test]
fn who_is_in_a_directory_that_was_moved_stays_in_it() {
    let nodes = guessing();
    let a = nodes.pass(ROOT, &name("a")).unwrap().node;
    let b = hold(&nodes, a, 7, "b", 20, DIR);
    // Another client has put another directory there. Who came by the name must look again,
    assert!(nodes.mark_stale(&went(&nodes, ROOT, b), &Error::elsewhere(1)));
    assert_eq!(path(&nodes.child(&went(&nodes, ROOT, b), &name("c")).unwrap()), "1:a/b/c");
    assert!(nodes.pass(a, &name("b")).is_none());
    let other = hold(&nodes, a, 7, "b", 21, DIR);
    assert_ne!(other, b);
    assert_eq!(path(&nodes.child(&went(&nodes, ROOT, other), &name("c")).unwrap()), "1:a/b/c");
    // and who began in it is where it was.
    assert_eq!(path(&nodes.child(&went(&nodes, b, b), &name("c")).unwrap()), "20:c");
    let c = nodes.pass(b, &name("c")).unwrap().node;
    assert_eq!(path(&nodes.child(&went(&nodes, b, c), &name("d")).unwrap()), "20:c/d");
    assert_eq!(nodes.pass(a, &name("b")).unwrap().node, other);
}

#[test]
fn a_directory_that_turns_up_elsewhere_keeps_its_node() {
    let nodes = guessing();
    let a = nodes.pass(ROOT, &name("a")).unwrap().node;
    hold(&nodes, ROOT, 1, "a", 20, DIR);
    let q = nodes.pass(ROOT, &name("q")).unwrap().node;
    assert_eq!(hold(&nodes, ROOT, 1, "q", 20, DIR), a, "not the guess that stood there");
    assert_eq!(path(&nodes.child(&went(&nodes, ROOT, a), &name("x")).unwrap()), "1:q/x");
    assert!(nodes.pass(q, &name("x")).is_some(), "held all the same");
    let Passed { node: other, attr, .. } = nodes.pass(ROOT, &name("a")).unwrap();
    assert!(other != a && attr.is_none(), "what is at the old place is unknown");
}

#[test]
fn names_follow_what_is_renamed_here() {
    let nodes = guessing();
    let a = nodes.pass(ROOT, &name("a")).unwrap().node;
    let b = nodes.pass(ROOT, &name("b")).unwrap().node;
    let loc = entry(1, "c", 99, DIR).loc;
    nodes.renamed([(ROOT, &name("a")), (b, &name("c"))], &loc);
    assert_eq!(path(&nodes.child(&went(&nodes, ROOT, a), &name("x")).unwrap()), "1:b/c/x");
    let d = nodes.pass(ROOT, &name("d")).unwrap().node;
    nodes.exchanged([(b, &name("c")), (ROOT, &name("d"))], &[loc.clone(), loc]);
    assert_eq!(path(&nodes.child(&went(&nodes, ROOT, a), &name("x")).unwrap()), "1:d/x");
    assert_eq!(path(&nodes.child(&went(&nodes, ROOT, d), &name("x")).unwrap()), "1:b/c/x");
}

#[test]
fn a_guess_that_is_no_directory_is_not_confirmed() {
    let nodes = guessing();
    let a = nodes.pass(ROOT, &name("a")).unwrap().node;
    assert_eq!(nodes.confirm(a, &entry(1, "a", 5, FILE)).unwrap_err().errno(), Errno::ESTALE);
    assert!(nodes.pass(ROOT, &name("a")).is_none());
    nodes.confirm(a, &entry(1, "a", 6, DIR)).unwrap();
    assert_eq!(nodes.locate(a).unwrap().id, 6);
    assert!(nodes.confirm(a, &entry(1, "a", 7, DIR)).is_err(), "another one by now");
}

#[test]
fn a_way_that_a_server_has_found_may_be_kept() {
    let nodes = guessing();
    const LONG: Duration = Duration::from_secs(60);
    let proved = |dir, text| nodes.pass(dir, &name(text)).unwrap().keep > Duration::ZERO;
    let a = nodes.pass(ROOT, &name("a")).unwrap().node;
    let b = nodes.pass(a, &name("b")).unwrap().node;
    nodes.prove(a, LONG);
    assert!(proved(ROOT, "a"));
    assert!(!proved(a, "b"), "not on the way");
    nodes.prove(b, LONG);
    assert!(proved(a, "b"));
    assert!(!proved(ROOT, "x"));
    // What was found once does not count for ever: the directories on the way may be closed by now.
    assert!(nodes.pass(ROOT, &name("a")).unwrap().keep <= LONG);
    let c = nodes.pass(b, &name("c")).unwrap().node;
    nodes.prove(c, Duration::ZERO);
    assert!(!proved(b, "c"), "it has ended");
}

const NONE: Duration = Duration::ZERO;

/// What a server says of a directory whose name may be kept.
fn dir(id: InodeId) -> KeptDir {
    let keep_ms = NAME_KEEP_MAX.as_millis() as u32;
    KeptDir { id, mode: DIR, keep_ms, ..KeptDir::default() }
}

/// A server lends these names with its answer.
fn kept(named: &Named, dirs: &[KeptDir]) {
    if let Some(lessee) = named.for_caller(Caller::root()).lessee {
        lessee.lent(dirs);
    }
}

/// Names that are all worth a lease.
fn leasing() -> Nodes {
    Nodes::new(Gauge::default(), true, Leases::All)
}

fn walk(nodes: &Nodes, dir: FuseNodeId, text: &'static str) -> (FuseNodeId, Duration) {
    let Passed { node, keep, .. } = nodes.pass(dir, &name(text)).unwrap();
    (node, keep)
}

#[test]
fn names_under_a_lease_may_be_kept() {
    let nodes = leasing();
    let a = hold(&nodes, ROOT, 1, "a", 10, DIR);
    let b = hold(&nodes, a, 10, "b", 11, DIR);
    assert_eq!((walk(&nodes, ROOT, "a"), walk(&nodes, a, "b")), ((a, NONE), (b, NONE)));
    let named = nodes.named(&went(&nodes, ROOT, b), &name("f")).unwrap();
    assert_eq!((path(&named.at).as_str(), named.at.keep_ms.len()), ("1:a/b/f", 2));
    kept(&named, &[dir(10), dir(11)]);
    for (dir, text) in [(ROOT, "a"), (a, "b")] {
        let (_, keep) = walk(&nodes, dir, text);
        assert!(!keep.is_zero() && keep <= NAME_KEEP_MAX, "{keep:?}");
    }
    // It is not asked again so soon.
    assert!(nodes.named(&went(&nodes, ROOT, b), &name("f")).unwrap().at.keep_ms.is_empty());
    // A part of them is a part.
    let nodes = leasing();
    let a = hold(&nodes, ROOT, 1, "a", 10, DIR);
    let b = hold(&nodes, a, 10, "b", 11, DIR);
    _ = (walk(&nodes, ROOT, "a"), walk(&nodes, a, "b"));
    kept(&nodes.named(&went(&nodes, ROOT, b), &name("f")).unwrap(), &[dir(10)]);
    assert!(!walk(&nodes, ROOT, "a").1.is_zero() && walk(&nodes, a, "b").1.is_zero());
}

#[test]
fn a_directory_is_known_with_the_policy_in_force_there() {
    let nodes = leasing();
    let looked_up = nodes.count_lookup(ROOT, &name("d"), &{
        let entry = entry(1, "d", 9, DIR);
        Entry { loc: entry.loc.under(7), ..entry }
    });
    assert_eq!(nodes.locate(looked_up).unwrap().policy, 7);
    // One that was only passed, until a server has met it.
    let (met, _) = walk(&nodes, ROOT, "a");
    _ = walk(&nodes, ROOT, "a");
    let named = nodes.named(&went(&nodes, ROOT, met), &name("f")).unwrap();
    kept(&named, &[KeptDir { policy: 8, ..dir(10) }]);
    let loc = nodes.locate(met).unwrap();
    assert_eq!((loc.id, loc.policy), (10, 8));
}

#[test]
fn a_name_is_kept_no_longer_than_a_server_says() {
    let nodes = leasing();
    let a = hold(&nodes, ROOT, 1, "a", 10, DIR);
    let b = hold(&nodes, a, 10, "b", 11, DIR);
    _ = (walk(&nodes, ROOT, "a"), walk(&nodes, a, "b"));
    let named = nodes.named(&went(&nodes, ROOT, b), &name("f")).unwrap();
    let short = KeptDir { keep_ms: NAME_KEEP.as_millis() as u32, ..dir(10) };
    kept(&named, &[short, dir(11)]);
    for (dir, text) in [(ROOT, "a"), (a, "b")] {
        let (_, keep) = walk(&nodes, dir, text);
        assert!(!keep.is_zero() && keep <= NAME_KEEP, "{keep:?}");
    }
}

#[test]
fn who_has_to_wait_for_a_kept_name_need_not_again() {
    let nodes = Nodes::new(Gauge::default(), true, Leases::Hot);
    // Names that a request asks for a lease on, after much use of this one.
    let leases = |text: &'static str| {
        let at = (0..3).fold(ROOT, |_, _| walk(&nodes, ROOT, text).0);
        let named = nodes.named(&went(&nodes, ROOT, at), &name("f")).unwrap();
        kept(&named, &vec![dir(at); named.at.keep_ms.len()]);
        named.at.keep_ms.len()
    };
    for (id, text) in [(10, "a"), (11, "b"), (12, "c"), (13, "d")] {
        hold(&nodes, ROOT, 1, text, id, DIR);
    }
    nodes.changed_in(10);
    assert_eq!((leases("a"), leases("b")), (0, 1), "something is made in the first");
    let contended = |text: &'static str| nodes.is_contended_name(ROOT, &name(text));
    assert!(!contended("a"), "nobody waits for a name that is not kept");
    assert!(contended("b") && leases("c") == 1);
    nodes.changed_itself(true);
    assert_eq!(leases("d"), 0);
}

#[test]
fn what_is_kept_is_known_by_the_lease() {
    let nodes = leasing();
    let (a, _) = walk(&nodes, ROOT, "a");
    let (b, _) = walk(&nodes, a, "b");
    assert!(nodes.locate(b).is_err(), "a guess");
    let named = nodes.named(&went(&nodes, ROOT, b), &name("f")).unwrap();
    assert_eq!((path(&named.at).as_str(), named.at.keep_ms.len()), ("1:a/b/f", 2));
    let sticky = KeptDir { mode: dir(11).mode | access::S_ISVTX, uid: 7, ..dir(11) };
    kept(&named, &[dir(10), sticky]);
    assert_eq!(nodes.locate(b).unwrap(), entry(10, "b", 11, DIR).loc);
    let passed = nodes.pass(a, &name("b")).unwrap();
    assert!(passed.node == b && !passed.keep.is_zero());
    assert_eq!(passed.attr.map(|attr| (attr.mode, attr.uid)), Some((sticky.mode, 7)));
    assert_eq!(nodes.mode(b), sticky.mode);
    assert!(!nodes.must_be_known(b), "the kernel has heard of it");
    let usual = guessing();
    let (a, _) = walk(&usual, ROOT, "a");
    assert!(usual.named(&went(&usual, ROOT, a), &name("f")).unwrap().at.keep_ms.is_empty());
}

/// What the kernel thinks of a guess it goes on to think until it asks for the name.
#[test]
fn what_is_known_by_a_lease_must_be_told() {
    let nodes = leasing();
    let (a, _) = walk(&nodes, ROOT, "a");
    kept(&nodes.named(&went(&nodes, ROOT, a), &name("f")).unwrap(), &[dir(10)]);
    assert!(nodes.must_be_known(a));
    assert!(nodes.pass(ROOT, &name("a")).is_none(), "it is looked up");
    assert_eq!(hold(&nodes, ROOT, 1, "a", 10, DIR), a);
    assert!(!nodes.must_be_known(a));
}

/// A reply from before that is of no use.
#[test]
fn what_is_stale_is_not_kept() {
    let nodes = leasing();
    let (a, _) = walk(&nodes, ROOT, "a");
    let named = nodes.named(&went(&nodes, ROOT, a), &name("f")).unwrap();
    let error = Error::symlink(0, Bytes::from_static(b"x"));
    assert!(nodes.mark_stale(&went(&nodes, ROOT, a), &error));
    kept(&named, &[dir(10)]);
    assert!(nodes.pass(ROOT, &name("a")).is_none());
}

#[test]
fn attributes_are_not_the_newest_after_newer_ones() {
    let nodes = guessing();
    let at = |data_version| {
        let entry = entry(1, "a", 10, FILE);
        Entry { attr: Attr { data_version, ..entry.attr.clone() }, ..entry }
    };
    nodes.count_lookup(ROOT, &name("a"), &at(3));
    assert!(nodes.is_newest(&at(3).attr) && !nodes.is_newest(&at(4).attr));
    nodes.refresh(&at(4));
    assert!(!nodes.is_newest(&at(3).attr));
    // An answer from before comes late.
    nodes.refresh(&at(3));
    assert!(!nodes.is_newest(&at(3).attr));
    nodes.refresh(&at(4));
    assert!(nodes.is_newest(&at(4).attr));
}

/// The kernel holds the directory already, as another node.
#[test]
fn a_guess_that_cannot_become_what_is_kept_is_looked_up() {
    let nodes = leasing();
    hold(&nodes, ROOT, 1, "was", 10, DIR);
    let (a, _) = walk(&nodes, ROOT, "a");
    let named = nodes.named(&went(&nodes, ROOT, a), &name("f")).unwrap();
    kept(&named, &[dir(10)]);
    assert!(nodes.pass(ROOT, &name("a")).is_none());
    assert!(nodes.locate(a).is_err());
    assert!(nodes.named(&went(&nodes, ROOT, a), &name("f")).unwrap().at.keep_ms.is_empty());
}

#[test]
fn a_name_is_kept_no_longer_than_those_above_it() {
    let nodes = leasing();
    let a = hold(&nodes, ROOT, 1, "a", 10, DIR);
    let b = hold(&nodes, a, 10, "b", 11, DIR);
    _ = (walk(&nodes, ROOT, "a"), walk(&nodes, a, "b"));
    // Asked from a directory whose own name is not kept: someone's working directory.
    assert!(nodes.named(&went(&nodes, a, b), &name("f")).unwrap().at.keep_ms.is_empty());
    kept(&nodes.named(&went(&nodes, ROOT, a), &name("f")).unwrap(), &[dir(10)]);
    let from_a = nodes.named(&went(&nodes, a, b), &name("f")).unwrap();
    assert_eq!((path(&from_a.at).as_str(), from_a.at.keep_ms.len()), ("10:b/f", 1));
    kept(&from_a, &[dir(11)]);
    let (_, of_a) = walk(&nodes, ROOT, "a");
    let (_, of_b) = walk(&nodes, a, "b");
    assert!(of_b <= of_a && !of_b.is_zero(), "{of_b:?} {of_a:?}");
}

#[test]
fn no_name_is_asked_for_longer_than_the_one_above_it() {
    let nodes = leasing();
    let a = hold(&nodes, ROOT, 1, "a", 10, DIR);
    let b = hold(&nodes, a, 10, "b", 11, DIR);
    let asked = |start, text: &'static str| {
        _ = (walk(&nodes, ROOT, text), walk(&nodes, a, "b"));
        nodes.named(&went(&nodes, start, b), &name("f")).unwrap()
    };
    let [least, most] = [NAME_KEEP, NAME_KEEP_MAX].map(|keep| keep.as_millis() as u32);
    let long = asked(ROOT, "a");
    assert_eq!(long.at.keep_ms, [most, most]);
    // From a directory that is kept: no longer than that.
    kept(&long, &[dir(10)]);
    // Real time: what is kept expires.
    time::sleep(NAME_KEEP);
    let [below] = asked(a, "a").at.keep_ms[..] else { panic!("one name") };
    assert!(below <= most - least, "{below}");
    // The upper one has another name, and something is made in it.
    nodes.renamed([(ROOT, &name("a")), (ROOT, &name("c"))], &entry(1, "c", 10, DIR).loc);
    nodes.changed_in(a);
    // Real time: what is kept expires.
    time::sleep(NAME_KEEP);
    assert_eq!(asked(ROOT, "c").at.keep_ms, [least, least]);
}

#[test]
fn what_changes_its_name_is_not_kept_by_an_answer_about_the_old_one() {
    let nodes = leasing();
    let a = hold(&nodes, ROOT, 1, "a", 10, DIR);
    _ = walk(&nodes, ROOT, "a");
    let late = nodes.named(&went(&nodes, ROOT, a), &name("f")).unwrap();
    nodes.renamed([(ROOT, &name("a")), (ROOT, &name("b"))], &entry(1, "b", 10, DIR).loc);
    kept(&late, &[dir(10)]);
    assert_eq!(walk(&nodes, ROOT, "b"), (a, NONE));
    // Nor what turns out to be another directory.
    kept(&nodes.named(&went(&nodes, ROOT, a), &name("f")).unwrap(), &[dir(12)]);
    assert_eq!(walk(&nodes, ROOT, "b"), (a, NONE));
}

#[test]
fn the_kernel_is_told_of_names_that_it_did_not_know() {
    let nodes = guessing();
    let gone = |inode, dir, text| nodes.unaware(inode, dir, &name(text));
    assert_eq!(gone(10, ROOT, "a"), None, "it does not hold the file");
    hold(&nodes, ROOT, 1, "a", 10, FILE);
    assert_eq!(gone(10, ROOT, "a"), None, "it counts itself");
    assert_eq!(gone(10, ROOT, "b"), Some(10), "it thought that the name is free");
    nodes.pretend(ROOT, &name("b"), false).unwrap();
    assert_eq!(gone(10, ROOT, "b"), Some(10), "it had a guess for it");
    hold(&nodes, ROOT, 1, "c", 11, FILE);
    assert_eq!(gone(10, ROOT, "c"), Some(10), "it had another file for it");
    // Another thread looks the name up whose removal is under way.
    hold(&nodes, ROOT, 1, "b", 10, FILE);
    assert_eq!(gone(10, ROOT, "b"), Some(10), "it may have had the guess");
    assert_eq!(gone(0, ROOT, "b"), None, "nothing was there");
    let (guess, _) = nodes.pretend(ROOT, &name("d"), true).unwrap();
    nodes.confirm(guess, &entry(1, "d", 12, DIR)).unwrap();
    assert_eq!(gone(12, ROOT, "d"), None);
    assert_eq!(gone(12, ROOT, "e"), Some(guess), "by the number that it knows");

    let nodes = plain();
    hold(&nodes, ROOT, 1, "a", 10, FILE);
    assert_eq!(nodes.unaware(10, ROOT, &name("a")), Some(10), "no names are known");
}

/// Another thread looks up a name that a walk has passed, and finds something else there.
#[test]
fn a_call_acts_where_its_own_walk_went() {
    let nodes = guessing();
    let d = hold(&nodes, ROOT, 1, "d", 10, DIR);
    let old = hold(&nodes, d, 10, "cur", 20, DIR);
    let Passed { node, id, .. } = nodes.pass(d, &name("cur")).unwrap();
    assert_eq!((node, id), (old, 20));
    let step =
        |node, text, id, found| WalkStep { node, name: name(text), id, found, unhinted: false };
    let walk = |found| Walk {
        start: ROOT,
        steps: vec![step(d, "d", 10, false), step(old, "cur", 20, found)],
    };
    let new = hold(&nodes, d, 10, "cur", 21, DIR);
    assert_ne!(new, old);
    let at = nodes.child(&walk(false), &name("f")).unwrap();
    assert_eq!((path(&at), at.expect.clone()), ("1:d/cur/f".into(), vec![10, 20]));
    // The server finds the new one there: the kernel walks again, and what is found then counts.
    assert!(nodes.mark_stale(&walk(false), &Error::elsewhere(1)));
    let at = nodes.child(&walk(true), &name("f")).unwrap();
    assert_eq!((path(&at), at.expect), ("20:f".into(), vec![]));
    assert!(!nodes.mark_stale(&walk(true), &Error::elsewhere(0)), "nothing is expected then");
    // A thread that was not seen to walk there is in it.
    assert_eq!(path(&nodes.child(&Walk::from(old), &name("f")).unwrap()), "20:f");
}
