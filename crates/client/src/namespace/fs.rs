//! Operations on names and attributes, each of the namespace that serves its place.

use std::time::Duration;

use bytes::Bytes;
use saker_types::policy::PolicyId;
use saker_types::wire::{At, Entry, RenameReply, rename_flags};
use saker_types::{Class, Errno, InodeId, Locator, Result};

use crate::namespace::api::Namespace;
use crate::namespace::dispatch::AnyNamespace;
use crate::namespace::listing::DirStream;
use crate::policies::PolicyAttribute;
use crate::{Caller, File, Fs, OpenFlags, SetAttr, StatFs};

/// Times that an operation is begun anew because its subtree must be held: that of a hold which has ended
/// meanwhile, and of one that is taken.
const ENTER_MAX: u32 = 8;

/// What the namespace says.
macro_rules! ask {
    ($serving:expr, $namespace:ident => $call:expr) => {
        match $serving {
            AnyNamespace::Strict($namespace) => $call,
            AnyNamespace::Decoupled(subtree) => {
                let $namespace = subtree.names();
                $call
            }
            AnyNamespace::Frozen($namespace) => $call,
            #[cfg(test)]
            AnyNamespace::InMemory($namespace) => $call,
        }
    };
}

/// What the namespace of a place says, for which `$at` stands in the call. Asked again when the client
/// has begun to hold the subtree.
macro_rules! serve {
    ($fs:expr, $who:expr, $at:ident, $namespace:ident => $call:expr) => {{
        let (mut entered, mut rounds) = (None, 0);
        loop {
            rounds += 1;
            let (serving, here) = $fs.serving($at, &entered).await?;
            let said = {
                let $at = &*here;
                here.told(serving.told(ask!(&serving, $namespace => $call)))
            };
            match said {
                Err(error) if error.is(Class::NeedsHold) && rounds < ENTER_MAX => {
                    $fs.enter(&mut entered, $who, $at, error).await?;
                }
                said => break said,
            }
        }
    }};
}

/// The same of two places.
macro_rules! serve_both {
    ($fs:expr, $who:expr, $from:ident, $to:ident, $namespace:ident => $call:expr) => {{
        let (mut entered, mut rounds) = ([None, None], 0);
        loop {
            rounds += 1;
            let (serving, from, to) = $fs.serving_both($who, [$from, $to], &mut entered).await?;
            let said = {
                let ($from, $to) = (&*from, &*to);
                from.told(serving.told(ask!(&serving, $namespace => $call)))
            };
            match said {
                Err(error) if error.is(Class::NeedsHold) && rounds < ENTER_MAX => {
                    $fs.enter_both(&mut entered, $who, [$from, $to], error).await?;
                }
                said => break said,
            }
        }
    }};
}

impl Fs {
    /// What is at a place; of a directory without its totals.
    pub async fn lookup(&self, who: &Caller, at: &At) -> Result<Entry> {
        let found = serve!(self, who, at, names => names.lookup(who, at).await)?;
        self.as_held(who, at, found).await
    }

    /// Full attributes: of a directory link count and times as of all its entries, of a file
    /// open in this client with everything that was written through it.
    pub async fn getattr(&self, who: &Caller, at: &At) -> Result<Entry> {
        let found = serve!(self, who, at, names => names.getattr(who, at).await)?;
        self.as_held(who, at, found).await
    }

    /// [`Fs::getattr`] of a directory, waiting no longer than `patience`.
    ///
    /// # Errors
    /// ETIMEDOUT then.
    pub async fn getattr_within(&self, who: &Caller, at: &At, patience: Duration) -> Result<Entry> {
        serve!(self, who, at, names => names.getattr_within(who, at, patience).await)
    }

    /// Changes attributes. What was written through this client comes before it.
    pub async fn setattr(&self, who: &Caller, at: &At, change: &SetAttr) -> Result<Entry> {
        let root = self.held_root(who, at).await?;
        let at = root.as_ref().unwrap_or(at);
        serve!(self, who, at, names => names.setattr(who, at, change).await)
    }

    /// Makes a regular file, or opens the one that is there; `mode` holds permission bits.
    pub async fn create(
        &self,
        who: &Caller,
        at: &At,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(File, Entry)> {
        serve!(self, who, at, names => names.create(who, at, mode, flags, false).await)
    }

    /// The same, for a caller that looks first at what others have put in a sticky directory.
    ///
    /// # Errors
    /// ESTALE if it is there, and belongs neither to `who` nor to the directory's owner.
    pub async fn create_warily(
        &self,
        who: &Caller,
        at: &At,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(File, Entry)> {
        serve!(self, who, at, names => names.create(who, at, mode, flags, true).await)
    }

    /// Makes a regular file without a name in a directory and opens it (O_TMPFILE). It ends with its
    /// last handle, unless [`Fs::link`] gives it a name; `flags.exclusive` forbids that.
    pub async fn tmpfile(
        &self,
        who: &Caller,
        dir: &At,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(File, Entry)> {
        serve!(self, who, dir, names => names.tmpfile(who, dir, mode, flags).await)
    }

    /// Opens what is there; `at` may be a handle (empty path).
    pub async fn open(&self, who: &Caller, at: &At, flags: OpenFlags) -> Result<(File, Entry)> {
        serve!(self, who, at, names => names.open(who, at, flags).await)
    }

    /// Makes a directory; `mode` holds permission bits.
    pub async fn mkdir(&self, who: &Caller, at: &At, mode: u32) -> Result<Entry> {
        serve!(self, who, at, names => names.mkdir(who, at, mode).await)
    }

    /// Makes a FIFO, socket, device, or a regular file without opening it; `mode` holds type and
    /// permission bits.
    pub async fn mknod(&self, who: &Caller, at: &At, mode: u32, rdev: u32) -> Result<Entry> {
        serve!(self, who, at, names => names.mknod(who, at, mode, rdev).await)
    }

    /// Makes a symbolic link.
    pub async fn symlink(&self, who: &Caller, at: &At, target: &[u8]) -> Result<Entry> {
        serve!(self, who, at, names => names.symlink(who, at, target).await)
    }

    /// Target of a symbolic link.
    pub async fn readlink(&self, who: &Caller, at: &At) -> Result<Bytes> {
        serve!(self, who, at, names => names.readlink(who, at).await)
    }

    /// Removes a name of anything but a directory. Returns what it led to.
    pub async fn unlink(&self, who: &Caller, at: &At) -> Result<InodeId> {
        serve!(self, who, at, names => names.unlink(who, at).await)
    }

    /// Removes an empty directory, and returns which. If this client holds its subtree, it ends that first.
    pub async fn rmdir(&self, who: &Caller, at: &At) -> Result<InodeId> {
        match self.rmdir_unheld(who, at).await {
            Err(error) if error.errno() == Errno::EBUSY && self.let_go(who, at).await? => {
                self.rmdir_unheld(who, at).await
            }
            other => other,
        }
    }

    async fn rmdir_unheld(&self, who: &Caller, at: &At) -> Result<InodeId> {
        serve!(self, who, at, names => names.rmdir(who, at).await)
    }

    /// rename(2); with `no_replace` it fails if the target is there. Returns the new place, and what
    /// was replaced.
    ///
    /// `to_chain`: the directories from below the root to the new parent inclusive, as the
    /// caller knows them. It matters only when a directory moves, and may be empty when
    /// `to` starts at the root: then it is looked up if it is needed.
    ///
    /// # Errors
    /// EXDEV between namespaces.
    pub async fn rename(
        &self,
        who: &Caller,
        from: &At,
        to: &At,
        no_replace: bool,
        to_chain: &[Locator],
    ) -> Result<RenameReply> {
        let flags = if no_replace { rename_flags::NOREPLACE } else { 0 };
        let chains = [&[], to_chain];
        serve_both!(self, who, from, to, names => names.rename(who, from, to, flags, chains).await)
    }

    /// renameat2(2) with RENAME_EXCHANGE: two names of any kinds change places. Returns where the
    /// inodes are now. `chains`: as in [`Fs::rename`], of both parents.
    ///
    /// # Errors
    /// EXDEV between namespaces.
    pub async fn exchange(
        &self,
        who: &Caller,
        from: &At,
        to: &At,
        chains: [&[Locator]; 2],
    ) -> Result<[Locator; 2]> {
        let flags = rename_flags::EXCHANGE;
        let reply = serve_both!(self, who, from, to, names => {
            names.rename(who, from, to, flags, chains).await
        })?;
        Ok([reply.loc, reply.other.unwrap_or_default()])
    }

    /// Links `from` (a name or an open handle's locator) as `to`.
    ///
    /// # Errors
    /// EXDEV between namespaces.
    pub async fn link(&self, who: &Caller, from: &At, to: &At) -> Result<Entry> {
        serve_both!(self, who, from, to, names => names.link(who, from, to).await)
    }

    /// access(2): 4 read, 2 write, 1 execute, 0 exists.
    pub async fn access(&self, who: &Caller, at: &At, want: u32) -> Result<()> {
        let root = self.held_root(who, at).await?;
        let at = root.as_ref().unwrap_or(at);
        serve!(self, who, at, names => names.access(who, at, want).await)
    }

    /// [`Fs::access`], waiting no longer than `patience`.
    ///
    /// # Errors
    /// ETIMEDOUT then.
    pub async fn access_within(
        &self,
        who: &Caller,
        at: &At,
        want: u32,
        patience: Duration,
    ) -> Result<()> {
        let root = self.held_root(who, at).await?;
        let at = root.as_ref().unwrap_or(at);
        serve!(self, who, at, names => names.access_within(who, at, want, patience).await)
    }

    /// Lists a directory after `cookie` (0: from the start), in an order that does not change
    /// while names come and go. `.` and `..` are not in it; cookies 1 and 2 are theirs.
    pub fn readdir(&self, who: &Caller, dir: &Locator, cookie: u64) -> DirStream {
        match self.under(dir) {
            Ok(AnyNamespace::Decoupled(subtree)) => subtree.readdir(who, dir, cookie),
            Ok(serving) => {
                let listing = ask!(serving, names => names.readdir(who, dir, cookie));
                let (subtrees, who, dir) = (self.subtrees.clone(), who.clone(), dir.clone());
                listing.or_held(cookie, move |policy, cookie| {
                    let subtree = subtrees.held(policy)?;
                    let dir = dir.clone().under(policy);
                    Ok(subtree.map(|subtree| subtree.readdir(&who, &dir, cookie)))
                })
            }
            Err(error) => DirStream::of(Err(error)),
        }
    }

    /// Value of an extended attribute; `name` with its namespace, as `user.x`. `user.saker.policy` and
    /// `user.saker.policy.KEY` are the directory's own policy (docs/policies.md).
    pub async fn getxattr(&self, who: &Caller, at: &At, name: &[u8]) -> Result<Bytes> {
        if let Some(attribute) = PolicyAttribute::of(name) {
            return self.get_policy_attribute(who, at, attribute).await;
        }
        let root = self.held_root(who, at).await?;
        let at = root.as_ref().unwrap_or(at);
        serve!(self, who, at, names => names.getxattr(who, at, name).await)
    }

    /// Sets an extended attribute: flags 1 XATTR_CREATE, 2 XATTR_REPLACE.
    pub async fn setxattr(
        &self,
        who: &Caller,
        at: &At,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<()> {
        if let Some(attribute) = PolicyAttribute::of(name) {
            return self.set_policy_attribute(who, at, attribute, value, flags).await;
        }
        let root = self.held_root(who, at).await?;
        let at = root.as_ref().unwrap_or(at);
        serve!(self, who, at, names => names.setxattr(who, at, name, value, flags).await)
    }

    /// Names of the extended attributes, each followed by a NUL. Those of policies are not among them.
    pub async fn listxattr(&self, who: &Caller, at: &At) -> Result<Bytes> {
        let root = self.held_root(who, at).await?;
        let at = root.as_ref().unwrap_or(at);
        serve!(self, who, at, names => names.listxattr(who, at).await)
    }

    /// Removes an extended attribute.
    pub async fn removexattr(&self, who: &Caller, at: &At, name: &[u8]) -> Result<()> {
        if let Some(attribute) = PolicyAttribute::of(name) {
            return self.remove_policy_attribute(who, at, attribute).await;
        }
        let root = self.held_root(who, at).await?;
        let at = root.as_ref().unwrap_or(at);
        serve!(self, who, at, names => names.removexattr(who, at, name).await)
    }

    /// What was done to the names in a directory, and answered, is durable when it returns. That is so at
    /// once but under a policy that is strong without durability (Cudele, Table 2), and in a decoupled
    /// subtree that this client holds: what it has answered is on its disk then, if the policy keeps it there.
    ///
    /// # Errors
    /// ETIMEDOUT when a shard does not answer, and those of a lookup; none for a directory that is gone.
    pub async fn fsync_dir(&self, who: &Caller, dir: &Locator) -> Result<()> {
        if dir.policy == PolicyId::FROZEN.0 {
            return Ok(());
        }
        let mut policy = dir.policy;
        if !PolicyId(policy).may_delay_flush() && !PolicyId(policy).is_decoupled() {
            // It may have been given one since.
            policy = match self.lookup(who, &At::handle(dir.clone())).await {
                Ok(entry) => entry.loc.policy,
                Err(error) if [Errno::ENOENT, Errno::ESTALE].contains(&error.errno()) => 0,
                Err(error) => return Err(error),
            };
        }
        if PolicyId(policy).may_delay_flush() {
            return self.core.cluster.sync_journals().await;
        }
        match PolicyId(policy).is_decoupled() {
            true => match self.subtrees.held(policy)? {
                Some(subtree) => subtree.sync_names().await,
                None => Ok(()),
            },
            false => Ok(()),
        }
    }

    /// What was done to names and attributes anywhere, and answered, is durable when it returns; in
    /// decoupled subtrees that this client holds, as durable as their policies let.
    ///
    /// # Errors
    /// ETIMEDOUT when a shard does not answer; EIO when the disk of a subtree's journal fails.
    pub async fn sync(&self) -> Result<()> {
        let mut outcome = Ok(());
        for subtree in self.subtrees.all() {
            outcome = outcome.and(subtree.sync_names().await);
        }
        self.core.cluster.sync_journals().await.and(outcome)
    }

    /// Capacity and use of the whole file system, at most a second old. Nodes that do not answer
    /// count with what they said last.
    ///
    /// # Errors
    /// EIO when no shard has ever answered.
    pub async fn statfs(&self) -> Result<StatFs> {
        self.core.stat_cache.statfs(&self.core.cluster).await
    }
}
