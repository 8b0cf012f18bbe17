//! rename(2): at the owner of the old name, or, when a directory moves, at the coordinator.

use saker_types::wire::{At, Entry, EntryReq, Op, RenameReply, RenameReq, rename_flags};
use saker_types::{Class, Errno, Error, Locator, Result};

use crate::Caller;
use crate::namespace::strict::Strict;
use crate::namespace::strict::check_place;
use crate::net::cluster::all;
use crate::net::request::To;

/// Times that the directories above a directory's new place are walked.
const WALKS_MAX: u32 = 20;

impl Strict<'_> {
    /// Renames, and tells open inodes where they are.
    pub(super) async fn move_name(
        &self,
        who: &Caller,
        from: &At,
        to: &At,
        flags: u32,
        [from_chain, to_chain]: [&[Locator]; 2],
    ) -> Result<RenameReply> {
        check_place(from)?;
        check_place(to)?;
        let mut request = RenameReq {
            from: from.clone(),
            to: to.clone(),
            flags,
            to_chain: to_chain.to_vec(),
            from_chain: from_chain.to_vec(),
            ..RenameReq::default()
        };
        let reply = self.ask_rename(who, &mut request).await?;
        for loc in std::iter::once(&reply.loc).chain(&reply.other) {
            if let Some(inode) = self.0.inodes.get(loc.id) {
                inode.moved_to(loc);
            }
        }
        Ok(reply)
    }

    /// Renames at the owner, or, when a directory moves, at the coordinator.
    async fn ask_rename(&self, who: &Caller, request: &mut RenameReq) -> Result<RenameReply> {
        let is_unknown = |at: &At, chain: &[Locator]| {
            chain.is_empty() && at.anchor.id == self.0.root && at.path.len() > 1
        };
        let walks_from = request.flags == rename_flags::EXCHANGE
            && is_unknown(&request.from, &request.from_chain);
        let walks_to = is_unknown(&request.to, &request.to_chain);
        if !walks_from && !walks_to {
            return self.0.cluster.ask(who, Op::Rename, To::Owner, request).await;
        }
        // Most renames move files: the chain is looked up once it is needed.
        let first = self.0.cluster.ask(who, Op::Rename, To::OwnerOnly, request).await;
        match first {
            Err(error) if error.is(Class::UseCoordinator) => {}
            other => return other,
        }
        for _ in 0..WALKS_MAX {
            if walks_from {
                request.from_chain = self.chain(who, &request.from).await?;
            }
            if walks_to {
                request.to_chain = self.chain(who, &request.to).await?;
            }
            match self.0.cluster.ask(who, Op::Rename, To::Owner, request).await {
                // A directory on the way was moved meanwhile.
                Err(error) if error.errno() == Errno::ESTALE && !error.is(Class::Elsewhere) => {}
                other => return other,
            }
        }
        Err(Error::new(Errno::ESTALE).with_text("the path changes without a pause"))
    }

    /// The directories on the way to a name, from below the root to its parent.
    async fn chain(&self, who: &Caller, at: &At) -> Result<Vec<Locator>> {
        let lookups = (1..at.path.len()).map(|len| async move {
            let at = At::below(at.anchor.clone(), at.path[..len].to_vec());
            let mut request = EntryReq { at, ..EntryReq::default() };
            let entry: Entry = self.0.cluster.ask(who, Op::Lookup, To::Owner, &mut request).await?;
            Ok(entry.loc)
        });
        all(lookups).await
    }
}
