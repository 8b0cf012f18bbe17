//! How long the kernel may keep the name of a directory without asking: while the mount has a lease on
//! it (decision 20). Only names that are asked for all the time are worth one.

use std::time::Duration;

use saker_runtime::time::Time;
use saker_types::limits::NAME_KEEP;

use crate::options::Leases;

/// Times that the kernel asks for a name within `NAME_KEEP` before it may keep it.
const OFTEN: u32 = 8;

impl Leases {
    /// The same in times; nothing is asked for that often if no name is to be kept.
    pub(super) fn often(self) -> u32 {
        match self {
            Leases::Hot => OFTEN,
            Leases::All => 1,
            Leases::Off => u32::MAX,
        }
    }
}

/// One name's.
#[derive(Default)]
pub(super) struct Keep {
    /// The kernel may keep it until then.
    pub(super) until: Time,
    /// Times that it was asked for since.
    asked: u32,
    since: Time,
    /// Counts the names that the node has had: what was said of another one does not count.
    pub(super) version: u32,
}

impl Keep {
    /// The kernel asks for the name.
    pub(super) fn ask(&mut self, now: Time) {
        if now.since(self.since) > NAME_KEEP {
            (self.asked, self.since) = (0, now);
        }
        self.asked = self.asked.saturating_add(1);
    }

    /// It asks often, or did so before it could keep the name.
    pub(super) fn is_hot(&self, now: Time, often: u32) -> bool {
        self.was_kept(now) || (self.asked >= often && now.since(self.since) <= NAME_KEEP)
    }

    /// The kernel may keep the name, or could a moment ago.
    pub(super) fn was_kept(&self, now: Time) -> bool {
        self.until + NAME_KEEP > now && self.until > Time::ZERO
    }

    /// For how long from now the kernel may keep it.
    pub(super) fn left(&self, now: Time) -> Duration {
        self.until.since(now)
    }

    /// The node has this name no more.
    pub(super) fn end(&mut self) {
        *self = Keep { version: self.version.wrapping_add(1), ..Keep::default() };
    }
}
