//! `saker dataset list`: what is in a dataset.

use std::io::Write;

use saker_types::FileKind;
use saker_types::time::stamp;
use serde::Serialize;

use super::{Packed, shown};
use crate::fail::{Context, Outcome};
use crate::format;

/// List the files of a dataset.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    dataset: Packed,
    /// Also permissions, owner, size and time, as ls -l.
    #[arg(short, long)]
    long: bool,
    /// Paths end with a zero byte, for `xargs -0`.
    #[arg(short = '0', long, conflicts_with_all = ["long", "json"])]
    null: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Item {
    path: String,
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    size: u64,
    mtime: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stored: Option<u64>,
}

pub fn run(args: &Args) -> Outcome<u8> {
    let dataset = args.dataset.open()?;
    let table = dataset.table();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let (mut items, mut outcome) = (Vec::new(), Ok(()));
    let (users, groups) = (format::Names::users(), format::Names::groups());
    dataset.each(|path, ino| {
        let inode = table.inode(ino);
        let target = table.target(ino).map(|target| shown(target).to_string());
        if args.json {
            let data = inode.data();
            items.push(Item {
                path: shown(path).to_string(),
                mode: inode.mode,
                uid: inode.uid,
                gid: inode.gid,
                nlink: inode.nlink,
                size: inode.size,
                mtime: inode.mtime_s as f64 + f64::from(inode.mtime_ns) / 1e9,
                target,
                digest: data.and_then(|_| table.digest(ino)).map(|digest| digest.to_string()),
                partition: data.map(|data| data.partition),
                stored: data.map(|data| data.stored),
            });
            return;
        }
        let put = |out: &mut dyn Write| {
            if args.long {
                let size = if inode.kind() == FileKind::Regular { inode.size } else { 0 };
                let time = format::time(stamp(inode.mtime_s, inode.mtime_ns));
                let [mode, user, group] =
                    [format::mode(inode.mode), users.of(inode.uid), groups.of(inode.gid)];
                write!(out, "{mode} {:>3} {user:<8} {group:<8} {size:>12} {time} ", inode.nlink)?;
            }
            out.write_all(path)?;
            if let (true, Some(target)) = (args.long, &target) {
                write!(out, " -> {target}")?;
            }
            out.write_all(if args.null { b"\0" } else { b"\n" })
        };
        if outcome.is_ok() {
            outcome = put(&mut out);
        }
    });
    outcome.about("stdout")?;
    if args.json {
        serde_json::to_writer(&mut out, &items).about("stdout")?;
        writeln!(out).about("stdout")?;
    }
    out.flush().about("stdout")?;
    Ok(0)
}
