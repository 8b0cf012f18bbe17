//! unlink. A plain file is one batch of one shard; of a hard link, the reference is here and the
//! attributes may be elsewhere: then a transaction, driven here.

use std::rc::Rc;

use bytes::Bytes;
use saker_rpc::txn;
use saker_types::placement::Slot;
use saker_types::time::later;
use saker_types::wire::{RemoveReq, Removed};
use saker_types::{Errno, Error, Inode, InodeId, Key, Locator};

use super::needs_name;
use crate::request::{Attempt, Rq, Stop};
use crate::rules::names::may_remove;
use crate::shard::{Shard, encoded};
use crate::txn::driver::{ShardTransaction, applied};

impl Shard {
    /// Removes an entry that is no directory.
    pub(crate) fn unlink(&mut self, rq: &Rq, msg: &RemoveReq) -> Attempt<Bytes> {
        let name = needs_name(&msg.at)?;
        let cred = &msg.ctx.cred;
        let parent = self.parent(rq, cred, &msg.at)?;
        let key = self.own_key(parent.dir.id, name)?;
        let Some(inode) = self.entry_free(&key)? else {
            return Err(Error::at(Errno::ENOENT, msg.at.path.len() - 1).into());
        };
        let owner = self.owner_of(&inode)?;
        let only_owner = may_remove(&parent.dir, owner, cred)?;
        if inode.attr.is_dir() {
            return Err(Errno::EISDIR.into());
        }
        self.not_frozen(parent.dir.id)?;
        if let Some(stop) = self.unlink_remote(&key, &inode, msg, only_owner)? {
            return Err(stop);
        }
        let (slot, id) = (self.map.slot_of(key.pid, &key.name), inode.attr.id);
        self.remove_entry(&key, &inode)?;
        match inode.home_slot {
            None => self.put_orphan(slot, (*inode).clone()),
            Some(home) => {
                self.change_nlink(Slot::from_wire(home), id, -1)?;
                // A handle that was opened by this name goes on at the home.
                self.put_moved(slot, id, Locator::home(id, home));
            }
        }
        Ok(encoded(&Removed { inode: inode.attr.id }))
    }

    /// Owner of the inode of an entry, for the sticky bit; `None`: its home knows.
    pub(crate) fn owner_of(&mut self, inode: &Inode) -> Attempt<Option<u32>> {
        match inode.home_slot.map(Slot::from_wire) {
            None => Ok(Some(inode.attr.uid)),
            Some(home) if !self.owns_slot(home) => Ok(None),
            Some(home) => Ok(self.attr_row(home, inode.attr.id)?.map(|home| home.attr.uid)),
        }
    }

    /// Are the inode's attributes on another shard?
    fn is_remote(&self, inode: &Inode) -> bool {
        inode.home_slot.is_some_and(|slot| !self.owns_slot(Slot::from_wire(slot)))
    }

    /// Changes the link count of an attribute row here; at zero the inode is an orphan.
    pub(crate) fn change_nlink(&mut self, home: Slot, id: InodeId, delta: i32) -> Attempt<()> {
        let Some(row) = self.attr_row(home, id)? else {
            tracing::error!("hard link to inode {id:#x}, which has no attributes here");
            return Err(Errno::EIO.into());
        };
        let mut row = (*row).clone();
        row.attr.nlink = row.attr.nlink.saturating_add_signed(delta);
        row.attr.ctime_ns = later(row.attr.ctime_ns, self.wall_ns());
        if row.attr.nlink == 0 {
            self.delete_attr_row(home, id);
            self.put_orphan(home, row);
        } else {
            self.put_attr_row(home, row);
        }
        Ok(())
    }

    /// `Some` if the attributes are on another shard: the transaction that does it.
    fn unlink_remote(
        &mut self,
        key: &Key,
        inode: &Rc<Inode>,
        msg: &RemoveReq,
        only_owner: bool,
    ) -> Attempt<Option<Stop>> {
        let Some(slot) = inode.home_slot else { return Ok(None) };
        let id = inode.attr.id;
        if !self.is_remote(inode) {
            self.attr_free(Slot::from_wire(slot), id)?;
            return Ok(None);
        }
        let txn = txn::begin(self)?;
        self.row_locks.lock_entry(key, txn);
        let (key, inode, ctx) = (key.clone(), inode.clone(), msg.ctx.clone());
        Ok(Some(self.task(move |h| async move {
            let mut txn = ShardTransaction::new(h.rc(), txn, Some(key.clone()));
            txn.prepare_home(&ctx, &inode, -1, only_owner).await?;
            txn.commit(|s| {
                let removed = s.remove_entry(&key, &inode);
                applied(removed.map(|()| {
                    let left = s.map.slot_of(key.pid, &key.name);
                    s.put_moved(left, id, Locator::home(id, slot));
                    encoded(&Removed { inode: id })
                }))
            })
        })))
    }
}

#[cfg(test)]
mod tests {
    use saker_types::ROOT;
    use saker_types::wire::{CreateReq, Entry, Op};

    use super::*;
    use crate::testing::{Tester, errno, user};

    #[test]
    fn the_name_goes_and_the_inode_is_an_orphan() {
        let mut t = Tester::new();
        let id = t.create("f").unwrap().attr.id;
        assert_eq!(t.unlink("f").unwrap().inode, id);
        assert_eq!((t.row("f"), t.counts(ROOT)), (None, (0, 0)));
        let orphan = t.gone(id).unwrap().orphan.unwrap();
        assert_eq!((orphan.attr.id, orphan.attr.nlink), (id, 0));
        let error = t.unlink("f").unwrap_err();
        assert_eq!((error.errno(), error.component), (Errno::ENOENT, Some(0)));
    }

    #[test]
    fn of_two_names_one_is_left() {
        let mut t = Tester::new();
        let id = t.create("f").unwrap().attr.id;
        t.link("f", "g").unwrap();
        t.unlink("f").unwrap();
        assert_eq!(t.attr_row(id).unwrap().attr.nlink, 1);
        assert!(t.gone(id).unwrap().moved.is_some(), "handles go on at the home");
        t.unlink("g").unwrap();
        assert_eq!(t.attr_row(id), None);
        assert_eq!(t.gone(id).unwrap().orphan.unwrap().attr.nlink, 0);
    }

    #[test]
    fn directories_and_files_of_others_in_sticky_ones_stay() {
        let mut t = Tester::new();
        let request = t.create_req("d", saker_types::FileKind::Directory);
        let mode = saker_types::FileKind::Directory.bits() | 0o1777;
        t.ask::<Entry>(Op::Mkdir, &CreateReq { mode, ..request }).unwrap();
        assert_eq!(errno(t.unlink("d")), Errno::EISDIR);
        t.cred = user(5);
        t.create("d/f").unwrap();
        t.cred = user(6);
        assert_eq!(errno(t.unlink("d/f")), Errno::EPERM);
        assert_eq!(errno(t.unlink("d")), Errno::EACCES);
        t.cred = user(5);
        t.unlink("d/f").unwrap();
    }
}
