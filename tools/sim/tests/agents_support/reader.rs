//! A process that reads all files of a dataset again and again, in random order, and compares every
//! byte. It panics at a wrong byte, and at an error that nothing excuses.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use saker_agent_api::Local;
use saker_dataset::{Table, partition_name};
use saker_runtime::rand::Rng;
use saker_sim::cluster::binary;
use saker_sim::wait::until;
use serde::{Deserialize, Serialize};

use super::tree::{self, File};
use super::{Agent, life};

/// How a process reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// As any program, below libsaker_preload.so: what the node keeps it reads itself.
    Preload,
    /// Every file from the agent.
    Agent,
}

/// What a process is to read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The dataset, `NAME@1`.
    pub dataset: String,
    /// How.
    pub way: Way,
    /// A copy of the dataset's table.
    pub table: PathBuf,
    /// The files that were packed.
    pub tree: PathBuf,
    /// Directory of the node's agent.
    pub agent: PathBuf,
    /// A file with a byte for each file that was read; beside it one for excused errors.
    pub progress: PathBuf,
    /// The process ends when this file is there.
    pub stop: PathBuf,
    /// Of its order.
    pub seed: u64,
}

/// Names the plan to the process.
const PLAN_ENV: &str = "SAKER_TEST_READER";

/// A running reader.
pub struct Reader {
    /// What it reads.
    pub plan: Plan,
    child: Child,
}

impl Reader {
    /// Starts one: this test program, run again.
    pub fn start(plan: Plan) -> Reader {
        for path in [plan.progress.clone(), excused(&plan)] {
            fs::write(path, "").unwrap();
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "reader_process", "--nocapture"]).stdout(Stdio::null());
        command.env(PLAN_ENV, serde_json::to_string(&plan).unwrap());
        if plan.way == Way::Preload {
            command.env("LD_PRELOAD", binary().with_file_name("libsaker_preload.so"));
            command.env("SAKER_AGENT_DIR", &plan.agent);
        }
        Reader { child: command.spawn().unwrap(), plan }
    }

    /// It is on the node of this agent.
    pub fn is_of(&self, agent: &Agent) -> bool {
        self.plan.agent == agent.dir
    }

    /// Files that it has read and compared.
    pub fn read(&mut self) -> u64 {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "a reader has ended: {ended:?} {:?}", self.plan);
        fs::metadata(&self.plan.progress).unwrap().len()
    }

    /// Errors while its agent was down.
    pub fn excused(&self) -> u64 {
        fs::metadata(excused(&self.plan)).unwrap().len()
    }

    /// Waits for its end, which must be a good one: it has been told to stop.
    pub fn join(mut self) {
        assert!(self.child.wait().unwrap().success(), "{:?}", self.plan);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until each of these readers has read so many more files.
pub fn wait_for_more<'a>(what: &str, readers: impl Iterator<Item = &'a mut Reader>, files: u64) {
    let mut waiting: Vec<_> = readers.map(|reader| (reader.read() + files, reader)).collect();
    until(what, || {
        waiting.retain_mut(|(goal, reader)| reader.read() < *goal);
        waiting.is_empty()
    });
}

fn excused(plan: &Plan) -> PathBuf {
    plan.progress.with_extension("excused")
}

/// What the process runs; the test file has a test `reader_process` that calls this.
pub fn reader_process() {
    let Ok(plan) = std::env::var(PLAN_ENV) else { return };
    let plan: Plan = serde_json::from_str(&plan).unwrap();
    let mut files = tree::files(&Table::open(&plan.table).unwrap());
    let mut rng = Rng::seeded(plan.seed);
    let append = |path: &Path| fs::File::options().append(true).open(path).unwrap();
    let (mut progress, mut excuses) = (append(&plan.progress), append(&excused(&plan)));
    let mut connection = None;
    loop {
        for last in (1..files.len()).rev() {
            files.swap(last, rng.below(last as u64 + 1) as usize);
        }
        for file in &files {
            if plan.stop.exists() {
                return;
            }
            let before = life(&plan.agent);
            match read(&plan, &mut connection, file) {
                Ok(bytes) => {
                    let wanted = fs::read(plan.tree.join(&file.path)).unwrap();
                    assert!(bytes == wanted, "WRONG BYTES: {:?} {plan:?}", file.path);
                    progress.write_all(b".").unwrap();
                }
                Err(error) => {
                    check(&plan, file, before, &error);
                    excuses.write_all(b".").unwrap();
                    // Real time: many tries would take the processor from an agent that starts.
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        }
    }
}

/// Panics unless an error may be: the agent of the node was down, and the node does not keep the
/// file, or the agent was to read it (docs/preload.md).
fn check(plan: &Plan, file: &File, before: u64, error: &io::Error) {
    let part = partition_name(file.data.partition);
    let is_kept = plan.agent.join("datasets").join(&plan.dataset).join(part).exists();
    let was_down = before % 2 == 1 || life(&plan.agent) != before;
    let may_be = was_down && !(is_kept && plan.way == Way::Preload);
    assert!(may_be, "FAILED READ: {:?}: {error} (kept here: {is_kept}) {plan:?}", file.path);
}

fn read(plan: &Plan, connection: &mut Option<Local>, file: &File) -> io::Result<Vec<u8>> {
    match plan.way {
        Way::Preload => {
            let path = Path::new("/saker").join(&plan.dataset).join(&file.path);
            let mut bytes = Vec::new();
            fs::File::open(path)?.read_to_end(&mut bytes)?;
            Ok(bytes)
        }
        Way::Agent => {
            let read = read_from_agent(plan, connection, file);
            if read.is_err() {
                *connection = None;
            }
            read
        }
    }
}

fn read_from_agent(
    plan: &Plan,
    connection: &mut Option<Local>,
    file: &File,
) -> io::Result<Vec<u8>> {
    let local = match connection {
        Some(local) => local,
        None => connection.insert(Local::connect(&plan.agent)?),
    };
    // Other processes have the same memfd: its position is theirs, too.
    let memory = fs::File::from(local.open(&plan.dataset, file.ino)?);
    let mut bytes = vec![0; memory.metadata()?.len() as usize];
    memory.read_exact_at(&mut bytes, 0)?;
    local.close(&plan.dataset, file.ino)?;
    Ok(bytes)
}
