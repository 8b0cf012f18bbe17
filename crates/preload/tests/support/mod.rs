//! A tree, datasets of it as they are staged, and programs that run on either.

#![allow(dead_code, reason = "not all tests use all of it")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

pub mod agent;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use saker_dataset::pack::{LocalTree, Options, Plan, Progress, pack};
use saker_dataset::{Broadcast, Dataset, Stage};
use tempfile::TempDir;

/// Where a dataset is seen.
pub const MOUNT: &str = "/saker";

/// A tree, and datasets of it.
pub struct Fixture {
    dir: TempDir,
}

/// Who runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// Who runs the tests.
    Own,
    /// One without rights.
    Nobody,
}

/// What to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On<'a> {
    /// The tree itself, mounted read-only.
    Tree,
    /// A dataset.
    Dataset(&'a str),
}

/// The library, which cargo builds before the tests.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let found = [deps, deps.parent().unwrap()].map(|dir| dir.join("libsaker_preload.so"));
    found.into_iter().find(|path| path.exists()).expect("cargo has built the library")
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    // Half of it can be compressed.
    (0..len).map(|n| if n / 64 % 2 == 0 { next() } else { b'x' }).collect()
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn tree(root: &Path) {
    for dir in ["dir/sub/deep", "empty", "closed", "many"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    let lines: String = (0..3000).map(|n| format!("line {n} of this file\n")).collect();
    fs::write(root.join("plain"), bytes(100_003, 1)).unwrap();
    fs::write(root.join("small"), "first line\nsecond line\nthird line\n").unwrap();
    fs::write(root.join("large"), bytes((9 << 20) + 5, 2)).unwrap();
    fs::write(root.join("zeros"), vec![0; 70_000]).unwrap();
    fs::write(root.join("aligned"), bytes(128 << 10, 3)).unwrap();
    fs::write(root.join("text"), lines).unwrap();
    fs::write(root.join("nothing"), "").unwrap();
    fs::write(root.join("secret"), "for its owner").unwrap();
    fs::write(root.join("closed/inner"), "in a closed directory").unwrap();
    fs::write(root.join("dir/inner"), bytes(5000, 4)).unwrap();
    fs::write(root.join("dir/sub/deep/down"), "far down\n").unwrap();
    fs::write(root.join("program"), "#!/bin/sh\necho \"program $*\"\n").unwrap();
    fs::write(root.join("name with space"), "odd name\n").unwrap();
    for n in 0..200 {
        fs::write(root.join(format!("many/{n:04}")), bytes(n * 77, n as u64)).unwrap();
    }
    fs::hard_link(root.join("plain"), root.join("hard")).unwrap();
    for (target, link) in [
        ("plain", "link"),
        ("dir", "to-dir"),
        ("to-dir", "through"),
        ("nowhere", "dangling"),
        ("loop", "loop"),
        ("../plain", "dir/up"),
    ] {
        symlink(target, root.join(link)).unwrap();
    }
    // Out of the tree, wherever it is seen.
    let elsewhere = root.with_file_name("elsewhere");
    fs::write(&elsewhere, "out of the tree\n").unwrap();
    symlink(&elsewhere, root.join("absolute")).unwrap();
    let up = PathBuf::from("../".repeat(12));
    symlink(up.join(elsewhere.strip_prefix("/").unwrap()), root.join("outside")).unwrap();
    let (at, pipe) = (rustix::fs::CWD, rustix::fs::FileType::Fifo);
    let fifo_mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(at, root.join("pipe"), pipe, fifo_mode, 0).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("plain"), "user.label", b"cat", flags).unwrap();
    mode(&root.join("program"), 0o755);
    mode(&root.join("secret"), 0o600);
    mode(&root.join("closed"), 0o700);
    mode(&root.join("plain"), 0o640);
    mode(&root.join("large"), 0o444);
    mode(root, 0o755);
}

impl Fixture {
    /// The tree, and a dataset of each codec; of `zstd`, some files are kept for every node.
    pub fn new() -> Fixture {
        let dir = tempfile::Builder::new().prefix("saker-preload").tempdir_in("/var/tmp").unwrap();
        mode(dir.path(), 0o755);
        let fixture = Fixture { dir };
        fs::create_dir(fixture.path("tree")).unwrap();
        tree(&fixture.path("tree"));
        fs::create_dir(fixture.path("mounted")).unwrap();
        fs::create_dir(fixture.path("out")).unwrap();
        mode(&fixture.path("out"), 0o777);
        fs::copy(library(), fixture.path("preload.so")).unwrap();
        fixture.stage("none", 3);
        fixture.stage("zstd", 2);
        fixture
    }

    /// A path in the fixture's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The directory of a staged dataset.
    pub fn staged(&self, codec: &str) -> PathBuf {
        self.path(&format!("agent/datasets/tree@{codec}"))
    }

    /// Puts another tree in place of the first.
    pub fn restage(&self, from: &Path) {
        fs::remove_dir_all(self.path("agent")).unwrap();
        fs::remove_dir_all(self.path("tree")).unwrap();
        fs::rename(from, self.path("tree")).unwrap();
        self.stage("none", 3);
        self.stage("zstd", 2);
    }

    fn stage(&self, codec: &str, partitions: u32) {
        self.stage_tree(&self.path("tree"), codec, partitions);
    }

    /// Stages a tree as `tree@CODEC`.
    pub fn stage_tree(&self, tree: &Path, codec: &str, partitions: u32) {
        let (source, to) = (LocalTree::new(tree), self.staged(codec));
        let options = Options { partitions, codec: codec.parse().unwrap(), ..Options::default() };
        let plan = Plan::of(&source).unwrap();
        let manifest = pack(&source, &plan, &to, &options, &Progress::default()).unwrap();
        let stage = Stage {
            format: Stage::FORMAT,
            name: format!("tree@{codec}"),
            digest: manifest.digest,
            table_digest: manifest.table_digest,
            partitions,
            nodes: vec!["localhost:7460".into()],
            replicas: 1,
            broadcast: vec!["dir".into()],
            origin: "/data".into(),
        };
        stage.write(&to).unwrap();
        let dataset = Dataset::open(&to).unwrap();
        let table = dataset.table();
        let dir = table.lookup(0, b"dir");
        let Some(inner) = dir.and_then(|dir| table.lookup(dir, b"inner")) else { return };
        let read = |_, data: &saker_dataset::FileData| {
            let mut stored = vec![0; data.stored as usize];
            let part = &dataset.partitions()[data.partition as usize];
            part.read_stored(data.offset, &mut stored)?;
            Ok::<_, saker_dataset::Error>(stored)
        };
        Broadcast::write(&to, table, vec![inner], read).unwrap();
    }

    /// Compiles a program of this directory.
    pub fn compile(&self, source: &str, flags: &[&str]) -> PathBuf {
        let out = self.path(source.trim_end_matches(".c"));
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
        let mut cc = Command::new("cc");
        cc.arg("-O1").args(flags).arg("-o").arg(&out).arg(from).arg("-pthread");
        assert!(cc.status().unwrap().success(), "{source}");
        out
    }

    /// Runs a script of the shell; `$ROOT` is what it is to run on.
    pub fn run(&self, on: On<'_>, user: User, script: &str) -> Output {
        let mounted = self.path("mounted");
        let root = match on {
            On::Tree => mounted.clone(),
            On::Dataset(codec) => Path::new(MOUNT).join(format!("tree@{codec}")),
        };
        let mut shell = Command::new("unshare");
        shell.arg(if is_root() { "-m" } else { "-rm" });
        // Nothing but `$OUT` can be changed: scripts follow links out of the tree.
        let mount = "mount --bind \"$OUT\" \"$OUT\" && mount --bind \"$TREE\" \"$MOUNTED\" && \
                     mount -o remount,bind,ro \"$MOUNTED\" && mount -o remount,bind,ro / && \
                     ! touch \"$HERE/touched\" 2> /dev/null";
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let user = match user {
            User::Own if is_root() => String::new(),
            // The superuser of the namespace is the caller again.
            User::Own => format!("unshare -U --map-user={uid} --map-group={gid}"),
            User::Nobody => "setpriv --reuid=65534 --regid=65534 --clear-groups".to_owned(),
        };
        let preload = match on {
            On::Tree => "",
            On::Dataset(_) => "LD_PRELOAD=\"$LIBRARY\"",
        };
        let start = format!("{mount} && cd / && exec {user} env {preload} bash -c \"$SCRIPT\"");
        shell.args(["bash", "-c", &start]).env("SCRIPT", script);
        shell.env("TREE", self.path("tree")).env("MOUNTED", &mounted).env("ROOT", root);
        shell.env("LIBRARY", self.path("preload.so")).env("SAKER_AGENT_DIR", self.path("agent"));
        shell.env("OUT", self.path("out")).env("HERE", self.dir.path());
        shell
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            .env("TMPDIR", self.path("out"))
            .env("HOME", self.path("out"));
        shell.output().unwrap()
    }

    /// Runs a script on the tree and on both datasets: what it prints must be the same.
    pub fn compare(&self, user: User, script: &str) {
        if let Some(differs) = self.difference(user, script) {
            panic!("{differs}");
        }
    }

    /// How a script differs on the tree and on a dataset.
    pub fn difference(&self, user: User, script: &str) -> Option<String> {
        let wanted = self.run(On::Tree, user, script);
        let text = |out: &[u8]| String::from_utf8_lossy(out).replace("mounted", "tree");
        let errors = text(&wanted.stderr);
        assert!(!wanted.stdout.is_empty(), "{script} says nothing: {errors}");
        for codec in ["none", "zstd"] {
            let got = self.run(On::Dataset(codec), user, script);
            if (&got.stdout, got.status) == (&wanted.stdout, wanted.status) {
                continue;
            }
            fs::write(self.path("wanted"), text(&wanted.stdout)).unwrap();
            fs::write(self.path("got"), text(&got.stdout)).unwrap();
            let files = [self.path("wanted"), self.path("got")];
            let diff = Command::new("diff").arg("-U1").args(files).output().unwrap();
            let (diff, errors) = (text(&diff.stdout), text(&got.stderr));
            return Some(format!(
                "{script}\non {codec} as {user:?}, {} for {}:\n{diff}{errors}",
                got.status, wanted.status
            ));
        }
        None
    }
}

/// The tests run as the superuser.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
