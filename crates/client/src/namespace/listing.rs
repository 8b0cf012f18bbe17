//! Listings, whatever namespace they are of.

use futures_util::future::BoxFuture;
use saker_types::{Error, Result};

use crate::DirItem;
use crate::namespace::strict::readdir::Shares;

/// A listing under way.
pub struct DirStream(Listing);

enum Listing {
    /// Of the strict namespace: as the shards tell it.
    Shares(Shares),
    /// Of a namespace that has all of it at hand.
    Whole(std::vec::IntoIter<DirItem>),
    /// The same, once it has asked for it.
    Later(BoxFuture<'static, Result<Vec<DirItem>>>),
    /// Begins with something else.
    Opening(BoxFuture<'static, Result<DirStream>>),
    /// There is none.
    Failed(Error),
}

impl DirStream {
    pub(crate) fn of_shares(shares: Shares) -> DirStream {
        DirStream(Listing::Shares(shares))
    }

    /// Of these entries, or of nothing but the reason why.
    pub(crate) fn of(items: Result<Vec<DirItem>>) -> DirStream {
        DirStream(match items {
            Ok(items) => Listing::Whole(items.into_iter()),
            Err(error) => Listing::Failed(error),
        })
    }

    /// Of these entries, which are asked for when the first is.
    pub(crate) fn later(
        items: impl Future<Output = Result<Vec<DirItem>>> + Send + 'static,
    ) -> DirStream {
        DirStream(Listing::Later(Box::pin(items)))
    }

    /// The listing that this comes to.
    pub(crate) fn opening(
        listing: impl Future<Output = Result<DirStream>> + Send + 'static,
    ) -> DirStream {
        DirStream(Listing::Opening(Box::pin(listing)))
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// EACCES, ENOENT, ENOTDIR, and those of the network; the listing may be gone on with.
    pub async fn next(&mut self) -> Result<Option<DirItem>> {
        if let Listing::Later(items) = &mut self.0 {
            *self = DirStream::of(items.await);
        }
        if let Listing::Opening(listing) = &mut self.0 {
            *self = listing.await.unwrap_or_else(|error| DirStream(Listing::Failed(error)));
        }
        match &mut self.0 {
            Listing::Later(_) | Listing::Opening(_) => Ok(None),
            Listing::Shares(shares) => shares.next().await,
            Listing::Whole(items) => Ok(items.next()),
            Listing::Failed(error) => Err(error.clone()),
        }
    }
}
