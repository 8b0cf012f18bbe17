//! A node's or client's first contact: the cluster map, from the coordinator.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_runtime::fs::{Dir, read_all, replace};
use saker_types::change::Joined;
use saker_types::id::hex;
use saker_types::wire::{Empty, MapReq, Op};
use saker_types::{Class, ClusterMap, Errno, Error};

use crate::NodeNumber;
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
    let reactor = Reactor::new(Hello::new(start.role, NodeNumber::NONE, None))?;
    let at = start.coordinator;
    let mut told = false;
    loop {
        // Anew each time: what is waited for may be a disk, too.
        let own = member::load(dir)?;
        if let Some(other) = own.filter(|own| (own.role, own.n) != (start.role, start.n)) {
            return Err(foreign(dir, &other));
        }
        let map = match reactor.block_on(fetch_map(&*reactor, at)) {
            Ok(map) => map,
            Err(error) => {
                let saved = load(dir);
                if let Some(map) = saved.filter(|map| own.is_some_and(|own| own.is_of(map))) {
                    tracing::warn!("coordinator at {at}: {error}; starting with the last map");
                    return Ok(map);
                }
                wait(&mut told, at, &error);
                continue;
            }
        };
        let Some(own) = own else {
            // Before the coordinator hears of it. Whose it is then shows in the next turn.
            mark(dir, &map, start)?;
            continue;
        };
        if !own.is_of(&map) {
            return Err(foreign(dir, &own));
        }
        match reactor.block_on(ask_to_join(&*reactor, start, &own)) {
            Ok(()) => {}
            Err(error) if error.is(Class::Retry) => {
                wait(&mut told, at, &error);
                continue;
            }
            Err(error) if error.errno() == Errno::EPROTO => tracing::warn!(
                "the coordinator is of an earlier version: it cannot say whether {} is where this \
                 node had its data",
                dir.label()
            ),
            Err(error) => return Err(io::Error::other(format!("{}: {error}", dir.label()))),
        }
        save(dir, &map)?;
        return Ok(map);
    }
}

fn wait(told: &mut bool, at: SocketAddr, error: &Error) {
    if !std::mem::replace(told, true) {
        tracing::info!("waiting for the coordinator at {at}: {error}");
    }
    saker_runtime::time::sleep(PAUSE);
}

/// A directory that is nobody's becomes the node's.
fn mark(dir: &dyn Dir, map: &ClusterMap, start: &Start) -> io::Result<()> {
    if load(dir).is_some_and(|saved| saved.uuid != map.uuid) {
        return Err(io::Error::other(format!("{} belongs to another cluster", dir.label())));
    }
    let cluster = ClusterId::try_from(&map.uuid[..]);
    let cluster = cluster.map_err(|_| io::Error::other("the cluster has no uuid"))?;
    member::mark(dir, &Member::new(cluster, start.role, start.n))
}

fn foreign(dir: &dyn Dir, other: &Member) -> io::Error {
    let what = if other.role == RoleKind::Store { "store" } else { "MNode" };
    let (label, cluster) = (dir.label(), hex(&other.cluster));
    io::Error::other(format!("{label} belongs to {what} {} of cluster {cluster}", other.n))
}

async fn ask_to_join(transport: &dyn Transport, start: &Start, own: &Member) -> Result<(), Error> {
    let dir = Bytes::copy_from_slice(&own.id);
    let body = Joined { role: own.role as u32, n: own.n, dir }.encode_to_vec().into();
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

/// Keeps the map for a start without the coordinator. That a full disk does not take a new one must
/// not keep a node from serving: it may be the one that can make room.
fn save(dir: &dyn Dir, map: &ClusterMap) -> io::Result<()> {
    if load(dir).as_ref() == Some(map) {
        return Ok(());
    }
    match replace(dir, MAP_FILE, &map.encode_to_vec()) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            tracing::warn!("{}: the new cluster map is not kept: {error}", dir.label());
            Ok(())
        }
        saved => saved,
    }
}

/// The cluster's id as hellos carry it.
pub fn cluster_id(map: &Arc<ClusterMap>) -> Option<ClusterId> {
    map.uuid[..].try_into().ok()
}
