//! READs that end before the kernel thinks that the file does.
//!
//! The kernel fills the rest of a page with zeros, and believes that the file ends there, unless it was told of
//! another size since it sent the READ: then a reader is given zeros that nobody wrote. So when others have cut a file,
//! whatever was sent before the kernel is told so is refused. It drops errors of what it reads ahead, and then asks for
//! each page that somebody waits for.

use std::sync::atomic::{AtomicU64, Ordering};

use saker_client::File;
use saker_fuse::abi::{O_DIRECT, ReadIn};
use saker_types::{Errno, Result};

use crate::names::nodes::NodeId;
use crate::notify::Notifier;

/// A READ of no more may be for a reader that waits, who would be given the error.
const PAGE_BYTES: u32 = 4096;

/// Cuts of a file ([`File::cuts`]) of which the kernel was told by way of one handle.
#[derive(Default)]
pub(crate) struct Cuts(AtomicU64);

/// A READ that is being answered.
pub(crate) struct Reading<'a> {
    told: &'a Cuts,
    /// The cuts that the kernel had been told of when it sent it, at least.
    before: u64,
}

impl Cuts {
    /// A READ has come.
    pub(crate) fn reading(&self) -> Reading<'_> {
        Reading { told: self, before: self.0.load(Ordering::SeqCst) }
    }
}

impl Reading<'_> {
    /// It was answered with `len` bytes.
    ///
    /// # Errors
    /// EAGAIN: the kernel has to ask again, and knows by now that the file has become shorter.
    pub(crate) async fn ends(
        self,
        input: &ReadIn,
        len: usize,
        file: &File,
        node: NodeId,
        notifier: &Notifier,
    ) -> Result<()> {
        let is_of_cache = input.flags & O_DIRECT == 0 && input.size > PAGE_BYTES;
        if len >= input.size as usize || !is_of_cache {
            return Ok(());
        }
        let cuts = file.cuts();
        if cuts <= self.before {
            return Ok(());
        }
        notifier.drop_attributes(node).await;
        self.told.0.fetch_max(cuts, Ordering::SeqCst);
        Err(Errno::EAGAIN.into())
    }
}
