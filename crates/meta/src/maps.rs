//! Newer cluster maps. A shard hears of one by a request or an answer, asks the coordinator for it,
//! once for all who wait, and stands by it from then on; it never goes back.
//!
//! What is its own by the map that it has it serves at once, also while the coordinator is down: a
//! slot is not given to another shard before its owner has given it up. What is not waits for the
//! newer map, if its sender knows one, and is judged by that.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_types::change::What;
use saker_types::wire::{MapReq, Op};
use saker_types::{ClusterMap, Errno, Error, NodeId};

use crate::request::Wait;
use crate::shard::{Shard, ShardHandle};

/// Pause when the coordinator has no map as new as somebody has told of.
const PAUSE: Duration = Duration::from_secs(1);

impl Shard {
    /// Somebody knows a map of this version.
    pub(crate) fn heard_of_map(&mut self, version: u64) {
        if version <= self.map.version || std::mem::replace(&mut self.fetches_map, true) {
            return;
        }
        let h = self.handle();
        self.hub.spawn(fetch(h, version));
    }

    /// A peer cannot be reached. By a newer map, of which nobody has told this shard, it may have
    /// another address.
    pub(crate) fn peer_is_unreachable(&mut self) {
        let now = self.hub.now();
        let was_asked = self.map_asked_at.is_some_and(|at| now.since(at) < PAUSE);
        if was_asked || self.fetches_map {
            return;
        }
        self.map_asked_at = Some(now);
        let h = self.handle();
        self.hub.spawn(look(h));
    }

    /// Stands by a map from now on, if it is newer; durable before anything leaves that follows it.
    fn install_map(&mut self, map: ClusterMap) -> Result<(), Error> {
        map.check()?;
        if map.uuid != self.map.uuid {
            return Err(Error::new(Errno::EPROTO).with_text("the map is of another cluster"));
        }
        if map.version > self.map.version {
            tracing::info!("shard {} stands by map {}", self.no, map.version);
            self.log_change(What::Map(map.encode_to_vec().into()));
            self.map = Arc::new(map);
        }
        Ok(())
    }
}

/// Asks once whether there is a newer map.
async fn look(h: ShardHandle) {
    let request = MapReq { newer_than: h.shard().map.version };
    let answer = h.hub.ask::<ClusterMap>(NodeId::Coordinator, Op::Map, 0, &request, PAUSE).await;
    let Ok(map) = answer else { return };
    let mut s = h.shard();
    if let Err(error) = s.install_map(map) {
        tracing::error!("the coordinator's map cannot be used: {error}");
    }
    s.wake(&Wait::Map);
}

/// Asks for a map as new as `version`.
async fn fetch(h: ShardHandle, version: u64) {
    let request = MapReq { newer_than: h.shard().map.version };
    let to = NodeId::Coordinator;
    let answer = h.hub.ask_until::<ClusterMap>(to, Op::Map, 0, &request, Bytes::new()).await;
    let is_there = {
        let mut s = h.shard();
        if let Err(error) = answer.and_then(|map| s.install_map(map)) {
            tracing::error!("the coordinator's map cannot be used: {error}");
        }
        // A waiting request is judged by the newest map that is to be had.
        s.wake(&Wait::Map);
        s.map.version >= version
    };
    if !is_there {
        tracing::warn!("a map {version} was told of that the coordinator does not know");
        h.hub.sleep(PAUSE).await;
    }
    let mut s = h.shard();
    s.fetches_map = false;
    s.wake(&Wait::Map);
}

/// The newer of the map that a shard starts with and the one that its journal ends with.
///
/// # Errors
/// If that cannot be read.
pub(crate) fn newest(
    map: Arc<ClusterMap>,
    journaled: Option<Bytes>,
) -> Result<Arc<ClusterMap>, Error> {
    let Some(raw) = journaled else { return Ok(map) };
    let bad = |e: prost::DecodeError| Error::new(Errno::EPROTO).with_text(e.to_string());
    let known = ClusterMap::decode(raw).map_err(bad)?;
    known.check()?;
    Ok(if known.version > map.version { Arc::new(known) } else { map })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::rc::Rc;

    use saker_engine::memory::MemoryStorage;
    use saker_rpc::frame::Frame;
    use saker_rpc::hello::{PeerHello, RoleKind};
    use saker_rpc::node::{Conditions, ConnId, Input, Outbox, Outgoing, StateMachine};
    use saker_runtime::time::Time;
    use saker_types::placement::Slot;
    use saker_types::wire::{At, Ctx, LockReq};
    use saker_types::{Class, InodeId, ShardNo};

    use super::*;
    use crate::service::ShardWorker;
    use crate::testing::{map, open};

    /// A file whose locks shard 1 keeps by [`newer`].
    const FILE: InodeId = 5;

    /// Map 1: all is shard 0's. In map 2 the locks of the file are shard 1's.
    fn newer() -> ClusterMap {
        map().with_slot_at(Slot::of_locks(FILE), 1)
    }

    struct Node {
        shard: Rc<RefCell<Shard>>,
        worker: ShardWorker,
        out: Outbox,
        now: Time,
    }

    /// What leaves: answers to clients (status and class), and calls to peers.
    #[derive(Default)]
    struct Left {
        answers: Vec<(u16, i32)>,
        calls: Vec<(saker_rpc::node::CallId, Op)>,
        map_versions: Vec<u32>,
    }

    impl Node {
        fn start(no: ShardNo, disk: &MemoryStorage, map: &ClusterMap) -> Node {
            let shard = open(no, disk, map);
            let worker = ShardWorker::new(shard.clone());
            Node { shard, worker, out: Outbox::new(), now: Time::ZERO }
        }

        fn step(&mut self, inputs: impl IntoIterator<Item = Input>) -> Left {
            self.now += Duration::from_millis(2);
            let mut inputs: VecDeque<Input> = inputs.into_iter().collect();
            self.worker.step(self.now, 0, &mut inputs, &mut self.out);
            let mut left = Left::default();
            for (_, message) in self.out.drain(Conditions::NONE, Conditions::NONE) {
                let frame = match message {
                    Outgoing::Reply { frame, .. } => {
                        let class = Error::decode(frame.body.clone()).map_or(0, |e| e.class);
                        left.answers.push((frame.status, class));
                        frame
                    }
                    Outgoing::Call { call, frame, .. } => {
                        left.calls.push((call, Op::from_u16(frame.op).unwrap()));
                        frame
                    }
                };
                left.map_versions.push(frame.map_version);
            }
            left
        }
    }

    /// Asks for a lock on a file.
    fn asks(id: InodeId, map_version: u64) -> Input {
        let mut request = LockReq { at: At::locks(id), ..LockReq::default() };
        request.ctx = Ctx { map_version, ..Ctx::default() };
        request.lock.holder = 7;
        request.wait_ms = 4_000;
        let body = request.encode_to_vec().into();
        let frame = Frame::request(Op::Getlk as u16, 0, body, Bytes::new());
        Input::Request { conn: ConnId(0), peer: client(), frame }
    }

    fn client() -> Rc<PeerHello> {
        let node = saker_rpc::NodeNumber::NONE;
        let (cluster, ip) = (None, None);
        let role = RoleKind::Client;
        PeerHello { protocol: 1, cluster, role, node, session: 0, map_version: 0, features: 0, ip }
            .into()
    }

    fn told(call: saker_rpc::node::CallId, map: &ClusterMap) -> Input {
        let request = Frame::request(Op::Map as u16, 0, Bytes::new(), Bytes::new());
        let frame = request.reply(0, map.encode_to_vec().into(), Bytes::new());
        Input::Reply { call, result: Ok(frame) }
    }

    #[test]
    fn what_goes_by_a_newer_map_waits_for_it_and_is_judged_by_it() {
        let disk = MemoryStorage::new();
        let mut node = Node::start(1, &disk, &map());
        let left = node.step([asks(FILE, 2), asks(FILE, 2)]);
        let [(call, Op::Map)] = left.calls[..] else { panic!("asked once: {:?}", left.calls) };
        assert_eq!((left.answers, left.map_versions), (vec![], vec![1]));
        let left = node.step([told(call, &newer())]);
        assert_eq!(left.answers, [(0, 0), (0, 0)]);
        assert_eq!((left.calls, left.map_versions), (vec![], vec![2, 2]));
        // A request by the older map is another shard's by that only.
        assert_eq!(node.step([asks(FILE, 1)]).answers, [(0, 0)]);
        // It never goes back, and knows it after a start with the older one, too.
        node.shard.borrow_mut().install_map(map()).unwrap();
        assert_eq!(node.shard.borrow().map.version, 2);
        node.worker.flush().unwrap();
        drop(node);
        assert_eq!(open(1, &disk, &map()).borrow().map.version, 2);
    }

    #[test]
    fn what_is_here_is_served_while_the_coordinator_is_down() {
        let disk = MemoryStorage::new();
        let mut node = Node::start(0, &disk, &map());
        let left = node.step([asks(FILE, 2)]);
        assert_eq!((left.answers, left.calls.len()), (vec![(0, 0)], 1));
    }

    #[test]
    fn a_version_that_nobody_knows_is_asked_for_from_time_to_time() {
        let mut node = Node::start(1, &MemoryStorage::new(), &map());
        let [(call, Op::Map)] = node.step([asks(FILE, 9)]).calls[..] else { panic!("not asked") };
        let left = node.step([told(call, &map())]);
        let [(forwarded, Op::Getlk)] = left.calls[..] else { panic!("{:?}", left.calls) };
        assert!(node.step([asks(FILE, 9)]).calls.is_empty(), "not yet");
        node.now += PAUSE;
        let left = node.step([]);
        assert!(matches!(left.calls[..], [(_, Op::Map), (_, Op::Getlk)]), "{:?}", left.calls);
        let disconnected = Err(saker_rpc::CallError::Disconnected);
        let left = node.step([Input::Reply { call: forwarded, result: disconnected }]);
        assert_eq!(left.answers, [(Errno::EAGAIN.0, Class::Retry.into())]);
    }

    #[test]
    fn who_cannot_be_reached_may_have_another_address() {
        let mut node = Node::start(1, &MemoryStorage::new(), &map());
        let unreachable = |n| {
            let result = Err(saker_rpc::CallError::Unreachable);
            Input::Reply { call: saker_rpc::node::CallId(n), result }
        };
        let [(call, Op::Map)] = node.step([unreachable(90), unreachable(91)]).calls[..] else {
            panic!("asked once")
        };
        assert!(node.step([unreachable(92)]).calls.is_empty(), "not yet again");
        node.step([told(call, &newer())]);
        assert_eq!(node.shard.borrow().map.version, 2);
        node.now += PAUSE;
        assert_eq!(node.step([unreachable(93)]).calls.len(), 1);
    }

    #[test]
    fn a_map_of_another_cluster_is_refused() {
        let node = Node::start(1, &MemoryStorage::new(), &map());
        let other = ClusterMap { uuid: Bytes::from_static(&[8; 16]), ..newer() };
        assert!(node.shard.borrow_mut().install_map(other).is_err());
        assert_eq!(node.shard.borrow().map.version, 1);
    }
}
