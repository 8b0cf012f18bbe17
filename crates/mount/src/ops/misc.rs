//! STATFS, SYNCFS.

use saker_fuse::abi::StatfsOut;
use saker_fuse::{Reply, Request};
use saker_types::Result;
use saker_types::limits::NAME_BYTES_MAX;

use crate::service::MountService;

/// Unit of the block counts.
const BLOCK_BYTES: u64 = 4096;

impl MountService {
    pub(crate) async fn statfs(&self, _request: &Request) -> Result<Reply> {
        let stat = self.fs.statfs().await?;
        let free = stat.free_bytes / BLOCK_BYTES;
        let unused = stat.unused_bytes / BLOCK_BYTES;
        Ok(Reply::of(&StatfsOut {
            blocks: stat.capacity_bytes / BLOCK_BYTES,
            // df takes the rest for used.
            bfree: unused.max(free),
            bavail: free,
            // Inodes have no bound of their own: room for data is room for as many files.
            files: stat.inodes.saturating_add(free),
            ffree: free,
            bsize: BLOCK_BYTES as u32,
            namelen: NAME_BYTES_MAX as u32,
            frsize: BLOCK_BYTES as u32,
            padding: 0,
            spare: [0; 6],
        }))
    }

    pub(crate) async fn syncfs(&self, _request: &Request) -> Result<Reply> {
        self.sync_all().await?;
        self.fs.sync().await?;
        Ok(Reply::done())
    }

    /// Everything written through this mount is on disk when it returns; at a failure, what
    /// could be written is.
    pub(crate) async fn sync_all(&self) -> Result<()> {
        let mut result = Ok(());
        for open in self.files.all().into_iter().filter(|open| open.flags.write) {
            result = result.and(open.fsync().await);
        }
        result
    }
}
