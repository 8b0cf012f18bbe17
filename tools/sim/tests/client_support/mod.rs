//! A cluster of threads in the test's own process.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, dead_code)]

use std::net::{SocketAddr, TcpListener};

use bytes::Bytes;
use saker_client::{Caller, ClientOptions, ClusterAddr, Fs};
use saker_rpc::node::StopHandle;
use saker_types::Locator;
use saker_types::wire::At;

/// A running cluster with a client.
pub struct Cluster {
    pub fs: Fs,
    pub root: Caller,
    coordinator: SocketAddr,
    stops: Vec<StopHandle>,
    _dir: tempfile::TempDir,
}

/// A place from the root.
pub fn path(text: &str) -> At {
    let names = text.split('/').filter(|name| !name.is_empty());
    let names = names.map(|name| Bytes::copy_from_slice(name.as_bytes()));
    At::below(Locator::root(), names.collect())
}

/// Addresses that nobody uses now.
fn free_addrs(n: usize) -> Vec<SocketAddr> {
    let held: Vec<TcpListener> =
        (0..n).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap()).collect()
}

fn run_role(
    stops: &mut Vec<StopHandle>,
    serve: impl FnOnce(&StopHandle) -> std::io::Result<()> + Send + 'static,
) {
    let stop = StopHandle::new();
    stops.push(stop.clone());
    std::thread::spawn(move || serve(&stop).unwrap());
}

impl Cluster {
    /// With `mnodes` of one worker each, and two copies of each chunk where there are stores
    /// for it.
    pub fn start(mnodes: usize, stores: usize) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let addrs = free_addrs(1 + mnodes + stores);
        let http: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let (coordinator, shards) = (addrs[0], &addrs[1..=mnodes]);
        let store_addrs = addrs[1 + mnodes..].to_vec();
        let mut stops = Vec::new();
        let members = saker_coordinator::config::Members {
            name: "test".to_owned(),
            shards: shards
                .iter()
                .enumerate()
                .map(|(n, addr)| saker_coordinator::config::ShardMember {
                    mnode: n as u32,
                    addr: *addr,
                })
                .collect(),
            stores: store_addrs.clone(),
            replicas: stores.clamp(1, 2) as u32,
            inline_max: 4096,
        };
        let config = saker_coordinator::Config {
            n: 0,
            data_dir: dir.path().join("coordinator"),
            listen: coordinator,
            http,
            uuid: None,
            cluster: members,
        };
        std::fs::create_dir_all(&config.data_dir).unwrap();
        run_role(&mut stops, move |stop| saker_coordinator::serve(config, stop));
        for (n, addr) in shards.iter().enumerate() {
            let data_dir = dir.path().join(format!("mnode-{n}"));
            std::fs::create_dir_all(&data_dir).unwrap();
            let config = saker_meta::Config {
                n: n as u32,
                data_dir,
                listen: vec![*addr],
                http,
                coordinator,
                overlay_bytes: 16 << 20,
                inodes: 10_000,
                row_cache_bytes: 8 << 20,
                replica: 10_000,
                merge_requests: true,
                group_commit: true,
                coalesce_prefixes: true,
                lazy_replication: true,
            };
            run_role(&mut stops, move |stop| saker_meta::serve(config, stop));
        }
        for (n, addr) in store_addrs.iter().enumerate() {
            let config = saker_store::Config {
                n: n as u16,
                data_dir: dir.path().join(format!("store-{n}")),
                listen: *addr,
                http: Some(http),
                coordinator,
                capacity_bytes: None,
                threads: 2,
            };
            std::fs::create_dir_all(&config.data_dir).unwrap();
            run_role(&mut stops, move |stop| saker_store::serve(config, stop));
        }
        let fs = connect(coordinator);
        Cluster { fs, root: Caller::root(), coordinator, stops, _dir: dir }
    }

    /// Another client.
    pub fn connect(&self) -> Fs {
        connect(self.coordinator)
    }

    /// Another client, with these options.
    pub fn connect_with(&self, options: ClientOptions) -> Fs {
        self.try_connect(options).unwrap()
    }

    /// The same, if it is let.
    pub fn try_connect(&self, options: ClientOptions) -> saker_types::Result<Fs> {
        Fs::connect(&ClusterAddr::Coordinators(vec![self.coordinator]), options)
    }

    /// Runs a future of the first client. Those of others need their own client to run them.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.fs.block_on(future)
    }
}

fn connect(coordinator: SocketAddr) -> Fs {
    let options =
        ClientOptions { timeout: std::time::Duration::from_secs(20), ..ClientOptions::default() };
    Fs::connect(&ClusterAddr::Coordinators(vec![coordinator]), options).unwrap()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        _ = self.fs.close();
        self.stops.iter().for_each(StopHandle::stop);
    }
}
