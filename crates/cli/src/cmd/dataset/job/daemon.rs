//! Starting this machine's agent.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use saker_runtime::time;

use super::{agents, nodes};
use crate::fail::{Context, Failure, Outcome};
use crate::process;

/// The agent serves within.
const SERVES_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks whether it does.
const LOOK: Duration = Duration::from_millis(20);

/// Starts the agent of a node in the background, and waits until it serves.
pub fn start(dir: &Path, node: &str, key_file: Option<&Path>) -> Outcome {
    // The log must not be a link that another user has made.
    saker_agent::make_own_dir(dir).about("agent")?;
    let log = dir.join("agent.log");
    // Where it could not say what is wrong, it is said here.
    let writable = std::fs::OpenOptions::new().create(true).append(true).open(&log);
    writable.about(log.display())?;
    let mut args: Vec<OsString> = vec!["serve".into(), "agent".into(), "--listen".into()];
    args.extend([listen(node)?.to_string().into(), "--dir".into(), dir.into()]);
    if let Some(file) = key_file {
        args.extend(["--key-file".into(), file.into()]);
    }
    let mut child = process::spawn_daemon(&args, &log, None)?;
    let deadline = time::now() + SERVES_WITHIN;
    while !agents::is_served(dir) {
        let ended = child.try_wait().about("agent")?;
        if ended.is_some() || time::now() > deadline {
            let last = process::last_log_line(&log).unwrap_or_default();
            let why = format!("does not start: {last} (see {})", log.display());
            return Err(Failure::new(format!("agent of {node}"), why));
        }
        time::sleep(LOOK);
    }
    Ok(())
}

/// Where the agent of a node listens: at all addresses, but of a loopback address only there.
fn listen(node: &str) -> Outcome<SocketAddr> {
    let mut addrs = node.to_socket_addrs().about(node)?;
    let loopback = addrs.find(|addr| addr.ip().is_loopback());
    let port = nodes::port(node)?;
    Ok(loopback.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, port).into()))
}
