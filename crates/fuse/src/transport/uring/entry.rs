//! The memory that requests come in and answers go out of.

use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::ring::{ENT_IN_OUT, HEADER_BYTES, IN_OUT, OP_IN};
use crate::abi::{InHeader, OutHeader, RingEntInOut};

/// Room for one header: whole cache lines.
const HEADER_STRIDE: usize = HEADER_BYTES.next_multiple_of(64);

/// Headers and payloads of all entries of a ring. Pages that no request has reached take no
/// memory.
pub(super) struct Memory {
    start: NonNull<u8>,
    entries: usize,
    payload_bytes: usize,
}

// SAFETY: it is memory and nothing else, which no thread is bound to. Who reads and writes which
// part of it is what `RingEntry` is about.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Reserves room for `entries` with payloads of up to `payload_bytes` (whole pages).
    ///
    /// # Errors
    /// ENOMEM when so much cannot be reserved.
    pub(super) fn reserve(entries: usize, payload_bytes: usize) -> rustix::io::Result<Memory> {
        let bytes = entries * (HEADER_STRIDE + payload_bytes);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, access, flags)? };
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Memory { start, entries, payload_bytes })
    }

    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    pub(super) fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// Payloads first: they are whole pages.
    pub(super) fn payload(&self, index: usize) -> *mut u8 {
        assert!(index < self.entries);
        // SAFETY: within the mapping, for `index` is an entry's.
        unsafe { self.start.as_ptr().add(index * self.payload_bytes) }
    }

    pub(super) fn header(&self, index: usize) -> *mut u8 {
        assert!(index < self.entries);
        let at = self.entries * self.payload_bytes + index * HEADER_STRIDE;
        // SAFETY: within the mapping, for `index` is an entry's.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// Gives the pages of a payload back, from its first `kept_bytes` (whole pages) on.
    ///
    /// # Safety
    /// Nobody reads or writes the entry meanwhile, the kernel included.
    pub(super) unsafe fn discard(&self, index: usize, kept_bytes: usize) {
        let len = self.payload_bytes.saturating_sub(kept_bytes);
        // SAFETY: within this payload; the caller says that nobody uses it.
        let done = unsafe {
            let start = self.payload(index).add(self.payload_bytes - len);
            rustix::mm::madvise(start.cast(), len, Advice::LinuxDontNeed)
        };
        if let Err(error) = done {
            tracing::warn!("memory is not given back: {error}");
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let bytes = self.entries * (HEADER_STRIDE + self.payload_bytes);
        // SAFETY: the mapping is ours, and no entry of it is left.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), bytes) };
    }
}

/// An entry that is in this process's hands: the kernel has put a request there and does not
/// touch it before it is answered. There is one of each index at most.
pub(crate) struct RingEntry {
    memory: Arc<Memory>,
    index: usize,
}

impl RingEntry {
    /// # Safety
    /// The kernel has handed out the entry `index`, and there is no other [`RingEntry`] of it.
    pub(super) unsafe fn new(memory: &Arc<Memory>, index: usize) -> RingEntry {
        RingEntry { memory: Arc::clone(memory), index }
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    fn header(&self) -> &[u8] {
        // SAFETY: initialised memory of this entry, which only `&mut self` writes (see above).
        unsafe { std::slice::from_raw_parts(self.memory.header(self.index), HEADER_BYTES) }
    }

    fn header_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else reads it.
        unsafe { std::slice::from_raw_parts_mut(self.memory.header(self.index), HEADER_BYTES) }
    }

    fn exchange(&self) -> RingEntInOut {
        RingEntInOut::read_from_bytes(&self.header()[ENT_IN_OUT]).expect("its size is the range's")
    }

    /// The request's header.
    pub(crate) fn request_header(&self) -> InHeader {
        let (header, _) =
            InHeader::read_from_prefix(&self.header()[IN_OUT]).expect("it is shorter");
        header
    }

    /// What the kernel knows the request by.
    pub(crate) fn commit_id(&self) -> u64 {
        self.exchange().commit_id
    }

    /// The operation's structure, and what is left of its room.
    pub(crate) fn op(&self) -> &[u8] {
        &self.header()[OP_IN]
    }

    /// The rest of the request.
    pub(crate) fn payload(&self) -> &[u8] {
        let len = (self.exchange().payload_sz as usize).min(self.memory.payload_bytes);
        // SAFETY: initialised memory of this entry, as in `header`.
        unsafe { std::slice::from_raw_parts(self.memory.payload(self.index), len) }
    }

    /// Writes the answer where the request was; `None` if there is no room for it.
    pub(super) fn answer(&mut self, header: OutHeader, parts: [&[u8]; 2]) -> Option<()> {
        let len = parts[0].len() + parts[1].len();
        if len > self.memory.payload_bytes {
            return None;
        }
        // SAFETY: memory of this entry, which nobody else reads or writes.
        let room = unsafe { std::slice::from_raw_parts_mut(self.memory.payload(self.index), len) };
        let (head, data) = room.split_at_mut(parts[0].len());
        head.copy_from_slice(parts[0]);
        data.copy_from_slice(parts[1]);
        let exchange = RingEntInOut { payload_sz: len as u32, ..self.exchange() };
        let out = self.header_mut();
        out[IN_OUT][..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        out[ENT_IN_OUT].copy_from_slice(exchange.as_bytes());
        Some(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// An entry with a request in it, as the kernel would have written it.
    pub(crate) fn entry_of(header: InHeader, op: &[u8], payload: &[u8]) -> RingEntry {
        let memory = Arc::new(Memory::reserve(2, 4096).unwrap());
        // SAFETY: no kernel is involved.
        let mut entry = unsafe { RingEntry::new(&memory, 1) };
        entry.answer(OutHeader { len: 0, error: 0, unique: 0 }, [payload, b""]).unwrap();
        let out = entry.header_mut();
        out[IN_OUT][..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        out[OP_IN][..op.len()].copy_from_slice(op);
        entry
    }

    #[test]
    fn an_answer_takes_the_place_of_the_request() {
        let header = crate::request::Request::parse(crate::request::tests::bytes_of(1, 1, b""));
        let mut entry = entry_of(header.unwrap().header, b"op", b"payload");
        assert_eq!((entry.payload(), &entry.op()[..3]), (&b"payload"[..], &b"op\0"[..]));
        assert_eq!(entry.request_header().unique, 7);
        let out = OutHeader { len: 19, error: 0, unique: 7 };
        entry.answer(out, [b"a", b"bc"]).unwrap();
        assert_eq!(entry.payload(), b"abc");
        assert_eq!(&entry.header()[IN_OUT][..16], out.as_bytes());
        assert!(entry.answer(out, [&[0; 4096], b"x"]).is_none(), "longer than the room");
        assert_eq!(entry.payload(), b"abc", "which is left as it was");
    }

    #[test]
    fn memory_that_is_given_back_is_empty_and_works() {
        let memory = Arc::new(Memory::reserve(3, 4 * 4096).unwrap());
        // SAFETY: no kernel is involved.
        let mut entries = [0, 1, 2].map(|index| unsafe { RingEntry::new(&memory, index) });
        let out = OutHeader { len: 0, error: 0, unique: 0 };
        for entry in &mut entries {
            entry.answer(out, [&[1; 4 * 4096], b""]).unwrap();
        }
        // SAFETY: nobody holds a part of it.
        unsafe { memory.discard(1, 4096) };
        let sums = entries.map(|e| e.payload().iter().map(|&b| usize::from(b)).sum::<usize>());
        assert_eq!(sums, [4 * 4096, 4096, 4 * 4096]);
    }
}
