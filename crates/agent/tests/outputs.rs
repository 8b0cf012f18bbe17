//! Output files: written on one node, seen by all; dying writers, agents and homes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Agent, Job, until};
use saker_agent_api::{Ask, FinishOutput, OutputInfo, PutOutput, ReadOutput, Reply};
use saker_agent_api::{
    CreateOutput, Local, Named, Nothing, OutputOp, OutputRequest, Remote, RenameOutput, SetOutput,
};
use xxhash_rust::xxh3::xxh3_64;

const SOURCE: &str = "/usr/include/asm-generic";
const WRITES: i32 = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;

/// Not a test: the process of an agent.
#[test]
fn agent_process() {
    common::agent_process();
}

/// Agents of `N` nodes, with a dataset on all of them.
fn job<const N: usize>() -> Job {
    let mut job = Job::new::<N>(Path::new(SOURCE), 2, "none");
    job.start();
    job.stage(&job.layout(1));
    job
}

fn request(path: &str, op: OutputOp) -> OutputRequest {
    OutputRequest {
        dataset: "linux@1".into(),
        path: path.into(),
        op: Some(op),
        ..OutputRequest::default()
    }
}

fn ask(agent: &Agent, path: &str, op: OutputOp) -> std::io::Result<Reply> {
    Local::connect(&agent.config.dir)?.output(request(path, op)).map(|(reply, _)| reply)
}

/// The error number of an answer.
fn errno(answer: std::io::Result<Reply>) -> Option<i32> {
    answer.err().map(|error| error.raw_os_error().unwrap())
}

fn create(agent: &Agent, path: &str, flags: i32) -> std::io::Result<(File, u64)> {
    let op = OutputOp::Create(CreateOutput { flags, mode: 0o644 });
    let (reply, fd) = Local::connect(&agent.config.dir)?.output(request(path, op))?;
    Ok((fd.unwrap().into(), reply.token))
}

fn commit(agent: &Agent, token: u64) -> std::io::Result<Reply> {
    ask(agent, "", OutputOp::Commit(token))
}

fn write(agent: &Agent, path: &str, data: &[u8]) {
    let (mut file, token) = create(agent, path, WRITES).unwrap();
    file.write_all(data).unwrap();
    drop(file);
    commit(agent, token).unwrap_or_else(|e| panic!("{path}: {e}"));
}

fn read(agent: &Agent, path: &str) -> std::io::Result<Vec<u8>> {
    let op = OutputOp::Open(Nothing {});
    let (_, fd) = Local::connect(&agent.config.dir)?.output(request(path, op))?;
    let mut data = Vec::new();
    File::from(fd.unwrap()).read_to_end(&mut data)?;
    Ok(data)
}

fn look(agent: &Agent, path: &str) -> std::io::Result<OutputInfo> {
    ask(agent, path, OutputOp::Look(Nothing {})).map(|reply| reply.output.unwrap())
}

fn is_there(agent: &Agent, path: &str) -> bool {
    match look(agent, path) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{path}");
            false
        }
    }
}

fn list(agent: &Agent, path: &str) -> Vec<String> {
    let reply = ask(agent, path, OutputOp::List(Nothing {})).unwrap();
    reply.entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect()
}

fn make_dir(agent: &Agent, path: &str) -> std::io::Result<Reply> {
    ask(agent, path, OutputOp::MakeDir(0o755))
}

/// Number of the node that keeps a path.
fn home(path: &str, nodes: usize) -> usize {
    (xxh3_64(path.as_bytes()) % nodes as u64) as usize
}

/// A name whose home is this node, of two.
fn name_at(node: usize) -> String {
    (0..).map(|n| format!("file-{n}")).find(|name| home(name, 2) == node).unwrap()
}

fn data(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n / 7 + n % 251) as u8 ^ seed).collect()
}

/// Private files of a node, and what is on its way to it.
fn unfinished(agent: &Agent) -> usize {
    let dir = agent.config.dir.join("outputs/linux@1");
    let count = |name: &str| fs::read_dir(dir.join(name)).map_or(0, Iterator::count);
    count("outgoing") + count("incoming")
}

#[test]
fn what_is_closed_on_one_node_is_seen_by_all() {
    let job = job::<4>();
    make_dir(&job.agents[1], "run").unwrap();
    make_dir(&job.agents[2], "run/deep").unwrap();
    let mut paths = Vec::new();
    for n in 0..24 {
        let path = format!("{}ckpt-{n}", ["", "run/", "run/deep/"][n % 3]);
        let content = data([0, 1, 5000, (9 << 20) + 3][n % 4], n as u8);
        let writer = &job.agents[n % 4];
        let (mut file, token) = create(writer, &path, WRITES).unwrap();
        file.write_all(&content).unwrap();
        assert!(job.agents.iter().all(|agent| !is_there(agent, &path)), "{path}");
        drop(file);
        assert!(job.agents.iter().all(|agent| !is_there(agent, &path)), "{path}");
        commit(writer, token).unwrap();
        for agent in &job.agents {
            assert!(read(agent, &path).unwrap() == content, "{path}");
        }
        paths.push(path);
    }
    let mut wanted: Vec<String> =
        paths.iter().filter(|path| !path.contains('/')).cloned().collect();
    wanted.push("run".into());
    wanted.sort();
    let infos = |agent| paths.iter().map(|path| look(agent, path).unwrap()).collect::<Vec<_>>();
    for agent in &job.agents {
        assert_eq!(list(agent, ""), wanted);
        assert_eq!(list(agent, "run/deep").len(), 8);
        assert_eq!(infos(agent), infos(&job.agents[0]));
        assert_eq!(unfinished(agent), 0);
    }
    // Homes are spread, and files have their own names there.
    for (n, agent) in job.agents.iter().enumerate() {
        for path in &paths {
            let at = agent.config.dir.join("outputs/linux@1/files").join(path);
            assert_eq!(at.exists(), home(path, 4) == n, "{path}");
        }
    }
    assert_eq!(job.total("outputs_total"), 24);
}

#[test]
fn a_file_that_nobody_finishes_is_dropped() {
    let job = job::<2>();
    let (mut file, _) = create(&job.agents[0], "lost", WRITES).unwrap();
    file.write_all(b"half").unwrap();
    assert!(unfinished(&job.agents[0]) > 0);
    // As the kernel does when a process is killed.
    drop(file);
    until("it is dropped", || unfinished(&job.agents[0]) == 0);
    assert!(job.agents.iter().all(|agent| !is_there(agent, "lost")));
}

#[test]
fn a_file_is_published_when_the_last_writer_has_closed_it() {
    let job = job::<2>();
    for path in [name_at(0), name_at(1)] {
        let (mut file, token) = create(&job.agents[0], &path, WRITES).unwrap();
        let mut inherited = file.try_clone().unwrap();
        file.write_all(b"first ").unwrap();
        drop(file);
        commit(&job.agents[0], token).unwrap();
        inherited.write_all(b"second").unwrap();
        assert!(job.agents.iter().all(|agent| !is_there(agent, &path)));
        drop(inherited);
        // At once where it was written, soon elsewhere.
        assert_eq!(read(&job.agents[0], &path).unwrap(), b"first second");
        until("it is published", || is_there(&job.agents[1], &path));
        // Told once more, as by a program that was to be replaced by another one in vain.
        commit(&job.agents[0], token).unwrap();
    }
}

#[test]
fn what_was_closed_survives_agents_that_are_killed() {
    let mut job = job::<2>();
    make_dir(&job.agents[0], "dir").unwrap();
    let paths: Vec<String> = (0..20).map(|n| format!("dir/{n}")).collect();
    for (n, path) in paths.iter().enumerate() {
        write(&job.agents[n % 2], path, &data(70_000 * n, n as u8));
    }
    // One that is being written goes on, whoever serves.
    let (mut file, token) = create(&job.agents[0], "dir/late", WRITES).unwrap();
    file.write_all(b"before ").unwrap();
    // And one whose creator has said that it is finished.
    let (mut passed_on, finished) = create(&job.agents[0], "dir/later", WRITES).unwrap();
    commit(&job.agents[0], finished).unwrap();
    job.agents.iter_mut().for_each(Agent::kill);
    file.write_all(b"and after").unwrap();
    passed_on.write_all(b"passed on").unwrap();
    job.start();
    drop((file, passed_on));
    commit(&job.agents[0], token).unwrap();
    for agent in &job.agents {
        until("all is published", || is_there(agent, "dir/later"));
        for (n, path) in paths.iter().enumerate() {
            assert!(read(agent, path).unwrap() == data(70_000 * n, n as u8), "{path}");
        }
        assert_eq!(read(agent, "dir/late").unwrap(), b"before and after");
        assert_eq!(read(agent, "dir/later").unwrap(), b"passed on");
        assert_eq!(list(agent, "dir").len(), 22);
        assert_eq!(list(agent, ""), ["dir"]);
    }
}

#[test]
fn what_a_home_that_is_down_did_not_get_is_delivered_in_order() {
    let mut job = job::<2>();
    let path = name_at(1);
    let files = [1, 2, 3].map(|n| (n, create(&job.agents[0], &path, WRITES).unwrap()));
    job.agents[1].kill();
    for (n, (mut file, token)) in files {
        file.write_all(&data(5 << 20, n)).unwrap();
        drop(file);
        let error = commit(&job.agents[0], token).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
    assert_eq!(job.agents[0].status().datasets[0].outgoing, 3);
    // Nobody is told that there is nothing.
    assert_eq!(look(&job.agents[0], &path).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(errno(ask(&job.agents[0], "", OutputOp::List(Nothing {}))), Some(libc::EIO));
    job.agents[0].kill();
    job.agents[0].start();
    job.agents[1].start();
    until("all is delivered", || job.agents[0].status().datasets[0].outgoing == 0);
    for agent in &job.agents {
        assert!(read(agent, &path).unwrap() == data(5 << 20, 3));
        assert_eq!(unfinished(agent), 0);
    }
}

#[test]
fn files_move_when_the_dataset_is_staged_on_other_nodes() {
    let mut job = Job::new::<4>(Path::new(SOURCE), 2, "none");
    job.start();
    let mut layout = job.layout(1);
    let all = layout.nodes.clone();
    layout.nodes = all[..2].to_vec();
    for n in 0..2 {
        job.agents[n].stage(&layout, n).unwrap();
    }
    until("all is staged", || job.agents[..2].iter().all(Agent::is_complete));
    make_dir(&job.agents[0], "a").unwrap();
    make_dir(&job.agents[0], "a/b").unwrap();
    make_dir(&job.agents[0], "empty").unwrap();
    let paths: Vec<String> = (0..30).map(|n| format!("{}{n}", ["", "a/", "a/b/"][n % 3])).collect();
    for (n, path) in paths.iter().enumerate() {
        write(&job.agents[n % 2], path, &data(10_000 * n, n as u8));
    }
    layout.nodes = [3, 1, 0, 2].map(|n: usize| all[n].clone()).to_vec();
    for (n, agent) in [3, 1, 0, 2].into_iter().enumerate() {
        job.agents[agent].stage(&layout, n).unwrap();
    }
    until("all is staged again", || job.agents.iter().all(Agent::is_complete));
    for agent in &job.agents {
        for (n, path) in paths.iter().enumerate() {
            assert!(read(agent, path).unwrap() == data(10_000 * n, n as u8), "{path}");
        }
        assert_eq!(list(agent, "").len(), 12);
        assert_eq!((list(agent, "a").len(), list(agent, "a/b").len()), (11, 10));
        assert!(list(agent, "empty").is_empty());
        assert_eq!(unfinished(agent), 0);
    }
    // Where they were, nothing is left.
    for (n, agent) in [3, 1, 0, 2].into_iter().enumerate() {
        for path in &paths {
            let at = job.agents[agent].config.dir.join("outputs/linux@1/files").join(path);
            assert_eq!(at.exists(), home(path, 4) == n, "{path}");
        }
    }
    for dir in ["a/b", "a", "empty"] {
        let removed = ask(&job.agents[1], dir, OutputOp::RemoveDir(Nothing {}));
        let is_empty = dir == "empty";
        assert_eq!(errno(removed), (!is_empty).then_some(libc::ENOTEMPTY), "{dir}");
    }
}

#[test]
fn an_old_file_of_a_node_that_comes_back_yields_to_a_newer_one() {
    let mut job = Job::new::<2>(Path::new(SOURCE), 2, "none");
    job.start();
    let mut layout = job.layout(1);
    job.stage(&layout);
    let all = layout.nodes.clone();
    let path = name_at(1);
    write(&job.agents[0], &path, b"old");
    layout.nodes = all[..1].to_vec();
    job.agents[0].stage(&layout, 0).unwrap();
    until("it is staged on one node", || job.agents[0].is_complete());
    assert!(!is_there(&job.agents[0], &path));
    write(&job.agents[0], &path, b"newer");
    layout.nodes = all;
    job.stage(&layout);
    for agent in &job.agents {
        assert_eq!(read(agent, &path).unwrap(), b"newer");
        assert_eq!(unfinished(agent), 0);
    }
}

#[test]
fn what_was_closed_while_no_agent_was_there_is_published() {
    let mut job = job::<2>();
    let (mut file, _) = create(&job.agents[0], "closed", WRITES).unwrap();
    file.write_all(b"whole").unwrap();
    job.agents[0].kill();
    // As the library does before it closes a file.
    file.set_permissions(fs::Permissions::from_mode(0o1644)).unwrap();
    drop(file);
    job.agents[0].start();
    for agent in &job.agents {
        until("it is published", || is_there(agent, "closed"));
        assert_eq!(read(agent, "closed").unwrap(), b"whole");
        assert_eq!(look(agent, "closed").unwrap().mode & 0o7777, 0o644);
    }
}

#[test]
fn readers_see_one_file_or_the_other() {
    let job = job::<2>();
    let path = name_at(1);
    let len = (6 << 20) + 1;
    write(&job.agents[0], &path, &vec![0; len]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, agents, path) = (&stop, &job.agents, &path);
        let readers: Vec<_> = agents
            .iter()
            .map(|agent| {
                scope.spawn(move || {
                    let mut seen = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let got = read(agent, path).unwrap();
                        assert_eq!(got.len(), len);
                        assert!(got.iter().all(|byte| *byte == got[0]), "a mixture");
                        assert!(got[0] >= seen, "an older one");
                        seen = got[0];
                    }
                })
            })
            .collect();
        for n in 1..20 {
            write(&agents[0], path, &vec![n; len]);
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert_eq!(read(&job.agents[1], &path).unwrap()[0], 19);
}

#[test]
fn names_are_changed_as_in_a_file_system() {
    let job = job::<4>();
    let [a, b, c, d] = [0, 1, 2, 3].map(|n| &job.agents[n]);
    assert_eq!(errno(make_dir(a, "no/dir")), Some(libc::ENOENT));
    assert_eq!(create(a, "no/file", WRITES).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    assert_eq!(create(a, "file", libc::O_WRONLY).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    make_dir(a, "dir").unwrap();
    assert_eq!(errno(make_dir(b, "dir")), Some(libc::EEXIST));
    write(b, "file", b"old");
    assert_eq!(create(c, "file/x", WRITES).unwrap_err().raw_os_error(), Some(libc::ENOTDIR));
    assert_eq!(create(c, "dir", WRITES).unwrap_err().raw_os_error(), Some(libc::EISDIR));
    let exclusive = WRITES | libc::O_EXCL;
    assert_eq!(create(c, "file", exclusive).unwrap_err().raw_os_error(), Some(libc::EEXIST));
    // Two that both were first.
    let (first, second) = (create(a, "only", exclusive).unwrap(), create(b, "only", exclusive));
    drop(first.0);
    commit(a, first.1).unwrap();
    let (file, token) = second.unwrap();
    drop(file);
    assert_eq!(errno(commit(b, token)), Some(libc::EEXIST));
    // The old data is there for who does not truncate it.
    for (n, flags) in [libc::O_RDWR, libc::O_WRONLY | libc::O_APPEND].into_iter().enumerate() {
        let (mut file, token) = create(&job.agents[n], "file", flags).unwrap();
        file.write_all(b"new").unwrap();
        drop(file);
        commit(&job.agents[n], token).unwrap();
    }
    assert_eq!(read(d, "file").unwrap(), b"newnew");
    // Renames, to all homes.
    let mut at = "file".to_owned();
    for n in 0..12 {
        let to = format!("dir/renamed-{n}");
        let rename = RenameOutput { to: to.clone().into(), exclusive: n % 2 == 0 };
        ask(&job.agents[n % 4], &at, OutputOp::Rename(rename)).unwrap();
        assert!(!is_there(d, &at) && read(c, &to).unwrap() == b"newnew", "{to}");
        at = to;
    }
    let rename = |to: &str, exclusive| OutputOp::Rename(RenameOutput { to: to.into(), exclusive });
    assert_eq!(errno(ask(a, &at, rename("only", true))), Some(libc::EEXIST));
    assert_eq!(errno(ask(a, &at, rename("dir", false))), Some(libc::EISDIR));
    assert_eq!(errno(ask(a, &at, rename("no/x", false))), Some(libc::ENOENT));
    assert_eq!(errno(ask(a, "dir", rename("dir2", false))), Some(libc::EXDEV));
    assert_eq!(errno(ask(a, "nothing", rename("x", false))), Some(libc::ENOENT));
    ask(a, &at, rename("only", false)).unwrap();
    assert_eq!(read(b, "only").unwrap(), b"newnew");
    // Attributes.
    let set = SetOutput { mode: Some(0o640), mtime_ns: Some(1_000_000_000_000_000_007) };
    ask(c, "only", OutputOp::Set(set)).unwrap();
    let info = look(d, "only").unwrap();
    assert_eq!((info.mode, info.mtime_ns), (libc::S_IFREG | 0o640, 1_000_000_000_000_000_007));
    // Directories go when they are empty on all nodes.
    make_dir(b, "dir/sub").unwrap();
    let remove_dir = |agent, path| errno(ask(agent, path, OutputOp::RemoveDir(Nothing {})));
    for n in 0..8 {
        let path = format!("dir/sub/{n}");
        write(a, &path, b"x");
        assert_eq!(remove_dir(b, "dir/sub"), Some(libc::ENOTEMPTY));
        ask(c, &path, OutputOp::Unlink(Nothing {})).unwrap();
    }
    assert_eq!(remove_dir(d, "dir"), Some(libc::ENOTEMPTY));
    assert_eq!(remove_dir(d, "only"), Some(libc::ENOTDIR));
    assert_eq!(remove_dir(d, ""), Some(libc::EBUSY));
    assert_eq!(errno(ask(d, "dir", OutputOp::Unlink(Nothing {}))), Some(libc::EISDIR));
    // A file that is closed in a directory which is gone is not lost.
    let (file, token) = create(a, "dir/sub/late", WRITES).unwrap();
    assert_eq!((remove_dir(a, "dir/sub"), remove_dir(a, "dir")), (None, None));
    assert_eq!(list(b, ""), ["only"]);
    drop(file);
    commit(a, token).unwrap();
    assert_eq!(
        (list(b, ""), list(c, "dir/sub")),
        (vec!["dir".into(), "only".into()], vec!["late".to_owned()])
    );
}

#[test]
fn unstaging_keeps_outputs_until_they_are_removed() {
    let job = job::<2>();
    write(&job.agents[0], &name_at(0), b"kept");
    write(&job.agents[0], &name_at(1), b"kept");
    let named = || Named { dataset: "linux@1".into() };
    for agent in &job.agents {
        let kept = agent.ask(Ask::Unstage(named())).unwrap().kept.unwrap();
        assert_eq!((kept.files, fs::read_dir(kept.dir).unwrap().count() > 0), (1, true));
        assert_eq!(look(agent, "x").unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
    job.stage(&job.layout(1));
    for agent in &job.agents {
        assert_eq!(read(agent, &name_at(0)).unwrap(), b"kept");
        assert_eq!(list(agent, "").len(), 2);
    }
    for agent in &job.agents {
        agent.ask(Ask::RemoveOutputs(named())).unwrap();
        let error = agent.ask(Ask::RemoveOutputs(named())).unwrap_err();
        assert!(error.to_string().contains("no dataset of this name"), "{error}");
        assert!(!agent.config.dir.join("outputs/linux@1").exists());
    }
    job.stage(&job.layout(1));
    assert!(list(&job.agents[0], "").is_empty());
}

#[test]
fn a_full_home_says_so_and_gets_the_file_later() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // A thread, whose mounts nobody sees but the agents that it starts.
    std::thread::spawn(with_a_small_disk).join().unwrap();
}

fn with_a_small_disk() {
    use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change};
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: the thread shares no directory or mount that others rely on it for.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    let mut job = Job::new::<2>(Path::new(SOURCE), 2, "none");
    let disk = job.agents[1].config.dir.clone();
    mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), Some(c"size=24m")).unwrap();
    job.start();
    job.stage(&job.layout(1));
    let path = name_at(1);
    let other = format!(
        "{}-other",
        (0..).map(|n| n.to_string()).find(|n| { home(&format!("{n}-other"), 2) == 1 }).unwrap()
    );
    write(&job.agents[0], &other, &data(10 << 20, 1));
    write(&job.agents[0], &path, b"old");
    let (mut file, token) = create(&job.agents[0], &path, WRITES).unwrap();
    file.write_all(&data(20 << 20, 2)).unwrap();
    drop(file);
    assert_eq!(errno(commit(&job.agents[0], token)), Some(libc::ENOSPC));
    until("nothing half is left", || unfinished(&job.agents[1]) == 0);
    assert_eq!(read(&job.agents[1], &path).unwrap(), b"old");
    ask(&job.agents[0], &other, OutputOp::Unlink(Nothing {})).unwrap();
    until("it is delivered", || job.agents[0].status().datasets[0].outgoing == 0);
    assert!(read(&job.agents[1], &path).unwrap() == data(20 << 20, 2));
    job.agents.iter_mut().for_each(Agent::kill);
    rustix::mount::unmount(&disk, UnmountFlags::DETACH).unwrap();
}

#[test]
fn peers_cannot_leave_the_directory() {
    let job = job::<2>();
    let agent = &job.agents[0];
    let nodes = xxh3_64(job.nodes.join("\n").as_bytes());
    let mut peer = Remote::connect(&job.nodes[0], b"", std::time::Duration::from_secs(10)).unwrap();
    let finish = |size, crc| FinishOutput { size, crc, mode: 0o4777, ..FinishOutput::default() };
    let mut id = 0;
    let mut put = |path: &[u8], nodes, dataset: &str| {
        id += 1;
        let request = |op| OutputRequest {
            dataset: dataset.into(),
            path: path.to_vec(),
            nodes,
            id,
            op: Some(op),
        };
        let data = OutputOp::Put(PutOutput { offset: 0, data: b"evil".to_vec() });
        peer.call(Ask::Output(request(data)))?;
        peer.call(Ask::Output(request(OutputOp::Finish(finish(4, crc32c::crc32c(b"evil"))))))
    };
    let own = name_at(0);
    let (long, deep) = ("n".repeat(256), "a/".repeat(2100));
    for path in [
        "../evil",
        "/evil",
        "a/../../evil",
        "evil/",
        "a//evil",
        ".",
        "..",
        "",
        "evil\0",
        &long,
        &deep,
    ] {
        assert!(put(path.as_bytes(), nodes, "linux@1").is_err(), "{path:?}");
    }
    assert!(put(name_at(1).as_bytes(), nodes, "linux@1").is_err(), "not its home");
    assert!(put(own.as_bytes(), nodes + 1, "linux@1").is_err(), "another list of nodes");
    assert!(put(own.as_bytes(), nodes, "../x@1").is_err());
    assert!(list(agent, "").is_empty());
    put(own.as_bytes(), nodes, "linux@1").unwrap();
    assert_eq!(look(agent, &own).unwrap().mode, libc::S_IFREG | 0o777);
    // Parts that do not fit, or are not what was sent.
    let mut ask = |id, op| {
        let path = own.clone().into();
        let dataset = "linux@1".to_owned();
        peer.call(Ask::Output(OutputRequest { dataset, path, nodes, id, op: Some(op) }))
    };
    let part = |offset, data: &[u8]| OutputOp::Put(PutOutput { offset, data: data.to_vec() });
    assert!(ask(100, part(7, b"x")).is_err());
    assert!(ask(100, part(u64::MAX, b"x")).is_err());
    ask(101, part(0, b"ab")).unwrap();
    ask(101, part(0, b"ab")).unwrap();
    assert!(ask(101, part(1, b"bc")).is_err());
    assert!(ask(101, OutputOp::Finish(finish(2, 0))).is_err(), "a wrong checksum");
    assert!(ask(102, OutputOp::Finish(finish(5, 0))).is_err(), "without its data");
    assert!(
        ask(103, OutputOp::Commit(1)).is_err() && ask(104, OutputOp::Open(Nothing {})).is_err()
    );
    let version = look(agent, &own).unwrap().version;
    for read in [
        ReadOutput { version, offset: 1, bytes: 4 },
        ReadOutput { version, offset: u64::MAX, bytes: u64::MAX },
        ReadOutput { version: version ^ 1, offset: 0, bytes: 4 },
    ] {
        assert!(ask(105, OutputOp::Read(read)).is_err(), "{read:?}");
    }
    assert_eq!(read(agent, &own).unwrap(), b"evil");
    let rename = RenameOutput { to: b"../evil".to_vec(), exclusive: false };
    assert!(ask(106, OutputOp::Rename(rename)).is_err());
    until("nothing half is left", || unfinished(agent) <= 1);
    for dir in [agent.config.dir.clone(), agent.config.dir.join("outputs")] {
        for name in fs::read_dir(dir).unwrap() {
            assert!(!name.unwrap().file_name().to_string_lossy().contains("evil"));
        }
    }
}
