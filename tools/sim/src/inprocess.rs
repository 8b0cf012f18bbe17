//! A cluster inside the test's process: each role is a thread, quick to start.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread::JoinHandle;

use saker_client::{ClientOptions, ClusterAddr, Fs};
use saker_coordinator::config::{Members, ShardMember};
use saker_rpc::node::Stop;

/// A running cluster; stopped when dropped.
pub struct InProcess {
    coordinator: SocketAddr,
    stop: Vec<Stop>,
    threads: Vec<JoinHandle<()>>,
    /// Holds the data; deleted last.
    dir: tempfile::TempDir,
}

/// Ports that are free now.
struct Ports(Vec<TcpListener>);

impl Ports {
    fn take(&mut self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback has free ports");
        let addr = listener.local_addr().expect("a bound socket has an address");
        self.0.push(listener);
        addr
    }
}

impl InProcess {
    /// Starts a coordinator, MNodes of one worker each, and stores.
    pub fn start(mnodes: u32, stores: u32) -> InProcess {
        let dir = tempfile::tempdir().expect("the temporary directory can be written");
        let mut ports = Ports(Vec::new());
        let coordinator = ports.take();
        let shards: Vec<SocketAddr> = (0..mnodes).map(|_| ports.take()).collect();
        let store_addrs: Vec<SocketAddr> = (0..stores).map(|_| ports.take()).collect();
        let https: Vec<SocketAddr> = (0..=mnodes + stores).map(|_| ports.take()).collect();
        drop(ports);
        let mut cluster = InProcess { coordinator, stop: Vec::new(), threads: Vec::new(), dir };
        let member = |(n, addr): (usize, &SocketAddr)| ShardMember { mnode: n as u32, addr: *addr };
        let members = Members {
            name: "test".to_owned(),
            shards: shards.iter().enumerate().map(member).collect(),
            stores: store_addrs.clone(),
            replicas: 1,
            inline_max: saker_types::limits::INLINE_BYTES_MAX,
        };
        let mut https = https.into_iter();
        let mut http = move || https.next().expect("one for each role");
        cluster.coordinator(members, http());
        for (n, addr) in shards.iter().enumerate() {
            cluster.mnode(n as u32, *addr, http());
        }
        for (n, addr) in store_addrs.iter().enumerate() {
            cluster.store(n as u32, *addr, http());
        }
        cluster
    }

    fn coordinator(&mut self, cluster: Members, http: SocketAddr) {
        let data_dir = self.dir.path().join("coordinator");
        let listen = self.coordinator;
        let config = saker_coordinator::Config { n: 0, data_dir, listen, http, cluster };
        self.run("coordinator", move |stop| saker_coordinator::serve(config, stop));
    }

    fn mnode(&mut self, n: u32, listen: SocketAddr, http: SocketAddr) {
        let config = toml(&format!(
            "n = {n}\ndata_dir = {:?}\nlisten = [\"{listen}\"]\nhttp = \"{http}\"\n\
             coordinator = \"{}\"\n",
            self.dir.path().join(format!("mnode-{n}")),
            self.coordinator
        ));
        self.run("mnode", move |stop| saker_meta::serve(config, stop));
    }

    fn store(&mut self, n: u32, listen: SocketAddr, http: SocketAddr) {
        let config = toml(&format!(
            "n = {n}\ndata_dir = {:?}\nlisten = \"{listen}\"\nhttp = \"{http}\"\n\
             coordinator = \"{}\"\n",
            self.dir.path().join(format!("store-{n}")),
            self.coordinator
        ));
        self.run("store", move |stop| saker_store::serve(config, stop));
    }

    fn run<F>(&mut self, name: &str, serve: F)
    where
        F: FnOnce(&Stop) -> std::io::Result<()> + Send + 'static,
    {
        let stop = Stop::new();
        self.stop.push(stop.clone());
        let builder = std::thread::Builder::new().name(name.to_owned());
        let thread = builder.spawn(move || {
            serve(&stop).unwrap_or_else(|e| panic!("a role stopped: {e}"));
        });
        self.threads.push(thread.expect("a thread can be started"));
    }

    /// A new client.
    pub fn connect(&self) -> Fs {
        let cluster = ClusterAddr::Coordinators(vec![self.coordinator]);
        Fs::connect(&cluster, ClientOptions::default())
            .unwrap_or_else(|error| panic!("no client: {error}"))
    }

    /// Where the data is.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.stop.iter().for_each(Stop::stop);
        for thread in self.threads.drain(..) {
            // A role that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn toml<T: serde::de::DeserializeOwned>(text: &str) -> T {
    toml::from_str(text).expect("the settings that this file writes are right")
}
