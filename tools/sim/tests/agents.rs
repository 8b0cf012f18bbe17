//! Agents of a job are killed at random: while eight processes read and compare every byte, and
//! while they stage. `SAKER_KILL_ROUNDS` repeats, `SAKER_SEED` draws the same faults again.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod agents_support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use agents_support::reader::{self, Plan, Reader, Way, wait_for_more};
use agents_support::{Job, said, tree};
use saker_dataset::{Manifest, Partition, Stage, Table, partition_name};
use saker_runtime::rand::{self, Rng};
use saker_sim::wait::until;

const NODES: usize = 5;
const PARTITIONS: u32 = 10;
/// Names of datasets, and how they are compressed.
const DATASETS: [(&str, &str); 2] = [("plain", "none"), ("packed", "zstd")];
/// Nodes whose processes read below the preload library, and nodes whose processes read from the
/// agent. The last one has none.
const PRELOAD: [usize; 2] = [0, 1];
const BY_AGENT: [usize; 2] = [2, 3];

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

fn rounds(short: u64) -> u64 {
    setting("SAKER_KILL_ROUNDS").unwrap_or(short)
}

fn rng() -> Rng {
    let seed = setting("SAKER_SEED").unwrap_or_else(rand::u64);
    eprintln!("SAKER_SEED={seed}");
    Rng::seeded(seed)
}

/// Not a test: a process that reads.
#[test]
fn reader_process() {
    reader::reader_process();
}

/// Each partition is on two nodes. Without the origin one node dies at a time.
#[test]
fn nothing_is_missed_while_a_copy_lives() {
    torment(2, rounds(8));
}

/// Each partition is on one node: what dead nodes kept comes from the origin.
#[test]
fn nothing_is_missed_while_the_origin_lives() {
    torment(1, rounds(8));
}

fn torment(replicas: usize, rounds: u64) {
    let mut torment = Torment::start(replicas);
    for round in 0..rounds {
        torment.round(round);
    }
    torment.end(rounds);
}

/// A job under faults, and its readers.
struct Torment {
    rng: Rng,
    replicas: usize,
    readers: Vec<Reader>,
    job: Job,
    kills: usize,
    damages: usize,
}

impl Torment {
    fn start(replicas: usize) -> Torment {
        let mut rng = rng();
        let job = Job::new(NODES);
        let root = job.path("tree");
        tree::make(&root, 150, 60 << 10);
        for (name, codec) in DATASETS {
            let packed = job.pack(&root, name, codec, PARTITIONS);
            fs::copy(packed.join("table.saker"), table_of(&job, name)).unwrap();
            said(job.stage(name, replicas).output().unwrap());
        }
        let places = [(PRELOAD, Way::Preload), (BY_AGENT, Way::Agent)];
        let places = places.iter().flat_map(|(nodes, way)| nodes.iter().map(move |n| (*n, *way)));
        let plans = places.flat_map(|(node, way)| DATASETS.map(|(name, _)| (node, way, name)));
        let readers = plans.map(|(node, way, name)| {
            Reader::start(Plan {
                dataset: format!("{name}@1"),
                way,
                table: table_of(&job, name),
                tree: root.clone(),
                agent: job.agents[node].dir.clone(),
                progress: job.path(&format!("read-{node}-{name}")),
                stop: job.path("stop"),
                seed: rng.u64(),
            })
        });
        let readers = readers.collect();
        Torment { rng, replicas, readers, job, kills: 0, damages: 0 }
    }

    fn round(&mut self, round: u64) {
        let more = 1 + self.rng.below(40);
        wait_for_more("all read", self.readers.iter_mut(), more);
        let is_origin_away = self.replicas > 1 && self.rng.chance(1, 2);
        let damage = (!is_origin_away && self.rng.chance(1, 2)).then(|| self.damage());
        if is_origin_away {
            self.move_origin("packed", "away");
        }
        let most = if is_origin_away { self.replicas - 1 } else { NODES - 1 };
        let victims = self.victims(most);
        let hang = self.rng.chance(1, 4);
        eprintln!(
            "round {round}: {} {victims:?}{}{}",
            if hang { "hang" } else { "killed" },
            if is_origin_away { ", no origin" } else { "" },
            if damage.is_some() { ", damage" } else { "" },
        );
        self.kills += victims.len();
        for victim in &victims {
            let agent = &mut self.job.agents[*victim];
            if hang { agent.hang() } else { agent.kill() }
        }
        let more = 1 + self.rng.below(20);
        self.wait_for_others("the others go on", &victims, more);
        for victim in &victims {
            let agent = &mut self.job.agents[*victim];
            if hang { agent.go_on() } else { agent.start() }
        }
        wait_for_more("all read again", self.readers.iter_mut(), 1);
        if is_origin_away {
            self.move_origin("away", "packed");
        }
        if let Some(damage) = damage {
            damage.flip();
        }
    }

    fn victims(&mut self, most: usize) -> Vec<usize> {
        let mut nodes: Vec<usize> = (0..NODES).collect();
        let count = 1 + self.rng.below(most as u64) as usize;
        let drawn =
            (0..count).map(|_| nodes.swap_remove(self.rng.below(nodes.len() as u64) as usize));
        drawn.collect()
    }

    fn wait_for_others(&mut self, what: &str, victims: &[usize], more: u64) {
        let agents = &self.job.agents;
        let others = self.readers.iter_mut();
        let others = others.filter(|r| !victims.iter().any(|victim| r.is_of(&agents[*victim])));
        wait_for_more(what, others, more);
    }

    fn move_origin(&self, from: &str, to: &str) {
        for (name, _) in DATASETS {
            let path = |prefix: &str| self.job.path(&format!("{prefix}-{name}"));
            fs::rename(path(from), path(to)).unwrap();
        }
    }

    /// Damages a partition of a node whose files are read by agents only, and waits until an agent
    /// has read some of it.
    fn damage(&mut self) -> Damage {
        let node = BY_AGENT[0] + self.rng.below((NODES - BY_AGENT[0]) as u64) as usize;
        let (name, _) = DATASETS[self.rng.below(DATASETS.len() as u64) as usize];
        let kept = (0..PARTITIONS).map(|n| {
            (n, self.job.agents[node].staged(&format!("{name}@1")).join(partition_name(n)))
        });
        let kept: Vec<_> = kept.filter(|(_, path)| path.exists()).collect();
        let (number, path) = kept[self.rng.below(kept.len() as u64) as usize].clone();
        let table = Table::open(&table_of(&self.job, name)).unwrap();
        let files = tree::files(&table);
        let files = files.iter().filter(|f| f.data.partition == number && f.data.stored > 0);
        let byte = |file: &tree::File| file.data.offset + self.rng.below(file.data.stored);
        let damage = Damage { path, bytes: files.map(byte).collect() };
        let all: Vec<usize> = (0..NODES).collect();
        let before = self.job.total(&all, "damaged_reads_total");
        damage.flip();
        let damaged = || self.job.total(&all, "damaged_reads_total");
        until("an agent has read the damage", || damaged() > before);
        self.damages += 1;
        damage
    }

    fn end(self, rounds: u64) {
        let Torment { mut readers, kills, damages, job, .. } = self;
        let read: u64 = readers.iter_mut().map(Reader::read).sum();
        let excused: u64 = readers.iter().map(Reader::excused).sum();
        fs::write(job.path("stop"), "").unwrap();
        readers.into_iter().for_each(Reader::join);
        eprintln!(
            "{rounds} rounds: {kills} agents killed or hung, {damages} partitions damaged; \
             {read} files read and compared, {excused} errors of processes whose agent was down"
        );
        assert!(kills as u64 >= rounds);
        for agent in &job.agents {
            assert!(agent.status().datasets.iter().all(|dataset| dataset.complete));
        }
    }
}

fn table_of(job: &Job, name: &str) -> PathBuf {
    job.path(&format!("table-{name}"))
}

/// Bytes of a partition, one of each file.
struct Damage {
    path: PathBuf,
    bytes: Vec<u64>,
}

impl Damage {
    /// Changes a bit of each; or changes it back.
    fn flip(&self) {
        let file = fs::File::options().read(true).write(true).open(&self.path).unwrap();
        for at in &self.bytes {
            let mut byte = [0];
            file.read_exact_at(&mut byte, *at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], *at).unwrap();
        }
    }
}

/// Agents and the command are killed in the middle, again and again: each time the dataset is there
/// in the end, as it was packed.
#[test]
fn staging_is_complete_after_kills() {
    let kills = rounds(20) as usize / 2;
    let mut rng = rng();
    let mut job = Job::new(4);
    let root = job.path("tree");
    tree::make(&root, 100, 500 << 10);
    for (name, codec) in DATASETS {
        job.pack(&root, name, codec, PARTITIONS);
    }
    let (mut killed, mut stagings) = (0, 0);
    while killed < kills {
        let (name, _) = DATASETS[stagings % DATASETS.len()];
        let replicas = 1 + rng.below(3) as usize;
        killed += stage(&mut job, name, replicas, &mut rng);
        compare(&job, name, replicas);
        said(job.unstage(name).output().unwrap());
        stagings += 1;
    }
    eprintln!("{stagings} times staged, {killed} kills in the middle");
}

/// Stages a dataset with kills in between. Returns how many there were before all was there.
fn stage(job: &mut Job, name: &str, replicas: usize, rng: &mut Rng) -> usize {
    let dataset = format!("{name}@1");
    let (mut command, mut kills) = (Running::start(job, name, replicas), 0);
    loop {
        let state = |job: &Job| -> Vec<_> {
            job.agents.iter().map(|agent| agent.dataset(&dataset)).collect()
        };
        let bytes = |job: &Job| -> u64 { state(job).iter().flatten().map(|s| s.bytes_there).sum() };
        let goal = bytes(job) + rng.below(15 << 20);
        let mut ended = None;
        until("staging goes on", || {
            ended = command.0.try_wait().unwrap();
            ended.is_some() || bytes(job) > goal
        });
        match ended {
            Some(status) if status.success() => return kills,
            // It may say that an agent does not answer; what is staged is not affected.
            Some(_) => command = Running::start(job, name, replicas),
            None => {
                let complete = |s: &Option<saker_agent_api::DatasetStatus>| {
                    s.as_ref().is_some_and(|s| s.complete)
                };
                kills += usize::from(!state(job).iter().all(complete));
                kill_some(job, &mut command, rng);
                if command.0.try_wait().unwrap().is_some() {
                    command = Running::start(job, name, replicas);
                }
            }
        }
    }
}

/// Kills the command, agents or all of them, and starts the agents again.
fn kill_some(job: &mut Job, command: &mut Running, rng: &mut Rng) {
    let victims: Vec<usize> = match rng.below(4) {
        0 => vec![],
        1 => (0..job.agents.len()).collect(),
        _ => vec![rng.below(job.agents.len() as u64) as usize],
    };
    eprintln!("killed: agents {victims:?}");
    // The command runs on the first node. It starts an agent there if there is none.
    if victims.is_empty() || victims.contains(&0) {
        command.kill();
    }
    victims.iter().for_each(|n| job.agents[*n].kill());
    victims.iter().for_each(|n| job.agents[*n].start());
}

/// `saker dataset stage`, killed when dropped.
struct Running(Child);

impl Running {
    fn start(job: &Job, name: &str, replicas: usize) -> Running {
        let mut stage = job.stage(name, replicas);
        Running(stage.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn kill(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Each node has what it is to keep and nothing else, byte for byte as it was packed.
fn compare(job: &Job, name: &str, replicas: usize) {
    let packed = job.path(&format!("packed-{name}"));
    let manifest = Manifest::read(&packed).unwrap();
    for (n, agent) in job.agents.iter().enumerate() {
        let dir = agent.staged(&format!("{name}@1"));
        let stage = Stage::read(&dir).unwrap();
        assert_eq!(stage.replicas as usize, replicas);
        let kept = (0..PARTITIONS).filter(|p| stage.keepers(*p).any(|keeper| keeper == n));
        let mut wanted: Vec<String> = kept.map(partition_name).collect();
        wanted.extend(["dataset.json", "node", "stage.json", "table.saker"].map(str::to_owned));
        wanted.sort();
        let there = fs::read_dir(&dir).unwrap();
        let mut there: Vec<String> =
            there.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        there.sort();
        assert_eq!(there, wanted, "{}", dir.display());
        for file in wanted.iter().filter(|file| file.ends_with(".saker")) {
            same(&dir.join(file), &packed.join(file));
        }
        for part in wanted.iter().filter(|file| file.starts_with("part-")) {
            Partition::open(&dir.join(part)).unwrap().verify().unwrap();
        }
        assert_eq!(Manifest::read(&dir).unwrap().digest, manifest.digest);
    }
}

fn same(a: &Path, b: &Path) {
    assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "{} {}", a.display(), b.display());
}
