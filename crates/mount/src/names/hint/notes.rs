//! The memory that the program of `hint.bpf.c` writes: one note for each thread id modulo
//! [`NOTES`].

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::calibrate::Bits;
use super::syscall::{ARGS, Syscall};
use super::{Hint, Lookup, LookupIntent, PathStep, Rest, Which, path};

const NOTES: usize = 4096;
const TEXT: usize = 464;
const WORDS: usize = size_of::<LookupNote>() / 8;
/// Words before the texts.
const HEAD: usize = (size_of::<LookupNote>() - 2 * TEXT) / 8;
/// `walk`: the thread has ended its walk.
const WALK_NONE: u32 = 0;
/// `bits`: no name goes before this one in the path.
const FIRST: u32 = 1;
/// `bits`: nothing can be made, perhaps.
const READ_ONLY: u32 = 2;
/// `walk`: it walks the second of the syscall's two paths; else the first.
const WALK_SECOND: u32 = 2;

/// What the program notes of one LOOKUP, as `struct note` there.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct LookupNote {
    sequence: u64,
    unique: u64,
    nodeid: u64,
    args: [u64; ARGS],
    tid: u32,
    syscall: u32,
    walk: u32,
    flags: u32,
    depth: u32,
    text_len: u32,
    second_len: u32,
    bits: u32,
    text: [u8; TEXT],
    second: [u8; TEXT],
}
const _: () = assert!(size_of::<LookupNote>() == 1024 && TEXT.is_multiple_of(8));

/// The program's map, shared with the kernel.
pub(super) struct LookupNotes {
    words: *const AtomicU64,
}

// SAFETY: the memory is mapped until drop, and only read by atomic operations.
unsafe impl Send for LookupNotes {}
// SAFETY: as above.
unsafe impl Sync for LookupNotes {}

impl LookupNotes {
    /// Maps the memory of the program's map.
    pub(super) fn map(fd: BorrowedFd<'_>) -> rustix::io::Result<LookupNotes> {
        let null = std::ptr::null_mut();
        let size = NOTES * size_of::<LookupNote>();
        // SAFETY: a new mapping, at no address in particular.
        let words =
            unsafe { rustix::mm::mmap(null, size, ProtFlags::READ, MapFlags::SHARED, fd, 0) }?;
        Ok(LookupNotes { words: words.cast() })
    }

    /// The note about this LOOKUP, if it is there and whole.
    pub(super) fn find(&self, lookup: Lookup<'_>) -> Option<LookupNote> {
        // SAFETY: the mapping has NOTES times WORDS words, aligned as a page is.
        let words = unsafe { std::slice::from_raw_parts(self.words, NOTES * WORDS) };
        let (notes, _) = words.as_chunks::<WORDS>();
        copy(&notes[lookup.tid as usize % NOTES], |note| note.is_about(lookup))
    }
}

impl Drop for LookupNotes {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing that was read borrows from it.
        // It cannot fail: this is the whole mapping.
        let _ = unsafe {
            rustix::mm::munmap(self.words.cast_mut().cast(), NOTES * size_of::<LookupNote>())
        };
    }
}

/// Copies a note, texts only as far as they go; `None` if it was written meanwhile, or if `wanted`
/// does not want it by what precedes the texts.
fn copy(from: &[AtomicU64; WORDS], wanted: impl Fn(&LookupNote) -> bool) -> Option<LookupNote> {
    let mut note = LookupNote::new_zeroed();
    let to: &mut [u64; WORDS] = zerocopy::transmute_mut!(&mut note);
    let load = |to: &mut [u64], from: &[AtomicU64]| {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
    };
    let sequence = from[0].load(Ordering::Acquire);
    load(&mut to[..HEAD], &from[..HEAD]);
    let head: &LookupNote = zerocopy::transmute_ref!(&*to);
    if !sequence.is_multiple_of(2) || !wanted(head) {
        return None;
    }
    let lens = [head.text_len, head.second_len].map(|len| (len as usize).min(TEXT).div_ceil(8));
    for (len, at) in lens.into_iter().zip([HEAD, HEAD + TEXT / 8]) {
        load(&mut to[at..at + len], &from[at..at + len]);
    }
    fence(Ordering::Acquire);
    (from[0].load(Ordering::Relaxed) == sequence).then_some(note)
}

impl LookupNote {
    fn is_about(&self, lookup: Lookup<'_>) -> bool {
        let known = self.unique == 0 || self.unique == lookup.unique;
        let same = self.tid == lookup.tid && self.nodeid == lookup.nodeid;
        lookup.tid != 0 && same && known
    }

    /// What the note says of `name`; `None` if it is about another one.
    pub(super) fn hint(&self, bits: &Bits, name: &[u8]) -> Option<Hint> {
        // The kernel's copies of two paths are told apart by where they come from.
        if self.has_one_text() {
            return None;
        }
        if self.walk == WALK_NONE {
            return self.after_walk(name);
        }
        let (rest, flags) = self.walk(name)?;
        let has = |bit: u32| flags & bit != 0;
        let step = if has(bits.parent) {
            PathStep::Through(rest)
        } else if has(bits.open) {
            PathStep::Last(self.feasible(self.open().unwrap_or(LookupIntent::Plain)))
        } else {
            PathStep::Last(LookupIntent::Plain)
        };
        let path = if self.walk == WALK_SECOND { Which::Second } else { Which::First };
        let beside = self.other().is_some_and(|other| !other.is_some_and(path::is_alone));
        let (first, reval) = (self.bits & FIRST != 0, has(bits.reval));
        Some(Hint { step, first, path: Some(path), beside, reval })
    }

    /// If the thread's walk is at `name`: what follows, and its flags.
    pub(super) fn walk(&self, name: &[u8]) -> Option<(Rest, u32)> {
        let (text, cut) = text(&self.text, self.text_len)?;
        let rest = text.strip_prefix(name)?;
        if self.walk == WALK_NONE || rest.first().is_some_and(|&b| b != b'/') {
            return None;
        }
        let rest = match path::rest(rest) {
            // What the kernel keeps of the outer texts cannot be told from leftovers.
            _ if self.depth > 0 => Rest::InLink,
            Rest::DotDot => Rest::DotDot,
            _ if cut => Rest::Cut,
            Rest::Names if self.is_beside_dots() => Rest::BesideDots,
            rest => rest,
        };
        Some((rest, self.flags))
    }

    /// The thread walks one of two paths, and the other is not known to end in a name.
    fn is_beside_dots(&self) -> bool {
        self.other().is_some_and(|other| other.is_none_or(|other| path::last(other).is_none()))
    }

    /// If the thread walks one of two paths: the other, if that could be read whole.
    fn other(&self) -> Option<Option<&[u8]>> {
        let both = Syscall::of(self.syscall).is_some_and(|call| call.walks_both());
        let whole = || text(&self.second, self.second_len).filter(|(_, cut)| !cut);
        both.then(|| whole().map(|(other, _)| other))
    }

    /// Both paths of the syscall are one text, from two directories perhaps.
    fn has_one_text(&self) -> bool {
        Syscall::of(self.syscall).is_some_and(|call| match call.paths {
            &[a, b] => self.args[a] == self.args[b],
            _ => false,
        })
    }

    /// How the thread opens what is at the end of its walk, if that is known.
    fn open(&self) -> Option<LookupIntent> {
        let intent = Syscall::of(self.syscall)?.intent(0, false, &self.args);
        matches!(intent, LookupIntent::Open { .. }).then_some(intent)
    }

    /// What is wanted of `name`, which is the last of its path.
    fn after_walk(&self, name: &[u8]) -> Option<Hint> {
        let call = Syscall::of(self.syscall)?;
        if !call.ends_walk_early() {
            return None;
        }
        let mut paths = [&[][..]; 2];
        let texts = [(&self.text, self.text_len), (&self.second, self.second_len)];
        for ((to, _), (bytes, len)) in paths.iter_mut().zip(call.paths).zip(texts) {
            let (text, cut) = text(bytes, len)?;
            *to = text;
            (!cut).then_some(())?;
        }
        let (which, intent) = call.intent_after_walk(name, paths, &self.args)?;
        let first = path::is_alone(paths[which.unwrap_or(0)]);
        let beside = call.walks_both() && !path::is_alone(paths[1 - which.unwrap_or(0)]);
        let path = which.map(Which::of);
        let step = PathStep::Last(self.feasible(intent));
        Some(Hint { step, first, path, beside, reval: false })
    }

    /// The intent, unless nothing can be made: of what is there the kernel says so first, and needs to know.
    fn feasible(&self, intent: LookupIntent) -> LookupIntent {
        let makes = match intent {
            LookupIntent::Open { .. } | LookupIntent::Create => intent.is_change(),
            // The kernel refuses these through a read-only mount before it looks names up.
            LookupIntent::Remove { .. } | LookupIntent::RenameTarget => false,
            LookupIntent::Plain | LookupIntent::RenameSource => false,
        };
        if makes && self.bits & READ_ONLY != 0 { LookupIntent::Plain } else { intent }
    }
}

/// A text without its NUL, and whether it was cut; `None` if it could not be read.
fn text(bytes: &[u8; TEXT], len: u32) -> Option<(&[u8], bool)> {
    let len = len as usize;
    Some((bytes.get(..len.checked_sub(1)?)?, len == TEXT))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const BITS: Bits = Bits { parent: 1, open: 2, reval: 16 };

    fn put(text: &str) -> ([u8; TEXT], u32) {
        let mut bytes = [0; TEXT];
        let len = text.len().min(TEXT - 1);
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        (bytes, len as u32 + 1)
    }

    fn walking(rest: &str, flags: u32, depth: u32) -> LookupNote {
        let (text, text_len) = put(rest);
        let (syscall, args) = (libc::SYS_openat as u32, [0, 0, 0o102, 0, 0]);
        LookupNote {
            walk: 1,
            flags,
            depth,
            text,
            text_len,
            syscall,
            args,
            ..LookupNote::new_zeroed()
        }
    }

    fn walked(syscall: i64, first: &str, second: &str) -> LookupNote {
        let ((text, text_len), (second, second_len)) = (put(first), put(second));
        let syscall = syscall as u32;
        let args = [1, 2, 3, 4, 5];
        LookupNote { syscall, args, text, text_len, second, second_len, ..LookupNote::new_zeroed() }
    }

    #[test]
    fn a_walk_is_understood() {
        let long = format!("x/{}", "y".repeat(TEXT));
        let back = format!("x/../{}", "y".repeat(TEXT));
        for (rest, flags, depth, wanted) in [
            ("x/y", 1, 0, Some(PathStep::Through(Rest::Names))),
            ("x/y", 3, 0, Some(PathStep::Through(Rest::Names))),
            ("x/.", 1, 0, Some(PathStep::Through(Rest::Dots))),
            ("x/../y", 1, 0, Some(PathStep::Through(Rest::DotDot))),
            ("x/y", 1, 1, Some(PathStep::Through(Rest::InLink))),
            (&long, 1, 0, Some(PathStep::Through(Rest::Cut))),
            (&back, 1, 0, Some(PathStep::Through(Rest::DotDot))),
            ("x", 0, 0, Some(PathStep::Last(LookupIntent::Plain))),
            ("x/", 0, 1, Some(PathStep::Last(LookupIntent::Plain))),
            ("x", 2, 0, Some(PathStep::Last(LookupIntent::Open { flags: 0o102 }))),
            ("xy", 0, 0, None),
            ("y/x", 1, 0, None),
            ("", 1, 0, None),
        ] {
            let hint = walking(rest, flags, depth).hint(&BITS, b"x");
            assert_eq!(hint.map(|hint| hint.step), wanted, "{rest} {flags}");
        }
        for (other, wanted) in
            [("b/y", Rest::Names), ("b/.", Rest::BesideDots), ("..", Rest::BesideDots)]
        {
            let syscall = libc::SYS_renameat2 as u32;
            let (second, second_len) = put(other);
            let note = LookupNote { syscall, second, second_len, ..walking("x/y", 1, 0) };
            assert_eq!(note.walk(b"x"), Some((wanted, 1)), "{other}");
            let unreadable = LookupNote { second_len: 0, ..note };
            assert_eq!(unreadable.walk(b"x"), Some((Rest::BesideDots, 1)));
        }
        let note = LookupNote { bits: READ_ONLY, ..walking("x", 2, 0) };
        assert_eq!(note.hint(&BITS, b"x").unwrap().step, PathStep::Last(LookupIntent::Plain));
        let note = LookupNote { args: [0; ARGS], ..note };
        let step = PathStep::Last(LookupIntent::Open { flags: 0 });
        assert_eq!(note.hint(&BITS, b"x").unwrap().step, step, "it makes nothing");
        assert!(walking("x", 16, 0).hint(&BITS, b"x").unwrap().reval);
        assert!(!walking("x", 15, 0).hint(&BITS, b"x").unwrap().reval);
    }

    #[test]
    fn a_syscall_after_its_walk_is_understood() {
        let long = format!("{}/x", "y".repeat(TEXT));
        let step = |note: LookupNote| note.hint(&BITS, b"x").map(|hint| hint.step);
        let create = Some(PathStep::Last(LookupIntent::Create));
        assert_eq!(step(walked(libc::SYS_mkdirat, "a/x", "")), create);
        assert_eq!(step(walked(libc::SYS_mkdirat, &long, "")), None);
        let target = Some(PathStep::Last(LookupIntent::RenameTarget));
        assert_eq!(step(walked(libc::SYS_renameat, "a/y", "b/x")), target);
        assert_eq!(step(walked(libc::SYS_renameat, "x", &long)), None);
        assert_eq!(step(walked(libc::SYS_newfstatat, "x", "")), None);
        assert_eq!(step(walked(libc::SYS_read, "x", "")), None);
        let note = LookupNote { bits: READ_ONLY, ..walked(libc::SYS_mkdirat, "a/x", "") };
        assert_eq!(step(note), Some(PathStep::Last(LookupIntent::Plain)));
        let note = LookupNote { bits: READ_ONLY, ..walked(libc::SYS_renameat, "a/y", "b/x") };
        assert_eq!(step(note), target);
        let unreadable = LookupNote { text_len: 0, ..walked(libc::SYS_mkdirat, "x", "") };
        assert_eq!(step(unreadable), None);
    }

    #[test]
    fn a_note_under_way_is_not_copied() {
        let words: [u64; WORDS] = zerocopy::transmute!(walking("x/y", 5, 0));
        let shared = words.map(AtomicU64::new);
        let note = copy(&shared, |_| true).unwrap();
        assert_eq!(note.walk(b"x"), Some((Rest::Names, 5)));
        assert!(copy(&shared, |_| false).is_none());
        shared[0].store(1, Ordering::Relaxed);
        assert!(copy(&shared, |_| true).is_none());
    }

    #[test]
    fn a_note_overwritten_while_it_is_copied_is_not_used() {
        let words: [u64; WORDS] = zerocopy::transmute!(walking("x/y", 5, 0));
        let shared = words.map(AtomicU64::new);
        let overwritten = copy(&shared, |_| {
            shared[0].fetch_add(2, Ordering::Relaxed);
            true
        });
        assert!(overwritten.is_none());
    }

    #[test]
    fn a_note_is_for_one_lookup() {
        let lookup = Lookup { unique: 6, tid: 2, nodeid: 3, name: b"x" };
        let note = LookupNote { tid: 2, nodeid: 3, unique: 6, ..LookupNote::new_zeroed() };
        assert!(note.is_about(lookup));
        assert!(LookupNote { unique: 0, ..note }.is_about(lookup), "numbered later");
        assert!(!LookupNote { unique: 8, ..note }.is_about(lookup));
        assert!(!LookupNote { nodeid: 4, ..note }.is_about(lookup));
        assert!(!LookupNote { tid: 4098, ..note }.is_about(lookup), "the same note");
        let nobody = Lookup { tid: 0, ..lookup };
        assert!(!LookupNote { tid: 0, ..note }.is_about(nobody));
    }
}
