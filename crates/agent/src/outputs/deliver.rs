//! Files on their way to their homes.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use saker_agent_api::{FinishOutput, Nothing, OUTPUT_PART_BYTES_MAX, OutputOp, PutOutput};

use super::path::OutputPath;
use super::place::Place;
use crate::error::{Error, Result};
use crate::stored::read_file;

/// Reads a file part by part.
async fn part(path: &OutputPath, file: &Arc<File>, at: u64, size: u64) -> Result<Vec<u8>> {
    let len = (size - at).min(OUTPUT_PART_BYTES_MAX as u64) as usize;
    read_file(file.clone(), at, len).await.map_err(|e| Error::io(path, e))
}

/// Sends a file to the home of `path`, which is another node. Size and checksum of `attributes` are
/// found here.
///
/// # Errors
/// Of the home. EEXIST: another file is there, and must not be replaced.
pub(super) async fn send(
    place: &Place,
    path: &OutputPath,
    file: Arc<File>,
    size: u64,
    attributes: FinishOutput,
) -> Result<()> {
    let (home, id) = (place.home(path), saker_runtime::rand::u64());
    let (mut at, mut crc) = (0, 0);
    while at < size {
        let data = part(path, &file, at, size).await?;
        crc = crc32c::crc32c_append(crc, &data);
        let put = PutOutput { offset: at, data };
        at += put.data.len() as u64;
        place.ask_node(home, path, id, OutputOp::Put(put)).await?;
    }
    let finish = OutputOp::Finish(FinishOutput { size, crc, ..attributes });
    match place.ask_node(home, path, id, finish).await {
        Err(error) if error.errno == libc::EEXIST => {
            // An earlier attempt may have succeeded whose answer was lost.
            let asked = place.ask_node(home, path, id, OutputOp::Look(Nothing {})).await?;
            let there = asked.output.unwrap_or_default();
            if there.writing == attributes.writing { Ok(()) } else { Err(error) }
        }
        done => done.map(drop),
    }
}

/// Puts a file in its place on this node, which is its home. `attributes` as for [`send`].
///
/// # Errors
/// As of [`super::store::Store::place`].
pub(super) async fn place_here(
    place: &Place,
    path: &OutputPath,
    from: PathBuf,
    file: Arc<File>,
    size: u64,
    attributes: FinishOutput,
) -> Result<()> {
    let (mut at, mut crc) = (0, 0);
    while at < size {
        let data = part(path, &file, at, size).await?;
        crc = crc32c::crc32c_append(crc, &data);
        at += data.len() as u64;
    }
    let (store, path) = (place.store.clone(), path.clone());
    let put = move || store.place(&from, &path, &FinishOutput { size, crc, ..attributes });
    let placed = tokio::task::spawn_blocking(put).await;
    placed.map_err(|e| Error::new(Errno::IO, e))?
}
