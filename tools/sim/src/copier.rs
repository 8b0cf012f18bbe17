//! A copy that keeps books: what was acknowledged, and what must be there afterwards.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::generate::Random;
use crate::op::pattern;

/// What a path must be, now that its operation was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fact {
    /// A file of so many bytes of a pattern.
    File { fill: u8, len: usize },
    /// Removed, or moved away.
    Gone,
}

/// What was acknowledged.
#[derive(Debug, Default)]
struct Books {
    facts: BTreeMap<PathBuf, Fact>,
    /// Paths on which an operation failed, so that nothing is known of them.
    unknown: BTreeMap<PathBuf, io::ErrorKind>,
}

/// Threads that write files below a directory until they are stopped. An error ends a file, not
/// the copy: a killed mount gives ENOTCONN until it is back.
pub struct Copier {
    top: PathBuf,
    books: Arc<Mutex<Books>>,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Copier {
    /// Starts `threads` writers in subdirectories of `top`.
    pub fn start(top: &Path, threads: u64) -> Copier {
        let books = Arc::new(Mutex::new(Books::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let spawn = |n: u64| {
            let mut writer = Writer {
                dir: top.join(format!("writer-{n}")),
                rng: Random::new(n + 1),
                books: books.clone(),
                acknowledged: acknowledged.clone(),
            };
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    writer.one_file(number);
                    number += 1;
                }
            })
        };
        let threads = (0..threads).map(spawn).collect();
        Copier { top: top.to_path_buf(), books, stop, acknowledged, threads }
    }

    /// Files acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Ends the writers.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a writer does not panic");
        }
    }

    /// Compares everything acknowledged with what is there; returns what was wrong, and how
    /// many paths were compared.
    pub fn verify(&self) -> (Vec<String>, usize) {
        let books = self.books.lock().expect("no writer panicked");
        let mut wrong = Vec::new();
        for (path, fact) in &books.facts {
            let found = std::fs::read(path);
            let trouble = match (fact, found) {
                (Fact::File { fill, len }, Ok(data)) if data == pattern(*fill, 0, *len) => None,
                (Fact::File { len, .. }, Ok(data)) => {
                    Some(format!("{} bytes, of {len}, or others", data.len()))
                }
                (Fact::File { .. }, Err(e)) => Some(e.to_string()),
                (Fact::Gone, Err(e)) if e.kind() == io::ErrorKind::NotFound => None,
                (Fact::Gone, other) => Some(format!("is back: {:?}", other.map(|d| d.len()))),
            };
            wrong.extend(trouble.map(|why| format!("{}: {why}", path.display())));
        }
        (wrong, books.facts.len())
    }

    /// Files on which an operation failed.
    pub fn failures(&self) -> usize {
        self.books.lock().expect("no writer panicked").unknown.len()
    }

    /// Where the files are.
    pub fn top(&self) -> &Path {
        &self.top
    }
}

struct Writer {
    dir: PathBuf,
    rng: Random,
    books: Arc<Mutex<Books>>,
    acknowledged: Arc<AtomicU64>,
}

impl Writer {
    /// Writes a file; now and then it is renamed into place, or removed again.
    fn one_file(&mut self, number: u64) {
        let dir = self.dir.join(format!("d{}", number / 50));
        let path = dir.join(format!("file-{number}"));
        let len = *self.rng.pick(&[0, 10, 1000, 4096, 4097, 30_000, 300_000]);
        let fill = self.rng.any() as u8;
        let way = self.rng.below(4);
        let result = match way {
            0 => {
                let temporary = dir.join(format!("temporary-{number}"));
                write_file(&dir, &temporary, &pattern(fill, 0, len), true).and_then(|()| {
                    std::fs::rename(&temporary, &path)?;
                    self.record(&temporary, Fact::Gone);
                    Ok(Fact::File { fill, len })
                })
            }
            1 => write_file(&dir, &path, &pattern(fill, 0, len), false)
                .and_then(|()| std::fs::remove_file(&path))
                .map(|()| Fact::Gone),
            _ => write_file(&dir, &path, &pattern(fill, 0, len), way == 2)
                .map(|()| Fact::File { fill, len }),
        };
        match result {
            Ok(fact) => self.record(&path, fact),
            Err(e) => {
                let mut books = self.books.lock().expect("no writer panicked");
                books.unknown.insert(path, e.kind());
                drop(books);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn record(&mut self, path: &Path, fact: Fact) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        let mut books = self.books.lock().expect("no writer panicked");
        books.facts.insert(path.to_path_buf(), fact);
    }
}

/// Writes a file and takes the acknowledgement of fsync(2), or only that of close(2).
fn write_file(dir: &Path, path: &Path, data: &[u8], sync: bool) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let mut file = std::fs::File::create(path)?;
    for part in data.chunks(64 << 10) {
        file.write_all(part)?;
    }
    if sync {
        file.sync_all()?;
    }
    close(file)
}

/// close(2) whose error is not lost.
pub fn close(file: std::fs::File) -> io::Result<()> {
    // SAFETY: the descriptor is owned, and nobody uses it after this.
    let ret = unsafe { libc::close(file.into_raw_fd()) };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Does the mount answer? True only for a living FUSE mount.
pub fn is_mounted(point: &Path) -> bool {
    let fuse = rustix::fs::statfs(point).is_ok_and(|stat| stat.f_type == 0x6573_5546);
    fuse && std::fs::read_dir(point).is_ok()
}
