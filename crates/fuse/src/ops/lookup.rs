//! LOOKUP and FORGET.

use saker_types::Result;

use crate::abi::{BatchForgetIn, ForgetIn, ForgetOne};
use crate::adapter::Adapter;
use crate::reply::Reply;
use crate::request::Request;

impl Adapter {
    pub(crate) async fn lookup(&self, request: &Request) -> Result<Reply> {
        let at = self.child(request.header.nodeid, request.body().name()?)?;
        let entry = self.fs.lookup(&request.caller(), &at).await?;
        Ok(Reply::of(&self.hold(&entry)))
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
