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
