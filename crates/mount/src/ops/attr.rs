//! GETATTR, STATX, SETATTR, ACCESS.

use std::sync::Arc;
use std::time::Duration;

use saker_client::{Caller, SetAttr, SetTime};
use saker_fuse::abi::{AccessIn, GETATTR_FH, GetattrIn, SetattrIn, StatxIn, StatxOut, fattr};
use saker_fuse::{Reply, Request};
use saker_types::time::stamp;
use saker_types::wire::{At, Entry};
use saker_types::{Attr, ROOT, Result};

use crate::attr;
use crate::caller::WithCaller as _;
use crate::names::nodes::FuseNodeId;
use crate::ops::{OPEN_AGE_MAX, OpenFile};
use crate::service::MountService;

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;
const PERMISSIONS: u32 = 0o7777;

impl MountService {
    pub(crate) async fn getattr(&self, request: &Request) -> Result<Reply> {
        let input: GetattrIn = request.body().fixed()?;
        let told = match self.handle(input.flags, input.fh) {
            Some(open) => open
                .attr(&self.changes, self.attr_timeout)
                .map(|(attr, fresh)| (attr.clone(), fresh))
                // What the kernel has been told since is not taken back, nor what reads have met; and what
                // was unsaved when it was opened has changed it.
                .filter(|(attr, _)| self.nodes.is_newest(attr) && self.fs.is_newest(attr)),
            None => self.just_told(request),
        };
        if let Some((attr, fresh)) = told {
            return Ok(Reply::of(&attr::reply(&attr, fresh)));
        }
        let entry = self.attributes(request, input.flags, input.fh).await?;
        if input.flags & GETATTR_FH == 0 {
            // That is stat(2): it shows this reply, whatever the kernel makes of it.
            self.overrule(request.header.nodeid, &entry.attr).await;
        } else {
            self.nodes.tell(request.header.nodeid, &entry.attr, self.attr_timeout);
        }
        Ok(self.attr_reply(&entry, self.attr_timeout))
    }

    /// The kernel asks by STATX for what it does not keep with a name: when a file came to be.
    pub(crate) async fn statx(&self, request: &Request) -> Result<Reply> {
        let input: StatxIn = request.body().fixed()?;
        let (attr, fresh) = match self.just_told(request) {
            Some(told) => told,
            None => {
                let entry = self.attributes(request, input.getattr_flags, input.fh).await?;
                self.nodes.refresh(&entry);
                (entry.attr, self.attr_timeout)
            }
        };
        let (attr_valid, attr_valid_nsec) = attr::validity(fresh);
        let stat = attr::statx(&attr);
        Ok(Reply::of(&StatxOut { attr_valid, attr_valid_nsec, stat, ..StatxOut::default() }))
    }

    /// The attributes that the thread of this request was told with the name, and for how long the
    /// kernel may keep them: what it could have gone on with by itself (`changes`).
    fn just_told(&self, request: &Request) -> Option<(Attr, Duration)> {
        let asked = self.threads.asks(request.header.pid, request.header.nodeid)?;
        let left = self.changes.counts(asked, self.attr_timeout.min(OPEN_AGE_MAX))?;
        let attr = self.nodes.newest(request.header.nodeid)?;
        // An open does not write out what was written before: the times are not known yet.
        self.fs.is_newest(&attr).then_some((attr, left))
    }

    async fn attributes(&self, request: &Request, flags: u32, handle: u64) -> Result<Entry> {
        if request.header.nodeid == ROOT
            && let Some(answer) = self.root_attributes(&request.caller()).await
        {
            return answer;
        }
        let at = match self.handle(flags, handle) {
            Some(open) => At::handle(open.file.locator()),
            None => self.at(request.header.nodeid).await?,
        };
        self.fs.getattr(&request.caller(), &at).await
    }

    /// The open file that a GETATTR names. The handle may be of a directory: then the node serves.
    fn handle(&self, flags: u32, handle: u64) -> Option<Arc<OpenFile>> {
        (flags & GETATTR_FH != 0).then(|| self.files.get(handle).ok()).flatten()
    }

    pub(crate) async fn setattr(&self, request: &Request) -> Result<Reply> {
        let input: SetattrIn = request.body().fixed()?;
        let open = match input.valid & fattr::FH {
            0 => None,
            _ => self.files.get(input.fh).ok(),
        };
        let mut change = change(&input);
        let at = match open {
            Some(open) => {
                change.by_handle = open.flags.write;
                if change.size.is_some() {
                    open.file.still_holds_locks().await?;
                }
                At::handle(open.file.locator())
            }
            None => self.at(request.header.nodeid).await?,
        };
        // Nobody waits for the rest.
        let contended = change.mode.is_some() && self.nodes.is_contended(request.header.nodeid);
        let mut entry = self.fs.setattr(&request.caller(), &at, &change).await?;
        self.nodes.changed_itself(contended);
        if input.valid & fattr::KILL_SUIDGID != 0 && change.mode.is_none() {
            entry = self.drop_bits(entry).await?;
        }
        // A directory's totals are not collected here.
        let fresh = if entry.attr.is_dir() { Duration::ZERO } else { self.attr_timeout };
        Ok(self.attr_reply(&entry, fresh))
    }

    pub(crate) async fn access(&self, request: &Request) -> Result<Reply> {
        let input: AccessIn = request.body().fixed()?;
        let at = self.at(request.header.nodeid).await?;
        self.fs.access(&request.caller(), &at, input.mask & 7).await?;
        Ok(Reply::done())
    }

    /// Somebody without CAP_FSETID writes to a file: clears suid and sgid, if it was last seen
    /// with them.
    pub(crate) async fn drop_privileges(&self, node: FuseNodeId, at: &At) -> Result<()> {
        if without_privileges(self.nodes.mode(node)).is_none() {
            return Ok(());
        }
        let entry = self.fs.getattr(&Caller::root(), at).await?;
        let entry = self.drop_bits(entry).await?;
        self.nodes.refresh(&entry);
        Ok(())
    }

    /// Clears suid and sgid, if they are set: in the superuser's name, since it is the system
    /// that does it, not the caller (who need not own the file).
    async fn drop_bits(&self, entry: Entry) -> Result<Entry> {
        let Some(mode) = without_privileges(entry.attr.mode) else {
            return Ok(entry);
        };
        let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.fs.setattr(&Caller::root(), &At::handle(entry.loc), &change).await
    }
}

fn change(input: &SetattrIn) -> SetAttr {
    let has = |bit| input.valid & bit != 0;
    let time = |bit, now, seconds, ns| match () {
        () if has(now) => Some(SetTime::Now),
        () if has(bit) => Some(SetTime::At(stamp(seconds, ns))),
        () => None,
    };
    SetAttr {
        mode: has(fattr::MODE).then_some(input.mode & PERMISSIONS),
        uid: has(fattr::UID).then_some(input.uid),
        gid: has(fattr::GID).then_some(input.gid),
        size: has(fattr::SIZE).then_some(input.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, input.atime, input.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, input.mtime, input.mtimensec),
        by_handle: false,
    }
}

/// The permission bits without those that a write clears; `None` if none is set. sgid without
/// group execution is not a privilege (it once meant mandatory locking).
fn without_privileges(mode: u32) -> Option<u32> {
    let mut clear = S_ISUID;
    if mode & S_IXGRP != 0 {
        clear |= S_ISGID;
    }
    (mode & clear != 0).then_some(mode & PERMISSIONS & !clear)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn bits_that_a_write_clears() {
        assert_eq!(without_privileges(0o100_755), None);
        assert_eq!(without_privileges(0o104_755), Some(0o755));
        assert_eq!(without_privileges(0o106_755), Some(0o755));
        assert_eq!(without_privileges(0o102_745), None);
        assert_eq!(without_privileges(0o106_745), Some(0o2745));
    }

    #[test]
    fn only_valid_fields_are_changed() {
        let mut input = SetattrIn::read_from_bytes(&[0xff; 88]).unwrap();
        input.valid = 0;
        assert_eq!(change(&input), SetAttr::default());
        input.valid = fattr::ATIME | fattr::MTIME | fattr::MTIME_NOW | fattr::MODE;
        (input.atime, input.atimensec, input.mode) = (-1, 5, 0o100_640);
        let wanted = SetAttr {
            mode: Some(0o640),
            atime: Some(SetTime::At(stamp(-1, 5))),
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        assert_eq!(change(&input), wanted);
    }
}
