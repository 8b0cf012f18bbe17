//! Answers to other agents: bytes of what is kept here.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::{Errno, ReadWriteFlags};
use saker_agent_api::{ReadStored, Reply, Stored};

use crate::error::{Error, Result};
use crate::node::Node;
use crate::staged::StagedDataset;

/// Most bytes of one read.
pub(crate) const READ_BYTES_MAX: u64 = 4 << 20;

/// Reads for another agent. Of a file that is not whole yet what is there, which may be nothing.
///
/// # Errors
/// ENOENT: this node does not keep it. ESTALE: another dataset of the name is staged here. EINVAL:
/// out of the file. Of the disk.
pub(crate) async fn read(node: &Node, ask: ReadStored) -> Result<Reply> {
    let dataset = node.datasets.get(&ask.dataset)?;
    if dataset.stage.table_digest.0[..] != ask.table_digest {
        let what = format!("{}: another dataset of this name is staged here", ask.dataset);
        return Err(Error::new(Errno::STALE, what));
    }
    if ask.bytes > READ_BYTES_MAX {
        let what = format!("a read of {} bytes, where {READ_BYTES_MAX} are the most", ask.bytes);
        return Err(Error::new(Errno::INVAL, what));
    }
    let what = Stored::try_from(ask.what)
        .map_err(|_| Error::new(Errno::INVAL, format!("no kind of file: {}", ask.what)))?;
    let (data, available) = match what {
        Stored::Manifest => of_manifest(&dataset, &ask),
        _ => of_part(&dataset, what, &ask).await?,
    };
    node.counters.served_reads.inc();
    node.counters.served_bytes.add(data.len() as u64);
    let progress = dataset.progress.load(Ordering::Relaxed);
    Ok(Reply { data, available, progress, ..Reply::default() })
}

fn of_manifest(dataset: &StagedDataset, ask: &ReadStored) -> (Vec<u8>, u64) {
    let all = dataset.manifest_bytes().unwrap_or_default();
    let rest = all.get(ask.offset as usize..).unwrap_or_default();
    (rest[..rest.len().min(ask.bytes as usize)].to_vec(), all.len() as u64)
}

async fn of_part(
    dataset: &StagedDataset,
    what: Stored,
    ask: &ReadStored,
) -> Result<(Vec<u8>, u64)> {
    let part = dataset.part(what, ask.partition)?;
    let there = part.there();
    let end = ask.offset.checked_add(ask.bytes);
    let end = end.ok_or_else(|| Error::new(Errno::INVAL, "a read beyond all files"))?;
    if part.is_whole() && end > there {
        let what = format!("{}: a read to {end}, and it ends at {there}", part.name);
        return Err(Error::new(Errno::INVAL, what));
    }
    let len = end.min(there).saturating_sub(ask.offset);
    let Some(file) = part.file().filter(|_| len > 0) else { return Ok((Vec::new(), there)) };
    let data = read_file(file, ask.offset, len as usize).await;
    Ok((data.map_err(|e| Error::io(format_args!("{}/{}", ask.dataset, part.name), e))?, there))
}

/// Reads from a file: at once if the pages are in memory, else on a thread that may wait.
///
/// # Errors
/// Of the disk; UnexpectedEof.
pub(crate) async fn read_file(
    file: Arc<File>,
    offset: u64,
    len: usize,
) -> std::io::Result<Vec<u8>> {
    let mut data = vec![0; len];
    if cached(&file, offset, &mut data) {
        return Ok(data);
    }
    let read = move || {
        file.read_exact_at(&mut data, offset)?;
        Ok(data)
    };
    tokio::task::spawn_blocking(read).await.map_err(std::io::Error::other)?
}

/// Longest read that a serving thread copies itself.
const COPY_BYTES_MAX: usize = 256 << 10;

/// Fills `data` if that takes no disk.
fn cached(file: &File, offset: u64, data: &mut [u8]) -> bool {
    let len = data.len();
    if len > COPY_BYTES_MAX {
        return false;
    }
    let mut into = [std::io::IoSliceMut::new(data)];
    rustix::io::preadv2(file, &mut into, offset, ReadWriteFlags::NOWAIT) == Ok(len)
}
