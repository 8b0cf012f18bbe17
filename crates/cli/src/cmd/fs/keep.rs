//! What `-p` keeps besides permissions and times: extended attributes and hard links.

use std::collections::HashMap;
use std::fs::File;
use std::hash::Hash;

use rustix::io::Errno as Os;
use saker_types::wire::At;
use saker_types::{Errno, limits};

use super::transfer::Copy;
use crate::fail::{Context, Outcome};

/// Names of one file, of which the first is copied and the others are made links to it.
pub struct HardLinks<K, N> {
    first: HashMap<K, N>,
    /// Links to be made when all files are copied: the first name, and the other.
    later: Vec<(N, N)>,
}

impl<K: Hash + Eq, N: Clone> HardLinks<K, N> {
    /// None met yet.
    pub fn new() -> HardLinks<K, N> {
        HardLinks { first: HashMap::new(), later: Vec::new() }
    }

    /// A name of a file that has several; true: it is the first, to be copied.
    pub fn meet(&mut self, key: K, name: &N) -> bool {
        match self.first.get(&key) {
            Some(first) => {
                self.later.push((first.clone(), name.clone()));
                false
            }
            None => {
                self.first.insert(key, name.clone());
                true
            }
        }
    }

    /// The links to be made.
    pub fn later(&self) -> &[(N, N)] {
        &self.later
    }
}

/// Makes a link in the cluster, in place of what is there.
pub fn link(copy: &Copy, first: &At, other: &At, shown: &str) -> Outcome {
    let (fs, who) = (&copy.session.fs, &copy.session.who);
    let made = fs.block_on(async {
        match fs.link(who, first, other).await {
            Err(error) if error.errno() == Errno::EEXIST => {
                fs.unlink(who, other).await?;
                fs.link(who, first, other).await
            }
            made => made,
        }
    });
    made.map(drop).about(shown)
}

/// Calls one of the system's functions that fill a buffer.
fn filled(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; limits::XATTRS_BYTES_MAX];
    let len = call(&mut buffer)?;
    buffer.truncate(len);
    Ok(buffer)
}

/// Gives a file or directory of the cluster the extended attributes of a local one. Those that
/// one of the two does not have (other systems', or the superuser's) are left out.
pub fn put_xattrs(copy: &Copy, local: &File, at: &At, shown: &str) -> Outcome {
    let (fs, who) = (&copy.session.fs, &copy.session.who);
    let names = match filled(|buffer| rustix::fs::flistxattr(local, buffer)) {
        Err(Os::NOTSUP) => return Ok(()),
        names => names.about(shown)?,
    };
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let value = match filled(|buffer| rustix::fs::fgetxattr(local, name, buffer)) {
            Err(Os::NODATA | Os::ACCESS | Os::PERM) => continue,
            value => value.about(shown)?,
        };
        match fs.block_on(fs.setxattr(who, at, name, &value, 0)) {
            Err(error) if matches!(error.errno(), Errno::EOPNOTSUPP | Errno::EPERM) => {}
            set => set.about(shown)?,
        }
    }
    Ok(())
}

/// Gives a local file or directory the extended attributes of one of the cluster; the same are
/// left out.
pub fn get_xattrs(copy: &Copy, at: &At, local: &File, shown: &str) -> Outcome {
    let (fs, who) = (&copy.session.fs, &copy.session.who);
    let names = fs.block_on(fs.listxattr(who, at)).about(shown)?;
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let value = match fs.block_on(fs.getxattr(who, at, name)) {
            Err(error) if matches!(error.errno(), Errno::ENODATA | Errno::EACCES) => continue,
            value => value.about(shown)?,
        };
        let flags = rustix::fs::XattrFlags::empty();
        match rustix::fs::fsetxattr(local, name, &value, flags) {
            Err(Os::NOTSUP | Os::PERM) => {}
            set => set.about(shown)?,
        }
    }
    Ok(())
}
