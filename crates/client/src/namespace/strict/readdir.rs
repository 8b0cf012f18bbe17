//! Listing a directory: the shares of all shards, merged.
//!
//! Each shard lists the names it owns by (order, name); so does the merged listing, whatever
//! shard a name lives on, and a cookie is a place in that order (docs/protocol.md, rule 19).

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use saker_types::wire::*;
use saker_types::{Attr, Errno, Error, Locator, Result, ShardNo};

use crate::core::Core;
use crate::namespace::strict::Strict;
use crate::net::cluster;
use crate::net::request::To;
use crate::{Caller, DirItem};

/// Entries of the first request to each shard, and of later ones.
const LIMIT_FIRST: u32 = 256;
const LIMIT_MAX: u32 = 1_024;
/// Hard links whose attributes are asked for at once.
const LINKS_AT_ONCE: usize = 32;
/// Bits of a cookie that count names of one order. The first values are those of `.` and `..`.
const INDEX_MASK: u64 = 0xF;
const INDEX_FIRST: u64 = 3;

/// Where a listing goes on: after `skip` names of `order`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DirCursor {
    order: u64,
    skip: u64,
}

impl DirCursor {
    fn of_cookie(cookie: u64) -> DirCursor {
        let index = cookie & INDEX_MASK;
        DirCursor { order: cookie & !INDEX_MASK, skip: (index + 1).saturating_sub(INDEX_FIRST) }
    }

    /// Counts a name of `order`, and returns its cookie.
    fn pass(&mut self, order: u64) -> u64 {
        if order != self.order {
            *self = DirCursor { order, skip: 0 };
        }
        let index = (self.skip + INDEX_FIRST).min(INDEX_MASK);
        self.skip += 1;
        order | index
    }
}

/// What a shard has listed and nobody has taken yet.
struct Share {
    shard: ShardNo,
    entries: VecDeque<DirEntry>,
    /// The last entry that the shard listed.
    after: (u64, Bytes),
    limit: u32,
    end: bool,
}

/// A listing under way.
pub(crate) struct Shares {
    core: Arc<Core>,
    who: Caller,
    dir: Locator,
    /// Names taken so far, and those to pass over before the first.
    place: DirCursor,
    to_skip: u64,
    shares: Vec<Share>,
}

impl Shares {
    /// Of all shards, after `cookie`.
    pub(crate) fn new(core: Arc<Core>, who: &Caller, dir: &Locator, cookie: u64) -> Shares {
        let DirCursor { order, skip } = DirCursor::of_cookie(cookie);
        let shares = (0..core.cluster.routes().map.shards.len()).map(|shard| Share {
            shard: shard as ShardNo,
            entries: VecDeque::new(),
            after: (order, Bytes::new()),
            limit: LIMIT_FIRST,
            end: false,
        });
        let shares = shares.collect();
        let place = DirCursor { order, skip: 0 };
        Shares { core, who: who.clone(), dir: dir.clone(), place, to_skip: skip, shares }
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// EACCES, ENOENT, ENOTDIR, and those of the network; the listing may be gone on with.
    pub(crate) async fn next(&mut self) -> Result<Option<DirItem>> {
        loop {
            if self.shares.iter().any(|s| s.entries.is_empty() && !s.end) {
                self.refill().await?;
            }
            let Some(entry) = pop_first(&mut self.shares) else { return Ok(None) };
            if self.to_skip > 0 {
                if entry.order == self.place.order {
                    self.to_skip -= 1;
                    self.place.pass(entry.order);
                    continue;
                }
                self.to_skip = 0;
            }
            let cookie = self.place.pass(entry.order);
            return Ok(Some(self.item(entry, cookie).await));
        }
    }

    async fn item(&self, entry: DirEntry, cookie: u64) -> DirItem {
        let id = entry.attr.id;
        let mut attr = match Strict(&self.core).settled(id).await {
            Some(settled) => settled.attr,
            None => entry.attr,
        };
        if attr.is_dir() {
            // As lookup says it; the exact count is what getattr collects.
            attr.nlink = attr.nlink.max(2);
        }
        let policy = if entry.policy == 0 { self.dir.policy } else { entry.policy };
        let (pid, name, home_slot) = (self.dir.id, entry.name.clone(), entry.home_slot);
        let loc = Locator { pid, name, id, home_slot, policy };
        DirItem { name: entry.name, cookie, attr, loc }
    }

    /// Asks all shards that have nothing left here, at once.
    async fn refill(&mut self) -> Result<()> {
        let core = &*self.core;
        let empty = self.shares.iter().enumerate();
        let empty: Vec<usize> =
            empty.filter(|(_, s)| s.entries.is_empty() && !s.end).map(|(i, _)| i).collect();
        let requests = empty.iter().map(|i| {
            let share = &self.shares[*i];
            let request = ReaddirReq {
                at: At::handle(self.dir.clone()),
                after_order: share.after.0,
                after_name: share.after.1.clone(),
                limit: share.limit,
                ctx: Ctx::default(),
            };
            list_share(core, &self.who, share.shard, request)
        });
        let replies = cluster::all(requests).await?;
        for (i, (mut reply, dir)) in empty.into_iter().zip(replies) {
            resolve_links(core, &self.who, &mut reply.entries).await;
            self.dir = dir;
            let share = &mut self.shares[i];
            let full = reply.entries.len() < share.limit as usize;
            share.end = reply.end || (full && reply.entries.is_empty());
            share.limit = (share.limit * 2).min(LIMIT_MAX);
            if let Some(last) = reply.entries.last() {
                share.after = (last.order, last.name.clone());
            }
            share.entries = reply.entries.into();
        }
        Ok(())
    }
}

/// One shard's next entries, and where the directory is.
async fn list_share(
    core: &Core,
    who: &Caller,
    shard: ShardNo,
    mut request: ReaddirReq,
) -> Result<(ReaddirReply, Locator)> {
    let reply: ReaddirReply =
        core.cluster.ask(who, Op::Readdir, To::Shard(shard), &mut request).await?;
    let after = (request.after_order, &request.after_name[..]);
    let ascends = |a: &DirEntry, b: &DirEntry| (a.order, &a.name) < (b.order, &b.name);
    let in_order = reply.entries.windows(2).all(|pair| ascends(&pair[0], &pair[1]))
        && reply.entries.first().is_none_or(|e| {
            (e.order, &e.name[..]) > after || (after.1.is_empty() && e.order == after.0)
        });
    if !in_order {
        // Going on would list names twice, or for ever.
        let text = format!("shard {shard} lists entries out of order");
        return Err(Error::new(Errno::EPROTO).with_text(text));
    }
    Ok((reply, request.at.anchor))
}

/// Hard links hold only id and type: their attributes are at home.
async fn resolve_links(core: &Core, who: &Caller, entries: &mut [DirEntry]) {
    let links: Vec<usize> =
        (0..entries.len()).filter(|i| entries[*i].home_slot.is_some()).collect();
    for some in links.chunks(LINKS_AT_ONCE) {
        let mut asked = Vec::with_capacity(some.len());
        for i in some {
            let DirEntry { attr, home_slot, .. } = &entries[*i];
            let home = Locator { id: attr.id, home_slot: *home_slot, ..Locator::default() };
            asked.push(attributes_at(core, who, home));
        }
        let found = futures_util::future::join_all(asked).await;
        for (i, result) in some.iter().zip(found) {
            match result {
                Ok(attr) => entries[*i].attr = attr,
                // The name may have gone meanwhile; it is listed with what its row said.
                Err(error) => tracing::debug!("a hard link's attributes: {error}"),
            }
        }
    }
}

async fn attributes_at(core: &Core, who: &Caller, home: Locator) -> Result<Attr> {
    let mut request = EntryReq { at: At::handle(home), ..EntryReq::default() };
    let entry: Entry = core.cluster.ask(who, Op::Getattr, To::Owner, &mut request).await?;
    Ok(entry.attr)
}

/// Takes the first entry of all by (order, name).
fn pop_first(shares: &mut [Share]) -> Option<DirEntry> {
    let mut first: Option<(usize, (u64, &Bytes))> = None;
    for (i, share) in shares.iter().enumerate() {
        if let Some(entry) = share.entries.front() {
            let key = (entry.order, &entry.name);
            if first.is_none_or(|(_, least)| key < least) {
                first = Some((i, key));
            }
        }
    }
    let (i, _) = first?;
    shares[i].entries.pop_front()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_lead_back_to_their_place() {
        let mut place = DirCursor::default();
        let mut cookies = Vec::new();
        for order in [0x20, 0x20, 0x20, 0x90] {
            cookies.push(place.pass(order));
        }
        assert_eq!(cookies, [0x23, 0x24, 0x25, 0x93]);
        assert_eq!(DirCursor::of_cookie(0x24), DirCursor { order: 0x20, skip: 2 });
        assert_eq!(DirCursor::of_cookie(0x93), DirCursor { order: 0x90, skip: 1 });
        for start in 0..INDEX_FIRST {
            assert_eq!(DirCursor::of_cookie(start), DirCursor::default(), "cookie {start}");
        }
    }

    #[test]
    fn shares_are_merged_by_order_and_name() {
        let entry = |order, name: &'static [u8]| DirEntry {
            order,
            name: Bytes::from_static(name),
            ..DirEntry::default()
        };
        let share = |entries: &[DirEntry]| Share {
            shard: 0,
            entries: entries.iter().cloned().collect(),
            after: (0, Bytes::new()),
            limit: 1,
            end: true,
        };
        let mut shares = [
            share(&[entry(1, b"m"), entry(4, b"b")]),
            share(&[]),
            share(&[entry(1, b"a"), entry(2, b"z"), entry(4, b"c")]),
        ];
        let names: Vec<Bytes> =
            std::iter::from_fn(|| pop_first(&mut shares)).map(|e| e.name).collect();
        assert_eq!(names, ["a", "m", "z", "b", "c"]);
    }
}
