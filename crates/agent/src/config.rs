//! Settings of an agent.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use saker_agent_api::PORT;

/// Settings, as read from a TOML file.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct Config {
    /// Where other agents are answered.
    pub listen: SocketAddr,
    /// Directory of datasets, socket and lock, on a disk of the node.
    pub dir: PathBuf,
    /// File with the key that all agents of a job know; without one, anybody may ask.
    pub key_file: Option<PathBuf>,
    /// Bytes of files that nobody has open, kept in memory.
    pub memory_bytes: u64,
    /// Where metrics are answered; nowhere if unset.
    pub http: Option<SocketAddr>,
    /// Threads that serve connections; disk reads have others.
    pub threads: usize,
    /// A peer that is staging and makes no progress for so long is passed over, in milliseconds.
    pub patience_ms: u64,
    /// An answer of a peer must come within, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: (Ipv4Addr::UNSPECIFIED, PORT).into(),
            dir: dir_default(),
            key_file: None,
            memory_bytes: 0,
            http: None,
            threads: saker_runtime::thread::parallelism().min(4),
            patience_ms: 10_000,
            timeout_ms: 5_000,
        }
    }
}

impl Config {
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms)
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.max(1))
    }
}

/// Names an agent's directory.
const DIR_ENV: &str = "SAKER_AGENT_DIR";

/// The directory of this user's agent: `$SAKER_AGENT_DIR`, or one in /var/tmp.
pub fn dir_default() -> PathBuf {
    match std::env::var_os(DIR_ENV).filter(|dir| !dir.is_empty()) {
        Some(dir) => dir.into(),
        None => format!("/var/tmp/saker-agent-{}", rustix::process::getuid().as_raw()).into(),
    }
}
