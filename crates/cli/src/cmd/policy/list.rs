//! `saker policy list`.

use saker_client::ClientOptions;
use saker_client::policies::SubtreePolicy;
use serde::Serialize;

use super::shown;
use crate::fail::{Context, Outcome};
use crate::session::{self, ClusterArg};

/// List all directories that have a policy, and who holds their subtrees.
///
/// Of a directory that is not at the top only the name is known: .../NAME. `saker policy get PATH` says
/// the path of the one that is in force at PATH.
#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Item {
    directory: String,
    inode: u64,
    parent: u64,
    id: String,
    cell: String,
    policy: shown::ShownKeys,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<shown::ShownHold>,
}

impl Item {
    fn of(found: &SubtreePolicy) -> Item {
        Item {
            directory: shown::place(&found.root),
            inode: found.root.id,
            parent: found.root.pid,
            id: shown::number(found.id),
            cell: found.policy.to_string(),
            policy: shown::ShownKeys::of(&found.policy),
            hold: found.hold.as_ref().map(shown::ShownHold::of),
        }
    }
}

/// Runs the command.
pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let name = cluster.name();
    let session = session::connect(&name, ClientOptions::default())?;
    let found = session.fs.block_on(session.fs.policies()).about(&name)?;
    if args.json {
        let items: Vec<Item> = found.iter().map(Item::of).collect();
        println!("{}", serde_json::to_string(&items).about("stdout")?);
        return Ok(0);
    }
    for found in &found {
        let held = found.hold.as_ref().map(|hold| format!("  held by {}", shown::held_by(hold)));
        let others = found.policy.interfere.name();
        let (cell, place) = (found.policy.to_string(), shown::place(&found.root));
        println!("{cell:<16} {others:<5}  {place}{}", held.unwrap_or_default());
    }
    Ok(0)
}
