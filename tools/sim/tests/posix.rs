//! What users expect of POSIX, on a mount and on a local disk side by side. Each file in `posix/`
//! is a shell script: it runs in an empty directory of both, and says the same there and there.
//! Needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::path::{Path, PathBuf};
use std::process::Command;

use saker_sim::cluster::{Cluster, Shape, can_mount};

/// What scripts may use: other users, with or without supplementary groups.
const PRELUDE: &str = "
as() { id=$1; shift; setpriv --reuid=$id --regid=$id --clear-groups -- \"$@\"; }
as_groups() {
    id=$1; list=$2; shift 2; setpriv --reuid=$id --regid=$id --groups=$list -- \"$@\"
}
";

fn scripts() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/posix");
    let mut scripts: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    scripts
}

/// What a script says in a directory, with the exit status of each command that failed.
fn run(script: &Path, dir: &Path) -> String {
    std::fs::create_dir(dir).unwrap();
    let text = std::fs::read_to_string(script).unwrap();
    let output = Command::new("timeout")
        .args(["300", "sh", "-c", &format!("exec 2>&1\n{PRELUDE}{text}")])
        .current_dir(dir)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .output()
        .unwrap();
    assert!(output.status.code().is_some_and(|code| code < 124), "{script:?}: {}", output.status);
    String::from_utf8_lossy(&output.stdout).replace(dir.to_str().unwrap(), "HERE")
}

/// The first lines that differ, with what is around them.
fn difference(disk: &str, mount: &str) -> Option<String> {
    let (disk, mount): (Vec<_>, Vec<_>) = (disk.lines().collect(), mount.lines().collect());
    let at = (0..disk.len().max(mount.len())).find(|n| disk.get(*n) != mount.get(*n))?;
    let around = |lines: &[&str]| {
        let from = at.saturating_sub(4).min(lines.len());
        lines[from..(at + 3).min(lines.len())].join("\n    ")
    };
    Some(format!("line {at}: disk:\n    {}\n  mount:\n    {}", around(&disk), around(&mount)))
}

#[test]
fn a_mount_says_what_a_disk_says() {
    if !can_mount("a_mount_says_what_a_disk_says") {
        return;
    }
    let cluster = Cluster::start(Shape { mount: true, ..Shape::default() });
    let only = std::env::var("SAKER_SCRIPT").unwrap_or_default();
    let mut failures = Vec::new();
    let mut tried = 0;
    for script in scripts() {
        let name = script.file_stem().unwrap().to_str().unwrap().to_owned();
        if !name.contains(&only) {
            continue;
        }
        let disk = run(&script, &cluster.scratch().join(&name));
        let mount = run(&script, &cluster.mount().join(&name));
        assert!(disk.lines().count() > 10, "{name} says nothing: {disk}");
        tried += 1;
        if let Some(difference) = difference(&disk, &mount) {
            failures.push(format!("{name}: {difference}"));
        }
    }
    assert!(tried >= 9 || !only.is_empty(), "only {tried} scripts");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    cluster.fsck();
}
