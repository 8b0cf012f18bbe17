//! An agent from its start to its end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use saker_runtime::net;
use saker_runtime::telemetry::{Registry, serve_http};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::config::Config;
use crate::control;
use crate::dir::Dir;
use crate::error::{Error, Result};
use crate::local;
use crate::node::Node;
use crate::outputs::tend;
use crate::peers::server;

/// What waits for a disk may take so long to end.
const END_WITHIN: Duration = Duration::from_secs(2);
/// Threads that wait for disks, at most.
const DISK_THREADS_MAX: usize = 64;

/// Ends an agent. Clones end the same one.
#[derive(Clone)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Default for Stop {
    fn default() -> Stop {
        Stop(Arc::new(watch::channel(false).0))
    }
}

impl Stop {
    /// Of an agent that is to run.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Ends it.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    async fn stopped(&self) {
        // The sender is held here: it does not go away.
        let _ = self.0.subscribe().wait_for(|stopped| *stopped).await;
    }
}

/// Runs an agent until `stop`.
///
/// # Errors
/// What keeps it from starting: the address in use, another agent in the directory.
pub fn serve(config: Config, stop: &Stop) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.threads.max(1))
        .max_blocking_threads(DISK_THREADS_MAX)
        .thread_name("agent")
        .enable_all()
        .build()?;
    let served = runtime.block_on(run(config, stop));
    runtime.shutdown_timeout(END_WITHIN);
    Ok(served?)
}

/// As [`net::listen`], for the executor.
fn listen_at(addr: SocketAddr) -> io::Result<TcpListener> {
    let listener = net::listen(addr)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn run(config: Config, stop: &Stop) -> Result<()> {
    let dir = Dir::open(&config.dir)?;
    let (listen, http) = (config.listen, config.http);
    let registry = Registry::new();
    let node = Arc::new(Node::new(config, &dir, &registry)?);
    let listener = listen_at(listen).map_err(|e| Error::new(Errno::IO, e))?;
    if let Some(http) = http {
        serve_http(http, registry)
            .map_err(|e| Error::io(format_args!("cannot listen at {http}"), e))?;
    }
    if node.key.is_empty() {
        let who = "whoever reaches it, other users of this machine too,";
        tracing::warn!("no key for {listen}: {who} can read and change datasets and outputs");
    }
    node.outputs.load()?;
    control::load(&node)?;
    let processes = dir.listen()?;
    tracing::info!("agent serves {} at {listen}", node.dir.display());
    let serving = [
        tokio::spawn(server::run(node.clone(), listener)),
        tokio::spawn(local::run(node.clone(), processes)),
        tokio::spawn(tend::run(node.clone())),
    ];
    stop.stopped().await;
    serving.iter().for_each(|task| task.abort());
    node.datasets.list().iter().for_each(|dataset| dataset.stop());
    dir.leave();
    Ok(())
}
