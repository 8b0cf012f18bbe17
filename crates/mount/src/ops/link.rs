//! UNLINK, RMDIR, RENAME, LINK.

use bytes::Bytes;
use saker_client::Caller;
use saker_fuse::abi::{LinkIn, Rename2In, RenameIn};
use saker_fuse::{Body, Reply, Request};
use saker_runtime::sim::mutation;
use saker_types::error::SECOND_PATH;
use saker_types::limits::COMPONENTS_MAX;
use saker_types::wire::{At, rename_flags};
use saker_types::{Class, Errno, Error, InodeId, Locator, ROOT, Result, check_name};

use crate::caller::WithCaller as _;
use crate::names::hint::Which;
use crate::names::nodes::FuseNodeId;
use crate::service::MountService;

/// Times that the directories above a rename's names may be found elsewhere while it is tried.
const MOVES_MAX: usize = 20;

/// What the kernel thinks that a name leads to.
struct Told {
    node: FuseNodeId,
    /// The directory that it must lead to; 0: anything.
    expected: InodeId,
}

impl MountService {
    pub(crate) async fn unlink(&self, request: &Request) -> Result<Reply> {
        let (dir, name) = (request.header.nodeid, request.body().name()?);
        let named = self.named(request, dir, &name)?;
        let removed = self.fs.unlink(&named.for_caller(request.caller()), &named.at).await?;
        self.removed(dir, &name, removed).await;
        Ok(Reply::done())
    }

    async fn removed(&self, dir: FuseNodeId, name: &Bytes, inode: InodeId) {
        let unaware = self.nodes.unaware(inode, dir, name);
        self.nodes.vanished(dir, name);
        self.tell_of_a_name_less(unaware).await;
    }

    /// The kernel would tell the old link count for as long as it may keep the attributes.
    async fn tell_of_a_name_less(&self, unaware: Option<FuseNodeId>) {
        if let Some(node) = unaware {
            // What was asked before counts no more, either.
            drop(self.changes.begin());
            self.drop_attributes(node).await;
        }
    }

    pub(crate) async fn rmdir(&self, request: &Request) -> Result<Reply> {
        let (dir, name) = (request.header.nodeid, request.body().name()?);
        check_name(&name)?;
        // Without a lease: its answer comes from the coordinator, which gives none.
        let mut at = self.nodes.child(&self.threads.way(&request.header, dir), &name)?;
        let contended = self.nodes.is_contended_name(dir, &name);
        let told = self.told(request, dir, &name);
        at.expect_last(told.expected);
        let removed = self.fs.rmdir(&request.caller(), &at).await;
        let removed = removed.inspect_err(|error| {
            self.misled(request, (dir, &name), &at, &told, error);
        })?;
        self.nodes.changed_itself(contended);
        self.nodes.buried(told.node, removed);
        self.removed(dir, &name, removed).await;
        Ok(Reply::done())
    }

    /// What the kernel thinks that a name leads to. It will do nothing any more in a directory that it
    /// thinks removed, so that no other one must go; but if the name leads elsewhere again in its second
    /// walk, that one goes.
    fn told(&self, request: &Request, dir: FuseNodeId, name: &Bytes) -> Told {
        let tid = request.header.pid;
        let node = self.threads.told_last(tid, dir, name);
        let node = node.or_else(|| self.nodes.of_name(dir, name)).unwrap_or_default();
        let asked = self.threads.way(&request.header, dir).is_found();
        let again = self.threads.was_elsewhere(tid, dir, name) || asked;
        let expected = match again || mutation("a directory that is taken for removed") {
            true => 0,
            false => self.nodes.known_dir(node),
        };
        Told { node, expected }
    }

    /// A name was not removed, or not replaced: because it leads elsewhere?
    fn misled(
        &self,
        request: &Request,
        (dir, name): (FuseNodeId, &Bytes),
        at: &At,
        told: &Told,
        error: &Error,
    ) {
        let component = error.component.map(|at| (at & !SECOND_PATH) as usize + 1);
        if error.is(Class::Elsewhere) && component == Some(at.path.len()) {
            self.threads.is_elsewhere(request.header.pid, dir, name);
            self.nodes.misled(told.node);
        }
    }

    pub(crate) async fn rename(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let input: RenameIn = body.fixed()?;
        self.rename_to(request, body, input.newdir, 0).await
    }

    pub(crate) async fn rename2(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let input: Rename2In = body.fixed()?;
        match input.flags {
            0 | rename_flags::NOREPLACE | rename_flags::EXCHANGE => {
                self.rename_to(request, body, input.newdir, input.flags).await
            }
            _ => Err(Error::new(Errno::EINVAL)),
        }
    }

    async fn rename_to(
        &self,
        request: &Request,
        mut names: Body<'_>,
        to_dir: FuseNodeId,
        flags: u32,
    ) -> Result<Reply> {
        let from_dir = request.header.nodeid;
        let (from_name, to_name) = (names.name()?, names.name()?);
        let places = || {
            let from = self.renamed(request, Which::First, from_dir, &from_name)?;
            Result::Ok((from, self.renamed(request, Which::Second, to_dir, &to_name)?))
        };
        let who = request.caller();
        let on_the_way = |error: Error| {
            let (which, dir) = match error.is_about_second() {
                true => (Which::Second, to_dir),
                false => (Which::First, from_dir),
            };
            self.on_this_way(&self.threads.way_of(&request.header, which, dir), error)
        };
        let names = [(from_dir, &from_name), (to_dir, &to_name)];
        let contended = names.map(|(dir, name)| self.nodes.is_contended_name(dir, name));
        self.nodes.changed_in(to_dir);
        let told = self.told(request, to_dir, &to_name);
        let replaces = flags != rename_flags::EXCHANGE;
        if replaces && (from_dir, &from_name) == (to_dir, &to_name) && told.expected != 0 {
            // The kernel has looked up one name twice, and found two inodes: of one it thinks that it is
            // replaced.
            self.threads.is_elsewhere(request.header.pid, to_dir, &to_name);
            return Err(Errno::ESTALE.into());
        }
        let moves_dir = self.nodes.of_name(from_dir, &from_name).map(|id| self.nodes.known_dir(id));
        if moves_dir.is_some_and(|id| id != 0) {
            // Its `..` leads there. If that cannot be told, the rename itself says why.
            let _ = self.locate(to_dir).await;
        }
        let change = async |from: &At, to: &At, expected: InodeId| {
            let to_chain = self.chain(to_dir, to).await;
            if flags == rename_flags::EXCHANGE {
                let from_chain = self.chain(from_dir, from).await;
                let moved = self.fs.exchange(&who, from, to, [&from_chain, &to_chain]).await?;
                self.nodes.exchanged(names, &moved);
            } else {
                let no_replace = flags == rename_flags::NOREPLACE;
                let mut to = to.clone();
                to.expect_last(expected);
                let moved = self.fs.rename(&who, from, &to, no_replace, &to_chain).await;
                let moved = moved.inspect_err(|error| {
                    self.misled(request, (to_dir, &to_name), &to, &told, error);
                })?;
                self.nodes.buried(told.node, moved.replaced);
                let unaware = self.nodes.unaware(moved.replaced, to_dir, &to_name);
                self.nodes.renamed(names, &moved.loc);
                self.tell_of_a_name_less(unaware).await;
            }
            Result::Ok(())
        };
        let attempt = async || {
            let (from, to) = self.unlocked(places, [&from_name, &to_name]).await?;
            change(&from, &to, told.expected).await
        };
        let is_moved =
            |error: &Error| error.errno() == Errno::ESTALE && !error.is(Class::Elsewhere);
        let mut renamed = attempt().await;
        for _ in 0..MOVES_MAX {
            if !renamed.as_ref().is_err_and(is_moved) {
                break;
            }
            // Has another client moved a directory above one of them?
            let (from, to) = places()?;
            let moved =
                [self.find_again(from_dir, &from).await, self.find_again(to_dir, &to).await];
            if !moved.contains(&true) {
                break;
            }
            renamed = attempt().await;
        }
        if renamed.as_ref().is_err_and(is_moved)
            && let Some(from) = self.by_names(request, Which::First, from_dir, &from_name)
            && let Some(to) = self.by_names(request, Which::Second, to_dir, &to_name)
        {
            // One of the directories has gone where nobody here knows it, or for good. Each name was
            // found: the kernel would not walk again. What they lead to by now counts as well.
            renamed = change(&from, &to, 0).await;
        }
        self.nodes.changed_itself(renamed.is_ok() && contended.contains(&true));
        renamed.map(|()| Reply::done()).map_err(on_the_way)
    }

    fn by_names(
        &self,
        request: &Request,
        which: Which,
        dir: FuseNodeId,
        name: &Bytes,
    ) -> Option<At> {
        let may = !mutation("a rename by what its names lead to");
        let walk = self.threads.way_of(&request.header, which, dir);
        self.nodes.by_names(&walk, name).filter(|_| may)
    }

    /// Two places, of which none begins in a directory whose own name, as it is known here, may be one of
    /// these: that would be locked when it is looked at, though the directory may be elsewhere by now.
    async fn unlocked(
        &self,
        places: impl Fn() -> Result<(At, At)>,
        names: [&Bytes; 2],
    ) -> Result<(At, At)> {
        let (from, to) = places()?;
        for anchor in [&from.anchor, &to.anchor] {
            let may_be_locked = names.contains(&&anchor.name);
            if may_be_locked && !mutation("a place by a locked name") {
                let at = At::handle(anchor.clone());
                self.nodes.refresh(&self.fs.lookup(&Caller::root(), &at).await?);
            }
        }
        places()
    }

    /// Asks where the directories above a name are, if the name does not say it. Is one elsewhere?
    async fn find_again(&self, dir: FuseNodeId, at: &At) -> bool {
        let mut moved = false;
        for loc in self.chain(dir, at).await {
            if let Ok(entry) = self.fs.getattr(&Caller::root(), &At::handle(loc.clone())).await {
                moved |= entry.loc != loc;
                self.nodes.refresh(&entry);
            }
        }
        moved
    }

    /// The directories from below the root down to `dir`, inclusive, if the name in it does not say
    /// that by itself. Empty where they cannot be told (moves of other clients can leave an old parent
    /// behind): whoever needs them, for a directory that moves, must walk again then.
    async fn chain(&self, dir: FuseNodeId, at: &At) -> Vec<Locator> {
        let (mut chain, mut id) = (Vec::new(), dir);
        if at.anchor.id == saker_types::ROOT {
            return chain;
        }
        while id != ROOT {
            // What is only a guess is looked up, once.
            let loc = match self.locate(id).await {
                Ok(loc) if chain.len() < COMPONENTS_MAX => loc,
                _ => return Vec::new(),
            };
            id = self.nodes.above(id, &loc);
            chain.push(loc);
        }
        chain.reverse();
        chain
    }

    pub(crate) async fn link(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let input: LinkIn = body.fixed()?;
        let from = self.at(input.oldnodeid).await?;
        let (dir, name) = (request.header.nodeid, body.name()?);
        let to = self.named(request, dir, &name)?;
        let who = request.caller();
        if self.protects_links && who.uid != 0 {
            self.may_link(&who, &from).await?;
        }
        let linked = self.fs.link(&to.for_caller(who), &from, &to.at).await;
        let entry = linked.map_err(|error| self.on_the_way(request, dir, error))?;
        Ok(Reply::of(&self.reply_entry(&to, &entry)))
    }

    /// The part of `fs.protected_hardlinks` (proc_sys_fs(5)) that the kernel leaves to a file
    /// system which checks permissions itself: who links a file of others must be able to read
    /// and write it.
    async fn may_link(&self, who: &Caller, from: &At) -> Result<()> {
        match self.fs.access(who, from, 6).await {
            Err(error) if error.errno() == Errno::EACCES => {
                let entry = self.fs.lookup(&Caller::root(), from).await?;
                if entry.attr.uid == who.uid { Ok(()) } else { Err(Errno::EPERM.into()) }
            }
            other => other,
        }
    }
}

/// Is `fs.protected_hardlinks` on?
// The kernel's setting, not a file of Saker's: nothing that a simulation holds.
#[allow(clippy::disallowed_methods)]
pub(crate) fn protects_links() -> bool {
    std::fs::read("/proc/sys/fs/protected_hardlinks").is_ok_and(|text| text.starts_with(b"1"))
}
