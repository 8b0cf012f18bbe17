//! UNLINK, RMDIR, RENAME, LINK.

use saker_types::wire::rename_flags;
use saker_types::{Errno, Error, InodeId, Result};

use crate::abi::{LinkIn, Rename2In, RenameIn};
use crate::adapter::Adapter;
use crate::reply::Reply;
use crate::request::{Body, Request};

impl Adapter {
    pub(crate) fn unlink(&self, request: &Request<'_>) -> Result<Reply> {
        let at = self.child(request.header.nodeid, request.body().name()?)?;
        self.wait(self.fs.unlink(&request.caller(), &at))?;
        Ok(Reply::done())
    }

    pub(crate) fn rmdir(&self, request: &Request<'_>) -> Result<Reply> {
        let at = self.child(request.header.nodeid, request.body().name()?)?;
        self.wait(self.fs.rmdir(&request.caller(), &at))?;
        Ok(Reply::done())
    }

    pub(crate) fn rename(&self, request: &Request<'_>) -> Result<Reply> {
        let mut body = request.body();
        let input: RenameIn = body.fixed()?;
        self.rename_to(request, body, input.newdir, 0)
    }

    pub(crate) fn rename2(&self, request: &Request<'_>) -> Result<Reply> {
        let mut body = request.body();
        let input: Rename2In = body.fixed()?;
        match input.flags {
            0 | rename_flags::NOREPLACE | rename_flags::EXCHANGE => {
                self.rename_to(request, body, input.newdir, input.flags)
            }
            _ => Err(Error::new(Errno::EINVAL)),
        }
    }

    fn rename_to(
        &self,
        request: &Request<'_>,
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
            self.wait(exchange)?.iter().for_each(|moved| self.nodes.moved(moved));
        } else {
            let no_replace = flags == rename_flags::NOREPLACE;
            let moved = self.wait(self.fs.rename(&who, &from, &to, no_replace, &chain))?;
            self.nodes.moved(&moved);
        }
        Ok(Reply::done())
    }

    pub(crate) fn link(&self, request: &Request<'_>) -> Result<Reply> {
        let mut body = request.body();
        let input: LinkIn = body.fixed()?;
        let from = self.at(input.oldnodeid)?;
        let to = self.child(request.header.nodeid, body.name()?)?;
        let entry = self.wait(self.fs.link(&request.caller(), &from, &to))?;
        Ok(Reply::of(&self.hold(&entry)))
    }
}
