//! Requests to a store: decode, call, encode.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use saker_rpc::{Frame, PeerHello, Service};
use saker_runtime::fs::machine;
use saker_types::wire::{
    ChunkDeleteReq, ChunkListReq, ChunkQuarantineReq, ChunkReadReq, ChunkSeekReq, ChunkSyncReply,
    ChunkSyncReq, ChunkTruncateReq, ChunkWriteReq, Empty, Op,
};
use saker_types::{Class, Errno, Error, Result};

use crate::store::Store;

/// Body and payload of a reply.
pub type Answer = (Bytes, Bytes);

/// Answers requests with a store.
pub struct StoreService {
    store: Arc<Store>,
}

fn decode<M: Message + Default>(body: &[u8]) -> Result<M> {
    M::decode(body).map_err(|error| {
        let text = format!("malformed request: {error}");
        Error::of_class(Class::Fatal, Errno::EPROTO).with_text(text)
    })
}

fn only(message: &impl Message) -> Answer {
    (message.encode_to_vec().into(), Bytes::new())
}

impl StoreService {
    /// Requests go to `store`.
    pub fn new(store: Arc<Store>) -> StoreService {
        StoreService { store }
    }

    /// Carries out a request; waits for the disk where it must.
    ///
    /// # Errors
    /// The operation's; class Fatal for what is no request to a store.
    pub fn answer(&self, op: u16, body: &[u8], payload: &Bytes) -> Result<Answer> {
        let store = &self.store;
        let done = |()| only(&Empty {});
        match Op::from_u16(op) {
            Some(Op::ChunkWrite) => {
                let written = store.write(&decode::<ChunkWriteReq>(body)?, payload)?;
                Ok(only(&written))
            }
            Some(Op::ChunkRead) => {
                let req = decode::<ChunkReadReq>(body)?;
                if req.machine != 0
                    && req.machine == machine()
                    && let Some(located) = store.locate(&req)?
                {
                    return Ok(only(&located));
                }
                let (data, reply) = store.read(&req)?;
                Ok((reply.encode_to_vec().into(), data))
            }
            Some(Op::ChunkSync) => {
                let lost = store.sync(&decode::<ChunkSyncReq>(body)?.unflushed)?;
                Ok(only(&ChunkSyncReply { lost }))
            }
            Some(Op::ChunkTruncate) => store.truncate(&decode::<ChunkTruncateReq>(body)?).map(done),
            Some(Op::ChunkDelete) => store.delete(&decode::<ChunkDeleteReq>(body)?).map(done),
            Some(Op::ChunkQuarantine) => {
                Ok(only(&store.quarantine(&decode::<ChunkQuarantineReq>(body)?)?))
            }
            Some(Op::ChunkSeek) => {
                let req = decode::<ChunkSeekReq>(body)?;
                Ok(only(&store.seek(&req)?))
            }
            Some(Op::StoreStat) => Ok(only(&store.stat()?)),
            Some(Op::ChunkList) => Ok(only(&store.list(&decode::<ChunkListReq>(body)?)?)),
            _ => {
                let text = format!("operation {op} is none of a store's");
                Err(Error::of_class(Class::Fatal, Errno::ENOSYS).with_text(text))
            }
        }
    }
}

impl Service for StoreService {
    fn announce(&self, frame: &Frame) {
        if Op::from_u16(frame.op) == Some(Op::ChunkRead)
            && let Ok(req) = ChunkReadReq::decode(&frame.body[..])
        {
            self.store.prefetch(&req);
        }
    }

    fn handle(&self, _peer: &PeerHello, frame: Frame) -> Frame {
        match self.answer(frame.op, &frame.body, &frame.payload) {
            Ok((body, payload)) => frame.reply(0, body, payload),
            Err(error) => {
                let body = error.encode_to_vec().into();
                frame.reply(error.errno().0, body, Bytes::new())
            }
        }
    }
}
