//! `saker fs put`: from this machine into the cluster.

use std::fs::{DirEntry, File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use saker_client::{Caller, OpenFlags, SetAttr, SetTime};
use saker_types::time::stamp;
use saker_types::wire::At;
use saker_types::{Errno, FileKind, Locator};

use super::keep::{self, HardLinks};
use super::transfer::{Copy, PIECE, Pool, check_interrupt, local_name, shown};
use crate::fail::{Context, Failure, Outcome};
use crate::session::{self, ClusterArg, ClusterPath};
use crate::signals;

/// Copy local files into the cluster, many at once.
///
/// Symbolic links below a directory are copied as links. Existing files are replaced.
#[derive(clap::Args)]
pub struct Args {
    /// Directories with all that is in them.
    #[arg(short, long)]
    recursive: bool,
    /// Keep permissions, times, extended attributes and hard links.
    #[arg(short, long)]
    preserve: bool,
    /// What to copy.
    #[arg(value_name = "LOCAL", required = true)]
    from: Vec<PathBuf>,
    /// Its name in the cluster, or the directory it goes into.
    #[arg(value_name = "PATH")]
    to: PathBuf,
}

/// A file to be copied.
#[derive(Clone)]
struct Job {
    local: PathBuf,
    at: At,
}

pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let (session, to) = session::open(cluster, std::slice::from_ref(&args.to))?;
    let Some(to) = to.into_iter().next() else { return Ok(0) };
    signals::catch_interrupt();
    let copy = Copy::new(session, args.preserve);
    let worker = Arc::clone(&copy);
    let pool = Pool::start(move |job: Job| worker.note(put_file(&worker, &job)))?;
    let is_dir = |path: &ClusterPath| {
        Ok(copy.session.look(path, true)?.1.is_some_and(|entry| entry.attr.is_dir()))
    };
    let into_dir = is_dir(&to)?;
    if args.from.len() > 1 && !into_dir {
        return Err(Failure::usage(&to, Errno::ENOTDIR));
    }
    let mut dirs = Vec::new();
    let mut links = HardLinks::new();
    for local in &args.from {
        let mut put = || -> Outcome {
            let meta = std::fs::metadata(local).about(local.display())?;
            let to = if into_dir { to.join(local_name(local)?.as_bytes()) } else { to.clone() };
            match (meta.is_dir(), args.recursive) {
                (true, false) => {
                    Err(Failure::new(local.display(), "is a directory (-r copies it)"))
                }
                (true, true) => put_tree(&copy, &pool, local, &to, &mut dirs, &mut links),
                (false, _) => {
                    let (at, _) = copy.session.look(&to, true)?;
                    pool.send(Job { local: local.clone(), at });
                    Ok(())
                }
            }
        };
        put().unwrap_or_else(|failure| copy.note(Err(failure)));
    }
    pool.finish();
    for (first, other) in links.later() {
        copy.note(keep::link(&copy, &first.at, &other.at, &shown(&other.local)));
    }
    set_times(&copy, &dirs);
    copy.end(&to)
}

/// A directory whose times are set when nothing is made in it any more.
struct Dir {
    loc: Locator,
    local: PathBuf,
    meta: Metadata,
}

fn put_tree(
    copy: &Copy,
    pool: &Pool<Job>,
    local: &Path,
    to: &ClusterPath,
    dirs: &mut Vec<Dir>,
    links: &mut HardLinks<(u64, u64), Job>,
) -> Outcome {
    let (at, _) = copy.session.look(to, true)?;
    let mut stack = vec![(local.to_owned(), at)];
    while let Some((local, at)) = stack.pop() {
        check_interrupt(&local.display())?;
        let dir = match put_dir(copy, &local, &at) {
            Ok(dir) => dir,
            Err(failure) => {
                copy.note(Err(failure));
                continue;
            }
        };
        for entry in std::fs::read_dir(&local).about(local.display())? {
            let entry = entry.about(local.display())?;
            let path = entry.path();
            let at = At::child(dir.loc.clone(), entry.file_name().as_bytes());
            let kind = entry.file_type().about(path.display())?;
            if kind.is_dir() {
                stack.push((path, at));
            } else if kind.is_file() {
                let job = Job { local: path, at };
                if !copy.preserve || is_first(&entry, &job, links)? {
                    pool.send(job);
                }
            } else if kind.is_symlink() {
                copy.note(put_symlink(copy, &path, &at));
            } else {
                copy.note(put_special(copy, &path, &at));
            }
        }
        if copy.preserve {
            dirs.push(dir);
        }
    }
    Ok(())
}

/// Is it the only name of its file, or the first that is met?
fn is_first(entry: &DirEntry, job: &Job, links: &mut HardLinks<(u64, u64), Job>) -> Outcome<bool> {
    let meta = entry.metadata().about(job.local.display())?;
    Ok(meta.nlink() == 1 || links.meet((meta.dev(), meta.ino()), job))
}

/// Makes the directory; one that is there is used.
fn put_dir(copy: &Copy, local: &Path, at: &At) -> Outcome<Dir> {
    let meta = std::fs::metadata(local).about(local.display())?;
    // We must be able to write into it, whatever its mode will be.
    let (fs, who) = (&copy.session.fs, &copy.session.who);
    let who = &Caller { umask: who.umask & 0o077, ..who.clone() };
    let mode = FileKind::Directory.bits() | (meta.mode() & 0o777) | 0o700;
    let made = fs.block_on(async {
        match fs.mkdir(who, at, mode).await {
            Err(error) if error.errno() == Errno::EEXIST => fs.lookup(who, at).await,
            made => made,
        }
    });
    let entry = made.about(local.display())?;
    if !entry.attr.is_dir() {
        return Err(Failure::new(local.display(), "a file of that name is in the cluster"));
    }
    Ok(Dir { loc: entry.loc, local: local.to_owned(), meta })
}

fn put_symlink(copy: &Copy, local: &Path, at: &At) -> Outcome {
    let (fs, who) = (&copy.session.fs, &copy.session.who);
    let target = std::fs::read_link(local).about(local.display())?;
    let target = target.as_os_str().as_bytes();
    let made = fs.block_on(async {
        match fs.symlink(who, at, target).await {
            Err(error) if error.errno() == Errno::EEXIST => {
                fs.unlink(who, at).await?;
                fs.symlink(who, at, target).await
            }
            made => made,
        }
    });
    made.map(drop).about(local.display())
}

/// A FIFO or device; sockets mean nothing without the process that made them.
fn put_special(copy: &Copy, local: &Path, at: &At) -> Outcome {
    let meta = std::fs::symlink_metadata(local).about(local.display())?;
    if FileKind::of_mode(meta.mode()) == Some(FileKind::Socket) {
        return Err(Failure::new(local.display(), "a socket is not copied"));
    }
    let (fs, who) = (&copy.session.fs, &copy.session.who);
    let made = fs.mknod(who, at, meta.mode(), meta.rdev() as u32);
    fs.block_on(made).map(drop).about(local.display())
}

fn put_file(copy: &Copy, job: &Job) -> Outcome {
    let name = || shown(&job.local);
    let (fs, who) = (&copy.session.fs, &copy.session.who);
    let mut local = File::open(&job.local).about(name())?;
    let meta = local.metadata().about(name())?;
    let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
    let mode = FileKind::Regular.bits() | (meta.mode() & 0o777);
    let (file, entry) = fs.block_on(fs.create(who, &job.at, mode, flags)).about(name())?;
    let written = write_all(copy, &mut local, &file, &meta, &name);
    fs.block_on(file.release());
    written?;
    if copy.preserve {
        let change = SetAttr { mode: Some(meta.mode() & 0o7777), ..times(&meta) };
        let at = At::handle(entry.loc);
        keep::put_xattrs(copy, &local, &at, &name())?;
        fs.block_on(fs.setattr(who, &at, &change)).map(drop).about(name())?;
    }
    Ok(())
}

fn write_all(
    copy: &Copy,
    local: &mut File,
    file: &saker_client::File,
    meta: &Metadata,
    name: &dyn Fn() -> String,
) -> Outcome {
    let fs = &copy.session.fs;
    let size = usize::try_from(meta.len()).unwrap_or(PIECE);
    // One byte more than a small file has: then the first read shows its end.
    let mut buffer = vec![0; size.saturating_add(1).min(PIECE)];
    let mut offset = 0;
    loop {
        check_interrupt(&name())?;
        let n = read_full(local, &mut buffer).about(name())?;
        if n > 0 {
            fs.block_on(file.write(offset, &buffer[..n])).about(name())?;
            copy.progress.add(n as u64);
        }
        offset += n as u64;
        if n < buffer.len() {
            return fs.block_on(file.flush()).about(name());
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

fn times(meta: &Metadata) -> SetAttr {
    let at = |seconds, ns: i64| Some(SetTime::At(stamp(seconds, ns as u32)));
    SetAttr {
        atime: at(meta.atime(), meta.atime_nsec()),
        mtime: at(meta.mtime(), meta.mtime_nsec()),
        ..SetAttr::default()
    }
}

/// From the leaves to the root, because a change of mode may close the way down.
fn set_times(copy: &Copy, dirs: &[Dir]) {
    let (fs, who) = (&copy.session.fs, &copy.session.who);
    for dir in dirs.iter().rev() {
        let change = SetAttr { mode: Some(dir.meta.mode() & 0o7777), ..times(&dir.meta) };
        let at = At::handle(dir.loc.clone());
        let set = || -> Outcome {
            let local = File::open(&dir.local).about(dir.local.display())?;
            keep::put_xattrs(copy, &local, &at, &shown(&dir.local))?;
            fs.block_on(fs.setattr(who, &at, &change)).map(drop).about(dir.local.display())
        };
        if let Err(failure) = set() {
            copy.note(Err(failure));
        }
    }
}
