//! Checksums of data in blocks.

use std::sync::LazyLock;

use crc32c::{crc32c, crc32c_append, crc32c_combine};

use super::BLOCK_BYTES;

/// Checksum of `zeros` after the data that `crc` is of, for one whole block of zeros; linear in
/// `crc`, so four tables make it.
static SHIFT_BLOCK: LazyLock<[[u32; 256]; 4]> = LazyLock::new(|| {
    let mut tables = [[0; 256]; 4];
    for (byte, table) in tables.iter_mut().enumerate() {
        for (value, entry) in table.iter_mut().enumerate() {
            *entry = crc32c_combine((value as u32) << (8 * byte), 0, BLOCK_BYTES);
        }
    }
    tables
});

/// CRC32C of data that comes in pieces, of which some have a checksum already.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u32);

impl Sum {
    /// Adds a whole block by its checksum, without looking at it again.
    pub fn push_block(&mut self, block_sum: u32) {
        let [a, b, c, d] = self.0.to_le_bytes().map(usize::from);
        let t = &*SHIFT_BLOCK;
        self.0 = t[0][a] ^ t[1][b] ^ t[2][c] ^ t[3][d] ^ block_sum;
    }

    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0 = crc32c_append(self.0, bytes);
    }

    /// The checksum of all of it.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// Checksums of the blocks of a payload, into `sums`; returns that of the whole.
pub fn block_sums(payload: &[u8], sums: &mut Vec<u32>) -> u32 {
    let mut whole = Sum::default();
    sums.clear();
    for block in payload.chunks(BLOCK_BYTES) {
        let sum = crc32c(block);
        sums.push(sum);
        if block.len() == BLOCK_BYTES { whole.push_block(sum) } else { whole.push(block) }
    }
    whole.get()
}
