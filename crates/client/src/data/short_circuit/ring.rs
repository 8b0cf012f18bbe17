//! Reads past the page cache, many at a time (io_uring(7)).

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::fs::{AtFlags, OFlags, StatxFlags};

use self::room::{Pool, Room};
use self::window::Window;
use saker_runtime::fs::BLOCK_BYTES;
use saker_runtime::time::{self, Time};

mod room;
mod window;

/// Reads that the disks have at a time, at most.
const READS_MAX: usize = 64;

/// Reads that wait for their disk, at most: each may have a file open, also when nobody waits for it any more.
pub(super) const WAITING_MAX: usize = 256;

/// Places in the ring: for all of them, and for what `bundle` adds, some of which may stay there.
const SUBMISSIONS: u32 = 2 * READS_MAX as u32;

/// A file whose reads go past the page cache; clones are the same open file.
#[derive(Clone)]
pub(super) struct DirectFile {
    file: Arc<File>,
    /// A number that files have in common if their reads wait for each other: `st_dev`.
    disk: u64,
}

impl DirectFile {
    /// # Errors
    /// `InvalidInput` where the file system cannot do that.
    pub(super) fn new(file: File, disk: u64) -> io::Result<DirectFile> {
        rustix::fs::fcntl_setfl(&file, OFlags::DIRECT)?;
        Ok(DirectFile { file: Arc::new(file), disk })
    }
}

/// What was read.
pub(crate) struct DirectData {
    room: Room,
    /// The part that was asked for; the kernel has written all of it.
    from: usize,
    len: usize,
}

impl AsRef<[u8]> for DirectData {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: within the room, and initialised (see `from`).
        unsafe { std::slice::from_raw_parts(self.room.start().add(self.from), self.len) }
    }
}

/// A read that somebody wants.
pub(super) struct Wanted<T> {
    pub(super) file: DirectFile,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) tag: T,
}

/// A read that the kernel has heard of.
struct Read<T> {
    /// Its file is open until it has ended.
    wanted: Wanted<T>,
    room: Room,
    /// What was wanted begins here in the room.
    from: usize,
    /// When the kernel heard of it.
    begun: Time,
    /// Others that the disk had to do then.
    beside: usize,
}

/// What one disk has to do.
struct Disk<T> {
    number: u64,
    /// Bytes of which reads must begin and end at a multiple.
    block: u64,
    under_way: usize,
    window: Window,
    /// Reads that have not begun: it has enough to do. They have no memory yet.
    waiting: VecDeque<Wanted<T>>,
}

impl<T> Disk<T> {
    /// May another of those that wait begin? Also if the disk has enough to do, as long as twice as many
    /// would wait behind it: then there are enough readers for all, and telling it of many at once is
    /// less work (decision 24).
    fn may_begin(&self) -> bool {
        self.window.has_room(self.under_way) || self.waiting.len() > 2 * self.under_way
    }

    /// How far into its first block a read begins, and the bytes of all that it touches.
    fn blocks(&self, offset: u64, len: usize) -> (usize, usize) {
        let from = (offset % self.block) as usize;
        (from, (from + len).next_multiple_of(self.block as usize))
    }
}

/// Reads under way, each with a tag that it is known by when it ends. Only the thread that has made it
/// may use it: the kernel lets no other in.
pub(super) struct DirectReads<T> {
    ring: Ring<T>,
    /// Written to when some may have ended.
    signal: Arc<OwnedFd>,
    disks: Vec<Disk<T>>,
    /// Those that could not begin.
    failed: Vec<(T, io::Error)>,
}

/// The kernel's side of it.
struct Ring<T> {
    uring: IoUring,
    /// For reads that are not large, from the first one on; none if there is no memory for it.
    pool: OnceCell<Option<Arc<Pool>>>,
    reads: Vec<Option<Read<T>>>,
    free: Vec<usize>,
    unsent: bool,
}

impl<T> Ring<T> {
    fn under_way(&self) -> usize {
        self.reads.len() - self.free.len()
    }

    /// Puts a read into the ring, of which it is one of `READS_MAX`.
    ///
    /// # Errors
    /// When there is no memory for it.
    fn push(&mut self, disk: &Disk<T>, wanted: Wanted<T>, now: Time) -> Result<(), (T, io::Error)> {
        let (from, bytes) = disk.blocks(wanted.offset, wanted.len);
        let pool = self.pool.get_or_init(|| Pool::new(&self.uring).ok());
        let pooled = pool.as_ref().and_then(|pool| pool.room(bytes));
        let room = match pooled.map_or_else(|| Room::new(bytes), Ok) {
            Ok(room) => room,
            Err(error) => return Err((wanted.tag, error)),
        };
        let at = self.free.pop().unwrap_or_else(|| {
            self.reads.push(None);
            self.reads.len() - 1
        });
        let fd = types::Fd(wanted.file.file.as_raw_fd());
        let offset = wanted.offset - from as u64;
        // `begin` has seen that it fits.
        let bytes = bytes as u32;
        let entry = match room.is_registered() {
            true => opcode::ReadFixed::new(fd, room.start(), bytes, 0).offset(offset).build(),
            false => opcode::Read::new(fd, room.start(), bytes).offset(offset).build(),
        };
        self.reads[at] = Some(Read { wanted, room, from, begun: now, beside: disk.under_way });
        self.unsent = true;
        // SAFETY: file and memory are in `reads` until the kernel has completed the entry; if this
        // is dropped before, the memory stays for ever.
        let pushed = unsafe { self.uring.submission().push(&entry.user_data(at as u64)) };
        pushed.expect("there is room for as many as there may be");
        Ok(())
    }

    /// Makes two reads go to the disk together: the kernel tells it of all that come in one call at once, but
    /// only if they are three (`IO_PLUG_THRESHOLD` of io_uring). To tell it is a good part of what a read costs
    /// in a virtual machine (docs/lab/performance.md).
    fn bundle(&mut self) {
        let mut submission = self.uring.submission();
        if submission.len() == 2 {
            let nothing = opcode::Nop::new().build().flags(squeue::Flags::SKIP_SUCCESS);
            // SAFETY: it points to nothing.
            let _ = unsafe { submission.push(&nothing.user_data(u64::MAX)) };
        }
    }

    fn enter(&mut self) {
        self.bundle();
        loop {
            match self.uring.submit().map_err(|error| error.raw_os_error()) {
                Err(Some(libc::EINTR)) => {}
                // The rest, or all if there is no memory for it now, comes with the next call.
                Ok(_) | Err(Some(libc::EAGAIN | libc::EBUSY)) => break,
                Err(error) => panic!("the kernel refuses a ring that it has made: {error:?}"),
            }
        }
        self.unsent = !self.uring.submission().is_empty();
    }
}

impl<T> DirectReads<T> {
    /// For the calling thread. `signal`, an eventfd(2), is written to when [`DirectReads::finish`] is due.
    ///
    /// # Errors
    /// As io_uring_setup(2): forbidden, too old (before Linux 6.1), no memory.
    pub(super) fn new(signal: Arc<OwnedFd>) -> io::Result<DirectReads<T>> {
        // DEFER_TASKRUN: what ends waits for `finish`, instead of interrupting the thread.
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(SUBMISSIONS)?;
        uring.submitter().register_eventfd(signal.as_raw_fd())?;
        let (pool, reads, free) = (OnceCell::new(), Vec::new(), Vec::new());
        Ok(DirectReads {
            ring: Ring { uring, pool, reads, free, unsent: false },
            signal,
            disks: Vec::new(),
            failed: Vec::new(),
        })
    }

    /// Takes up a read. It begins with a [`DirectReads::send`].
    ///
    /// # Errors
    /// `WouldBlock` when too many wait; `InvalidInput` for 4 GiB or more; each with the read.
    pub(super) fn begin(&mut self, wanted: Wanted<T>) -> Result<(), (Wanted<T>, io::ErrorKind)> {
        if self.disks.iter().map(|disk| disk.waiting.len()).sum::<usize>() >= WAITING_MAX {
            return Err((wanted, io::ErrorKind::WouldBlock));
        }
        let disk = disk(&mut self.disks, &wanted.file);
        let (_, bytes) = disk.blocks(wanted.offset, wanted.len);
        if u32::try_from(bytes).is_err() {
            return Err((wanted, io::ErrorKind::InvalidInput));
        }
        disk.waiting.push_back(wanted);
        Ok(())
    }

    /// Puts as many into the ring as the disks should have.
    fn fill(&mut self) {
        let mut now = None;
        for disk in &mut self.disks {
            while disk.may_begin()
                && self.ring.under_way() < READS_MAX
                && let Some(wanted) = disk.waiting.pop_front()
            {
                match self.ring.push(disk, wanted, *now.get_or_insert_with(time::now)) {
                    Ok(()) => disk.under_way += 1,
                    Err(failed) => self.failed.push(failed),
                }
            }
        }
        if self.ring.under_way() == READS_MAX {
            // So that each disk comes to be the first.
            self.disks.rotate_left(1);
        }
        if !self.failed.is_empty() {
            // `finish` tells; a counter that is full is a signal, too.
            let _ = rustix::io::write(&*self.signal, &1u64.to_ne_bytes());
        }
    }

    /// Hands what was begun to the kernel, as far as the disks should have it yet.
    pub(super) fn send(&mut self) {
        self.fill();
        if self.ring.unsent {
            self.ring.enter();
        }
    }

    /// Calls `done` for each read that has ended: with its data, or
    ///
    /// # Errors
    /// read(2)'s; `UnexpectedEof` if the file, or what the disk gave at once, ends before; `OutOfMemory`.
    pub(super) fn finish(&mut self, mut done: impl FnMut(T, io::Result<DirectData>)) {
        if self.ring.unsent || self.ring.uring.submission().taskrun() {
            self.ring.enter();
        }
        for (tag, error) in self.failed.drain(..) {
            done(tag, Err(error));
        }
        let now = time::now();
        let Ring { uring, reads, free, .. } = &mut self.ring;
        for entry in uring.completion() {
            let at = entry.user_data() as usize;
            let Some(read) = reads.get_mut(at).and_then(Option::take) else { continue };
            free.push(at);
            let Read { wanted: Wanted { file, offset, len, tag }, room, from, begun, beside } =
                read;
            let disk = disk(&mut self.disks, &file);
            drop(file);
            disk.under_way -= 1;
            let result = match usize::try_from(entry.result()) {
                Err(_) => Err(io::Error::from_raw_os_error(-entry.result())),
                Ok(bytes) if bytes < from + len => Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {
                    // What fails says nothing about the disk.
                    let (_, bytes) = disk.blocks(offset, len);
                    disk.window.ended(bytes, beside, begun, now);
                    Ok(DirectData { room, from, len })
                }
            };
            done(tag, result);
        }
        self.send();
    }
}

/// The disk that a file is on.
fn disk<'a, T>(disks: &'a mut Vec<Disk<T>>, file: &DirectFile) -> &'a mut Disk<T> {
    let number = file.disk;
    let at = disks.iter().position(|disk| disk.number == number).unwrap_or_else(|| {
        let window = Window::new(time::now());
        let block = block_bytes(&file.file) as u64;
        disks.push(Disk { number, block, under_way: 0, window, waiting: VecDeque::new() });
        disks.len() - 1
    });
    &mut disks[at]
}

/// Bytes of which direct reads of a file must begin and end at a multiple (statx(2), from Linux 6.1 on).
fn block_bytes(file: &File) -> usize {
    let (at, mask) = (AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let told =
        rustix::fs::statx(file, c"", at, mask).ok().filter(|stat| stat.stx_dio_mem_align > 0);
    let block = told.map_or(BLOCK_BYTES, |stat| stat.stx_dio_offset_align as usize);
    if block.is_power_of_two() { block.min(BLOCK_BYTES) } else { BLOCK_BYTES }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // The kernel may still write there.
        self.reads.drain(..).flatten().for_each(|read| std::mem::forget(read.room));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::FileExt;

    use super::*;

    /// A file of these bytes, where it can be read past the page cache.
    fn file(data: &[u8]) -> Option<File> {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(data, 0).unwrap();
        DirectFile::new(file.try_clone().unwrap(), 1).ok()?;
        Some(file)
    }

    /// Where the kernel allows rings.
    fn ring<T>() -> Option<DirectReads<T>> {
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        DirectReads::new(Arc::new(rustix::event::eventfd(0, flags).unwrap())).ok()
    }

    fn wanted<T>(file: &File, disk: u64, offset: u64, len: usize, tag: T) -> Wanted<T> {
        let file = DirectFile::new(file.try_clone().unwrap(), disk).unwrap();
        Wanted { file, offset, len, tag }
    }

    fn begin<T>(reads: &mut DirectReads<T>, wanted: Wanted<T>) -> Result<(), io::ErrorKind> {
        reads.begin(wanted).map_err(|(_, kind)| kind)
    }

    fn all<T>(reads: &mut DirectReads<T>, count: usize) -> Vec<(T, io::Result<DirectData>)> {
        let mut ended = Vec::new();
        reads.send();
        while ended.len() < count {
            rustix::io::read(&*reads.signal, &mut [0; 8]).unwrap();
            reads.finish(|tag, result| ended.push((tag, result)));
        }
        ended
    }

    #[test]
    fn any_range_is_read() {
        let data: Vec<u8> = (0..100_000u32).map(|i| (i * 7 / 3) as u8).collect();
        let Some(file) = file(&data) else { return };
        let Some(mut reads) = ring() else { return };
        let ranges = [(0, 1), (0, 100_000), (4096, 4096), (4095, 2), (99_999, 1), (511, 70_000)];
        for (offset, len) in ranges {
            begin(&mut reads, wanted(&file, 1, offset, len, (offset, len))).unwrap();
        }
        for ((offset, len), result) in all(&mut reads, ranges.len()) {
            assert_eq!(result.unwrap().as_ref(), &data[offset as usize..][..len]);
        }
        begin(&mut reads, wanted(&file, 1, 99_999, 2, (0, 0))).unwrap();
        let kind = all(&mut reads, 1).remove(0).1.err().unwrap().kind();
        assert_eq!(kind, io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn many_disks_share_the_ring() {
        const DISKS: usize = READS_MAX;
        let Some(file) = file(&[7; 8192]) else { return };
        let Some(mut reads) = ring() else { return };
        // Of each four may be under way at first: more than fit.
        for n in 0..4 * DISKS {
            let disk = (n % DISKS) as u64;
            begin(&mut reads, wanted(&file, disk, 0, 8192, n)).unwrap();
        }
        reads.send();
        assert_eq!(reads.ring.under_way(), READS_MAX);
        let ended = all(&mut reads, 4 * DISKS);
        let mut tags: Vec<usize> = ended.iter().map(|(tag, _)| *tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..4 * DISKS).collect::<Vec<_>>());
        assert!(ended.into_iter().all(|(_, result)| result.unwrap().as_ref() == [7; 8192]));
        assert_eq!(reads.ring.under_way(), 0);
    }

    #[test]
    fn where_many_wait_a_third_is_under_way() {
        let Some(file) = file(&[7; 8192]) else { return };
        for (count, under_way) in [(3, 3), (12, 4), (13, 5), (90, 30), (WAITING_MAX, READS_MAX)] {
            let Some(mut reads) = ring() else { return };
            for _ in 0..count {
                begin(&mut reads, wanted(&file, 1, 0, 8192, ())).unwrap();
            }
            reads.send();
            assert_eq!(reads.ring.under_way(), under_way, "of {count}");
            assert_eq!(all(&mut reads, count).len(), count);
        }
    }

    #[test]
    fn there_is_a_bound() {
        let Some(file) = file(&[7; 8192]) else { return };
        let Some(mut reads) = ring() else { return };
        for _ in 0..WAITING_MAX {
            begin(&mut reads, wanted(&file, 1, 0, 8192, ())).unwrap();
        }
        let refused = begin(&mut reads, wanted(&file, 1, 0, 8192, ())).unwrap_err();
        assert_eq!(refused, io::ErrorKind::WouldBlock);
        let ended = all(&mut reads, WAITING_MAX);
        assert!(ended.into_iter().all(|(_, result)| result.unwrap().as_ref() == [7; 8192]));
        begin(&mut reads, wanted(&file, 1, 0, 8192, ())).unwrap();
        // And what is under way when it is dropped does no harm.
        reads.send();
    }
}
