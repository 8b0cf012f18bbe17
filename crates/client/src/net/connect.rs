//! Finding the cluster.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use saker_runtime::config;
use saker_types::{Errno, Error, Result};

use crate::ClusterAddr;

/// What a client needs of the `cluster.toml` that `saker up` writes.
#[derive(serde::Deserialize)]
struct ClusterFile {
    /// `host:port`.
    coordinator: String,
    #[serde(flatten)]
    _others: BTreeMap<String, serde::de::IgnoredAny>,
}

/// Where the cluster's coordinators listen.
pub(crate) fn coordinators(cluster: &ClusterAddr) -> Result<Vec<SocketAddr>> {
    match cluster {
        ClusterAddr::Coordinators(addrs) => Ok(addrs.clone()),
        ClusterAddr::Dir(dir) => from_file(&dir.join("cluster.toml")),
    }
}

fn from_file(path: &Path) -> Result<Vec<SocketAddr>> {
    let invalid = |why: String| Error::new(Errno::EINVAL).with_text(why);
    if !path.exists() {
        let text = format!("{}: there is no cluster here", path.display());
        return Err(Error::new(Errno::ENOENT).with_text(text));
    }
    let file: ClusterFile = config::load(path).map_err(|e| invalid(e.to_string()))?.value;
    let addrs = file
        .coordinator
        .to_socket_addrs()
        .map_err(|e| invalid(format!("{}: {}: {e}", path.display(), file.coordinator)))?;
    Ok(addrs.collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn a_directory_says_where_the_coordinator_is() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = ClusterAddr::Dir(dir.path().to_owned());
        assert_eq!(coordinators(&cluster).unwrap_err().errno(), Errno::ENOENT);
        let text = "name = 'x'\ncoordinator = '127.0.0.1:7400'\n[[mnode]]\nn = 0\naddr = ['y']\n";
        std::fs::write(dir.path().join("cluster.toml"), text).unwrap();
        let expected: SocketAddr = "127.0.0.1:7400".parse().unwrap();
        assert_eq!(coordinators(&cluster).unwrap(), [expected]);
        let text = dir.path().to_string_lossy().into_owned();
        assert_eq!(ClusterAddr::parse(&text).unwrap(), cluster);
        let two = ClusterAddr::parse("127.0.0.1:7400,127.0.0.1:7401").unwrap();
        assert_eq!(coordinators(&two).unwrap().len(), 2);
        assert!(ClusterAddr::parse("/nowhere/at/all").is_err());
        std::fs::write(dir.path().join("cluster.toml"), "coordinator = 7400\n").unwrap();
        assert_eq!(coordinators(&cluster).unwrap_err().errno(), Errno::EINVAL);
    }
}
