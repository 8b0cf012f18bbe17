//! `saker fs ln`.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::fail::{Failure, Outcome};
use crate::session::{self, ClusterArg};

/// Give a file another name, or make a symbolic link.
#[derive(clap::Args)]
pub struct Args {
    /// A symbolic link; TARGET is stored as it is written.
    #[arg(short)]
    symbolic: bool,
    /// The file, or what the symbolic link shall say.
    target: PathBuf,
    /// The new name.
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

pub fn run(cluster: &ClusterArg, args: &Args) -> Outcome<u8> {
    if args.symbolic {
        let (session, paths) = session::open(cluster, std::slice::from_ref(&args.path))?;
        for path in &paths {
            let name = args.target.file_name().map_or(&b""[..], |name| name.as_bytes());
            let path = super::destination(&session, path, name)?;
            let (at, entry) = session.look(&path, false)?;
            if entry.is_some() {
                return Err(Failure::new(path, saker_types::Errno::EEXIST));
            }
            let target = args.target.as_os_str().as_bytes();
            session.run(&path, session.fs.symlink(&session.who, &at, target))?;
        }
        return Ok(0);
    }
    let (session, paths) = session::open(cluster, &[args.target.clone(), args.path.clone()])?;
    let [target, path] = paths.as_slice() else { return Ok(0) };
    let (from, _) = session.find(target, false)?;
    let path = super::destination(&session, path, target.file_name())?;
    let (to, _) = session.look(&path, false)?;
    session.run(&path, session.fs.link(&session.who, &from, &to))?;
    Ok(0)
}
