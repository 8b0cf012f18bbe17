//! `saker status`.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use saker_client::ClusterAddr;
use saker_types::ClusterMap;
use saker_types::id::hex;
use saker_types::wire::{Empty, MapReq, Op, RefusedReply, ShardStats, StoreStats};
use serde::Serialize;

use crate::fail::{Context, Outcome};
use crate::format;
use crate::layout::{ClusterDir, ClusterLayout, Mnode, Role, RoleId, Store};
use crate::probe::{self, RoleHealth};
use crate::session::{self, ClusterArg};
use crate::wire::Wire;
use crate::{mountpoint, process};

/// Show the processes of a cluster, and how inodes and bytes are spread.
///
/// With a cluster's directory, processes are looked up on this machine; with the address of a
/// coordinator, what answers is up.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArg,
    /// One JSON document.
    #[arg(long)]
    json: bool,
}

/// How long a node may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// The whole answer (contract.md).
#[derive(Debug, Default, Serialize)]
struct Status {
    cluster: String,
    /// Version of the cluster map.
    epoch: u64,
    roles: Vec<RoleStatus>,
    inodes: u64,
    /// Live data on all stores, copies counted each.
    bytes: u64,
    capacity_bytes: u64,
    free_bytes: u64,
    mnodes: Vec<Share>,
    /// Why members may not serve.
    refused: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RoleStatus {
    role: &'static str,
    n: u32,
    /// `host:port` of each worker, separated by commas.
    addr: Option<String>,
    http: Option<SocketAddr>,
    pid: Option<u32>,
    state: RoleHealth,
}

#[derive(Debug, Serialize)]
struct Share {
    n: u32,
    inodes: u64,
    /// Part of all inodes, 0 to 1.
    share: f64,
    /// Orphans that wait for their last user.
    orphans: u64,
    /// Transactions without an outcome yet.
    prepared: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<u8> {
    let wire = Wire::new()?;
    let status = match session::resolve(&args.cluster.name())? {
        ClusterAddr::Dir(path) => {
            let dir = ClusterDir::new(&path)?;
            let cluster = dir.load()?;
            look(&wire, &cluster, Some(&dir))
        }
        ClusterAddr::Coordinators(addrs) => {
            let map = wire.map(&addrs, ANSWER_WITHIN)?;
            look(&wire, &from_map(&map)?, None)
        }
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&status).about("status")?);
    } else {
        print(&status);
    }
    Ok(0)
}

/// The same description as a directory has, as far as the map knows it.
fn from_map(map: &ClusterMap) -> Outcome<ClusterLayout> {
    let unknown = SocketAddr::new(crate::ports::LOOPBACK, 0);
    let parse = |addr: &str| addr.parse::<SocketAddr>().about(addr);
    let mut mnode: Vec<Mnode> = Vec::new();
    for shard in &map.shards {
        let addr = parse(&shard.addr)?;
        match mnode.iter_mut().find(|node| node.n == shard.mnode) {
            Some(node) => node.addr.push(addr),
            None => mnode.push(Mnode { n: shard.mnode, addr: vec![addr], http: unknown }),
        }
    }
    let store = (0..)
        .zip(&map.stores)
        .map(|(n, store)| Ok(Store { n, addr: parse(&store.addr)?, http: unknown }));
    Ok(ClusterLayout {
        format: crate::layout::FORMAT,
        name: map.name.clone(),
        uuid: Some(hex(&map.uuid)),
        coordinator: parse(&map.coordinator)?,
        coordinator_http: unknown,
        replicas: map.replicas,
        inline_max: map.inline_max,
        mount: None,
        mount_http: None,
        mnode,
        store: store.collect::<Outcome<_>>()?,
    })
}

/// What the nodes say of themselves; an error is no answer.
struct Answers {
    map: Result<ClusterMap, String>,
    shards: Vec<Vec<Result<ShardStats, String>>>,
    stores: Vec<Result<StoreStats, String>>,
    refused: Result<RefusedReply, String>,
}

fn ask(wire: &Wire, cluster: &ClusterLayout) -> Answers {
    let shard = |addr: &SocketAddr| wire.call(*addr, Op::Statfs, &Empty {}, ANSWER_WITHIN);
    let of_mnode = |node: &Mnode| join_all(node.addr.iter().map(shard).collect::<Vec<_>>());
    let store = |store: &Store| wire.call(store.addr, Op::StoreStat, &Empty {}, ANSWER_WITHIN);
    let any_map = MapReq { newer_than: 0 };
    let map = wire.call(cluster.coordinator, Op::Map, &any_map, ANSWER_WITHIN);
    let shards = join_all(cluster.mnode.iter().map(of_mnode));
    let stores = join_all(cluster.store.iter().map(store));
    let refused = wire.call(cluster.coordinator, Op::Refused, &Empty {}, ANSWER_WITHIN);
    let (map, shards, stores, refused) =
        wire.block_on(futures_util::future::join4(map, shards, stores, refused));
    Answers { map, shards, stores, refused }
}

fn look(wire: &Wire, cluster: &ClusterLayout, dir: Option<&ClusterDir>) -> Status {
    let answers = ask(wire, cluster);
    let mut status = Status { cluster: cluster.name.clone(), ..Status::default() };
    status.epoch = answers.map.as_ref().map_or(0, |map| map.version);
    let serves = |id: RoleId| match id.role {
        Role::Coordinator => answers.map.is_ok(),
        Role::Mnode => {
            let shards = answers.shards.get(id.n as usize);
            shards.is_some_and(|shards| shards.iter().all(Result::is_ok))
        }
        Role::Store => answers.stores.get(id.n as usize).is_some_and(Result::is_ok),
        Role::Mount => cluster.mount.as_ref().is_some_and(|point| {
            mountpoint::is_mounted(point) && mountpoint::answers(point, ANSWER_WITHIN)
        }),
    };
    for id in cluster.roles() {
        let found = dir.and_then(|dir| process::find_role(dir, cluster, id));
        let ours = || found.as_ref().is_none_or(|p| probe::holds_ports(p, cluster, id));
        let state = match (dir.is_some(), &found) {
            (true, None) => RoleHealth::Down,
            (true, Some(_)) if !(serves(id) && ours()) => RoleHealth::Starting,
            (false, _) if !serves(id) => RoleHealth::Down,
            _ => RoleHealth::Up,
        };
        let pid = found.as_ref().map(|process| process.pid);
        let addrs = cluster.addrs(id);
        let http = addrs.last().copied().or(cluster.mount_http).filter(|http| http.port() != 0);
        let listen: Vec<String> = match (addrs.split_last(), &cluster.mount) {
            (Some((_, listen)), _) => listen.iter().map(SocketAddr::to_string).collect(),
            (None, point) => point.iter().map(|point| point.display().to_string()).collect(),
        };
        let addr = (!listen.is_empty()).then(|| listen.join(","));
        status.roles.push(RoleStatus { role: id.role.name(), n: id.n, addr, http, pid, state });
    }
    count(&mut status, cluster, &answers);
    let refused = answers.refused.into_iter().flat_map(|refused| refused.members);
    status.refused = refused.map(|member| member.why).collect();
    status
}

fn count(status: &mut Status, cluster: &ClusterLayout, answers: &Answers) {
    for (node, shards) in cluster.mnode.iter().zip(&answers.shards) {
        let of = |figure: fn(&ShardStats) -> u64| shards.iter().flatten().map(figure).sum();
        let inodes = of(|shard| shard.inodes);
        let (orphans, prepared) = (of(|shard| shard.orphans), of(|shard| shard.prepared));
        status.inodes += inodes;
        status.mnodes.push(Share { n: node.n, inodes, share: 0.0, orphans, prepared });
    }
    for share in &mut status.mnodes {
        share.share = share.inodes as f64 / status.inodes.max(1) as f64;
    }
    for store in answers.stores.iter().flatten() {
        status.bytes += store.data_bytes;
        status.capacity_bytes += store.capacity_bytes;
        status.free_bytes += store.free_bytes;
    }
}

fn print(status: &Status) {
    println!("cluster {}, map version {}", status.cluster, status.epoch);
    println!("{:<12} {:>3}  {:<9} {:>8}  ADDRESS", "ROLE", "N", "STATE", "PID");
    for role in &status.roles {
        let pid = role.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let addr = role.addr.as_deref().unwrap_or("-");
        println!("{:<12} {:>3}  {:<9} {pid:>8}  {addr}", role.role, role.n, role.state.name());
    }
    println!(
        "{} inodes, {} of data on stores, {} of {} free",
        status.inodes,
        format::bytes(status.bytes),
        format::bytes(status.free_bytes),
        format::bytes(status.capacity_bytes),
    );
    for why in &status.refused {
        println!("refused: {why}");
    }
    for share in &status.mnodes {
        println!(
            "mnode {:>3}: {:>12} inodes {:>6.2} %",
            share.n,
            share.inodes,
            share.share * 100.0
        );
    }
}
