//! Requests to a store: decode, call the backend, encode. What all backends need is here: which
//! attempts at a write count, what is set aside, and who may wait.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use saker_rpc::{Blocked, Frame, Lane, Service, ServiceOutcome};
use saker_runtime::fs::{Dir, machine};
use saker_runtime::time::wall_ns;
use saker_types::limits::CHUNK_BYTES;
use saker_types::wire::{
    ChunkDeleteReq, ChunkListReply, ChunkListReq, ChunkQuarantineReply, ChunkQuarantineReq,
    ChunkReadReply, ChunkReadReq, ChunkSeekReq, ChunkSyncReply, ChunkSyncReq, ChunkTruncateReply,
    ChunkTruncateReq, ChunkWriteReply, ChunkWriteReq, Empty, Op,
};
use saker_types::{Class, Errno, Error, InodeId, Result};

use crate::attempts::Attempts;
use crate::backend::{ChunkBackend, io_error};
use crate::quarantine::Quarantine;
use crate::wait::{WaitPolicy, is_would_wait, would_wait};

/// Answers requests with what a backend keeps.
pub struct StoreService {
    backend: Arc<dyn ChunkBackend>,
    attempts: Attempts,
    quarantine: Quarantine,
}

/// What a request comes to.
enum Answer {
    /// Body and payload of the reply.
    Now(Bytes, Bytes),
    /// The same, after a flush.
    Flushed(Bytes),
    /// After a flush this is to be looked at.
    Sync(ChunkSyncReq),
}

fn decode<M: Message + Default>(body: &[u8]) -> Result<M> {
    M::decode(body).map_err(|error| {
        let text = format!("malformed request: {error}");
        Error::of_class(Class::Fatal, Errno::EPROTO).with_text(text)
    })
}

fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

fn only(message: &impl Message) -> Answer {
    Answer::Now(encoded(message), Bytes::new())
}

fn reply(request: &Frame, result: Result<(Bytes, Bytes)>) -> Frame {
    match result {
        Ok((body, payload)) => request.reply(0, body, payload),
        Err(error) => request.reply(error.errno().0, encoded(&error), Bytes::new()),
    }
}

impl StoreService {
    /// Requests go to `backend`; what is set aside is listed in `dir`.
    ///
    /// # Errors
    /// When that list cannot be read.
    pub fn new(dir: Arc<dyn Dir>, backend: Arc<dyn ChunkBackend>) -> Result<StoreService> {
        let quarantine = Quarantine::open(dir).map_err(|e| io_error("quarantine", &e))?;
        Ok(StoreService { backend, attempts: Attempts::default(), quarantine })
    }

    /// What is to be done from time to time.
    ///
    /// # Errors
    /// The disk's; it is tried again the next time.
    pub fn upkeep(&self) -> Result<()> {
        self.quarantine.save()
    }

    /// Carries out a request. EAGAIN: it would have to wait.
    fn answer(&self, frame: &Frame, wait: WaitPolicy) -> Result<Answer> {
        let body = &frame.body[..];
        match Op::from_u16(frame.op) {
            Some(Op::ChunkWrite) => self.write(&decode(body)?, &frame.payload, wait),
            Some(Op::ChunkRead) => self.read(&decode(body)?, wait),
            Some(Op::ChunkSync) => Ok(Answer::Sync(decode(body)?)),
            Some(Op::StoreStat) => Ok(only(&self.backend.stat()?)),
            Some(_) if wait == WaitPolicy::Never => Err(would_wait()),
            Some(Op::ChunkTruncate) => {
                let req: ChunkTruncateReq = decode(body)?;
                self.quarantine.leave(req.id, wait)?;
                let truncate_gen = self.backend.truncate(&req)?;
                Ok(Answer::Flushed(encoded(&ChunkTruncateReply { truncate_gen })))
            }
            Some(Op::ChunkDelete) => {
                self.delete(&decode::<ChunkDeleteReq>(body)?.ids)?;
                Ok(only(&Empty {}))
            }
            Some(Op::ChunkQuarantine) => Ok(only(&self.quarantine(&decode(body)?, wall_ns())?)),
            Some(Op::ChunkSeek) => {
                let req: ChunkSeekReq = decode(body)?;
                self.quarantine.leave(req.id, wait)?;
                Ok(only(&self.backend.seek(&req)?))
            }
            Some(Op::ChunkList) => Ok(only(&self.list(&decode(body)?)?)),
            _ => {
                let text = format!("operation {} is none of a store's", frame.op);
                Err(Error::of_class(Class::Fatal, Errno::ENOSYS).with_text(text))
            }
        }
    }

    /// A write. EALREADY: it comes after a later attempt at the same.
    fn write(&self, req: &ChunkWriteReq, payload: &[u8], wait: WaitPolicy) -> Result<Answer> {
        self.quarantine.leave(req.id, wait)?;
        let _attempt = match req.writer {
            0 => None,
            writer => Some(self.attempts.begin((writer, req.seq), req.attempt, wait)?),
        };
        let written = self.backend.write(req, payload, wait)?;
        // What is flushed when it is answered need not be remembered as unflushed.
        Ok(match req.sync {
            true => Answer::Flushed(encoded(&ChunkWriteReply::default())),
            false => only(&written),
        })
    }

    fn read(&self, req: &ChunkReadReq, wait: WaitPolicy) -> Result<Answer> {
        self.quarantine.leave(req.id, wait)?;
        if req.machine != 0
            && req.machine == machine()
            && let Some(located) = self.backend.locate(req, wait)?
        {
            return Ok(only(&located));
        }
        let (data, reply): (Bytes, ChunkReadReply) = self.backend.read(req, wait)?;
        Ok(Answer::Now(encoded(&reply), data))
    }

    fn delete(&self, ids: &[InodeId]) -> Result<()> {
        self.backend.delete(ids)?;
        ids.iter().try_for_each(|id| self.quarantine.leave(*id, WaitPolicy::May))
    }

    /// Sets the chunks of inodes that nobody seems to know aside, takes others back, and deletes
    /// those that were aside for long enough; returns their ids.
    pub(crate) fn quarantine(
        &self,
        req: &ChunkQuarantineReq,
        now_ns: i64,
    ) -> Result<ChunkQuarantineReply> {
        let deleted = self.quarantine.change(req, now_ns)?;
        if !deleted.is_empty() {
            self.delete(&deleted)?;
        }
        Ok(ChunkQuarantineReply { deleted })
    }

    fn list(&self, req: &ChunkListReq) -> Result<ChunkListReply> {
        let mut listed = self.backend.list(req)?;
        for chunk in &mut listed.chunks {
            chunk.aside_ns = self.quarantine.since(chunk.id).unwrap_or_default();
        }
        Ok(listed)
    }

    fn outcome(&self, frame: &Frame, answer: Result<Answer>) -> ServiceOutcome {
        let request = frame.without_content();
        match answer {
            Ok(Answer::Now(body, payload)) => ServiceOutcome::Reply(frame.reply(0, body, payload)),
            Ok(Answer::Flushed(body)) => ServiceOutcome::AfterFlush(Box::new(move |failed| {
                let done = || (body, Bytes::new());
                reply(&request, failed.map_or_else(|| Ok(done()), |error| Err(error.clone())))
            })),
            Ok(Answer::Sync(req)) => {
                let backend = self.backend.clone();
                ServiceOutcome::AfterFlush(Box::new(move |failed| {
                    let synced = || ChunkSyncReply { lost: backend.lost(&req.unflushed) };
                    let done = || (encoded(&synced()), Bytes::new());
                    reply(&request, failed.map_or_else(|| Ok(done()), |error| Err(error.clone())))
                }))
            }
            Err(error) => ServiceOutcome::Reply(reply(frame, Err(error))),
        }
    }
}

impl Service for StoreService {
    fn attempt(&self, frame: Frame) -> std::result::Result<ServiceOutcome, Blocked> {
        match self.answer(&frame, WaitPolicy::Never) {
            Err(error) if is_would_wait(&error) => Err(blocked(frame)),
            answer => Ok(self.outcome(&frame, answer)),
        }
    }

    fn execute(&self, frame: Frame) -> ServiceOutcome {
        let answer = self.answer(&frame, WaitPolicy::May);
        self.outcome(&frame, answer)
    }

    fn flush(&self) -> Result<()> {
        self.backend.flush()
    }
}

fn blocked(frame: Frame) -> Blocked {
    let (lane, reply_bytes) = match Op::from_u16(frame.op) {
        Some(Op::ChunkRead) => {
            let len = ChunkReadReq::decode(&frame.body[..]).map_or(0, |req| req.len);
            (Lane::Read, len.min(CHUNK_BYTES) as usize)
        }
        Some(Op::ChunkSeek | Op::ChunkList) => (Lane::Read, 0),
        _ => (Lane::Change, 0),
    };
    Blocked { frame, lane, reply_bytes }
}
