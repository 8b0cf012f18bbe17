//! `saker dataset stage`: a dataset onto the disks of a job's nodes.

use std::path::Path;
use std::time::Duration;

use saker_agent::origin;
use saker_agent_api::{Ask, DatasetStatus, StageDataset};
use saker_client::datasets;
use saker_dataset::{Manifest, Stage};
use saker_runtime::time;
use serde_json::json;

use super::job::agents::{AgentArgs, Agents, Place, is_served, one};
use super::job::{daemon, nodes};
use crate::fail::{Context, FAILED, Failure, Outcome};
use crate::progress::Progress;
use crate::session::{self, ClusterArg};
use crate::{complain, format, signals};

/// Between two looks how far the nodes are.
const LOOK: Duration = Duration::from_millis(200);

/// Stage a dataset onto the local disks of a job's nodes.
///
/// SRC is NAME@VERSION, a frozen dataset of a cluster, or a packed dataset: a directory that all
/// nodes see, or s3://bucket/prefix, whose keys and endpoint come from the environment of the agents
/// (AWS_ACCESS_KEY_ID, AWS_ENDPOINT, ...). The agent of this machine is started if it does not run.
///
/// Each node keeps its share of the partitions. SRC is read about once: nodes copy from each other.
/// What is interrupted goes on where it was when it is started again, and an agent that is started
/// again goes on by itself.
///
/// Exits with 0 if all is there, with 1 otherwise.
#[derive(clap::Args)]
#[command(
    after_long_help = "EXAMPLES\n  saker dataset stage imagenet@1 --cluster meta1:7400 --nodes n[01-04]\n  \
    saker dataset stage /lustre/imagenet --name imagenet@1 --nodes n[01-04]\n  \
    srun --ntasks-per-node=1 saker dataset stage s3://data/imagenet --name imagenet@1 \\\n      \
    --nodes $SLURM_JOB_NODELIST --self $SLURMD_NODENAME --here"
)]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArg,
    /// The dataset: NAME@VERSION, a directory or a URL.
    #[arg(value_name = "SRC")]
    source: String,
    /// Name of the staged dataset; by default SRC, if that is NAME@VERSION. What a version has does not
    /// change.
    #[arg(long, value_name = "NAME@VERSION")]
    name: Option<String>,
    /// Nodes of the job: HOST,HOST:PORT,... or node[001-016,020], or @FILE with one on a line.
    #[arg(long, value_name = "LIST")]
    nodes: String,
    /// Nodes that keep each partition.
    #[arg(long, value_name = "N", default_value_t = 1)]
    replicas: u32,
    /// A directory of the dataset whose files every node keeps. May be given several times.
    #[arg(long, value_name = "SUBDIR")]
    broadcast: Vec<String>,
    #[command(flatten)]
    agent: AgentArgs,
    /// Which of the nodes this machine is [default: the first whose address is this machine's].
    #[arg(long = "self", value_name = "NODE")]
    own: Option<String>,
    /// Stage this node only: the command runs on every node.
    #[arg(long)]
    here: bool,
    /// Wait until all is there; the default.
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Begin only, and let the agents go on; exits with 0 if all have begun.
    #[arg(long)]
    no_wait: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Outcome<u8> {
    signals::catch_interrupt();
    let nodes = nodes::parse(&args.nodes)?;
    if args.replicas == 0 {
        return Err(Failure::usage("--replicas", "at least one"));
    }
    let (source, name) = source(args)?;
    let manifest = origin::manifest(&source).about("dataset")?;
    let stage = layout(args, &manifest, (source, name), nodes);
    let job = Job::begin(args, &stage)?;
    let states = match args.no_wait {
        true => job.look(),
        false => job.wait(),
    };
    job.report(args, &manifest, &states)
}

/// Where the dataset is, as agents find it, and the name that it gets.
fn source(args: &Args) -> Outcome<(String, String)> {
    let source = &args.source;
    let named = || args.name.clone().ok_or_else(|| Failure::usage("--name", "NAME@VERSION is due"));
    if source.contains("://") {
        return Ok((source.clone(), named()?));
    }
    if datasets::check_name(source).is_ok() && !Path::new(source).exists() {
        let cluster = session::resolve(&args.cluster.name())?;
        let addrs = session::coordinators(&cluster)?;
        let addrs: Vec<String> = addrs.iter().map(ToString::to_string).collect();
        let place = format!("saker://{}/{source}", addrs.join(","));
        return Ok((place, args.name.clone().unwrap_or_else(|| source.clone())));
    }
    // Agents have other working directories.
    let path = std::path::absolute(Path::new(source)).about(source)?;
    let text = path.into_os_string().into_string();
    let text = text.map_err(|_| Failure::usage(source, "a path that is not UTF-8"))?;
    Ok((text, named()?))
}

fn layout(
    args: &Args,
    manifest: &Manifest,
    (origin, name): (String, String),
    nodes: Vec<String>,
) -> Stage {
    Stage {
        format: Stage::FORMAT,
        name,
        digest: manifest.digest,
        table_digest: manifest.table_digest,
        partitions: manifest.partitions.len() as u32,
        nodes,
        replicas: args.replicas,
        broadcast: args.broadcast.iter().map(|dir| dir.trim_matches('/').to_owned()).collect(),
        origin,
    }
}

/// The nodes that this command stages.
struct Job {
    agents: Agents,
    name: String,
    /// Their names as in the list.
    nodes: Vec<String>,
    places: Vec<Place>,
    /// Those that would not begin, and why.
    refused: Vec<Option<Failure>>,
    begin: time::Time,
}

impl Job {
    fn begin(args: &Args, stage: &Stage) -> Outcome<Job> {
        let begin = time::now();
        let agents = args.agent.agents()?;
        let own = nodes::own(&stage.nodes, args.own.as_deref())?;
        let numbers = match (args.here, own) {
            (true, Some(own)) => vec![own],
            (true, None) => {
                return Err(Failure::usage("--here", "this machine is none of the nodes: --self"));
            }
            (false, _) => (0..stage.nodes.len()).collect::<Vec<_>>(),
        };
        let dir = args.agent.dir()?;
        if let Some(own) = own {
            let node = &stage.nodes[own];
            let runs = match args.here {
                true => is_served(&dir),
                false => is_served(&dir) || answers(node),
            };
            if !runs {
                daemon::start(&dir, node, args.agent.key_file()?.as_deref())?;
            }
        }
        let place = |n: &usize| match args.here {
            true => Place::Dir(dir.clone()),
            false => Place::Node(stage.nodes[*n].clone()),
        };
        let places: Vec<Place> = numbers.iter().map(place).collect();
        let json = stage.to_json();
        let ask =
            |n: usize| Ask::Stage(StageDataset { stage: json.clone(), node: numbers[n] as u32 });
        let asked = agents.ask_all(&places, ask);
        let refused = asked.into_iter().map(Result::err).collect();
        let nodes = numbers.iter().map(|n| stage.nodes[*n].clone()).collect();
        Ok(Job { agents, name: stage.name.clone(), nodes, places, refused, begin })
    }

    /// How far each node is.
    fn look(&self) -> Vec<Outcome<DatasetStatus>> {
        let states = self.agents.status(&self.places, &self.name);
        let states = states.into_iter().zip(&self.places);
        states.map(|(status, place)| one(status, place)).collect()
    }

    /// Waits until every node is complete or has failed.
    fn wait(&self) -> Vec<Outcome<DatasetStatus>> {
        let bar = Progress::of_bytes(0);
        let states = loop {
            let states = self.look();
            let known = || states.iter().flatten();
            bar.set_total(known().map(|state| state.bytes).sum());
            bar.set(known().map(|state| state.bytes_there).sum());
            let whole: u32 = known().map(|state| state.partitions_whole).sum();
            let partitions: u32 = known().map(|state| state.partitions).sum();
            let complete = known().filter(|state| state.complete).count();
            let nodes = self.nodes.len();
            bar.say(format!("{whole} of {partitions} partitions, {complete} of {nodes} nodes"));
            let works = |(state, refused): (&Outcome<DatasetStatus>, &Option<Failure>)| {
                let state = state.as_ref().ok().filter(|_| refused.is_none());
                state.is_some_and(|state| !state.complete && state.error.is_empty())
            };
            if !states.iter().zip(&self.refused).any(works) || signals::interrupted() {
                break states;
            }
            time::sleep(LOOK);
        };
        bar.done();
        states
    }

    fn report(
        &self,
        args: &Args,
        manifest: &Manifest,
        states: &[Outcome<DatasetStatus>],
    ) -> Outcome<u8> {
        let states: Vec<Node> =
            states.iter().enumerate().map(|(n, state)| self.node(n, state)).collect();
        let complete = states.iter().filter(|node| node.complete).count();
        let begun = self.refused.iter().all(Option::is_none);
        let ok = if args.no_wait { begun } else { complete == states.len() };
        if args.json {
            let nodes: Vec<_> = states.iter().map(Node::json).collect();
            let all = json!({
                "name": self.name, "digest": manifest.digest, "complete": complete == states.len(),
                "nodes": nodes,
            });
            println!("{all:#}");
        } else {
            let seconds = (time::now() - self.begin).as_secs_f64();
            println!(
                "{}: {complete} of {} nodes complete, {} on them, {} files of {} ({seconds:.1} s)",
                self.name,
                states.len(),
                format::bytes(states.iter().map(|node| node.bytes_there).sum()),
                manifest.files,
                format::bytes(manifest.bytes),
            );
            let wrong = |node: &&Node| !node.complete && (!args.no_wait || !node.error.is_empty());
            states.iter().filter(wrong).for_each(|node| complain!("saker: {}", node.missing()));
        }
        Ok(if ok { 0 } else { FAILED })
    }

    fn node(&self, n: usize, state: &Outcome<DatasetStatus>) -> Node {
        let mut node = Node { node: self.nodes[n].clone(), ..Node::default() };
        match state {
            Ok(state) => {
                node.complete = state.complete;
                (node.bytes, node.bytes_there) = (state.bytes, state.bytes_there);
                (node.partitions, node.whole) = (state.partitions, state.partitions_whole);
                (node.files, node.error) = (state.missing.clone(), state.error.clone());
            }
            Err(failure) => node.error = failure.why().to_owned(),
        }
        if let Some(failure) = &self.refused[n] {
            (node.complete, node.error) = (false, failure.why().to_owned());
        }
        node
    }
}

/// Says whether an agent answers, whatever.
fn answers(node: &str) -> bool {
    let addrs = std::net::ToSocketAddrs::to_socket_addrs(node).into_iter().flatten();
    { addrs }
        .any(|addr| std::net::TcpStream::connect_timeout(&addr, Duration::from_secs(2)).is_ok())
}

/// A node at the end.
#[derive(Default)]
struct Node {
    node: String,
    complete: bool,
    bytes: u64,
    bytes_there: u64,
    partitions: u32,
    whole: u32,
    /// Files that are missing, a few of them.
    files: Vec<String>,
    error: String,
}

impl Node {
    fn json(&self) -> serde_json::Value {
        json!({
            "node": self.node, "complete": self.complete, "bytes": self.bytes,
            "bytes_there": self.bytes_there, "partitions": self.partitions,
            "partitions_whole": self.whole, "missing": self.files, "error": self.error,
        })
    }

    fn missing(&self) -> String {
        let mut text = self.node.clone();
        if !self.error.is_empty() {
            text += &format!(": {}", self.error);
        }
        if !self.files.is_empty() {
            text += &format!(": missing: {}", self.files.join(", "));
        }
        text
    }
}
