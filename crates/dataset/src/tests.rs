//! Packing, and reading back.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::pack::{
    Entry, Listed, LocalTree, Objects, Options, Plan, Progress, Source, pack, pack_objects,
};
use crate::table::{ROOT, Resolved};
use crate::{BLOCK_BYTES, Broadcast, Codec, Dataset, Digest, Error, Manifest, Meta, Partition};
use crate::{Result, Staged};

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    // Half of it can be compressed.
    (0..len).map(|n| if n / 64 % 2 == 0 { next() } else { b'x' }).collect()
}

fn tree(root: &Path) {
    fs::create_dir_all(root.join("class/a")).unwrap();
    fs::create_dir_all(root.join("class/b/deep")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    let no_flags = rustix::fs::XattrFlags::empty();
    for n in 0..60 {
        let class = ["class/a", "class/b", "class/b/deep"][n % 3];
        fs::write(root.join(class).join(format!("image-{n:03}.jpg")), bytes(n * 977, n as u64))
            .unwrap();
    }
    fs::write(root.join("large"), bytes((9 << 20) + 5, 99)).unwrap();
    fs::write(root.join("plain"), bytes(100_000, 5)).unwrap();
    fs::write(root.join("nothing"), "").unwrap();
    fs::hard_link(root.join("large"), root.join("class/large-too")).unwrap();
    symlink("class/a", root.join("link")).unwrap();
    symlink("nowhere", root.join("empty/dangling")).unwrap();
    fs::write(root.join("n".repeat(255)), "a long name").unwrap();
    fs::set_permissions(root.join("plain"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o1777)).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    rustix::fs::lsetxattr(root.join("plain"), "user.label", b"cat", no_flags).unwrap();
}

/// All that is to be seen of a tree.
fn seen(root: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut rest = vec![root.to_owned()];
    while let Some(at) = rest.pop() {
        let meta = fs::symlink_metadata(&at).unwrap();
        let what = if meta.is_dir() {
            rest.extend(fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().path()));
            String::new()
        } else if meta.is_symlink() {
            fs::read_link(&at).unwrap().display().to_string()
        } else if meta.is_file() {
            Digest::of(&fs::read(&at).unwrap()).to_string()
        } else {
            "other".to_owned()
        };
        let mut value = [0; 100];
        let label = rustix::fs::lgetxattr(&at, "user.label", &mut value).unwrap_or(0);
        let [mode, links, time] = [meta.mode().into(), meta.nlink(), meta.mtime() as u64];
        let text = format!("{mode:o} {links} {time}.{} {label} {what}", meta.mtime_nsec());
        all.insert(at.strip_prefix(root).unwrap().display().to_string(), text);
    }
    all
}

fn options(partitions: u32, codec: &str) -> Options {
    Options { partitions, codec: codec.parse().unwrap(), ..Options::default() }
}

fn pack_tree(from: &Path, to: &Path, options: &Options) -> Result<Manifest> {
    let source = LocalTree::new(from);
    pack(&source, Plan::of(&source)?, to, options, &Progress::default())
}

#[test]
fn what_is_packed_comes_out_again() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    tree(&from);
    let mut digests = Vec::new();
    for (n, (partitions, codec)) in
        [(1, "none"), (3, "lz4"), (3, "zstd"), (40, "none"), (500, "zstd:1")]
            .into_iter()
            .enumerate()
    {
        let (packed, out) = (dir.path().join(format!("p{n}")), dir.path().join(format!("o{n}")));
        let manifest = pack_tree(&from, &packed, &options(partitions, codec)).unwrap();
        assert_eq!((manifest.files, manifest.directories, manifest.others), (64, 6, 3));
        assert_eq!(manifest.partitions.len(), partitions as usize);
        assert_eq!(Manifest::read(&packed).unwrap(), manifest);
        let stored: u64 = manifest.partitions.iter().map(|part| part.stored).sum();
        let is_smaller = stored < manifest.bytes * 3 / 4 + u64::from(partitions) * (12 << 10);
        assert_eq!(codec != "none", is_smaller, "{stored}");
        digests.push(manifest.digest);
        let dataset = Dataset::open(&packed).unwrap();
        assert_eq!(dataset.verify(|_| Ok(())).unwrap(), []);
        dataset.export(&out, |_| Ok(())).unwrap();
        let (got, wanted) = (seen(&out), seen(&from));
        let differs = wanted.iter().find(|(path, what)| got.get(*path) != Some(what));
        assert_eq!(differs.map(|(path, what)| (path, what, got.get(path))), None);
        assert_eq!(got.len(), wanted.len());
        let left = fs::read_dir(&packed).unwrap().count();
        assert_eq!(left, partitions as usize + 2, "no notes are left");
        assert!(pack_tree(&from, &packed, &options(1, "none")).is_err(), "a dataset is there");
        assert!(dataset.export(&from, |_| Ok(())).is_err(), "not empty");
        // Where a file can be mapped.
        let ino = dataset.table().lookup(0, b"plain").unwrap();
        let data = dataset.table().inode(ino).data().unwrap();
        assert!(data.codec != Codec::None || data.offset.is_multiple_of(4096));
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "the same data");
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    tree(&from);
    let packed = |name: &str, threads, memory_bytes| {
        let to = dir.path().join(name);
        let options = Options { threads, memory_bytes, ..options(4, "zstd") };
        pack_tree(&from, &to, &options).unwrap();
        let all = fs::read_dir(to).unwrap().map(|entry| entry.unwrap().path());
        all.map(|at| (at.file_name().unwrap().to_owned(), Digest::of(&fs::read(&at).unwrap())))
            .collect::<BTreeMap<_, _>>()
    };
    let one = packed("one", 1, 1);
    assert_eq!(one, packed("many", 8, 1 << 30));
    assert_eq!(one, packed("few", 3, 10 << 20));
    // A file that changes, changes its partition.
    fs::write(from.join("plain"), "other").unwrap();
    let changed = packed("changed", 2, 1 << 30);
    let differ = one.iter().filter(|(name, digest)| changed[*name] != **digest).count();
    assert_eq!(differ, 3, "one partition, the table and the manifest");
}

#[test]
fn nobody_looks_into_a_private_directory_while_it_is_written_out() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to, out] = ["from", "to", "out"].map(|name| dir.path().join(name));
    let private = fs::Permissions::from_mode(0o700);
    fs::create_dir_all(from.join("private")).unwrap();
    fs::set_permissions(from.join("private"), private).unwrap();
    fs::write(from.join("private/f"), "hidden").unwrap();
    pack_tree(&from, &to, &options(1, "none")).unwrap();
    let mut modes = Vec::new();
    let watch = |_| {
        modes.push(fs::metadata(out.join("private")).unwrap().mode() & 0o777);
        Ok(())
    };
    Dataset::open(&to).unwrap().export(&out, watch).unwrap();
    assert_eq!(modes, [0o700]);
}

/// A source that fails after so many reads.
struct Fails<'a>(&'a LocalTree, std::sync::atomic::AtomicU64);

impl Source for Fails<'_> {
    fn list(&self, add: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        self.0.list(add)
    }

    fn read(&self, path: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        let left = self.1.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if left.is_err() {
            return Err(Error::Interrupted);
        }
        self.0.read(path, offset, into)
    }

    fn version(&self, path: &[u8]) -> Result<u64> {
        self.0.version(path)
    }
}

#[test]
fn a_run_goes_on_where_another_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to, whole) = ("from", "to", "whole");
    let [from, to, whole] = [from, to, whole].map(|name| dir.path().join(name));
    fs::create_dir(&from).unwrap();
    tree(&from);
    let options = Options { note_every_bytes: 1, threads: 1, ..options(2, "lz4") };
    let wanted = pack_tree(&from, &whole, &options).unwrap();
    let source = LocalTree::new(&from);
    let plan = Plan::of(&source).unwrap();
    let (mut runs, mut resumed) = (0, 0);
    let manifest = loop {
        let progress = Progress::default();
        let fails = Fails(&source, 7.into());
        match pack(&fails, &plan, &to, &options, &progress) {
            Ok(manifest) => break manifest,
            Err(Error::Interrupted) => {}
            Err(other) => panic!("{other}"),
        }
        let now = progress.resumed_bytes.load(Ordering::SeqCst);
        assert!(now >= resumed, "it goes on");
        (runs, resumed) = (runs + 1, now);
        assert!(runs < 100, "it comes to an end");
        // The end of what was written may be anything.
        for partial in fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().path()) {
            if partial.extension().is_some_and(|ext| ext == "partial") {
                let file = fs::File::options().write(true).open(&partial).unwrap();
                file.write_all_at(b"garbage", fs::metadata(&partial).unwrap().len()).unwrap();
            }
        }
    };
    assert!(runs > 5 && resumed > 1 << 20, "{runs} {resumed}");
    assert_eq!(manifest, wanted);
    assert_eq!(Dataset::open(&to).unwrap().verify(|_| Ok(())).unwrap(), []);
    // Other files than before: nothing is taken from an earlier run.
    let other = dir.path().join("other");
    let fails = Fails(&source, 40.into());
    assert!(pack(&fails, &plan, &other, &options, &Progress::default()).is_err());
    fs::write(from.join("class/a/image-000.jpg"), "changed").unwrap();
    let progress = Progress::default();
    pack(&source, Plan::of(&source).unwrap(), &other, &options, &progress).unwrap();
    assert_eq!(progress.resumed_bytes.load(Ordering::SeqCst), 0);
    let stopped = Progress::default();
    stopped.stop.store(true, Ordering::SeqCst);
    let to = dir.path().join("stopped");
    assert!(matches!(pack(&source, &plan, &to, &options, &stopped), Err(Error::Interrupted)));
}

/// Objects in a directory, which fail after so many.
struct Kept<'a> {
    dir: &'a Path,
    scratch: &'a Path,
    left: std::sync::atomic::AtomicU64,
    /// Most partitions that were on the scratch disk at once.
    partitions_max: std::sync::atomic::AtomicU64,
}

impl Kept<'_> {
    fn at(&self, digest: &Digest) -> std::path::PathBuf {
        self.dir.join(digest.to_string())
    }
}

impl Objects for Kept<'_> {
    fn has(&self, digest: &Digest, bytes: u64) -> Result<bool> {
        Ok(fs::metadata(self.at(digest)).is_ok_and(|meta| meta.len() == bytes))
    }

    fn put(&self, digest: &Digest, path: &Path, bytes: u64) -> Result<()> {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        left.map_err(|_| Error::Interrupted)?;
        let names = fs::read_dir(self.scratch).unwrap();
        let paths = names.map(|entry| entry.unwrap().path());
        let is_part = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("part-") && (name.ends_with(".saker") || name.ends_with(".partial"))
        };
        let parts = paths.filter(is_part).count() as u64;
        self.partitions_max.fetch_max(parts, Ordering::SeqCst);
        assert!(!self.has(digest, bytes)?, "it is there");
        fs::copy(path, self.at(digest)).unwrap();
        assert!(self.has(digest, bytes)?, "as long as that");
        Ok(())
    }
}

#[test]
fn partitions_become_objects_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["from", "whole", "objects", "scratch"];
    let [from, whole, objects, scratch] = names.map(|name| dir.path().join(name));
    fs::create_dir(&from).unwrap();
    fs::create_dir(&objects).unwrap();
    tree(&from);
    let options = options(7, "zstd");
    let wanted = pack_tree(&from, &whole, &options).unwrap();
    let source = LocalTree::new(&from);
    let (dir, scratch_dir) = (&objects, &scratch);
    let run = |left: u64| {
        let (left, partitions_max) = (left.into(), 0.into());
        let kept = Kept { dir, scratch: scratch_dir, left, partitions_max };
        let progress = Progress::default();
        let plan = Plan::of(&source).unwrap();
        let packed = pack_objects(&source, plan, scratch_dir, &options, &progress, &kept);
        let most = kept.partitions_max.load(Ordering::SeqCst);
        (packed, most, progress.resumed_bytes.load(Ordering::SeqCst))
    };
    // It stops after two, after three more, and goes on.
    for (left, there) in [(2, 2), (3, 5)] {
        let (packed, most, _) = run(left);
        assert!(matches!(packed.err().unwrap(), Error::Interrupted));
        assert_eq!(fs::read_dir(&objects).unwrap().count(), there);
        assert!(most <= 2, "{most} partitions at once");
    }
    // One that was collected is packed again.
    let first = wanted
        .partitions
        .iter()
        .find(|part| fs::metadata(objects.join(part.digest.to_string())).is_ok());
    fs::remove_file(objects.join(first.unwrap().digest.to_string())).unwrap();
    let (packed, most, resumed) = run(100);
    let packed = packed.unwrap();
    assert_eq!(packed.manifest, wanted);
    // Two of the runs before are left besides it.
    assert!(most <= 3 && resumed > 0, "{most} {resumed}");
    assert_eq!(fs::read_dir(&objects).unwrap().count(), 8, "seven partitions and a table");
    // The same bytes as those of a dataset on a disk.
    let parts = wanted.partitions.iter().map(|part| (part.digest, part.name.as_str()));
    for (digest, name) in parts.chain([(wanted.table_digest, "table.saker")]) {
        let object = fs::read(objects.join(digest.to_string())).unwrap();
        assert!(object == fs::read(whole.join(name)).unwrap(), "{name}");
    }
    let left = fs::read_dir(&scratch).unwrap().map(|entry| entry.unwrap().file_name());
    let parts = left.filter(|name| name.to_str().unwrap().ends_with("part-00000.saker")).count();
    assert_eq!(parts, 0, "no partition is left");
}

#[test]
fn a_file_that_changes_meanwhile_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    for (name, len) in [("grows", 10), ("shrinks", 20)] {
        fs::write(from.join(name), bytes(len, 1)).unwrap();
    }
    let source = LocalTree::new(&from);
    for (name, len) in [("grows", 11), ("shrinks", 19)] {
        let plan = Plan::of(&source).unwrap();
        let was = fs::read(from.join(name)).unwrap();
        fs::write(from.join(name), bytes(len, 1)).unwrap();
        let options = options(1, "none");
        let packed = pack(&source, &plan, &dir.path().join("to"), &options, &Progress::default());
        assert!(packed.unwrap_err().to_string().contains(name));
        fs::write(from.join(name), was).unwrap();
    }
}

#[test]
fn lists_name_what_is_packed() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    tree(&from);
    let paths = ["./class/a/image-000.jpg", "class//a/image-003.jpg", "link", "class/b", "plain"];
    let listed = Listed::new(&from, paths.map(|path| path.as_bytes().to_vec())).unwrap();
    let to = dir.path().join("to");
    pack(&listed, Plan::of(&listed).unwrap(), &to, &options(2, "none"), &Progress::default())
        .unwrap();
    let dataset = Dataset::open(&to).unwrap();
    let mut paths = Vec::new();
    dataset.each(|path, _| paths.push(String::from_utf8(path.to_vec()).unwrap()));
    let wanted = [
        "class",
        "class/a",
        "class/a/image-000.jpg",
        "class/a/image-003.jpg",
        "class/b",
        "link",
        "plain",
    ];
    assert_eq!(paths, wanted);
    for wrong in ["/etc/passwd", "../x", "a/../../b", "."] {
        assert!(Listed::new(&from, [wrong.as_bytes().to_vec()]).is_err(), "{wrong}");
    }
    let missing = Listed::new(&from, [b"missing".to_vec()]).unwrap();
    assert!(Plan::of(&missing).is_err());
}

/// Whatever happens to a partition's bytes: a clear error, or the right data.
#[test]
fn damage_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    fs::create_dir(&from).unwrap();
    for n in 0..5 {
        fs::write(from.join(format!("f{n}")), bytes(3000 * n, n as u64)).unwrap();
    }
    pack_tree(&from, &to, &options(1, "zstd")).unwrap();
    let part = to.join("part-00000.saker");
    let whole = fs::read(&part).unwrap();
    let wanted: Vec<Vec<u8>> = (0..5).map(|n| bytes(3000 * n, n as u64)).collect();
    let read = || -> Result<Vec<Vec<u8>>> {
        let dataset = Dataset::open(&to)?;
        (0..5)
            .map(|n| {
                let (mut all, name) = (Vec::new(), format!("f{n}"));
                let ino = dataset.table().lookup(0, name.as_bytes());
                let ino = ino.ok_or_else(|| Error::damaged(&to, "a name is missing"))?;
                dataset.read(ino, |block| {
                    all.extend(block);
                    Ok(())
                })?;
                Ok(all)
            })
            .collect()
    };
    assert_eq!(read().unwrap(), wanted);
    let mut found = 0;
    for at in (0..whole.len()).step_by(37) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x11;
        fs::write(&part, &bytes).unwrap();
        match read() {
            Ok(data) if data == wanted => {}
            Ok(_) => {
                // A table that was changed: it is looked through by verify, not by each reader.
                let problems = Dataset::open(&to).unwrap().verify(|_| Ok(())).unwrap();
                assert!(!problems.is_empty(), "byte {at}");
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("part-00000") || text.contains("missing"), "{text}");
                found += 1;
            }
        }
    }
    assert!(found > 20, "{found}");
    for len in [0, 7, 100, 4096, 5000, whole.len() - 4096, whole.len() - 1] {
        fs::write(&part, &whole[..len]).unwrap();
        let error = Partition::open(&part).err().unwrap().to_string();
        let wanted = if len < 8 { "not a file of a Saker dataset" } else { "cut short" };
        assert!(error.contains(wanted) && error.contains("part-00000"), "{len}: {error}");
    }
    fs::write(&part, b"\x89PNG".repeat(10_000)).unwrap();
    assert!(matches!(Partition::open(&part), Err(Error::Foreign(_))));
    fs::write(&part, &whole).unwrap();
    let manifest = to.join("dataset.json");
    fs::write(&manifest, "{}").unwrap();
    assert!(matches!(Dataset::open(&to), Err(Error::Foreign(_))));
    fs::write(&manifest, r#"{"format": 9}"#).unwrap();
    assert!(matches!(Dataset::open(&to), Err(Error::Newer { .. })));
}

#[test]
fn a_partition_is_that_of_its_notes() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b, to] = ["a", "b", "to"].map(|name| dir.path().join(name));
    for (from, text) in [(&a, "old"), (&b, "new")] {
        fs::create_dir(from).unwrap();
        for n in 0..5 {
            fs::write(from.join(format!("f{n}")), format!("{text} {n}")).unwrap();
        }
    }
    // Notes that say that it is whole, beside a partition of other files.
    let stopped = |from: &Path, reads: u64| {
        let source = LocalTree::new(from);
        let fails = Fails(&source, reads.into());
        let plan = Plan::of(&source).unwrap();
        let options = Options { threads: 1, note_every_bytes: 1, ..options(2, "none") };
        assert!(pack(&fails, &plan, &to, &options, &Progress::default()).is_err());
    };
    stopped(&a, 4);
    let part = to.join("part-00000.saker");
    let other = fs::read(&part).unwrap();
    stopped(&b, 4);
    fs::write(&part, other).unwrap();
    pack_tree(&b, &to, &options(2, "none")).unwrap();
    let dataset = Dataset::open(&to).unwrap();
    dataset.export(&dir.path().join("out"), |_| Ok(())).unwrap();
    assert_eq!(seen(&dir.path().join("out")), seen(&b));
}

#[test]
fn one_run_at_a_time_packs_into_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    fs::create_dir(&from).unwrap();
    fs::create_dir(&to).unwrap();
    let other = fs::File::open(&to).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let error = pack_tree(&from, &to, &options(1, "none")).unwrap_err();
    assert!(error.to_string().contains("another run"), "{error}");
    drop(other);
    for left in ["part-00007.saker", "part-00000.partial", "part-00009.progress", "mine.saker"] {
        fs::write(to.join(left), "left").unwrap();
    }
    pack_tree(&from, &to, &options(1, "none")).unwrap();
    let mut names: Vec<_> =
        fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["dataset.json", "mine.saker", "part-00000.saker", "table.saker"]);
    // A run that was killed when all but this was done.
    fs::write(to.join("part-00000.progress"), "left").unwrap();
    let error = pack_tree(&from, &to, &options(9, "none")).unwrap_err();
    assert!(error.to_string().contains("there already"), "{error}");
    assert!(!to.join("part-00000.progress").exists() && to.join("part-00000.saker").exists());
}

#[test]
fn a_file_that_is_rewritten_meanwhile_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    let file = from.join("f");
    fs::write(&file, "before").unwrap();
    let source = LocalTree::new(&from);
    let plan = Plan::of(&source).unwrap();
    let was = fs::metadata(&file).unwrap().modified().unwrap();
    // As long, and of the same time.
    while rewrite(&file, b"after!", was) == fs::metadata(&file).unwrap().ctime_nsec() {}
    let packed =
        pack(&source, &plan, &dir.path().join("to"), &options(1, "none"), &Progress::default());
    assert!(packed.unwrap_err().to_string().contains("f: changed"));
}

/// A source whose first file is replaced between two reads of it: when somebody reads another file,
/// its last block was read and its first is not.
struct Replaced {
    began: std::sync::Mutex<bool>,
    other: std::sync::Condvar,
    replaced: std::sync::atomic::AtomicBool,
}

impl Source for Replaced {
    fn list(&self, add: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        let entry = |path: &str, mode, size| Entry {
            path: path.into(),
            meta: Meta { mode, size, ..Meta::default() },
            link: 0,
            version: 1,
        };
        let file = |path, size| entry(path, 0o100_644, size);
        add(entry("", 0o040_755, 0))?;
        add(file("a", 2 * BLOCK_BYTES))?;
        add(file("b", 1))
    }

    fn read(&self, path: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        if path == b"a" && offset == 0 {
            let mut began = self.began.lock().unwrap();
            while !*began {
                began = self.other.wait(began).unwrap();
            }
            self.replaced.store(true, Ordering::SeqCst);
        } else if path == b"b" {
            *self.began.lock().unwrap() = true;
            self.other.notify_all();
        }
        let size = if path == b"a" { 2 * BLOCK_BYTES } else { 1 };
        Ok(into.len().min((size - offset) as usize))
    }

    fn version(&self, path: &[u8]) -> Result<u64> {
        let replaced = path == b"a" && self.replaced.load(Ordering::SeqCst);
        Ok(if replaced { 2 } else { 1 })
    }
}

#[test]
fn a_file_is_looked_at_when_all_its_blocks_were_read() {
    let dir = tempfile::tempdir().unwrap();
    let source =
        Replaced { began: false.into(), other: std::sync::Condvar::new(), replaced: false.into() };
    let (plan, to) = (Plan::of(&source).unwrap(), dir.path().join("to"));
    let options = Options { threads: 2, ..options(1, "none") };
    let packed = pack(&source, plan, &to, &options, &Progress::default());
    assert!(packed.unwrap_err().to_string().contains("a: changed"));
}

/// Rewrites a file and puts its time back; returns its time of change before.
fn rewrite(file: &Path, text: &[u8], time: std::time::SystemTime) -> i64 {
    let before = fs::metadata(file).unwrap().ctime_nsec();
    fs::write(file, text).unwrap();
    fs::File::options().write(true).open(file).unwrap().set_modified(time).unwrap();
    before
}

#[test]
fn lists_do_not_lead_through_links() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    fs::write(dir.path().join("real/f"), "x").unwrap();
    symlink("real", dir.path().join("link")).unwrap();
    let listed = Listed::new(dir.path(), [b"link/f".to_vec()]).unwrap();
    let error = Plan::of(&listed).err().unwrap().to_string();
    assert!(error.contains("link/f") && error.contains("no directory"), "{error}");
}

#[test]
fn a_node_reads_what_it_keeps() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to, node] = ["from", "to", "node"].map(|name| dir.path().join(name));
    fs::create_dir_all(from.join("val")).unwrap();
    fs::create_dir(&node).unwrap();
    for n in 0..20 {
        let text = format!("file {n} ").repeat(1 + n * 3000);
        fs::write(from.join(format!("{}f{n}", ["", "val/"][n % 2])), text).unwrap();
    }
    let manifest = pack_tree(&from, &to, &options(4, "lz4")).unwrap();
    let packed = Dataset::open(&to).unwrap();
    for name in ["table.saker", "part-00001.saker"] {
        fs::copy(to.join(name), node.join(name)).unwrap();
    }
    let table = packed.table();
    let val = table.lookup(ROOT, b"val").unwrap();
    let inos = table.children(val).map(|(_, ino)| ino).collect();
    Broadcast::write::<Error>(&node, table, inos, |_, data| {
        let mut stored = vec![0; data.stored as usize];
        packed.partitions()[data.partition as usize].read_stored(data.offset, &mut stored)?;
        Ok(stored)
    })
    .unwrap();
    let staged = Staged::open(&node).unwrap();
    assert_eq!(Digest::of(staged.table().as_bytes()), manifest.table_digest);
    let mut kept = 0;
    packed.each(|path, _| {
        let Resolved::Found(ino) = staged.table().resolve(ROOT, path, false) else { panic!() };
        let Some(data) = staged.table().inode(ino).data() else { return };
        let local = staged.local(ino, &data);
        let is_here = path.starts_with(b"val") || data.partition == 1;
        assert_eq!(local.path.exists(), is_here);
        if is_here {
            kept += 1;
            let mut stored = vec![0; data.stored as usize];
            let file = fs::File::open(&local.path).unwrap();
            file.read_exact_at(&mut stored, local.offset).unwrap();
            let block = staged.table().expand(&data, 0, stored.into()).unwrap();
            assert_eq!(block, fs::read(from.join(std::str::from_utf8(path).unwrap())).unwrap());
        }
    });
    assert!((10..20).contains(&kept), "{kept}");
    // What is damaged is not taken.
    let path = node.join("broadcast.saker");
    let good = fs::read(&path).unwrap();
    for at in [0, 9, 30, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, bad).unwrap();
        assert!(Staged::open(&node).is_err(), "{at}");
    }
    fs::write(&path, &good[..good.len() - 1]).unwrap();
    assert!(Staged::open(&node).is_err());
}
