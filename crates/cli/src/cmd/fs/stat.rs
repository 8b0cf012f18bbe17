//! `saker fs stat`.

use std::path::PathBuf;

use saker_types::limits::CHUNK_BYTES;
use saker_types::wire::Entry;

use crate::fail::Outcome;
use crate::format::{self, Names};
use crate::session::{self, CliSession, ClusterArg, ClusterPath, each};

/// Show attributes, and where metadata and data are.
#[derive(clap::Args)]
pub struct Args {
    /// Of what a symbolic link points to, not of the link.
    #[arg(short = 'L')]
    follow: bool,
    #[allow(missing_docs)]
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let (session, paths) = session::open(cluster, &args.paths)?;
    each(&paths, |path| {
        let (at, _) = session.find(path, args.follow)?;
        let entry = session.run(path, session.fs.getattr(&session.who, &at))?;
        print(&session, path, &entry);
        Ok(())
    })
}

fn print(session: &CliSession, path: &ClusterPath, entry: &Entry) {
    let attr = &entry.attr;
    println!("  File: {path}");
    println!("  Size: {:<14} {:<18} Inode: {}", attr.size, format::kind(attr), attr.id);
    println!(
        "Access: ({:04o}/{})  Uid: ({}/{})  Gid: ({}/{})  Links: {}",
        attr.mode & 0o7777,
        format::mode(attr.mode),
        attr.uid,
        Names::users().of(attr.uid),
        attr.gid,
        Names::groups().of(attr.gid),
        attr.nlink
    );
    println!("Access: {}", format::time(attr.atime_ns));
    println!("Modify: {}", format::time(attr.mtime_ns));
    println!("Change: {}", format::time(attr.ctime_ns));
    println!(" Birth: {}", format::time(attr.btime_ns));
    println!(" Owner: {}", owner(session, entry));
    if attr.kind() == saker_types::FileKind::Regular {
        println!("  Data: {}", data(session, entry));
    }
}

/// The shard that owns the inode.
fn owner(session: &CliSession, entry: &Entry) -> String {
    let map = session.fs.map();
    let shard = map.shard_of_slot(map.slot_at(&entry.loc));
    let info = map.shards.get(usize::from(shard));
    let mnode = info.map_or("?".to_owned(), |info| info.mnode.to_string());
    format!("mnode {mnode}, shard {shard}")
}

/// Where the bytes are.
fn data(session: &CliSession, entry: &Entry) -> String {
    if !entry.attr.chunked {
        return "in the inode row".to_owned();
    }
    let map = session.fs.map();
    let chunks = entry.attr.size.div_ceil(CHUNK_BYTES);
    let first = map.stores_of_chunk(entry.attr.id, 0);
    format!("{chunks} chunks of {} on stores, the first on {first:?}", format::bytes(CHUNK_BYTES))
}
