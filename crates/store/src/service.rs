//! Requests to a store: decode, call, encode.

use bytes::Bytes;
use prost::Message;
use saker_rpc::{Blocked, Frame, Lane, Outcome, Service};
use saker_runtime::fs::machine;
use saker_types::limits::CHUNK_BYTES;
use saker_types::wire::{
    ChunkDeleteReq, ChunkListReq, ChunkQuarantineReq, ChunkReadReq, ChunkSeekReq, ChunkSyncReply,
    ChunkSyncReq, ChunkTruncateReq, ChunkWriteReply, ChunkWriteReq, Empty, Op,
};
use saker_types::{Class, Errno, Error, Result};
use std::sync::Arc;

use crate::store::Store;
use crate::wait::{Wait, is_would_wait, would_wait};

/// Answers requests with a store.
pub struct StoreService {
    store: Arc<Store>,
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
    /// Requests go to `store`.
    pub fn new(store: Arc<Store>) -> StoreService {
        StoreService { store }
    }

    /// Carries out a request. EAGAIN: it would have to wait.
    fn answer(&self, frame: &Frame, wait: Wait) -> Result<Answer> {
        let (store, body) = (&*self.store, &frame.body[..]);
        match Op::from_u16(frame.op) {
            Some(Op::ChunkWrite) => {
                let req = decode::<ChunkWriteReq>(body)?;
                let written = store.write(&req, &frame.payload, wait)?;
                // What is flushed when it is answered need not be remembered as unflushed.
                Ok(match req.sync {
                    true => Answer::Flushed(encoded(&ChunkWriteReply::default())),
                    false => only(&written),
                })
            }
            Some(Op::ChunkRead) => {
                let req = decode::<ChunkReadReq>(body)?;
                if req.machine != 0
                    && req.machine == machine()
                    && let Some(located) = store.locate(&req, wait)?
                {
                    return Ok(only(&located));
                }
                let (data, reply) = store.read(&req, wait)?;
                Ok(Answer::Now(encoded(&reply), data))
            }
            Some(Op::ChunkSync) => Ok(Answer::Sync(decode(body)?)),
            Some(Op::StoreStat) => Ok(only(&store.stat()?)),
            Some(_) if wait == Wait::Never => Err(would_wait()),
            Some(Op::ChunkTruncate) => {
                store.truncate(&decode::<ChunkTruncateReq>(body)?)?;
                Ok(Answer::Flushed(encoded(&Empty {})))
            }
            Some(Op::ChunkDelete) => {
                store.delete(&decode::<ChunkDeleteReq>(body)?)?;
                Ok(only(&Empty {}))
            }
            Some(Op::ChunkQuarantine) => {
                Ok(only(&store.quarantine(&decode::<ChunkQuarantineReq>(body)?)?))
            }
            Some(Op::ChunkSeek) => Ok(only(&store.seek(&decode::<ChunkSeekReq>(body)?)?)),
            Some(Op::ChunkList) => Ok(only(&store.list(&decode::<ChunkListReq>(body)?)?)),
            _ => {
                let text = format!("operation {} is none of a store's", frame.op);
                Err(Error::of_class(Class::Fatal, Errno::ENOSYS).with_text(text))
            }
        }
    }

    fn outcome(&self, frame: &Frame, answer: Result<Answer>) -> Outcome {
        let request = frame.without_content();
        match answer {
            Ok(Answer::Now(body, payload)) => Outcome::Reply(frame.reply(0, body, payload)),
            Ok(Answer::Flushed(body)) => Outcome::AfterFlush(Box::new(move |failed| {
                let done = || (body, Bytes::new());
                reply(&request, failed.map_or_else(|| Ok(done()), |error| Err(error.clone())))
            })),
            Ok(Answer::Sync(req)) => {
                let store = self.store.clone();
                Outcome::AfterFlush(Box::new(move |failed| {
                    let synced = || ChunkSyncReply { lost: store.lost(&req.unflushed) };
                    let done = || (encoded(&synced()), Bytes::new());
                    reply(&request, failed.map_or_else(|| Ok(done()), |error| Err(error.clone())))
                }))
            }
            Err(error) => Outcome::Reply(reply(frame, Err(error))),
        }
    }
}

impl Service for StoreService {
    fn attempt(&self, frame: Frame) -> std::result::Result<Outcome, Blocked> {
        match self.answer(&frame, Wait::Never) {
            Err(error) if is_would_wait(&error) => Err(blocked(frame)),
            answer => Ok(self.outcome(&frame, answer)),
        }
    }

    fn execute(&self, frame: Frame) -> Outcome {
        let answer = self.answer(&frame, Wait::May);
        self.outcome(&frame, answer)
    }

    fn flush(&self) -> Result<()> {
        self.store.flush()
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
