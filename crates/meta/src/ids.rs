//! Ids of inodes and transactions, never given out twice: also not by a shard whose directory was
//! put back from a copy (docs/decisions/0045). They are reserved in the journal first, and then with
//! the coordinator, which knows how far each shard has come; only then they are given out.

use bytes::Bytes;
use saker_rpc::hello::RoleKind;
use saker_types::change::What;
use saker_types::wire::{Empty, MarkReq, Op};
use saker_types::{Errno, Error, NodeId};

use crate::shard::{Shard, ShardHandle};

impl Shard {
    /// A number never given out before, for inodes and transactions.
    ///
    /// # Errors
    /// "Try again" while the coordinator has to be asked first; ENOSPC when all are used up.
    pub fn new_id(&mut self) -> Result<u64, Error> {
        if self.ids.are_few() {
            self.reserve_ids()?;
        }
        let id = self.ids.take(self.allocator());
        id.ok_or_else(|| Error::retry("ids are being reserved with the coordinator"))
    }

    /// A number for a new inode.
    ///
    /// # Errors
    /// As [`Shard::new_id`]; of a private shard "try again" while it has none.
    pub(crate) fn new_inode_id(&mut self) -> Result<u64, Error> {
        if self.limits.private { self.take_given_id() } else { self.new_id() }
    }

    /// What the coordinator must find no older than what it knows, before this shard serves.
    pub(crate) fn mark_to_compare(&self) -> MarkReq {
        self.mark(self.ids.reserved())
    }

    fn mark(&self, have: u64) -> MarkReq {
        let (told, want) = (self.ids.told(), self.ids.reserved());
        MarkReq { role: RoleKind::Shard as u32, n: self.no.into(), told, have, want, token: 0 }
    }

    /// Reserves ids ahead of their use.
    pub(crate) fn reserve_ids(&mut self) -> Result<(), Error> {
        let used_up = || Error::new(Errno::ENOSPC).with_text("inode numbers are used up");
        let Some(reservation) = self.ids.reserve().map_err(|_| used_up())? else { return Ok(()) };
        self.log_change(What::IdsReserved(reservation.want));
        if reservation.must_tell {
            let token = saker_runtime::rand::u64();
            let request = MarkReq { token, ..self.mark(reservation.have) };
            let h = self.handle();
            self.hub.spawn(tell(h, request));
        }
        Ok(())
    }
}

/// The message leaves when the reservation is durable, as every message.
async fn tell(h: ShardHandle, request: MarkReq) {
    let to = NodeId::Coordinator;
    let told = h.hub.ask_until::<Empty>(to, Op::Mark, 0, &request, Bytes::new()).await;
    let mut s = h.shard();
    match told {
        Ok(_) => {
            s.ids.granted(request.want);
            s.log_change(What::IdsTold(request.want));
        }
        Err(error) => saker_runtime::sim::abort_process(&error.to_string()),
    }
}
