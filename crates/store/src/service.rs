//! Frames in, frames out.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use saker_rpc::frame::Frame;
use saker_rpc::hello::PeerHello;
use saker_types::wire::*;
use saker_types::{Errno, Error, Result};

use crate::Store;

/// A store as a service.
pub struct StoreService(pub Arc<Store>);

impl saker_rpc::service::Service for StoreService {
    fn handle(&self, _peer: &PeerHello, frame: Frame) -> Frame {
        match self.execute(&frame) {
            Ok((body, payload)) => frame.reply(0, body, payload),
            Err(e) => frame.reply(e.errno().0, e.encode_to_vec().into(), Bytes::new()),
        }
    }
}

impl StoreService {
    fn execute(&self, frame: &Frame) -> Result<(Bytes, Bytes)> {
        let store = &self.0;
        let body = &frame.body;
        let done = |()| answer(&Empty {});
        match Op::from_u16(frame.op) {
            Some(Op::ChunkWrite) => store.write(&decode(body)?, &frame.payload).map(done),
            Some(Op::ChunkRead) => {
                let (payload, crc) = store.read(&decode(body)?)?;
                Ok((ChunkReadReply { crc }.encode_to_vec().into(), payload))
            }
            Some(Op::ChunkSync) => store.sync().map(done),
            Some(Op::ChunkTruncate) => store.truncate(&decode(body)?).map(done),
            Some(Op::ChunkDelete) => store.delete(&decode(body)?).map(done),
            Some(Op::StoreStat) => store.stat().map(|stats| answer(&stats)),
            Some(Op::ChunkList) => store.list(&decode(body)?).map(|list| answer(&list)),
            op => {
                let name = op.map_or("an unknown operation", Op::name);
                Err(Error::new(Errno::EPROTO).with_text(format!("{name} is not for a store")))
            }
        }
    }
}

fn decode<M: Message + Default>(body: &Bytes) -> Result<M> {
    M::decode(body.clone()).map_err(|e| Error::new(Errno::EPROTO).with_text(e.to_string()))
}

fn answer(message: &impl Message) -> (Bytes, Bytes) {
    (message.encode_to_vec().into(), Bytes::new())
}
