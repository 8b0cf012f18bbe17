//! UNLINK, RMDIR, RENAME, LINK.

use saker_client::Caller;
use saker_types::{Errno, Error, InodeId, Result};

use crate::abi::{LinkIn, Rename2In, RenameIn};
use crate::adapter::Adapter;
use crate::reply::Reply;
use crate::request::{Body, Request};

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;

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
        if input.flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE) != 0 {
            return Err(Error::new(Errno::EINVAL));
        }
        self.rename_to(request, body, input.newdir, input.flags)
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
        let moved = self.wait(self.fs.rename(&who, &from, &to, flags, &chain))?;
        self.nodes.moved(&moved);
        if flags & RENAME_EXCHANGE != 0 {
            // The other one moved, too. If this fails, its old place still leads to it.
            if let Ok(other) = self.wait(self.fs.lookup(&Caller::root(), &from)) {
                self.nodes.refresh(&other);
            }
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
