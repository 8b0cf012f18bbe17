//! What clients asked and were told, in real time.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use bytes::Bytes;
use saker_types::{Errno, InodeId};

/// A name: its number. [`name_of`] is its text.
pub type NameNo = u8;

/// The text of a name.
pub fn name_of(name: NameNo) -> String {
    format!("n{name}")
}

/// The name of a text of [`name_of`].
pub fn parse_name(text: &[u8]) -> Option<NameNo> {
    std::str::from_utf8(text).ok()?.strip_prefix('n')?.parse().ok()
}

/// A place: names below a directory known by its id, or below the root.
#[derive(Clone, PartialEq, Eq)]
pub struct Path {
    /// The directory; `None`: the root.
    pub base: Option<InodeId>,
    /// Names.
    pub names: Vec<NameNo>,
}

impl Path {
    /// Names below the root.
    pub fn of(names: &[NameNo]) -> Path {
        Path { base: None, names: names.to_vec() }
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base {
            None => write!(f, "/")?,
            Some(id) => write!(f, "{id:#x}:")?,
        }
        let names: Vec<String> = self.names.iter().map(|n| name_of(*n)).collect();
        write!(f, "{}", names.join("/"))
    }
}

/// An inode: by a path, or by its id through an open handle.
#[derive(Clone, PartialEq, Eq)]
pub enum CallSubject {
    /// What is at a path.
    At(Path),
    /// What is open.
    Open(InodeId),
}

impl fmt::Debug for CallSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallSubject::At(path) => write!(f, "{path:?}"),
            CallSubject::Open(id) => write!(f, "open {id:#x}"),
        }
    }
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorldCall {
    /// A regular file, made or (unless exclusive) opened.
    Create {
        at: Path,
        exclusive: bool,
    },
    Mkdir {
        at: Path,
    },
    Symlink {
        at: Path,
    },
    Mkfifo {
        at: Path,
    },
    Open {
        at: Path,
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
    /// Which inode is there?
    Lookup {
        at: Path,
    },
    /// All attributes.
    Getattr {
        of: CallSubject,
    },
    Chmod {
        of: CallSubject,
        mode: u32,
    },
    Utimes {
        of: CallSubject,
        mtime_ns: i64,
    },
    Truncate {
        of: CallSubject,
        size: u64,
    },
    /// Write the tag through a handle and flush, as close(2) does: the size grows to `end`.
    Write {
        id: InodeId,
        start: u64,
        end: u64,
        tag: u8,
    },
    /// Append through a handle.
    Append {
        id: InodeId,
        len: u64,
        tag: u8,
    },
    /// fsync(2) of a handle.
    Fsync {
        id: InodeId,
    },
    /// Open, read, close.
    Read {
        at: Path,
        offset: u64,
        len: usize,
    },
    Setxattr {
        of: CallSubject,
        value: u8,
        flags: u32,
    },
    Getxattr {
        of: CallSubject,
    },
    Removexattr {
        of: CallSubject,
    },
    /// The names in a directory, by its id.
    Readdir {
        dir: InodeId,
    },
}

/// Attributes as a client saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorldSeen {
    pub id: InodeId,
    pub mode: u32,
    pub nlink: u32,
    pub size: u64,
    pub mtime_ns: i64,
}

/// What a call ended in.
#[derive(Clone, PartialEq, Eq)]
pub enum WorldAnswer {
    Done,
    Entry(WorldSeen),
    /// Of create: was it made?
    Opened(WorldSeen, bool),
    Value(u8),
    Offset(u64),
    /// What was read, from the call's offset on.
    Data(WorldSeen, Bytes),
    Names(Vec<(NameNo, InodeId)>),
    Failed(Errno),
    /// It may have taken effect, and still may.
    Unknown(String),
}

impl fmt::Debug for WorldAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorldAnswer::Done => f.write_str("done"),
            WorldAnswer::Entry(seen) => write!(f, "{seen:?}"),
            WorldAnswer::Opened(seen, made) => write!(f, "{seen:?}, made: {made}"),
            WorldAnswer::Value(value) => write!(f, "value {value}"),
            WorldAnswer::Offset(offset) => write!(f, "at {offset}"),
            WorldAnswer::Data(seen, bytes) => {
                write!(f, "{seen:?}, {} bytes:", bytes.len())?;
                let mut runs = bytes.chunk_by(|a, b| a == b);
                runs.try_for_each(|run| write!(f, " {}x{}", run[0], run.len()))
            }
            WorldAnswer::Names(names) => write!(f, "{names:x?}"),
            WorldAnswer::Failed(errno) => write!(f, "{errno:?}"),
            WorldAnswer::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// A call in the history.
#[derive(Clone, Debug)]
pub struct WorldEntry {
    pub client: usize,
    pub call: WorldCall,
    /// When it began and ended, in numbers of such moments; [`OPEN`]: it never did.
    pub invoked: u64,
    pub returned: u64,
    pub answer: WorldAnswer,
}

/// "Has not ended".
pub const OPEN: u64 = u64::MAX;

/// Counts the moments of a history.
pub type Moments = Rc<Cell<u64>>;

/// All calls, in the order in which they began.
#[derive(Default)]
pub struct WorldHistory {
    pub entries: Vec<WorldEntry>,
    pub moments: Moments,
}

impl WorldHistory {
    /// A call begins; its index.
    pub fn begin(&mut self, client: usize, call: WorldCall) -> usize {
        let (answer, invoked) = (WorldAnswer::Unknown("no answer".into()), self.next());
        self.entries.push(WorldEntry { client, call, invoked, returned: OPEN, answer });
        self.entries.len() - 1
    }

    fn next(&self) -> u64 {
        self.moments.set(self.moments.get() + 1);
        self.moments.get()
    }

    /// It ends.
    pub fn end(&mut self, index: usize, answer: WorldAnswer) {
        let now = self.next();
        let entry = &mut self.entries[index];
        if !matches!(answer, WorldAnswer::Unknown(_)) {
            entry.returned = now;
        }
        entry.answer = answer;
    }
}

impl fmt::Display for WorldEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorldEntry { client, call, invoked, returned, answer } = self;
        let end = if *returned == OPEN { "…".to_owned() } else { returned.to_string() };
        write!(f, "c{client} [{invoked}, {end}] {call:?} -> {answer:?}")
    }
}
