//! Packs a directory and lays it out as it is staged on one node: for tries and measurements.
//!
//! `stage DIRECTORY AGENT_DIR NAME@VERSION [CODEC [PARTITIONS]]`

use std::path::{Path, PathBuf};

use saker_dataset::pack::{LocalTree, Options, Plan, Progress, pack};
use saker_dataset::{Manifest, Stage};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, agent, name, rest @ ..] = &args[..] else {
        return Err("stage DIRECTORY AGENT_DIR NAME@VERSION [CODEC [PARTITIONS]]".into());
    };
    let codec = rest.first().map_or(Ok(Default::default()), |codec| codec.parse())?;
    let partitions = rest.get(1).map_or(Ok(2), |n| n.parse())?;
    let options = Options { partitions, codec, ..Options::default() };
    let dir = stage(Path::new(from), Path::new(agent), name, &options)?;
    println!("{}", dir.display());
    Ok(())
}

fn stage(from: &Path, agent: &Path, name: &str, options: &Options) -> Result<PathBuf> {
    let source = LocalTree::new(from);
    let dir = agent.join(saker_agent_api::DATASETS).join(name);
    let plan = Plan::of(&source)?;
    let manifest: Manifest = pack(&source, &plan, &dir, options, &Progress::default())?;
    let stage = Stage {
        format: Stage::FORMAT,
        name: name.to_owned(),
        digest: manifest.digest,
        table_digest: manifest.table_digest,
        partitions: options.partitions,
        nodes: vec!["localhost:7460".to_owned()],
        replicas: 1,
        broadcast: Vec::new(),
        origin: from.display().to_string(),
    };
    stage.write(&dir)?;
    Ok(dir)
}
