//! Policies of subtrees: how consistent and how durable (Cudele section 3).
//!
//! A policy is a composition of [`Mechanism`]s and a few numbers. It is written as keys and values
//! (section 3.3), which files and extended attributes have alike. [`explain`] says what it promises.

pub mod explain;
mod id;
mod mechanism;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

pub use id::PolicyId;
pub use mechanism::{Composition, Mechanism, Refused};

/// Keys of a policy, in the order in which they are shown.
pub const KEYS: [&str; 5] =
    ["consistency", "durability", "allocated_inodes", "interfere_policy", "sync_interval"];

/// Inodes that are provisioned at a time, unless the policy says otherwise (section 3.3).
pub const ALLOCATED_INODES: u64 = 100;
/// Most inodes that are provisioned at a time.
pub const ALLOCATED_INODES_MAX: u64 = 1 << 24;
/// Shortest interval between two syncs.
pub const SYNC_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Longest interval between two syncs.
pub const SYNC_INTERVAL_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// When other clients see an operation: the columns of Table 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Consistency {
    /// When somebody merges the subtree.
    Invisible,
    /// Some time later: the client merges by itself.
    Weak,
    /// When it is answered.
    Strong,
}

impl Consistency {
    #[allow(missing_docs)]
    pub const ALL: [Consistency; 3] =
        [Consistency::Invisible, Consistency::Weak, Consistency::Strong];

    #[allow(missing_docs)]
    pub fn name(self) -> &'static str {
        match self {
            Consistency::Invisible => "invisible",
            Consistency::Weak => "weak",
            Consistency::Strong => "strong",
        }
    }

    fn composition(self) -> Composition {
        use Mechanism::*;
        Composition::of(match self {
            Consistency::Invisible => &[AppendClientJournal],
            Consistency::Weak => &[AppendClientJournal, VolatileApply],
            Consistency::Strong => &[Rpcs],
        })
    }
}

/// What outlives which crash: the rows of Table 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// What is in memory only may be lost.
    None,
    /// The client has it on its disk.
    Local,
    /// The cluster has it on its disks.
    Global,
}

impl Durability {
    #[allow(missing_docs)]
    pub const ALL: [Durability; 3] = [Durability::None, Durability::Local, Durability::Global];

    #[allow(missing_docs)]
    pub fn name(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Local => "local",
            Durability::Global => "global",
        }
    }

    /// Beside the mechanism that records the operations.
    fn composition(self, records: Mechanism) -> Composition {
        use Mechanism::*;
        Composition::of(match (self, records) {
            (Durability::None, _) => &[],
            (Durability::Local, _) => &[LocalPersist],
            (Durability::Global, Rpcs) => &[Stream],
            (Durability::Global, _) => &[GlobalPersist],
        })
    }
}

/// How requests of other clients are answered while a subtree is in use (section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interfere {
    /// They are let in. Where both have changed a name, the subtree's client wins.
    Allow,
    /// EBUSY.
    Block,
}

impl Interfere {
    #[allow(missing_docs)]
    pub fn name(self) -> &'static str {
        match self {
            Interfere::Allow => "allow",
            Interfere::Block => "block",
        }
    }
}

/// What is promised of a subtree. Made by [`Policy::from_pairs`], which refuses what makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    composition: Composition,
    /// Inode numbers that a client is given at a time for what it makes.
    pub allocated_inodes: u64,
    #[allow(missing_docs)]
    pub interfere: Interfere,
    /// How often the client persists and merges in the background, besides at its end.
    pub sync_interval: Option<Duration>,
}

impl Default for Policy {
    /// Of every directory for which none was set: strong and global.
    fn default() -> Policy {
        Policy {
            composition: Composition::of(&[Mechanism::Rpcs, Mechanism::Stream]),
            allocated_inodes: ALLOCATED_INODES,
            interfere: Interfere::Allow,
            sync_interval: None,
        }
    }
}

impl Policy {
    /// A cell of Table 2.
    pub fn cell(consistency: Consistency, durability: Durability) -> Policy {
        let first = consistency.composition();
        let after = durability.composition(first.0[0][0]);
        Policy { composition: first.with_after_first(after), ..Policy::default() }
    }

    /// Reads keys and values. What is not there has its default: `rpcs` and `stream`, as in the paper.
    ///
    /// `consistency` and `durability` are the names of Table 2, or compositions. Those of durability
    /// are done after the first stage of consistency, as in Table 2.
    ///
    /// # Errors
    /// Unknown or repeated keys, values that are none, and compositions that make no sense.
    pub fn from_pairs<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Policy, Refused> {
        let mut values = [None; KEYS.len()];
        for (key, value) in pairs {
            let at = KEYS.iter().position(|known| *known == key).ok_or_else(|| {
                Refused::new(format!(
                    "{key:?} is no key of a policy; these are: {}",
                    KEYS.join(", ")
                ))
            })?;
            if values[at].replace(value.trim()).is_some() {
                return Err(Refused::new(format!("{key} is there twice")));
            }
        }
        let [consistency, durability, inodes, interfere, interval] = values;
        let policy = Policy {
            composition: composed(consistency, durability)?,
            allocated_inodes: inodes.map_or(Ok(ALLOCATED_INODES), read_inodes)?,
            interfere: interfere.map_or(Ok(Interfere::Allow), read_interfere)?,
            sync_interval: interval.map_or(Ok(None), read_interval)?,
        };
        policy.check()?;
        Ok(policy)
    }

    /// The keys with their values, from which [`Policy::from_pairs`] makes the same policy: by the names
    /// of Table 2 where it is one of its cells.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let interval = self.sync_interval.map_or("none".to_owned(), seconds);
        let (consistency, durability) = (self.consistency(), self.durability());
        let (first, after) = match Policy::cell(consistency, durability).composition {
            cell if cell == self.composition => {
                (consistency.name().to_owned(), durability.name().to_owned())
            }
            _ => {
                let (first, after) = self.consistency_and_durability();
                let is_none = after.0.is_empty();
                let after = if is_none { "none".to_owned() } else { after.to_string() };
                (first.to_string(), after)
            }
        };
        vec![
            ("consistency", first),
            ("durability", after),
            ("allocated_inodes", self.allocated_inodes.to_string()),
            ("interfere_policy", self.interfere.name().to_owned()),
            ("sync_interval", interval),
        ]
    }

    /// What is done, in which order.
    pub fn composition(&self) -> &Composition {
        &self.composition
    }

    /// The client answers by itself, and merges later or never.
    pub fn is_decoupled(&self) -> bool {
        self.composition.has(Mechanism::AppendClientJournal)
    }

    /// The column of Table 2.
    pub fn consistency(&self) -> Consistency {
        match (self.is_decoupled(), self.composition.mechanisms().any(Mechanism::applies)) {
            (false, _) => Consistency::Strong,
            (true, true) => Consistency::Weak,
            (true, false) => Consistency::Invisible,
        }
    }

    /// The row of Table 2.
    pub fn durability(&self) -> Durability {
        let has = |mechanism| self.composition.has(mechanism);
        match (
            has(Mechanism::Stream) || has(Mechanism::GlobalPersist),
            has(Mechanism::LocalPersist),
        ) {
            (true, _) => Durability::Global,
            (false, true) => Durability::Local,
            (false, false) => Durability::None,
        }
    }

    /// As two keys: what persists right after the first mechanism alone is durability's.
    fn consistency_and_durability(&self) -> (Composition, Composition) {
        let is_after = |stage: &Vec<Mechanism>| stage.iter().all(|one| one.persists());
        let count = self.composition.0[1..].iter().take_while(|stage| is_after(stage)).count();
        let mut first = self.composition.clone();
        let after = first.0.drain(1..1 + count).collect();
        (first, Composition(after))
    }

    fn check(&self) -> Result<(), Refused> {
        mechanism::check(&self.composition)?;
        let has_work = self.composition.mechanisms().any(Mechanism::applies)
            || self.composition.has(Mechanism::GlobalPersist);
        if self.sync_interval.is_some() && !has_work {
            let why = "sync_interval: nothing is merged or saved later";
            return Err(Refused::new(format!("{why} with {}", self.composition)));
        }
        Ok(())
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.consistency().name(), self.durability().name())
    }
}

fn composed(consistency: Option<&str>, durability: Option<&str>) -> Result<Composition, Refused> {
    let named = |name: &str| Consistency::ALL.into_iter().find(|one| one.name() == name);
    let first = match consistency.unwrap_or("rpcs") {
        name if let Some(consistency) = named(name) => consistency.composition(),
        text => Composition::parse(text)?,
    };
    mechanism::check(&first)?;
    let has_own = first.mechanisms().any(Mechanism::persists);
    let records = first.mechanisms().find(|one| one.records()).unwrap_or(Mechanism::Rpcs);
    let named = |name: &str| Durability::ALL.into_iter().find(|one| one.name() == name);
    let after = match durability {
        // Whoever composes all of it in one key need not say it again.
        None if has_own => Composition::default(),
        None => Composition::of(&[Mechanism::Stream]),
        Some(name) if let Some(durability) = named(name) => durability.composition(records),
        Some(text) => Composition::parse(text)?,
    };
    if let Some(other) = after.mechanisms().find(|one| !one.persists()) {
        return Err(Refused::new(format!("durability: {other} makes nothing durable")));
    }
    Ok(first.with_after_first(after))
}

fn read_inodes(text: &str) -> Result<u64, Refused> {
    match text.parse() {
        Ok(count @ 1..=ALLOCATED_INODES_MAX) => Ok(count),
        _ => Err(Refused::new(format!(
            "allocated_inodes: {text:?} is no number from 1 to {ALLOCATED_INODES_MAX}"
        ))),
    }
}

fn read_interfere(text: &str) -> Result<Interfere, Refused> {
    let known = [Interfere::Allow, Interfere::Block].into_iter().find(|one| one.name() == text);
    known.ok_or_else(|| {
        Refused::new(format!("interfere_policy: {text:?} is neither allow nor block"))
    })
}

/// `none`, or a number of seconds, or one with `ms`, `s`, `m` or `h`.
fn read_interval(text: &str) -> Result<Option<Duration>, Refused> {
    if text == "none" {
        return Ok(None);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => 0,
    };
    let count: Option<u64> = digits.trim_end().parse().ok();
    let interval = count.and_then(|n| n.checked_mul(unit_ms)).map(Duration::from_millis);
    match interval {
        Some(every) if (SYNC_INTERVAL_MIN..=SYNC_INTERVAL_MAX).contains(&every) => Ok(Some(every)),
        _ => Err(Refused::new(format!(
            "sync_interval: {text:?} is no time from 10ms to 720h (ms, s, m, h)"
        ))),
    }
}

fn seconds(interval: Duration) -> String {
    match interval.as_millis() {
        ms if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}
