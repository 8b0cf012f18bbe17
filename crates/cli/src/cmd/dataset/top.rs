//! `saker dataset top`: what agents have done.

use saker_agent_api::NodeStatus;
use serde_json::{Map, Value, json};

use super::job::agents::{AgentArgs, Place};
use super::job::nodes;
use crate::fail::{FAILED, Outcome};
use crate::{complain, format};

/// Show what the agents of a job have done since they started, one line for each node.
///
/// OPENS are files that processes asked their agent for; LOCAL, PEERS and ORIGIN are the bytes read
/// for that and for staging; SERVED went to other nodes. Files of partitions that a node keeps are
/// read by processes themselves, and are not counted.
#[derive(clap::Args)]
pub struct Args {
    /// Nodes, as for `saker dataset stage` [default: this machine's agent].
    #[arg(long, value_name = "LIST")]
    nodes: Option<String>,
    #[command(flatten)]
    agent: AgentArgs,
    /// Print one JSON document: all metrics by their names.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Outcome<u8> {
    let places = match &args.nodes {
        Some(list) => nodes::parse(list)?.into_iter().map(Place::Node).collect(),
        None => vec![Place::Dir(args.agent.dir()?)],
    };
    let states = args.agent.agents()?.status(&places, "");
    let failed = states.iter().any(Result::is_err);
    match args.json {
        true => print_json(&places, &states),
        false => print(&places, &states),
    }
    Ok(if failed { FAILED } else { 0 })
}

fn print_json(places: &[Place], states: &[Outcome<NodeStatus>]) {
    let node = |(place, state): (&Place, &Outcome<NodeStatus>)| match state {
        Err(failure) => json!({ "node": place.name(), "error": failure.why() }),
        Ok(status) => {
            let counts = status.counters.iter();
            let counters: Map<String, Value> =
                counts.map(|count| (count.name.clone(), count.value.into())).collect();
            let datasets: Vec<_> = { status.datasets.iter() }
                .map(|dataset| {
                    json!({
                        "name": dataset.name, "digest": dataset.digest,
                        "complete": dataset.complete, "partitions": dataset.partitions,
                        "partitions_whole": dataset.partitions_whole, "bytes": dataset.bytes,
                        "bytes_there": dataset.bytes_there, "error": dataset.error,
                    })
                })
                .collect();
            json!({ "node": place.name(), "counters": counters, "datasets": datasets })
        }
    };
    let nodes: Vec<_> = places.iter().zip(states).map(node).collect();
    println!("{:#}", json!({ "nodes": nodes }));
}

/// Headings, and the metrics below them (without what all names begin and end with).
const COUNTS: [(&str, &str); 4] = [
    ("OPENS", "opens_total"),
    ("HITS", "cache_hits_total"),
    ("FAILED", "open_failures_total"),
    ("SKIPPED", "read_failures_total"),
];
const BYTES: [(&str, &str); 5] = [
    ("LOCAL", "local_read_bytes_total"),
    ("PEERS", "peer_read_bytes_total"),
    ("ORIGIN", "origin_read_bytes_total"),
    ("SERVED", "served_read_bytes_total"),
    ("STAGED", "staged_bytes_total"),
];

fn print(places: &[Place], states: &[Outcome<NodeStatus>]) {
    let names: Vec<String> = places.iter().map(Place::name).collect();
    let width = names.iter().map(String::len).max().unwrap_or_default().max("NODE".len());
    let headings = COUNTS.iter().chain(&BYTES).map(|(heading, _)| format!("{heading:>9}"));
    println!("{:<width$} {}  DATASETS", "NODE", headings.collect::<Vec<_>>().join(" "));
    for (name, state) in names.iter().zip(states) {
        let status = match state {
            Ok(status) => status,
            Err(failure) => {
                complain!("saker: {failure}");
                continue;
            }
        };
        let count = |metric: &str| {
            let name = format!("saker_agent_{metric}");
            let found = status.counters.iter().find(|count| count.name == name);
            found.map_or(0, |count| count.value)
        };
        let counts = COUNTS.iter().map(|(_, metric)| count(metric).to_string());
        let bytes = BYTES.iter().map(|(_, metric)| format::bytes(count(metric)));
        let figures: Vec<String> = counts.chain(bytes).map(|text| format!("{text:>9}")).collect();
        let dataset = |dataset: &saker_agent_api::DatasetStatus| match dataset.complete {
            true => dataset.name.clone(),
            false => format!("{} (incomplete)", dataset.name),
        };
        let datasets: Vec<String> = status.datasets.iter().map(dataset).collect();
        println!("{name:<width$} {}  {}", figures.join(" "), datasets.join(" "));
    }
}
