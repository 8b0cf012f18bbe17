//! Messages about output files: what programs write below `NAME@VERSION.out`.

/// Longest path of an output file, in bytes; the one of Linux.
pub const OUTPUT_PATH_BYTES_MAX: usize = 4095;
/// Most data of one [`OutputOp::Put`] or [`OutputOp::Read`], in bytes: with its path it fits a
/// request.
pub const OUTPUT_PART_BYTES_MAX: usize = (4 << 20) - (64 << 10);

/// A request about one path.
///
/// A process sends it to the agent of its node, which finds the node that is the path's home. That
/// agent is asked with [`OutputRequest::nodes`] and [`OutputRequest::id`] set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OutputRequest {
    /// NAME@VERSION.
    #[prost(string, tag = "1")]
    pub dataset: String,
    /// Names with slashes between them; empty for the directory `.out` itself.
    #[prost(bytes = "vec", tag = "2")]
    pub path: Vec<u8>,
    /// Between agents: hash of the nodes of the stage. Both must have the same list.
    #[prost(fixed64, tag = "3")]
    pub nodes: u64,
    /// Between agents: number of the request. A request that is repeated has the same one, and is
    /// executed once. Of [`OutputOp::Put`]: number of the [`OutputOp::Finish`] that follows.
    #[prost(fixed64, tag = "4")]
    pub id: u64,
    /// What is asked.
    #[prost(
        oneof = "OutputOp",
        tags = "10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25"
    )]
    pub op: Option<OutputOp>,
}

/// What is asked about a path.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum OutputOp {
    /// Its attributes: [`crate::Reply::output`].
    #[prost(message, tag = "10")]
    Look(Nothing),
    /// The names in a directory: [`crate::Reply::entries`]. Between agents, those whose home is the
    /// agent that is asked.
    #[prost(message, tag = "11")]
    List(Nothing),
    /// A file for reading: its attributes, and a descriptor. Of a directory, its attributes only.
    /// From processes.
    #[prost(message, tag = "12")]
    Open(Nothing),
    /// A private file for writing: a descriptor, and [`crate::Reply::token`]. From processes.
    #[prost(message, tag = "13")]
    Create(CreateOutput),
    /// The private file with this token is finished. It is published when nobody has it open for
    /// writing any more: answered after that; or at once, with the token, while somebody has. From
    /// processes.
    #[prost(fixed64, tag = "14")]
    Commit(u64),
    /// Go on waiting for the answer to the last request of the connection, after one with
    /// [`crate::Reply::going_on`]. From processes.
    #[prost(message, tag = "15")]
    Wait(Nothing),
    /// A part of a file. Between agents.
    #[prost(message, tag = "16")]
    Read(ReadOutput),
    /// A part of a new file, in order. Between agents.
    #[prost(message, tag = "17")]
    Put(PutOutput),
    /// All parts of a new file have been sent: it takes its place. Between agents.
    #[prost(message, tag = "18")]
    Finish(FinishOutput),
    /// Make a directory with these permissions.
    #[prost(uint32, tag = "19")]
    MakeDir(u32),
    /// Make a directory with these permissions unless it is there: [`crate::Reply::made`]. Between
    /// agents.
    #[prost(uint32, tag = "20")]
    EnsureDir(u32),
    /// Remove an empty directory.
    #[prost(message, tag = "21")]
    RemoveDir(Nothing),
    /// Remove what is left of a directory on a node that is not its home, unless names are in it.
    /// Between agents.
    #[prost(message, tag = "22")]
    RemoveEmpty(Nothing),
    /// Remove a file.
    #[prost(message, tag = "23")]
    Unlink(Nothing),
    /// Give a file another name.
    #[prost(message, tag = "24")]
    Rename(RenameOutput),
    /// Set attributes.
    #[prost(message, tag = "25")]
    Set(SetOutput),
}

/// No arguments.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Nothing {}

/// How a file is opened for writing.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct CreateOutput {
    /// Flags of open(2).
    #[prost(int32, tag = "1")]
    pub flags: i32,
    /// Permissions of a new file, without those that the process masks.
    #[prost(uint32, tag = "2")]
    pub mode: u32,
}

/// A part of a file.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ReadOutput {
    /// Of the file that is read ([`OutputInfo::version`]).
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// First byte.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// How many.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
}

/// A part of a new file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutOutput {
    /// First byte; 0 begins anew.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    /// The bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub data: Vec<u8>,
}

/// What a new file is.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct FinishOutput {
    /// Its bytes.
    #[prost(uint64, tag = "1")]
    pub size: u64,
    /// CRC32C of all of them.
    #[prost(fixed32, tag = "2")]
    pub crc: u32,
    /// Permissions.
    #[prost(uint32, tag = "3")]
    pub mode: u32,
    /// Modified, in nanoseconds since 1970.
    #[prost(int64, tag = "4")]
    pub mtime_ns: i64,
    /// It must not take another file's place.
    #[prost(bool, tag = "5")]
    pub exclusive: bool,
    /// Number of this writing of it, by which it is known again when an answer was lost.
    #[prost(fixed64, tag = "6")]
    pub writing: u64,
    /// When it was closed, in nanoseconds since 1970 by the clock of its writer; 0: not known.
    #[prost(fixed64, tag = "7")]
    pub closed_ns: u64,
    /// It comes later than at its close: it must not replace what was closed after it.
    #[prost(bool, tag = "8")]
    pub late: bool,
}

/// Another name for a file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenameOutput {
    /// The path, in the same directory `.out`.
    #[prost(bytes = "vec", tag = "1")]
    pub to: Vec<u8>,
    /// It must not take another file's place.
    #[prost(bool, tag = "2")]
    pub exclusive: bool,
}

/// Attributes to be set; those that are absent stay.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct SetOutput {
    /// Permissions.
    #[prost(uint32, optional, tag = "1")]
    pub mode: Option<u32>,
    /// Modified, in nanoseconds since 1970.
    #[prost(int64, optional, tag = "2")]
    pub mtime_ns: Option<i64>,
}

/// Attributes of an output file or directory.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct OutputInfo {
    /// Type and permissions.
    #[prost(uint32, tag = "1")]
    pub mode: u32,
    /// Bytes.
    #[prost(uint64, tag = "2")]
    pub size: u64,
    /// Modified, in nanoseconds since 1970.
    #[prost(int64, tag = "3")]
    pub mtime_ns: i64,
    /// Number; that of a directory follows from its path.
    #[prost(uint64, tag = "4")]
    pub ino: u64,
    /// Of a file: changes when another takes its place.
    #[prost(uint64, tag = "5")]
    pub version: u64,
    /// Of a file: CRC32C, if its home knows it.
    #[prost(fixed32, optional, tag = "6")]
    pub crc: Option<u32>,
    /// Of a file: [`FinishOutput::writing`], if its home knows it.
    #[prost(fixed64, tag = "7")]
    pub writing: u64,
    /// Of a file: [`FinishOutput::closed_ns`], if its home knows it.
    #[prost(fixed64, tag = "8")]
    pub closed_ns: u64,
}

/// A name in a directory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OutputEntry {
    /// The name.
    #[prost(bytes = "vec", tag = "1")]
    pub name: Vec<u8>,
    /// It is a directory.
    #[prost(bool, tag = "2")]
    pub is_dir: bool,
    /// As [`OutputInfo::ino`].
    #[prost(uint64, tag = "3")]
    pub ino: u64,
}

/// Output files that stay on a node when their dataset is unstaged.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeptOutputs {
    /// How many.
    #[prost(uint64, tag = "1")]
    pub files: u64,
    /// Their directory.
    #[prost(string, tag = "2")]
    pub dir: String,
}
