//! What the files of benchmarks hold.
//!
//! Bytes that look random (some file systems store zeros for free) and follow from a number, so
//! that what was read can be compared with what was written. Neither takes more than a copy: what
//! the program costs is measured together with the file system.

use std::sync::LazyLock;

use saker_runtime::rand::Rng;

/// What all contents are parts of.
static SOURCE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut source = vec![0; SOURCE_BYTES];
    Rng::seeded(SOURCE_BYTES as u64).fill(&mut source);
    source
});
const SOURCE_BYTES: usize = 1 << 20;

/// The content number `n`: the number itself, and a part of the source that begins elsewhere for
/// each number.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    n: [u8; 8],
    len: usize,
}

impl Content {
    /// `len` bytes.
    pub fn new(n: u64, len: usize) -> Content {
        Content { n: n.to_le_bytes(), len }
    }

    /// All of it.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        self.parts(|part| {
            bytes.extend_from_slice(part);
            true
        });
        bytes
    }

    /// Is it this?
    pub fn is(&self, mut bytes: &[u8]) -> bool {
        let same = self.parts(|part| match bytes.split_at_checked(part.len()) {
            Some((start, rest)) => {
                bytes = rest;
                start == part
            }
            None => false,
        });
        same && bytes.is_empty()
    }

    /// Shows it part by part for as long as `f` says so; whether that was to the end.
    fn parts(&self, mut f: impl FnMut(&[u8]) -> bool) -> bool {
        let number = &self.n[..self.len.min(self.n.len())];
        let mut left = self.len - number.len();
        // A step that shares no factor with the source's length meets each byte of it.
        let mut from = u64::from_le_bytes(self.n).wrapping_mul(4099) as usize % SOURCE_BYTES;
        if !f(number) {
            return false;
        }
        while left > 0 {
            let part = &SOURCE[from..SOURCE_BYTES.min(from + left)];
            if !f(part) {
                return false;
            }
            left -= part.len();
            from = 0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_is_itself_and_no_other() {
        for len in [0, 1, 7, 8, 9, 4096, SOURCE_BYTES, 3 * SOURCE_BYTES + 17] {
            let bytes = Content::new(5, len).bytes();
            assert_eq!(bytes.len(), len);
            assert!(Content::new(5, len).is(&bytes));
            assert_eq!(Content::new(6, len).is(&bytes), len == 0);
            assert!(!Content::new(5, len + 1).is(&bytes), "too short");
            assert!(len == 0 || !Content::new(5, len - 1).is(&bytes), "too long");
            if let Some(at) = len.checked_sub(1) {
                let mut damaged = bytes;
                damaged[at] ^= 1;
                assert!(!Content::new(5, len).is(&damaged));
            }
        }
    }

    #[test]
    fn blocks_of_different_files_differ() {
        let (one, other) = (Content::new(1, 65536).bytes(), Content::new(2, 65536).bytes());
        assert!(one.chunks(4096).zip(other.chunks(4096)).all(|(a, b)| a != b));
        let bits: u32 = one.iter().map(|byte| byte.count_ones()).sum();
        assert!((255_000..270_000).contains(&bits), "{bits} of 524,288 bits: it looks random");
    }
}
