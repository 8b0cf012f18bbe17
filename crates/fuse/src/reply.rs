//! What a request is answered with.

use std::io::IoSlice;

use bytes::Bytes;
use saker_types::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::OutHeader;

/// An answer: an errno, or structures followed by data.
#[derive(Debug, Default)]
pub struct Reply {
    /// 0 or an errno.
    pub errno: u16,
    /// Structures of the ABI.
    pub head: Vec<u8>,
    /// Data after them, sent without a copy.
    pub data: Bytes,
    /// The kernel expects no answer.
    pub silent: bool,
}

impl Reply {
    /// Done, nothing to say.
    pub fn done() -> Reply {
        Reply::default()
    }

    /// No answer at all (FORGET).
    pub fn none() -> Reply {
        Reply { silent: true, ..Reply::default() }
    }

    /// It failed.
    pub fn error(errno: Errno) -> Reply {
        Reply { errno: errno.0, ..Reply::default() }
    }

    /// One structure.
    pub fn of<T: IntoBytes + Immutable>(value: &T) -> Reply {
        Reply { head: value.as_bytes().to_vec(), ..Reply::default() }
    }

    /// Two structures.
    pub fn pair<A, B>(a: &A, b: &B) -> Reply
    where
        A: IntoBytes + Immutable,
        B: IntoBytes + Immutable,
    {
        Reply { head: [a.as_bytes(), b.as_bytes()].concat(), ..Reply::default() }
    }

    /// Bytes put together by hand.
    pub fn head(head: Vec<u8>) -> Reply {
        Reply { head, ..Reply::default() }
    }

    /// Data alone.
    pub fn data(data: Bytes) -> Reply {
        Reply { data, ..Reply::default() }
    }

    /// The header that goes before it.
    pub fn header(&self, unique: u64) -> OutHeader {
        let len = size_of::<OutHeader>() + self.head.len() + self.data.len();
        OutHeader { len: len as u32, error: -i32::from(self.errno), unique }
    }

    /// Everything after the header.
    pub fn parts(&self) -> [IoSlice<'_>; 2] {
        [IoSlice::new(&self.head), IoSlice::new(&self.data)]
    }
}
