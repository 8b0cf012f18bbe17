//! How far a shard's ids are reserved (docs/decisions/0045): in the journal first, then with the coordinator,
//! and only then they are given out.

use std::ops::Range;

use saker_types::InodeId;
use saker_types::change::What;
use saker_types::id::{COUNTER_BITS, compose};

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

/// A reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    /// Below, ids were reserved before.
    pub(crate) have: u64,
    /// Below, they are now.
    pub(crate) want: u64,
    /// The coordinator must be told before they are given out.
    pub(crate) must_tell: bool,
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

    /// Below, ids may have been given out.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Below, the coordinator knows that.
    pub(crate) fn told(&self) -> u64 {
        self.told
    }

    /// Should more be reserved?
    pub(crate) fn are_few(&self) -> bool {
        self.granted - self.next <= self.block / 4
    }

    /// Gives one out, if there is one.
    pub(crate) fn take(&mut self, allocator: u16) -> Option<InodeId> {
        let id = (self.next < self.granted).then(|| compose(allocator, self.next))?;
        self.next += 1;
        Some(id)
    }

    /// Reserves more; `None` while a reservation is under way. The journal must hear of it.
    ///
    /// # Errors
    /// They are used up.
    pub(crate) fn reserve(&mut self) -> Result<Option<Reservation>, UsedUp> {
        if self.asking {
            return Ok(None);
        }
        let (have, want) = (self.reserved, self.reserved + self.block);
        if want >= 1 << COUNTER_BITS {
            return Err(UsedUp);
        }
        self.reserved = want;
        self.block = (self.block * 2).min(IDS_MAX);
        match self.tells {
            true => self.asking = true,
            false => self.granted = want,
        }
        Ok(Some(Reservation { have, want, must_tell: self.tells }))
    }

    /// The coordinator knows of a reservation: they may be given out.
    pub(crate) fn granted(&mut self, want: u64) {
        (self.told, self.granted, self.asking) = (want, want, false);
    }
}

/// All numbers were given out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UsedUp;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_given_out_when_the_coordinator_knows() {
        let mut ids = Ids::new(0, 0, true);
        assert!(ids.are_few() && ids.take(3).is_none());
        let first = ids.reserve().unwrap().unwrap();
        let have = saker_types::ROOT + 1;
        assert_eq!(first, Reservation { have, want: have + IDS_FIRST, must_tell: true });
        assert_eq!((ids.reserve(), ids.take(3)), (Ok(None), None), "it is being asked");
        ids.granted(first.want);
        assert_eq!(ids.take(3), Some(compose(3, have)));
        assert_eq!((ids.told(), ids.reserved()), (first.want, first.want));
        assert!(!ids.are_few());
        // Larger the next time; a start goes on behind what was reserved.
        let second = ids.reserve().unwrap().unwrap();
        assert_eq!(second.want - second.have, IDS_FIRST * 2);
        let mut again = Ids::new(ids.reserved(), ids.told(), false);
        assert_eq!(again.reserve().unwrap().unwrap().have, second.want);
        assert_eq!(again.take(3), Some(compose(3, second.want)));
        assert!(again.to_come(3).contains(&compose(3, second.want + 1)));
    }

    #[test]
    fn they_end() {
        let mut ids = Ids::new((1 << COUNTER_BITS) - IDS_FIRST, 0, false);
        assert_eq!(ids.reserve(), Err(UsedUp));
    }
}
