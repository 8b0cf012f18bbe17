//! `saker policy` on a small cluster, policies as attributes, and subtrees that keep others out.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Cluster, can_mount, text, wait_for};
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use saker_client::{Caller, ClientOptions, ClusterAddr, Fs};
use saker_types::Locator;
use saker_types::wire::At;

const WHOLE: &str = "user.saker.policy";

/// Cell, and the directory that has the policy.
fn in_force(cluster: &Cluster, path: &str) -> (String, String) {
    let json = cluster.json(&["policy", "get", path]);
    let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
    (text("cell"), text("set_on"))
}

fn cell(cell: &str, on: &str) -> (String, String) {
    (cell.to_owned(), on.to_owned())
}

#[test]
fn a_policy_is_set_and_shown_and_cleared() {
    let cluster = Cluster::up(&[]);
    cluster.succeed(&["fs", "mkdir", "-p", "/d/e/f"]);
    cluster.succeed(&["fs", "mkdir", "/other"]);
    assert_eq!(in_force(&cluster, "/d"), cell("strong/global", ""));
    cluster.succeed(&["policy", "set", "/d", "--durability", "none"]);
    cluster.succeed(&["policy", "set", "/d/e/f", "--durability", "local"]);
    assert_eq!(in_force(&cluster, "/d"), cell("strong/none", "/d"));
    assert_eq!(in_force(&cluster, "/d/e"), cell("strong/none", "/d"));
    assert_eq!(in_force(&cluster, "/d/e/f"), cell("strong/local", "/d/e/f"));
    assert_eq!(in_force(&cluster, "/other"), cell("strong/global", ""));
    // People and scripts work there as anywhere.
    let file = cluster.path("file");
    fs::write(&file, vec![7; 10_000]).unwrap();
    cluster.succeed(&["fs", "put", file.to_str().unwrap(), "/d/e/file"]);
    assert_eq!(cluster.succeed(&["fs", "ls", "/d/e"]), "f\nfile\n");
    assert_eq!(in_force(&cluster, "/d/e/file"), cell("strong/none", "/d"));
    let refused = cluster.fail(&["fs", "mv", "/d/e/file", "/other/file"], 1);
    assert!(refused.contains("cross-device"), "{refused}");
    // What is shown is what can be set.
    let shown = cluster.succeed(&["policy", "get", "/d/e"]);
    assert!(shown.starts_with("# strong/none, set on /d\n"), "{shown}");
    fs::write(&file, shown).unwrap();
    cluster.succeed(&["policy", "set", "/other", file.to_str().unwrap()]);
    assert_eq!(in_force(&cluster, "/other"), cell("strong/none", "/other"));
    cluster.succeed(&["fs", "mv", "/d/e/file", "/other/file"]);
    let listed = cluster.succeed(&["policy", "list"]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(listed.contains("strong/local     allow  .../f\n"), "{listed}");
    let listed = cluster.json(&["policy", "list"]);
    assert_eq!(listed.as_array().unwrap().len(), 3, "{listed}");
    // A directory takes its policy along, and loses it with its name.
    cluster.succeed(&["fs", "mv", "/d/e/f", "/d/g"]);
    assert_eq!(in_force(&cluster, "/d/g"), cell("strong/local", "/d/g"));
    cluster.succeed(&["policy", "clear", "/d/g", "/other"]);
    assert_eq!(in_force(&cluster, "/d/g"), cell("strong/none", "/d"));
    cluster.succeed(&["policy", "clear", "/other"]);
    cluster.succeed(&["fs", "rm", "-r", "/d"]);
    assert_eq!(cluster.succeed(&["policy", "list"]), "");
    let fsck = cluster.json(&["fsck", "--strict"]);
    assert_eq!(fsck["problems"].as_array().unwrap().len(), 0, "{fsck}");
}

#[test]
fn what_is_refused_changes_nothing() {
    let cluster = Cluster::up(&[]);
    cluster.succeed(&["fs", "mkdir", "/d"]);
    cluster.succeed(&["policy", "set", "/d", "--durability", "none"]);
    let file = cluster.path("policy.yaml");
    for (wrong, why) in [
        ("durability: local\ncolour: red\n", "line 2, column 1: \"colour\" is no key"),
        ("durability: local\ndurability: none\n", "line 2, column 1: durability is there twice"),
        ("durability: local\nallocated_inodes: many\n", "line 2 column 19"),
        ("{\"consistency\": \"rpcs+volatile_apply\"}", "line 1, column"),
        ("", "there is no key"),
    ] {
        fs::write(&file, wrong).unwrap();
        let said = cluster.fail(&["policy", "set", "/d", file.to_str().unwrap()], 1);
        assert!(said.contains(why), "{wrong:?}: {said}");
    }
    let said = cluster.fail(&["policy", "set", "/d", "--durability", "rpcs"], 2);
    assert!(said.contains("makes nothing durable"), "{said}");
    fs::write(&file, "durability: local\n").unwrap();
    let said = cluster.fail(&["policy", "set", "/nowhere", file.to_str().unwrap()], 1);
    assert!(said.contains("no such file"), "{said}");
    cluster.succeed(&["fs", "put", file.to_str().unwrap(), "/d/file"]);
    let said = cluster.fail(&["policy", "set", "/d/file", file.to_str().unwrap()], 1);
    assert!(said.contains("not a directory"), "{said}");
    let said = cluster.fail(&["policy", "set", "/.datasets", file.to_str().unwrap()], 1);
    assert!(said.contains("read-only"), "{said}");
    assert_eq!(in_force(&cluster, "/d"), cell("strong/none", "/d"));
    // From the standard input; and nothing but help and explanations without a cluster.
    let mut set = Command::new(env!("CARGO_BIN_EXE_saker"));
    set.args(["policy", "set", "/d", "-"]).env("SAKER_CLUSTER", cluster.dir());
    set.stdin(fs::File::open(&file).unwrap());
    assert!(set.status().unwrap().success());
    assert_eq!(in_force(&cluster, "/d"), cell("strong/local", "/d"));
    let mut explain = Command::new(env!("CARGO_BIN_EXE_saker"));
    explain.args(["policy", "explain", "--consistency", "weak", "--durability", "local"]);
    let output = explain.env("SAKER_CLUSTER", "/nowhere").output().unwrap();
    let said = text(&output.stdout);
    assert!(said.contains("when the client merges them"), "{said}");
    assert!(said.contains("the client's machine never comes back  all that was not"), "{said}");
    let said = cluster.json(&["policy", "explain", "/d"]);
    assert_eq!(
        (&said["cell"], said["losses"].as_array().unwrap().len()),
        (&"strong/local".into(), 6)
    );
}

#[test]
fn attributes_without_a_mount() {
    let cluster = Cluster::up(&[]);
    cluster.succeed(&["fs", "mkdir", "-p", "/d/e"]);
    let set = |name: &str, value: &str| {
        cluster.succeed(&["fs", "setfattr", "-n", name, "-v", value, "/d"]);
    };
    set("user.saker.policy.durability", "none");
    set("user.saker.policy.allocated_inodes", "7");
    let json = cluster.json(&["policy", "get", "/d"]);
    assert_eq!(
        (&json["cell"], &json["policy"]["allocated_inodes"]),
        (&"strong/none".into(), &7.into())
    );
    let get = |name: &str, path: &str| cluster.saker(&["fs", "getfattr", "-n", name, path]);
    let shown = text(&get("user.saker.policy.durability", "/d").stdout);
    assert!(shown.contains("user.saker.policy.durability=\"none\"\n"), "{shown}");
    // It is the directory's own; and it is in no list.
    assert!(text(&get(WHOLE, "/d/e").stderr).contains("no such attribute"));
    assert_eq!(cluster.succeed(&["fs", "getfattr", "/d"]), "");
    let args = ["fs", "setfattr", "-n", "user.saker.policy.durability", "-v", "flush", "/d"];
    let said = cluster.fail(&args, 1);
    assert!(said.contains("no mechanism"), "{said}");
    cluster.succeed(&["fs", "setfattr", "-x", WHOLE, "/d"]);
    assert_eq!(in_force(&cluster, "/d"), cell("strong/global", ""));
}

fn place(path: &str) -> At {
    let names = path.split('/').map(|name| bytes::Bytes::copy_from_slice(name.as_bytes()));
    At::below(Locator::root(), names.collect())
}

/// A client in this process.
fn client(cluster: &Cluster) -> Fs {
    let options = ClientOptions { name: "the test".to_owned(), ..ClientOptions::default() };
    Fs::connect(&ClusterAddr::Dir(cluster.dir()), options).unwrap()
}

fn mkdir(fs: &Fs, path: &str) {
    fs.block_on(fs.mkdir(&Caller::root(), &place(path), 0o755)).unwrap();
}

fn rmdir(fs: &Fs, path: &str) {
    fs.block_on(fs.rmdir(&Caller::root(), &place(path))).unwrap();
}

/// Does something again and again, until this is dropped.
struct Busy {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    fn with(mut work: impl FnMut() + Send + 'static) -> Busy {
        let ends = Arc::new(AtomicBool::new(false));
        work();
        let is_over = ends.clone();
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                work();
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Busy { ends, thread: Some(thread) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn others_are_kept_out_while_one_changes_something() {
    let cluster = Cluster::up(&[]);
    cluster.succeed(&["fs", "mkdir", "-p", "/b/sub"]);
    cluster.succeed(&["policy", "set", "/b", "--interfere-policy", "block"]);
    // Each command is a client of its own, and lets go when it ends.
    cluster.succeed(&["fs", "mkdir", "/b/1"]);
    cluster.succeed(&["fs", "mkdir", "/b/2"]);
    let first = client(&cluster);
    let busy = Busy::with({
        let fs = first.clone();
        move || {
            mkdir(&fs, "b/sub/busy");
            rmdir(&fs, "b/sub/busy");
        }
    });
    let said = cluster.fail(&["fs", "mkdir", "/b/3"], 1);
    assert!(said.contains("busy: the subtree is held by the test, process "), "{said}");
    assert!(cluster.fail(&["fs", "ls", "/b/sub"], 1).contains("held by the test"));
    let said = cluster.fail(&["policy", "set", "/b", "--durability", "none"], 1);
    assert!(said.contains("held by the test, process "), "{said}");
    cluster.succeed(&["fs", "mkdir", "/c"]);
    let listed = cluster.succeed(&["policy", "list"]);
    assert!(listed.contains("block  /b  held by the test, process "), "{listed}");
    let hold = &cluster.json(&["policy", "get", "/b"])["hold"];
    assert!(hold["lease_ms"].as_u64().unwrap() > 0, "{hold}");
    // Without a word: nothing is changed there for a while.
    drop(busy);
    wait_for("the hold to be released", || {
        cluster.saker(&["fs", "mkdir", "/b/4"]).status.success()
    });
    mkdir(&first, "b/5");
    drop(first);
    cluster.succeed(&["fs", "mkdir", "/b/6"]);
    assert_eq!(cluster.succeed(&["fs", "ls", "/b"]), "1\n2\n4\n5\n6\nsub\n");
    // Whoever has just worked there may take it away.
    let last = client(&cluster);
    for name in ["1", "2", "4", "5", "6", "sub"] {
        rmdir(&last, &format!("b/{name}"));
    }
    rmdir(&last, "b");
    assert_eq!(cluster.succeed(&["policy", "list"]), "");
}

/// `saker mount` in the foreground, so that it can be killed.
struct Mounted {
    process: std::process::Child,
    point: std::path::PathBuf,
}

impl Mounted {
    fn of(cluster: &Cluster, name: &str) -> Mounted {
        let point = cluster.path(name);
        fs::create_dir(&point).unwrap();
        let mut mount = Command::new(env!("CARGO_BIN_EXE_saker"));
        mount.arg("mount").arg(cluster.dir()).arg(&point).arg("--foreground");
        let process = mount.stderr(Stdio::null()).spawn().unwrap();
        wait_for("the mount", || {
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            mounts.lines().any(|line| line.contains(point.to_str().unwrap()))
        });
        Mounted { process, point }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        _ = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_client_that_dies_keeps_others_out_for_its_lease() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::up(&[]);
    cluster.succeed(&["fs", "mkdir", "/b"]);
    cluster.succeed(&["policy", "set", "/b", "--interfere-policy", "block"]);
    let (first, second) = (Mounted::of(&cluster, "first"), Mounted::of(&cluster, "second"));
    let path = first.point.join("b/1");
    fs::write(&path, "1").unwrap();
    // Until it is killed.
    let busy = Busy::with(move || _ = fs::write(&path, "1"));
    let kept_out = fs::write(second.point.join("b/2"), "2").unwrap_err();
    assert_eq!(kept_out.raw_os_error(), Some(Errno::BUSY.raw_os_error()), "{kept_out}");
    let listed = cluster.succeed(&["policy", "list"]);
    assert!(listed.contains("held by the mount at "), "{listed}");
    drop(first);
    drop(busy);
    let kept_out = fs::write(second.point.join("b/2"), "2").unwrap_err();
    assert_eq!(kept_out.raw_os_error(), Some(Errno::BUSY.raw_os_error()), "{kept_out}");
    wait_for("the lease to end", || fs::write(second.point.join("b/2"), "2").is_ok());
    assert!(second.point.join("b/1").exists());
    // Through one mount the directory is emptied and removed like others.
    fs::remove_file(second.point.join("b/1")).unwrap();
    fs::remove_file(second.point.join("b/2")).unwrap();
    fs::remove_dir(second.point.join("b")).unwrap();
}

fn get(path: &Path, name: &str) -> Result<String, Errno> {
    let mut value = vec![0; 4_096];
    let len = getxattr(path, name, &mut value[..])?;
    Ok(text(&value[..len]))
}

#[test]
fn attributes_through_a_mount() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::up(&[]);
    let mounted = Mounted::of(&cluster, "mnt");
    let (dir, file) = (mounted.point.join("d"), mounted.point.join("d/file"));
    fs::create_dir(&dir).unwrap();
    fs::write(&file, "x").unwrap();
    let none = XattrFlags::empty();
    assert_eq!(get(&dir, WHOLE), Err(Errno::NODATA));
    assert_eq!(setxattr(&dir, WHOLE, b"durability: none", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(get(&dir, WHOLE), Err(Errno::NODATA));
    setxattr(&dir, WHOLE, b"durability: none\n", XattrFlags::CREATE).unwrap();
    let exists = setxattr(&dir, WHOLE, b"durability: local", XattrFlags::CREATE);
    assert_eq!(exists, Err(Errno::EXIST));
    let written = get(&dir, WHOLE).unwrap();
    assert!(written.starts_with("consistency: strong\ndurability: none\n"), "{written}");
    assert_eq!(in_force(&cluster, "/d"), cell("strong/none", "/d"));
    // One key, and what is read can be written.
    let key = format!("{WHOLE}.durability");
    setxattr(&dir, &*key, b"local", XattrFlags::REPLACE).unwrap();
    assert_eq!(get(&dir, &key).unwrap(), "local");
    setxattr(&dir, WHOLE, written.as_bytes(), none).unwrap();
    assert_eq!(get(&dir, WHOLE).unwrap(), written);
    for (name, value) in [(WHOLE, "colour: red"), (&*key, "flush"), ("user.saker.policy.x", "1")] {
        assert_eq!(setxattr(&dir, name, value.as_bytes(), none), Err(Errno::INVAL), "{name}");
    }
    assert_eq!(get(&dir, "user.saker.policy.x"), Err(Errno::NODATA));
    assert_eq!(setxattr(&file, WHOLE, b"durability: none", none), Err(Errno::NOTDIR));
    assert_eq!(get(&file, WHOLE), Err(Errno::NODATA));
    assert_eq!(removexattr(&dir, &*key), Err(Errno::OPNOTSUPP));
    assert_eq!(get(&dir, WHOLE).unwrap(), written, "nothing has changed it");
    // Only the owner sets it.
    let program = cluster.path("saker");
    fs::copy(env!("CARGO_BIN_EXE_saker"), &program).unwrap();
    let status = |uid: u32| {
        let mut set = Command::new(&program);
        set.args(["policy", "set", "/d", "--durability", "local"]);
        set.env("SAKER_CLUSTER", cluster.dir()).uid(uid).gid(uid).stderr(Stdio::null());
        set.status().unwrap().code()
    };
    // The cluster's directory must be readable for that.
    let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(cluster.dir().parent().unwrap(), open).unwrap();
    assert_eq!(status(1_234), Some(1));
    assert_eq!(get(&dir, WHOLE).unwrap(), written);
    std::os::unix::fs::chown(&dir, Some(1_234), None).unwrap();
    assert_eq!(status(1_234), Some(0));
    assert_eq!(get(&dir, &key).unwrap(), "local");
    // It is in no list, and so in no copy.
    let mut names = vec![0; 4_096];
    assert_eq!(listxattr(&dir, &mut names[..]).unwrap(), 0);
    let copy = mounted.point.join("copy");
    let copied = Command::new("cp").arg("-a").arg(&dir).arg(&copy).status().unwrap();
    assert!(copied.success());
    assert_eq!(get(&copy, WHOLE), Err(Errno::NODATA));
    removexattr(&dir, WHOLE).unwrap();
    assert_eq!(removexattr(&dir, WHOLE), Err(Errno::NODATA));
    assert_eq!(in_force(&cluster, "/d"), cell("strong/global", ""));
    fs::write(dir.join("after"), "x").unwrap();
}
