//! Random operations on one file against a vector of bytes in memory, as the program fsx does
//! that many file systems are tested with: reads, writes, appends, maps, truncations, holes,
//! copies, seeks, flushes and reopenings, on whatever can open a file.
//!
//! [`run`] has one writer. [`run_two`] has two, on two clients, that write disjoint stripes of one
//! file at the same time.

mod libfs;
mod posix;
mod two;

use std::collections::VecDeque;
use std::io;

use saker_client::{Fallocate, Seek};

use crate::generate::Random;
pub use libfs::LibFsFile;
pub use posix::PosixFile;
pub use two::run_two;

/// Operations that a failure shows.
const SHOWN: usize = 40;
/// The file is cut to nothing after so many operations, and may grow to another size then.
const ROUND_OPS: u64 = 1_500;
/// Largest sizes of the file: around what a row holds, some pages, more than two chunks.
const SIZES: [u64; 3] = [7_000, 300_000, 10 << 20];
/// Longest range of an operation, in bytes.
const LEN_MAX: u64 = 100_000;

/// An open file of the system under test.
pub trait FsxTarget {
    /// Up to `len` bytes at `at`; fewer at the end only.
    fn read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>>;
    /// Writes all of `data`.
    fn write(&mut self, at: u64, data: &[u8]) -> io::Result<()>;
    /// Writes all of `data` at the end.
    fn append(&mut self, data: &[u8]) -> io::Result<()>;
    /// Reads `len` bytes that are there through a map of the file; what the last page has behind
    /// the file's end must be zeros.
    fn map_read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>>;
    /// Writes bytes that are there through a map of the file, and flushes it.
    fn map_write(&mut self, at: u64, data: &[u8]) -> io::Result<()>;
    /// Cuts or extends.
    fn truncate(&mut self, size: u64) -> io::Result<()>;
    /// fallocate(2).
    fn fallocate(&mut self, how: Fallocate, at: u64, len: u64) -> io::Result<()>;
    /// Copies bytes that are there within the file; the ranges do not overlap.
    fn copy(&mut self, from: u64, to: u64, len: u64) -> io::Result<()>;
    /// lseek(2); `None`: there is no data.
    fn seek(&mut self, want: Seek, at: u64) -> io::Result<Option<u64>>;
    /// fsync(2).
    fn sync(&mut self) -> io::Result<()>;
    /// Closes and opens, without anything that was cached.
    fn reopen(&mut self) -> io::Result<()>;
    /// Size as stat(2) says.
    fn size(&mut self) -> io::Result<u64>;
}

/// One operation, with all that it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as the methods of Target")]
pub enum FsxOp {
    Read { at: u64, len: u64 },
    Write { at: u64, len: u64 },
    Append { len: u64 },
    MapRead { at: u64, len: u64 },
    MapWrite { at: u64, len: u64 },
    Truncate { size: u64 },
    Fallocate { how: Fallocate, at: u64, len: u64 },
    Copy { from: u64, to: u64, len: u64 },
    Seek { want: Seek, at: u64 },
    Sync,
    Reopen,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsxReport {
    /// Operations.
    pub ops: u64,
    /// Bytes read and compared.
    pub compared_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Seeks that found a hole before the end.
    pub holes_seen: u64,
}

/// Runs so many operations.
///
/// # Errors
/// In words: the first difference, the seed, and the last operations.
pub fn run(target: &mut dyn FsxTarget, seed: u64, ops: u64) -> Result<FsxReport, String> {
    let mut run = Run {
        target,
        rng: Random::new(seed),
        model: Vec::new(),
        size_max: SIZES[0],
        last: VecDeque::new(),
        report: FsxReport::default(),
    };
    let result = run.all(ops);
    let (last, report) = (run.last, run.report);
    result.map(|()| report).map_err(|what| {
        let shown: Vec<String> = last.iter().map(|(n, op)| format!("  {n}: {op:?}")).collect();
        format!("seed {seed}: {what}\nthe last operations:\n{}", shown.join("\n"))
    })
}

struct Run<'a> {
    target: &'a mut dyn FsxTarget,
    rng: Random,
    /// What the file must hold.
    model: Vec<u8>,
    size_max: u64,
    last: VecDeque<(u64, FsxOp)>,
    report: FsxReport,
}

/// Bytes that tell which operation wrote them where; none is zero.
pub(crate) fn pattern(op: u64, at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(|i| (1 + (op * 89 + i * 7 + i / 4096) % 255) as u8).collect()
}

/// Where two byte strings part.
pub(crate) fn difference(got: &[u8], want: &[u8], at: u64) -> Option<String> {
    if got == want {
        return None;
    }
    let first = got.iter().zip(want).position(|(a, b)| a != b);
    let Some(i) = first else {
        return Some(format!("{} bytes at {at}, not {}", got.len(), want.len()));
    };
    let wrong = got.iter().zip(want).filter(|(a, b)| a != b).count();
    Some(format!("byte {} is {}, not {} ({wrong} are wrong)", at + i as u64, got[i], want[i]))
}

impl Run<'_> {
    fn all(&mut self, ops: u64) -> Result<(), String> {
        for n in 0..ops {
            if n % ROUND_OPS == 0 {
                self.size_max = SIZES[self.rng.below(SIZES.len())];
                self.step(n, FsxOp::Truncate { size: 0 })?;
            }
            let op = self.draw();
            self.step(n, op)?;
        }
        self.step(ops, FsxOp::Sync)?;
        self.step(ops, FsxOp::Reopen)
    }

    fn step(&mut self, n: u64, op: FsxOp) -> Result<(), String> {
        if self.last.len() == SHOWN {
            self.last.pop_front();
        }
        self.last.push_back((n, op));
        self.report.ops += 1;
        self.apply(n, op).map_err(|e| format!("{op:?}: {e}"))?;
        let (size, want) = (self.target.size(), self.model.len() as u64);
        match size {
            Ok(size) if size == want => Ok(()),
            Ok(size) => Err(format!("{op:?}: the size is {size}, not {want}")),
            Err(error) => Err(format!("{op:?}: stat: {error}")),
        }
    }

    fn any(&mut self, below: u64) -> u64 {
        self.rng.any() % below.max(1)
    }

    /// A range within the file's largest size, often at a page or at the file's end.
    fn range(&mut self, end_max: u64) -> (u64, u64) {
        let mut at = self.any(end_max);
        match self.rng.below(4) {
            0 => at &= !4095,
            1 => at = at.min(self.model.len() as u64),
            _ => {}
        }
        let len = match self.rng.below(3) {
            0 => 1 + self.any(64),
            1 => 1 + self.any(5_000),
            _ => 1 + self.any(LEN_MAX),
        };
        (at, len.min(end_max.saturating_sub(at)).max(1))
    }

    /// A range of bytes that are there, if there are any.
    fn range_within(&mut self) -> Option<(u64, u64)> {
        let size = self.model.len() as u64;
        if size == 0 {
            return None;
        }
        let (at, len) = self.range(size);
        let at = at.min(size - 1);
        Some((at, len.min(size - at)))
    }

    fn draw(&mut self) -> FsxOp {
        let (max, size) = (self.size_max, self.model.len() as u64);
        let (at, len) = self.range(max);
        let within = self.range_within();
        match (self.rng.below(100), within) {
            (0..25, _) => FsxOp::Read { at, len },
            (25..50, _) => FsxOp::Write { at, len },
            (50..54, _) if size + len <= max => FsxOp::Append { len },
            (54..60, Some((at, len))) => FsxOp::MapRead { at, len },
            (60..66, Some((at, len))) => FsxOp::MapWrite { at, len },
            (66..71, _) => FsxOp::Truncate { size: at },
            (71..82, _) => {
                let all = [
                    Fallocate::Grow,
                    Fallocate::Reserve,
                    Fallocate::Punch,
                    Fallocate::Punch,
                    Fallocate::Zero,
                    Fallocate::ZeroKeepSize,
                ];
                FsxOp::Fallocate { how: *self.rng.pick(&all), at, len }
            }
            (82..88, Some((from, len))) => match self.copy(from, len) {
                Some(op) => op,
                None => FsxOp::Read { at, len },
            },
            (88..95, Some((at, _))) => {
                FsxOp::Seek { want: *self.rng.pick(&[Seek::Data, Seek::Hole]), at }
            }
            (95..97, _) => FsxOp::Sync,
            (97..98, _) => FsxOp::Reopen,
            _ => FsxOp::Write { at, len },
        }
    }

    fn copy(&mut self, from: u64, len: u64) -> Option<FsxOp> {
        let to = self.any(self.size_max.saturating_sub(len));
        let apart = from + len <= to || to + len <= from;
        apart.then_some(FsxOp::Copy { from, to, len })
    }

    fn grow(&mut self, size: u64) {
        let size = self.model.len().max(size as usize);
        self.model.resize(size, 0);
    }

    fn put(&mut self, at: u64, data: &[u8]) {
        self.grow(at + data.len() as u64);
        self.model[at as usize..at as usize + data.len()].copy_from_slice(data);
        self.report.written_bytes += data.len() as u64;
    }

    fn compare(&mut self, got: &[u8], at: u64, len: u64) -> Result<(), String> {
        let end = self.model.len().min((at + len) as usize);
        let want = &self.model[end.min(at as usize)..end];
        self.report.compared_bytes += got.len() as u64;
        difference(got, want, at).map_or(Ok(()), Err)
    }

    fn apply(&mut self, n: u64, op: FsxOp) -> Result<(), String> {
        let told = |e: io::Error| e.to_string();
        match op {
            FsxOp::Read { at, len } => {
                let got = self.target.read(at, len as usize).map_err(told)?;
                self.compare(&got, at, len)?;
            }
            FsxOp::Write { at, len } => {
                let data = pattern(n, at, len);
                self.target.write(at, &data).map_err(told)?;
                self.put(at, &data);
            }
            FsxOp::Append { len } => {
                let at = self.model.len() as u64;
                let data = pattern(n, at, len);
                self.target.append(&data).map_err(told)?;
                self.put(at, &data);
            }
            FsxOp::MapRead { at, len } => {
                let got = self.target.map_read(at, len as usize).map_err(told)?;
                self.compare(&got, at, len)?;
            }
            FsxOp::MapWrite { at, len } => {
                let data = pattern(n, at, len);
                self.target.map_write(at, &data).map_err(told)?;
                self.put(at, &data);
            }
            FsxOp::Truncate { size } => {
                self.target.truncate(size).map_err(told)?;
                self.model.resize(size as usize, 0);
            }
            FsxOp::Fallocate { how, at, len } => {
                self.target.fallocate(how, at, len).map_err(told)?;
                self.fallocated(how, at, at + len);
            }
            FsxOp::Copy { from, to, len } => {
                self.target.copy(from, to, len).map_err(told)?;
                let data = self.model[from as usize..(from + len) as usize].to_vec();
                self.put(to, &data);
            }
            FsxOp::Seek { want, at } => {
                let found = self.target.seek(want, at).map_err(told)?;
                self.check_seek(want, at, found)?;
            }
            FsxOp::Sync => self.target.sync().map_err(told)?,
            FsxOp::Reopen => {
                self.target.reopen().map_err(told)?;
                let len = self.model.len() as u64;
                let got = self.target.read(0, len as usize + 1).map_err(told)?;
                self.compare(&got, 0, len + 1)?;
            }
        }
        Ok(())
    }

    fn fallocated(&mut self, how: Fallocate, at: u64, end: u64) {
        if matches!(how, Fallocate::Grow | Fallocate::Zero) {
            self.grow(end);
        }
        if !matches!(how, Fallocate::Grow | Fallocate::Reserve) {
            let end = self.model.len().min(end as usize);
            self.model[end.min(at as usize)..end].fill(0);
        }
    }

    /// A hole may be told as data, data never as a hole.
    fn check_seek(&mut self, want: Seek, at: u64, found: Option<u64>) -> Result<(), String> {
        let size = self.model.len() as u64;
        let zeros = |from: u64, to: u64| {
            self.model[from as usize..to as usize].iter().all(|byte| *byte == 0)
        };
        let told = || format!("{found:?} in a file of {size} bytes");
        match (want, found) {
            (Seek::Data, None) if zeros(at, size) => {}
            (Seek::Data, Some(to)) if at <= to && to < size && zeros(at, to) => {}
            (Seek::Hole, Some(to)) if to == size => {}
            (Seek::Hole, Some(to)) if at <= to && to < size && self.model[to as usize] == 0 => {
                self.report.holes_seen += 1;
            }
            _ => return Err(told()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_local_file_passes() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = PosixFile::create(&dir.path().join("f")).unwrap();
        let report = run(&mut file, 1, 4_000).unwrap();
        assert!(report.compared_bytes > 1 << 20, "{report:?}");
    }

    /// A file that forgets the last byte of long writes.
    struct Forgetful(PosixFile);

    impl FsxTarget for Forgetful {
        fn read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>> {
            self.0.read(at, len)
        }
        fn write(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
            self.0.write(at, data)?;
            if data.len() > 90_000 {
                self.0.write(at + data.len() as u64 - 1, &[0])?;
            }
            Ok(())
        }
        fn append(&mut self, data: &[u8]) -> io::Result<()> {
            self.0.append(data)
        }
        fn map_read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>> {
            self.0.map_read(at, len)
        }
        fn map_write(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
            self.0.map_write(at, data)
        }
        fn truncate(&mut self, size: u64) -> io::Result<()> {
            self.0.truncate(size)
        }
        fn fallocate(&mut self, how: Fallocate, at: u64, len: u64) -> io::Result<()> {
            self.0.fallocate(how, at, len)
        }
        fn copy(&mut self, from: u64, to: u64, len: u64) -> io::Result<()> {
            self.0.copy(from, to, len)
        }
        fn seek(&mut self, want: Seek, at: u64) -> io::Result<Option<u64>> {
            self.0.seek(want, at)
        }
        fn sync(&mut self) -> io::Result<()> {
            self.0.sync()
        }
        fn reopen(&mut self) -> io::Result<()> {
            self.0.reopen()
        }
        fn size(&mut self) -> io::Result<u64> {
            self.0.size()
        }
    }

    #[test]
    fn a_lost_byte_is_found_and_the_operations_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = Forgetful(PosixFile::create(&dir.path().join("f")).unwrap());
        let told = run(&mut file, 3, 10_000).unwrap_err();
        assert!(told.contains("seed 3: ") && told.contains("Write {"), "{told}");
    }
}
