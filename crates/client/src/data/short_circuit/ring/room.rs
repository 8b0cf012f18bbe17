//! Memory that a disk can write to: whole blocks, at a multiple of a block.

use std::alloc::Layout;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io_uring::IoUring;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use saker_runtime::fs::BLOCK_BYTES;

/// Bytes of a pool: one huge page.
const POOL_BYTES: usize = 2 << 20;
/// Of each of its rooms: 128 KiB that begin and end anywhere.
const ROOM_BYTES: usize = (128 << 10) + BLOCK_BYTES;

/// Memory for one read; nobody else has it.
pub(super) struct Room {
    start: NonNull<u8>,
    home: Home,
}

enum Home {
    Heap(Layout),
    Pool(Arc<Pool>),
}

// SAFETY: it is memory and nothing else, which no thread is bound to.
unsafe impl Send for Room {}
// SAFETY: nobody writes to it while it is shared.
unsafe impl Sync for Room {}

impl Room {
    /// A room that is returned to the system after its use.
    ///
    /// # Errors
    /// `OutOfMemory`, `InvalidInput`.
    pub(super) fn new(bytes: usize) -> io::Result<Room> {
        let layout = Layout::from_size_align(bytes.max(1), BLOCK_BYTES);
        let layout = layout.map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: of more than no bytes.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) });
        Ok(Room { start: start.ok_or(io::ErrorKind::OutOfMemory)?, home: Home::Heap(layout) })
    }

    /// Where it begins.
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Whether the ring that it is for can read into it as its buffer 0.
    pub(super) fn is_registered(&self) -> bool {
        matches!(&self.home, Home::Pool(pool) if pool.registered)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        match &self.home {
            // SAFETY: allocated so in `new`, and nobody uses it any more.
            Home::Heap(layout) => unsafe { std::alloc::dealloc(self.start(), *layout) },
            Home::Pool(pool) => pool.free().push(self.start),
        }
    }
}

/// Rooms that are used again and again, the last one first: caches still have its memory, and the kernel
/// can have looked up its pages once for all reads. Where there are huge pages the disk is told of one piece of memory
/// instead of one for each page.
pub(super) struct Pool {
    /// As mapped; the rooms are in the part of it that a huge page can be.
    mapped: NonNull<u8>,
    free: Mutex<Vec<NonNull<u8>>>,
    registered: bool,
}

// SAFETY: it is memory and nothing else, which no thread is bound to.
unsafe impl Send for Pool {}
// SAFETY: each room has one user at a time.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool for the reads of one ring, which knows it as buffer 0 if the kernel lets it.
    ///
    /// # Errors
    /// As mmap(2).
    pub(super) fn new(uring: &IoUring) -> io::Result<Arc<Pool>> {
        // SAFETY: new memory, where the kernel likes.
        let mapped = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), 2 * POOL_BYTES, access, flags)?
        };
        let mapped = NonNull::new(mapped.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut pool = Pool { mapped, free: Mutex::default(), registered: false };
        let start = pool.start();
        // SAFETY: mapped above, and nobody uses it yet. Where there are no huge pages it is as good as any.
        let _ = unsafe {
            rustix::mm::madvise(start.as_ptr().cast(), POOL_BYTES, Advice::LinuxHugepage)
        };
        let rooms = (0..POOL_BYTES / ROOM_BYTES).rev();
        // SAFETY: within the mapping.
        let rooms = rooms.map(|n| unsafe { start.add(n * ROOM_BYTES) });
        *pool.free.get_mut().unwrap_or_else(PoisonError::into_inner) = rooms.collect();
        let all = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: POOL_BYTES };
        // SAFETY: the kernel keeps the pages for itself until the ring is closed.
        match unsafe { uring.submitter().register_buffers(&[all]) } {
            Ok(()) => pool.registered = true,
            // As where little memory may be locked (RLIMIT_MEMLOCK).
            Err(error) => tracing::debug!("the kernel looks up the memory of each read: {error}"),
        }
        Ok(Arc::new(pool))
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: less than `POOL_BYTES` beyond the start of twice as many.
        unsafe { self.mapped.add(self.mapped.align_offset(POOL_BYTES)) }
    }

    fn free(&self) -> MutexGuard<'_, Vec<NonNull<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A room for so many bytes, if one is free.
    pub(super) fn room(self: &Arc<Pool>, bytes: usize) -> Option<Room> {
        let start = (bytes <= ROOM_BYTES).then(|| self.free().pop())??;
        Some(Room { start, home: Home::Pool(self.clone()) })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: mapped so in `new`; rooms keep the pool, so nobody uses it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.mapped.as_ptr().cast(), 2 * POOL_BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Where the kernel allows rings.
    fn pool() -> Option<Arc<Pool>> {
        let uring = IoUring::new(1).ok()?;
        Some(Pool::new(&uring).unwrap())
    }

    #[test]
    fn rooms_are_apart_and_used_again() {
        let Some(pool) = pool() else { return };
        assert_eq!(pool.start().as_ptr() as usize % POOL_BYTES, 0);
        assert!(pool.room(ROOM_BYTES + 1).is_none());
        let rooms: Vec<Room> = std::iter::from_fn(|| pool.room(ROOM_BYTES)).collect();
        assert_eq!(rooms.len(), POOL_BYTES / ROOM_BYTES);
        for (n, room) in rooms.iter().enumerate() {
            // SAFETY: its own memory.
            unsafe { room.start().write_bytes(n as u8, ROOM_BYTES) };
        }
        for (n, room) in rooms.iter().enumerate() {
            // SAFETY: written above.
            let bytes = unsafe { std::slice::from_raw_parts(room.start(), ROOM_BYTES) };
            assert!(bytes.iter().all(|byte| *byte == n as u8));
        }
        assert!(pool.room(1).is_none());
        let last = rooms.last().unwrap().start();
        drop(rooms);
        assert_eq!(pool.room(1).unwrap().start(), last);
    }

    #[test]
    fn a_room_outlives_its_pool() {
        let Some(pool) = pool() else { return };
        let room = pool.room(1).unwrap();
        drop(pool);
        // SAFETY: its own memory.
        unsafe { room.start().write(7) };
    }
}
