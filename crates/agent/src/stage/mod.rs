//! Staging: what a node is to keep of a dataset comes to its disk.
//!
//! A node asks the node before it (`chain`), so that the origin is read about once. Each step can be
//! repeated: what is there under its own name is whole and checked.

mod broadcast;
mod chain;
mod fetch;
mod manifest;
mod partition;
mod table;

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use crate::error::Result;
use crate::node::Node;
use crate::staged::StagedDataset;

/// Partitions that are staged at once.
const PARTITIONS_AT_ONCE: usize = 4;
/// Before the first repetition of what failed, and before later ones.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Stages a dataset in the background; what fails is tried again.
pub(crate) fn start(node: Arc<Node>, dataset: Arc<StagedDataset>) {
    if dataset.is_complete() {
        return;
    }
    let task = tokio::spawn({
        let dataset = dataset.clone();
        async move { run(&node, &dataset).await }
    });
    dataset.set_task(task.abort_handle());
}

async fn run(node: &Arc<Node>, dataset: &Arc<StagedDataset>) {
    let name = &dataset.stage.name;
    let mut wait = RETRY_MIN;
    loop {
        dataset.set_error(None);
        let before = dataset.progress.load(std::sync::atomic::Ordering::Relaxed);
        let Err(error) = all(node, dataset).await else { break };
        tracing::warn!("{name}: staging failed, and is tried again: {error}");
        dataset.set_error(Some(error));
        if dataset.progress.load(std::sync::atomic::Ordering::Relaxed) > before {
            wait = RETRY_MIN;
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = dataset.retry.notified() => {}
        }
        wait = (wait * 2).min(RETRY_MAX);
    }
    // The cluster that keeps it is not asked for anything while its files are read here.
    let staged = dataset.clone();
    let _ = tokio::task::spawn_blocking(move || staged.leave_origin()).await;
    tracing::info!("{name}: staged");
}

/// One try. Nodes take what the origin gives them first: nobody waits for a partition that waits
/// behind others which wait.
async fn all(node: &Arc<Node>, dataset: &Arc<StagedDataset>) -> Result<()> {
    manifest::stage(node, dataset).await?;
    table::stage(node, dataset).await?;
    let place = |p: &u32| dataset.stage.keepers(*p).position(|keeper| keeper == dataset.node);
    let mut parts: Vec<u32> = dataset.parts.keys().copied().collect();
    parts.sort_by_key(|p| (place(p), *p));
    let staged = stream::iter(parts.into_iter().map(|p| partition::stage(node, dataset, p)));
    let staged: Vec<Result<()>> = staged.buffer_unordered(PARTITIONS_AT_ONCE).collect().await;
    staged.into_iter().collect::<Result<()>>()?;
    broadcast::stage(node, dataset).await
}
