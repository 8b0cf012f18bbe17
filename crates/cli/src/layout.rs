//! The directory of a cluster on one machine, as `saker up --dir D` makes it (contract.md).

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::fail::{Context, Failure, Outcome};
use crate::ports::{Ports, Range};

/// Version of the directory's layout. A program refuses directories newer than it knows.
pub const FORMAT: u32 = 1;
/// Name of the file that makes a directory a cluster's.
pub const CLUSTER_FILE: &str = "cluster.toml";

/// A kind of process that `saker up` runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The coordinator.
    Coordinator,
    /// A metadata node.
    Mnode,
    /// A chunk store.
    Store,
    /// A FUSE mount.
    Mount,
}

impl Role {
    /// As in file names and messages.
    pub fn name(self) -> &'static str {
        match self {
            Role::Coordinator => "coordinator",
            Role::Mnode => "mnode",
            Role::Store => "store",
            Role::Mount => "mount",
        }
    }
}

/// One process of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoleId {
    /// What it is.
    pub role: Role,
    /// Its number among its like, from 0.
    pub n: u32,
}

impl fmt::Display for RoleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.role.name(), self.n)
    }
}

/// `D/cluster.toml`: who is there and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterLayout {
    /// Version of the directory's layout.
    pub format: u32,
    /// The cluster's name.
    pub name: String,
    /// Its uuid, once it has served: an empty directory is not taken for a new cluster then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Where the coordinator listens.
    pub coordinator: SocketAddr,
    /// Where the coordinator serves metrics.
    pub coordinator_http: SocketAddr,
    /// Copies of each chunk.
    pub replicas: u32,
    /// Largest file kept in its inode row, in bytes.
    pub inline_max: u64,
    /// Where it is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<PathBuf>,
    /// Where that mount serves metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_http: Option<SocketAddr>,
    /// The metadata nodes.
    #[serde(default)]
    pub mnode: Vec<Mnode>,
    /// The stores.
    #[serde(default)]
    pub store: Vec<Store>,
}

/// A metadata node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mnode {
    /// Its number.
    pub n: u32,
    /// Where its workers listen, one address each.
    pub addr: Vec<SocketAddr>,
    /// Where it serves metrics.
    pub http: SocketAddr,
}

/// A store of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Its number.
    pub n: u32,
    /// Where it listens.
    pub addr: SocketAddr,
    /// Where it serves metrics.
    pub http: SocketAddr,
}

/// How large a new cluster is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Metadata nodes.
    pub mnodes: u32,
    /// Workers of each.
    pub workers: u32,
    /// Stores.
    pub stores: u32,
}

impl ClusterLayout {
    /// A new cluster on this machine, on ports from `base` on that are free now.
    pub fn plan(
        name: &str,
        size: Size,
        replicas: u32,
        inline_max: u64,
        base: u16,
    ) -> Outcome<ClusterLayout> {
        let mut ports = Ports::new(base, []);
        let coordinator = ports.take(Range::Coordinator)?;
        let coordinator_http = ports.take(Range::Http)?;
        let mut mnode = Vec::new();
        for n in 0..size.mnodes {
            let addr =
                (0..size.workers).map(|_| ports.take(Range::Mnode)).collect::<Outcome<_>>()?;
            mnode.push(Mnode { n, addr, http: ports.take(Range::Http)? });
        }
        let mut store = Vec::new();
        for n in 0..size.stores {
            let addr = ports.take(Range::Store)?;
            store.push(Store { n, addr, http: ports.take(Range::Http)? });
        }
        let (format, name) = (FORMAT, name.to_owned());
        Ok(ClusterLayout {
            format,
            name,
            uuid: None,
            coordinator,
            coordinator_http,
            replicas,
            inline_max,
            mount: None,
            mount_http: None,
            mnode,
            store,
        })
    }

    /// Its processes, in the order in which they are started.
    pub fn roles(&self) -> Vec<RoleId> {
        let mut roles = vec![RoleId { role: Role::Coordinator, n: 0 }];
        roles.extend(self.mnode.iter().map(|node| RoleId { role: Role::Mnode, n: node.n }));
        roles.extend(self.store.iter().map(|store| RoleId { role: Role::Store, n: store.n }));
        roles.extend(self.mount.iter().map(|_| RoleId { role: Role::Mount, n: 0 }));
        roles
    }

    /// Moves what listens at `old` to `new`.
    pub fn move_addr(&mut self, old: SocketAddr, new: SocketAddr) {
        let own = [&mut self.coordinator, &mut self.coordinator_http];
        let of_mnodes =
            self.mnode.iter_mut().flat_map(|node| node.addr.iter_mut().chain([&mut node.http]));
        let of_stores = self.store.iter_mut().flat_map(|store| [&mut store.addr, &mut store.http]);
        let all = own.into_iter().chain(of_mnodes).chain(of_stores);
        all.filter(|addr| **addr == old).for_each(|addr| *addr = new);
    }

    /// All addresses that a process needs, its HTTP address last; none for mounts, which work
    /// without it.
    pub fn addrs(&self, id: RoleId) -> Vec<SocketAddr> {
        let n = id.n as usize;
        match id.role {
            Role::Coordinator => vec![self.coordinator, self.coordinator_http],
            Role::Mnode => self
                .mnode
                .get(n)
                .map(|node| node.addr.iter().copied().chain([node.http]).collect())
                .unwrap_or_default(),
            Role::Store => {
                self.store.get(n).map(|store| vec![store.addr, store.http]).unwrap_or_default()
            }
            Role::Mount => Vec::new(),
        }
    }
}

/// A cluster's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDir(PathBuf);

impl ClusterDir {
    /// The directory at `path`, made absolute; it need not exist.
    pub fn new(path: &Path) -> Outcome<ClusterDir> {
        let path = match std::fs::canonicalize(path) {
            Ok(path) => path,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                std::path::absolute(path).about(path.display())?
            }
            Err(e) => return Err(Failure::new(path.display(), e)),
        };
        Ok(ClusterDir(path))
    }

    /// The directory itself, absolute.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `cluster.toml`.
    pub fn cluster_file(&self) -> PathBuf {
        self.0.join(CLUSTER_FILE)
    }

    /// Settings of a process.
    pub fn config_file(&self, id: RoleId) -> PathBuf {
        self.0.join("etc").join(format!("{id}.toml"))
    }

    /// Where a process's pid is: one number and a newline.
    pub fn pid_file(&self, id: RoleId) -> PathBuf {
        self.0.join("run").join(format!("{id}.pid"))
    }

    /// Log of a process.
    pub fn log_file(&self, id: RoleId) -> PathBuf {
        self.0.join("log").join(format!("{id}.log"))
    }

    /// Data of a process.
    pub fn data_dir(&self, id: RoleId) -> PathBuf {
        self.0.join("data").join(id.to_string())
    }

    /// Where the supervisor's pid is.
    pub fn supervisor_pid_file(&self) -> PathBuf {
        self.0.join("supervisor.pid")
    }

    /// Log of the supervisor.
    pub fn supervisor_log_file(&self) -> PathBuf {
        self.0.join("log").join("supervisor.log")
    }

    /// What the supervisor knows, for `up` and `status`.
    pub fn state_file(&self) -> PathBuf {
        self.0.join("run").join("state.json")
    }

    /// One `up` or `down` at a time works on a directory. Released with the process.
    pub fn lock(&self) -> Outcome<std::fs::File> {
        let path = self.lock_file();
        let file = std::fs::File::create(&path).about(path.display())?;
        file.lock().about(path.display())?;
        Ok(file)
    }

    /// Locked by `up` and `down` while they work.
    pub fn lock_file(&self) -> PathBuf {
        self.0.join("run").join("lock")
    }

    /// Is there a cluster in it?
    pub fn exists(&self) -> bool {
        self.cluster_file().exists()
    }

    /// Makes the directories.
    pub fn make(&self) -> Outcome {
        for part in ["etc", "run", "log", "data"] {
            let path = self.0.join(part);
            std::fs::create_dir_all(&path).about(path.display())?;
        }
        Ok(())
    }

    /// Reads `cluster.toml`.
    pub fn load(&self) -> Outcome<ClusterLayout> {
        let path = self.cluster_file();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let hint =
                    "not a Saker directory (no cluster.toml); `saker up --dir DIR` makes one";
                return Err(Failure::new(self.0.display(), hint));
            }
            Err(e) => return Err(Failure::new(path.display(), e)),
        };
        parse(&text).map_err(|why| Failure::new(path.display(), why))
    }

    /// Writes the settings of all processes, then `cluster.toml`. What else somebody has set in them
    /// stays.
    pub fn store(&self, cluster: &ClusterLayout) -> Outcome {
        for id in cluster.roles() {
            let Some(own) = config(self, cluster, id)? else { continue };
            let path = self.config_file(id);
            let mut all = match std::fs::read_to_string(&path) {
                Ok(text) => text.parse::<toml::Table>().about(path.display())?,
                Err(e) if e.kind() == io::ErrorKind::NotFound => toml::Table::new(),
                Err(e) => return Err(Failure::new(path.display(), e)),
            };
            all.extend(own);
            let text = toml::to_string(&all).about(path.display())?;
            write_file(&path, text.as_bytes())?;
        }
        let text = toml::to_string(cluster).about("cluster.toml")?;
        write_file(&self.cluster_file(), text.as_bytes())
    }

    /// Arguments of the program that run a process. They are also how it is recognised later.
    pub fn args(&self, cluster: &ClusterLayout, id: RoleId) -> Vec<OsString> {
        let config = || OsString::from(self.config_file(id));
        match (id.role, &cluster.mount) {
            (Role::Mount, Some(point)) => {
                vec!["mount".into(), self.0.clone().into(), point.into(), "--foreground".into()]
            }
            _ => vec!["serve".into(), id.role.name().into(), "--config".into(), config()],
        }
    }
}

fn parse(text: &str) -> Result<ClusterLayout, String> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let head: Head = toml::from_str(text).map_err(|e| e.message().to_owned())?;
    if head.format > FORMAT {
        return Err(format!(
            "made by a newer Saker (format {}, this program knows {FORMAT}); use that one",
            head.format
        ));
    }
    toml::from_str(text).map_err(|e| e.message().to_owned())
}

/// Settings of a coordinator, an MNode or a store; mounts have none.
fn config(dir: &ClusterDir, cluster: &ClusterLayout, id: RoleId) -> Outcome<Option<toml::Table>> {
    #[derive(Serialize)]
    struct Shard {
        mnode: u32,
        addr: SocketAddr,
    }
    #[derive(Serialize)]
    struct Members<'a> {
        name: &'a str,
        replicas: u32,
        inline_max: u64,
        stores: Vec<SocketAddr>,
        shards: Vec<Shard>,
    }
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Listen {
        One(SocketAddr),
        PerWorker(Vec<SocketAddr>),
    }
    #[derive(Serialize)]
    struct Config<'a> {
        n: u32,
        data_dir: PathBuf,
        listen: Listen,
        http: SocketAddr,
        #[serde(skip_serializing_if = "Option::is_none")]
        uuid: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        coordinator: Option<SocketAddr>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cluster: Option<Members<'a>>,
    }
    let addrs = cluster.addrs(id);
    let Some((&http, listen)) = addrs.split_last() else { return Ok(None) };
    let members = || Members {
        name: &cluster.name,
        replicas: cluster.replicas,
        inline_max: cluster.inline_max,
        stores: cluster.store.iter().map(|store| store.addr).collect(),
        shards: cluster
            .mnode
            .iter()
            .flat_map(|node| node.addr.iter().map(|&addr| Shard { mnode: node.n, addr }))
            .collect(),
    };
    let leads = id.role == Role::Coordinator;
    let config = Config {
        n: id.n,
        data_dir: dir.data_dir(id),
        listen: match (id.role, listen) {
            (Role::Mnode, all) => Listen::PerWorker(all.to_vec()),
            (_, [one, ..]) => Listen::One(*one),
            (_, []) => return Ok(None),
        },
        http,
        uuid: cluster.uuid.as_deref().filter(|_| leads),
        coordinator: (!leads).then_some(cluster.coordinator),
        cluster: leads.then(members),
    };
    toml::Table::try_from(&config).map(Some).about(dir.config_file(id).display())
}

/// Writes a file so that a crash leaves the old or the new content.
pub fn write_file(path: &Path, content: &[u8]) -> Outcome {
    let temporary = path.with_extension("new");
    let write = || {
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(content)?;
        file.sync_data()?;
        std::fs::rename(&temporary, path)
    };
    write().about(path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> ClusterLayout {
        let size = Size { mnodes: 2, workers: 2, stores: 1 };
        ClusterLayout {
            mount: Some("/mnt/x".into()),
            mount_http: Some("127.0.0.1:15099".parse().unwrap()),
            ..ClusterLayout::plan("c", size, 1, 4096, 15_000).unwrap()
        }
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = ClusterDir::new(temporary.path()).unwrap();
        let error = dir.load().unwrap_err().to_string();
        assert!(error.contains("not a Saker directory"), "{error}");
        dir.make().unwrap();
        let cluster = cluster();
        dir.store(&cluster).unwrap();
        assert_eq!(dir.load().unwrap(), cluster);
        let names: Vec<String> = cluster.roles().iter().map(RoleId::to_string).collect();
        assert_eq!(names, ["coordinator-0", "mnode-0", "mnode-1", "store-0", "mount-0"]);
    }

    #[test]
    fn addresses_are_distinct_and_reach_the_settings() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = ClusterDir::new(temporary.path()).unwrap();
        let cluster = cluster();
        let all: Vec<SocketAddr> =
            cluster.roles().into_iter().flat_map(|id| cluster.addrs(id)).collect();
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!((all.len(), distinct.len()), (2 + 6 + 2, 10));
        let id = RoleId { role: Role::Mnode, n: 1 };
        let value = config(&dir, &cluster, id).unwrap().unwrap();
        assert_eq!(value["listen"].as_array().unwrap().len(), 2);
        assert_eq!(value["coordinator"].as_str(), Some(&*cluster.coordinator.to_string()));
        let id = RoleId { role: Role::Coordinator, n: 0 };
        let value = config(&dir, &cluster, id).unwrap().unwrap();
        let shards = value["cluster"]["shards"].as_array().unwrap();
        assert_eq!(shards.len(), 4);
        assert_eq!(shards[3]["mnode"].as_integer(), Some(1));
    }

    #[test]
    fn settings_made_by_hand_stay() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = ClusterDir::new(temporary.path()).unwrap();
        dir.make().unwrap();
        let mut cluster = cluster();
        dir.store(&cluster).unwrap();
        let path = dir.config_file(RoleId { role: Role::Mnode, n: 0 });
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("inodes = 77\n{text}")).unwrap();
        let new: SocketAddr = "127.0.0.1:1".parse().unwrap();
        cluster.move_addr(cluster.mnode[0].http, new);
        dir.store(&cluster).unwrap();
        let value: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        assert_eq!(value["inodes"].as_integer(), Some(77));
        assert_eq!(value["http"].as_str(), Some("127.0.0.1:1"));
        std::fs::write(&path, "no = toml = this").unwrap();
        let error = dir.store(&cluster).unwrap_err().to_string();
        assert!(error.contains("mnode-0.toml"), "{error}");
    }

    #[test]
    fn an_address_moves_alone() {
        let mut cluster = cluster();
        let all = |cluster: &ClusterLayout| -> Vec<SocketAddr> {
            cluster.roles().into_iter().flat_map(|id| cluster.addrs(id)).collect()
        };
        let new = "127.0.0.1:1".parse().unwrap();
        for (n, old) in all(&cluster.clone()).into_iter().enumerate() {
            let before = cluster.clone();
            cluster.move_addr(old, new);
            let mut expected = all(&before);
            expected[n] = new;
            assert_eq!(all(&cluster), expected);
            cluster = before;
        }
    }

    #[test]
    fn a_newer_format_is_refused_with_advice() {
        let text = toml::to_string(&cluster()).unwrap().replace("format = 1", "format = 9");
        assert!(parse(&text).unwrap_err().contains("newer Saker (format 9"));
    }
}
