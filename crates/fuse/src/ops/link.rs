//! UNLINK, RMDIR, RENAME, LINK.

use saker_client::Caller;
use saker_types::wire::{At, rename_flags};
use saker_types::{Errno, Error, InodeId, Result};

use crate::abi::{LinkIn, Rename2In, RenameIn};
use crate::adapter::Adapter;
use crate::reply::Reply;
use crate::request::{Body, Request};

impl Adapter {
    pub(crate) async fn unlink(&self, request: &Request) -> Result<Reply> {
        let at = self.child(request.header.nodeid, request.body().name()?)?;
        self.fs.unlink(&request.caller(), &at).await?;
        Ok(Reply::done())
    }

    pub(crate) async fn rmdir(&self, request: &Request) -> Result<Reply> {
        let at = self.child(request.header.nodeid, request.body().name()?)?;
        self.fs.rmdir(&request.caller(), &at).await?;
        Ok(Reply::done())
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
        to_dir: InodeId,
        flags: u32,
    ) -> Result<Reply> {
        let from = self.child(request.header.nodeid, names.name()?)?;
        let to = self.child(to_dir, names.name()?)?;
        let chain = self.nodes.chain(to_dir)?;
        let who = request.caller();
        if flags == rename_flags::EXCHANGE {
            let from_chain = self.nodes.chain(request.header.nodeid)?;
            let exchange = self.fs.exchange(&who, &from, &to, [&from_chain, &chain]);
            exchange.await?.iter().for_each(|moved| self.nodes.moved(moved));
        } else {
            let no_replace = flags == rename_flags::NOREPLACE;
            let moved = self.fs.rename(&who, &from, &to, no_replace, &chain).await?;
            self.nodes.moved(&moved);
        }
        Ok(Reply::done())
    }

    pub(crate) async fn link(&self, request: &Request) -> Result<Reply> {
        let mut body = request.body();
        let input: LinkIn = body.fixed()?;
        let from = self.at(input.oldnodeid)?;
        let to = self.child(request.header.nodeid, body.name()?)?;
        let who = request.caller();
        if self.protects_links && who.uid != 0 {
            self.may_link(&who, &from).await?;
        }
        let entry = self.fs.link(&who, &from, &to).await?;
        Ok(Reply::of(&self.hold(&entry)))
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
