//! Whose store a data directory is: a small file, written once.

use std::io;

use crc32c::crc32c;
use saker_runtime::fs::{Dir, read_all};
use saker_types::{Errno, Error, Result};

use crate::format::Identity;
use crate::store::io_error;

/// Name of the file in the data directory.
const FILE: &str = "STORE";
const UNFINISHED: &str = "STORE.new";
const MAGIC: [u8; 8] = *b"SAKERSTO";
const VERSION: u32 = 1;
/// Magic, version, three words of feature bits (none is defined yet), uuid, number, checksum.
const BYTES: usize = 8 + 4 + 12 + 16 + 2 + 4;

fn encode(identity: &Identity) -> [u8; BYTES] {
    let mut out = [0; BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[24..40].copy_from_slice(&identity.cluster);
    out[40..42].copy_from_slice(&identity.store.to_le_bytes());
    let sum = crc32c(&out[..42]);
    out[42..].copy_from_slice(&sum.to_le_bytes());
    out
}

fn decode(bytes: &[u8]) -> std::result::Result<Identity, &'static str> {
    let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| "it has the wrong length")?;
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if bytes[..8] != MAGIC {
        return Err("it is none of Saker's");
    }
    if word(8) > VERSION || word(16) != 0 || word(20) != 0 {
        return Err("a newer program wrote it");
    }
    if word(42) != crc32c(&bytes[..42]) {
        return Err("it is damaged");
    }
    let mut cluster = [0; 16];
    cluster.copy_from_slice(&bytes[24..40]);
    Ok(Identity { cluster, store: u16::from_le_bytes([bytes[40], bytes[41]]) })
}

/// The identity of the store in `dir`; `None` for a directory that is no store yet.
///
/// # Errors
/// EIO when the file cannot be read or used.
pub fn load(dir: &dyn Dir) -> Result<Option<Identity>> {
    let file = match dir.open(FILE) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(FILE, &error)),
    };
    let bytes = read_all(&*file).map_err(|e| io_error(FILE, &e))?;
    match decode(&bytes) {
        Ok(identity) => Ok(Some(identity)),
        Err(why) => {
            let text = format!("{}/{FILE}: {why}", dir.label());
            Err(Error::new(Errno::EIO).with_text(text))
        }
    }
}

/// Makes `dir` the store `identity`, durably.
///
/// # Errors
/// The file system's.
pub fn save(dir: &dyn Dir, identity: &Identity) -> Result<()> {
    let write = || {
        if dir.list()?.iter().any(|name| name == UNFINISHED) {
            dir.remove(UNFINISHED)?;
        }
        let file = dir.create(UNFINISHED)?;
        file.write_at(0, &encode(identity))?;
        file.sync()?;
        dir.rename(UNFINISHED, FILE)?;
        dir.sync()
    };
    write().map_err(|e| io_error(FILE, &e))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_runtime::fs::MemDir;

    use super::*;

    #[test]
    fn is_kept_and_checked() {
        let dir = MemDir::new();
        assert_eq!(load(&dir).unwrap(), None);
        let identity = Identity { cluster: [9; 16], store: 300 };
        // A start that was cut short.
        dir.create(UNFINISHED).unwrap();
        save(&dir, &identity).unwrap();
        let dir = dir.crash(1);
        assert_eq!(load(&dir).unwrap(), Some(identity));
        let file = dir.open(FILE).unwrap();
        for at in 0..BYTES as u64 {
            // Compatible features may be any.
            let mut byte = [0];
            file.read_at(at, &mut byte).unwrap();
            file.write_at(at, &[byte[0] ^ 1]).unwrap();
            assert_eq!(load(&dir).unwrap_err().errno(), Errno::EIO, "byte {at}");
            file.write_at(at, &byte).unwrap();
        }
        file.truncate(5).unwrap();
        assert!(load(&dir).unwrap_err().text.contains("length"));
    }
}
