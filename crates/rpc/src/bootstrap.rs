//! A node's or client's first contact: the cluster map, from the coordinator.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_runtime::fs::{Dir, read_all, replace};
use saker_types::change::Joined;
use saker_types::wire::{Empty, JoinReq, MapReq, Op};
use saker_types::{Class, ClusterMap, Error};

use crate::NodeId;
use crate::client::{Reactor, Transport};
use crate::hello::{ClusterId, Hello, RoleKind};
use crate::hub::decode_reply;
use crate::member::{self, Member};

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// File in a node's data directory that keeps the last map it saw.
const MAP_FILE: &str = "cluster-map";

/// Asks one coordinator for the map.
pub async fn fetch_map(transport: &dyn Transport, at: SocketAddr) -> Result<ClusterMap, Error> {
    let body = MapReq { newer_than: 0 }.encode_to_vec().into();
    let answer = transport.call(at, Op::Map as u16, 0, body, Bytes::new(), ATTEMPT).await;
    let map: ClusterMap = decode_reply(answer)?;
    map.check()?;
    Ok(map)
}

/// An MNode or store that starts.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// [`RoleKind::Shard`] for an MNode, or [`RoleKind::Store`].
    pub role: RoleKind,
    /// Its number.
    pub n: u32,
    /// Where the coordinator is.
    pub coordinator: SocketAddr,
}

/// The coordinator's map, for a node that starts on its data directory; or, while the coordinator
/// does not answer, the last one seen, so that a node can start again while it is down. Waits for
/// as long as neither is there.
///
/// An empty directory is taken only if the node has never served: where a disk is not mounted, or
/// was wiped, the node does not start, since all that it had would seem never to have been.
///
/// # Errors
/// When the directory is another node's, or not the one that this node had; and the disk's.
pub fn join(dir: &dyn Dir, start: &Start) -> io::Result<ClusterMap> {
    let reactor = Reactor::new(Hello::new(start.role, NodeId::NONE, None))?;
    let mut known = member::load(dir)?;
    if let Some(other) = known.filter(|own| (own.role, own.n) != (start.role, start.n)) {
        return Err(foreign(dir, &other));
    }
    let saved = load(dir).filter(|map| known.is_some_and(|own| map.uuid == own.cluster[..]));
    let mut told = false;
    loop {
        let error = match reactor.block_on(fetch_map(&*reactor, start.coordinator)) {
            Ok(map) => {
                let own = own_or_new(dir, &map, start, known)?;
                match reactor.block_on(ask_to_join(&*reactor, start, &own)) {
                    Ok(()) => {
                        replace(dir, MAP_FILE, &map.encode_to_vec())?;
                        return Ok(map);
                    }
                    Err(e) if e.is(Class::Retry) => {
                        known = Some(own);
                        e
                    }
                    Err(e) => {
                        if known.is_none() {
                            // As it was before.
                            member::remove(dir)?;
                        }
                        return Err(io::Error::other(format!("{}: {}", dir.label(), e.text)));
                    }
                }
            }
            Err(e) => e,
        };
        let at = start.coordinator;
        if let Some(map) = saved {
            tracing::warn!("coordinator at {at}: {error}; starting with the last map");
            return Ok(map);
        }
        if !std::mem::replace(&mut told, true) {
            tracing::info!("waiting for the coordinator at {at}: {error}");
        }
        saker_runtime::time::sleep(PAUSE);
    }
}

/// Who the directory says it is; a new one is marked before the coordinator hears of it.
fn own_or_new(
    dir: &dyn Dir,
    map: &ClusterMap,
    start: &Start,
    known: Option<Member>,
) -> io::Result<Member> {
    let cluster = ClusterId::try_from(&map.uuid[..]);
    let cluster = cluster.map_err(|_| io::Error::other("the cluster has no uuid"))?;
    match known {
        Some(own) if own.cluster == cluster => Ok(own),
        Some(other) => Err(foreign(dir, &other)),
        None => {
            let own = Member::new(cluster, start.role, start.n);
            member::save(dir, &own)?;
            Ok(own)
        }
    }
}

fn foreign(dir: &dyn Dir, other: &Member) -> io::Error {
    let what = if other.role == RoleKind::Store { "store" } else { "MNode" };
    let cluster: String = other.cluster.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{} belongs to {what} {} of cluster {cluster}", dir.label(), other.n);
    io::Error::other(text)
}

async fn ask_to_join(transport: &dyn Transport, start: &Start, own: &Member) -> Result<(), Error> {
    let dir = Bytes::copy_from_slice(&own.id);
    let joined = Joined { role: own.role as u32, n: own.n, dir };
    let body = JoinReq { joined }.encode_to_vec().into();
    let at = start.coordinator;
    let answer = transport.call(at, Op::Join as u16, 0, body, Bytes::new(), ATTEMPT).await;
    decode_reply::<Empty>(answer).map(drop)
}

fn load(dir: &dyn Dir) -> Option<ClusterMap> {
    let file = dir.open(MAP_FILE).ok()?;
    let raw = read_all(&*file).ok()?;
    let map = ClusterMap::decode(&raw[..]).ok()?;
    map.check().ok().map(|()| map)
}

/// The cluster's id as hellos carry it.
pub fn cluster_id(map: &Arc<ClusterMap>) -> Option<ClusterId> {
    map.uuid[..].try_into().ok()
}
