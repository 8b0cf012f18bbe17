//! Where datasets are seen, and what is not one.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

mod support;

use support::{Fixture, On, User, is_root};

fn says(fixture: &Fixture, script: &str) -> String {
    let output = fixture.run(On::Dataset("none"), User::Own, script);
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn the_mount_point_lists_what_is_staged() {
    let fixture = Fixture::new();
    assert_eq!(
        says(&fixture, "ls /saker; stat -c %F:%i /saker"),
        "tree@none\ntree@none.out\ntree@zstd\ntree@zstd.out\ndirectory:1\n"
    );
    assert_eq!(
        says(&fixture, "cd /saker && echo * && pwd"),
        "tree@none tree@none.out tree@zstd tree@zstd.out\n/saker\n"
    );
    let other = "cat /saker/other@1/small /saker/small; mkdir /saker/x; echo $?";
    let said = says(&fixture, other);
    assert!(said.starts_with("1\n"), "{said}");
    assert_eq!(said.matches("No such file").count(), 2, "{said}");
    assert!(said.contains("Read-only file system"), "{said}");
    // Each dataset is a file system of its own, the same in all processes.
    let devices = "stat -c %d /saker /saker/tree@none /saker/tree@zstd | sort -u | wc -l; \
                   [ $(stat -c %d $ROOT/small) = $(cd $ROOT/dir && stat -c %d inner) ] && echo same; \
                   stat -f -c '%S %l' $ROOT; stat -f -c %a:%d $ROOT";
    assert_eq!(says(&fixture, devices), "3\nsame\n4096 255\n0:0\n");
}

#[test]
fn paths_lead_across_the_mount_point() {
    let fixture = Fixture::new();
    for path in [
        "/saker/tree@none/small",
        "//saker///tree@none/./small",
        "/tmp/../saker/tree@none/small",
        "/saker/tree@zstd/../tree@none/small",
        "/saker/../saker/tree@none/dir/../small",
        "/saker/tree@none/../../usr/../saker/tree@none/small",
    ] {
        assert_eq!(says(&fixture, &format!("wc -l < {path}")), "3\n", "{path}");
    }
    let same = "[ \"$(ls -di $ROOT/../../usr)\" = \"$(ls -di $ROOT/../..//usr/.)\" ]; \
                cd $ROOT && cd ../../usr && pwd && cd - && cd ../../etc && pwd && ls -d passwd";
    assert_eq!(says(&fixture, same), "/usr\n/saker/tree@none\n/etc\npasswd\n");
    assert_eq!(
        says(&fixture, "cd /; ls -d /sakers 2>&1 | wc -l; wc -l < saker/tree@none/small"),
        "1\n3\n"
    );
    let tar = "cd /tmp/.. && tar c saker/tree@none/dir/sub | tar t";
    let wanted = "saker/tree@none/dir/sub/\nsaker/tree@none/dir/sub/deep/\n\
                  saker/tree@none/dir/sub/deep/down\n";
    assert_eq!(says(&fixture, tar), wanted);
}

#[test]
fn the_mount_point_can_be_elsewhere() {
    let fixture = Fixture::new();
    let script = "env SAKER_MOUNT=/usr/share//data/ bash -c 'cd /usr/share/data/tree@none && pwd && \
                  wc -l < small; cd ../..; pwd; wc -l < data/tree@none/small; ls -d misc /saker 2>&1 \
                  | wc -l'";
    let wanted = "/usr/share/data/tree@none\n3\n/usr/share\n3\n2\n";
    assert_eq!(says(&fixture, script), wanted);
}

#[test]
fn programs_that_are_not_served_are_given_whole_files() {
    let fixture = Fixture::new();
    fixture.compile("static.c", &["-static"]);
    for script in [
        "$HERE/static < $ROOT/small",
        "{ read -r first; $HERE/static; } < $ROOT/small",
        "exec 5< $ROOT/text; read -r -u 5 first; $HERE/static 5 < $ROOT/dir/inner | sha256sum",
        "env -u LD_PRELOAD sha256sum < $ROOT/large",
        "cat $ROOT/small | $HERE/static; $HERE/static < $ROOT/nothing; $HERE/static < $ROOT/zeros | wc -c",
    ] {
        fixture.compare(User::Own, script);
    }
}

#[test]
fn an_environment_of_their_own_keeps_the_directory() {
    let fixture = Fixture::new();
    let fresh = "cd $ROOT/dir && env -i LD_PRELOAD=$LD_PRELOAD SAKER_AGENT_DIR=$SAKER_AGENT_DIR \
                 /bin/sh -c 'cat ../small; pwd; cd /; cat small'";
    let said = says(&fixture, fresh);
    assert!(
        said.starts_with("first line\nsecond line\nthird line\n/saker/tree@none/dir\n"),
        "{said}"
    );
    assert!(said.contains("small: No such file"), "{said}");
    // It belongs to the real directory that it was noted with.
    let stale = "cd $ROOT/dir && export V=$SAKER_PRELOAD_CWD && cd /usr && \
                 SAKER_PRELOAD_CWD=$V /bin/sh -c 'pwd; ls -d bin'; printenv SAKER_PRELOAD_CWD";
    assert_eq!(says(&fixture, stale), "/usr\nbin\n");
}

#[test]
fn the_default_directory_is_that_of_the_user_alone() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    // In place of /var/tmp, in a mount namespace.
    let private = fixture.path("private");
    let dir = private.join("saker-agent-65534");
    std::fs::create_dir(&private).unwrap();
    std::fs::rename(fixture.path("agent"), &dir).unwrap();
    std::fs::copy(fixture.path("preload.so"), private.join("p.so")).unwrap();
    let look = "mount --bind $PRIVATE /var/tmp && cd / && exec setpriv --reuid=65534 \
                --regid=65534 --clear-groups env LD_PRELOAD=/var/tmp/p.so bash -c \
                'ls /saker | wc -l; wc -l < /saker/tree@none/small'";
    let look = || {
        let mut shell = std::process::Command::new("unshare");
        let output = shell.args(["-m", "bash", "-c", look]).env("PRIVATE", &private).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert_eq!(look(), "0\n", "the superuser's");
    std::os::unix::fs::chown(&dir, Some(65534), None).unwrap();
    assert_eq!(look(), "4\n3\n");
    std::fs::rename(&dir, private.join("other")).unwrap();
    std::os::unix::fs::symlink("other", &dir).unwrap();
    assert_eq!(look(), "0\n", "a link of the superuser");
}
