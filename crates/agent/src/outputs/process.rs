//! What processes of the node ask about output files.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::sync::Arc;

use futures_util::future::join_all;
use rustix::io::Errno;
use saker_agent_api::{
    CreateOutput, Nothing, OutputEntry, OutputInfo, OutputOp, OutputRequest, RenameOutput, Reply,
};

use super::fetch;
use super::path::OutputPath;
use super::place::{Place, is_dir};
use super::private::{Phase, Private};
use super::publish::{commit, deliver_all, publish};
use super::store::LIST_BYTES_MAX;
use crate::error::{Error, Result};
use crate::node::Node;

/// Flags of open(2) that a writer's descriptor takes over.
const KEPT: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_DIRECT
    | libc::O_NOATIME;

/// An answer, and the descriptor that goes with it.
pub(crate) type Answer = (Reply, Option<Arc<File>>);

/// Answers a process.
///
/// # Errors
/// Of the operation, as a file system has it; EIO for what only agents understand.
pub(crate) async fn answer(node: Arc<Node>, request: OutputRequest) -> Result<Answer> {
    let answered = run(&node, request).await;
    answered.map_err(|error| {
        tracing::debug!("output: {error}");
        if is_of_files(error.errno) { error } else { Error::new(Errno::IO, error) }
    })
}

/// It means to a program what it means to us.
fn is_of_files(errno: i32) -> bool {
    const KNOWN: [i32; 19] = [
        libc::EPERM,
        libc::ENOENT,
        libc::EIO,
        libc::EACCES,
        libc::EBUSY,
        libc::EEXIST,
        libc::EXDEV,
        libc::ENOTDIR,
        libc::EISDIR,
        libc::EINVAL,
        libc::ENFILE,
        libc::EMFILE,
        libc::EFBIG,
        libc::ENOSPC,
        libc::EROFS,
        libc::ENAMETOOLONG,
        libc::ENOTEMPTY,
        libc::EDQUOT,
        libc::EOPNOTSUPP,
    ];
    KNOWN.contains(&errno)
}

async fn run(node: &Arc<Node>, request: OutputRequest) -> Result<Answer> {
    let op = request.op.ok_or_else(|| Error::new(Errno::INVAL, "not a request"))?;
    if let OutputOp::Commit(token) = op {
        let is_written = commit(node, token).await?;
        let token = if is_written { token } else { 0 };
        return Ok((Reply { token, ..Reply::default() }, None));
    }
    let place = Place::of(node, &request.dataset)?;
    let path = OutputPath::parse(&request.path)?;
    settle(&place, &path).await?;
    match op {
        OutputOp::Look(_) => {
            let looked = place.look(&path).await;
            Ok((with_info(of_missing(&place, &path, looked).await?), None))
        }
        OutputOp::List(_) => Ok((list(&place, &path).await?, None)),
        OutputOp::Open(_) => {
            let opened = open(&place, &path).await;
            of_missing(&place, &path, opened).await
        }
        OutputOp::Create(ask) => create(&place, &path, ask).await,
        OutputOp::MakeDir(_) => {
            place.check_parent(&path).await?;
            place.ask_home(&path, op).await?;
            place.ensure_parents(&path).await?;
            Ok((Reply::default(), None))
        }
        OutputOp::Rename(ask) => Ok((rename(&place, &path, ask).await?, None)),
        OutputOp::RemoveDir(_) | OutputOp::Unlink(_) | OutputOp::Set(_) => {
            Ok((place.ask_home(&path, op).await?, None))
        }
        _ => Err(Error::new(Errno::INVAL, "only agents ask for that")),
    }
}

/// Says ENOTDIR of a path that is not there, if it is in a file.
async fn of_missing<T>(place: &Place, path: &OutputPath, found: Result<T>) -> Result<T> {
    match found {
        Err(error) if error.errno == libc::ENOENT => match place.check_parent(path).await {
            Err(wrong) if wrong.errno == libc::ENOTDIR => Err(wrong),
            _ => Err(error),
        },
        found => found,
    }
}

fn with_info(info: OutputInfo) -> Reply {
    Reply { output: Some(info), ..Reply::default() }
}

/// What processes of this node have finished at a path, or in it, is published before anybody sees
/// what is there.
async fn settle(place: &Place, path: &OutputPath) -> Result<()> {
    let (node, name) = (&place.node, &place.dataset.stage.name);
    let is_here = |private: &Private| {
        let there = &private.key.1;
        private.key.0 == *name && (there == path || there.parent().as_ref() == Some(path))
    };
    for private in node.outputs.private.all(|p| is_here(p) && p.phase() != Phase::Written) {
        match private.phase() {
            Phase::Committed if !tokio::task::block_in_place(|| private.has_writers()) => {
                // Whoever has written it is not here to hear of an error.
                let _ = publish(node, &private).await;
            }
            Phase::Leaving(_) if private.key.1 == *path => deliver_all(node, &private.key).await?,
            _ => {}
        }
    }
    Ok(())
}

async fn open(place: &Place, path: &OutputPath) -> Result<Answer> {
    let (info, file) = fetch::open(place, path).await?;
    Ok((with_info(info), file.map(Arc::new)))
}

/// Makes a private file: empty, or with the data of the one that is there.
async fn create(place: &Place, path: &OutputPath, ask: CreateOutput) -> Result<Answer> {
    let has = |flag| ask.flags & flag == flag;
    let (creates, exclusive) = (has(libc::O_CREAT), has(libc::O_CREAT | libc::O_EXCL));
    let there = place.find(path).await?;
    match &there {
        Some(_) if exclusive => return Err(Error::new(Errno::EXIST, path)),
        Some(info) if is_dir(info) => return Err(Error::new(Errno::ISDIR, path)),
        Some(info) if is_closed(info) => return Err(Error::new(Errno::ACCESS, path)),
        Some(_) => {}
        None if creates => place.check_parent(path).await?,
        None => return Err(Error::new(Errno::NOENT, path)),
    }
    let only_reads = ask.flags & libc::O_ACCMODE == libc::O_RDONLY;
    if only_reads && there.is_some() && !has(libc::O_TRUNC) {
        return open(place, path).await;
    }
    let mode = there.as_ref().map_or(ask.mode, |info| info.mode) & 0o777;
    let key = (place.dataset.stage.name.clone(), path.clone());
    let make = || Private::create(&place.store, key, exclusive);
    let (private, writer) = tokio::task::block_in_place(make)?;
    let copied = match &there {
        Some(info) if info.size > 0 && !has(libc::O_TRUNC) => {
            fetch::copy(place, path, &Arc::new(writer)).await.map(drop)
        }
        _ => Ok(()),
    };
    let opened = copied.and_then(|()| {
        tokio::task::block_in_place(|| open_private(&private, ask.flags & KEPT, mode))
    });
    let writer = opened.inspect_err(|_| private.remove())?;
    let private = place.node.outputs.private.insert(private)?;
    if only_reads {
        drop(writer);
        commit(&place.node, private.token).await?;
        return open(place, path).await;
    }
    let reply = Reply { token: private.token, ..Reply::default() };
    Ok((reply, Some(Arc::new(writer))))
}

/// Its owner may not write it.
fn is_closed(info: &OutputInfo) -> bool {
    info.mode & 0o200 == 0 && !rustix::process::geteuid().is_root()
}

/// Opens a private file for its writer, and gives it its permissions.
fn open_private(private: &Private, flags: i32, mode: u32) -> Result<File> {
    let about = |e| Error::file(&private.data, e);
    let (reads, writes) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        _ => (true, true),
    };
    let mut options = OpenOptions::new();
    options.read(reads).write(writes).custom_flags(flags & !libc::O_ACCMODE);
    let writer = options.open(&private.data).map_err(about)?;
    private.file.set_permissions(Permissions::from_mode(mode)).map_err(about)?;
    Ok(writer)
}

/// Names in a directory: those of all homes.
async fn list(place: &Place, path: &OutputPath) -> Result<Reply> {
    let info = place.look(path).await?;
    if !is_dir(&info) {
        return Err(Error::new(Errno::NOTDIR, path));
    }
    let op = || OutputOp::List(Nothing {});
    let asked = place.others().map(|n| place.ask_node(n, path, 0, op()));
    let mut names: BTreeMap<Vec<u8>, OutputEntry> = BTreeMap::new();
    let here = || place.store.list(path, |child| place.is_mine(child));
    let mut entries = tokio::task::block_in_place(here)?;
    for answer in join_all(asked).await {
        entries.extend(answer?.entries);
    }
    let bytes: usize = entries.iter().map(|entry| entry.name.len() + 32).sum();
    if bytes > LIST_BYTES_MAX {
        return Err(Error::new(Errno::FBIG, format!("{path}: too many names")));
    }
    names.extend(entries.into_iter().map(|entry| (entry.name.clone(), entry)));
    let entries = names.into_values().collect();
    Ok(Reply { entries, ..with_info(info) })
}

async fn rename(place: &Place, from: &OutputPath, ask: RenameOutput) -> Result<Reply> {
    let to = OutputPath::parse(&ask.to)?;
    settle(place, &to).await?;
    if from.is_root() || to.is_root() {
        return Err(Error::new(Errno::BUSY, from));
    }
    let info = place.look(from).await?;
    if is_dir(&info) {
        return Err(Error::new(Errno::XDEV, from));
    }
    if *from == to {
        let exists = Err(Error::new(Errno::EXIST, from));
        return if ask.exclusive { exists } else { Ok(Reply::default()) };
    }
    place.check_parent(&to).await?;
    place.ask_home(from, OutputOp::Rename(ask)).await?;
    place.ensure_parents(&to).await?;
    Ok(Reply::default())
}
