//! Getting a file whole, piece by piece.
//!
//! The file grows as NAME.partial; its length is how far it has come. After a crash of the machine
//! the length may say more than the disk has: therefore all of the file is checked, and flushed,
//! before it gets its name.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use saker_dataset::sync_dir;

use super::chain::{Chain, Of};
use crate::error::{Error, Result};
use crate::node::Node;
use crate::sources::{Place, ask_origin, ask_peer};
use crate::staged::{Part, StagedDataset};
use crate::stored::READ_BYTES_MAX;

/// Pieces of a file that are asked for at once.
const PIECES_AT_ONCE: usize = 4;

/// A file to get.
pub(super) struct Wanted<'a> {
    pub(super) of: Of,
    pub(super) part: &'a Part,
    /// Nodes to ask before the origin.
    pub(super) peers: Vec<usize>,
}

/// Gets a file, unless it is there. `check` compares it with what it must be.
///
/// # Errors
/// Of the origin, the disk and the check.
pub(super) async fn fetch(
    node: &Arc<Node>,
    dataset: &Arc<StagedDataset>,
    wanted: &Wanted<'_>,
    check: impl Fn(&StagedDataset, &Path) -> Result<()> + Clone + Send + 'static,
) -> Result<()> {
    if wanted.part.is_whole() {
        return Ok(());
    }
    let file = open(dataset, wanted.part)?;
    let mut chain = Chain::new(wanted.peers.clone());
    loop {
        all_pieces(node, dataset, wanted, &file, &mut chain).await?;
        let finished = finish(dataset, wanted.part, file.clone(), check.clone()).await?;
        let Some(damage) = finished else { return Ok(()) };
        node.counters.damaged.inc();
        tracing::warn!("{}: fetched again: {damage}", dataset.stage.name);
        if chain.is_at_origin() {
            return Err(damage);
        }
        // Any of the nodes may have had the damaged piece.
        chain = Chain::new(Vec::new());
    }
}

fn partial(dataset: &StagedDataset, part: &Part) -> PathBuf {
    dataset.dir.join(format!("{}.partial", part.name))
}

/// The file as far as it has come, and room for the rest of it.
fn open(dataset: &StagedDataset, part: &Part) -> Result<Arc<File>> {
    let path = partial(dataset, part);
    let about = |e: std::io::Error| Error::file(&path, e);
    let mut options = File::options();
    let file = options.create(true).truncate(false).read(true).write(true).open(&path);
    let file = file.map_err(about)?;
    let (mut len, total) = (file.metadata().map_err(about)?.len(), part.total());
    if len > total {
        file.set_len(0).map_err(about)?;
        len = 0;
    }
    if len < total {
        match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, len, total - len) {
            // Not all file systems can.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(about(error.into())),
        }
    }
    Ok(part.set_file(file, len))
}

async fn all_pieces(
    node: &Arc<Node>,
    dataset: &Arc<StagedDataset>,
    wanted: &Wanted<'_>,
    file: &Arc<File>,
    chain: &mut Chain,
) -> Result<()> {
    let total = wanted.part.total();
    while wanted.part.there() < total {
        let (place, available) = chain.wait(node, dataset, wanted.of, wanted.part.there()).await;
        let end = available.min(total);
        let got = pieces(node, dataset, wanted, file, (place, end)).await;
        match (got, place) {
            (Err(Failed::Disk(error)), _) | (Err(Failed::Place(error)), Place::Origin) => {
                return Err(error);
            }
            (Err(Failed::Place(error)), Place::Peer(_)) => {
                node.counters.read_failures.inc();
                tracing::debug!("{}: {error}", dataset.stage.name);
                chain.pause().await;
            }
            (Ok(()), _) => {}
        }
    }
    Ok(())
}

/// What went wrong: another place may help, another disk does not.
enum Failed {
    Place(Error),
    Disk(Error),
}

/// Gets the pieces up to `end` from one place, in order.
async fn pieces(
    node: &Arc<Node>,
    dataset: &Arc<StagedDataset>,
    wanted: &Wanted<'_>,
    file: &Arc<File>,
    (place, end): (Place, u64),
) -> Result<(), Failed> {
    let begin = wanted.part.there();
    let starts = (begin..end).step_by(READ_BYTES_MAX as usize);
    let asked = starts.map(|at| {
        let range = at..end.min(at + READ_BYTES_MAX);
        async move {
            let len = range.end - range.start;
            let data = match place {
                Place::Origin => ask_origin(node, dataset, &wanted.part.name, range).await?,
                Place::Peer(peer) => ask_peer(node, dataset, peer, wanted.of, range).await?.data,
            };
            match data.len() as u64 == len {
                true => Ok(data),
                false => Err(Error::new(Errno::IO, format!("{}: a short read", wanted.part.name))),
            }
        }
    });
    let mut got = stream::iter(asked).buffered(PIECES_AT_ONCE);
    while let Some(data) = got.next().await {
        let data = data.map_err(Failed::Place)?;
        let (at, len) = (wanted.part.there(), data.len() as u64);
        let path = partial(dataset, wanted.part);
        let file = file.clone();
        let write = move || file.write_all_at(&data, at).map_err(|e| Error::file(&path, e));
        blocking(write).await.map_err(Failed::Disk)?;
        wanted.part.set_there(at + len);
        dataset.advance(len);
        node.counters.staged_bytes.add(len);
    }
    Ok(())
}

/// Checks a file that has all its bytes, and gives it its name. What is wrong with a damaged one is
/// the result, and it is empty then.
async fn finish(
    dataset: &Arc<StagedDataset>,
    part: &Part,
    file: Arc<File>,
    check: impl Fn(&StagedDataset, &Path) -> Result<()> + Send + 'static,
) -> Result<Option<Error>> {
    let (path, name) = (partial(dataset, part), dataset.dir.join(&part.name));
    let (of, checked) = (dataset.clone(), file.clone());
    let run = move || {
        if let Err(error) = check(&of, &path) {
            return if of.is_stopped() { Err(error) } else { Ok(Some(error)) };
        }
        checked.sync_all().map_err(|e| Error::file(&path, e))?;
        std::fs::rename(&path, &name).map_err(|e| Error::file(&path, e))?;
        sync_dir(&of.dir)?;
        Ok(None)
    };
    let damage = blocking(run).await?;
    match damage {
        Some(_) => {
            part.set_there(0);
            file.set_len(0).map_err(|e| Error::file(&partial(dataset, part), e))?;
        }
        None => part.set_whole(),
    }
    dataset.advance(1);
    Ok(damage)
}

/// Runs on a thread that may wait for disks.
async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let ran = tokio::task::spawn_blocking(run).await;
    ran.map_err(|e| Error::io("thread", std::io::Error::other(e)))?
}
