//! Copies and removes directories of the cluster whole.

use std::sync::Arc;

use bytes::Bytes;
use saker_types::wire::At;
use saker_types::{Errno, InodeId, Locator, Result};

use super::directory;
use crate::core::Core;
use crate::namespace::api::Namespace;
use crate::namespace::strict::Strict;
use crate::{Caller, OpenFlags, SetAttr};

/// Bytes that are read and written at once.
const PIECE_BYTES: u64 = 4 << 20;
/// Of a piece what is zero is not written, in parts of so many bytes.
const HOLE_BYTES: usize = 64 << 10;

/// A file in a tree, and what tells that it has changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    path: Vec<Bytes>,
    id: InodeId,
    size: u64,
    data_version: u64,
}

/// All files below a directory, in order.
async fn files_below(core: &Arc<Core>, top: &Locator) -> Result<Vec<Found>> {
    let (names, root) = (Strict(core), Caller::root());
    let (mut found, mut todo) = (Vec::new(), vec![(Vec::new(), top.clone())]);
    while let Some((path, dir)) = todo.pop() {
        let mut listing = names.readdir(&root, &dir, 0);
        while let Some(item) = listing.next().await? {
            let path: Vec<Bytes> = path.iter().cloned().chain([item.name.clone()]).collect();
            let entry = names.getattr(&root, &At::child(dir.clone(), &item.name)).await?;
            match entry.attr.is_dir() {
                true => todo.push((path, entry.loc)),
                false => {
                    let (id, size) = (entry.attr.id, entry.attr.size);
                    let data_version = entry.attr.data_version;
                    found.push(Found { path, id, size, data_version });
                }
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Copies what is in one directory to another, durably. False: it has changed meanwhile.
///
/// # Errors
/// ENOENT if something is not there any more. Of the cluster.
pub(super) async fn copy_tree(core: &Arc<Core>, from: &At, to: &Locator) -> Result<bool> {
    let from = Strict(core).lookup(&Caller::root(), from).await?.loc;
    let before = files_below(core, &from).await?;
    for file in &before {
        let Some((name, above)) = file.path.split_last() else { continue };
        let mut dir = to.clone();
        for part in above {
            dir = directory(core, &At::child(dir, part)).await?;
        }
        let source = At::below(from.clone(), file.path.clone());
        copy_file(core, &source, &At::child(dir, name), file.size).await?;
    }
    core.cluster.sync_journals().await?;
    Ok(files_below(core, &from).await? == before)
}

async fn copy_file(core: &Arc<Core>, from: &At, to: &At, size: u64) -> Result<()> {
    let (names, root) = (Strict(core), Caller::root());
    let (source, _) = names.open(&root, from, OpenFlags::READ).await?;
    let flags = OpenFlags { exclusive: true, ..OpenFlags::READ_WRITE };
    let (target, _) = names.create(&root, to, 0o600, flags, false).await?;
    let mut at = 0;
    while at < size {
        let piece = source.read(at, (size - at).min(PIECE_BYTES) as usize).await?;
        if piece.is_empty() {
            break;
        }
        for (n, part) in piece.chunks(HOLE_BYTES).enumerate() {
            if part.iter().any(|byte| *byte != 0) {
                target.write(at + (n * HOLE_BYTES) as u64, part).await?;
            }
        }
        at += piece.len() as u64;
    }
    target.fsync().await?;
    if target.entry().attr.size < size {
        let change = SetAttr { size: Some(size), by_handle: true, ..SetAttr::default() };
        names.setattr(&root, &At::handle(target.locator()), &change).await?;
    }
    source.release().await;
    target.release().await;
    Ok(())
}

/// Removes a directory and all that is in it, if it is there.
///
/// # Errors
/// Of the cluster.
pub(super) async fn remove_tree(core: &Arc<Core>, at: &At) -> Result<()> {
    let (names, root) = (Strict(core), Caller::root());
    let is_gone = |errno: Errno| errno == Errno::ENOENT;
    let top = match names.lookup(&root, at).await {
        Err(error) if is_gone(error.errno()) => return Ok(()),
        found => found?.loc,
    };
    // Directories, each before those in it.
    let mut dirs = vec![(at.clone(), top)];
    let mut next = 0;
    while let Some((_, dir)) = dirs.get(next).cloned() {
        next += 1;
        let mut listing = names.readdir(&root, &dir, 0);
        let mut found = Vec::new();
        while let Some(item) = listing.next().await? {
            found.push(item.name);
        }
        for name in found {
            let place = At::child(dir.clone(), &name);
            match names.lookup(&root, &place).await {
                Ok(entry) if entry.attr.is_dir() => {
                    dirs.push((place, entry.loc));
                    continue;
                }
                Err(error) if is_gone(error.errno()) => continue,
                other => drop(other?),
            }
            match names.unlink(&root, &place).await {
                Err(error) if !is_gone(error.errno()) => return Err(error),
                _ => {}
            }
        }
    }
    for (place, _) in dirs.iter().rev() {
        match names.rmdir(&root, place).await {
            Err(error) if !is_gone(error.errno()) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
