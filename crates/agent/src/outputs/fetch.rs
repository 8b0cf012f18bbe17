//! Reading files of other homes: whole, to this node's disk.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::io::Errno;
use saker_agent_api::{OUTPUT_PART_BYTES_MAX, OutputInfo, OutputOp, ReadOutput};

use super::path::OutputPath;
use super::place::{Place, is_dir};
use super::store::create_new;
use crate::error::{Error, Result};

/// How often a file is read again that was replaced, or damaged on its way.
const TRIES: u32 = 5;

/// Opens a published file for reading. Without a file: it is a directory.
///
/// # Errors
/// ENOENT, EACCES. EIO: the home does not answer, or the file is damaged. Of the disk.
pub(super) async fn open(place: &Place, path: &OutputPath) -> Result<(OutputInfo, Option<File>)> {
    if path.is_root() {
        return Ok((place.look(path).await?, None));
    }
    if place.is_mine(path) {
        return match tokio::task::block_in_place(|| place.store.open(path)) {
            Ok((file, info)) => Ok((info, Some(file))),
            Err(error) if error.errno == libc::EISDIR => Ok((place.look(path).await?, None)),
            Err(error) => Err(error),
        };
    }
    let info = place.look(path).await?;
    if is_dir(&info) {
        return Ok((info, None));
    }
    let name = format!("fetched-{:016x}", saker_runtime::rand::u64());
    let at = place.store.incoming()?.join(name);
    let into = Arc::new(create_new(&at)?);
    let reader = File::open(&at);
    // It goes with its last descriptor.
    let _ = std::fs::remove_file(&at);
    let reader = reader.map_err(|e| Error::file(&at, e))?;
    let info = copy(place, path, &into).await?;
    Ok((info, Some(reader)))
}

/// Copies a published file, and returns its attributes.
///
/// # Errors
/// As of [`open`].
pub(super) async fn copy(place: &Place, path: &OutputPath, into: &Arc<File>) -> Result<OutputInfo> {
    if place.is_mine(path) {
        let (mut from, info) = place.store.open(path)?;
        let mut to = into.clone();
        let copy = move || std::io::copy(&mut from, &mut to);
        let copied = tokio::task::spawn_blocking(copy).await.map_err(std::io::Error::other);
        copied.flatten().map_err(|e| Error::io(path, e))?;
        return Ok(info);
    }
    let mut last = Error::new(Errno::IO, format!("{path}: damaged, or replaced again and again"));
    for _ in 0..TRIES {
        let info = place.look(path).await?;
        match copy_version(place, path, &info, into).await {
            Ok(true) => return Ok(info),
            Ok(false) => {
                place.node.counters.damaged.inc();
            }
            Err(error) if error.errno == libc::ESTALE => last = error,
            Err(error) => return Err(error),
        }
        into.set_len(0).map_err(|e| Error::io(path, e))?;
    }
    Err(last)
}

/// Copies a version of a file. Says whether it has its checksum.
async fn copy_version(
    place: &Place,
    path: &OutputPath,
    info: &OutputInfo,
    into: &Arc<File>,
) -> Result<bool> {
    let (mut at, mut crc, mut known) = (0, 0, None);
    while at < info.size {
        let bytes = (info.size - at).min(OUTPUT_PART_BYTES_MAX as u64);
        let ask = ReadOutput { version: info.version, offset: at, bytes };
        let reply = place.ask_home(path, OutputOp::Read(ask)).await?;
        if reply.data.len() as u64 != bytes {
            return Err(Error::new(Errno::IO, format!("{path}: an answer that is too short")));
        }
        crc = crc32c::crc32c_append(crc, &reply.data);
        known = known.or(reply.output.and_then(|info| info.crc));
        let (file, offset) = (into.clone(), at);
        let write = move || file.write_all_at(&reply.data, offset);
        let written = tokio::task::spawn_blocking(write).await.map_err(std::io::Error::other);
        written.flatten().map_err(|e| Error::io(path, e))?;
        at += bytes;
    }
    Ok(known.is_none_or(|known| known == crc))
}
