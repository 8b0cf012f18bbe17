//! A request of the kernel, and reading it with bounds checks.
//!
//! A request is a header, a structure that depends on the operation, and the rest (names, data).
//! `/dev/fuse` delivers them in one piece, io_uring the structure apart from the rest, both in
//! memory that is the kernel's again when the request is answered; [`Body`] reads both forms.

use std::ops::Range;

use bytes::Bytes;
use saker_types::{Errno, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, Opcode, WRITE_CACHE, WriteIn};
use crate::transport::RingEntry;

/// Of what comes in an entry of a ring this much is copied: names and structures, not the data of a WRITE
/// of more than a page.
const COPIED_BYTES_MAX: usize = 4096 + 256;

/// A request.
pub struct Request {
    /// Who asks for what, of which node.
    pub header: InHeader,
    form: Form,
}

/// What follows the header.
enum Form {
    /// All in one piece; `rest` is where it is there.
    Whole { bytes: Bytes, rest: Range<usize> },
    /// An entry of a ring: the structure's length, and that of what follows it.
    Apart { entry: RingEntry, op: usize, rest: usize },
}

impl Form {
    fn into_entry(self) -> Option<RingEntry> {
        match self {
            Form::Whole { .. } => None,
            Form::Apart { entry, .. } => Some(entry),
        }
    }
}

impl Request {
    /// As the kernel would send it; the header's lengths are set.
    pub fn new(header: InHeader, body: &[u8]) -> Request {
        let len = (size_of::<InHeader>() + body.len()) as u32;
        let header = InHeader { len, total_extlen: 0, ..header };
        let bytes = Bytes::from([header.as_bytes(), body].concat());
        let rest = size_of::<InHeader>()..bytes.len();
        Request { header, form: Form::Whole { bytes, rest } }
    }

    /// Reads what one read(2) of `/dev/fuse` returned; `None` if the kernel could not have
    /// written it.
    pub fn parse(bytes: Bytes) -> Option<Request> {
        let (header, rest) = InHeader::read_from_prefix(&bytes).ok()?;
        let extensions = usize::from(header.total_extlen) * 8;
        if header.len as usize != bytes.len() || extensions > rest.len() {
            return None;
        }
        let rest = size_of::<InHeader>()..bytes.len() - extensions;
        Some(Request { header, form: Form::Whole { bytes, rest } })
    }

    /// Reads what is in an entry of a ring.
    ///
    /// # Errors
    /// The entry, if the kernel could not have written it.
    pub(crate) fn apart(entry: RingEntry) -> std::result::Result<Request, RingEntry> {
        let (header, payload) = (entry.request_header(), entry.payload().len());
        let op = (header.len as usize).checked_sub(size_of::<InHeader>() + payload);
        let rest = payload.checked_sub(usize::from(header.total_extlen) * 8);
        match (op.filter(|&op| op <= entry.op().len()), rest) {
            (Some(op), Some(rest)) => Ok(Request { header, form: Form::Apart { entry, op, rest } }),
            _ => Err(entry),
        }
    }

    /// The entry of the ring that it came in, if it did, and if what it brings is little: that is copied,
    /// so that the entry can go back before the request is answered for good.
    pub(crate) fn detach(&mut self) -> Option<RingEntry> {
        let Form::Apart { entry, op, rest } = &self.form else { return None };
        if op + rest > COPIED_BYTES_MAX {
            return None;
        }
        let bytes = Bytes::from([&entry.op()[..*op], &entry.payload()[..*rest]].concat());
        let form = Form::Whole { rest: 0..bytes.len(), bytes };
        std::mem::replace(&mut self.form, form).into_entry()
    }

    /// Nobody can be told that it goes on without an answer: it is answered at once, or nobody waits, or
    /// the kernel counts on what it asks for, or its data is in the ring.
    pub(crate) fn is_nobodys(&self) -> bool {
        if matches!(self.form, Form::Apart { .. }) {
            return true;
        }
        let opcode = Opcode::from_u32(self.header.opcode);
        match opcode {
            Some(Opcode::Write) => {
                let written = self.body().fixed::<WriteIn>();
                written.is_ok_and(|input| input.write_flags & WRITE_CACHE != 0)
            }
            Some(Opcode::Release | Opcode::Releasedir | Opcode::Destroy) | None => true,
            Some(_) => self.is_brief(),
        }
    }

    /// It waits for a lock, for as long as that takes.
    pub(crate) fn waits_for_lock(&self) -> bool {
        matches!(Opcode::from_u32(self.header.opcode), Some(Opcode::Setlkw))
    }

    /// Forgetting never waits, and comes in crowds.
    pub(crate) fn is_brief(&self) -> bool {
        matches!(
            Opcode::from_u32(self.header.opcode),
            Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt)
        )
    }

    /// The entry of the ring that it came in, if it is still there.
    pub(crate) fn into_entry(self) -> Option<RingEntry> {
        self.form.into_entry()
    }

    /// What follows the header.
    pub fn body(&self) -> Body<'_> {
        match &self.form {
            Form::Whole { bytes, rest } => {
                Body { op: &[], rest: &bytes[rest.clone()], owner: Some(bytes) }
            }
            Form::Apart { entry, op, rest } => {
                Body { op: &entry.op()[..*op], rest: &entry.payload()[..*rest], owner: None }
            }
        }
    }
}

/// Reads the body of a request from its start to its end.
pub struct Body<'a> {
    op: &'a [u8],
    rest: &'a [u8],
    /// What `rest` is a part of, if that may be shared.
    owner: Option<&'a Bytes>,
}

impl<'a> Body<'a> {
    /// The next structure.
    ///
    /// # Errors
    /// EINVAL when the request ends before it does.
    pub fn fixed<T: FromBytes>(&mut self) -> Result<T> {
        if self.op.is_empty() {
            let (value, left) = T::read_from_prefix(self.rest).map_err(|_| short())?;
            self.rest = left;
            return Ok(value);
        }
        let (value, left) = T::read_from_prefix(self.op).map_err(|_| short())?;
        self.op = left;
        Ok(value)
    }

    /// The next name, without its NUL.
    ///
    /// # Errors
    /// EINVAL when no NUL follows.
    pub fn name(&mut self) -> Result<Bytes> {
        let end = self.rest.iter().position(|&b| b == 0).ok_or_else(short)?;
        let (name, left) = self.rest.split_at(end);
        self.rest = &left[1..];
        Ok(self.owner.map_or_else(|| Bytes::copy_from_slice(name), |all| all.slice_ref(name)))
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// EINVAL when there are fewer.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, left) = self.rest.split_at_checked(len).ok_or_else(short)?;
        self.rest = left;
        Ok(bytes)
    }
}

fn short() -> saker_types::Error {
    saker_types::Error::new(Errno::EINVAL).with_text("malformed FUSE request")
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::abi::{CreateIn, SetxattrIn, WriteIn};
    use crate::transport::entry_of;

    /// A well-formed request.
    pub(crate) fn bytes_of(opcode: u32, nodeid: u64, body: &[u8]) -> Bytes {
        let header = InHeader {
            len: 40 + body.len() as u32,
            opcode,
            unique: 7,
            nodeid,
            uid: 1,
            gid: 2,
            pid: 0,
            total_extlen: 0,
            padding: 0,
        };
        [header.as_bytes(), body].concat().into()
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let good = bytes_of(1, 1, b"name\0");
        assert!(Request::parse(good.clone()).is_some());
        for end in 0..good.len() {
            assert!(Request::parse(good.slice(..end)).is_none(), "cut at {end}");
        }
        let longer = Bytes::from([&good[..], b"x"].concat());
        assert!(Request::parse(longer).is_none());
        let mut extended = bytes_of(1, 1, b"name\0\0\0\0\0\0\0\0\0").to_vec();
        extended[36] = 1;
        let request = Request::parse(extended.clone().into()).unwrap();
        assert_eq!(request.body().rest, &b"name\0"[..]);
        extended[36] = 2;
        assert!(Request::parse(extended.into()).is_none(), "extensions longer than the request");
    }

    #[test]
    fn bodies_are_read_in_order_and_never_past_their_end() {
        let open = CreateIn { flags: 1, mode: 2, umask: 3, open_flags: 4 };
        let raw = bytes_of(35, 1, &[open.as_bytes(), b"name\0"].concat());
        let request = Request::parse(raw).unwrap();
        let mut body = request.body();
        assert_eq!(body.fixed::<CreateIn>().unwrap().umask, 3);
        assert_eq!(body.name().unwrap(), "name");
        assert_eq!(body.name().unwrap_err().errno(), Errno::EINVAL);
        let raw = bytes_of(16, 1, &[0; 39]);
        let request = Request::parse(raw).unwrap();
        let mut body = request.body();
        assert_eq!(body.fixed::<WriteIn>().unwrap_err().errno(), Errno::EINVAL);
        assert_eq!(body.bytes(40).unwrap_err().errno(), Errno::EINVAL);
        assert_eq!(body.bytes(39).unwrap().len(), 39);
        assert_eq!(body.bytes(0).unwrap(), b"");
    }

    #[test]
    fn a_structure_apart_from_the_rest_reads_the_same() {
        let header = Request::parse(bytes_of(21, 1, b"")).unwrap().header;
        let (op, payload) = (SetxattrIn { size: 2, flags: 1 }, b"user.a\0xy");
        let header = InHeader { len: 40 + 8 + payload.len() as u32, ..header };
        let request = Request::apart(entry_of(header, op.as_bytes(), payload)).ok().unwrap();
        let mut body = request.body();
        assert_eq!(body.fixed::<SetxattrIn>().unwrap().size, 2);
        assert_eq!(body.name().unwrap(), "user.a");
        assert_eq!(body.bytes(2).unwrap(), b"xy");
        assert!(body.bytes(1).is_err());
        assert!(request.into_entry().is_some());
        for (len, total_extlen) in [(40, 0), (40 + 129 + 9, 0), (u32::MAX, 0), (40 + 9, 2)] {
            let lie = InHeader { len, total_extlen, ..header };
            assert!(Request::apart(entry_of(lie, b"", payload)).is_err(), "{len} {total_extlen}");
        }
    }

    #[test]
    fn garbage_is_refused_or_read_without_harm() {
        let mut rng = saker_runtime::rand::Rng::seeded(7);
        for len in 0..300 {
            let mut raw = vec![0; len];
            rng.fill(&mut raw);
            assert!(
                Request::parse(raw.clone().into()).is_none(),
                "a length that is right by chance"
            );
            if len < 40 {
                continue;
            }
            raw[..4].copy_from_slice(&(len as u32).to_ne_bytes());
            raw[36..38].copy_from_slice(&(rng.below(4) as u16).to_ne_bytes());
            let Some(request) = Request::parse(raw.into()) else { continue };
            let mut body = request.body();
            while body.fixed::<CreateIn>().is_ok() && body.name().is_ok() {}
            assert!(body.rest.len() < len);
        }
    }
}
