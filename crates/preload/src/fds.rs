//! What the descriptors of this process lead to.
//!
//! An array of atomics by descriptor, in memory of its own: looking up one that is not ours costs
//! two loads, takes no lock, and may be done in a signal handler.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

use crate::datasets::Node;
use crate::{process, sys};

/// Descriptors that are looked after, at most.
const FDS_MAX: u64 = 1 << 20;

/// How a descriptor gives a file's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A part of a partition: the file's first byte is at [`Entry::base`].
    Window = 1,
    /// A file in memory, which has the data and nothing else.
    Memory = 2,
    /// The same, from the node's agent, which is told when it is closed.
    Shared = 3,
    /// No data: a directory, or opened with `O_PATH`.
    Bare = 4,
}

/// In the place of a kind: an output ([`crate::outfds`]), which is no node.
const OUTPUT: u64 = 5;

/// What a descriptor leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// How it gives the data.
    pub kind: Kind,
    /// The file.
    pub node: Node,
    /// Of a window.
    pub base: u64,
}

#[repr(C)]
struct Slot {
    /// The kind in the highest byte, and the node. 0: not ours.
    bits: AtomicU64,
    base: AtomicU64,
    /// Not 0: another process may have the position, too.
    shared: AtomicU64,
}

static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(std::ptr::null_mut());
static LEN: AtomicI32 = AtomicI32::new(0);
/// No descriptor above is ours.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// Makes the array, if it is not there.
fn slots() -> *mut Slot {
    let known = SLOTS.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the limits.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let len = limit.rlim_max.clamp(1024, FDS_MAX);
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    let flags = flags | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let bytes = len as usize * size_of::<Slot>();
    // SAFETY: new memory, where the kernel likes.
    let new = unsafe { sys::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
    let Ok(new) = new.map(<*mut _>::cast::<Slot>) else { return std::ptr::null_mut() };
    let null = std::ptr::null_mut();
    match SLOTS.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            LEN.store(len as c_int, Ordering::Release);
            new
        }
        Err(other) => {
            // SAFETY: nobody else has seen it.
            unsafe { libc::syscall(libc::SYS_munmap, new, bytes) };
            other
        }
    }
}

fn slot(fd: c_int) -> Option<&'static Slot> {
    if fd < 0 || fd >= LEN.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: the array is that long (zeros are valid), and never unmapped.
    unsafe { SLOTS.load(Ordering::Acquire).add(fd as usize).as_ref() }
}

/// What a descriptor leads to, if it is ours.
#[inline]
pub fn get(fd: c_int) -> Option<Entry> {
    let slot = slot(fd)?;
    let bits = slot.bits.load(Ordering::Acquire);
    if bits == 0 {
        return None;
    }
    let kind = match bits >> 56 {
        OUTPUT => return None,
        1 => Kind::Window,
        2 => Kind::Memory,
        3 => Kind::Shared,
        _ => Kind::Bare,
    };
    let base = slot.base.load(Ordering::Acquire);
    Some(Entry { kind, node: Node::from_bits(bits & ((1 << 56) - 1)), base })
}

/// What a descriptor that is part of a partition leads to.
#[inline]
pub fn window(fd: c_int) -> Option<Window> {
    let entry = get(fd).filter(|entry| entry.kind == Kind::Window)?;
    Some(Window { fd, base: entry.base, size: entry.node.info().size, node: entry.node })
}

/// Notes what a descriptor leads to.
///
/// # Errors
/// EMFILE: it is too high. Children of vfork(2) note nothing: ENOTSUP.
pub fn set(fd: c_int, entry: Entry) -> sys::Result<()> {
    if !process::owns_its_memory() {
        return Err(libc::ENOTSUP);
    }
    let slot = new_slot(fd)?;
    slot.base.store(entry.base, Ordering::Release);
    slot.shared.store(0, Ordering::Release);
    let bits = (entry.kind as u64) << 56 | entry.node.to_bits();
    slot.bits.store(bits, Ordering::Release);
    Ok(())
}

fn new_slot(fd: c_int) -> sys::Result<&'static Slot> {
    slots();
    let slot = slot(fd).ok_or(libc::EMFILE)?;
    HIGHEST.fetch_max(fd, Ordering::AcqRel);
    Ok(slot)
}

/// Marks a descriptor as that of an output.
///
/// # Errors
/// As of [`set`].
pub fn mark(fd: c_int) -> sys::Result<()> {
    if !process::owns_its_memory() {
        return Err(libc::ENOTSUP);
    }
    new_slot(fd)?.bits.store(OUTPUT << 56, Ordering::Release);
    Ok(())
}

/// It is a descriptor of an output.
#[inline]
pub fn is_marked(fd: c_int) -> bool {
    slot(fd).is_some_and(|slot| slot.bits.load(Ordering::Acquire) >> 56 == OUTPUT)
}

/// It is none any more.
pub fn unmark(fd: c_int) {
    if let Some(slot) = slot(fd) {
        slot.bits.store(0, Ordering::Release);
    }
}

/// Forgets a descriptor, and says what it led to.
pub fn clear(fd: c_int) -> Option<Entry> {
    let entry = get(fd)?;
    if !process::owns_its_memory() {
        return None;
    }
    slot(fd)?.bits.store(0, Ordering::Release);
    Some(entry)
}

/// All that are ours.
pub fn all() -> impl Iterator<Item = (c_int, Entry)> {
    (0..=HIGHEST.load(Ordering::Acquire)).filter_map(|fd| Some((fd, get(fd)?)))
}

/// Before fork(2): all windows have a position that a child shares. Says whether there are any.
pub fn share() -> bool {
    let mut has_windows = false;
    for (fd, _) in all().filter(|(_, entry)| entry.kind == Kind::Window) {
        if let Some(slot) = slot(fd) {
            slot.shared.store(1, Ordering::Release);
            has_windows = true;
        }
    }
    has_windows
}

/// Another process may have the position, too.
pub fn is_shared(fd: c_int) -> bool {
    slot(fd).is_some_and(|slot| slot.shared.load(Ordering::Acquire) != 0)
}

/// In a child: what the agent gave to the parent is the parent's to close.
pub fn after_fork() {
    for (fd, entry) in all().filter(|(_, entry)| entry.kind == Kind::Shared) {
        // It is there already.
        let _ = set(fd, Entry { kind: Kind::Memory, ..entry });
    }
}

/// A descriptor that is a part of a partition.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The descriptor; its position is one in the partition.
    pub fd: c_int,
    /// The file's first byte in the partition.
    pub base: u64,
    /// Bytes of the file.
    pub size: u64,
    /// The file.
    pub node: Node,
}

impl Window {
    /// How many of `len` bytes from `position` on there are.
    pub fn clip(&self, position: u64, len: usize) -> usize {
        self.size.saturating_sub(position).min(len as u64) as usize
    }

    /// The position in the file.
    ///
    /// # Errors
    /// EBADF: opened with `O_PATH`, or closed.
    pub fn position(&self) -> sys::Result<u64> {
        Ok((sys::lseek(self.fd, 0, libc::SEEK_CUR)? as u64).saturating_sub(self.base))
    }

    /// Sets the position in the file.
    ///
    /// # Errors
    /// EINVAL: before the file's first byte, or too far behind its last.
    pub fn seek(&self, position: i64) -> sys::Result<i64> {
        if position < 0 {
            return Err(libc::EINVAL);
        }
        let at = position.checked_add(self.base as i64).ok_or(libc::EINVAL)?;
        sys::lseek(self.fd, at, libc::SEEK_SET)?;
        Ok(position)
    }
}
