//! Locks as programs set and end them, through an open file.

use std::time::Duration;

use saker_runtime::time::{self, Time};
use saker_types::wire::*;
use saker_types::{Errno, InodeId, Result};

use crate::Caller;
use crate::data::file::{File, Handle};
use crate::locks::table::Locks;
use crate::locks::{Lock, renew};
use crate::net::cluster::Cluster;
use crate::net::request::To;

impl File {
    /// What stands in the way of a lock, if anything does.
    ///
    /// # Errors
    /// ETIMEDOUT when the locks' shard does not answer.
    pub async fn test_lock(&self, lock: &Lock) -> Result<Option<Lock>> {
        let Some(Handle { core, inode, .. }) = self.on_stores() else { return Ok(None) };
        let mut request = core.locks.request(inode.id, lock);
        let who = Caller::root();
        let reply: LockReply = core.cluster.ask(&who, Op::Getlk, To::Owner, &mut request).await?;
        Ok(reply.conflict.map(|found| Lock {
            owner: found.owner,
            start: found.start,
            end: found.end,
            exclusive: found.exclusive,
            flock: found.flock,
            pid: found.pid,
        }))
    }

    /// Sets a lock in place of what its owner holds there; waits at most this long (seconds are
    /// too long) for others to end theirs.
    ///
    /// # Errors
    /// EAGAIN when others still hold theirs; ENOLCK when the file has too many locks; EIO after a
    /// lock that was set through this was lost.
    pub async fn set_lock(&self, lock: &Lock, wait: Duration) -> Result<()> {
        // What cannot change need not be locked. Programs that read (HDF5, SQLite) want to.
        let Some(handle) = self.on_stores() else { return Ok(()) };
        let (core, id) = (&handle.core, handle.inode.id);
        renew::start(core)?;
        // A shard that knows of a new lock on the file does not say that it has forgotten the old ones.
        core.lease(id).await?;
        handle.still_holds().await?;
        let is_new = handle.locks((lock.flock, lock.owner));
        let holding = (id, lock.flock, lock.owner);
        let (asked, before) = core.locks.ask(holding);
        let mut request = core.locks.request(id, lock);
        request.wait_ms = wait.as_millis() as u32;
        let (shard, asked_at) = (renew::shard_of(&core.cluster, id), time::awake_or_not());
        match core
            .cluster
            .ask::<_, SetLockReply>(&Caller::root(), Op::Setlk, To::Owner, &mut request)
            .await
        {
            Ok(_) => {
                core.locks.heard(shard, asked_at);
                core.locks.granted(holding);
                handle.see_others().await
            }
            Err(error) => {
                if error.errno() == Errno::EAGAIN || error.errno() == Errno::ENOLCK {
                    // flock(2) has given up the old lock for the new one.
                    let gave_up = lock.flock && error.errno() == Errno::EAGAIN;
                    core.locks.refused(holding, asked, before.filter(|_| !gave_up));
                    if is_new || gave_up {
                        handle.unlocks((lock.flock, lock.owner));
                    }
                }
                Err(error)
            }
        }
    }

    /// Ends what the lock's owner holds in its range; what was written is written out before.
    ///
    /// # Errors
    /// Those of writing; EIO after a lock that was set through this was lost; ETIMEDOUT when the locks' shard does not
    /// answer.
    pub async fn unlock(&self, lock: &Lock) -> Result<()> {
        let Some(handle) = self.on_stores() else { return Ok(()) };
        let written = match handle.still_holds().await {
            Ok(()) => handle.flush_if_dirty().await,
            lost => lost,
        };
        let core = &handle.core;
        let holds = core
            .locks
            .unlock(&core.cluster, handle.inode.id, lock, core.cluster.deadline())
            .await?;
        if written.is_ok() && !holds {
            handle.unlocks((lock.flock, lock.owner));
        }
        written
    }

    /// Ends all that an owner holds on the file, as its close does. Costs nothing if that is
    /// nothing. When the shard cannot be told, it is told later.
    pub async fn unlock_all(&self, owner: u64, flock: bool) {
        let Some(handle) = self.on_stores() else { return };
        let (core, id) = (&handle.core, handle.inode.id);
        let holding = (id, flock, owner);
        handle.unlocks((flock, owner));
        if !core.locks.holds(&holding) {
            return;
        }
        if let Err(error) = core
            .locks
            .unlock(&core.cluster, id, &Lock::whole(owner, flock), core.cluster.deadline())
            .await
        {
            tracing::warn!("a lock on inode {id:#x} could not be ended yet: {error}");
            core.locks.leaves(holding);
        }
    }
}

impl Locks {
    fn request(&self, id: InodeId, lock: &Lock) -> LockReq {
        let lock = FileLock {
            holder: self.holder(),
            owner: lock.owner,
            start: lock.start,
            end: lock.end,
            exclusive: lock.exclusive,
            flock: lock.flock,
            pid: lock.pid,
        };
        LockReq { at: At::locks(id), lock, ..LockReq::default() }
    }

    /// Does its owner still hold something on the file?
    pub(super) async fn unlock(
        &self,
        cluster: &Cluster,
        id: InodeId,
        lock: &Lock,
        deadline: Time,
    ) -> Result<bool> {
        let mut request = self.request(id, lock);
        request.unlock = true;
        let holding = (id, lock.flock, lock.owner);
        let ending = self.ending(holding);
        let (who, to) = (Caller::root(), To::Owner);
        let reply = cluster.ask_until(&who, Op::Setlk, to, &mut request, deadline).await;
        let holds = reply.map(|SetLockReply { holds }| holds);
        if let Some(standings) = ending {
            self.ended(holding, standings, holds.as_ref().ok().copied());
        }
        holds
    }
}
