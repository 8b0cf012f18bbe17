//! What can be wrong.

use saker_types::{InodeId, ShardNo, StoreNo};

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal,)*) => {
        /// Kind of a problem.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ProblemKind { $($(#[doc = $doc])* $name,)* }

        impl ProblemKind {
            /// Name in the output.
            pub fn name(self) -> &'static str {
                match self { $(ProblemKind::$name => $text,)* }
            }
        }
    };
}

kinds! {
    /// A row's key or value cannot be read.
    CorruptRow => "corrupt_row",
    /// A row is on a shard that does not own it.
    WrongShard => "wrong_shard",
    /// The root directory has no row.
    NoRoot => "no_root",
    /// Two directory rows have one id.
    DuplicateDirectory => "duplicate_directory",
    /// Two inodes have one id.
    DuplicateInode => "duplicate_inode",
    /// Entries belong to a directory that does not exist.
    MissingParent => "missing_parent",
    /// A directory cannot be reached from the root.
    Unreachable => "unreachable",
    /// The link count is not the number of names.
    LinkCount => "link_count",
    /// A hard link's attribute row is missing or elsewhere.
    MissingAttributes => "missing_attributes",
    /// An attribute row has no name.
    StrayAttributes => "stray_attributes",
    /// A directory's totals on a shard are not what is there.
    WrongTotals => "wrong_totals",
    /// A record of a gone inode makes no sense.
    BadGoneRecord => "bad_gone_record",
    /// An orphan's id has a row.
    LivingOrphan => "living_orphan",
    /// A transaction has no outcome for a long time.
    StuckTransaction => "stuck_transaction",
    /// Chunks whose inode does not exist.
    LeakedChunks => "leaked_chunks",
    /// Chunks beyond the end of the file.
    BeyondEnd => "beyond_end",
    /// A chunk on a store that it does not belong to.
    MisplacedChunk => "misplaced_chunk",
    /// Copies of a chunk differ in length.
    DifferentCopies => "different_copies",
    /// A chunk cannot be read, or its checksum is wrong.
    BadChunk => "bad_chunk",
}

/// What a problem is about. Together with the kind it says whether two problems are the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// The whole file system.
    All,
    /// An inode.
    Inode(InodeId),
    /// An entry of a directory.
    Entry(InodeId, Vec<u8>),
    /// A row of a shard.
    Row(ShardNo, Vec<u8>),
    /// A directory's totals on a shard.
    Totals(ShardNo, InodeId),
    /// A shard.
    Shard(ShardNo),
    /// A chunk.
    Chunk(InodeId, u64),
    /// A chunk on one store.
    Copy(StoreNo, InodeId, u64),
}

impl Subject {
    /// The inode whose path helps most.
    pub fn inode(&self) -> Option<InodeId> {
        match self {
            Subject::All | Subject::Shard(_) | Subject::Row(..) => None,
            Subject::Inode(id)
            | Subject::Entry(id, _)
            | Subject::Totals(_, id)
            | Subject::Chunk(id, _)
            | Subject::Copy(_, id, _) => Some(*id),
        }
    }
}

/// Something wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What kind.
    pub kind: ProblemKind,
    /// About what.
    pub subject: Subject,
    /// In words.
    pub detail: String,
}

/// Problems kept; more are only counted, so that a ruined cluster does not fill the memory.
const KEPT_MAX: usize = 100_000;

/// A bounded list of problems.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    /// The first ones.
    pub list: Vec<Problem>,
    /// How many more there were.
    pub more: u64,
}

impl Problems {
    /// Adds one.
    pub fn add(&mut self, kind: ProblemKind, subject: Subject, detail: impl Into<String>) {
        if self.list.len() < KEPT_MAX {
            self.list.push(Problem { kind, subject, detail: detail.into() });
        } else {
            self.more += 1;
        }
    }

    /// Adds those of another list.
    pub fn append(&mut self, mut other: Problems) {
        self.more += other.more;
        let room = KEPT_MAX.saturating_sub(self.list.len());
        self.more += other.list.len().saturating_sub(room) as u64;
        other.list.truncate(room);
        self.list.append(&mut other.list);
    }

    /// Keeps those that an earlier look has seen, too.
    pub fn keep_seen_before(&mut self, before: &Problems) {
        if before.more > 0 {
            return;
        }
        let seen: std::collections::HashSet<_> =
            before.list.iter().map(|problem| (problem.kind, &problem.subject)).collect();
        self.list.retain(|problem| seen.contains(&(problem.kind, &problem.subject)));
    }
}
