//! Files whose home is another node since the dataset was staged on another list of nodes.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use saker_agent_api::OutputOp;

use super::path::OutputPath;
use super::place::{Place, is_dir};
use super::private::Private;
use super::publish::deliver_all;
use crate::error::{Error, Result};
use crate::node::Node;
use crate::staged::StagedDataset;

/// Before what failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Files that are taken out before they are delivered: each takes a descriptor.
const TAKEN_MAX: u64 = 1000;

/// Moves files to their homes in the background. Until then the dataset is not complete.
pub(crate) fn start(node: &Arc<Node>, dataset: &Arc<StagedDataset>) {
    let store = node.outputs.store(&dataset.stage.name);
    let place = Place { node: node.clone(), dataset: dataset.clone(), store };
    if !place.store.dir().exists() {
        return dataset.set_outputs_at_home();
    }
    tokio::spawn(async move {
        while !place.dataset.is_stopped() {
            match move_all(&place).await {
                Ok(()) => return place.dataset.set_outputs_at_home(),
                Err(error) => {
                    tracing::warn!("{}: outputs stay here: {error}", place.dataset.stage.name);
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    });
}

async fn move_all(place: &Place) -> Result<()> {
    let mut rest = vec![OutputPath::parse(b"")?];
    let mut dirs = Vec::new();
    while let Some(dir) = rest.pop() {
        for (path, is_dir) in tokio::task::block_in_place(|| children(place, &dir))? {
            if is_dir {
                rest.push(path.clone());
                dirs.push(path);
            } else if !place.is_mine(&path) {
                let (private, name) = (&place.node.outputs.private, &place.dataset.stage.name);
                let take = || Private::take_out(&place.store, (name.clone(), path));
                private.insert(tokio::task::block_in_place(take)?)?;
                if private.leaving(name) >= TAKEN_MAX {
                    deliver_leaving(place).await?;
                }
            }
        }
    }
    deliver_leaving(place).await?;
    // The deepest first: what is empty then goes.
    for dir in dirs.iter().rev().filter(|dir| !place.is_mine(dir)) {
        let mode = tokio::task::block_in_place(|| place.store.look(dir))?.mode;
        place.ask_home(dir, OutputOp::EnsureDir(mode & 0o777)).await?;
        let is_mine = |child: &OutputPath| place.is_mine(child);
        // It stays if files of this home are in it.
        let _ = tokio::task::block_in_place(|| place.store.remove_empty(dir, is_mine));
    }
    Ok(())
}

async fn deliver_leaving(place: &Place) -> Result<()> {
    let (private, name) = (&place.node.outputs.private, &place.dataset.stage.name);
    for leaving in private.all(|p| p.key.0 == *name && p.number().is_some()) {
        deliver_all(&place.node, &leaving.key).await?;
    }
    Ok(())
}

/// What is in a directory on this node, and whether it is a directory.
fn children(place: &Place, dir: &OutputPath) -> Result<Vec<(OutputPath, bool)>> {
    let at = place.store.files().join(dir.as_path());
    let entries = match std::fs::read_dir(&at) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| Error::file(&at, e))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| Error::file(&at, e))?;
        let path = dir.child(entry.file_name().as_bytes())?;
        let info = place.store.look(&path)?;
        found.push((path, is_dir(&info)));
    }
    Ok(found)
}
