//! The directory of this machine in which journals of decoupled subtrees are kept (Cudele section 3.1,
//! "Local Persist").
//!
//! ```text
//! cluster            the cluster's uuid, in hexadecimal
//! holder             the number by which whoever uses this directory holds subtrees, in hexadecimal
//! POLICY/            private servers of a subtree, by the number of its policy, in hexadecimal
//! POLICY/hold        the epoch in which its hold began, in hexadecimal
//! POLICY.old-N/      what was kept of a hold that has ended
//! ```
//!
//! So a client that is started again with the directory goes on with what the one before it held. What is
//! kept of a hold that has ended since, by a merge or by `saker policy reclaim`, must not be merged again
//! into what there is by then: it is set aside when the subtree is held anew.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use saker_runtime::fs::{Dir, RealDir, read_all, replace};
use saker_runtime::{rand, time};
use saker_types::id::hex;
use saker_types::{Errno, Error, Result};

/// A client that was killed has the directory until its process has gone.
const TAKEN_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

const CLUSTER: &str = "cluster";
const HOLDER: &str = "holder";
/// What the name of a journal ends with that is being removed.
const GONE: &str = "gone";
const HOLDER_NEW: &str = "holder.new";
const HOLD: &str = "hold";

/// An open directory; nobody else uses it meanwhile.
pub(crate) struct JournalDir {
    path: PathBuf,
    pub(crate) holder: u64,
    locked: RealDir,
}

impl JournalDir {
    /// Opens it; it is made if it is missing. Waits a moment for a client that is ending.
    ///
    /// # Errors
    /// EBUSY: another client uses it. EINVAL: it is none. EIO.
    pub(crate) fn open(path: &Path) -> Result<JournalDir> {
        JournalDir::open_within(path, TAKEN_MAX)
    }

    fn open_within(path: &Path, taken_max: Duration) -> Result<JournalDir> {
        let refused = |e: io::Error| {
            let (errno, why) = match e.kind() {
                io::ErrorKind::WouldBlock => (Errno::EBUSY, "another client uses it".to_owned()),
                io::ErrorKind::InvalidData => (Errno::EINVAL, e.to_string()),
                _ => (Errno::EIO, e.to_string()),
            };
            Error::new(errno).with_text(format!("journal directory {}: {why}", path.display()))
        };
        let dir = RealDir::open(path).map_err(refused)?;
        let start = time::now();
        while let Err(error) = dir.lock() {
            if error.kind() != io::ErrorKind::WouldBlock || time::now().since(start) >= taken_max {
                return Err(refused(error));
            }
            // Real time: nothing tells when a process has gone.
            time::sleep(PAUSE);
        }
        let holder = holder_of(&dir).map_err(refused)?;
        Ok(JournalDir { path: path.to_owned(), holder, locked: dir })
    }

    /// It is for subtrees of this cluster.
    ///
    /// # Errors
    /// EINVAL: it is for those of another one. EIO.
    pub(crate) fn bind(&self, uuid: &[u8]) -> Result<()> {
        let refused = |errno: Errno, why: String| {
            let path = self.path.display();
            Error::new(errno).with_text(format!("journal directory {path}: {why}"))
        };
        let uuid = hex(uuid);
        let known = self.locked.list().and_then(|names| match names.iter().any(|n| n == CLUSTER) {
            true => read_all(&*self.locked.open(CLUSTER)?).map(Some),
            false => replace(&self.locked, CLUSTER, format!("{uuid}\n").as_bytes()).map(|()| None),
        });
        match known.map_err(|e| refused(Errno::EIO, e.to_string()))? {
            Some(known) if known.trim_ascii() != uuid.as_bytes() => {
                Err(refused(Errno::EINVAL, "it has journals of another cluster".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Where the subtree of a policy is kept.
    pub(crate) fn of_policy(&self, policy: u64) -> PathBuf {
        self.path.join(format!("{policy:016x}"))
    }

    /// Is there a journal of the subtree of a policy?
    #[allow(clippy::disallowed_methods, reason = "a directory of this machine")]
    pub(crate) fn has(&self, policy: u64) -> bool {
        self.of_policy(policy).exists()
    }

    /// The subtree of a policy is held since this epoch: what is kept of another hold is set aside, and what
    /// is kept from now on is of this one. True: there is something of it already.
    ///
    /// # Errors
    /// EIO; EINVAL for what is kept and does not say of which hold it is.
    pub(crate) fn begin(&self, policy: u64, first: u64) -> Result<bool> {
        let path = self.of_policy(policy);
        let refused = |e: io::Error| {
            let errno = match e.kind() {
                io::ErrorKind::InvalidData => Errno::EINVAL,
                _ => Errno::EIO,
            };
            Error::new(errno).with_text(format!("{}: {e}", path.display()))
        };
        if self.has(policy) {
            if read_number(&RealDir::open(&path).map_err(refused)?, HOLD).map_err(refused)? == first
            {
                return Ok(true);
            }
            self.set_aside(policy).map_err(refused)?;
        }
        self.make(policy, first).map_err(refused)?;
        Ok(false)
    }

    /// Keeps a journal whose hold has ended under another name.
    #[allow(clippy::disallowed_methods, reason = "a whole directory of this machine moves")]
    fn set_aside(&self, policy: u64) -> io::Result<()> {
        let path = self.of_policy(policy);
        let aside = (1..).map(|n| self.path.join(format!("{policy:016x}.old-{n}")));
        let aside = aside.into_iter().find(|aside| !aside.exists()).unwrap_or_default();
        std::fs::rename(&path, &aside)?;
        tracing::warn!(
            "the hold of the subtree of policy {policy:#x} has ended since its journal was written, \
             which is not used any more: it is kept as {}",
            aside.display()
        );
        self.locked.sync()
    }

    /// A directory for what is kept, that says from the beginning of which hold.
    #[allow(clippy::disallowed_methods, reason = "a directory of this machine")]
    fn make(&self, policy: u64, first: u64) -> io::Result<()> {
        let (path, new) = (self.of_policy(policy), self.path.join(format!("{policy:016x}.new")));
        if new.exists() {
            std::fs::remove_dir_all(&new)?;
        }
        let dir = RealDir::open(&new)?;
        write_number(&dir, HOLD, first)?;
        std::fs::rename(&new, &path)?;
        self.locked.sync()
    }

    /// A subtree was merged and released: its journal has nothing that is not merged.
    #[allow(clippy::disallowed_methods, reason = "a whole directory of this machine goes")]
    pub(crate) fn remove(&self, policy: u64) {
        let path = self.of_policy(policy);
        // Half of one would be taken for a damaged journal.
        let gone = path.with_extension(GONE);
        _ = std::fs::remove_dir_all(&gone);
        let removed = std::fs::rename(&path, &gone).and_then(|()| std::fs::remove_dir_all(&gone));
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{}: {error}", path.display());
        }
    }
}

/// What a directory for journals has of a subtree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalOf {
    /// The number of its policy.
    pub policy: u64,
    /// The epoch in which the hold began that it is of.
    pub first: u64,
    /// Where it is.
    pub path: PathBuf,
}

/// The subtrees of which a client's directory for journals has something, by policy. Changes nothing.
///
/// # Errors
/// EINVAL: it is no such directory, or is damaged. EIO.
#[allow(clippy::disallowed_methods, reason = "a directory of this machine")]
pub fn journals_in(path: &Path) -> Result<Vec<JournalOf>> {
    let refused = |errno: Errno, at: &Path, why: &str| {
        Error::new(errno).with_text(format!("{}: {why}", at.display()))
    };
    let unread = |e: io::Error| refused(Errno::EIO, path, &e.to_string());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unread)? {
        names.extend(entry.map_err(unread)?.file_name().into_string().ok());
    }
    names.sort_unstable();
    if !names.iter().any(|name| name == HOLDER) {
        let is_server = |name: &String| name.starts_with("shard-") || name.starts_with("wal-");
        let why = match names.iter().any(is_server) {
            true => "it is a journal of a server, which applies it by itself when it starts",
            false => "it is no journal_dir of a client: it has no file holder",
        };
        return Err(refused(Errno::EINVAL, path, why));
    }
    let mut found = Vec::new();
    for name in names {
        let Ok(policy) = u64::from_str_radix(&name, 16) else { continue };
        if name.len() != 16 {
            continue;
        }
        let path = path.join(&name);
        let first = RealDir::open(&path).and_then(|dir| read_number(&dir, HOLD));
        match first.map_err(|e| refused(Errno::EIO, &path, &e.to_string()))? {
            0 => {
                let why = "it does not say of which hold it is";
                return Err(refused(Errno::EINVAL, &path, why));
            }
            first => found.push(JournalOf { policy, first, path }),
        }
    }
    Ok(found)
}

/// Reads the number, or draws it.
fn holder_of(dir: &RealDir) -> io::Result<u64> {
    match read_number(dir, HOLDER)? {
        0 => {}
        holder => return Ok(holder),
    }
    let holder = rand::u64().max(1);
    if dir.list()?.iter().any(|name| name == HOLDER_NEW) {
        dir.remove(HOLDER_NEW)?;
    }
    write_number(dir, HOLDER_NEW, holder)?;
    dir.rename(HOLDER_NEW, HOLDER)?;
    dir.sync()?;
    Ok(holder)
}

/// The number that a file holds, which is never 0; 0: there is no such file.
fn read_number(dir: &RealDir, name: &str) -> io::Result<u64> {
    if !dir.list()?.iter().any(|found| found == name) {
        return Ok(0);
    }
    let text = read_all(&*dir.open(name)?)?;
    let number = std::str::from_utf8(&text).ok();
    let number = number.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let text = format!("its file {name} is damaged");
    let broken = || io::Error::new(io::ErrorKind::InvalidData, text);
    number.filter(|number| *number != 0).ok_or_else(broken)
}

fn write_number(dir: &RealDir, name: &str, number: u64) -> io::Result<()> {
    let file: Arc<dyn saker_runtime::fs::File> = dir.create(name)?;
    file.write_at(0, format!("{number:016x}\n").as_bytes())?;
    file.sync()?;
    dir.sync()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn whoever_uses_the_directory_next_has_the_same_number() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("journals");
        let first = JournalDir::open(&path).unwrap();
        let refused = JournalDir::open_within(&path, Duration::ZERO).err().unwrap();
        assert_eq!(refused.errno(), Errno::EBUSY);
        let holder = first.holder;
        let second = path.clone();
        let waiting = std::thread::spawn(move || JournalDir::open(&second).unwrap());
        drop(first);
        let again = waiting.join().unwrap();
        assert!(holder != 0 && again.holder == holder);
        std::fs::create_dir_all(again.of_policy(7).join("shard")).unwrap();
        again.remove(7);
        again.remove(7);
        assert!(!again.of_policy(7).exists());
        drop(again);
        std::fs::write(path.join(HOLDER), "nonsense").unwrap();
        assert_eq!(JournalDir::open(&path).err().unwrap().errno(), Errno::EINVAL);
    }

    #[test]
    fn journals_are_found_and_others_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let why = |path: &Path| journals_in(path).err().unwrap().text;
        assert!(why(tmp.path()).contains("no journal_dir"));
        std::fs::create_dir(tmp.path().join("shard-0")).unwrap();
        assert!(why(tmp.path()).contains("of a server"));
        assert!(why(&tmp.path().join("nothing")).contains("nothing"));
        let path = tmp.path().join("journals");
        let dir = JournalDir::open(&path).unwrap();
        assert_eq!(journals_in(&path).unwrap(), []);
        dir.begin(7, 3).unwrap();
        dir.begin(9, 4).unwrap();
        dir.begin(9, 5).unwrap();
        let found = journals_in(&path).unwrap();
        let of = |policy, first| JournalOf { policy, first, path: dir.of_policy(policy) };
        assert_eq!(found, [of(7, 3), of(9, 5)]);
        std::fs::remove_file(dir.of_policy(7).join(HOLD)).unwrap();
        assert!(why(&path).contains("of which hold"));
        dir.bind(&[1; 16]).unwrap();
        dir.bind(&[1; 16]).unwrap();
        assert_eq!(dir.bind(&[2; 16]).err().unwrap().errno(), Errno::EINVAL);
    }

    #[test]
    fn what_is_kept_is_of_one_hold() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = JournalDir::open(tmp.path()).unwrap();
        // A client was killed while it made it.
        std::fs::create_dir(tmp.path().join("0000000000000007.new")).unwrap();
        assert!(!dir.begin(7, 3).unwrap());
        let kept = |name: &str| std::fs::read(tmp.path().join(name)).ok();
        std::fs::write(dir.of_policy(7).join("rows"), "first").unwrap();
        assert!(dir.begin(7, 3).unwrap(), "the same hold goes on");
        assert_eq!(kept("0000000000000007/rows").unwrap(), b"first");
        for (first, aside) in [(5, 1), (9, 2)] {
            assert!(!dir.begin(7, first).unwrap());
            assert_eq!(kept("0000000000000007/rows"), None);
            let old = format!("0000000000000007.old-{aside}/rows");
            assert!(kept(&old).is_some(), "it is kept, and not used");
            std::fs::write(dir.of_policy(7).join("rows"), "next").unwrap();
        }
        std::fs::remove_file(dir.of_policy(7).join(HOLD)).unwrap();
        assert!(!dir.begin(7, 9).unwrap(), "nobody knows of which hold it is");
        assert!(kept("0000000000000007.old-3/rows").is_some());
        std::fs::write(dir.of_policy(7).join(HOLD), "nonsense").unwrap();
        assert_eq!(dir.begin(7, 9).err().unwrap().errno(), Errno::EINVAL);
    }
}
