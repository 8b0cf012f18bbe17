//! How far a node has come, which the coordinator knows, too (docs/decisions/0045): a data
//! directory that was put back from a copy is behind that, and so is the coordinator's own.
//!
//! A mark is raised in the node's directory first, durably, and told then. So the coordinator never
//! knows a higher one than the directory has, unless that is a copy.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crc32c::crc32c;
use prost::Message;
use saker_runtime::fs::{Dir, read_all, replace};
use saker_types::wire::{Empty, MarkReq, Op};
use saker_types::{Class, Error};

use crate::NodeNumber;
use crate::bootstrap::Start;
use crate::client::{Reactor, Transport};
use crate::hello::Hello;
use crate::hub::decode_reply;

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Name of the file in the data directory.
const FILE: &str = "MARK";
const MAGIC: [u8; 8] = *b"SAKERMRK";
const VERSION: u32 = 1;
/// Magic, version, three words of feature bits (none is defined yet), mark, what the coordinator has
/// acknowledged, checksum.
const BYTES: usize = 8 + 4 + 12 + 8 + 8 + 4;
const CHECKSUM_AT: usize = BYTES - 4;

/// Asks the coordinator to take a mark.
///
/// # Errors
/// Of class Retry when it does not answer; any other: the directory must not be used.
pub async fn tell(
    transport: &dyn Transport,
    start: &Start,
    request: &MarkReq,
) -> Result<(), Error> {
    let body = request.encode_to_vec().into();
    let at = start.coordinator;
    let answer = transport.call(at, Op::Mark as u16, 0, body, Bytes::new(), ATTEMPT).await;
    decode_reply::<Empty>(answer).map(drop)
}

/// Has the coordinator compare what a directory says, once: true if it did, false if it does not
/// answer.
///
/// # Errors
/// The directory must not be used.
pub fn compare(start: &Start, request: &MarkReq) -> io::Result<bool> {
    let reactor = Reactor::new(Hello::new(start.role, NodeNumber::NONE, None))?;
    known(reactor.block_on(tell(&*reactor, start, request)))
}

fn known(answer: Result<(), Error>) -> io::Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.is(Class::Retry) => Ok(false),
        Err(error) => Err(io::Error::other(error.to_string())),
    }
}

/// The mark of a store's directory: it counts starts and, while something is written, minutes.
pub struct Mark {
    dir: Arc<dyn Dir>,
    start: Start,
    reactor: Arc<Reactor>,
    mark: u64,
    told: u64,
}

impl Mark {
    /// Reads it.
    ///
    /// # Errors
    /// The disk's, or it is damaged.
    pub fn load(dir: Arc<dyn Dir>, start: Start) -> io::Result<Mark> {
        let (mark, told) = match dir.open(FILE) {
            Ok(file) => decode(&read_all(&*file)?)
                .ok_or_else(|| io::Error::other(format!("{}/{FILE} is damaged", dir.label())))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => (0, 0),
            Err(error) => return Err(error),
        };
        let reactor = Reactor::new(Hello::new(start.role, NodeNumber::NONE, None))?;
        Ok(Mark { dir, start, reactor, mark, told })
    }

    /// Raises it by one, and tells the coordinator; false if that does not answer.
    ///
    /// # Errors
    /// The directory, or the coordinator's, is older than it was; the disk's.
    pub fn raise(&mut self) -> io::Result<bool> {
        let (have, want) = (self.mark, self.mark + 1);
        self.save(want, self.told)?;
        let request = MarkReq {
            role: self.start.role as u32,
            n: self.start.n,
            told: self.told,
            have,
            want,
            token: saker_runtime::rand::u64(),
        };
        match known(self.reactor.block_on(tell(&*self.reactor, &self.start, &request))) {
            Ok(true) => self.save(want, want).map(|()| true),
            Ok(false) => Ok(false),
            Err(refused) => {
                // Else the next start would say that it has come so far.
                self.save(have, self.told)?;
                Err(refused)
            }
        }
    }

    fn save(&mut self, mark: u64, told: u64) -> io::Result<()> {
        replace(&*self.dir, FILE, &encode(mark, told))?;
        (self.mark, self.told) = (mark, told);
        Ok(())
    }
}

fn encode(mark: u64, told: u64) -> [u8; BYTES] {
    let mut out = [0; BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[24..32].copy_from_slice(&mark.to_le_bytes());
    out[32..40].copy_from_slice(&told.to_le_bytes());
    let sum = crc32c(&out[..CHECKSUM_AT]);
    out[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
    out
}

fn decode(raw: &[u8]) -> Option<(u64, u64)> {
    let raw: &[u8; BYTES] = raw.try_into().ok()?;
    let word = |at: usize| raw[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    let (mark, told) = (word(24)?, word(32)?);
    (*raw == encode(mark, told)).then_some((mark, told))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_checked() {
        let raw = encode(7, 6);
        assert_eq!(decode(&raw), Some((7, 6)));
        for at in 0..BYTES {
            let mut damaged = raw;
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None, "byte {at}");
        }
        assert_eq!(decode(&raw[1..]), None);
    }
}
