//! `saker fs find`.

use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::ValueEnum;
use saker_types::{Attr, FileKind};

use crate::fail::{Context, Failure, Outcome};
use crate::session::{self, CliSession, ClusterArg, ClusterPath, each};
use crate::signals;
use crate::tree::{Met, walk};

/// Print the paths of what is below a directory, in no particular order.
#[derive(clap::Args)]
pub struct Args {
    /// Only names that match; * and ? are wildcards.
    #[arg(long, value_name = "PATTERN")]
    name: Option<OsString>,
    /// Only entries of this type.
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    kind: Option<Kind>,
    /// End each path with a NUL instead of a newline.
    #[arg(long)]
    print0: bool,
    /// Where to begin.
    #[arg(value_name = "PATH", default_value = "/")]
    paths: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Regular files.
    F,
    /// Directories.
    D,
    /// Symbolic links.
    L,
}

pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let (session, paths) = session::open(cluster, &args.paths)?;
    signals::catch_interrupt();
    each(&paths, |path| find(&session, path, args))
}

fn find(session: &CliSession, path: &ClusterPath, args: &Args) -> Outcome {
    let (_, entry) = session.find(path, false)?;
    let mut out = BufWriter::new(std::io::stdout());
    let mut written: std::io::Result<()> = Ok(());
    let mut failures = 0;
    let mut print = |path: &[u8], name: &[u8], attr: &Attr| {
        if written.is_ok() && wanted(args, name, attr) {
            let end: &[u8] = if args.print0 { b"\0" } else { b"\n" };
            written = out.write_all(path).and_then(|()| out.write_all(end));
        }
        written.is_ok()
    };
    let shown = path.to_string().into_bytes();
    print(&shown, path.file_name(), &entry.attr);
    let visit = |met: Met<'_>| match met {
        Met::Entry(path, item) => print(path, &item.name, &item.attr),
        Met::Failed(path, error) => {
            failures += 1;
            crate::complain!("saker: {}: {error}", String::from_utf8_lossy(path));
            false
        }
    };
    let ended = !entry.attr.is_dir() || walk(&session.fs, &session.who, &entry.loc, &shown, visit);
    written.and_then(|()| out.flush()).about("standard output")?;
    match (ended, failures) {
        (false, _) => Err(Failure::new(path, "interrupted")),
        (true, 0) => Ok(()),
        (true, n) => Err(Failure::new(path, format!("{n} directories could not be read"))),
    }
}

fn wanted(args: &Args, name: &[u8], attr: &Attr) -> bool {
    let kind = match args.kind {
        None => true,
        Some(Kind::F) => attr.kind() == FileKind::Regular,
        Some(Kind::D) => attr.kind() == FileKind::Directory,
        Some(Kind::L) => attr.kind() == FileKind::Symlink,
    };
    kind && args.name.as_ref().is_none_or(|pattern| matches(pattern.as_bytes(), name))
}

/// Does `name` match a pattern in which `*` stands for anything and `?` for one byte?
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    // The last star, and how much of the name it stands for, to come back to.
    let mut star: Option<(usize, usize)> = None;
    let (mut p, mut n) = (0, 0);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*.jpg", "a.jpg", true),
            ("*.jpg", "a.jpg.png", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?x", "yx", true),
            ("?x", "x", false),
            ("abc", "abc", true),
            ("abc", "abcd", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
