//! Of a merge, what concerns directories and files with several names that were there before: ordinary
//! operations, as anybody does them.

use saker_meta::private::MergedRow;
use saker_types::wire::{At, EntryKey};
use saker_types::{Attr, Class, Errno, Inode, Locator, Result};

use super::plan::Later;
use crate::namespace::api::Namespace;
use crate::namespace::decoupled::Subtree;
use crate::namespace::strict::Strict;
use crate::{Caller, SetAttr, SetTime};

impl Subtree {
    /// Does what are ordinary operations. Tells how many cannot be done.
    pub(super) async fn do_later(&self, later: Vec<(Later, Vec<MergedRow>)>) -> Result<u64> {
        // What else is done in a directory changes its times.
        let is_last = |(one, _): &(Later, _)| matches!(one, Later::Change(..));
        let (last, first): (Vec<_>, Vec<_>) = later.into_iter().partition(is_last);
        Ok(self.do_in_turn(first).await? + self.do_in_turn(last).await?)
    }

    /// A directory that is not empty yet comes after those in it.
    async fn do_in_turn(&self, mut later: Vec<(Later, Vec<MergedRow>)>) -> Result<u64> {
        let mut kept_back = 0;
        loop {
            let (before, mut left) = (later.len(), Vec::new());
            for (one, merged) in later {
                match self.do_one(&one).await {
                    Err(error) if error.errno() == Errno::ENOTEMPTY => {
                        left.push((one, merged));
                        continue;
                    }
                    Err(error)
                        if matches!(one, Later::Home(..)) && error.errno() == Errno::EXDEV =>
                    {
                        kept_back += 1;
                        continue;
                    }
                    // It was done by an earlier attempt, or by somebody else.
                    Err(error) if error.errno() == Errno::ENOENT || error.is(Class::Elsewhere) => {}
                    other => other.map_err(|error| self.lost(error))?,
                }
                self.servers.mark_merged(merged.into()).await?;
            }
            if left.is_empty() {
                return Ok(kept_back);
            }
            if left.len() == before {
                for (one, _) in left {
                    tracing::warn!("{one:?}: others have put something there, so it stays");
                }
                return Ok(kept_back);
            }
            later = left;
        }
    }

    async fn do_one(&self, later: &Later) -> Result<()> {
        let names = Strict(&self.upstream);
        let holder = &self.holder();
        match later {
            Later::Rmdir(key, id) => {
                let mut at = At::child(self.parent_of(key).await?, &key.name);
                // Somebody may have made another one of this name.
                at.expect_last(*id);
                names.rmdir(holder, &at).await?;
                let mut dirs = self.dirs();
                dirs.known.remove(id);
                dirs.unloaded.remove(id);
                Ok(())
            }
            Later::Change(key, row) => self.change_dir(holder, key, row).await,
            Later::Home(home, row) => self.change_home(holder, home, row).await,
            Later::Unlink(key) => {
                let parent = self.parent_of(key).await?;
                names.unlink(holder, &At::child(parent, &key.name)).await.map(drop)
            }
        }
    }

    /// Where the directory of a name is.
    ///
    /// # Errors
    /// ENOENT: it was removed by this merge, or by others.
    async fn parent_of(&self, key: &EntryKey) -> Result<Locator> {
        self.place_of(key.pid).await.map_err(|_| Errno::ENOENT.into())
    }

    /// Gives a file that had several names before the attributes that it has here.
    ///
    /// # Errors
    /// EXDEV if its data has changed, too: that cannot be merged.
    async fn change_home(&self, holder: &Caller, home: &Locator, row: &Inode) -> Result<()> {
        let names = Strict(&self.upstream);
        let at = At::handle(home.clone());
        let (before, attr) = (names.getattr(holder, &at).await?.attr, &row.attr);
        if attr.size != before.size || attr.data_version != before.data_version {
            return Err(Errno::EXDEV.into());
        }
        let change = changed(attr, &before);
        if change != SetAttr::default() {
            names.setattr(holder, &at, &change).await?;
        }
        Ok(())
    }

    /// Gives a directory that was there before the attributes that it has here.
    async fn change_dir(&self, holder: &Caller, key: &EntryKey, row: &Inode) -> Result<()> {
        let names = Strict(&self.upstream);
        let at =
            At::handle(Locator::entry(key.pid, key.name.clone(), row.attr.id).under(self.policy));
        let before = names.getattr(holder, &at).await?.attr;
        let change = changed(&row.attr, &before);
        if change != SetAttr::default() {
            names.setattr(holder, &at, &change).await?;
        }
        let old = names.listxattr(holder, &at).await?;
        for name in old.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            if !row.xattrs.iter().any(|xattr| xattr.name == name) {
                names.removexattr(holder, &at, name).await?;
            }
        }
        for xattr in &row.xattrs {
            if names.getxattr(holder, &at, &xattr.name).await.ok().as_ref() != Some(&xattr.value) {
                names.setxattr(holder, &at, &xattr.name, &xattr.value, 0).await?;
            }
        }
        Ok(())
    }
}

/// What setattr must change.
fn changed(new: &Attr, old: &Attr) -> SetAttr {
    let differs = |new: u32, old: u32| (new != old).then_some(new);
    SetAttr {
        mode: differs(new.mode & 0o7777, old.mode & 0o7777),
        uid: differs(new.uid, old.uid),
        gid: differs(new.gid, old.gid),
        atime: (new.atime_ns != old.atime_ns).then_some(SetTime::At(new.atime_ns)),
        mtime: (new.mtime_ns != old.mtime_ns).then_some(SetTime::At(new.mtime_ns)),
        ..SetAttr::default()
    }
}
