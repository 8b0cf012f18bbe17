//! What programs asked their kernels, and were told.

use std::fmt;

use saker_types::{Errno, InodeId};

use crate::world::history::{NameNo, Path};

/// An open file, by the number of the open.
pub type Fd = u32;

/// A call of a program; some are a few syscalls in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyscallOp {
    Mkdir {
        at: Path,
    },
    Mkfifo {
        at: Path,
    },
    /// open(O_CREAT), fstat, close.
    Create {
        at: Path,
        exclusive: bool,
    },
    Unlink {
        at: Path,
    },
    Rmdir {
        at: Path,
    },
    Rename {
        from: Path,
        to: Path,
        no_replace: bool,
    },
    Exchange {
        from: Path,
        to: Path,
    },
    Link {
        from: Path,
        to: Path,
    },
    Stat {
        at: Path,
    },
    Chmod {
        at: Path,
        mode: u32,
    },
    Truncate {
        at: Path,
        size: u64,
    },
    /// open(O_DIRECTORY), fstat.
    OpenDir {
        at: Path,
    },
    /// All names of an open directory.
    List {
        dir: InodeId,
    },
    /// open(2) of a file, fstat.
    Open {
        at: Path,
        fd: Fd,
    },
    /// Each byte is the tag.
    Write {
        fd: Fd,
        offset: u64,
        len: u64,
        tag: u8,
    },
    /// close(2) or fsync(2): others see what was written.
    Flush {
        fd: Fd,
    },
    /// lseek(SEEK_END), then pread(2) of what lies before it.
    Look {
        fd: Fd,
        back: u64,
    },
}

/// Attributes that a program saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallSeen {
    pub id: InodeId,
    pub mode: u32,
    pub size: u64,
}

/// What a call ended in.
#[derive(Clone, PartialEq, Eq)]
pub enum SyscallAnswer {
    Done,
    Seen(SyscallSeen),
    Names(Vec<(NameNo, InodeId)>),
    /// The file's end, and what was read before it.
    Data {
        end: u64,
        bytes: Vec<u8>,
    },
    Failed(Errno),
    /// The kernel would not do it, for what it holds itself: nothing was done.
    Refused,
    /// It has not ended.
    None,
}

impl fmt::Debug for SyscallAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyscallAnswer::Done => f.write_str("done"),
            SyscallAnswer::Seen(SyscallSeen { id, mode, size }) => {
                write!(f, "{id:#x} {mode:o} {size} bytes")
            }
            SyscallAnswer::Names(names) => write!(f, "{names:x?}"),
            SyscallAnswer::Data { end, bytes } => {
                write!(f, "end {end}, read {} bytes:", bytes.len())?;
                for run in bytes.chunk_by(|a, b| a == b) {
                    write!(f, " {}x{}", run[0], run.len())?;
                }
                Ok(())
            }
            SyscallAnswer::Failed(errno) => write!(f, "{errno:?}"),
            SyscallAnswer::Refused => f.write_str("refused"),
            SyscallAnswer::None => f.write_str("no answer"),
        }
    }
}

/// A call of the history.
#[derive(Clone)]
pub struct SyscallEntry {
    /// Which mount's; `None`: a library's.
    pub mount: Option<usize>,
    pub thread: usize,
    pub call: SyscallOp,
    /// When it began and ended, in numbers of such moments.
    pub invoked: u64,
    pub returned: u64,
    pub answer: SyscallAnswer,
}

impl fmt::Display for SyscallEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SyscallEntry { mount, thread, call, invoked, returned, answer } = self;
        match mount {
            Some(mount) => write!(f, "m{mount}")?,
            None => f.write_str("lib")?,
        }
        write!(f, " t{thread} [{invoked}, {returned}] {call:?} -> {answer:?}")
    }
}

/// All calls, in the order in which they began.
#[derive(Default)]
pub struct SyscallHistory {
    pub entries: Vec<SyscallEntry>,
    moments: u64,
}

impl SyscallHistory {
    /// A call begins; its number.
    pub fn begin(&mut self, mount: Option<usize>, thread: usize, call: SyscallOp) -> usize {
        self.moments += 1;
        let (invoked, returned, answer) = (self.moments, u64::MAX, SyscallAnswer::None);
        self.entries.push(SyscallEntry { mount, thread, call, invoked, returned, answer });
        self.entries.len() - 1
    }

    /// It ends.
    pub fn end(&mut self, number: usize, answer: SyscallAnswer) {
        self.moments += 1;
        let entry = &mut self.entries[number];
        (entry.returned, entry.answer) = (self.moments, answer);
    }
}
