//! LOOKUP and FORGET.
//!
//! With a hint, most LOOKUPs ask no server (FalconFS, §5). Directories on the way to something are
//! not looked up at all: the request for what is wanted in the end carries the whole path. Of what
//! is to be made or removed the kernel is told what lets it go on; the request that follows meets
//! the truth. Whatever proves wrong is answered ESTALE, upon which the kernel walks again
//! (`nodes`).

use std::time::Duration;

use bytes::Bytes;
use saker_client::OpenFlags;
use saker_fuse::abi::{BatchForgetIn, EntryOut, ForgetIn, ForgetOne};
use saker_fuse::{Reply, Request};
use saker_runtime::sim::mutation;
use saker_types::wire::{At, Entry};
use saker_types::{Attr, Class, Errno, FileKind, Result, check_name};

use crate::caller::WithCaller as _;
use crate::changes::Asked;
use crate::names::hint::{self, Hint, Lookup, LookupIntent, Rest};
use crate::names::nodes::{FuseNodeId, Named, Passed};
use crate::names::threads::Opened;
use crate::names::walk::{Walk, WalkStep};
use crate::service::MountService;

/// Owner and group of directories of which nothing is known.
const NOBODY: u32 = 0xffff_fff0;

impl MountService {
    pub(crate) async fn lookup(&self, request: &Request) -> Result<Reply> {
        let header = &request.header;
        let (dir, name) = (header.nodeid, request.body().name()?);
        let (unique, tid) = (header.unique, header.pid);
        let asked = Lookup { unique, tid, nodeid: dir, name: &name };
        if let Some(errno) = self.hints.as_ref().and_then(|hints| hints.probe(asked)) {
            return Err(errno.into());
        }
        check_name(&name)?;
        let hint = self.hints.as_ref().and_then(|hints| hints.of(asked));
        let before = self.threads.next(tid);
        let walk = self.threads.step(header, dir, hint);
        if let Some(told) =
            hint.and_then(|hint| self.answer_locally(request, &walk, &name, hint, before))
        {
            return told.map(|entry| Reply::of(&entry));
        }
        let named = self.nodes.named(&walk, &name)?;
        let at = &named.at;
        let asked = self.changes.ask();
        let found = match hint {
            Some(Hint {
                step: hint::PathStep::Last(LookupIntent::Open { flags }),
                reval: false,
                ..
            }) if flags & libc::O_EXCL == 0 => self.open_ahead(request, &named, flags, asked).await,
            _ => self.fs.lookup(&named.for_caller(request.caller()), at).await,
        };
        match found {
            Ok(entry) => {
                if hint.is_some_and(|hint| hint.path.is_none())
                    && let Some(walk) = self.threads.second_to(header, dir)
                {
                    // Both names of a rename are this one; the caller must be able to walk to both.
                    let at = self.nodes.named(&walk, &name)?.at;
                    self.fs.lookup(&request.caller(), &at).await?;
                }
                if entry.attr.is_dir() && !is_to_be_made(hint) {
                    self.settle(request, &walk, &name, &entry).await?;
                }
                let node = self.nodes.of(entry.attr.id);
                if entry.attr.is_dir()
                    && is_of_a_rename(hint)
                    && self.threads.passed_by_another(header, node, (dir, &name))
                {
                    // The kernel would take two of the rename's directories for one.
                    return Err(Errno::ESTALE.into());
                }
                self.may_be_opened(request, &entry).await?;
                let out = self.reply_entry(&named, &entry);
                self.threads.told_of(tid, dir, &name, out.nodeid);
                self.note_link(request, &entry, out.nodeid, hint);
                // A directory's are not whole.
                if !entry.attr.is_dir() {
                    self.overrule(out.nodeid, &entry.attr).await;
                    self.threads.told(tid, out.nodeid, asked);
                }
                if hint.is_none_or(|hint| matches!(hint.step, hint::PathStep::Through(_))) {
                    let (node, id) = (out.nodeid, entry.attr.id);
                    let found = !mutation("a second walk expects");
                    let unhinted = hint.is_none();
                    self.threads
                        .pass(tid, WalkStep { node, name: name.clone(), id, found, unhinted });
                }
                if let Some(Hint {
                    step: hint::PathStep::Last(LookupIntent::Plain | LookupIntent::Open { .. }),
                    reval,
                    ..
                }) = hint
                {
                    self.threads.ended(tid, out.nodeid, reval);
                }
                if hint.is_some_and(|hint| hint.step.ends_path()) {
                    self.threads.end(header);
                }
                if hint.is_none_or(|hint| {
                    hint.step == hint::PathStep::Last(LookupIntent::RenameSource)
                }) {
                    self.threads.found(tid, out.nodeid);
                }
                Ok(Reply::of(&out))
            }
            Err(error) if error.errno() == Errno::ENOENT => {
                if at.ends_at(&error) {
                    if hint.is_some_and(|hint| hint.step.ends_path()) {
                        self.threads.end(header);
                    }
                    self.nodes.vanished(dir, &name);
                } else if self.is_rename(&walk, hint, before) && self.nodes.must_be_known(dir) {
                    // Not the name is free, but its directory is missing.
                    return Err(Errno::ESTALE.into());
                }
                Err(error)
            }
            // The kernel would give up: it walks again for what is to be made, not for that LOOKUP.
            Err(error) if is_to_be_made(hint) && self.nodes.mark_stale(&walk, &error) => {
                Err(Errno::ENOENT.into())
            }
            Err(error) => Err(error),
        }
    }

    /// The kernel is about to hold a directory. Those above it must be known, for `..` leads to them,
    /// wherever they are by then: they are looked up, once, and it is looked for in what they are.
    async fn settle(
        &self,
        request: &Request,
        walk: &Walk,
        name: &Bytes,
        entry: &Entry,
    ) -> Result<()> {
        let guesses = self.nodes.guesses(walk);
        if guesses.is_empty() || mutation("a directory below a guess") {
            return Ok(());
        }
        for guess in guesses {
            self.locate(guess).await?;
        }
        let at = At::child(self.nodes.locate(walk.at())?, name);
        match self.fs.lookup(&request.caller(), &at).await {
            Ok(again) if again.attr.id == entry.attr.id => Ok(()),
            Ok(_) => Err(Errno::ESTALE.into()),
            Err(error) if error.errno() == Errno::ENOENT => Err(Errno::ESTALE.into()),
            Err(error) => Err(error),
        }
    }

    /// What can be said without asking a server. `before`: what the thread has found last.
    fn answer_locally(
        &self,
        request: &Request,
        walk: &Walk,
        name: &Bytes,
        hint: Hint,
        before: Option<FuseNodeId>,
    ) -> Option<Result<EntryOut>> {
        if hint.reval {
            return None;
        }
        let dir = walk.at();
        let told = match hint.step {
            hint::PathStep::Through(Rest::Names) => {
                let passed = self.nodes.pass(dir, name)?;
                let (node, id) = (passed.node, passed.id);
                let step = WalkStep { node, name: name.clone(), id, found: false, unhinted: false };
                self.threads.pass(request.header.pid, step);
                Ok(self.passed(passed))
            }
            hint::PathStep::Last(intent) if self.read_only || !intent.is_change() => return None,
            hint::PathStep::Last(LookupIntent::Remove { dir: is_dir }) => {
                let (node, seen) = self.nodes.pretend(dir, name, is_dir)?;
                self.threads.told_of(request.header.pid, dir, name, node);
                let attr = seen.unwrap_or_else(|| {
                    let kind = if is_dir { FileKind::Directory } else { FileKind::Regular };
                    // The caller's own, so that the kernel has nothing against it.
                    let (uid, gid) = (request.header.uid, request.header.gid);
                    Attr { id: node, mode: kind.bits(), uid, gid, nlink: 1, ..Attr::default() }
                });
                Ok(self.bare_entry(node, &attr, Duration::ZERO))
            }
            hint::PathStep::Last(LookupIntent::RenameTarget)
                if self.may_be_in_source(walk, before) =>
            {
                return None;
            }
            // Through a read-only bind mount the kernel opens what is there, and creates nothing.
            hint::PathStep::Last(LookupIntent::Open { flags })
                if flags & (libc::O_ACCMODE | libc::O_EXCL) == libc::O_RDONLY =>
            {
                return None;
            }
            hint::PathStep::Last(_) if self.nodes.may_be_free(dir, name) => {
                Err(Errno::ENOENT.into())
            }
            hint::PathStep::Last(_) | hint::PathStep::Through(_) => return None,
        };
        self.local_lookups.inc();
        Some(told)
    }

    /// Is the target of a rename in `dir` inside of its source? For that the kernel has an error of
    /// its own, if `dir` is there. `before`: what the thread has found last.
    fn may_be_in_source(&self, walk: &Walk, before: Option<FuseNodeId>) -> bool {
        // That is the source, if the kernel had to ask for it.
        !self.entry_timeout.is_zero()
            || before.is_none_or(|source| self.nodes.is_inside(walk, source))
    }

    /// May the kernel look up the target of a rename in `dir`, which is inside of its source?
    fn is_rename(&self, walk: &Walk, hint: Option<Hint>, before: Option<FuseNodeId>) -> bool {
        match hint.map(|hint| hint.step) {
            Some(hint::PathStep::Last(LookupIntent::RenameTarget)) => true,
            Some(hint::PathStep::Last(LookupIntent::RenameSource)) | None => {
                before.is_some_and(|source| self.nodes.is_inside(walk, source))
            }
            Some(_) => false,
        }
    }

    /// The entry of a directory that is walked through.
    fn passed(&self, Passed { node, attr, keep, .. }: Passed) -> EntryOut {
        let attr = attr.unwrap_or_else(|| {
            let mode = FileKind::Directory.bits() | 0o777;
            Attr { id: node, mode, uid: NOBODY, gid: NOBODY, nlink: 2, ..Attr::default() }
        });
        self.bare_entry(node, &attr, keep)
    }

    /// An entry whose attributes must be asked for before anybody sees them.
    fn bare_entry(&self, node: FuseNodeId, attr: &Attr, keep: Duration) -> EntryOut {
        self.entry_for(node, attr, keep, Duration::ZERO)
    }

    /// Opens what is looked up to be opened: [`MountService::open`] finds it then.
    async fn open_ahead(
        &self,
        request: &Request,
        named: &Named,
        flags: i32,
        asked: Asked,
    ) -> Result<Entry> {
        let (who, at) = (named.for_caller(request.caller()), &named.at);
        let must_be_dir = flags & libc::O_DIRECTORY != 0;
        let flags = OpenFlags::from_linux(flags);
        // LOOKUP changes nothing.
        let flags = OpenFlags { truncate: false, exclusive: false, ..flags };
        match self.fs.open(&who, at, flags).await {
            // The kernel will not open it.
            Ok((_, entry)) if must_be_dir && !entry.attr.is_dir() => Ok(entry),
            Ok((file, entry)) => {
                let opened = Opened { flags, file, entry: entry.clone(), asked };
                self.threads.opened(request.header.pid, opened);
                Ok(entry)
            }
            // The kernel has errors of its own for some of what cannot be opened.
            Err(error) if at.ends_at(&error) && error.is(Class::Symlink) => {
                self.fs.lookup(&who, at).await
            }
            Err(error) if matches!(error.errno(), Errno::EACCES | Errno::EISDIR) => {
                self.fs.lookup(&who, at).await
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn forget(&self, request: &Request) -> Result<Reply> {
        if let Ok(input) = request.body().fixed::<ForgetIn>() {
            self.nodes.forget(request.header.nodeid, input.nlookup);
        }
        Ok(Reply::none())
    }

    pub(crate) async fn batch_forget(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let count = body.fixed::<BatchForgetIn>().map_or(0, |input| input.count);
        for _ in 0..count {
            let Ok(one) = body.fixed::<ForgetOne>() else { break };
            self.nodes.forget(one.nodeid, one.nlookup);
        }
        Ok(Reply::none())
    }
}

/// May the name that is looked up be one that is renamed?
fn is_of_a_rename(hint: Option<Hint>) -> bool {
    let is_named = |hint: Hint| {
        matches!(
            hint.step,
            hint::PathStep::Last(LookupIntent::RenameSource | LookupIntent::RenameTarget)
        )
    };
    hint.is_none_or(is_named) && !mutation("one directory by two names")
}

/// Is the name that is looked up to be made, by something else than open(2)?
fn is_to_be_made(hint: Option<Hint>) -> bool {
    hint.is_some_and(|hint| hint.step == hint::PathStep::Last(LookupIntent::Create))
        && !mutation("a lookup of what is to be made is stale")
}
