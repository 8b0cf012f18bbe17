//! Does a process of the cluster serve?

use std::net::SocketAddr;
use std::time::Duration;

use prost::Message;
use saker_types::ClusterMap;
use saker_types::wire::{Empty, MapReq, Op, ShardStats, StoreStats};

use crate::fail::Outcome;
use crate::layout::{ClusterLayout, Role, RoleId};
use crate::mountpoint;
use crate::process::Process;
use crate::procfs;
use crate::wire::Wire;

/// How long one answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// State of a role, as `saker status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleHealth {
    /// It serves.
    Up,
    /// There is no process.
    Down,
    /// There is a process that does not serve yet.
    Starting,
}

impl RoleHealth {
    /// As in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            RoleHealth::Up => "up",
            RoleHealth::Down => "down",
            RoleHealth::Starting => "starting",
        }
    }
}

/// Does the process hold the ports of its role? Where it does not, whoever answers there is a
/// stranger. Mounts need none.
pub fn holds_ports(process: &Process, cluster: &ClusterLayout, id: RoleId) -> bool {
    cluster.addrs(id).iter().all(|addr| procfs::listens(process.pid, addr.port()))
}

/// Asks the processes of a cluster.
pub struct Probe(Wire);

impl Probe {
    /// Asks nobody yet.
    pub fn new() -> Outcome<Probe> {
        Ok(Probe(Wire::new()?))
    }

    /// Does the role serve now: does each of its addresses answer a request of its kind?
    pub fn serves(&self, cluster: &ClusterLayout, id: RoleId) -> bool {
        let addrs = cluster.addrs(id);
        let listen = addrs.split_last().map_or(&[][..], |(_, listen)| listen);
        let all = |answers: &dyn Fn(SocketAddr) -> bool| {
            !listen.is_empty() && listen.iter().all(|addr| answers(*addr))
        };
        match id.role {
            Role::Coordinator => {
                all(&|addr| self.answers::<ClusterMap>(addr, Op::Map, &MapReq { newer_than: 0 }))
            }
            Role::Mnode => all(&|addr| self.answers::<ShardStats>(addr, Op::Statfs, &Empty {})),
            Role::Store => all(&|addr| self.answers::<StoreStats>(addr, Op::StoreStat, &Empty {})),
            Role::Mount => cluster.mount.as_ref().is_some_and(|point| {
                mountpoint::is_mounted(point) && mountpoint::answers(point, ANSWER_WITHIN)
            }),
        }
    }

    fn answers<A: Message + Default>(
        &self,
        addr: SocketAddr,
        op: Op,
        request: &impl Message,
    ) -> bool {
        self.0.block_on(self.0.call::<A>(addr, op, request, ANSWER_WITHIN)).is_ok()
    }
}
