//! Where log lines go: stderr, which is a file that must not grow for ever, on a disk that may be
//! full. A line that cannot be written is counted, and nothing else happens.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The environment variable with the path of the file that stderr is. Who starts a process in the
/// background sets it; the process then begins that file anew when it is large.
pub const LOG_FILE_ENV: &str = "SAKER_LOG_FILE";
/// A log file is renamed to the same with `.1` after it, and a new one begun, at this size, bytes.
pub const LOG_BYTES_MAX: u64 = 16 << 20;

static LOST: AtomicU64 = AtomicU64::new(0);
static LOG: Mutex<Option<Log>> = Mutex::new(None);

/// Lines that could not be written.
pub(super) fn lines_lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Finds out what stderr is.
pub(super) fn begin() {
    let path = std::env::var_os(LOG_FILE_ENV).map(PathBuf::from);
    let out = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    let log = out.ok().map(|out| Log::new(out, path, LOG_BYTES_MAX));
    *LOG.lock().unwrap_or_else(PoisonError::into_inner) = log;
}

/// Writes whole lines, and never fails.
pub(super) struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(log) = &mut *LOG.lock().unwrap_or_else(PoisonError::into_inner) {
            log.write(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Log {
    out: File,
    /// Of the file, if it is one that may be begun anew.
    path: Option<PathBuf>,
    bytes: u64,
    bytes_max: u64,
    /// Lines lost since the last that was written.
    lost: u64,
}

fn same_file(a: &File, path: &Path) -> bool {
    let id = |meta: io::Result<std::fs::Metadata>| meta.map(|meta| (meta.dev(), meta.ino())).ok();
    let is_file = a.metadata().is_ok_and(|meta| meta.is_file());
    is_file && id(a.metadata()) == id(std::fs::metadata(path))
}

impl Log {
    fn new(out: File, path: Option<PathBuf>, bytes_max: u64) -> Log {
        let path = path.filter(|path| same_file(&out, path));
        let bytes = out.metadata().map_or(0, |meta| meta.len());
        Log { out, path, bytes, bytes_max, lost: 0 }
    }

    fn write(&mut self, line: &[u8]) {
        if self.bytes + line.len() as u64 > self.bytes_max {
            self.begin_anew();
        }
        if self.lost > 0 {
            // What was there may end within a line.
            let note = format!("\n({} lines of this log could not be written)\n", self.lost);
            if self.put(note.as_bytes()) {
                self.lost = 0;
            }
        }
        if self.lost > 0 || !self.put(line) {
            self.lost += 1;
            LOST.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn put(&mut self, text: &[u8]) -> bool {
        self.bytes += text.len() as u64;
        self.out.write_all(text).is_ok()
    }

    /// The file gets another name, instead of the one that had it, and a new one its own. If that
    /// cannot be, what is in it goes: a log may not fill a disk.
    fn begin_anew(&mut self) {
        let Some(path) = self.path.clone() else { return };
        self.bytes = 0;
        let mut older = path.clone().into_os_string();
        older.push(".1");
        // Another process that writes there, too, may have done so.
        if same_file(&self.out, &path) && std::fs::rename(&path, older).is_err() {
            let _ = self.out.set_len(0);
            return;
        }
        let Ok(new) = OpenOptions::new().create(true).append(true).open(&path) else { return };
        let is_stdout = same_file(&self.out, Path::new("/proc/self/fd/1"));
        let is_stderr = same_file(&self.out, Path::new("/proc/self/fd/2"));
        // What does not go by here, as a panic's message, follows if it can.
        if is_stdout {
            let _ = rustix::stdio::dup2_stdout(&new);
        }
        if is_stderr {
            let _ = rustix::stdio::dup2_stderr(&new);
        }
        self.bytes = new.metadata().map_or(0, |meta| meta.len());
        self.out = new;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn append(path: &Path) -> File {
        OpenOptions::new().create(true).append(true).open(path).unwrap()
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_said_later() {
        let dir = tempfile::tempdir().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(reader);
        for out in [File::options().write(true).open("/dev/full").unwrap(), File::from(writer)] {
            let before = lines_lost();
            let mut log = Log::new(out, None, 1 << 20);
            log.write(b"one\n");
            log.write(b"two\n");
            assert!(lines_lost() - before >= 2);
            let path = dir.path().join("log");
            // The disk has room again.
            log.out = append(&path);
            log.write(b"three\n");
            log.write(b"four\n");
            assert_eq!(read(&path), "\n(2 lines of this log could not be written)\nthree\nfour\n");
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_log_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let (path, older) = (dir.path().join("a.log"), dir.path().join("a.log.1"));
        let mut log = Log::new(append(&path), Some(path.clone()), 100);
        for n in 0..1_000 {
            log.write(format!("line {n:04}\n").as_bytes());
        }
        assert_eq!(read(&path).len() + read(&older).len(), 200);
        assert!(read(&path).ends_with("line 0999\n"));
        // A second process that writes to the same file finds it taken away.
        let mut second = Log::new(append(&path), Some(path.clone()), 100);
        log.write(b"first\n");
        second.write(b"second\n");
        assert_eq!(read(&path), "first\nsecond\n");
        // It is another file than the one that was said: nothing is renamed.
        let mut other = Log::new(append(&dir.path().join("b.log")), Some(path.clone()), 10);
        (0..9).for_each(|_| other.write(b"line\n"));
        assert_eq!(read(&path), "first\nsecond\n");
    }

    #[test]
    fn where_nothing_can_be_renamed_the_log_begins_anew_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        std::fs::create_dir(dir.path().join("a.log.1")).unwrap();
        let mut log = Log::new(append(&path), Some(path.clone()), 100);
        (0..1_000).for_each(|_| log.write(b"0123456789"));
        assert!(read(&path).len() <= 100);
    }
}
