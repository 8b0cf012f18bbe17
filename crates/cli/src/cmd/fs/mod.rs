//! `saker fs`: files and directories without a mount, through LibFS.

mod cat;
mod du;
mod find;
mod get;
mod keep;
mod ln;
mod ls;
mod mkdir;
mod mv;
mod put;
mod rm;
mod stat;
mod transfer;
mod xattr;

pub use rm::remove_tree;

use crate::fail::Outcome;
use crate::session::{CliSession, ClusterArg, ClusterPath};

/// Work with files and directories, without a mount.
///
/// PATH is a path in the cluster. A path below a Saker mount of this machine is translated, and
/// names its cluster, too.
///
/// Examples:
///   saker fs put -r ./images /data/train       many files at once
///   saker fs ls -l /data
///   saker fs get -rp /data/train ./back        with modes and times
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
    Ls(ls::Args),
    Stat(stat::Args),
    Cat(cat::Args),
    Put(put::Args),
    Get(get::Args),
    Mkdir(mkdir::Args),
    Mv(mv::Args),
    Ln(ln::Args),
    Rm(rm::Args),
    Du(du::Args),
    Find(find::Args),
    Setfattr(xattr::SetArgs),
    Getfattr(xattr::GetArgs),
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<u8> {
    let cluster = &args.cluster;
    match &args.command {
        Command::Ls(args) => ls::run(cluster, args),
        Command::Stat(args) => stat::run(cluster, args),
        Command::Cat(args) => cat::run(cluster, args),
        Command::Put(args) => put::run(cluster, args),
        Command::Get(args) => get::run(cluster, args),
        Command::Mkdir(args) => mkdir::run(cluster, args),
        Command::Mv(args) => mv::run(cluster, args),
        Command::Ln(args) => ln::run(cluster, args),
        Command::Rm(args) => rm::run(cluster, args),
        Command::Du(args) => du::run(cluster, args),
        Command::Find(args) => find::run(cluster, args),
        Command::Setfattr(args) => xattr::set(cluster, args),
        Command::Getfattr(args) => xattr::get(cluster, args),
    }
}

/// Where something goes that is called `name`: into `to` if that is a directory, else as `to`.
fn destination(session: &CliSession, to: &ClusterPath, name: &[u8]) -> Outcome<ClusterPath> {
    let (_, entry) = session.look(to, true)?;
    let into = entry.is_some_and(|entry| entry.attr.is_dir());
    Ok(if into { to.join(name) } else { to.clone() })
}
