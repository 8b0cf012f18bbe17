//! What is mounted where, from `/proc/self/mountinfo` (proc(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use saker_types::{Errno, Error, Result};

/// A line of the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    at: PathBuf,
    /// `MAJOR:MINOR`
    pub(super) device: String,
    /// The file system's type.
    pub(super) kind: String,
}

/// What is mounted last at exactly `path`, if something is.
pub(super) fn at(path: &Path) -> Result<Option<Line>> {
    // The kernel's own table, not a file that a simulation could hold.
    #[allow(clippy::disallowed_methods)]
    let table = std::fs::read("/proc/self/mountinfo")
        .map_err(|e| Error::new(Errno::EIO).with_text(format!("/proc/self/mountinfo: {e}")))?;
    Ok(table.split(|&b| b == b'\n').filter_map(parse).rfind(|line| line.at == path))
}

fn parse(line: &[u8]) -> Option<Line> {
    let mut fields = line.split(|&b| b == b' ');
    let text = |field: &[u8]| String::from_utf8(field.to_vec()).ok();
    let device = text(fields.nth(2)?)?;
    let at = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let kind = text(fields.skip_while(|&field| field != b"-").nth(1)?)?;
    Some(Line { at, device, kind })
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
        let wanted =
            |at: &str, kind: &str| Line { at: at.into(), device: "98:0".into(), kind: kind.into() };
        assert_eq!(parse(line).unwrap(), wanted("/mnt 2", "fuse.saker"));
        let line = b"36 35 98:0 / /a\\134b rw - ext4 /dev/root rw";
        assert_eq!(parse(line).unwrap(), wanted("/a\\b", "ext4"));
        assert!(parse(b"").is_none());
        assert!(parse(b"36 35 98:0 / /x rw").is_none());
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(at(Path::new("/")).unwrap().is_some());
        assert_eq!(at(Path::new("/no such place")).unwrap(), None);
    }
}
