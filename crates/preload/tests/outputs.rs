//! Programs that write output files on one node, and read them on another.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use saker_agent::{Config, Stop};
use saker_agent_api::{Ask, Local, StageDataset};
use saker_dataset::Stage;
use saker_dataset::pack::{LocalTree, Options, Plan, Progress, pack};
use support::library;

/// What a test waits for comes within.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until it is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !so() {
        // Real time: a condition that never holds must end the test.
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        // Real time: other processes have to do something meanwhile.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The agents of a job, each in a thread, with a dataset `data@1`.
struct Nodes {
    dir: tempfile::TempDir,
    /// Where they listen.
    at: Vec<SocketAddr>,
    stops: Vec<Stop>,
    agents: Vec<JoinHandle<()>>,
}

impl Nodes {
    fn new(nodes: usize) -> Nodes {
        let dir = tempfile::Builder::new().prefix("saker-outputs").tempdir_in("/var/tmp").unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("input"), "an input\n").unwrap();
        let source = LocalTree::new(&tree);
        let options = Options { partitions: 2, ..Options::default() };
        let plan = Plan::of(&source).unwrap();
        let packed = dir.path().join("packed");
        let manifest = pack(&source, &plan, &packed, &options, &Progress::default()).unwrap();
        let held: Vec<_> = (0..nodes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let at: Vec<_> = held.iter().map(|held| held.local_addr().unwrap()).collect();
        drop(held);
        let mut job = Nodes { dir, at, stops: Vec::new(), agents: Vec::new() };
        job.serve();
        let stage = Stage {
            format: Stage::FORMAT,
            name: "data@1".into(),
            digest: manifest.digest,
            table_digest: manifest.table_digest,
            partitions: 2,
            nodes: job.at.iter().map(ToString::to_string).collect(),
            replicas: 1,
            broadcast: Vec::new(),
            origin: packed.display().to_string(),
        };
        for n in 0..nodes {
            until("an agent that serves", || Local::connect(&job.agent(n)).is_ok());
            let ask = StageDataset { stage: stage.to_json(), node: n as u32 };
            Local::connect(&job.agent(n)).unwrap().ask(Ask::Stage(ask)).unwrap();
        }
        for n in 0..nodes {
            let table = job.agent(n).join("datasets/data@1/table.saker");
            until("the dataset is staged", || table.exists());
        }
        fs::create_dir(job.path("real")).unwrap();
        job
    }

    /// Starts all agents.
    fn serve(&mut self) {
        for (n, listen) in self.at.iter().enumerate() {
            let config = Config { listen: *listen, dir: self.agent(n), ..Config::default() };
            let stop = Stop::new();
            self.stops.push(stop.clone());
            let serve = move || saker_agent::serve(config, &stop).unwrap();
            self.agents.push(std::thread::spawn(serve));
        }
    }

    /// Ends all agents.
    fn end(&mut self) {
        self.stops.drain(..).for_each(|stop| stop.stop());
        self.agents.drain(..).for_each(|agent| agent.join().unwrap());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn agent(&self, n: usize) -> PathBuf {
        self.path(&format!("node{n}"))
    }

    fn command(&self, script: &str) -> Command {
        let mut shell = Command::new("bash");
        shell.args(["-c", script]).env("LC_ALL", "C").env("TZ", "UTC").env("HERE", self.dir.path());
        shell.current_dir("/").stdin(Stdio::null());
        shell
    }

    fn on(&self, n: usize, script: &str) -> Command {
        let mut shell = self.command(script);
        shell.env("LD_PRELOAD", library()).env("SAKER_AGENT_DIR", self.agent(n));
        shell.env("ROOT", "/saker/data@1.out");
        shell
    }

    /// What a script says on a node.
    fn says(&self, n: usize, script: &str) -> String {
        text(&self.on(n, script).output().unwrap())
    }

    /// The script says the same on outputs, here on node `n`, and on a directory of the disk; and
    /// the other nodes have the same files then.
    fn compare(&self, n: usize, script: &str) {
        let script = format!("set -u; umask 022\n{script}");
        let real = text(&self.command(&script).env("ROOT", self.path("real")).output().unwrap());
        let wanted = real.replace(self.path("real").to_str().unwrap(), "ROOT");
        let got = self.says(n, &script).replace("/saker/data@1.out", "ROOT");
        assert_eq!(got, wanted, "{script}");
        // Files that programs have inherited are published soon after they have ended.
        let tree = "cd $ROOT && find . -mindepth 1 -printf '%P %y %s %m\\n' | \
                    sed 's/ d [0-9]*/ d/' | sort; find . -type f | sort | xargs -r -d '\\n' sha256sum";
        let wanted = text(&self.command(tree).env("ROOT", self.path("real")).output().unwrap());
        for node in 0..self.agents.len() {
            let mut got = String::new();
            let begin = Instant::now();
            // Real time: until a file of a program that has ended is published.
            while got != wanted && begin.elapsed() < Duration::from_secs(5) {
                got = self.says(node, tree);
            }
            assert_eq!(got, wanted, "on node {node}, after {script}");
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.stops.iter().for_each(Stop::stop);
        self.agents.drain(..).for_each(|agent| drop(agent.join()));
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn shells_and_their_programs_write_outputs() {
    let nodes = Nodes::new(2);
    for (n, script) in [
        "cd $ROOT; echo one > a; cat a; echo two >> a; cat a; echo three > a; cat < a; ls",
        "echo by a program | cat > $ROOT/b; cat $ROOT/b; seq 5 | tee $ROOT/c $ROOT/d | tail -n 1; \
         cat $ROOT/[cd]; (echo sub) > $ROOT/e; { echo 1; echo 2 >&2; } > $ROOT/f 2>&1; cat $ROOT/[ef]",
        "exec 3> $ROOT/g; echo x >&3; cat /etc/hostname > /dev/null; echo y >&3; exec 3>&-; cat $ROOT/g; \
         exec 4<> $ROOT/g; read -u 4 line; echo $line; echo z >&4; exec 4>&-; cat $ROOT/g; \
         bash -c 'exec > $ROOT/h; echo at its end'; cat $ROOT/h; set -C; echo no > $ROOT/h; echo $?",
        "mkdir -p $ROOT/dir/sub/deep && mkdir -p $ROOT/dir/sub/deep; mkdir $ROOT/dir; \
         cd $ROOT/dir/sub && pwd && touch deep/t && cd deep && ls && cd ../.. && ls -A . sub; \
         rmdir sub; rmdir sub/deep; rm -r sub/deep && ls sub; mkdir no/where; echo > no/where",
        "cp -r /usr/include/asm-generic $ROOT/inc && diff -r /usr/include/asm-generic $ROOT/inc && \
         ls $ROOT/inc | wc -l; cd $ROOT/inc && mv types.h renamed.h && mv -n renamed.h ioctl.h; \
         cp renamed.h ioctl.h && cmp renamed.h ioctl.h && rm errno.h && cat *.h | wc; \
         mv $ROOT/inc/ioctl.h $HERE/moved && mv $HERE/moved $ROOT/moved && wc -l < $ROOT/moved",
        "mv $ROOT/inc $ROOT/inc2 && ls $ROOT; rm -rf $ROOT/inc2 && ls $ROOT",
        "cp -p /etc/passwd $ROOT/p && [ $(stat -c %Y:%a $ROOT/p) = $(stat -c %Y:%a /etc/passwd) ] && echo same; \
         chmod 640 $ROOT/p; touch -d @1000000007.5 $ROOT/p; stat -c '%a %y %F %h' $ROOT/p; \
         truncate -s 10 $ROOT/p; stat -c %s $ROOT/p; truncate -s 3M $ROOT/p; sha256sum $ROOT/p; \
         [ -w $ROOT/p ] && [ ! -x $ROOT/p ] && echo rights",
        "dd if=/dev/zero of=$ROOT/z bs=1M count=9 status=none; \
         echo middle | dd of=$ROOT/z bs=1 seek=5000000 conv=notrunc status=none; sha256sum $ROOT/z; \
         fallocate -l 100 $ROOT/fa; stat -c %s $ROOT/fa; sort -r /etc/passwd -o $ROOT/s; head -n 1 $ROOT/s",
        "tar c -C /usr/include asm-generic | tar x -C $ROOT && ls $ROOT/asm-generic | wc -l; \
         cp -a /usr/include/asm-generic $ROOT/r && diff -r /usr/include/asm-generic $ROOT/r && echo same; \
         sed -i 's/root/ROOT/' $ROOT/s && grep -c ROOT $ROOT/s; gzip -nk $ROOT/s && zcat $ROOT/s.gz | cmp - $ROOT/s; \
         t=$(mktemp $ROOT/tmp.XXXXXX) && echo t > $t && cat $t && rm $t; d=$(mktemp -d $ROOT/dXXXXXX) && rmdir $d; \
         find $ROOT -name '*.h' -newer /usr | wc -l; rm -r $ROOT/r $ROOT/asm-generic",
        "ln $ROOT/a $ROOT/ln 2> /dev/null; [ -e $ROOT/ln ]; rm -f $ROOT/ln; cat $ROOT/nothing; rm $ROOT/nothing; \
         rmdir $ROOT/a; cat $ROOT/a/b; rm $ROOT/dir 2>&1 | wc -l; mv $ROOT/a $ROOT/dir && cat $ROOT/dir/a",
    ]
    .into_iter()
    .enumerate()
    {
        nodes.compare(n % 2, script);
    }
}

/// Programs of Python; `root` is where they write.
const PYTHON: &[&str] = &[
    "for n in range(5):\n  with open(root + f'/f{n}', 'w') as f: f.write('x' * n * 1000)\n\
     print(sorted(os.listdir(root)), [os.path.getsize(root + f'/f{n}') for n in range(5)])\n\
     with open(root + '/f1', 'r+') as f:\n  f.seek(10)\n  f.write('changed')\n\
     with open(root + '/f1', 'a') as f: f.write('end')\n\
     s = open(root + '/f1').read()\nprint(len(s), s[8:20], s[-4:])\n\
     try: open(root + '/f1', 'x')\nexcept FileExistsError as e: print(e.errno)",
    "os.makedirs(root + '/m/n/o', exist_ok=True)\nos.makedirs(root + '/m/n/o', exist_ok=True)\n\
     with open(root + '/m/tmp', 'wb') as f: f.write(b'1' * 100000)\n\
     os.replace(root + '/m/tmp', root + '/m/final')\nos.replace(root + '/m/final', root + '/m/n/final')\n\
     print(os.path.exists(root + '/m/tmp'), os.path.getsize(root + '/m/n/final'))\n\
     shutil.copytree('/usr/include/asm-generic', root + '/c')\nshutil.copytree(root + '/c', root + '/c2')\n\
     print(len(os.listdir(root + '/c2')))\nshutil.rmtree(root + '/c')\nshutil.move(root + '/c2', root + '/c3')\n\
     print(sorted(os.listdir(root)), sorted(d for d, _, _ in os.walk(root)))\nshutil.rmtree(root + '/c3')",
    "import zipfile, pickle, tempfile, pathlib\n\
     with zipfile.ZipFile(root + '/model.pt', 'w') as z:\n\
     \x20 z.writestr(zipfile.ZipInfo('data.pkl'), pickle.dumps(list(range(1000))))\n\
     \x20 with z.open('tensor/0', 'w') as f: f.write(bytes(3 << 20))\n\
     print(zipfile.ZipFile(root + '/model.pt').testzip(), len(zipfile.ZipFile(root + '/model.pt').namelist()))\n\
     with tempfile.NamedTemporaryFile(dir=root, delete=False) as f: f.write(b'temporary')\n\
     os.rename(f.name, root + '/kept')\nprint(pathlib.Path(root, 'kept').read_bytes())\n\
     pathlib.Path(root, 'p').write_text('path')\nprint(sorted(p.name for p in pathlib.Path(root).glob('[kp]*')))\n\
     with tempfile.TemporaryDirectory(dir=root) as d: open(d + '/x', 'w').write('y')",
    "import mmap, subprocess, multiprocessing\n\
     f = open(root + '/mapped', 'wb+')\nf.truncate(10000)\nm = mmap.mmap(f.fileno(), 10000)\nm[5000:5005] = b'hello'\n\
     m.close()\nf.close()\nprint(open(root + '/mapped', 'rb').read()[4999:5006])\n\
     with open(root + '/log', 'w') as f: subprocess.run(['sh', '-c', 'echo out; echo err >&2'], stdout=f, stderr=f)\n\
     print(open(root + '/log').read())\n\
     def work(n):\n  open(root + f'/w{n}', 'w').write(str(n) * 100)\n  return n\n\
     with multiprocessing.get_context('fork').Pool(3) as pool: print(pool.map(work, range(9)))\n\
     print(len(open(root + '/w8').read()))",
    "fd = os.open(root + '/fd', os.O_CREAT | os.O_RDWR)\nos.write(fd, b'abc')\nother = os.dup(fd)\nos.close(fd)\n\
     os.pwrite(other, b'B', 1)\nprint(os.fstat(other).st_size)\nos.close(other)\n\
     d = os.open(root, os.O_RDONLY)\nprint(os.stat('fd', dir_fd=d).st_size, os.listdir(d) == os.listdir(root))\n\
     g = os.open('by-dir', os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=d)\nos.close(g)\nos.mkdir('sub', dir_fd=d)\n\
     os.fchdir(d)\nprint(os.path.exists('by-dir'), os.getcwd() == root)\n\
     s = os.stat('fd')\nr = open('fd', 'rb')\nprint(os.path.samestat(s, os.fstat(r.fileno())), r.read())\n\
     e = [x for x in os.scandir('.') if x.name == 'sub'][0]\nprint(e.is_dir(), e.inode() == os.stat('sub').st_ino)\n\
     os.utime('fd', (5, 7))\nprint(os.stat('fd').st_mtime, shutil.disk_usage(root).total > 0)\nos.chdir('/')",
    "for n in range(3):\n\
     \x20 pid = os.fork()\n\
     \x20 if pid == 0:\n\
     \x20   f = open(root + f'/child{n}', 'w')\n\
     \x20   f.write('c' * 5)\n\
     \x20   f.flush()\n\
     \x20   os._exit(0)\n\
     \x20 os.waitpid(pid, 0)\n\
     \x20 print(open(root + f'/child{n}').read())\n\
     left = open(root + '/left', 'w')\nleft.write('not closed')\nsys.stdout.flush()",
];

#[test]
fn python_writes_outputs() {
    let nodes = Nodes::new(2);
    for (n, program) in PYTHON.iter().enumerate() {
        let program = format!("import os, shutil, sys\nroot = os.environ['ROOT']\n{program}\n");
        fs::write(nodes.path("program.py"), program).unwrap();
        nodes.compare(n % 2, "/usr/bin/python3 $HERE/program.py 2>&1; cat $HERE/program.py");
    }
}

/// A program of Python that writes to `killed`, and waits.
fn writer(nodes: &Nodes) -> Child {
    let program = "import os, sys, signal\nf = open(os.environ['ROOT'] + '/killed', 'w')\n\
                   f.write('half')\nf.flush()\nprint('written', flush=True)\nsignal.pause()";
    fs::write(nodes.path("writer.py"), program).unwrap();
    let mut shell = nodes.on(0, "exec /usr/bin/python3 $HERE/writer.py");
    let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 8];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    child
}

#[test]
fn what_a_killed_program_has_written_is_never_seen() {
    let nodes = Nodes::new(2);
    let mut child = writer(&nodes);
    assert_eq!(nodes.says(0, "ls -A $ROOT"), "");
    child.kill().unwrap();
    child.wait().unwrap();
    let outgoing = nodes.agent(0).join("outputs/data@1/outgoing");
    until("it is dropped", || fs::read_dir(&outgoing).unwrap().count() == 0);
    for n in 0..2 {
        assert_eq!(nodes.says(n, "ls -A $ROOT"), "");
    }
}

/// Programs that close a file while no agent is there, in the ways of C and of the kernel, and by
/// their end.
#[test]
fn what_is_closed_while_no_agent_is_there_is_not_lost() {
    let mut nodes = Nodes::new(2);
    let script = "exec 3> $ROOT/shell; echo text >&3; \
                  until [ -e $HERE/go ]; do true; done; exec 3>&-";
    let python = "import os\nroot = os.environ['ROOT']\nf = open(root + '/python', 'w')\nf.write('text\\n')\n\
                  g = open(root + '/end', 'w')\ng.write('text\\n')\n\n\
                  while not os.path.exists(os.environ['HERE'] + '/go'): pass\nf.close()";
    fs::write(nodes.path("program.py"), python).unwrap();
    let programs = [script, "exec /usr/bin/python3 $HERE/program.py"];
    let mut children: Vec<Child> = programs
        .iter()
        .map(|program| nodes.on(0, program).stderr(Stdio::null()).stdout(Stdio::null()).spawn())
        .map(Result::unwrap)
        .collect();
    let outgoing = nodes.agent(0).join("outputs/data@1/outgoing");
    let private = || fs::read_dir(&outgoing).map_or(0, |all| all.flatten().count());
    // Each has a record.
    until("all are being written", || private() == 6);
    nodes.end();
    fs::write(nodes.path("go"), "").unwrap();
    for child in &mut children {
        child.wait().unwrap();
    }
    nodes.serve();
    for n in 0..2 {
        until("all are published", || nodes.says(n, "ls $ROOT") == "end\npython\nshell\n");
        assert_eq!(nodes.says(n, "cat $ROOT/*"), "text\ntext\ntext\n");
    }
}

#[test]
fn errors_are_those_of_a_file_system() {
    let nodes = Nodes::new(2);
    let said = nodes.says(
        0,
        "cd $ROOT; echo x > x; ln x y; ln -s x y; mkfifo y; mv x /saker/data@1/x; ls; chown 12345 x; ./x; \
         rm -r /saker/data@1.out; echo y > /saker/data@1/new; echo y > /saker/other@1.out/x; \
         stat -c '%F %a' /saker/data@1.out /saker/data@1.out/../data@1.out/. ; ls /saker",
    );
    for wanted in [
        "Operation not permitted",
        "Read-only file system",
        "Device or resource busy",
        "Permission denied",
        "/saker/other@1.out/x: No such file or directory",
        "directory 755\ndirectory 755\n",
        "data@1\ndata@1.out\n",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let long = "n".repeat(256);
    let said = nodes.says(
        0,
        &format!("echo x > $ROOT/{long}; echo x > $ROOT/x; echo x > $ROOT/x/y; cat $ROOT/no"),
    );
    assert!(said.contains("File name too long") && said.contains("Not a directory"), "{said}");
    assert!(said.contains("No such file"), "{said}");
}

#[test]
fn without_an_agent_writing_is_an_error() {
    let mut nodes = Nodes::new(1);
    assert_eq!(nodes.says(0, "echo x > $ROOT/x; cat $ROOT/x"), "x\n");
    nodes.end();
    let said = nodes
        .says(0, "ls -d $ROOT; cat /saker/data@1/input; cat $ROOT/x; echo x > $ROOT/y; ls $ROOT");
    assert!(said.starts_with("/saker/data@1.out\n"), "{said}");
    assert_eq!(said.matches("Input/output error").count(), 3, "{said}");
    assert!(Path::new(&nodes.agent(0).join("outputs/data@1/files/x")).exists());
}
