//! A file for processes of the node: from the disk, a peer or the origin, checked block by block.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use rustix::io::Errno;
use saker_dataset::{BLOCK_BYTES, FileData, Ino, Staged};

use crate::error::{Error, Result};
use crate::files::InMemory;
use crate::memfd;
use crate::node::Node;
use crate::sources::{self, Place};
use crate::staged::StagedDataset;
use crate::stored::read_file;

/// Blocks of a file that are read at once.
const BLOCKS_AT_ONCE: usize = 4;
/// A block from this size on is expanded where it may take its time, bytes.
const LONG_BYTES: u64 = 64 << 10;

/// Reads a whole file into memory.
///
/// # Errors
/// EISDIR and the like: no file. EIO: no copy is whole; the words name all of them.
pub(crate) async fn file(
    node: Arc<Node>,
    dataset: Arc<StagedDataset>,
    ino: Ino,
) -> Result<InMemory> {
    let _turn = node.reads.acquire().await;
    let staged = dataset.opened()?;
    let name = format!("{}#{ino}", dataset.stage.name);
    let is_known = ino < staged.table().len();
    let data = is_known.then(|| staged.table().inode(ino).data()).flatten();
    let data = data.ok_or_else(|| Error::new(Errno::INVAL, format!("{name}: no file")))?;
    let about = |e: std::io::Error| Error::io(format_args!("{name}: memory"), e);
    let file = Arc::new(memfd::create(&name, data.size).map_err(about)?);
    let blocks = stream::iter((0..data.blocks()).map(|n| {
        let (node, dataset, staged, file) = (&node, &dataset, &staged, &file);
        async move {
            let raw = block(node, dataset, staged, (ino, &data), n).await?;
            let wrote = file.write_all_at(&raw, n * BLOCK_BYTES);
            wrote.map_err(|e| Error::io(format_args!("{}#{ino}: memory", dataset.stage.name), e))
        }
    }));
    blocks.buffer_unordered(BLOCKS_AT_ONCE).try_collect::<()>().await?;
    memfd::seal(&file).map_err(about)?;
    Ok((file, data.size))
}

/// Block `n` of a file, from the first copy that is whole.
async fn block(
    node: &Node,
    dataset: &StagedDataset,
    staged: &Staged,
    (ino, data): (Ino, &FileData),
    n: u64,
) -> Result<Vec<u8>> {
    let table = staged.table();
    let within = table.stored_block(data, n).filter(|range| range.end - range.start <= BLOCK_BYTES);
    let within = within.ok_or_else(|| {
        Error::new(Errno::IO, format!("{}#{ino}: the table is damaged", dataset.stage.name))
    })?;
    let expand = |stored: Vec<u8>| match data.size {
        0..LONG_BYTES => table.expand(data, n, Cow::Owned(stored)),
        _ => tokio::task::block_in_place(|| table.expand(data, n, Cow::Owned(stored))),
    };
    let mut tried = Vec::new();
    if let Some(stored) = local(node, staged, (ino, data), &within).await {
        let read = stored.and_then(|stored| Ok(expand(stored).inspect_err(|_| damaged(node))?));
        match read {
            Ok(raw) => return Ok(raw),
            Err(error) => tried.push(passed_over(node, error)),
        }
    }
    let range = data.offset + within.start..data.offset + within.end;
    for place in sources::copies(node, dataset, data.partition, ino) {
        let stored = sources::read(node, dataset, place, data.partition, range.clone()).await;
        let raw = stored.and_then(|stored| {
            expand(stored).inspect_err(|_| damaged(node)).map_err(|e| of(dataset, place, &e))
        });
        match raw {
            Ok(raw) => return Ok(raw),
            Err(error) => tried.push(passed_over(node, error)),
        }
    }
    let tried: Vec<String> = tried.iter().map(Error::to_string).collect();
    let what = format!("{}#{ino}: no copy can be read: {}", dataset.stage.name, tried.join("; "));
    Err(Error::new(Errno::IO, what))
}

fn damaged(node: &Node) {
    node.counters.damaged.inc();
}

/// Names the copy that an error is about.
fn of(dataset: &StagedDataset, place: Place, error: &saker_dataset::Error) -> Error {
    let name = match place {
        Place::Peer(n) => &dataset.stage.nodes[n],
        Place::Origin => &dataset.stage.origin,
    };
    Error::new(Errno::IO, format!("copy of {name}: {error}"))
}

/// A copy could not be read: the next one is tried.
fn passed_over(node: &Node, error: Error) -> Error {
    node.counters.read_failures.inc();
    tracing::debug!("a copy is passed over: {error}");
    error
}

/// Stored bytes of a file from this node's disk; `None`: the node does not keep it.
async fn local(
    node: &Node,
    staged: &Staged,
    (ino, data): (Ino, &FileData),
    within: &Range<u64>,
) -> Option<Result<Vec<u8>>> {
    let place = staged.local(ino, data);
    let about = |e: std::io::Error| Error::file(&place.path, e);
    let file = match File::open(&place.path) {
        Ok(file) => Arc::new(file),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
        Err(e) => return Some(Err(about(e))),
    };
    let len = (within.end - within.start) as usize;
    let stored = read_file(file, place.offset + within.start, len).await.map_err(about);
    if stored.is_ok() {
        node.counters.local_reads.inc();
        node.counters.local_bytes.add(len as u64);
    }
    Some(stored)
}
