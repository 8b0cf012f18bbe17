//! What is mounted where, from `/proc/self/mountinfo` (proc(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use saker_types::{Errno, Error, Result};

/// Type of the file system mounted last at exactly `path`, if one is.
pub(super) fn type_at(path: &Path) -> Result<Option<String>> {
    // The kernel's own table, not a file that a simulation could hold.
    #[allow(clippy::disallowed_methods)]
    let table = std::fs::read("/proc/self/mountinfo")
        .map_err(|e| Error::new(Errno::EIO).with_text(format!("/proc/self/mountinfo: {e}")))?;
    let found = table.split(|&b| b == b'\n').filter_map(parse).rfind(|(at, _)| at == path);
    Ok(found.map(|(_, kind)| kind))
}

/// Mount point and type of one line.
fn parse(line: &[u8]) -> Option<(PathBuf, String)> {
    let mut fields = line.split(|&b| b == b' ');
    let at = fields.nth(4)?;
    let kind = fields.skip_while(|&field| field != b"-").nth(1)?;
    let kind = String::from_utf8(kind.to_vec()).ok()?;
    Some((PathBuf::from(OsString::from_vec(unescape(at))), kind))
}

/// Space, tab, newline and backslash are written as `\` and three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let code = text.get(at + 1..at + 4).and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match (byte, code) {
            (b'\\', Some(code)) => {
                out.push(code);
                at += 4;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_are_read_with_and_without_optional_fields() {
        let line = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 shared:2 - fuse.saker s rw";
        assert_eq!(parse(line).unwrap(), ("/mnt 2".into(), "fuse.saker".into()));
        let line = b"36 35 98:0 / /a\\134b rw - ext4 /dev/root rw";
        assert_eq!(parse(line).unwrap(), ("/a\\b".into(), "ext4".into()));
        assert!(parse(b"").is_none());
        assert!(parse(b"36 35 98:0 / /x rw").is_none());
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(type_at(Path::new("/")).unwrap().is_some());
        assert_eq!(type_at(Path::new("/no such place")).unwrap(), None);
    }
}
