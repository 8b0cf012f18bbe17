//! The operating system's files.

use std::cell::RefCell;
use std::fs;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{Advice, AtFlags, FallocateFlags, FlockOperation, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use saker_types::wire::LocalDir;

use super::{BLOCK_BYTES, Dir, End, File, check_name};

/// Memory above this is not kept from one [`File::write_end`] to the next, bytes.
const KEEP_BYTES_MAX: usize = 4 << 20;

thread_local! {
    /// Room for what is written past the page cache.
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A directory of the operating system.
pub struct RealDir {
    path: PathBuf,
    /// Kept open to sync and to lock.
    handle: fs::File,
}

impl RealDir {
    /// Opens the directory at `path`. If it is missing it is made, after its parents, and closed to other
    /// users: what is in it may be anybody's.
    pub fn open(path: impl AsRef<Path>) -> io::Result<RealDir> {
        let path = path.as_ref().to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let missing = !path.is_dir();
        if missing {
            parent.map_or(Ok(()), fs::create_dir_all)?;
            // Somebody else may have made it meanwhile.
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        }
        if let Some(parent) = parent {
            // Also if it was there: who made it may have been killed before this.
            let synced = fs::File::open(parent).and_then(|parent| parent.sync_all());
            if missing {
                synced?;
            }
        }
        let handle = fs::File::open(&path)?;
        Ok(RealDir { path, handle })
    }

    /// Where this directory is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Another number when the machine has started again, or the file system was mounted again:
    /// what was written there before and not flushed may be gone then. Before Linux 6.8 a mount
    /// may get the number of one that ended.
    pub fn cached_since(&self) -> u64 {
        /// `STATX_MNT_ID_UNIQUE` of statx(2).
        const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
        let mask = MNT_ID_UNIQUE | StatxFlags::MNT_ID;
        let stat = rustix::fs::statx(&self.handle, c"", AtFlags::EMPTY_PATH, mask);
        machine() ^ stat.map_or(0, |stat| stat.stx_mnt_id.rotate_left(32))
    }

    fn file(&self, name: &str, options: &mut fs::OpenOptions) -> io::Result<Arc<dyn File>> {
        check_name(name)?;
        let file = options.read(true).write(true).open(self.path.join(name))?;
        Ok(Arc::new(RealFile {
            file,
            append: Mutex::default(),
            direct: OnceLock::new(),
            direct_reads: OnceLock::new(),
            always_waits: AtomicBool::new(false),
        }))
    }
}

impl Dir for RealDir {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.file(name, &mut fs::OpenOptions::new())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.file(name, fs::OpenOptions::new().create_new(true))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // A name that is not UTF-8 is not ours.
            names.extend(entry?.file_name().into_string().ok());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        fs::remove_file(self.path.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn sub_dir(&self, name: &str) -> io::Result<Arc<dyn Dir>> {
        check_name(name)?;
        Ok(Arc::new(RealDir::open(self.path.join(name))?))
    }

    fn lock(&self) -> io::Result<()> {
        Ok(rustix::fs::flock(&self.handle, FlockOperation::NonBlockingLockExclusive)?)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::fstatvfs(&self.handle)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn label(&self) -> String {
        self.path.display().to_string()
    }

    fn whereabouts(&self) -> Option<LocalDir> {
        let meta = self.handle.metadata().ok()?;
        let path = std::path::absolute(&self.path).ok()?.into_os_string().into_string().ok()?;
        Some(LocalDir { path, dev: meta.dev(), ino: meta.ino() })
    }
}

/// A number of this machine until it starts again, of its `/proc/sys/kernel/random/boot_id`; 0 where the
/// kernel does not say.
pub fn machine() -> u64 {
    static MACHINE: OnceLock<u64> = OnceLock::new();
    *MACHINE.get_or_init(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let id = u128::from_str_radix(&id.trim().replace('-', ""), 16).unwrap_or_default();
        id as u64 ^ (id >> 64) as u64
    })
}

/// Reads what is cached at `offset`, up to `buf`'s length; 0 at the end of the file, `None` if a disk
/// would have to be waited for.
fn read_now(file: &fs::File, offset: u64, buf: &mut [u8]) -> rustix::io::Result<Option<usize>> {
    let buf = &mut [IoSliceMut::new(buf)];
    match rustix::io::preadv2(file, buf, offset, ReadWriteFlags::NOWAIT) {
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        read => read.map(Some),
    }
}

/// Whether all of a range is in the page cache; `None` where the system does not say.
fn is_cached(file: &fs::File, offset: u64, len: u64) -> Option<bool> {
    let pages = count_cached(file, offset, len)?;
    let page = rustix::param::page_size() as u64;
    Some(pages == (offset + len).div_ceil(page) - offset / page)
}

/// Pages of a range that are in the page cache: cachestat(2), from Linux 6.5 on.
fn count_cached(file: &fs::File, offset: u64, len: u64) -> Option<u64> {
    /// The same number for all architectures; the C library has no word for it.
    const SYS_CACHESTAT: libc::c_long = 451;
    // Pages that are cached, dirty, being written, evicted, and evicted recently.
    let (range, mut counts) = ([offset, len], [0u64; 5]);
    // SAFETY: a system call that reads `struct cachestat_range` and writes `struct cachestat`, which these are.
    let done = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0)
    };
    (done == 0).then_some(counts[0])
}

struct RealFile {
    file: fs::File,
    /// Held while the end is looked up and written. Not `O_APPEND`: Linux would then ignore the
    /// offset of every other write.
    append: Mutex<()>,
    /// The same file without the page cache, whose writes are durable when they return; `None`
    /// inside: the file system has no such thing.
    direct: OnceLock<Option<fs::File>>,
    /// The same to read from.
    direct_reads: OnceLock<Option<fs::File>>,
    /// The file system does not say whether a read would wait.
    always_waits: AtomicBool,
}

impl File for RealFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn append(&self, data: &[u8]) -> io::Result<u64> {
        let _guard = self.append.lock().unwrap_or_else(PoisonError::into_inner);
        let end = self.len()?;
        self.file.write_all_at(data, end)?;
        Ok(end)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        while read < buf.len() {
            match self.file.read_at(&mut buf[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(n) => read += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn read_durable(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(direct) = self.direct_reads() {
            match read_blocks(direct, offset, buf) {
                // Larger blocks are wanted than these.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                read => return read,
            }
        }
        // Pages that are clean go; no file system that lacks the other way has a disk to fail.
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
        self.read_at(offset, buf)
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> io::Result<Option<usize>> {
        if self.always_waits.load(Ordering::Relaxed) {
            return self.read_at(offset, buf).map(Some);
        }
        let wanted = buf.len();
        match read_now(&self.file, offset, buf) {
            // A shorter one ends at the end of the file, or where the cache does.
            Ok(read) => Ok(read.filter(|read| *read == wanted)),
            Err(Errno::OPNOTSUPP) => {
                self.always_waits.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn is_cached(&self, offset: u64, len: u64) -> Option<bool> {
        is_cached(&self.file, offset, len)
    }

    fn expect_random_reads(&self) {
        // Advice that is not taken is no harm.
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::Random);
    }

    fn prefetch(&self, offset: u64, len: u64) {
        if let Some(len) = NonZeroU64::new(len) {
            let _ = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::WillNeed);
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write_end(&self, end: &End<'_>) -> io::Result<()> {
        if let Some(direct) = self.direct() {
            match with_blocks(end, |at, blocks| direct.write_all_at(blocks, at)) {
                // Larger blocks are wanted than these; the write had no effect.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                done => return done,
            }
        }
        end.write_to(self)?;
        self.sync()
    }

    fn write_end_cached(&self, end: &End<'_>) -> io::Result<()> {
        with_blocks(end, |at, blocks| self.file.write_all_at(blocks, at))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn preallocate(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
            // This file system cannot allocate: the length is all it can promise.
            Err(rustix::io::Errno::OPNOTSUPP) if self.len()? < len => self.file.set_len(len),
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            result => Ok(result?),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = self.len()?;
        let len = len.min(end.saturating_sub(offset));
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, offset, len) {
            Err(rustix::io::Errno::OPNOTSUPP) => self.zero(offset, len),
            result => Ok(result?),
        }
    }
}

impl RealFile {
    fn direct(&self) -> Option<&fs::File> {
        let flags = libc::O_DIRECT | libc::O_DSYNC;
        let open = || self.open_again(fs::OpenOptions::new().write(true).custom_flags(flags));
        self.direct.get_or_init(open).as_ref()
    }

    fn direct_reads(&self) -> Option<&fs::File> {
        let open =
            || self.open_again(fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT));
        self.direct_reads.get_or_init(open).as_ref()
    }

    /// By this name, for the file may have had several.
    fn open_again(&self, options: &fs::OpenOptions) -> Option<fs::File> {
        options.open(format!("/proc/self/fd/{}", self.file.as_raw_fd())).ok()
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        let zeros = vec![0; 1 << 16];
        let mut done = 0;
        while done < len {
            let step = (len - done).min(zeros.len() as u64);
            self.file.write_all_at(&zeros[..step as usize], offset + done)?;
            done += step;
        }
        Ok(())
    }
}

/// Bytes read past the page cache at a time.
const DIRECT_READ_BYTES: usize = 1 << 20;

/// Fills `buf` from a file that reads whole blocks only; returns the bytes read, fewer at the end of
/// the file.
fn read_blocks(file: &fs::File, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    let mut room = vec![0; DIRECT_READ_BYTES + BLOCK_BYTES];
    let aligned = room.as_ptr().align_offset(BLOCK_BYTES);
    let mut done = 0;
    while done < buf.len() {
        let at = offset + done as u64;
        let skip = (at % BLOCK_BYTES as u64) as usize;
        let want = (skip + buf.len() - done).next_multiple_of(BLOCK_BYTES).min(DIRECT_READ_BYTES);
        let blocks = &mut room[aligned..aligned + want];
        let read = match file.read_at(blocks, at - skip as u64) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        let found = read.saturating_sub(skip).min(buf.len() - done);
        buf[done..done + found].copy_from_slice(&blocks[skip..skip + found]);
        done += found;
        if found == 0 || read < want {
            break;
        }
    }
    Ok(done)
}

/// Calls `f` with the end of a file in whole blocks, at an address that is a multiple of them, and
/// where they begin.
fn with_blocks<T>(end: &End<'_>, f: impl FnOnce(u64, &[u8]) -> T) -> T {
    let End { offset, before, data, zeros } = end;
    let used = before.len() + data.len();
    // Whole blocks of zeros only: the file must not grow for them.
    let len =
        used.next_multiple_of(BLOCK_BYTES).max((used + zeros.len()) / BLOCK_BYTES * BLOCK_BYTES);
    ROOM.with_borrow_mut(|room| {
        if room.len() < len + BLOCK_BYTES {
            room.resize(len + BLOCK_BYTES, 0);
        }
        let start = room.as_ptr().align_offset(BLOCK_BYTES);
        let blocks = &mut room[start..start + len];
        blocks[..before.len()].copy_from_slice(before);
        blocks[before.len()..used].copy_from_slice(data);
        blocks[used..].fill(0);
        let done = f(offset - before.len() as u64, blocks);
        if room.len() > KEEP_BYTES_MAX {
            *room = Vec::new();
        }
        done
    })
}
