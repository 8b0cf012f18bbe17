//! Listings, whatever namespace they are of.

use futures_util::future::BoxFuture;
use saker_types::{Class, Error, Result};

use crate::DirItem;
use crate::namespace::strict::readdir::Shares;

/// A listing under way.
pub struct DirStream {
    listing: Listing,
    /// Cookie of the last entry.
    last: u64,
    goes_on: Option<Box<GoesOn>>,
}

/// A listing goes on after a cookie where the subtree of a policy is served by now, if it is known where.
type GoesOn = dyn Fn(u64, u64) -> Result<Option<DirStream>> + Send + Sync;

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
        DirStream::new(Listing::Shares(shares))
    }

    /// Of these entries, or of nothing but the reason why.
    pub(crate) fn of(items: Result<Vec<DirItem>>) -> DirStream {
        DirStream::new(match items {
            Ok(items) => Listing::Whole(items.into_iter()),
            Err(error) => Listing::Failed(error),
        })
    }

    /// Of these entries, which are asked for when the first is.
    pub(crate) fn later(
        items: impl Future<Output = Result<Vec<DirItem>>> + Send + 'static,
    ) -> DirStream {
        DirStream::new(Listing::Later(Box::pin(items)))
    }

    /// The listing that this comes to.
    pub(crate) fn opening(
        listing: impl Future<Output = Result<DirStream>> + Send + 'static,
    ) -> DirStream {
        DirStream::new(Listing::Opening(Box::pin(listing)))
    }

    fn new(listing: Listing) -> DirStream {
        DirStream { listing, last: 0, goes_on: None }
    }

    /// If this client takes the hold of a decoupled subtree meanwhile, the listing, which begins after `cookie`,
    /// goes on as this says.
    pub(crate) fn or_held(
        self,
        cookie: u64,
        goes_on: impl Fn(u64, u64) -> Result<Option<DirStream>> + Send + Sync + 'static,
    ) -> DirStream {
        DirStream { last: cookie, goes_on: Some(Box::new(goes_on)), ..self }
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// EACCES, ENOENT, ENOTDIR, and those of the network; the listing may be gone on with.
    pub async fn next(&mut self) -> Result<Option<DirItem>> {
        let next = match self.next_here().await {
            Err(error) if error.is(Class::NeedsHold) => match &self.goes_on {
                Some(goes_on) => match goes_on(error.policy, self.last)? {
                    Some(listing) => {
                        *self = listing;
                        self.next_here().await?
                    }
                    None => return Err(error),
                },
                None => return Err(error),
            },
            other => other?,
        };
        self.last = next.as_ref().map_or(self.last, |item| item.cookie);
        Ok(next)
    }

    async fn next_here(&mut self) -> Result<Option<DirItem>> {
        if let Listing::Later(items) = &mut self.listing {
            *self = DirStream::of(items.await);
        }
        if let Listing::Opening(listing) = &mut self.listing {
            *self = listing.await.unwrap_or_else(|error| DirStream::new(Listing::Failed(error)));
        }
        match &mut self.listing {
            Listing::Later(_) | Listing::Opening(_) => Ok(None),
            Listing::Shares(shares) => shares.next().await,
            Listing::Whole(items) => Ok(items.next()),
            Listing::Failed(error) => Err(error.clone()),
        }
    }
}
