//! Locks on files: asked for, set, ended, renewed.

use bytes::Bytes;
use saker_types::placement::Slot;
use saker_types::wire::{
    FileLock, LockReply, LockReq, RenewLocksReply, RenewLocksReq, SetLockReply,
};
use saker_types::{Errno, InodeId, limits};

use crate::locks::ranges::{clear, conflict, same_owner, set};
use crate::request::{Attempt, Stop, Wait};
use crate::shard::{Shard, encoded};

/// The file of a request that a client can have meant.
fn file_of(msg: &LockReq) -> Attempt<InodeId> {
    let loc = &msg.at.anchor;
    let meant = msg.at.path.is_empty()
        && loc.home_slot == Some(Slot::of_locks(loc.id).into())
        && msg.lock.start <= msg.lock.end
        && msg.lock.holder != 0;
    if meant { Ok(loc.id) } else { Err(Errno::EINVAL.into()) }
}

impl Shard {
    /// What stands in the way of a lock.
    pub(crate) fn getlk(&mut self, msg: &LockReq) -> Attempt<Bytes> {
        let locks = self.file_locks(file_of(msg)?)?;
        let conflict = conflict(&locks.locks, &msg.lock).copied();
        Ok(encoded(&LockReply { conflict }))
    }

    /// Sets or ends a lock; waits for those in its way if the client wants to.
    pub(crate) fn setlk(&mut self, msg: &LockReq) -> Attempt<Bytes> {
        let (id, wanted) = (file_of(msg)?, &msg.lock);
        let before = self.file_locks(id)?;
        let mut after = before.clone();
        let is_free = conflict(&before.locks, wanted).is_none();
        match is_free && !msg.unlock {
            true => set(&mut after.locks, wanted),
            // flock(2): who changes a lock gives up the old one first. Two who hold a shared lock and
            // want an exclusive one would wait for each other.
            false if msg.unlock || wanted.flock => clear(&mut after.locks, wanted),
            false => {}
        }
        if after.locks.len() > limits::FILE_LOCKS_MAX.max(before.locks.len()) {
            return Err(Errno::ENOLCK.into());
        }
        if after != before {
            self.put_file_locks(id, &after);
            // Less may be held now than before, also where an exclusive lock became a shared one.
            self.wake(&Wait::Lock(id));
        }
        let holds = after.locks.iter().any(|lock: &FileLock| lock.holder == wanted.holder);
        self.lock_leases.note(wanted.holder, id, holds, self.lease_clock.now());
        if !is_free && !msg.unlock {
            return Err(match msg.wait_ms {
                0 => Errno::EAGAIN.into(),
                _ => Stop::Wait(Wait::Lock(id)),
            });
        }
        let holds = after.locks.iter().any(|lock| same_owner(lock, wanted));
        Ok(encoded(&SetLockReply { holds }))
    }

    /// A client lives on, or ends.
    pub(crate) fn renew_locks(&mut self, msg: &RenewLocksReq) -> Attempt<Bytes> {
        if msg.end {
            self.end_locks(msg.holder)?;
        }
        let ids = self.lock_leases.renew(msg.holder, self.lease_clock.now());
        Ok(encoded(&RenewLocksReply { ids }))
    }
}
