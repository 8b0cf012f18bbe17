//! Staging and unstaging, and the state of the node, for commands.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use saker_agent_api::{Ask, DatasetStatus, NodeStatus, Reply, StageDataset};
use saker_dataset::{Broadcast, PARTITIONS_MAX, Stage, sync_dir, write_whole};

use crate::dir::check_name;
use crate::error::{Error, Result};
use crate::node::Node;
use crate::outputs::moved;
use crate::stage;
use crate::staged::StagedDataset;

/// File with the number of this node, beside stage.json.
const NODE: &str = "node";
/// What is being removed begins so.
const REMOVED: &str = ".removed-";

/// Answers a command.
///
/// # Errors
/// EEXIST: another dataset of the name is staged. EINVAL. ENOENT. Of the disk.
pub(crate) async fn answer(node: &Arc<Node>, ask: Ask) -> Result<Reply> {
    match ask {
        Ask::Stage(ask) => {
            let _turn = node.control.lock().await;
            tokio::task::block_in_place(|| stage_dataset(node, &ask))?;
            Ok(Reply::default())
        }
        Ask::Unstage(ask) => {
            let _turn = node.control.lock().await;
            tokio::task::block_in_place(|| unstage(node, &ask.dataset))?;
            let kept = node.outputs.kept(&ask.dataset);
            Ok(Reply { kept: (kept.files > 0).then_some(kept), ..Reply::default() })
        }
        Ask::RemoveOutputs(ask) => {
            let _turn = node.control.lock().await;
            tokio::task::block_in_place(|| remove_outputs(node, &ask.dataset))?;
            Ok(Reply::default())
        }
        Ask::Status(ask) => Ok(status(node, &ask.dataset)),
        Ask::Layout(ask) => {
            let data = node.datasets.get(&ask.dataset)?.stage.to_json();
            Ok(Reply { data, ..Reply::default() })
        }
        _ => Err(Error::new(Errno::INVAL, "not a command")),
    }
}

fn status(node: &Node, name: &str) -> Reply {
    let all = node.datasets.list();
    let named = all.iter().filter(|dataset| name.is_empty() || dataset.stage.name == name);
    let status = |dataset: &Arc<StagedDataset>| {
        let outgoing = node.outputs.private.leaving(&dataset.stage.name);
        DatasetStatus { outgoing, ..dataset.status() }
    };
    let datasets = named.map(status).collect();
    let status = NodeStatus { datasets, counters: node.counters.list() };
    Reply { status: Some(status), ..Reply::default() }
}

fn check(stage: &Stage, node: usize) -> Result<()> {
    check_name(&stage.name)?;
    let wrong = |what: &str| Err(Error::new(Errno::INVAL, format!("{}: {what}", stage.name)));
    if node >= stage.nodes.len() {
        return wrong("the node is none of its nodes");
    }
    if stage.replicas == 0 || stage.partitions > PARTITIONS_MAX {
        return wrong("no replicas, or too many partitions");
    }
    Ok(())
}

fn stage_dataset(node: &Arc<Node>, ask: &StageDataset) -> Result<()> {
    let stage = Stage::parse(&ask.stage, Path::new("the stage that was sent"))?;
    let number = ask.node as usize;
    check(&stage, number)?;
    let dir = node.dir.join(&stage.name);
    if let Some(there) = node.datasets.find(&stage.name) {
        must_be_same(&there.stage, &stage)?;
        if there.stage == stage && there.node == number {
            there.set_error(None);
            there.retry.notify_one();
            return Ok(());
        }
        there.stop();
        if there.stage.broadcast != stage.broadcast {
            Broadcast::remove(&dir)?;
        }
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(|e| Error::file(&dir, e))?;
    write_whole(&dir.join(NODE), format!("{number}\n").as_bytes())?;
    stage.write(&dir)?;
    sync_dir(&node.dir)?;
    tracing::info!("{}: staging as node {number} of {}", stage.name, stage.nodes.len());
    begin(node, dir, stage, number);
    Ok(())
}

/// A version does not change.
fn must_be_same(there: &Stage, new: &Stage) -> Result<()> {
    let (name, digest) = (&there.name, there.digest);
    let what = if digest != new.digest {
        format!("{name}: staged already, with other files (digest {digest}, not {})", new.digest)
    } else if there.table_digest != new.table_digest || there.partitions != new.partitions {
        format!("{name}: staged already, packed in another way: unstage it first")
    } else {
        return Ok(());
    };
    Err(Error::new(Errno::EXIST, what))
}

fn begin(node: &Arc<Node>, dir: PathBuf, stage: Stage, number: usize) {
    let dataset = Arc::new(StagedDataset::new(node.datasets.new_id(), dir, stage, number));
    node.datasets.insert(dataset.clone());
    node.counters.datasets.set(node.datasets.list().len() as i64);
    moved::start(node, &dataset);
    stage::start(node.clone(), dataset);
}

/// Takes up what an earlier agent of the directory has staged.
///
/// # Errors
/// Of the directory; a dataset that cannot be read is logged and left alone.
pub(crate) fn load(node: &Arc<Node>) -> Result<()> {
    let entries = std::fs::read_dir(&node.dir).map_err(|e| Error::file(&node.dir, e))?;
    for entry in entries {
        let entry = entry.map_err(|e| Error::file(&node.dir, e))?;
        let dir = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(REMOVED) {
            remove(&dir);
            continue;
        }
        match read(&dir, &name) {
            Ok((stage, number)) => begin(node, dir, stage, number),
            Err(error) => tracing::error!("{name} is left alone: {error}"),
        }
    }
    Ok(())
}

fn read(dir: &Path, name: &str) -> Result<(Stage, usize)> {
    let path = dir.join(NODE);
    let text = std::fs::read_to_string(&path).map_err(|e| Error::file(&path, e))?;
    let number = text.trim().parse();
    let number: usize = number.map_err(|e| Error::new(Errno::INVAL, format!("{path:?}: {e}")))?;
    let stage = Stage::read(dir)?;
    check(&stage, number)?;
    match stage.name == name {
        true => Ok((stage, number)),
        false => Err(Error::new(Errno::INVAL, format!("{}: of {}", dir.display(), stage.name))),
    }
}

/// Processes that have files of it open go on reading them.
fn unstage(node: &Arc<Node>, name: &str) -> Result<()> {
    check_name(name)?;
    let dataset = node.datasets.get(name)?;
    dataset.stop();
    let removed = node.dir.join(format!("{REMOVED}{}-{name}", dataset.id));
    if removed.exists() {
        remove(&removed);
    }
    std::fs::rename(&dataset.dir, &removed).map_err(|e| Error::file(&dataset.dir, e))?;
    node.datasets.remove(name);
    node.counters.datasets.set(node.datasets.list().len() as i64);
    sync_dir(&node.dir)?;
    remove(&removed);
    tracing::info!("{name}: unstaged");
    Ok(())
}

/// Takes a dataset and its output files off this node.
fn remove_outputs(node: &Arc<Node>, name: &str) -> Result<()> {
    check_name(name)?;
    let unstaged = unstage(node, name);
    match node.outputs.remove(name) {
        // There were none.
        Err(error) if error.errno == Errno::NOENT.raw_os_error() => return unstaged,
        removed => removed?,
    }
    tracing::info!("{name}: outputs removed");
    Ok(())
}

/// What cannot be removed now is when an agent starts.
fn remove(dir: &Path) {
    if let Err(error) = std::fs::remove_dir_all(dir) {
        tracing::warn!("{}: {error}", dir.display());
    }
}
