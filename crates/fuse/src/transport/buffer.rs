//! Room to read requests into.

use super::MAX_WRITE_BYTES;

/// The largest request: a WRITE and what goes before its data.
const BYTES: usize = MAX_WRITE_BYTES + 4096;
/// Requests up to this size are copied; with larger ones goes the buffer that they were read to.
const COPIED_MAX: usize = 16 << 10;

/// A buffer that is there again after each request. Pages of it that no request has reached take
/// no memory.
#[derive(Default)]
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    /// Room for any request.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.0.is_empty() {
            self.0 = vec![0; BYTES];
        }
        &mut self.0
    }

    /// Takes the first `len` bytes out.
    pub(super) fn take(&mut self, len: usize) -> Vec<u8> {
        if len <= COPIED_MAX {
            return self.0[..len].to_vec();
        }
        let mut taken = std::mem::take(&mut self.0);
        taken.truncate(len);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_stays_as_it_was() {
        let mut buffer = Buffer::default();
        let mut taken = Vec::new();
        for (n, len) in [1, COPIED_MAX, COPIED_MAX + 1, BYTES, 7].into_iter().enumerate() {
            let room = buffer.room();
            assert_eq!(room.len(), BYTES);
            room[..len].fill(n as u8);
            taken.push((n, len, buffer.take(len)));
        }
        for (n, len, bytes) in taken {
            assert_eq!(bytes, vec![n as u8; len]);
        }
    }
}
