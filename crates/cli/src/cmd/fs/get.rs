//! `saker fs get`: from the cluster to this machine.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, FileTimes, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use saker_client::OpenFlags;
use saker_types::time::unix;
use saker_types::wire::At;
use saker_types::{Attr, FileKind, InodeId, Locator, Stamp};

use super::keep::{HardLinks, get_xattrs};
use super::transfer::{Copy, PIECE, Pool, check_interrupt, shown};
use crate::fail::{Context, Failure, Outcome};
use crate::session::{self, ClusterArg, ClusterPath};
use crate::signals;
use crate::tree::{Met, walk};

/// Copy files of the cluster to this machine, many at once.
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
    #[arg(value_name = "PATH", required = true)]
    from: Vec<PathBuf>,
    /// Its name here, or the directory it goes into.
    #[arg(value_name = "LOCAL")]
    to: PathBuf,
}

/// A file or symbolic link to be copied.
struct Job {
    loc: Locator,
    attr: Attr,
    local: PathBuf,
}

pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    let (session, paths) = session::open(cluster, &args.from)?;
    let into_dir = args.to.is_dir();
    if paths.len() > 1 && !into_dir {
        return Err(Failure::usage(args.to.display(), saker_types::Errno::ENOTDIR));
    }
    signals::catch_interrupt();
    let copy = Copy::new(session, args.preserve);
    let worker = Arc::clone(&copy);
    let pool = Pool::start(move |job: Job| worker.note(get_one(&worker, &job)))?;
    let mut dirs = Vec::new();
    let mut links = HardLinks::new();
    for path in &paths {
        let mut get = || -> Outcome {
            let (_, entry) = copy.session.find(path, true)?;
            let name = OsStr::from_bytes(path.file_name());
            let local = if into_dir { args.to.join(name) } else { args.to.clone() };
            match (entry.attr.is_dir(), args.recursive) {
                (true, false) => Err(Failure::new(path, "is a directory (-r copies it)")),
                (true, true) => {
                    make_dir(&local, &entry.attr)?;
                    let loc = entry.loc.clone();
                    dirs.push(Dir { local: local.clone(), loc: entry.loc, attr: entry.attr });
                    get_tree(&copy, &pool, path, &loc, &local, &mut dirs, &mut links);
                    Ok(())
                }
                (false, _) => {
                    pool.send(Job { loc: entry.loc, attr: entry.attr, local });
                    Ok(())
                }
            }
        };
        get().unwrap_or_else(|failure| copy.note(Err(failure)));
    }
    pool.finish();
    for (first, other) in links.later() {
        copy.note(link(first, other));
    }
    if args.preserve {
        for dir in dirs.iter().rev() {
            preserve_dir(&copy, dir).unwrap_or_else(|failure| copy.note(Err(failure)));
        }
    }
    copy.end(args.to.display())
}

/// A directory that was made, whose times are set when nothing is made in it any more.
struct Dir {
    local: PathBuf,
    loc: Locator,
    attr: Attr,
}

fn get_tree(
    copy: &Copy,
    pool: &Pool<Job>,
    path: &ClusterPath,
    root: &Locator,
    local_root: &Path,
    dirs: &mut Vec<Dir>,
    links: &mut HardLinks<InodeId, PathBuf>,
) {
    let visit = |met: Met<'_>| match met {
        Met::Failed(path, error) => {
            copy.note(Err(Failure::new(String::from_utf8_lossy(path), error)));
            false
        }
        // Paths are relative: the walk begins with an empty one.
        Met::Entry(relative, item) => {
            let relative = relative.strip_prefix(b"/").unwrap_or(relative);
            let local = local_root.join(OsStr::from_bytes(relative));
            if !item.attr.is_dir() {
                let has_links = copy.preserve && item.loc.home_slot.is_some();
                if has_links && !links.meet(item.attr.id, &local) {
                    return true;
                }
                pool.send(Job { loc: item.loc.clone(), attr: item.attr.clone(), local });
                return true;
            }
            let made = make_dir(&local, &item.attr);
            let ok = made.is_ok();
            match made {
                Ok(()) => {
                    let (loc, attr) = (item.loc.clone(), item.attr.clone());
                    dirs.push(Dir { local, loc, attr });
                }
                Err(failure) => copy.note(Err(failure)),
            }
            ok
        }
    };
    let session = &copy.session;
    let ended = walk(&session.fs, &session.who, root, b"", visit);
    if !ended {
        copy.note(Err(Failure::new(path, "interrupted")));
    }
}

fn make_dir(local: &Path, attr: &Attr) -> Outcome {
    // We must be able to write into it, whatever its mode will be.
    let made = DirBuilder::new().mode((attr.mode & 0o777) | 0o700).create(local);
    match made {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && local.is_dir() => Ok(()),
        made => made.about(local.display()),
    }
}

fn get_one(copy: &Copy, job: &Job) -> Outcome {
    match job.attr.kind() {
        FileKind::Regular => get_file(copy, job),
        FileKind::Symlink => get_symlink(copy, job),
        FileKind::Directory
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => {
            let why = format!("a {} is not copied", crate::format::kind(&job.attr));
            Err(Failure::new(shown(&job.local), why))
        }
    }
}

fn get_symlink(copy: &Copy, job: &Job) -> Outcome {
    let (fs, who) = (&copy.session.fs, &copy.session.who);
    let target = fs.block_on(fs.readlink(who, &At::handle(job.loc.clone())));
    let target = target.about(shown(&job.local))?;
    let make = || std::os::unix::fs::symlink(OsStr::from_bytes(&target), &job.local);
    let made = match make() {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(&job.local).and_then(|()| make())
        }
        made => made,
    };
    made.about(shown(&job.local))
}

fn get_file(copy: &Copy, job: &Job) -> Outcome {
    let name = || shown(&job.local);
    let (fs, who) = (&copy.session.fs, &copy.session.who);
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    let at = At::handle(job.loc.clone());
    let (file, entry) = fs.block_on(fs.open(who, &at, flags)).about(name())?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(entry.attr.mode & 0o777);
    let copied = options.open(&job.local).about(name()).and_then(|mut local| {
        read_all(copy, &file, &mut local, &name)?;
        if !copy.preserve {
            return Ok(());
        }
        get_xattrs(copy, &at, &local, &name())?;
        preserve(&local, &entry.attr).about(name())
    });
    fs.block_on(file.release());
    copied
}

fn read_all(
    copy: &Copy,
    file: &saker_client::File,
    local: &mut File,
    name: &dyn Fn() -> String,
) -> Outcome {
    let mut offset = 0;
    loop {
        check_interrupt(&name())?;
        let piece = copy.session.fs.block_on(file.read(offset, PIECE)).about(name())?;
        local.write_all(&piece).about(name())?;
        copy.progress.add(piece.len() as u64);
        offset += piece.len() as u64;
        // Short only at the end of the file.
        if piece.len() < PIECE {
            return Ok(());
        }
    }
}

/// A time of the cluster as the standard library wants it.
fn system_time(stamp: Stamp) -> SystemTime {
    let (seconds, ns) = unix(stamp);
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start = SystemTime::UNIX_EPOCH;
    (if seconds < 0 { start - whole } else { start + whole }) + Duration::from_nanos(ns.into())
}

fn preserve(local: &File, attr: &Attr) -> std::io::Result<()> {
    local.set_permissions(Permissions::from_mode(attr.mode & 0o7777))?;
    let times = FileTimes::new();
    let times = times.set_accessed(system_time(attr.atime_ns));
    local.set_times(times.set_modified(system_time(attr.mtime_ns)))
}

fn preserve_dir(copy: &Copy, dir: &Dir) -> Outcome {
    let name = shown(&dir.local);
    let local = File::open(&dir.local).about(&name)?;
    get_xattrs(copy, &At::handle(dir.loc.clone()), &local, &name)?;
    preserve(&local, &dir.attr).about(&name)
}

/// Makes a link here, in place of what is there.
fn link(first: &Path, other: &Path) -> Outcome {
    let make = || std::fs::hard_link(first, other);
    let made = match make() {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(other).and_then(|()| make())
        }
        made => made,
    };
    made.about(other.display())
}

#[cfg(test)]
mod tests {
    use saker_types::time::stamp_of_unix_ns;

    use super::*;

    #[test]
    fn times_before_1970_are_kept() {
        let before = SystemTime::UNIX_EPOCH - Duration::from_nanos(1_500_000_000);
        assert_eq!(system_time(stamp_of_unix_ns(-1_500_000_000)), before);
        assert_eq!(system_time(stamp_of_unix_ns(0)), SystemTime::UNIX_EPOCH);
    }
}
