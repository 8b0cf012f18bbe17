//! Histories made by hand.

use bytes::Bytes;

use super::super::history::{OPEN, Path, WorldSeen};
use super::*;

const ID: InodeId = 9;

/// Calls, each after the one before, on a file whose first chunk is on store 0.
#[derive(Default)]
struct Made {
    entries: Vec<WorldEntry>,
    losses: Vec<(StoreNo, u64)>,
    now: u64,
}

impl Made {
    fn add(mut self, call: WorldCall, answer: WorldAnswer) -> Made {
        let invoked = self.now + 1;
        self.now += 2;
        let unknown = matches!(answer, WorldAnswer::Unknown(_));
        let returned = if unknown { OPEN } else { self.now };
        self.entries.push(WorldEntry { client: 0, call, invoked, returned, answer });
        self
    }

    fn write(self, start: u64, end: u64, tag: u8) -> Made {
        self.add(WorldCall::Write { id: ID, start, end, tag }, WorldAnswer::Done)
    }

    fn lost_write(self, start: u64, end: u64, tag: u8) -> Made {
        let lost = WorldAnswer::Unknown("no answer in time".into());
        self.add(WorldCall::Write { id: ID, start, end, tag }, lost)
    }

    fn cut(self, size: u64) -> Made {
        self.add(WorldCall::Truncate { of: CallSubject::Open(ID), size }, WorldAnswer::Done)
    }

    fn fsync(self) -> Made {
        self.add(WorldCall::Fsync { id: ID }, WorldAnswer::Done)
    }

    fn failed_fsync(self) -> Made {
        self.add(
            WorldCall::Fsync { id: ID },
            WorldAnswer::Unknown(format!("a store {LOST} of this file")),
        )
    }

    fn power_loss(mut self, store: StoreNo) -> Made {
        self.losses.push((store, self.now));
        self
    }

    /// May a read from the start see this?
    fn may_read(&self, bytes: &[u8]) -> bool {
        let seen = WorldSeen { id: ID, mode: 0, nlink: 1, size: bytes.len() as u64, mtime_ns: 0 };
        let call = WorldCall::Read { at: Path::of(&[0]), offset: 0, len: 100 };
        let read = Made { entries: self.entries.clone(), losses: self.losses.clone(), ..*self };
        let read = read.add(call, WorldAnswer::Data(seen, Bytes::copy_from_slice(bytes)));
        let stores_of = |_: InodeId, chunk: u64| vec![chunk as StoreNo];
        check(&read.entries, &read.losses, stores_of).is_ok()
    }
}

#[test]
fn a_read_has_what_was_written_last() {
    let made = Made::default().write(0, 4, 1).write(2, 6, 2);
    assert!(made.may_read(&[1, 1, 2, 2, 2, 2]));
    for wrong in [[1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 2, 0], [1, 1, 0, 2, 2, 2], [3, 1, 2, 2, 2, 2]] {
        assert!(!made.may_read(&wrong), "{wrong:?}");
    }
    let made = made.lost_write(0, 1, 3);
    assert!(made.may_read(&[1, 1, 2]) && made.may_read(&[3, 1, 2]));
    assert!(!made.may_read(&[2, 1, 2]));
    let made = made.write(0, 1, 4);
    assert!(made.may_read(&[4]) && made.may_read(&[3]), "it may come late");
    assert!(!made.may_read(&[1]));
}

#[test]
fn holes_and_what_was_cut_are_zeros() {
    let made = Made::default().write(4, 6, 1);
    assert!(made.may_read(&[0, 0, 0, 0, 1, 1]));
    let made = made.cut(5).write(7, 8, 2);
    assert!(made.may_read(&[0, 0, 0, 0, 1, 0, 0, 2]));
    assert!(!made.may_read(&[0, 0, 0, 0, 1, 1, 0, 2]), "data from before the truncation");
}

#[test]
fn what_was_not_fsynced_may_go_with_the_power() {
    let made = Made::default().write(0, 2, 1).fsync().write(0, 2, 2);
    assert!(!made.may_read(&[1, 1]));
    assert!(
        !Made { losses: vec![(1, made.now)], ..made.copy() }.may_read(&[1, 1]),
        "another store"
    );
    let made = made.power_loss(0);
    assert!(made.may_read(&[1, 1]) && made.may_read(&[2, 1]) && made.may_read(&[2, 2]));
    assert!(!made.may_read(&[0, 0]), "that was fsynced");
    let told = made.copy().failed_fsync().fsync();
    assert!(told.may_read(&[1, 1]), "somebody was told");
    assert!(!made.fsync().may_read(&[1, 1]), "an fsync that succeeds without its data");
}

#[test]
fn nothing_is_lost_without_a_reason() {
    assert!(!Made::default().write(0, 1, 1).failed_fsync().may_read(&[1]));
}

impl Made {
    fn copy(&self) -> Made {
        Made { entries: self.entries.clone(), losses: self.losses.clone(), now: self.now }
    }
}
