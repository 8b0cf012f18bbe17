//! The messages.

use crate::outputs::{KeptOutputs, OutputEntry, OutputInfo, OutputRequest};

/// Something that an agent is asked.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// What.
    #[prost(oneof = "Ask", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub ask: Option<Ask>,
}

/// What an agent is asked.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Ask {
    /// The first request of a connection.
    #[prost(message, tag = "1")]
    Hello(Hello),
    /// A file's data, whole and as it was before packing: answered by a sealed memfd, which all
    /// processes of the node share. From processes of the node only.
    #[prost(message, tag = "2")]
    Open(OpenFile),
    /// An opened file is closed: once for each [`Ask::Open`]. It is not answered.
    #[prost(message, tag = "3")]
    Close(OpenFile),
    /// Bytes of a partition as they are stored. Between agents.
    #[prost(message, tag = "4")]
    Read(ReadStored),
    /// A dataset is to be staged on this node. Answered as soon as that is noted.
    #[prost(message, tag = "5")]
    Stage(StageDataset),
    /// A staged dataset is to be removed from this node. Its output files stay: [`Reply::kept`].
    #[prost(message, tag = "6")]
    Unstage(Named),
    /// What is staged on this node, and its counters: [`Reply::status`].
    #[prost(message, tag = "7")]
    Status(Named),
    /// The stage.json of a staged dataset: [`Reply::data`].
    #[prost(message, tag = "8")]
    Layout(Named),
    /// Something about an output file.
    #[prost(message, tag = "9")]
    Output(OutputRequest),
    /// The same, and its output files, too; also those of one that is not staged any more.
    #[prost(message, tag = "10")]
    RemoveOutputs(Named),
}

/// A staged dataset.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Named {
    /// NAME@VERSION. Of a status: empty for all.
    #[prost(string, tag = "1")]
    pub dataset: String,
}

/// A dataset to be staged.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StageDataset {
    /// What stage.json says.
    #[prost(bytes = "vec", tag = "1")]
    pub stage: Vec<u8>,
    /// Number of the node that is asked, among the nodes of the stage.
    #[prost(uint32, tag = "2")]
    pub node: u32,
}

/// A file of a staged dataset that agents read of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Stored {
    /// A partition; also the beginning of one that is not whole yet.
    Partition = 0,
    /// The table of all files.
    Table = 1,
    /// The manifest.
    Manifest = 2,
}

/// Who connects.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// [`crate::VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Key of the job, if it has one.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
}

/// A file of a staged dataset.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OpenFile {
    /// NAME@VERSION.
    #[prost(string, tag = "1")]
    pub dataset: String,
    /// Its number in the table.
    #[prost(uint32, tag = "2")]
    pub ino: u32,
}

/// A part of a partition, of the table or of the manifest.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadStored {
    /// NAME@VERSION.
    #[prost(string, tag = "1")]
    pub dataset: String,
    /// Digest of the dataset's table: both have the same one.
    #[prost(bytes = "vec", tag = "2")]
    pub table_digest: Vec<u8>,
    /// Number of the partition.
    #[prost(uint32, tag = "3")]
    pub partition: u32,
    /// First byte.
    #[prost(uint64, tag = "4")]
    pub offset: u64,
    /// How many.
    #[prost(uint64, tag = "5")]
    pub bytes: u64,
    /// Which file.
    #[prost(enumeration = "Stored", tag = "6")]
    pub what: i32,
}

/// An agent's answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Reply {
    /// Error number of Linux; 0: none.
    #[prost(int32, tag = "1")]
    pub errno: i32,
    /// What went wrong, in words.
    #[prost(string, tag = "2")]
    pub error: String,
    /// Bytes that were asked for; of a read fewer, if the file ends there or is not whole yet.
    #[prost(bytes = "vec", tag = "3")]
    pub data: Vec<u8>,
    /// Of a read: bytes of the file that are there so far.
    #[prost(uint64, tag = "4")]
    pub available: u64,
    /// Of a read: grows while staging of the dataset goes on.
    #[prost(uint64, tag = "5")]
    pub progress: u64,
    /// Of a request for the status.
    #[prost(message, optional, tag = "6")]
    pub status: Option<NodeStatus>,
    /// Attributes of an output file.
    #[prost(message, optional, tag = "7")]
    pub output: Option<OutputInfo>,
    /// Names in a directory of output files, in order.
    #[prost(message, repeated, tag = "8")]
    pub entries: Vec<OutputEntry>,
    /// The answer is not there yet. A process asks for it again with [`crate::OutputOp::Wait`], an
    /// agent by repeating the request.
    #[prost(bool, tag = "9")]
    pub going_on: bool,
    /// Of a private file, by which it is committed.
    #[prost(fixed64, tag = "10")]
    pub token: u64,
    /// A directory was not there before.
    #[prost(bool, tag = "11")]
    pub made: bool,
    /// Output files that stay.
    #[prost(message, optional, tag = "12")]
    pub kept: Option<KeptOutputs>,
}

impl Reply {
    /// The answer, unless it is an error.
    ///
    /// # Errors
    /// The agent's, in its words.
    pub fn checked(self) -> std::io::Result<Reply> {
        match (self.errno, self.error.is_empty()) {
            (0, _) => Ok(self),
            (errno, true) => Err(std::io::Error::from_raw_os_error(errno)),
            (errno, false) => {
                let kind = std::io::Error::from_raw_os_error(errno).kind();
                Err(std::io::Error::new(kind, self.error))
            }
        }
    }
}

/// The state of a node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeStatus {
    /// What is staged.
    #[prost(message, repeated, tag = "1")]
    pub datasets: Vec<DatasetStatus>,
    /// The agent's metrics.
    #[prost(message, repeated, tag = "2")]
    pub counters: Vec<Count>,
}

/// A metric.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Count {
    /// As at /metrics.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Now.
    #[prost(uint64, tag = "2")]
    pub value: u64,
}

/// A dataset on a node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DatasetStatus {
    /// NAME@VERSION.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Digest of its files, hexadecimal.
    #[prost(string, tag = "2")]
    pub digest: String,
    /// Number of the node.
    #[prost(uint32, tag = "3")]
    pub node: u32,
    /// All that the node is to keep is there.
    #[prost(bool, tag = "4")]
    pub complete: bool,
    /// Processes can use the dataset: the table is there.
    #[prost(bool, tag = "5")]
    pub usable: bool,
    /// Partitions that the node is to keep.
    #[prost(uint32, tag = "6")]
    pub partitions: u32,
    /// Of these, those that are whole.
    #[prost(uint32, tag = "7")]
    pub partitions_whole: u32,
    /// Bytes that the node is to keep; 0 while that is not known.
    #[prost(uint64, tag = "8")]
    pub bytes: u64,
    /// Of these, those that are there.
    #[prost(uint64, tag = "9")]
    pub bytes_there: u64,
    /// Files that are not whole, a few of them.
    #[prost(string, repeated, tag = "10")]
    pub missing: Vec<String>,
    /// Why the last try failed; empty while one is under way.
    #[prost(string, tag = "11")]
    pub error: String,
    /// Output files on this node that their homes do not have yet.
    #[prost(uint64, tag = "12")]
    pub outgoing: u64,
}
