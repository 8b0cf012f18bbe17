//! Asking agents, many at once.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use saker_agent_api::{Ask, DatasetStatus, Local, Named, NodeStatus, Remote, Reply};

use crate::fail::{Context, Failure, Outcome};

/// An answer must come within.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Agents that are asked at once.
const AT_ONCE: usize = 32;

/// Which agents a command is about.
#[derive(clap::Args)]
pub struct AgentArgs {
    /// Directory of this machine's agent [default: $SAKER_AGENT_DIR, then
    /// /var/tmp/saker-agent-UID].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// File with the key of the job's agents, if they have one.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl AgentArgs {
    /// The directory, as an absolute path.
    pub fn dir(&self) -> Outcome<PathBuf> {
        let dir = self.dir.clone().unwrap_or_else(saker_agent::dir_default);
        std::path::absolute(&dir).about(dir.display())
    }

    /// The file of the key, as an absolute path.
    pub fn key_file(&self) -> Outcome<Option<PathBuf>> {
        let file = self.key_file.as_deref();
        file.map(|file| std::path::absolute(file).about(file.display())).transpose()
    }

    /// What asks them.
    pub fn agents(&self) -> Outcome<Agents> {
        let key = match &self.key_file {
            Some(file) => std::fs::read(file).about(file.display())?.trim_ascii().to_vec(),
            None => Vec::new(),
        };
        Ok(Agents { key })
    }
}

/// Where an agent is.
#[derive(Clone, Debug)]
pub enum Place {
    /// Here, in this directory.
    Dir(PathBuf),
    /// At `host:port`.
    Node(String),
}

impl Place {
    pub fn name(&self) -> String {
        match self {
            Place::Dir(dir) => dir.display().to_string(),
            Place::Node(node) => node.clone(),
        }
    }
}

/// Asks agents.
pub struct Agents {
    key: Vec<u8>,
}

impl Agents {
    /// Asks one.
    pub fn ask(&self, place: &Place, ask: Ask) -> std::io::Result<Reply> {
        match place {
            Place::Dir(dir) => Local::connect(dir)?.ask(ask),
            Place::Node(node) => Remote::connect(node, &self.key, ANSWER_WITHIN)?.call(ask),
        }
    }

    /// Asks all, each something of its own; answers are in their order.
    pub fn ask_all(
        &self,
        places: &[Place],
        ask: impl Fn(usize) -> Ask + Sync,
    ) -> Vec<Outcome<Reply>> {
        let next = AtomicUsize::new(0);
        let replies = Mutex::new(Vec::new());
        let work = || {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let Some(place) = places.get(n) else { return };
                let reply = self.ask(place, ask(n)).about(place.name());
                replies.lock().unwrap_or_else(PoisonError::into_inner).push((n, reply));
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..places.len().min(AT_ONCE) {
                scope.spawn(work);
            }
        });
        let mut replies = replies.into_inner().unwrap_or_else(PoisonError::into_inner);
        replies.sort_by_key(|(n, _)| *n);
        replies.into_iter().map(|(_, reply)| reply).collect()
    }

    /// The state of all.
    pub fn status(&self, places: &[Place], dataset: &str) -> Vec<Outcome<NodeStatus>> {
        let named = |_| Ask::Status(Named { dataset: dataset.to_owned() });
        let replies = self.ask_all(places, named).into_iter().zip(places);
        let status = |reply: Reply, place: &Place| {
            reply.status.ok_or_else(|| Failure::new(place.name(), "an answer without a status"))
        };
        replies.map(|(reply, place)| reply.and_then(|reply| status(reply, place))).collect()
    }
}

/// The one dataset in a status.
pub fn one(status: Outcome<NodeStatus>, place: &Place) -> Outcome<DatasetStatus> {
    let found = status?.datasets.into_iter().next();
    found.ok_or_else(|| Failure::new(place.name(), "the dataset is not staged there"))
}

/// Says whether an agent serves a directory.
pub fn is_served(dir: &Path) -> bool {
    Local::connect(dir).is_ok()
}
