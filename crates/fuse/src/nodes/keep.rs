//! How long the kernel may keep the name of a directory without asking: while the mount has a lease on
//! it (decision 20). Only names that are asked for all the time are worth one.

use std::time::Duration;

use saker_runtime::time::Time;
use saker_types::limits::{NAME_KEEP, NAME_LEASE};

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
    /// When a lease on it was asked for.
    pub(super) tried: Time,
    /// The kernel is to ask for the name each time until then, and a server to answer: names below it
    /// may be kept.
    let_go: Time,
    /// Counts the names that the node has had: what was said of another one does not count.
    pub(super) version: u32,
}

impl Keep {
    /// The kernel asks for the name. False: a server must be asked.
    pub(super) fn ask(&mut self, now: Time) -> bool {
        if now.since(self.since) > NAME_KEEP {
            (self.asked, self.since) = (0, now);
        }
        self.asked = self.asked.saturating_add(1);
        now >= self.let_go
    }

    /// It asks often, or did so before it could keep the name.
    pub(super) fn is_hot(&self, now: Time, often: u32) -> bool {
        let asks = self.asked >= often && now.since(self.since) <= NAME_KEEP;
        now >= self.let_go && (asks || self.was_kept(now))
    }

    /// A lease should be asked for again.
    pub(super) fn ends_soon(&self, now: Time) -> bool {
        self.until <= now + NAME_KEEP / 2 && now.since(self.tried) >= NAME_KEEP / 4
    }

    /// For how long from now the kernel may keep it.
    pub(super) fn left(&self, now: Time) -> Duration {
        self.until.since(now)
    }

    /// The kernel may keep the name, or could a moment ago.
    fn was_kept(&self, now: Time) -> bool {
        self.until > Time::ZERO && self.until + NAME_KEEP > now
    }

    /// From now on it may not. True: it may until it asks again.
    pub(super) fn let_go(&mut self, now: Time) -> bool {
        let was_kept = self.was_kept(now);
        if was_kept {
            self.end();
            self.let_go = now + NAME_LEASE;
        }
        was_kept
    }

    /// Nor while the name is being changed. True: names below it may be kept.
    pub(super) fn begin_change(&mut self, now: Time) -> bool {
        let was_let_go = now < self.let_go;
        self.let_go = Time::MAX;
        was_let_go
    }

    /// The name was changed.
    pub(super) fn end_change(&mut self, was_let_go: bool, now: Time) {
        self.let_go = if was_let_go { now + NAME_LEASE } else { Time::ZERO };
    }

    /// The node has this name no more.
    pub(super) fn end(&mut self) {
        let version = self.version.wrapping_add(1);
        *self = Keep { version, let_go: self.let_go, ..Keep::default() };
    }
}
