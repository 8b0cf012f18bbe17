//! Ids of inodes and transactions, never given out twice: also not by a shard whose directory was
//! put back from a copy (docs/decisions/0045). They are reserved in the journal first, and then with
//! the coordinator, which knows how far each shard has come; only then they are given out.

use std::ops::Range;

use bytes::Bytes;
use saker_rpc::hello::RoleKind;
use saker_types::change::What;
use saker_types::id::{COUNTER_BITS, compose};
use saker_types::wire::{Empty, MarkReq, Op};
use saker_types::{ClusterMap, Errno, Error, InodeId, NodeId, ShardNo};

use crate::shard::{Handle, Shard};

/// Ids of the first reservation after a start: as many are lost with each start at most.
const IDS_FIRST: u64 = 1 << 18;
/// Each reservation is twice as large as the one before, up to this: so the ids outlast a coordinator
/// that is down for about as long as the shard has run.
const IDS_MAX: u64 = 1 << 24;

/// The ids of a shard.
pub(crate) struct Ids {
    next: u64,
    /// Below, ids may be given out now.
    granted: u64,
    /// Below, they may have been given out: in the journal.
    reserved: u64,
    /// Below, the coordinator knows that.
    told: u64,
    /// How many the next reservation is for.
    block: u64,
    /// A reservation is under way.
    asking: bool,
    /// The coordinator must know first.
    tells: bool,
}

impl Ids {
    /// After a start: what the journal says.
    pub(crate) fn new(reserved: u64, told: u64, tells: bool) -> Ids {
        let reserved = reserved.max(saker_types::ROOT + 1);
        let (next, granted, block) = (reserved, reserved, IDS_FIRST);
        Ids { next, granted, reserved, told, block, asking: false, tells }
    }

    /// What this shard will give out from now on, nobody has had.
    pub(crate) fn to_come(&self, allocator: u16) -> Range<InodeId> {
        compose(allocator, self.next)..compose(allocator, (1 << COUNTER_BITS) - 1)
    }

    /// What the journal must say again.
    pub(crate) fn snapshot(&self) -> [What; 2] {
        [What::IdsReserved(self.reserved), What::IdsTold(self.told)]
    }

    fn request(&self, shard: u16, have: u64) -> MarkReq {
        let (role, told, want) = (RoleKind::Shard as u32, self.told, self.reserved);
        MarkReq { role, n: shard.into(), told, have, want, token: 0 }
    }
}

impl Shard {
    /// A number never given out before, for inodes and transactions.
    ///
    /// # Errors
    /// "Try again" while the coordinator has to be asked first; ENOSPC when all are used up.
    pub fn new_id(&mut self) -> Result<u64, Error> {
        if self.ids.granted - self.ids.next <= self.ids.block / 4 {
            self.reserve_ids()?;
        }
        if self.ids.next >= self.ids.granted {
            return Err(Error::retry("ids are being reserved with the coordinator"));
        }
        let id = compose(allocator(&self.map, self.no), self.ids.next);
        self.ids.next += 1;
        Ok(id)
    }

    /// What the coordinator must find no older than what it knows, before this shard serves.
    pub(crate) fn mark_to_compare(&self) -> MarkReq {
        self.ids.request(self.no, self.ids.reserved)
    }

    /// Reserves ids ahead of their use.
    pub(crate) fn reserve_ids(&mut self) -> Result<(), Error> {
        if self.ids.asking {
            return Ok(());
        }
        let have = self.ids.reserved;
        let want = have + self.ids.block;
        if want >= 1 << COUNTER_BITS {
            return Err(Error::new(Errno::ENOSPC).with_text("inode numbers are used up"));
        }
        self.ids.reserved = want;
        self.ids.block = (self.ids.block * 2).min(IDS_MAX);
        self.log_change(What::IdsReserved(want));
        if !self.ids.tells {
            self.ids.granted = want;
            return Ok(());
        }
        self.ids.asking = true;
        let token = saker_runtime::rand::u64();
        let request = MarkReq { token, ..self.ids.request(self.no, have) };
        let h = self.handle();
        self.hub.spawn(tell(h, request));
        Ok(())
    }
}

/// Whose ids a shard gives out.
pub(crate) fn allocator(map: &ClusterMap, no: ShardNo) -> u16 {
    map.shards.get(usize::from(no)).map_or(0, |s| s.allocator as u16)
}

/// The message leaves when the reservation is durable, as every message.
async fn tell(h: Handle, request: MarkReq) {
    let to = NodeId::Coordinator;
    let told = h.hub.ask_until::<Empty>(to, Op::Mark, 0, &request, Bytes::new()).await;
    let mut s = h.shard();
    match told {
        Ok(_) => {
            let want = request.want;
            (s.ids.told, s.ids.granted, s.ids.asking) = (want, want, false);
            s.log_change(What::IdsTold(want));
        }
        Err(error) => saker_runtime::sim::abort_process(&error.to_string()),
    }
}
