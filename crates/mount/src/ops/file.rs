//! OPEN, READ, WRITE, FLUSH, FSYNC, RELEASE, FALLOCATE, LSEEK, COPY_FILE_RANGE.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use saker_client::{Caller, Fallocate, File, OpenFlags, Seek};
use saker_fuse::abi::{
    CopyFileRangeIn, CopyFileRangeOut, FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_NOFLUSH,
    FallocateIn, FlushIn, FsyncIn, LseekIn, LseekOut, O_APPEND, OPEN_KILL_SUIDGID, OpenIn, OpenOut,
    RELEASE_FLOCK_UNLOCK, ReadIn, ReleaseIn, SEEK_DATA, SEEK_HOLE, WRITE_CACHE, WRITE_KILL_SUIDGID,
    WriteIn, WriteOut,
};
use saker_fuse::{MAX_WRITE_BYTES, Reply, Request};
use saker_runtime::time;
use saker_types::wire::{At, Entry};
use saker_types::{Attr, Errno, Result};

use crate::caller::WithCaller as _;
use crate::changes::{Asked, Changes};
use crate::names::nodes::{DataVersion, FuseNodeId, Nodes};
use crate::names::threads::Opened;
use crate::refusals::{Cuts, GROWS_WITHIN, ReadEnd, Tellings};
use crate::service::MountService;

/// Most bytes that one COPY_FILE_RANGE copies: callers ask again, and can be interrupted between.
const COPY_BYTES_MAX: u64 = 64 << 20;

/// A reader's first look at the file may be as old as this since it was opened: others' changes are seen
/// from open to open.
pub(crate) const OPEN_AGE_MAX: Duration = Duration::from_secs(1);

/// A file that is open through the mount.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) node: FuseNodeId,
    pub(crate) flags: OpenFlags,
    /// What the open saw, and when it was asked for.
    attr: Attr,
    asked: Asked,
    /// Nothing was read through it, nor its size asked for.
    fresh: AtomicBool,
    /// The kernel dropped its pages at this open, and no request has come through it yet.
    unused: AtomicBool,
    cuts: Cuts,
    tellings: Arc<Tellings>,
    /// The same file with the opposite of `flags.append`, opened when it is first needed: for
    /// fcntl(F_SETFL), and for mapped pages, which are written back through any writable handle
    /// but belong where they are.
    other: async_lock::Mutex<Option<File>>,
    /// Owners that have set fcntl(2) locks through this handle.
    lockers: Mutex<BTreeSet<u64>>,
}

impl OpenFile {
    /// What was opened, as the kernel's `node`.
    pub(crate) fn new(node: FuseNodeId, nodes: &Nodes, opened: Opened) -> OpenFile {
        let Opened { flags, file, entry, asked } = opened;
        OpenFile {
            file,
            node,
            flags,
            attr: entry.attr,
            asked,
            fresh: AtomicBool::new(true),
            unused: AtomicBool::new(false),
            cuts: Cuts::default(),
            tellings: nodes.tellings(node),
            other: async_lock::Mutex::new(None),
            lockers: Mutex::default(),
        }
    }

    /// Are its reads and writes those of programs, whole and not of the kernel's pages? Of one write(2) that crosses a
    /// page the kernel makes two WRITEs else, and others could append between them.
    fn is_direct(&self) -> bool {
        self.flags.append && self.flags.write
    }

    fn version(&self) -> DataVersion {
        DataVersion::of(&self.attr)
    }

    /// Its attributes as of the open, for the kernel to go on with what it does by this handle, and
    /// for how long it may keep them: if nothing was changed since, and they are not older than
    /// `keep`, or `OPEN_AGE_MAX` for the first that it does.
    pub(crate) fn attr(&self, changes: &Changes, keep: Duration) -> Option<(&Attr, Duration)> {
        let first = self.fresh.swap(false, Ordering::Relaxed);
        let age_max = if first { keep.max(OPEN_AGE_MAX) } else { keep };
        let left = changes.counts(self.asked, age_max)?;
        Some((&self.attr, left.saturating_sub(age_max - keep)))
    }

    async fn files(&self) -> impl Iterator<Item = File> {
        let other = self.other.lock().await.clone();
        std::iter::once(self.file.clone()).chain(other)
    }

    /// An owner sets fcntl(2) locks through this handle.
    pub(crate) fn locks(&self, owner: u64) {
        self.lockers.lock().unwrap_or_else(PoisonError::into_inner).insert(owner);
    }

    async fn flush(&self) -> Result<()> {
        for file in self.files().await {
            file.flush().await?;
        }
        Ok(())
    }

    /// Data and size are on disk.
    pub(crate) async fn fsync(&self) -> Result<()> {
        for file in self.files().await {
            file.fsync().await?;
        }
        Ok(())
    }

    /// The last use.
    pub(crate) async fn close(&self) {
        for file in self.files().await {
            file.release().await;
        }
    }
}

impl MountService {
    pub(crate) async fn open(&self, request: &Request) -> Result<Reply> {
        let input: OpenIn = request.body().fixed()?;
        let node = request.header.nodeid;
        let flags = OpenFlags::from_linux(input.flags as i32);
        let at = self.at(node).await?;
        let _change = flags.truncate.then(|| self.changes.begin());
        let opened = match self.threads.take(&request.header, at.anchor.id, flags) {
            Some(opened) => opened,
            None => {
                let asked = self.changes.ask();
                let (file, entry) = self.fs.open(&request.caller(), &at, flags).await?;
                Opened { flags, file, entry, asked }
            }
        };
        self.nodes.refresh(&opened.entry);
        if flags.truncate && input.open_flags & OPEN_KILL_SUIDGID != 0 {
            self.drop_privileges_of(&opened.entry).await?;
        }
        Ok(Reply::of(&self.opened(OpenFile::new(node, &self.nodes, opened))))
    }

    /// A handle for an open file. Pages that the kernel has cached from earlier stay if this
    /// open saw the version of the data that they were read at.
    pub(crate) fn opened(&self, mut open: OpenFile) -> OpenOut {
        let heard = open.flags.write || self.locked.load(Ordering::Relaxed);
        let mut open_flags = if heard { 0 } else { FOPEN_NOFLUSH };
        if open.is_direct() {
            open_flags |= FOPEN_DIRECT_IO;
        }
        if self.nodes.keep_pages(open.node, open.version()) {
            open_flags |= FOPEN_KEEP_CACHE;
        } else {
            open.unused = AtomicBool::new(true);
        }
        OpenOut { fh: self.files.insert(Arc::new(open)), open_flags, ..OpenOut::default() }
    }

    /// A truncating open cleared a file: its suid and sgid go.
    pub(crate) async fn drop_privileges_of(&self, entry: &Entry) -> Result<()> {
        self.nodes.refresh(entry);
        let node = self.nodes.of(entry.attr.id);
        self.drop_privileges(node, &At::handle(entry.loc.clone())).await
    }

    pub(crate) async fn read(&self, request: &Request) -> Result<Reply> {
        let input: ReadIn = request.body().fixed()?;
        let open = self.files.get(input.fh)?;
        open.fresh.store(false, Ordering::Relaxed);
        if open.unused.swap(false, Ordering::Relaxed) {
            self.nodes.filled(open.node, open.version());
        }
        let len = (input.size as usize).min(MAX_WRITE_BYTES);
        let reading = open.cuts.reading(&open.tellings);
        let until = time::now() + GROWS_WITHIN;
        loop {
            let data = open.file.read(input.offset, len).await?;
            if open.is_direct() {
                return Ok(Reply::data(data));
            }
            let cuts = open.file.cuts();
            match reading.ends(&input, data.len(), cuts) {
                ReadEnd::Heeded => return Ok(Reply::data(data)),
                ReadEnd::Refused => {
                    open.cuts.refuse(cuts);
                    return Err(Errno::EAGAIN.into());
                }
                ReadEnd::Unheeded { perhaps } if time::now() > until => {
                    return if perhaps { Ok(Reply::data(data)) } else { Err(Errno::EINTR.into()) };
                }
                ReadEnd::Unheeded { .. } => {
                    let at = At::handle(open.file.locator());
                    self.fs.getattr(&Caller::root(), &at).await?;
                }
            }
        }
    }

    pub(crate) async fn write(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let input: WriteIn = body.fixed()?;
        let data = body.bytes(input.size as usize)?;
        let open = self.files.get(input.fh)?;
        if input.write_flags & WRITE_KILL_SUIDGID != 0 {
            self.drop_privileges(open.node, &At::handle(open.file.locator())).await?;
        }
        let append = input.flags & O_APPEND != 0 && input.write_flags & WRITE_CACHE == 0;
        let file = self.writer(&open, append).await?;
        if append != open.flags.append {
            // Locks are set through the one that was opened.
            open.file.still_holds_locks().await?;
        }
        self.nodes.mark_attr_stale(open.node);
        let went_to = file.write(input.offset, data).await?;
        if went_to != input.offset {
            // The kernel put the data where it thought that the file ends.
            self.notifier.pages(open.node, went_to.min(input.offset), 0);
        }
        Ok(Reply::of(&WriteOut { size: input.size, padding: 0 }))
    }

    /// The file to write through, as the handle's flags are now.
    async fn writer(&self, open: &OpenFile, append: bool) -> Result<File> {
        if append == open.flags.append {
            return Ok(open.file.clone());
        }
        let mut other = open.other.lock().await;
        if let Some(file) = &*other {
            return Ok(file.clone());
        }
        let flags = OpenFlags { write: true, append, ..OpenFlags::default() };
        let at = At::handle(open.file.locator());
        // The right to write was checked when the handle was opened.
        let (file, _) = self.fs.open(&Caller::root(), &at, flags).await?;
        *other = Some(file.clone());
        Ok(file)
    }

    pub(crate) async fn flush(&self, request: &Request) -> Result<Reply> {
        let input: FlushIn = request.body().fixed()?;
        let open = self.files.get(input.fh)?;
        let written = open.flush().await;
        // A close ends all locks of the process, through whatever descriptor it has set them. The open
        // file may end much later (mmap(2)), when the process has set others through another.
        open.lockers.lock().unwrap_or_else(PoisonError::into_inner).remove(&input.lock_owner);
        open.file.unlock_all(input.lock_owner, false).await;
        written.map(|()| Reply::done())
    }

    pub(crate) async fn fsync(&self, request: &Request) -> Result<Reply> {
        let input: FsyncIn = request.body().fixed()?;
        let open = self.files.get(input.fh)?;
        open.fsync().await?;
        Ok(Reply::done())
    }

    pub(crate) async fn release(&self, request: &Request) -> Result<Reply> {
        let input: ReleaseIn = request.body().fixed()?;
        let open = self.files.remove(input.fh)?;
        let _change = open.flags.write.then(|| self.changes.begin());
        if input.release_flags & RELEASE_FLOCK_UNLOCK != 0 {
            open.file.unlock_all(input.lock_owner, true).await;
        }
        // Locks of the open file itself (F_OFD_SETLK), and those of a process whose close was not
        // heard of.
        let lockers = open.lockers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for owner in lockers {
            open.file.unlock_all(owner, false).await;
        }
        open.close().await;
        Ok(Reply::done())
    }

    pub(crate) async fn fallocate(&self, request: &Request) -> Result<Reply> {
        let input: FallocateIn = request.body().fixed()?;
        let how = Fallocate::from_linux(input.mode)?;
        let open = self.files.get(input.fh)?;
        self.nodes.mark_attr_stale(open.node);
        open.file.fallocate(how, input.offset, input.length).await?;
        Ok(Reply::done())
    }

    pub(crate) async fn lseek(&self, request: &Request) -> Result<Reply> {
        let input: LseekIn = request.body().fixed()?;
        let want = match input.whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::EINVAL.into()),
        };
        let open = self.files.get(input.fh)?;
        let offset = open.file.seek(want, input.offset).await?;
        Ok(Reply::of(&LseekOut { offset }))
    }

    /// Copies within the file system: the data does not go through the kernel. `wide`: the reply
    /// has 64 bits.
    pub(crate) async fn copy_file_range(&self, request: &Request, wide: bool) -> Result<Reply> {
        let input: CopyFileRangeIn = request.body().fixed()?;
        let (from, to) = (self.files.get(input.fh_in)?, self.files.get(input.fh_out)?);
        self.nodes.mark_attr_stale(to.node);
        // What the handle's flags are now: the kernel refuses files opened for appending.
        let to = self.writer(&to, false).await?;
        let len = input.len.min(COPY_BYTES_MAX);
        let copied = from.file.copy_to(input.off_in, &to, input.off_out, len).await?;
        Ok(match wide {
            true => Reply::of(&CopyFileRangeOut { bytes_copied: copied }),
            // At most COPY_BYTES_MAX.
            false => Reply::of(&WriteOut { size: copied as u32, padding: 0 }),
        })
    }
}
