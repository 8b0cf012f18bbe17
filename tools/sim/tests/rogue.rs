//! Another client that makes files in a subtree as fast as it can while its owner works there (Cudele
//! section 5.3). With `interfere_policy: block` it gets EBUSY and nothing else; with `allow` both get
//! through, and the merge changes what it said that it would. Needs root and /dev/fuse.
//! `cargo run --release -p saker-sim --example rogue` measures what it costs the owner.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod policy_support;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use policy_support::{merge, mounted, said, unmount};
use rustix::io::Errno;
use saker_sim::cluster::{ClusterShape, OwnMount, RunningCluster, can_mount};

const FILES: usize = 400;
/// The rogue has been at it so often before the owner goes on to its end.
const ATTEMPTS_MIN: usize = 200;

/// A cluster with two mounts.
struct Mounts {
    owner: OwnMount,
    rogue: OwnMount,
    cluster: RunningCluster,
}

impl Mounts {
    /// `None` where nothing can be mounted.
    fn start(test: &str) -> Option<Mounts> {
        if !can_mount(test) {
            return None;
        }
        let shape = ClusterShape { mnodes: 2, stores: 1, ..ClusterShape::default() };
        let cluster = RunningCluster::start(shape);
        let (owner, rogue) = (mounted(&cluster, "owner", ""), mounted(&cluster, "rogue", ""));
        Some(Mounts { owner, rogue, cluster })
    }

    /// A directory with a directory in it, under a policy.
    fn subtree(&self, name: &str, keys: [&str; 3]) {
        fs::create_dir_all(self.owner.path(name).join("d")).unwrap();
        let [consistency, durability, interfere] = keys;
        let place = format!("/{name}");
        let words = [
            "policy",
            "set",
            &place,
            "--consistency",
            consistency,
            "--durability",
            durability,
            "--interfere-policy",
            interfere,
        ];
        said(self.cluster.saker(&words));
    }
}

/// Names below a directory and its directory `d`, but for those two.
fn names(root: &Path) -> BTreeSet<String> {
    let list = |dir: PathBuf, prefix: &str| -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        entries.map(|name| format!("{prefix}{}", name.display())).collect()
    };
    let found = list(root.to_owned(), "").into_iter().chain(list(root.join("d"), "d/"));
    found.filter(|name| name != "d").collect()
}

/// Where one makes its file `n`: by turns at the top and in the directory.
fn place(who: &str, n: usize) -> String {
    if n.is_multiple_of(2) { format!("{who}-{n}") } else { format!("d/{who}-{n}") }
}

#[test]
fn who_is_kept_out_gets_ebusy_and_makes_nothing() {
    let Some(mounts) = Mounts::start("who_is_kept_out_gets_ebusy_and_makes_nothing") else {
        return;
    };
    let policies =
        [("weak", "none"), ("invisible", "none"), ("strong", "none"), ("strong", "global")];
    let dirs: Vec<String> = policies
        .iter()
        .map(|(consistency, durability)| format!("{consistency}-{durability}"))
        .collect();
    for (dir, (consistency, durability)) in dirs.iter().zip(policies) {
        mounts.subtree(dir, [consistency, durability, "block"]);
        let (owner, rogue) = (mounts.owner.path(dir), mounts.rogue.path(dir));
        // Its first change takes the hold.
        File::create_new(owner.join(place("owner", 0))).unwrap();
        let stop = AtomicBool::new(false);
        let hammer = || {
            let mut refused = Vec::new();
            while !stop.load(Ordering::Relaxed) || refused.len() < ATTEMPTS_MIN {
                let made = File::create_new(rogue.join(place("rogue", refused.len())));
                refused.push(made.map(drop));
            }
            refused
        };
        let refused: Vec<io::Result<()>> = std::thread::scope(|scope| {
            let hammers = scope.spawn(hammer);
            for n in 1..FILES {
                File::create_new(owner.join(place("owner", n))).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            hammers.join().unwrap()
        });
        for made in &refused {
            let errno = made.as_ref().err().and_then(Errno::from_io_error);
            assert_eq!(errno, Some(Errno::BUSY), "{dir}: {made:?}");
        }
        println!("{dir}: {} attempts were EBUSY", refused.len());
        if consistency != "strong" {
            merge(&owner, &[]);
        }
    }
    unmount(mounts.owner);
    let wanted: BTreeSet<String> = (0..FILES).map(|n| place("owner", n)).collect();
    for dir in &dirs {
        assert_eq!(names(&mounts.rogue.path(dir)), wanted, "{dir}");
        // Nobody holds it any more.
        File::create_new(mounts.rogue.path(dir).join("rogue")).unwrap();
    }
    mounts.cluster.fsck();
}

#[test]
fn with_allow_both_get_through_and_the_merge_changes_what_it_said() {
    let test = "with_allow_both_get_through_and_the_merge_changes_what_it_said";
    let Some(mounts) = Mounts::start(test) else {
        return;
    };
    // Every tenth name both make; of some of these the rogue makes directories.
    let is_shared = |n: usize| n.is_multiple_of(10);
    let is_dir = |n: usize| n.is_multiple_of(100);
    let both = |n: usize| place("both", n);
    mounts.subtree("sub", ["weak", "none", "allow"]);
    let (owner, rogue) = (mounts.owner.path("sub"), mounts.rogue.path("sub"));
    // The owner holds the subtree, and has what was there, before the rogue comes.
    let first = ["owner-first", "d/owner-first"];
    first.iter().for_each(|name| fs::write(owner.join(name), "owner").unwrap());
    std::thread::scope(|scope| {
        let rogue = &rogue;
        scope.spawn(move || {
            for n in 0..FILES {
                match (is_shared(n), is_dir(n)) {
                    (true, true) => fs::create_dir(rogue.join(both(n))).unwrap(),
                    (true, false) => fs::write(rogue.join(both(n)), "rogue").unwrap(),
                    _ => fs::write(rogue.join(place("rogue", n)), "rogue").unwrap(),
                }
            }
        });
        for n in 0..FILES {
            let name = if is_shared(n) { both(n) } else { place("owner", n) };
            fs::write(owner.join(name), "owner").unwrap();
        }
    });
    let shared: BTreeSet<String> = (0..FILES).filter(|n| is_shared(*n)).map(both).collect();
    let base_name = |name: &String| name.trim_start_matches("d/").to_owned();
    let report: serde_json::Value =
        serde_json::from_str(&merge(&owner, &["--dry-run", "--json"])).unwrap();
    assert_eq!(report["names"], FILES + first.len());
    assert_eq!(report["conflict_count"], shared.len());
    let said: BTreeSet<String> = report["conflicts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|conflict| conflict["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(said, shared.iter().map(base_name).collect());
    let before = names(&rogue);
    assert!(before.iter().all(|name| !name.contains("owner")), "nothing is merged yet");
    merge(&owner, &[]);
    // What differs is what was said; all else of the rogue's is as it was.
    let mut wanted: BTreeSet<String> = before.clone();
    wanted.extend((0..FILES).filter(|n| !is_shared(*n)).map(|n| place("owner", n)));
    wanted.extend(first.map(str::to_owned));
    let found = names(&rogue);
    let aside: BTreeSet<&String> = found.difference(&wanted).collect();
    let renamed = (0..FILES).filter(|n| is_dir(*n)).map(|n| format!("{}.conflict-", both(n)));
    let renamed: Vec<String> = renamed.collect();
    assert_eq!(aside.len(), renamed.len(), "{aside:?}");
    for prefix in &renamed {
        let moved = aside.iter().find(|name| name.starts_with(prefix));
        assert!(rogue.join(moved.unwrap()).is_dir());
    }
    assert!(wanted.is_subset(&found));
    for name in found.iter().filter(|name| !aside.contains(name)) {
        let who = if name.contains("rogue") { "rogue" } else { "owner" };
        assert_eq!(fs::read_to_string(rogue.join(name)).unwrap(), who, "{name}");
    }
    unmount(mounts.owner);
    assert_eq!(names(&rogue), found);
    mounts.cluster.fsck();
}
