//! `saker dataset unstage`: a staged dataset off the nodes.

use std::path::Path;

use saker_agent_api::{Ask, Named};
use saker_dataset::Stage;

use super::job::agents::{AgentArgs, Place};
use super::job::nodes;
use crate::complain;
use crate::fail::{Context, FAILED, Outcome};

/// Remove a staged dataset from the nodes of a job.
///
/// Without --nodes, from those that it was staged on, as this machine's agent knows them. Processes
/// that have files of it open go on reading them. Output files stay on the nodes' disks.
#[derive(clap::Args)]
pub struct Args {
    /// The staged dataset.
    #[arg(value_name = "NAME@VERSION")]
    name: String,
    /// Nodes, as for `saker dataset stage`.
    #[arg(long, value_name = "LIST")]
    nodes: Option<String>,
    #[command(flatten)]
    agent: AgentArgs,
    /// From this machine only.
    #[arg(long, conflicts_with = "nodes")]
    here: bool,
    /// Remove the output files, too. With --nodes or --here also after it was unstaged.
    #[arg(long)]
    outputs: bool,
}

pub fn run(args: &Args) -> Outcome<u8> {
    let agents = args.agent.agents()?;
    let named = || Named { dataset: args.name.clone() };
    let here = Place::Dir(args.agent.dir()?);
    let places = match (&args.nodes, args.here) {
        (Some(list), _) => nodes::parse(list)?.into_iter().map(Place::Node).collect(),
        (None, true) => vec![here],
        (None, false) => {
            let layout = agents.ask(&here, Ask::Layout(named())).about(here.name())?;
            let stage = Stage::parse(&layout.data, Path::new(&args.name)).about(here.name())?;
            stage.nodes.into_iter().map(Place::Node).collect::<Vec<_>>()
        }
    };
    let ask = |_| if args.outputs { Ask::RemoveOutputs(named()) } else { Ask::Unstage(named()) };
    let mut code = 0;
    for (reply, place) in agents.ask_all(&places, ask).into_iter().zip(&places) {
        match reply {
            Ok(reply) => {
                if let Some(kept) = reply.kept {
                    println!("{}: {} output files stay in {}", place.name(), kept.files, kept.dir);
                }
            }
            Err(failure) => {
                complain!("saker: {failure}");
                code = FAILED;
            }
        }
    }
    Ok(code)
}
