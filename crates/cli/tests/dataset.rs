//! `saker dataset`: packing, looking, verifying, writing out; kills in between.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saker"));
    command.arg("dataset").args(args).current_dir(dir).stdin(Stdio::null());
    command
}

fn run(dir: &Path, args: &[&str]) -> Output {
    command(dir, args).output().unwrap()
}

fn said(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn failed(dir: &Path, args: &[&str], code: i32) -> String {
    let output = run(dir, args);
    assert_eq!(output.status.code(), Some(code), "{args:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(code == 2 || text.lines().count() == 1, "one line: {text}");
    text
}

fn make_tree(root: &Path, files: usize) {
    fs::create_dir_all(root.join("cats/young")).unwrap();
    for n in 0..files {
        let dir = ["cats", "cats/young", "."][n % 3];
        let text = format!("image {n} ").repeat(1 + n * 37 % 9000);
        fs::write(root.join(dir).join(format!("{n}.jpg")), text).unwrap();
    }
    symlink("cats/young", root.join("young")).unwrap();
    fs::hard_link(root.join("cats/0.jpg"), root.join("same.jpg")).unwrap();
}

fn equal(a: &Path, b: &Path) {
    let mut rsync = Command::new("rsync");
    let output =
        rsync.args(["-anicHAX", "--delete"]).arg(a.join("")).arg(b.join("")).output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{} {}", a.display(), b.display());
}

#[test]
fn a_dataset_is_made_looked_at_and_written_out() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    make_tree(&dir.join("images"), 60);
    let packed = said(dir, &["pack", "images", "-p", "3", "--compress", "zstd", "-o", "set"]);
    assert!(packed.contains("60 files") && packed.contains("3 partitions"), "{packed}");
    let info: serde_json::Value =
        serde_json::from_str(&said(dir, &["info", "--json", "set"])).unwrap();
    assert_eq!((&info["files"], &info["directories"]), (&60.into(), &3.into()));
    let digest = info["digest"].as_str().unwrap();
    assert!(packed.contains(digest) && said(dir, &["info", "set"]).contains(digest));
    let listed = said(dir, &["list", "set"]);
    assert_eq!(listed.lines().count(), 64);
    assert!(listed.contains("cats/young/1.jpg\n"));
    assert!(said(dir, &["list", "-l", "set"]).contains("young -> cats/young\n"));
    let all: Vec<serde_json::Value> =
        serde_json::from_str(&said(dir, &["list", "--json", "set"])).unwrap();
    let one = all.iter().find(|item| item["path"] == "cats/0.jpg").unwrap();
    assert_eq!((&one["nlink"], &one["size"]), (&2.into(), &8.into()));
    assert!(said(dir, &["verify", "set"]).contains("as they were packed"));
    said(dir, &["export", "set", "out"]);
    equal(&dir.join("images"), &dir.join("out"));
    // By a list, and packed in another way: the same data.
    let mut find = Command::new("find");
    let find = find.args([".", "-mindepth", "1", "-print0"]);
    let names = find.current_dir(dir.join("images")).output().unwrap().stdout;
    let mut pack = command(&dir.join("images"), &["pack", "-", "-0", "-o", "../listed"]);
    let mut pack = pack.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    pack.stdin.take().unwrap().write_all(&names).unwrap();
    assert!(pack.wait().unwrap().success());
    assert!(said(dir, &["info", "listed"]).contains(digest));
}

#[test]
fn what_is_wrong_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    make_tree(&dir.join("images"), 10);
    said(dir, &["pack", "images", "-o", "set"]);
    assert!(failed(dir, &["pack", "images", "-o", "set"], 1).contains("there already"));
    assert!(failed(dir, &["pack", "missing", "-o", "x"], 1).contains("missing"));
    assert!(failed(dir, &["pack", "images/0.jpg", "-o", "x"], 1).contains("0.jpg"));
    assert!(failed(dir, &["export", "set", "images"], 1).contains("not empty"));
    assert!(failed(dir, &["list", "images"], 1).contains("dataset.json"));
    for usage in [&["pack", "images"][..], &["pack", "images", "-o", "x", "--compress", "rar"], &[]]
    {
        failed(dir, usage, 2);
    }
    failed(dir, &["pack", "images", "-p", "0", "-o", "x"], 2);
    assert!(failed(dir, &["pack", ".", "-o", "new/set"], 2).contains("is below"));
    let part = dir.join("set/part-00000.saker");
    let whole = fs::read(&part).unwrap();
    let mut wrong = whole.clone();
    wrong[4100] ^= 1;
    fs::write(&part, &wrong).unwrap();
    let output = run(dir, &["verify", "set"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(".jpg: ") && text.contains("1 problems"), "{text}");
    let all: serde_json::Value =
        serde_json::from_slice(&run(dir, &["verify", "--json", "set"]).stdout).unwrap();
    assert_eq!(all["problems"].as_array().unwrap().len(), 1);
    fs::write(&part, &whole[..whole.len() / 2]).unwrap();
    assert!(failed(dir, &["verify", "set"], 1).contains("cut short"));
    fs::write(&part, "something else").unwrap();
    assert!(failed(dir, &["list", "set"], 1).contains("not a file of a Saker dataset"));
}

/// However often packing is killed, a run that is left alone ends with what one run gives.
#[test]
fn packing_survives_kills() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    make_tree(&dir.join("images"), 400);
    let pack = |to| command(dir, &["pack", "images", "-p", "5", "-c", "zstd:9", "-o", to]);
    let spawn = |to| -> Child { pack(to).stdout(Stdio::null()).spawn().unwrap() };
    assert!(spawn("whole").wait().unwrap().success());
    for n in 0..30 {
        let mut child = spawn("killed");
        // Real time: where the kill finds it is left to chance.
        std::thread::sleep(std::time::Duration::from_millis(3 * n));
        let _ = child.kill();
        if child.wait().unwrap().success() {
            break;
        }
    }
    let output = pack("killed").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || text.contains("there already"), "{text}");
    let compare = Command::new("diff").args(["-r", "whole", "killed"]).current_dir(dir).output();
    let compare = compare.unwrap();
    assert!(compare.status.success(), "{}", String::from_utf8_lossy(&compare.stdout));
}
