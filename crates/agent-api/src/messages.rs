//! The messages.

/// Something that an agent is asked.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// What.
    #[prost(oneof = "Ask", tags = "1, 2, 3, 4")]
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

/// A part of a partition.
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
    /// Bytes that were asked for.
    #[prost(bytes = "vec", tag = "3")]
    pub data: Vec<u8>,
}
