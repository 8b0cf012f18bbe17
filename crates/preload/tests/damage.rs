//! What is staged is damaged, or changes while it is read.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

mod support;

use support::{Fixture, On, User};

fn says(fixture: &Fixture, script: &str) -> String {
    let output = fixture.run(On::Dataset("none"), User::Own, script);
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn a_partition_that_is_cut_is_an_error_not_the_end_of_a_file() {
    let fixture = Fixture::new();
    for entry in std::fs::read_dir(fixture.staged("none")).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with("part-") {
            std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(5000).unwrap();
        }
    }
    let reads = "import os, sys\n\
                 f = os.open(sys.argv[1], os.O_RDONLY)\nend = os.fstat(f).st_size - 10\n\
                 def seek(): os.lseek(f, end, os.SEEK_SET)\n\
                 for call in [lambda: os.pread(f, 5, end), lambda: os.read(f, 5), \
                 lambda: os.readv(f, [bytearray(5)]), lambda: os.preadv(f, [bytearray(5)], end), \
                 lambda: os.sendfile(1, f, end, 5), lambda: os.copy_file_range(f, 1, 5, end)]:\n\
                 \x20 seek()\n\
                 \x20 try: print(call())\n\
                 \x20 except OSError as e: print(e.errno)\n\
                 seek()\nprint(os.read(f, 0), os.lseek(f, 0, os.SEEK_END) - end, os.read(f, 5))";
    std::fs::write(fixture.path("reads.py"), reads).unwrap();
    let said = says(&fixture, "exec /usr/bin/python3 $HERE/reads.py $ROOT/large > $OUT/said; ");
    assert_eq!(said, "");
    let said = std::fs::read_to_string(fixture.path("out/said")).unwrap();
    assert_eq!(said, "5\n5\n5\n5\n5\n5\nb'' 10 b''\n");
    let said = says(&fixture, "cp $ROOT/large $OUT/copy; echo $?");
    assert!(said.starts_with("1\n") && said.contains("Input/output error"), "{said}");
}

#[test]
fn a_dataset_that_is_replaced_is_not_mixed_with_the_new_one() {
    let fixture = Fixture::new();
    let other = fixture.path("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("a"), "other bytes\n".repeat(500)).unwrap();
    std::fs::write(other.join("small"), "of the other dataset\n").unwrap();
    let old = fixture.staged("none");
    std::fs::rename(&old, fixture.path("old")).unwrap();
    fixture.stage_tree(&other, "none", 3);
    std::fs::rename(&old, fixture.path("new")).unwrap();
    std::fs::rename(fixture.path("old"), &old).unwrap();
    // A copy of it, for one that is staged again.
    let copy = "import os, sys, shutil\nroot, staged, out = sys.argv[1:]\n\
                def read(path, at=None):\n\
                \x20 try: return os.read(os.open(path, os.O_RDONLY, dir_fd=at), 9)\n\
                \x20 except OSError as e: return e.errno\n\
                def change(new):\n\
                \x20 shutil.rmtree(staged)\n\x20 shutil.copytree(new, staged)\n\
                shutil.copytree(staged, out + '/same')\n\
                at, kept = os.open(root, os.O_RDONLY), os.open(root + '/text', os.O_RDONLY)\n\
                print(read(root + '/small'), read('small', at))\n\
                change(out + '/same')\nprint(read(root + '/small'), read('small', at))\n\
                change(out + '/../new')\nprint(read('small', at), read(root + '/small'))\n\
                print(read('small', at), read(root + '/text'), os.pread(kept, 7, 0), open(root + '/a').read(5))\n\
                shutil.rmtree(out + '/same')";
    std::fs::write(fixture.path("replace.py"), copy).unwrap();
    std::fs::rename(fixture.path("agent/datasets"), fixture.path("out/datasets")).unwrap();
    std::os::unix::fs::symlink(fixture.path("out/datasets"), fixture.path("agent/datasets"))
        .unwrap();
    let said =
        says(&fixture, "exec /usr/bin/python3 $HERE/replace.py $ROOT $OUT/datasets/tree@none $OUT");
    assert_eq!(
        said,
        "b'first lin' b'first lin'\nb'first lin' b'first lin'\n\
         116 b'of the ot'\n116 2 b'line 0 ' other\n"
    );
}

#[test]
fn a_table_that_is_damaged_is_an_error() {
    let fixture = Fixture::new();
    let table = fixture.staged("none").join("table.saker");
    let bytes = std::fs::read(&table).unwrap();
    let mut newer = bytes.clone();
    newer[8] = 200;
    for bad in [&b""[..], b"garbage", &bytes[..100], &bytes[..bytes.len() / 2], &newer] {
        std::fs::write(&table, bad).unwrap();
        let said = says(&fixture, "ls /saker; ls $ROOT; cat $ROOT/small; cd $ROOT || echo no");
        let names = "tree@none\ntree@none.out\ntree@zstd\ntree@zstd.out\n";
        assert!(said.starts_with(&format!("{names}no\n")), "{said}");
        assert_eq!(said.matches("Input/output error").count(), 3, "{said}");
    }
    std::fs::remove_file(&table).unwrap();
    let said = says(&fixture, "ls /saker; ls $ROOT; cat $ROOT/small");
    assert!(said.starts_with("tree@zstd\n"), "{said}");
    assert_eq!(said.matches("No such file").count(), 2, "{said}");
}
