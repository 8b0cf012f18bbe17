//! Files in memory that processes share.

use std::fs::File;
use std::io;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// Longest name (memfd_create(2)).
const NAME_BYTES_MAX: usize = 249;

/// A file in memory of `size` bytes, to be written and sealed. The name is seen in /proc.
///
/// # Errors
/// Of the system.
pub(crate) fn create(name: &str, size: u64) -> io::Result<File> {
    let name = &name[name.ceil_char_boundary(name.len().saturating_sub(NAME_BYTES_MAX))..];
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let file = File::from(fd);
    file.set_len(size)?;
    Ok(file)
}

/// Nobody can change the file any more, whoever has it.
///
/// # Errors
/// Of the system.
pub(crate) fn seal(file: &File) -> io::Result<()> {
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    Ok(fcntl_add_seals(file, seals)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_sealed_file_does_not_change() {
        let file = create(&"n".repeat(1000), 10).unwrap();
        file.write_all_at(b"0123456789", 0).unwrap();
        seal(&file).unwrap();
        assert!(file.write_at(b"x", 0).is_err());
        assert!(file.set_len(5).is_err() && file.set_len(20).is_err());
        let mut bytes = [0; 10];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"0123456789");
    }
}
