//! Files that every node keeps (FanStore §5.4: those that every process reads in each epoch).

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::{StreamExt, stream};
use rustix::io::Errno;
use saker_dataset::table::{ROOT, Resolved};
use saker_dataset::{BLOCK_BYTES, Broadcast, FileData, Ino, Staged, Table};
use tokio::sync::mpsc;

use super::chain::Chain;
use crate::error::{Error, Result};
use crate::node::Node;
use crate::sources::{self, Place, rendezvous};
use crate::staged::StagedDataset;
use crate::stored::{READ_BYTES_MAX, read_file};

/// Reads at once, and answers that wait to be written: at most 4 MiB each.
const RUNS_AT_ONCE: usize = 4;
/// Bytes between two files that are read along rather than asked around.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// A block of a file, in its partition.
struct Block {
    ino: Ino,
    data: FileData,
    n: u64,
    range: Range<u64>,
}

/// A block as it is stored, and its file.
type Stored = (Ino, Vec<u8>);

/// Blocks that are near each other in a partition, read as one.
struct Run {
    partition: u32,
    range: Range<u64>,
    blocks: Vec<Block>,
}

/// Gets the files, unless they are there.
///
/// # Errors
/// ENOENT: the dataset has no such directory. Of the origin and of the disk.
pub(super) async fn stage(node: &Arc<Node>, dataset: &Arc<StagedDataset>) -> Result<()> {
    if !dataset.wants_broadcast() || dataset.has_broadcast() {
        return Ok(());
    }
    let staged = dataset.opened()?;
    let inos = tokio::task::block_in_place(|| files(dataset, staged.table()))?;
    let data = inos.iter().filter_map(|ino| staged.table().inode(*ino).data());
    dataset.broadcast_bytes.store(data.map(|data| data.stored).sum(), Ordering::Relaxed);
    dataset.broadcast_there.store(0, Ordering::Relaxed);
    let runs = runs(staged.table(), &inos)?;
    let (to_writer, from_readers) = mpsc::channel(RUNS_AT_ONCE);
    let write = tokio::task::spawn_blocking({
        let (node, dataset, staged) = (node.clone(), dataset.clone(), staged.clone());
        move || write(&node, &dataset, &staged, inos, from_readers)
    });
    let reads = runs.into_iter().map(|run| read(node, dataset, &staged, run));
    let mut reads = stream::iter(reads).buffered(RUNS_AT_ONCE);
    while let Some(run) = reads.next().await {
        let failed = run.is_err();
        if to_writer.send(run).await.is_err() || failed {
            break;
        }
    }
    drop(to_writer);
    let written = write.await;
    written.map_err(|e| Error::io("thread", std::io::Error::other(e)))??;
    dataset.set_broadcast_whole();
    dataset.reopen()
}

/// The files below the directories of the stage, by number.
fn files(dataset: &StagedDataset, table: &Table) -> Result<Vec<Ino>> {
    let mut inos = Vec::new();
    for dir in &dataset.stage.broadcast {
        let Resolved::Found(top) = table.resolve(ROOT, dir.trim_matches('/').as_bytes(), true)
        else {
            let what = format!("{}: nothing to broadcast at {dir:?}", dataset.stage.name);
            return Err(Error::new(Errno::NOENT, what));
        };
        let mut rest = vec![top];
        while let Some(ino) = rest.pop() {
            match table.inode(ino).is_dir() {
                true => rest.extend(table.children(ino).map(|(_, child)| child)),
                false => inos.push(ino),
            }
        }
    }
    inos.sort_unstable();
    inos.dedup();
    inos.retain(|ino| table.inode(*ino).data().is_some());
    Ok(inos)
}

/// The reads that get the files, in their order.
fn runs(table: &Table, inos: &[Ino]) -> Result<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    for &ino in inos {
        let Some(data) = table.inode(ino).data() else { continue };
        for n in 0..data.blocks() {
            let range = table.stored_block(&data, n);
            let range = range.filter(|range| range.end - range.start <= BLOCK_BYTES);
            let range = range.ok_or_else(|| Error::new(Errno::IO, "the table is damaged"))?;
            let range = data.offset + range.start..data.offset + range.end;
            let block = Block { ino, data, n, range: range.clone() };
            let last = runs.last_mut().filter(|run| run.takes(&block));
            match last {
                Some(run) => {
                    run.range.end = range.end;
                    run.blocks.push(block);
                }
                None => {
                    runs.push(Run { partition: data.partition, range, blocks: vec![block] });
                }
            }
        }
    }
    Ok(runs)
}

impl Run {
    fn takes(&self, block: &Block) -> bool {
        let end = self.range.end;
        self.partition == block.data.partition
            && (end..=end + GAP_BYTES_MAX).contains(&block.range.start)
            && block.range.end - self.range.start <= READ_BYTES_MAX
    }

    /// The blocks as they are stored, compared with their checksums.
    fn cut(&self, table: &Table, bytes: &[u8]) -> Result<Vec<Stored>> {
        let cut = |block: &Block| {
            let start = (block.range.start - self.range.start) as usize;
            let stored = &bytes[start..start + (block.range.end - block.range.start) as usize];
            table.expand(&block.data, block.n, Cow::Borrowed(stored))?;
            Ok((block.ino, stored.to_vec()))
        };
        self.blocks.iter().map(cut).collect()
    }
}

/// Reads a run: from this node's disk, from a keeper as soon as it has it, or from the origin.
async fn read(
    node: &Node,
    dataset: &StagedDataset,
    staged: &Staged,
    run: Run,
) -> Result<Vec<Stored>> {
    let table = staged.table();
    let cut = |bytes: &[u8]| tokio::task::block_in_place(|| run.cut(table, bytes));
    if let Some(bytes) = local(dataset, &run).await
        && let Ok(blocks) = cut(&bytes)
    {
        return Ok(blocks);
    }
    let keepers = dataset.stage.keepers(run.partition).filter(|n| *n != dataset.node);
    let mut peers: Vec<usize> = keepers.collect();
    peers.sort_by_key(|n| rendezvous(run.partition ^ dataset.node as u32, *n));
    let mut chain = Chain::new(peers);
    let of = (saker_agent_api::Stored::Partition, run.partition);
    loop {
        let (place, _) = chain.wait(node, dataset, of, run.range.end - 1).await;
        let range = run.range.clone();
        let bytes = sources::read(node, dataset, place, run.partition, range).await;
        let error = match bytes.and_then(|bytes| cut(&bytes)) {
            Ok(blocks) => return Ok(blocks),
            Err(error) if place == Place::Origin => return Err(error),
            Err(error) => error,
        };
        tracing::debug!("{}: {error}", dataset.stage.name);
        node.counters.read_failures.inc();
        chain.pass_over();
    }
}

async fn local(dataset: &StagedDataset, run: &Run) -> Option<Vec<u8>> {
    let part = dataset.parts.get(&run.partition).filter(|part| part.is_whole())?;
    let len = (run.range.end - run.range.start) as usize;
    read_file(part.file()?, run.range.start, len).await.ok()
}

/// Writes the files as their blocks come.
fn write(
    node: &Node,
    dataset: &StagedDataset,
    staged: &Staged,
    inos: Vec<Ino>,
    mut from: mpsc::Receiver<Result<Vec<Stored>>>,
) -> Result<()> {
    let mut waiting = Vec::new().into_iter();
    Broadcast::write(&dataset.dir, staged.table(), inos, |ino, data| {
        let mut file = Vec::with_capacity(data.stored as usize);
        for _ in 0..data.blocks() {
            let (of, block) = loop {
                if let Some(next) = waiting.next() {
                    break next;
                }
                let run = from.blocking_recv();
                let run = run.ok_or_else(|| Error::new(Errno::CANCELED, "staging has ended"))?;
                waiting = run?.into_iter();
            };
            debug_assert_eq!(of, ino);
            file.extend_from_slice(&block);
        }
        let len = file.len() as u64;
        dataset.broadcast_there.fetch_add(len, Ordering::Relaxed);
        dataset.advance(len);
        node.counters.staged_bytes.add(len);
        Ok(file)
    })
}
