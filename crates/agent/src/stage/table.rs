//! The table of all files, and with it the dataset for processes of the node.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use saker_agent_api::Stored;
use saker_dataset::{Digest, Table};

use super::chain::tree;
use super::fetch::{Wanted, fetch};
use crate::error::{Error, Result};
use crate::node::Node;
use crate::staged::StagedDataset;

/// Gets the table; then the manifest is written, and processes may use the dataset.
///
/// # Errors
/// Of the origin and of the disk.
pub(super) async fn stage(node: &Arc<Node>, dataset: &Arc<StagedDataset>) -> Result<()> {
    let wanted = Wanted { of: (Stored::Table, 0), part: &dataset.table, peers: tree(dataset) };
    let digest = dataset.stage.table_digest;
    let check = move |_: &StagedDataset, path: &Path| is_table(path, digest);
    fetch(node, dataset, &wanted, check).await?;
    tokio::task::block_in_place(|| dataset.write_manifest())?;
    dataset.reopen()
}

fn is_table(path: &Path, digest: Digest) -> Result<()> {
    Table::open(path)?.verify()?;
    let mut hasher = blake3::Hasher::new();
    let file = File::open(path).map_err(|e| Error::file(path, e))?;
    hasher.update_reader(file).map_err(|e| Error::file(path, e))?;
    match Digest(*hasher.finalize().as_bytes()) == digest {
        true => Ok(()),
        false => Err(Error::new(
            rustix::io::Errno::IO,
            format!("{}: damaged: it does not have its digest", path.display()),
        )),
    }
}
