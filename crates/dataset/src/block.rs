//! Blocks of files.

use std::borrow::Cow;
use std::path::Path;

use crate::error::{Error, Result};
use crate::inode::{BLOCK_BYTES, FileData};

/// A block from what is stored of it, checked.
pub(crate) fn expand(
    path: &Path,
    data: &FileData,
    n: u64,
    stored: Cow<'_, [u8]>,
    crc: u32,
) -> Result<Vec<u8>> {
    let wrong =
        |what: String| Error::damaged(path, format!("block {n} at {}: {what}", data.offset));
    let len = (data.size - n * BLOCK_BYTES).min(BLOCK_BYTES) as usize;
    let raw = match stored.len() == len {
        true => stored.into_owned(),
        false => data.codec.expand(&stored, len).map_err(wrong)?.into_owned(),
    };
    if crc32c::crc32c(&raw) != crc {
        return Err(wrong("wrong checksum".to_owned()));
    }
    Ok(raw)
}
