//! `saker policy`: policies of directories (docs/policies.md).

mod clear;
mod explain;
mod get;
mod list;
mod merge;
mod reclaim;
mod set;
mod shown;
mod sync;
pub mod written;

use crate::fail::Outcome;
use crate::session::ClusterArg;

/// Choose how consistent and how durable the files below a directory are.
///
/// A policy is set on a directory, and is in force for all that is below, down to the next directory
/// with one of its own. Where none is set, each operation is seen by all, and on the servers' disks,
/// as soon as it is answered: strong/global.
///
/// A policy is a few keys. FILE has them in YAML or in JSON; those that are left out have their
/// defaults:
///
///   consistency: strong        when others see an operation: strong, weak, invisible
///   durability: global         what outlives which crash: global, local, none
///   interfere_policy: allow    while a client works there, others may too; block: EBUSY
///   allocated_inodes: 100      inode numbers that a client is given at a time
///   sync_interval: none        how often a client merges by itself: 500ms, 5s, 2m, 1h
///
/// consistency and durability may be compositions of mechanisms, too: + is "then", || "at the same
/// time", as in append_client_journal+local_persist+volatile_apply. `saker policy explain` says
/// what a policy promises, docs/policies.md has all of it.
///
/// The directory's owner and the superuser may set and clear policies. Everybody may look.
///
/// Examples:
///   saker policy set /scratch --durability none        faster; a loss of power may cost 50 ms
///   saker policy set /data policy.yaml
///   saker policy get /data > policy.yaml               what is in force, as `set` reads it
///   saker policy explain --file policy.yaml            before it is set
///   saker policy clear /scratch
///   saker policy list
///   saker policy merge --dry-run /mnt/data       what others have changed, too
///   saker policy sync /mnt/data                   what was done there is saved
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArg,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Set(set::Args),
    Get(get::Args),
    Clear(clear::Args),
    Explain(explain::Args),
    #[command(alias = "ls")]
    List(list::Args),
    Merge(merge::Args),
    Reclaim(reclaim::Args),
    Sync(sync::Args),
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<u8> {
    let cluster = &args.cluster;
    match &args.command {
        Command::Set(args) => set::run(cluster, args),
        Command::Get(args) => get::run(cluster, args),
        Command::Clear(args) => clear::run(cluster, args),
        Command::Explain(args) => explain::run(cluster, args),
        Command::List(args) => list::run(cluster, args),
        Command::Merge(args) => merge::run(args),
        Command::Reclaim(args) => reclaim::run(cluster, args),
        Command::Sync(args) => sync::run(args),
    }
}
