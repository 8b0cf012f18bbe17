//! Files of the cluster as a disk: what an engine keeps in a directory of a machine it keeps in one of the
//! cluster (Cudele section 3.1, "Global Persist").

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use saker_rpc::Reactor;
use saker_runtime::fs::{self, Dir, End};
use saker_runtime::thread;
use saker_runtime::time;
use saker_types::policy::PolicyId;
use saker_types::wire::At;
use saker_types::{Errno, Error, Locator, Result};

use crate::core::Core;
use crate::namespace::api::Namespace;
use crate::namespace::strict::Strict;
use crate::{Caller, Fallocate, File, Fs, OpenFlags, SetAttr};

/// Bytes that are read at once.
const PIECE_BYTES: usize = 4 << 20;
/// Pause before something is written again that could not be.
const AGAIN_PAUSE: Duration = Duration::from_secs(1);

/// A directory of the cluster whose files are the superuser's. All that is written is strong and
/// global, as the policy in force there says.
#[derive(Clone)]
pub struct GlobalDir {
    volume: Arc<Volume>,
    loc: Locator,
    label: String,
}

/// What all directories and files of one engine share.
struct Volume {
    core: Arc<Core>,
    /// Its threads wait here, and not where a thread may wait for one of them.
    reactor: Arc<Reactor>,
    /// The policy of a subtree: only who holds it may write.
    held: Option<u64>,
    /// What cannot be written is not tried again.
    ends: AtomicBool,
}

impl std::fmt::Debug for GlobalDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.label)
    }
}

impl PartialEq for GlobalDir {
    fn eq(&self, other: &GlobalDir) -> bool {
        self.loc == other.loc
    }
}

impl Eq for GlobalDir {}

/// An error with its text, by the kind that the system has for its number.
fn to_io(error: Error) -> io::Error {
    let kind = io::Error::from_raw_os_error(error.errno().0.into()).kind();
    io::Error::new(kind, error)
}

impl Volume {
    /// Runs a future to its end on this thread, or, if that is running one already, on another.
    fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        if !Reactor::is_blocking() {
            return self.reactor.block_on(future).map_err(to_io);
        }
        let reactor = self.reactor.clone();
        let thread = thread::spawn("saker-saved", move || reactor.block_on(future))?;
        match thread.join() {
            Ok(outcome) => outcome.map_err(to_io),
            Err(_) => Err(io::Error::other("the thread that reads and writes has panicked")),
        }
    }

    /// Before something is written.
    fn may_write(&self) -> Result<()> {
        match self.held {
            Some(policy) if self.core.cluster.holds.epoch(policy).is_none() => Err(not_held()),
            _ => Ok(()),
        }
    }

    /// After something was written, and before that is told: does nobody else hold the subtree by now? Whoever
    /// holds it next has begun after this, and finds what was written.
    async fn may_tell(&self) -> Result<()> {
        let Some(policy) = self.held else { return Ok(()) };
        self.may_write()?;
        match self.core.cluster.still_holds(policy).await? {
            true => Ok(()),
            false => Err(not_held()),
        }
    }

    /// Is it worth to write the same again? What was answered is in the memory of this process alone.
    fn again(&self, error: &Error) -> bool {
        let is_lost = error.errno() == Errno::ESTALE || self.may_write().is_err();
        !is_lost && !self.ends.load(Ordering::Acquire)
    }
}

fn not_held() -> Error {
    Error::new(Errno::ESTALE).with_text("this client does not hold the subtree any more")
}

impl GlobalDir {
    /// The directory at a place, in which `fs` reads and writes as the superuser.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR; EOPNOTSUPP for a client whose network somebody else drives; of the cluster.
    pub async fn at(fs: &Fs, at: &At) -> Result<GlobalDir> {
        let found = Strict(&fs.core).lookup(&Caller::root(), at).await?;
        match found.attr.is_dir() {
            true => GlobalDir::of(&fs.core, found.loc, "cluster:".to_owned(), None),
            false => Err(Errno::ENOTDIR.into()),
        }
    }

    /// The same of a directory that is known. `held`: the policy of a subtree without whose hold nothing is
    /// written.
    pub(super) fn of(
        core: &Arc<Core>,
        loc: Locator,
        label: String,
        held: Option<u64>,
    ) -> Result<GlobalDir> {
        let reactor = core.cluster.net.sibling()?;
        let volume = Volume { core: core.clone(), reactor, held, ends: AtomicBool::new(false) };
        Ok(GlobalDir { volume: Arc::new(volume), loc, label })
    }

    /// From now on nobody waits for what cannot be written.
    pub(crate) fn end(&self) {
        self.volume.ends.store(true, Ordering::Release);
    }

    fn child(&self, name: &str) -> io::Result<At> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("file name {name:?}")));
        }
        Ok(At::child(self.loc.clone(), name.as_bytes()))
    }

    /// Asks the namespace of the cluster.
    fn ask<T: Send + 'static, F>(&self, ask: impl FnOnce(Arc<Volume>, Caller) -> F) -> io::Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.volume.wait(ask(self.volume.clone(), Caller::root()))
    }

    fn file(&self, file: File, written: u64) -> Arc<dyn fs::File> {
        let (volume, written) = (self.volume.clone(), AtomicU64::new(written));
        Arc::new(GlobalFile { volume, file, written })
    }
}

impl Dir for GlobalDir {
    fn open(&self, name: &str) -> io::Result<Arc<dyn fs::File>> {
        let at = self.child(name)?;
        let (file, entry) = self.ask(|volume, root| async move {
            Strict(&volume.core).open(&root, &at, OpenFlags::READ_WRITE).await
        })?;
        Ok(self.file(file, entry.attr.size))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn fs::File>> {
        let at = self.child(name)?;
        let flags = OpenFlags { exclusive: true, ..OpenFlags::READ_WRITE };
        let (file, _) = self.ask(|volume, root| async move {
            volume.may_write()?;
            Strict(&volume.core).create(&root, &at, 0o600, flags, false).await
        })?;
        Ok(self.file(file, 0))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let loc = self.loc.clone();
        self.ask(|volume, root| async move {
            let mut listing = Strict(&volume.core).readdir(&root, &loc, 0);
            let mut names = Vec::new();
            while let Some(item) = listing.next().await? {
                // A name that is not UTF-8 is not ours.
                names.extend(std::str::from_utf8(&item.name).ok().map(str::to_owned));
            }
            names.sort_unstable();
            Ok(names)
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let at = self.child(name)?;
        self.ask(|volume, root| async move {
            volume.may_write()?;
            Strict(&volume.core).unlink(&root, &at).await.map(drop)
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.child(from)?, self.child(to)?);
        self.ask(|volume, root| async move {
            volume.may_write()?;
            let names = Strict(&volume.core);
            names.rename(&root, &from, &to, 0, [&[], &[]]).await.map(drop)
        })
    }

    fn sync(&self) -> io::Result<()> {
        let is_delayed = PolicyId(self.loc.policy).may_delay_flush();
        self.ask(|volume, _| async move {
            if is_delayed {
                volume.core.cluster.sync_journals().await?;
            }
            volume.may_tell().await
        })
    }

    fn sub_dir(&self, name: &str) -> io::Result<Arc<dyn Dir>> {
        let at = self.child(name)?;
        let entry = self.ask(|volume, root| async move {
            let names = Strict(&volume.core);
            match names.lookup(&root, &at).await {
                Err(error) if error.errno() == Errno::ENOENT => {
                    volume.may_write()?;
                    names.mkdir(&root, &at, 0o700).await
                }
                found => found,
            }
        })?;
        if !entry.attr.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let label = format!("{}/{name}", self.label);
        Ok(Arc::new(GlobalDir { volume: self.volume.clone(), loc: entry.loc, label }))
    }

    fn lock(&self) -> io::Result<()> {
        // Who holds the subtree is the only one.
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        // What the stores have no room for is refused when it is written.
        Ok(u64::MAX)
    }

    fn label(&self) -> String {
        self.label.clone()
    }
}

/// An open file of the cluster.
struct GlobalFile {
    volume: Arc<Volume>,
    file: File,
    /// From here on it has zeros only, as far as it reaches.
    written: AtomicU64,
}

impl GlobalFile {
    fn wait<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<Volume>, File) -> F) -> io::Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.volume.wait(work(self.volume.clone(), self.file.clone()))
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        self.wait(|volume, file| async move {
            volume.may_write()?;
            let size = SetAttr { size: Some(len), by_handle: true, ..SetAttr::default() };
            let at = At::handle(file.locator());
            Strict(&volume.core).setattr(&Caller::root(), &at, &size).await.map(drop)
        })
    }

    /// Zeros where something else was.
    fn clear(&self, from: u64, len: u64) -> u64 {
        self.written.load(Ordering::Acquire).saturating_sub(from).min(len)
    }
}

impl fs::File for GlobalFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let data = Bytes::copy_from_slice(data);
        self.written.fetch_max(offset + data.len() as u64, Ordering::AcqRel);
        self.wait(|volume, file| async move {
            volume.may_write()?;
            file.write(offset, &data).await.map(drop)
        })
    }

    fn append(&self, data: &[u8]) -> io::Result<u64> {
        // Nothing here is appended to by two.
        let end = self.len()?;
        self.write_at(end, data)?;
        Ok(end)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        while read < buf.len() {
            let (at, want) = (offset + read as u64, (buf.len() - read).min(PIECE_BYTES));
            let piece = self.wait(|_, file| async move { file.read(at, want).await })?;
            buf[read..read + piece.len()].copy_from_slice(&piece);
            read += piece.len();
            if piece.len() < want {
                break;
            }
        }
        Ok(read)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.entry().attr.size)
    }

    fn sync(&self) -> io::Result<()> {
        self.wait(|volume, file| async move {
            volume.may_write()?;
            file.fsync().await?;
            volume.may_tell().await
        })
    }

    fn write_end(&self, end: &End<'_>) -> io::Result<()> {
        let (offset, behind) = (end.offset, end.offset + end.data.len() as u64);
        let zeros = self.clear(behind, end.zeros.len() as u64) as usize;
        let data = Bytes::from([end.data, &end.zeros[..zeros]].concat());
        self.written.fetch_max(offset + data.len() as u64, Ordering::AcqRel);
        self.wait(|volume, file| async move {
            loop {
                match write_durably(&volume, &file, offset, &data).await {
                    Err(error) if volume.again(&error) => {
                        tracing::warn!("a journal in the cluster is not written yet: {error}");
                        volume.core.cluster.net.sleep_until(time::now() + AGAIN_PAUSE).await;
                    }
                    done => return done,
                }
            }
        })
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.resize(len)?;
        self.written.fetch_min(len, Ordering::AcqRel);
        Ok(())
    }

    fn preallocate(&self, len: u64) -> io::Result<()> {
        // Holes: what the stores have no room for is refused when it is written.
        if self.len()? < len { self.resize(len) } else { Ok(()) }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let len = len.min(self.len()?.saturating_sub(offset));
        if len == 0 {
            return Ok(());
        }
        self.wait(|volume, file| async move {
            volume.may_write()?;
            file.fallocate(Fallocate::Punch, offset, len).await
        })
    }
}

async fn write_durably(volume: &Volume, file: &File, offset: u64, data: &[u8]) -> Result<()> {
    volume.may_write()?;
    file.write(offset, data).await?;
    file.fsync().await?;
    volume.may_tell().await
}
