//! `saker dataset frozen`, `remove`, `gc`: the datasets that the cluster keeps.

use saker_types::time::stamp;

use super::waits_for;
use crate::fail::{Context, Outcome};
use crate::session::{self, ClusterArg};
use crate::{format, signals};

/// List the frozen datasets of a cluster.
#[derive(clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    cluster: ClusterArg,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Remove frozen datasets by their names.
///
/// Only the user that froze one, and the superuser, may do that. A link that was made by freeze --at
/// is removed, too, if it still leads there. The space comes back with the
/// next saker dataset gc.
#[derive(clap::Args)]
pub struct RemoveArgs {
    #[command(flatten)]
    cluster: ClusterArg,
    /// NAME@VERSION.
    #[arg(value_name = "NAME@VERSION", required = true)]
    names: Vec<String>,
}

/// Remove what no frozen dataset has any more.
///
/// Waits while others freeze, who store what has no name yet.
#[derive(clap::Args)]
pub struct GcArgs {
    #[command(flatten)]
    cluster: ClusterArg,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

pub fn list(args: &ListArgs) -> Outcome<u8> {
    let cluster = args.cluster.name();
    let session = session::connect(&cluster, Default::default())?;
    let all = session.fs.block_on(session.fs.datasets().list()).about(&cluster)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&all).about("json")?);
        return Ok(0);
    }
    for frozen in all {
        let manifest = &frozen.manifest;
        let at = frozen.at.map_or_else(String::new, |path| format!("  {path}"));
        println!(
            "{:<32} {:>10} files {:>10} {:>6} partitions  {}  {}{at}",
            frozen.name,
            manifest.files,
            format::bytes(manifest.bytes).to_string(),
            manifest.partitions.len(),
            format::time(stamp(frozen.frozen_at as i64, 0)),
            manifest.digest,
        );
    }
    Ok(0)
}

pub fn remove(args: &RemoveArgs) -> Outcome<u8> {
    let session = session::connect(&args.cluster.name(), Default::default())?;
    session::each(&args.names, |name| {
        session.fs.block_on(session.fs.datasets().remove(&session.who, name)).about(name)
    })
}

pub fn collect(args: &GcArgs) -> Outcome<u8> {
    let cluster = args.cluster.name();
    let session = session::connect(&cluster, Default::default())?;
    signals::catch_interrupt();
    let waits = waits_for("saker dataset freeze");
    let collected = session.fs.block_on(session.fs.datasets().collect(waits)).about(&cluster)?;
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&collected).about("json")?),
        false => {
            let bytes = format::bytes(collected.bytes);
            println!("{} tables and partitions removed, {bytes}", collected.objects);
        }
    }
    Ok(0)
}
