//! `saker up`, `down` and the supervisor, with real processes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::net::TcpListener;
use std::process::Command;

use common::{Cluster, alive, can_mount, wait_for};

#[test]
fn a_cluster_is_started_stopped_and_started_again() {
    let cluster = Cluster::up(&[]);
    let status = cluster.json(&["status"]);
    let roles = status["roles"].as_array().unwrap();
    assert_eq!(roles.len(), 4);
    for role in roles {
        assert_eq!(role["state"], "up", "{role}");
        let file = format!("run/{}-{}.pid", role["role"].as_str().unwrap(), role["n"]);
        assert_eq!(role["pid"], cluster.pid(&file), "{role}");
    }
    let shares = status["mnodes"].as_array().unwrap();
    let sum: f64 = shares.iter().map(|share| share["share"].as_f64().unwrap()).sum();
    assert!(shares.len() == 2 && (sum - 1.0).abs() < 1e-9, "{shares:?}");
    cluster.succeed(&["fs", "mkdir", "/kept"]);
    // Again: it runs already, and is left alone.
    let pid = cluster.pid("run/mnode-0.pid");
    cluster.succeed(&["up"]);
    assert_eq!(cluster.pid("run/mnode-0.pid"), pid);
    let supervisor = cluster.pid("supervisor.pid");
    cluster.succeed(&["down"]);
    assert!(!alive(pid) && !alive(supervisor));
    assert!(!cluster.dir().join("run/mnode-0.pid").exists());
    cluster.succeed(&["up"]);
    assert_eq!(cluster.succeed(&["fs", "ls"]), "kept\n");
    let fsck = cluster.json(&["fsck", "--strict", "--verify"]);
    assert_eq!(fsck["problems"].as_array().unwrap().len(), 0, "{fsck}");
    let said = cluster.fail(&["up", "--mnodes", "3"], 2);
    assert!(said.contains("there is a cluster with 2"), "{said}");
    cluster.succeed(&["down", "--wipe"]);
    assert!(!cluster.dir().exists());
}

#[test]
fn what_dies_is_started_again() {
    let cluster = Cluster::up(&[]);
    for role in ["coordinator-0", "mnode-0", "mnode-1", "store-0"] {
        let file = format!("run/{role}.pid");
        let old = cluster.kill(&file);
        cluster.wait_restarted(&file, old);
    }
    cluster.wait_up();
    cluster.succeed(&["fs", "mkdir", "/after"]);
}

#[test]
fn the_supervisors_death_harms_nothing() {
    let cluster = Cluster::up(&[]);
    let files = ["run/coordinator-0.pid", "run/mnode-0.pid", "run/mnode-1.pid", "run/store-0.pid"];
    let pids = files.map(|file| cluster.pid(file));
    let supervisor = cluster.kill("supervisor.pid");
    wait_for("the supervisor to end", || !alive(supervisor));
    assert!(pids.into_iter().all(alive));
    cluster.succeed(&["fs", "mkdir", "/without"]);
    // One role dies while nobody watches; its pid is then somebody else's.
    cluster.kill("run/mnode-1.pid");
    wait_for("mnode 1 to end", || !alive(pids[2]));
    let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
    std::fs::write(cluster.dir().join("run/mnode-1.pid"), format!("{}\n", stranger.id())).unwrap();
    // A new supervisor adopts the others, and takes the stranger for what it is.
    cluster.succeed(&["up"]);
    for (file, pid) in files.into_iter().zip(pids) {
        assert_eq!(cluster.pid(file) == pid, file != "run/mnode-1.pid", "{file}");
    }
    // What it has adopted, it watches.
    let old = cluster.kill("run/store-0.pid");
    cluster.wait_restarted("run/store-0.pid", old);
    cluster.succeed(&["down"]);
    assert!(stranger.try_wait().unwrap().is_none(), "a stranger was killed");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn without_a_supervisor_what_dies_stays_dead() {
    let cluster = Cluster::up(&["--no-supervise"]);
    assert!(!cluster.dir().join("supervisor.pid").exists());
    let old = cluster.kill("run/mnode-1.pid");
    wait_for("mnode 1 to end", || !alive(old));
    let status = cluster.json(&["status"]);
    let roles = status["roles"].as_array().unwrap();
    let dead = roles.iter().find(|role| role["role"] == "mnode" && role["n"] == 1).unwrap();
    assert_eq!((&dead["state"], dead["pid"].is_null()), (&"down".into(), true));
    cluster.succeed(&["up", "--no-supervise"]);
    cluster.wait_up();
}

#[test]
fn in_the_foreground_the_cluster_ends_with_its_command() {
    let cluster = Cluster::new();
    let mut up = Command::new(env!("CARGO_BIN_EXE_saker"))
        .args(["up", "--mnodes", "1", "--stores", "1", "--foreground", "--dir"])
        .arg(cluster.dir())
        .spawn()
        .unwrap();
    wait_for("the cluster to be made", || cluster.dir().join("run/store-0.pid").exists());
    cluster.wait_up();
    let old = cluster.kill("run/mnode-0.pid");
    cluster.wait_restarted("run/mnode-0.pid", old);
    let mnode = cluster.pid("run/mnode-0.pid");
    cluster.succeed(&["down"]);
    wait_for("the command to end", || up.try_wait().unwrap().is_some());
    assert!(up.wait().unwrap().success());
    assert!(!alive(mnode));
}

#[test]
fn what_cannot_start_is_told_and_the_rest_serves() {
    let cluster = Cluster::up(&[]);
    cluster.succeed(&["down"]);
    let (data, aside) = (cluster.dir().join("data/mnode-1"), cluster.path("aside"));
    std::fs::rename(&data, &aside).unwrap();
    std::fs::write(&data, "not a directory").unwrap();
    for options in [&["up"][..], &["up", "--no-supervise"]] {
        let said = cluster.fail(options, 1);
        let why = std::io::Error::from_raw_os_error(rustix::io::Errno::NOTDIR.raw_os_error());
        assert!(said.contains("mnode-1: it does not come up"), "{said}");
        assert!(said.contains(&why.to_string()) || said.contains("File exists"), "{said}");
        let running = |role: &str| cluster.dir().join(format!("run/{role}.pid")).exists();
        assert!(running("coordinator-0") && running("mnode-0") && running("store-0"));
        cluster.succeed(&["down"]);
    }
    std::fs::remove_file(&data).unwrap();
    std::fs::rename(&aside, &data).unwrap();
    cluster.succeed(&["up"]);
    cluster.succeed(&["down"]);
    // Without the coordinator nothing is left running.
    let journal = cluster.dir().join("data/coordinator-0/journal");
    std::fs::rename(&journal, &aside).unwrap();
    for options in [&["up"][..], &["up", "--no-supervise"]] {
        let said = cluster.fail(options, 1);
        assert!(said.contains("is a disk not mounted"), "{said}");
        assert!(!cluster.dir().join("run/mnode-0.pid").exists());
        assert!(!cluster.dir().join("supervisor.pid").exists());
    }
    std::fs::remove_dir_all(&journal).unwrap();
    std::fs::rename(&aside, &journal).unwrap();
    cluster.succeed(&["up"]);
}

/// Where mnode 0 listens first.
fn mnode_0(cluster: &Cluster) -> String {
    let status = cluster.json(&["status"]);
    let roles = status["roles"].as_array().unwrap();
    let mnode = roles.iter().find(|role| role["role"] == "mnode" && role["n"] == 0).unwrap();
    mnode["addr"].as_str().unwrap().split(',').next().unwrap().to_owned()
}

#[test]
fn a_stopped_cluster_moves_on_from_a_taken_port() {
    let cluster = Cluster::up(&[]);
    let names: Vec<String> = (0..20).map(|n| format!("/d{n}")).collect();
    let mkdir: Vec<&str> = ["fs", "mkdir"].into_iter().chain(names.iter().map(|n| &**n)).collect();
    cluster.succeed(&mkdir);
    let addr = mnode_0(&cluster);
    cluster.succeed(&["down"]);
    let _holder = TcpListener::bind(&addr).unwrap();
    let said = cluster.succeed(&["up"]);
    let port = addr.rsplit_once(':').unwrap().1;
    let expected = format!("mnode-0: port {port} is taken by process {} (", std::process::id());
    assert!(said.contains(&expected) && said.contains("moved to"), "{said}");
    assert_ne!(mnode_0(&cluster), addr);
    // Requests from shard to shard find their way, too.
    assert_eq!(cluster.succeed(&["fs", "ls"]).lines().count(), 20);
    cluster.succeed(&["fs", "mkdir", "-p", "/d7/below/it"]);
    let rm: Vec<&str> = ["rmr"].into_iter().chain(names.iter().map(|n| &**n)).collect();
    cluster.succeed(&rm);
}

#[test]
fn a_taken_port_of_a_running_cluster_is_named_with_its_holder() {
    let cluster = Cluster::up(&["--no-supervise"]);
    let addr = mnode_0(&cluster);
    let old = cluster.kill("run/mnode-0.pid");
    wait_for("mnode 0 to end", || !alive(old));
    let _holder = TcpListener::bind(&addr).unwrap();
    let said = cluster.fail(&["up", "--no-supervise"], 1);
    let port = addr.rsplit_once(':').unwrap().1;
    let expected = format!("mnode-0: port {port} is taken by process {} (", std::process::id());
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn a_killed_mount_comes_back() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new();
    let mnt = cluster.mnt();
    let mount = ["up", "--mnodes", "2", "--stores", "1", "--mount", mnt.to_str().unwrap()];
    cluster.succeed(&mount);
    std::fs::write(mnt.join("file"), "content").unwrap();
    let open = std::fs::File::open(mnt.join("file")).unwrap();
    let old = cluster.kill("run/mount-0.pid");
    cluster.wait_restarted("run/mount-0.pid", old);
    cluster.wait_up();
    assert_eq!(std::fs::read_to_string(mnt.join("file")).unwrap(), "content");
    let error = open.metadata().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    drop(open);
    // Unmounted on purpose, it stays away until it is wanted again.
    cluster.succeed(&["umount", mnt.to_str().unwrap()]);
    wait_for("the mount process to end", || !cluster.dir().join("run/mount-0.pid").exists());
    assert_eq!(std::fs::read_dir(&mnt).unwrap().count(), 0);
    cluster.succeed(&["up"]);
    assert_eq!(std::fs::read_to_string(mnt.join("file")).unwrap(), "content");
    cluster.succeed(&["down"]);
    assert_eq!(std::fs::read_dir(&mnt).unwrap().count(), 0);
}

#[test]
fn errors_are_one_helpful_line() {
    let cluster = Cluster::new();
    assert!(cluster.fail(&["status"], 1).contains("not a Saker directory"));
    assert!(cluster.fail(&["down"], 1).contains("not a Saker directory"));
    assert!(cluster.fail(&["up", "--engine", "postgres"], 2).contains("not in this version"));
    assert!(cluster.fail(&["up", "--tracker", "switch"], 2).contains("not in this version"));
    assert!(cluster.fail(&["up", "--ha"], 2).contains("not in this version"));
    assert!(cluster.fail(&["up", "--stores", "1", "--replicas", "2"], 2).contains("copies"));
    assert!(
        cluster.fail(&["fs", "ls", "--cluster", "127.0.0.1:1"], 1).contains("is the cluster up")
    );
    assert!(cluster.fail(&["mount", "127.0.0.1:1", "/no/where"], 32).contains("/no/where"));
    assert!(cluster.fail(&["umount", "/"], 1).contains("no Saker file system"));
    assert!(cluster.fail(&["fsck"], 8).contains("not a Saker directory"));
    let usage = cluster.saker(&["fsck", "--no-such-option"]);
    assert_eq!(usage.status.code(), Some(16));
    assert_eq!(cluster.saker(&["mount"]).status.code(), Some(1));
    assert_eq!(cluster.saker(&["up", "--mnodes", "0"]).status.code(), Some(2));
    assert_eq!(cluster.saker(&["no-such-command"]).status.code(), Some(2));
    let newer = cluster.path("newer");
    std::fs::create_dir_all(&newer).unwrap();
    std::fs::write(newer.join("cluster.toml"), "format = 99\n").unwrap();
    let said = cluster.fail(&["status", "--cluster", newer.to_str().unwrap()], 1);
    assert!(said.contains("newer Saker (format 99"), "{said}");
}
