//! `saker serve agent`: what keeps staged datasets on a node.

use std::net::SocketAddr;
use std::path::PathBuf;

use saker_agent::Config;

use crate::fail::Outcome;

/// Staged datasets on a node of a training job.
///
/// One for each node and user. Settings come from --config, and from the options besides, which
/// count more.
#[derive(clap::Args)]
pub struct Args {
    /// Settings (TOML): the options by their names, with _ for -, and memory_bytes.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where other agents are answered [default: 0.0.0.0:7460].
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Directory of the datasets, on a disk of the node [default: $SAKER_AGENT_DIR, then
    /// /var/tmp/saker-agent-UID].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// File with a key that all agents of the job know. Without one, anybody may ask.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Bytes of files kept in memory that nobody has open [default: 0].
    #[arg(long, value_name = "BYTES")]
    memory: Option<u64>,
    /// Where metrics are served [default: nowhere].
    #[arg(long, value_name = "ADDR:PORT")]
    http: Option<SocketAddr>,
}

impl Args {
    /// The settings that they say.
    pub fn config(&self) -> Outcome<Config> {
        let from_file = self.config.as_deref().map(super::load::<Config>).transpose()?;
        let mut config = from_file.unwrap_or_default();
        config.listen = self.listen.unwrap_or(config.listen);
        config.dir = self.dir.clone().unwrap_or(config.dir);
        config.key_file = self.key_file.clone().or(config.key_file);
        config.memory_bytes = self.memory.unwrap_or(config.memory_bytes);
        config.http = self.http.or(config.http);
        Ok(config)
    }
}
