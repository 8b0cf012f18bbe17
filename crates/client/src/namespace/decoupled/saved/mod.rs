//! Journals of decoupled subtrees that are kept in the cluster (Cudele section 3.1, "Global Persist" and
//! "Stream").
//!
//! ```text
//! /.saker/journals/              only the superuser's
//!     POLICY/                    of a subtree, by the number of its policy, in hexadecimal
//!         EPOCH/                 private servers of its holder, by the epoch in which that began
//!         EPOCH.new/             the same while it is copied
//!         EPOCH.merge/           rows of a merge for the shards, which read them from the stores
//! ```
//!
//! Who takes a hold over whose lease has ended copies what the holder before has saved to a directory of its
//! own. So that one may write as long as it likes: nobody reads it any more. A directory of an epoch
//! before the first of the hold is of a hold that has ended, and is removed.

mod copy;
mod files;
mod stored;

use std::sync::Arc;

use bytes::Bytes;
use saker_types::policy::PolicyId;
use saker_types::wire::At;
use saker_types::{Class, Errno, Error, Locator, Result};

use crate::Caller;
use crate::core::Core;
use crate::namespace::api::Namespace;
use crate::namespace::strict::Strict;

pub use files::GlobalDir;
pub(super) use stored::StoredMerge;

/// Where all of it is, from the root.
pub(crate) const HOME: [&str; 2] = [".saker", "journals"];
/// Permissions of the group and of others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Times that a copy is begun anew because the holder before still wrote.
const COPIES_MAX: u32 = 16;

/// The directory in which journals of a policy's subtree are.
pub(crate) struct SavedJournals<'a> {
    core: &'a Arc<Core>,
    policy: u64,
    /// Its name.
    place: At,
    dir: Locator,
}

/// Something in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    epoch: u64,
    part: Part,
}

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Merge,
    Unfinished,
    Complete,
}

impl Part {
    const ALL: [Part; 3] = [Part::Merge, Part::Unfinished, Part::Complete];

    fn suffix(self) -> &'static str {
        match self {
            Part::Merge => ".merge",
            Part::Unfinished => ".new",
            Part::Complete => "",
        }
    }
}

impl Kept {
    fn of_name(name: &str) -> Option<Kept> {
        let (digits, suffix) = name.split_at_checked(16)?;
        let part = Part::ALL.into_iter().find(|part| part.suffix() == suffix)?;
        let kept = Kept { epoch: u64::from_str_radix(digits, 16).ok()?, part };
        (kept.name() == name).then_some(kept)
    }

    fn name(self) -> String {
        format!("{:016x}{}", self.epoch, self.part.suffix())
    }
}

impl<'a> SavedJournals<'a> {
    /// That of a subtree; it is made if it is missing.
    ///
    /// # Errors
    /// EOPNOTSUPP: it would be in a subtree that a client has for itself. Of the cluster.
    pub(crate) async fn of(core: &'a Arc<Core>, policy: u64) -> Result<SavedJournals<'a>> {
        let number = format!("{policy:016x}");
        let (mut dir, mut place) = (Locator::root(), At::default());
        for name in [HOME[0], HOME[1], &number] {
            place = At::child(dir, name.as_bytes());
            dir = directory(core, &place).await.map_err(misplaced)?;
            if PolicyId(dir.policy).is_decoupled() {
                return Err(misplaced(Error::of_class(Class::NeedsHold, Errno::EBUSY)));
            }
        }
        Ok(SavedJournals { core, policy, place, dir })
    }

    /// What the private servers of a hold are kept in that began in the epoch `first` and is now in `epoch`.
    /// Has what was saved in that hold before, if anything was.
    ///
    /// # Errors
    /// ESTALE: somebody else has the hold by now. EBUSY: somebody goes on writing. Of the cluster.
    pub(super) async fn begin(&self, first: u64, epoch: u64) -> Result<GlobalDir> {
        let mine = Kept { epoch, part: Part::Complete };
        for _ in 0..COPIES_MAX {
            let all = self.all().await?;
            if all.iter().any(|kept| kept.epoch > epoch) {
                return Err(lost());
            }
            let of_hold =
                all.iter().filter(|kept| kept.part == Part::Complete && kept.epoch >= first);
            let dir = match of_hold.max() {
                Some(newest) if *newest == mine => self.locate(mine).await?,
                Some(newest) => match self.take_over(*newest, mine).await? {
                    Some(dir) => dir,
                    None => continue,
                },
                None => directory(self.core, &self.at(mine)).await?,
            };
            self.check_held().await?;
            for kept in all.into_iter().filter(|kept| *kept != mine) {
                copy::remove_tree(self.core, &self.at(kept)).await?;
            }
            let [home, journals] = HOME;
            let label = format!("/{home}/{journals}/{:016x}/{}", self.policy, mine.name());
            return GlobalDir::of(self.core, dir, label, Some(self.policy));
        }
        let text = "what is saved of the subtree still changes";
        Err(Error::new(Errno::EBUSY).with_text(text))
    }

    /// Removes what was saved up to this epoch: it is merged, or given up.
    ///
    /// # Errors
    /// Of the cluster.
    pub(crate) async fn remove(&self, epoch: u64) -> Result<()> {
        for kept in self.all().await?.into_iter().filter(|kept| kept.epoch <= epoch) {
            copy::remove_tree(self.core, &self.at(kept)).await?;
        }
        self.remove_if_empty().await
    }

    async fn remove_if_empty(&self) -> Result<()> {
        match Strict(self.core).rmdir(&Caller::root(), &self.place).await {
            Err(error) if [Errno::ENOTEMPTY, Errno::ENOENT].contains(&error.errno()) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Copies what an earlier holder has saved; `None` if that has changed meanwhile.
    async fn take_over(&self, from: Kept, to: Kept) -> Result<Option<Locator>> {
        let unfinished = Kept { part: Part::Unfinished, ..to };
        copy::remove_tree(self.core, &self.at(unfinished)).await?;
        let new = directory(self.core, &self.at(unfinished)).await?;
        match copy::copy_tree(self.core, &self.at(from), &new).await {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            // What was there a moment ago is not any more.
            Err(error) if [Errno::ENOENT, Errno::ESTALE].contains(&error.errno()) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        self.check_held().await?;
        let (from, to) = (self.at(unfinished), self.at(to));
        let renamed = Strict(self.core).rename(&Caller::root(), &from, &to, 0, [&[], &[]]).await?;
        Ok(Some(renamed.loc))
    }

    async fn all(&self) -> Result<Vec<Kept>> {
        let mut listing = Strict(self.core).readdir(&Caller::root(), &self.dir, 0);
        let mut all = Vec::new();
        while let Some(item) = listing.next().await? {
            all.extend(std::str::from_utf8(&item.name).ok().and_then(Kept::of_name));
        }
        Ok(all)
    }

    async fn locate(&self, kept: Kept) -> Result<Locator> {
        Ok(Strict(self.core).lookup(&Caller::root(), &self.at(kept)).await?.loc)
    }

    async fn check_held(&self) -> Result<()> {
        match self.core.cluster.still_holds(self.policy).await? {
            true => Ok(()),
            false => Err(lost()),
        }
    }

    fn at(&self, kept: Kept) -> At {
        At::child(self.dir.clone(), kept.name().as_bytes())
    }
}

fn lost() -> Error {
    Error::new(Errno::ESTALE).with_text("another client holds the subtree by now")
}

/// Says it if the home is where nobody can write for all.
fn misplaced(error: Error) -> Error {
    if !error.is(Class::NeedsHold) && error.errno() != Errno::EBUSY {
        return error;
    }
    let text = "the journal of the subtree would be in /.saker/journals, which is in a subtree that a \
                client has for itself";
    Error::new(Errno::EOPNOTSUPP).with_text(text)
}

/// What others may put there would be merged in the superuser's name.
fn of_others(path: &[Bytes]) -> Error {
    let name = path.last().map(|name| String::from_utf8_lossy(name)).unwrap_or_default();
    let text = format!("journals in /.saker: others than the superuser may write to {name:?}");
    Error::new(Errno::EACCES).with_text(text)
}

/// A directory, which is made if it is missing; only the superuser may write there.
async fn directory(core: &Arc<Core>, at: &At) -> Result<Locator> {
    let (names, root) = (Strict(core), Caller::root());
    loop {
        match names.lookup(&root, at).await {
            Ok(found) if found.attr.is_dir() => {
                return match found.attr.uid == 0 && found.attr.mode & WRITABLE_BY_OTHERS == 0 {
                    true => Ok(found.loc),
                    false => Err(of_others(&at.path)),
                };
            }
            Ok(_) => return Err(Errno::ENOTDIR.into()),
            Err(error) if error.errno() == Errno::ENOENT => {}
            Err(error) => return Err(error),
        }
        match names.mkdir(&root, at, 0o700).await {
            Ok(made) => return Ok(made.loc),
            // Somebody else has made it meanwhile.
            Err(error) if error.errno() == Errno::EEXIST => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_say_the_epoch_and_what_is_complete() {
        for epoch in [1, 0x1f, u64::MAX] {
            for part in Part::ALL {
                let kept = Kept { epoch, part };
                assert_eq!(Kept::of_name(&kept.name()), Some(kept));
            }
        }
        for other in
            ["", "1", ".new", "000000000000001G", "000000000000001F", "0000000000000001.old"]
        {
            assert_eq!(Kept::of_name(other), None, "{other}");
        }
        let of = |name| Kept::of_name(name).unwrap();
        assert!(of("0000000000000010") > of("000000000000000f.new"));
    }
}
