//! `saker fs ls`.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use saker_client::DirItem;
use saker_types::wire::{At, Entry};
use saker_types::{Attr, FileKind};

use crate::fail::{Context, Outcome};
use crate::format::{self, Names};
use crate::session::{self, CliSession, ClusterArg, ClusterPath, each};

/// List directories, sorted by name.
#[derive(clap::Args)]
pub struct Args {
    /// Long: mode, links, owner, group, size, time of the last change.
    #[arg(short)]
    long: bool,
    /// The path itself, not what is in it.
    #[arg(short)]
    directory: bool,
    /// Sizes with units, as 1.5G.
    #[arg(short = 'H', long)]
    human: bool,
    /// What to list.
    #[arg(value_name = "PATH", default_value = "/")]
    paths: Vec<PathBuf>,
}

struct Printer<'a> {
    args: &'a Args,
    session: &'a CliSession,
    users: Names,
    groups: Names,
    out: BufWriter<std::io::Stdout>,
}

pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let (session, paths) = session::open(cluster, &args.paths)?;
    let (users, groups) = (Names::users(), Names::groups());
    let out = BufWriter::new(std::io::stdout());
    let mut printer = Printer { args, session: &session, users, groups, out };
    let many = paths.len() > 1;
    let code = each(&paths, |path| printer.list(path, many))?;
    printer.out.flush().about("standard output")?;
    Ok(code)
}

impl Printer<'_> {
    fn list(&mut self, path: &ClusterPath, many: bool) -> Outcome {
        let (_, entry) = self.session.find(path, !self.args.long)?;
        if self.args.directory || !entry.attr.is_dir() {
            let name = path.to_string().into_bytes();
            return self.line(&name, &entry.attr, Some(&entry)).about("standard output");
        }
        let items = self.read(path, &entry)?;
        if many {
            writeln!(self.out, "{path}:").about("standard output")?;
        }
        for item in items {
            let symlink = item.attr.kind() == FileKind::Symlink && self.args.long;
            let at = At::handle(item.loc.clone());
            let target = symlink
                .then(|| self.session.run(path, self.session.fs.readlink(&self.session.who, &at)))
                .transpose()?;
            let entry = target.map(|inline| Entry { inline, ..Entry::default() });
            self.line(&item.name, &item.attr, entry.as_ref()).about("standard output")?;
        }
        Ok(())
    }

    fn read(&self, path: &ClusterPath, dir: &Entry) -> Outcome<Vec<DirItem>> {
        let mut items = self.session.run(path, async {
            let mut stream = self.session.fs.readdir(&self.session.who, &dir.loc, 0);
            let mut items = Vec::new();
            while let Some(item) = stream.next().await? {
                items.push(item);
            }
            Ok(items)
        })?;
        items.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(items)
    }

    fn line(&mut self, name: &[u8], attr: &Attr, entry: Option<&Entry>) -> std::io::Result<()> {
        if self.args.long {
            let size = match self.args.human {
                true => format::bytes(attr.size),
                false => attr.size.to_string(),
            };
            write!(
                self.out,
                "{} {:>3} {:<8} {:<8} {size:>12} {} ",
                format::mode(attr.mode),
                attr.nlink,
                self.users.of(attr.uid),
                self.groups.of(attr.gid),
                format::time(attr.mtime_ns),
            )?;
        }
        self.out.write_all(name)?;
        if let Some(entry) = entry.filter(|_| attr.kind() == FileKind::Symlink && self.args.long) {
            self.out.write_all(b" -> ")?;
            self.out.write_all(&entry.inline)?;
        }
        self.out.write_all(b"\n")
    }
}
