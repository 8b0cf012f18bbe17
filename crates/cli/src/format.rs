//! How figures, modes and times are shown.

use std::collections::HashMap;

use saker_types::time::unix;
use saker_types::{Attr, FileKind, Stamp};

/// The mode as ls(1) shows it, as `drwxr-xr-x`.
pub fn mode(mode: u32) -> String {
    let kind = match FileKind::of_mode(mode) {
        Some(FileKind::Regular) => '-',
        Some(FileKind::Directory) => 'd',
        Some(FileKind::Symlink) => 'l',
        Some(FileKind::Fifo) => 'p',
        Some(FileKind::Socket) => 's',
        Some(FileKind::CharDevice) => 'c',
        Some(FileKind::BlockDevice) => 'b',
        None => '?',
    };
    let mut out = String::from(kind);
    for (shift, special, mark) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => mark,
            (true, false) => mark.to_ascii_uppercase(),
        });
    }
    out
}

/// The kind in words.
pub fn kind(attr: &Attr) -> &'static str {
    match FileKind::of_mode(attr.mode) {
        Some(FileKind::Regular) => "regular file",
        Some(FileKind::Directory) => "directory",
        Some(FileKind::Symlink) => "symbolic link",
        Some(FileKind::Fifo) => "fifo",
        Some(FileKind::Socket) => "socket",
        Some(FileKind::CharDevice) => "character device",
        Some(FileKind::BlockDevice) => "block device",
        None => "unknown",
    }
}

/// Bytes with a binary unit, as `1.5G`.
pub fn bytes(n: u64) -> String {
    let mut value = n as f64;
    let units = ["", "K", "M", "G", "T", "P", "E"];
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0}{}", units[unit])
    } else {
        format!("{value:.1}{}", units[unit])
    }
}

/// A time in the local time zone, as `2026-01-31 23:59:59`.
pub fn time(stamp: Stamp) -> String {
    let seconds: libc::time_t = unix(stamp).0;
    // SAFETY: all bytes of tm may be zero; localtime_r reads `seconds` and writes `tm` only.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&seconds, &mut tm).is_null() {
            return format!("@{seconds}");
        }
        tm
    };
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec
    )
}

/// Names of users or groups by number.
pub struct Names(HashMap<u32, String>);

impl Names {
    /// Of users.
    pub fn users() -> Names {
        Names::read("/etc/passwd")
    }

    /// Of groups.
    pub fn groups() -> Names {
        Names::read("/etc/group")
    }

    fn read(path: &str) -> Names {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let name = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next()?.to_owned();
            Some((fields.nth(1)?.parse().ok()?, name))
        };
        Names(text.lines().filter_map(name).collect())
    }

    /// The name, or the number where there is none.
    pub fn of(&self, number: u32) -> String {
        self.0.get(&number).cloned().unwrap_or_else(|| number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use saker_types::time::stamp;

    use super::*;

    #[test]
    fn modes_look_as_in_ls() {
        assert_eq!(mode(0o100_644), "-rw-r--r--");
        assert_eq!(mode(0o040_755), "drwxr-xr-x");
        assert_eq!(mode(0o041_777), "drwxrwxrwt");
        assert_eq!(mode(0o104_655), "-rwSr-xr-x");
        assert_eq!(mode(0o102_755), "-rwxr-sr-x");
        assert_eq!(mode(0o120_777), "lrwxrwxrwx");
    }

    #[test]
    fn bytes_have_three_digits_or_so() {
        let shown: Vec<String> = [0, 1023, 1024, 1536, 200 << 20, 5 << 40].map(bytes).to_vec();
        assert_eq!(shown, ["0", "1023", "1.0K", "1.5K", "200M", "5.0T"]);
    }

    #[test]
    fn times_are_dates() {
        assert!(time(stamp(1_700_000_000, 0)).starts_with("2023-11-1"));
        assert_eq!(Names::users().of(0), "root");
        assert_eq!(Names::groups().of(4_000_000_000), "4000000000");
    }
}
