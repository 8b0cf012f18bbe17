//! A node's or client's first contact: the cluster map, from the coordinator.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use saker_runtime::fs::Dir;
use saker_types::wire::{MapReq, Op};
use saker_types::{ClusterMap, Error};

use crate::NodeId;
use crate::client::{Reactor, Transport};
use crate::hello::{ClusterId, Hello, RoleKind};
use crate::hub::decode_reply;

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

/// The map for a node that starts: the coordinator's, or, while it does not answer, the last one
/// seen, so that a node can start again while the coordinator is down. Waits for as long as
/// neither is there.
pub fn node_map(
    dir: &dyn Dir,
    role: RoleKind,
    coordinator: SocketAddr,
) -> std::io::Result<ClusterMap> {
    let reactor = Reactor::new(Hello::new(role, NodeId::NONE, None))?;
    let saved = load(dir);
    let mut told = false;
    loop {
        match reactor.block_on(fetch_map(&*reactor, coordinator)) {
            Ok(map) => {
                save(dir, &map)?;
                return Ok(map);
            }
            Err(e) => {
                if let Some(map) = saved {
                    tracing::warn!("coordinator at {coordinator}: {e}; starting with the last map");
                    return Ok(map);
                }
                if !std::mem::replace(&mut told, true) {
                    tracing::info!("waiting for the coordinator at {coordinator}: {e}");
                }
                saker_runtime::time::sleep(PAUSE);
            }
        }
    }
}

fn load(dir: &dyn Dir) -> Option<ClusterMap> {
    let file = dir.open(MAP_FILE).ok()?;
    let raw = saker_runtime::fs::read_all(&*file).ok()?;
    let map = ClusterMap::decode(&raw[..]).ok()?;
    map.check().ok().map(|()| map)
}

fn save(dir: &dyn Dir, map: &ClusterMap) -> std::io::Result<()> {
    let temporary = format!("{MAP_FILE}.new");
    // Left over from a crash.
    let _ = dir.remove(&temporary);
    let file = dir.create(&temporary)?;
    file.write_at(0, &map.encode_to_vec())?;
    file.sync()?;
    dir.rename(&temporary, MAP_FILE)?;
    dir.sync()
}

/// The cluster's id as hellos carry it.
pub fn cluster_id(map: &Arc<ClusterMap>) -> Option<ClusterId> {
    map.uuid[..].try_into().ok()
}
