//! What a home is asked, by its own node and by others.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use futures_util::future::join_all;
use rustix::io::Errno;
use saker_agent_api::{
    FinishOutput, Nothing, OUTPUT_PART_BYTES_MAX, OutputOp, OutputRequest, ReadOutput,
    RenameOutput, Reply,
};

use super::deliver::send;
use super::path::OutputPath;
use super::place::Place;
use crate::error::{Error, Result};
use crate::node::Node;

/// Answers another agent.
///
/// # Errors
/// ESTALE: the dataset is not staged here, or on another list of nodes, or this node is not the
/// path's home. As of [`execute`].
pub(crate) async fn answer_peer(node: &Arc<Node>, request: OutputRequest) -> Result<Reply> {
    let stale = |what: &str| Error::new(Errno::STALE, format!("{}: {what}", request.dataset));
    let place = Place::of(node, &request.dataset).map_err(|_| stale("not staged here"))?;
    if request.nodes != place.nodes_hash() {
        return Err(stale("staged on other nodes here"));
    }
    let path = OutputPath::parse(&request.path)?;
    let op = request.op.ok_or_else(|| Error::new(Errno::INVAL, "not a request"))?;
    let is_of_all = matches!(op, OutputOp::List(_) | OutputOp::RemoveEmpty(_));
    if !is_of_all && !place.is_mine(&path) {
        return Err(stale("this node is not the home of the path"));
    }
    let is_long = matches!(op, OutputOp::Finish(_) | OutputOp::Rename(_) | OutputOp::RemoveDir(_));
    if !is_long {
        return execute(&place, &path, request.id, op).await;
    }
    let work = || async move { execute(&place, &path, request.id, op).await };
    node.outputs.jobs.run(request.id, work).await
}

/// Does what the home of `path` is asked.
///
/// # Errors
/// Of the operation. EINVAL: it is none of a home.
pub(super) async fn execute(
    place: &Place,
    path: &OutputPath,
    id: u64,
    op: OutputOp,
) -> Result<Reply> {
    let store = &place.store;
    let in_place =
        |act: &dyn Fn() -> Result<()>| tokio::task::block_in_place(act).map(|()| Reply::default());
    match op {
        OutputOp::Look(_) => {
            let output = Some(tokio::task::block_in_place(|| store.look(path))?);
            Ok(Reply { output, ..Reply::default() })
        }
        OutputOp::List(_) => {
            let list = || store.list(path, |child| place.is_mine(child));
            let entries = tokio::task::block_in_place(list)?;
            Ok(Reply { entries, ..Reply::default() })
        }
        OutputOp::Read(ask) => tokio::task::block_in_place(|| read(place, path, ask)),
        OutputOp::Put(put) => {
            place.node.outputs.incoming.put(store, id, put).await?;
            Ok(Reply::default())
        }
        OutputOp::Finish(new) => finish(place, path, id, new).await,
        OutputOp::MakeDir(mode) => in_place(&|| store.make_dir(path, mode)),
        OutputOp::EnsureDir(mode) => {
            let made = tokio::task::block_in_place(|| store.ensure_dir(path, mode))?;
            Ok(Reply { made, ..Reply::default() })
        }
        OutputOp::RemoveDir(_) => remove_dir(place, path).await,
        OutputOp::RemoveEmpty(_) => {
            in_place(&|| store.remove_empty(path, |child| place.is_mine(child)))
        }
        OutputOp::Unlink(_) => in_place(&|| store.unlink(path)),
        OutputOp::Rename(ask) => rename(place, path, ask).await,
        OutputOp::Set(new) => in_place(&|| store.set(path, &new)),
        OutputOp::Open(_) | OutputOp::Create(_) | OutputOp::Commit(_) | OutputOp::Wait(_) => {
            Err(Error::new(Errno::INVAL, "only processes of the node ask for that"))
        }
    }
}

fn read(place: &Place, path: &OutputPath, ask: ReadOutput) -> Result<Reply> {
    let (file, info) = place.store.open(path)?;
    if info.version != ask.version {
        return Err(Error::new(Errno::STALE, format!("{path}: another file by now")));
    }
    let end = ask.offset.checked_add(ask.bytes).filter(|end| *end <= info.size);
    if ask.bytes > OUTPUT_PART_BYTES_MAX as u64 || end.is_none() {
        return Err(Error::new(Errno::INVAL, format!("{path}: a read out of the file")));
    }
    let mut data = vec![0; ask.bytes as usize];
    file.read_exact_at(&mut data, ask.offset).map_err(|e| Error::io(path, e))?;
    Ok(Reply { data, output: Some(info), ..Reply::default() })
}

async fn finish(place: &Place, path: &OutputPath, id: u64, new: FinishOutput) -> Result<Reply> {
    let incoming = &place.node.outputs.incoming;
    incoming.finish(place.store.clone(), id, path.clone(), new).await?;
    Ok(Reply::default())
}

/// Removes a directory, if it is empty on all nodes. Who makes a name in it either is seen there, or
/// finds that the directory is being removed, and ends that ([`Place::ensure_parents`]).
async fn remove_dir(place: &Place, path: &OutputPath) -> Result<Reply> {
    place.store.begin_remove(path)?;
    let op = || OutputOp::RemoveEmpty(Nothing {});
    let asked = place.others().map(|n| place.ask_node(n, path, 0, op()));
    let answers = join_all(asked).await;
    let is_mine = |child: &OutputPath| place.is_mine(child);
    let is_empty = answers.iter().all(Result::is_ok);
    let removed = tokio::task::block_in_place(|| place.store.end_remove(path, is_empty, is_mine));
    // Why, if that is not because there are names.
    for answer in answers {
        answer?;
    }
    removed.map(|()| Reply::default())
}

/// Gives a file another name, perhaps on another node: there first.
async fn rename(place: &Place, from: &OutputPath, ask: RenameOutput) -> Result<Reply> {
    let to = OutputPath::parse(&ask.to)?;
    if place.is_mine(&to) {
        tokio::task::block_in_place(|| place.store.rename(from, &to, ask.exclusive))?;
        return Ok(Reply::default());
    }
    let (file, info) = match place.store.open(from) {
        Err(error) if error.errno == libc::EISDIR => return Err(Error::new(Errno::XDEV, from)),
        opened => opened?,
    };
    let attributes = FinishOutput {
        mode: info.mode,
        mtime_ns: info.mtime_ns,
        exclusive: ask.exclusive,
        writing: saker_runtime::rand::u64(),
        closed_ns: info.closed_ns,
        ..FinishOutput::default()
    };
    send(place, &to, Arc::new(file), info.size, attributes).await?;
    tokio::task::block_in_place(|| place.store.unlink_version(from, info.version));
    Ok(Reply::default())
}
