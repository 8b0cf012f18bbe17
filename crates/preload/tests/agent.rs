//! With an agent, without one, and without the partitions.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeMap;

use saker_dataset::Dataset;
use support::agent::{Agent, Counts};
use support::{Fixture, On, User, is_root};

/// All files of a dataset, by number.
fn files(fixture: &Fixture) -> BTreeMap<u32, Vec<u8>> {
    let dataset = Dataset::open(&fixture.staged("zstd")).unwrap();
    let table = dataset.table();
    let mut files = BTreeMap::new();
    for ino in 0..table.len() {
        let Some(data) = table.inode(ino).data() else { continue };
        let part = &dataset.partitions()[data.partition as usize];
        let blocks = (0..data.blocks()).map(|n| part.read_block(table, &data, n).unwrap());
        files.insert(ino, blocks.collect::<Vec<_>>().concat());
    }
    files
}

/// The dataset's partitions are on other nodes.
fn lose_partitions(fixture: &Fixture) {
    for entry in std::fs::read_dir(fixture.staged("zstd")).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with("part-") {
            std::fs::remove_file(path).unwrap();
        }
    }
}

fn says(fixture: &Fixture, user: User, script: &str) -> String {
    let output = fixture.run(On::Dataset("zstd"), user, script);
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr)
}

const SUMS: &str = "cd $ROOT && find many text large -type f | sort | xargs sha256sum";

#[test]
fn what_is_elsewhere_comes_from_the_agent() {
    let fixture = Fixture::new();
    let files = files(&fixture);
    lose_partitions(&fixture);
    let agent = Agent::start(&fixture.path("agent"), "tree@zstd", files);
    let wanted = fixture.run(On::Tree, User::Own, SUMS).stdout;
    assert_eq!(fixture.run(On::Dataset("zstd"), User::Own, SUMS).stdout, wanted);
    let counts = agent.settled();
    assert!(counts.opened > 200, "{counts:?}");
    assert_eq!(counts.closed, counts.opened);
    if is_root() {
        assert_eq!(fixture.run(On::Dataset("zstd"), User::Nobody, SUMS).stdout, wanted);
    }
}

#[test]
fn without_partitions_and_agent_it_is_an_error() {
    let fixture = Fixture::new();
    lose_partitions(&fixture);
    let said =
        says(&fixture, User::Own, "cat $ROOT/text; ls $ROOT/many | wc -l; cat $ROOT/nothing");
    assert_eq!(said, "200\ncat: /saker/tree@zstd/text: Input/output error\n");
    // It is kept for every node.
    fixture.compare(User::Own, "sha256sum < $ROOT/dir/inner");
}

/// Of a program of Python, once it has ended.
fn counts(program: &str) -> Counts {
    let fixture = Fixture::new();
    let agent = Agent::start(&fixture.path("agent"), "tree@zstd", files(&fixture));
    let program =
        format!("import os, sys, fcntl\nos.chdir(os.environ['ROOT'])\n{program}\nprint('ok')");
    std::fs::write(fixture.path("program.py"), program).unwrap();
    let said = says(&fixture, User::Own, "exec /usr/bin/python3 -S $HERE/program.py");
    assert_eq!(said, "ok\n");
    agent.settled()
}

#[test]
fn the_agent_is_told_of_the_last_descriptor() {
    let copies = "a = os.open('text', os.O_RDONLY)\nb = os.dup(a)\nos.dup2(b, 50)\n\
                  c = fcntl.fcntl(a, fcntl.F_DUPFD_CLOEXEC, 60)\n\
                  os.close(a); os.close(b); os.close(c)\n";
    let wanted = Counts { connections: 1, gone: 1, opened: 1, closed: 0 };
    assert_eq!(counts(copies), wanted, "one is left");
    let all = format!("{copies}os.close(50)");
    assert_eq!(counts(&all), Counts { closed: 1, ..wanted });
    let twice = format!("{copies}d = os.open('text', os.O_RDONLY)\nos.close(50)\nos.close(d)");
    assert_eq!(counts(&twice), Counts { opened: 2, closed: 2, ..wanted });
    let replaced = format!("{copies}os.dup2(0, 50)");
    assert_eq!(counts(&replaced), Counts { closed: 1, ..wanted });
}

#[test]
fn a_child_has_a_connection_of_its_own() {
    let program = "a = os.open('text', os.O_RDONLY)\n\
                   if os.fork() == 0:\n\
                   \x20 first = os.pread(a, 10, 0)\n\
                   \x20 os.close(a)\n\
                   \x20 b = os.open('text', os.O_RDONLY)\n\
                   \x20 same = os.read(b, 10) == first\n\
                   \x20 os.close(b)\n\
                   \x20 os._exit(0 if same else 1)\n\
                   assert os.wait()[1] == 0\n\
                   assert os.read(a, 4) == b'line'\n\
                   os.close(a)";
    assert_eq!(counts(program), Counts { connections: 2, gone: 2, opened: 2, closed: 2 });
}

#[test]
fn the_connection_outlives_programs_that_close_everything() {
    let program = "a = os.open('text', os.O_RDONLY)\nos.close(a)\n\
                   os.closerange(3, 5000)\n\
                   for n in range(3, 5000):\n\
                   \x20 try: os.close(n)\n\
                   \x20 except OSError: pass\n\
                   a = os.open('text', os.O_RDONLY)\nos.close(a)";
    let counts = counts(program);
    assert_eq!(counts, Counts { connections: 1, gone: 1, opened: 2, closed: 2 });
}

#[test]
fn what_the_agent_refuses_is_an_error() {
    let fixture = Fixture::new();
    let _agent = Agent::start(&fixture.path("agent"), "tree@zstd", BTreeMap::new());
    let said = says(&fixture, User::Own, "cat $ROOT/text");
    assert_eq!(said, "cat: /saker/tree@zstd/text: Stale file handle\n");
}

#[test]
fn a_file_of_another_size_is_an_error() {
    let fixture = Fixture::new();
    let mut files = files(&fixture);
    files.values_mut().for_each(|data| data.truncate(3));
    let _agent = Agent::start(&fixture.path("agent"), "tree@zstd", files);
    let said = says(&fixture, User::Own, "cat $ROOT/text");
    assert_eq!(said, "cat: /saker/tree@zstd/text: Input/output error\n");
}

#[test]
fn an_agent_that_never_answers_is_waited_for_once() {
    let fixture = Fixture::new();
    let socket = fixture.path("agent").join(saker_agent_api::SOCKET);
    // Nobody takes its connections.
    let _silent = std::os::unix::net::UnixListener::bind(socket).unwrap();
    // The partitions are here.
    let said = says(&fixture, User::Own, "cd $ROOT && cat text small | wc -l");
    assert_eq!(said, "3003\n");
    lose_partitions(&fixture);
    let said = says(&fixture, User::Own, "cat $ROOT/text $ROOT/small 2>&1 | sort");
    let error = "Input/output error\n";
    let wanted = format!("cat: /saker/tree@zstd/small: {error}cat: /saker/tree@zstd/text: {error}");
    assert_eq!(said, wanted);
}
