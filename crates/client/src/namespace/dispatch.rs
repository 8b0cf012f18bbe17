//! Which namespace serves a place: by the policy that is in force at its anchor, or, for a place that
//! is named from the root on, by its first names.
//!
//! A server tells the policy with each place that it resolves ([`Locator::policy`]), and whoever goes
//! on from there brings it back. So there is no table of directories here: only of namespaces.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use saker_types::policy::PolicyId;
use saker_types::wire::{At, Entry};
use saker_types::{Access, Class, Errno, Error, Locator, ROOT, Result};

use crate::namespace::api::Namespace;
use crate::namespace::decoupled::Subtree;
use crate::namespace::frozen::{self, FrozenNamespace};
use crate::namespace::strict::Strict;
#[cfg(test)]
use crate::namespace::tests::in_memory::InMemory;
use crate::{Caller, Fs};

/// The policy of directories for which none was set.
const STRICT: u64 = PolicyId::NONE.0;

/// A namespace that serves a place.
#[derive(Clone)]
pub(crate) enum AnyNamespace<'a> {
    /// That of the shards.
    Strict(Strict<'a>),
    /// Of a decoupled subtree that this client holds.
    Decoupled(Arc<Subtree>),
    /// Of frozen datasets.
    Frozen(FrozenNamespace<'a>),
    /// For tests of this seam.
    #[cfg(test)]
    InMemory(Arc<InMemory>),
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

/// Where a place enters a decoupled subtree, as was found out: so many of its names lead to this
/// directory, the root of the subtree, or its anchor is in it.
pub(crate) struct Entered {
    pub(crate) names: usize,
    pub(crate) from: Locator,
}

impl Fs {
    /// The namespace that serves a place. `entered`: what [`Fs::enter`] has found out about it.
    ///
    /// # Errors
    /// Those of reading what was there before a subtree was decoupled.
    pub(super) async fn serving<'a>(
        &'a self,
        at: &'a At,
        entered: &Option<Entered>,
    ) -> Result<(AnyNamespace<'a>, Here<'a>)> {
        if at.anchor.id == ROOT && at.path.first().is_some_and(|name| name == frozen::NAME) {
            let here = enter(frozen::root(), 1, at)?;
            return Ok((AnyNamespace::Frozen(FrozenNamespace { fs: self }), here));
        }
        if let Some(Entered { names, from }) = entered {
            let here = enter(from.clone(), *names, at)?;
            let serving = self.under(from)?;
            return ready(serving, here).await;
        }
        if at.anchor.policy != STRICT {
            let here = Here { at: Cow::Borrowed(at), above: 0 };
            return ready(self.under(&at.anchor)?, here).await;
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
    /// EXDEV if that are two; others as there.
    pub(super) async fn serving_both<'a>(
        &'a self,
        who: &Caller,
        places: [&'a At; 2],
        entered: &mut [Option<Entered>; 2],
    ) -> Result<(AnyNamespace<'a>, Here<'a>, Here<'a>)> {
        loop {
            let (serving, from) = self.serving(places[0], &entered[0]).await?;
            let (other, to) = self.serving(places[1], &entered[1]).await?;
            if serving.is_same(&other) {
                return Ok((serving, from, to));
            }
            // One is known to be in a subtree, and the names of the other may lead into it.
            let (outside, subtree) = match (&serving, &other) {
                (AnyNamespace::Decoupled(subtree), AnyNamespace::Strict(_)) => (1, subtree),
                (AnyNamespace::Strict(_), AnyNamespace::Decoupled(subtree)) => (0, subtree),
                _ => return Err(Errno::EXDEV.into()),
            };
            let policy = subtree.policy();
            if entered[outside].is_some() {
                return Err(Errno::EXDEV.into());
            }
            match Strict(&self.core).lookup(who, places[outside]).await {
                Err(error) if error.is(Class::NeedsHold) && error.policy == policy => {
                    let found = self.entered(who, places[outside], policy, error.component).await?;
                    entered[outside] = Some(found);
                }
                _ => return Err(Errno::EXDEV.into()),
            }
        }
    }

    /// The namespace that serves what is under the policy in force at a locator.
    ///
    /// # Errors
    /// ESTALE: this client has lost its hold of the subtree.
    pub(super) fn under(&self, loc: &Locator) -> Result<AnyNamespace<'_>> {
        let policy = loc.policy;
        if policy == frozen::POLICY {
            return Ok(AnyNamespace::Frozen(FrozenNamespace { fs: self }));
        }
        if PolicyId(policy).is_decoupled()
            && let Some(subtree) = self.subtrees.held(policy)?
        {
            return Ok(AnyNamespace::Decoupled(subtree));
        }
        let found = self.namespaces.find(|namespace| namespace.root.policy == policy);
        // The shards serve what this client does not hold, and say if it must.
        Ok(found.map_or_else(|| self.strict(), |namespace| namespace.serving))
    }

    fn strict(&self) -> AnyNamespace<'_> {
        AnyNamespace::Strict(Strict(&self.core))
    }

    /// A change was refused since nobody holds the subtree, or a place is in one that this client holds and
    /// has named from elsewhere: afterwards it holds the subtree, and `entered` says where the place enters it.
    ///
    /// # Errors
    /// EBUSY: another client holds it.
    pub(super) async fn enter(
        &self,
        entered: &mut Option<Entered>,
        who: &Caller,
        at: &At,
        refused: Error,
    ) -> Result<()> {
        let policy = refused.policy;
        self.may_hold(policy, who, &[at]).await?;
        self.hold_subtree(policy).await?;
        if PolicyId(policy).is_decoupled() {
            *entered = Some(self.entered(who, at, policy, refused.component).await?);
        }
        Ok(())
    }

    /// The same of two places.
    pub(super) async fn enter_both(
        &self,
        entered: &mut [Option<Entered>; 2],
        who: &Caller,
        places: [&At; 2],
        refused: Error,
    ) -> Result<()> {
        let policy = refused.policy;
        self.may_hold(policy, who, &places).await?;
        self.hold_subtree(policy).await?;
        if !PolicyId(policy).is_decoupled() {
            return Ok(());
        }
        for (entered, at) in entered.iter_mut().zip(places) {
            // Which of both was meant the answer does not say.
            match Strict(&self.core).lookup(who, at).await {
                Err(error) if error.is(Class::NeedsHold) => {
                    *entered = Some(self.entered(who, at, policy, error.component).await?);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Before a decoupled subtree is held for somebody who changes something there: may he, as far as the
    /// cluster knows? The private servers look again.
    ///
    /// # Errors
    /// EACCES, and those of looking.
    async fn may_hold(&self, policy: u64, who: &Caller, places: &[&At]) -> Result<()> {
        if who.uid == 0 || !PolicyId(policy).is_decoupled() || self.subtrees.held(policy)?.is_some()
        {
            return Ok(());
        }
        for at in places {
            if self.may_change(who, at).await? {
                return Ok(());
            }
        }
        Err(Errno::EACCES.into())
    }

    /// May somebody change what is at a place, or its name?
    async fn may_change(&self, who: &Caller, at: &At) -> Result<bool> {
        let names = Strict(&self.core);
        let is_fine = |asked: Result<()>| match asked {
            Ok(()) => Ok(true),
            Err(error) if [Errno::EACCES, Errno::EPERM, Errno::EROFS].contains(&error.errno()) => {
                Ok(false)
            }
            Err(error) => Err(error),
        };
        match names.lookup(who, at).await {
            Ok(found) if found.attr.uid == who.uid => return Ok(true),
            Ok(_) if is_fine(names.access(who, at, Access::W.0).await)? => return Ok(true),
            Ok(_) => {}
            Err(error) if error.errno() == Errno::ENOENT => {}
            // Somebody has held it who may be dead.
            Err(error) if error.errno() == Errno::EBUSY => return Ok(true),
            Err(error) => return Err(error),
        }
        let Some((_, above)) = at.path.split_last() else { return Ok(false) };
        let mut parent = At::below(at.anchor.clone(), above.to_vec());
        parent.expect = at.expect.iter().take(above.len()).copied().collect();
        is_fine(names.access(who, &parent, Access::W.0 | Access::X.0).await)
    }

    /// The root of a subtree that this client holds, as its own servers know it, if that is at a place to which the
    /// way leads through the cluster: nothing on it is in the subtree.
    ///
    /// # Errors
    /// Why this client does not serve the subtree any more.
    pub(super) async fn held_root(&self, who: &Caller, at: &At) -> Result<Option<At>> {
        let held = self.subtrees.all();
        let is_outside = |subtree: &&Arc<Subtree>| at.anchor.policy != subtree.policy();
        let Some(last) = at.path.last() else {
            let root = held.iter().filter(is_outside).find(|subtree| subtree.is_root(at.anchor.id));
            return Ok(root.map(|subtree| At::handle(subtree.root().clone())));
        };
        if !held.iter().filter(is_outside).any(|subtree| subtree.root().name == *last) {
            return Ok(None);
        }
        // Whatever it is, the operation itself says it.
        let Ok(found) = Strict(&self.core).lookup(who, at).await else { return Ok(None) };
        let subtree = self.subtrees.held(found.loc.policy)?;
        let is_root = subtree.is_some_and(|subtree| subtree.is_root(found.attr.id));
        Ok(is_root.then(|| At::handle(found.loc)))
    }

    /// What was found, by way of the cluster, is the root of a subtree that this client holds? Then as its own
    /// servers show it.
    pub(super) async fn as_held(&self, who: &Caller, at: &At, found: Entry) -> Result<Entry> {
        let policy = found.loc.policy;
        if !PolicyId(policy).is_decoupled() || at.anchor.policy == policy {
            return Ok(found);
        }
        match self.subtrees.held(policy)? {
            Some(subtree) if subtree.is_root(found.attr.id) => {
                subtree.names().getattr(who, &At::handle(found.loc)).await
            }
            _ => Ok(found),
        }
    }

    /// Where a place enters a subtree, whose root component `root` leads to; `None`: it is at its anchor
    /// or above.
    async fn entered(
        &self,
        who: &Caller,
        at: &At,
        policy: u64,
        root: Option<u32>,
    ) -> Result<Entered> {
        let Some(root) = root else {
            return Ok(Entered { names: 0, from: at.anchor.clone().under(policy) });
        };
        let names = root as usize + 1;
        let mut way = at.clone();
        way.path.truncate(names);
        way.expect.truncate(names);
        way.keep_ms.truncate(names);
        let entry = Strict(&self.core).lookup(who, &way).await?;
        match entry.loc.policy == policy {
            true => Ok(Entered { names, from: entry.loc }),
            false => Err(Error::retry("the subtree has another policy by now")),
        }
    }
}

/// A namespace that has at hand what the operation needs.
async fn ready<'a>(
    serving: AnyNamespace<'a>,
    here: Here<'a>,
) -> Result<(AnyNamespace<'a>, Here<'a>)> {
    if let AnyNamespace::Decoupled(subtree) = &serving {
        subtree.provide_ids().await?;
        subtree.load_way(&here).await?;
    }
    Ok((serving, here))
}

impl AnyNamespace<'_> {
    /// What a namespace has said while it has ended.
    pub(super) fn told<T>(&self, said: Result<T>) -> Result<T> {
        match (self, said) {
            (AnyNamespace::Decoupled(subtree), Err(error)) => {
                Err(subtree.why_ended().unwrap_or(error))
            }
            (_, said) => said,
        }
    }

    fn is_same(&self, other: &AnyNamespace<'_>) -> bool {
        use AnyNamespace::*;
        match (self, other) {
            (Decoupled(one), Decoupled(other)) => Arc::ptr_eq(one, other),
            (Strict(_), Strict(_)) | (Frozen(_), Frozen(_)) => true,
            #[cfg(test)]
            (InMemory(one), InMemory(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
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
