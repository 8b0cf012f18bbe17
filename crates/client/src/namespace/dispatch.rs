//! Which namespace serves a place: by the policy that is in force at its anchor, or, for a place that
//! is named from the root on, by its first names.
//!
//! A server tells the policy with each place that it resolves ([`Locator::policy`]), and whoever goes
//! on from there brings it back. So there is no table of directories here: only of namespaces.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use bytes::Bytes;
use saker_types::policy::PolicyId;
use saker_types::wire::At;
use saker_types::{Errno, Error, Locator, ROOT, Result};

use crate::Fs;
use crate::namespace::frozen::{self, FrozenNamespace};
use crate::namespace::strict::Strict;
#[cfg(test)]
use crate::namespace::tests::in_memory::InMemory;

/// The policy of directories for which none was set.
const STRICT: u64 = PolicyId::NONE.0;

/// A namespace that serves a place.
#[derive(Clone)]
pub(crate) enum AnyNamespace<'a> {
    /// That of the shards.
    Strict(Strict<'a>),
    /// Of frozen datasets.
    Frozen(FrozenNamespace<'a>),
    /// For tests of this seam.
    #[cfg(test)]
    InMemory(std::sync::Arc<InMemory>),
}

/// A namespace beside the strict one.
#[derive(Clone)]
pub(crate) struct Attached {
    /// Its root directory, with the policy by which all that is in it is known.
    pub(crate) root: Locator,
    /// The names from the root of the file system to it.
    pub(crate) place: Vec<Bytes>,
    pub(crate) serving: AnyNamespace<'static>,
}

/// The namespaces of a client beside the strict one.
#[derive(Default)]
pub(crate) struct Namespaces {
    attached: RwLock<Vec<Attached>>,
    is_any: AtomicBool,
}

impl Namespaces {
    /// From now on it serves its place, and what is under its policy.
    #[cfg_attr(not(test), expect(dead_code, reason = "the strict namespace is the only one yet"))]
    pub(crate) fn attach(&self, namespace: Attached) {
        self.attached.write().unwrap_or_else(PoisonError::into_inner).push(namespace);
        self.is_any.store(true, Ordering::Release);
    }

    fn find(&self, is_it: impl Fn(&Attached) -> bool) -> Option<Attached> {
        if !self.is_any.load(Ordering::Acquire) {
            return None;
        }
        let attached = self.attached.read().unwrap_or_else(PoisonError::into_inner);
        attached.iter().find(|namespace| is_it(namespace)).cloned()
    }
}

/// A place as the namespace that serves it sees it.
pub(crate) struct Here<'a> {
    at: Cow<'a, At>,
    /// Names that lead to the namespace.
    above: usize,
}

impl Deref for Here<'_> {
    type Target = At;

    fn deref(&self) -> &At {
        &self.at
    }
}

impl Here<'_> {
    /// What the namespace said, as of the place that the caller named.
    pub(crate) fn told<T>(&self, said: Result<T>) -> Result<T> {
        match self.above {
            0 => said,
            above => said.map_err(|error| {
                let component = error.component.map(|component| component + above as u32);
                Error { component, ..error }
            }),
        }
    }
}

impl Fs {
    /// The namespace that serves a place.
    ///
    /// # Errors
    /// ESTALE if it must be another one than it is.
    pub(super) fn serving<'a>(&'a self, at: &'a At) -> Result<(AnyNamespace<'a>, Here<'a>)> {
        if at.anchor.id == ROOT && at.path.first().is_some_and(|name| name == frozen::NAME) {
            let here = enter(frozen::root(), 1, at)?;
            return Ok((AnyNamespace::Frozen(FrozenNamespace { fs: self }), here));
        }
        if at.anchor.policy != STRICT {
            return Ok((self.under(&at.anchor)?, Here { at: Cow::Borrowed(at), above: 0 }));
        }
        let leads_there =
            |namespace: &Attached| at.anchor.id == ROOT && at.path.starts_with(&namespace.place);
        match self.namespaces.find(leads_there) {
            None => Ok((self.strict(), Here { at: Cow::Borrowed(at), above: 0 })),
            Some(Attached { root, place, serving }) => Ok((serving, enter(root, place.len(), at)?)),
        }
    }

    /// The namespace that serves both places of one operation.
    ///
    /// # Errors
    /// EXDEV if that are two; ESTALE as there.
    pub(super) fn serving_both<'a>(
        &'a self,
        from: &'a At,
        to: &'a At,
    ) -> Result<(AnyNamespace<'a>, Here<'a>, Here<'a>)> {
        let (serving, from) = self.serving(from)?;
        let (other, to) = self.serving(to)?;
        match (&serving, &other) {
            // The servers judge what may move between policies.
            (AnyNamespace::Strict(_), AnyNamespace::Strict(_)) => Ok((serving, from, to)),
            _ if from.anchor.policy == to.anchor.policy => Ok((serving, from, to)),
            _ => Err(Errno::EXDEV.into()),
        }
    }

    /// The namespace that serves what is under the policy in force at a locator.
    pub(super) fn under(&self, loc: &Locator) -> Result<AnyNamespace<'_>> {
        let policy = loc.policy;
        match policy {
            STRICT => return Ok(self.strict()),
            frozen::POLICY => return Ok(AnyNamespace::Frozen(FrozenNamespace { fs: self })),
            _ => {}
        }
        let found = self.namespaces.find(|namespace| namespace.root.policy == policy);
        // The shards serve what this client does not hold, and say if it must.
        Ok(found.map_or_else(|| self.strict(), |namespace| namespace.serving))
    }

    fn strict(&self) -> AnyNamespace<'_> {
        AnyNamespace::Strict(Strict(&self.core))
    }
}

/// A place from the root of the namespace that its first names lead to.
fn enter<'a>(root: Locator, above: usize, at: &At) -> Result<Here<'a>> {
    let expected = above.checked_sub(1).and_then(|last| at.expect.get(last)).copied();
    if expected.is_some_and(|id| id != 0 && id != root.id) {
        return Err(Error::elsewhere(above - 1));
    }
    // No name on the way there is kept by anybody.
    let mut here = At::below(root, at.path[above..].to_vec());
    here.expect = at.expect.get(above..).unwrap_or_default().to_vec();
    Ok(Here { at: Cow::Owned(here), above })
}
