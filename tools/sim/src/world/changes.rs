//! Nodes come, go and move while a run is under way. The coordinator is told by a newer map in its
//! journal, with which it starts again, as if an operator had written it.
//!
//! What of it the scripts do by themselves is [`TODAY`]. The rest is for `simulate --changes`, until
//! the cluster can do it (docs/simulation.md says what goes wrong).

use std::time::Duration;

use saker_runtime::rand::Rng;
use saker_types::NodeId;

use super::faults::Size;

/// A change of the cluster's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A shard comes, which owns no slots.
    AddShard,
    /// A store comes, with an empty disk: some chunks belong there from now on.
    AddStore,
    /// A node goes on with its data on another machine, at another address, after a while.
    Replace(NodeId, Duration),
    /// The last shard leaves; it owns no slots.
    RemoveShard,
    /// The last store leaves; it has no chunks.
    RemoveStore,
}

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    AddShard,
    AddStore,
    ReplaceCoordinator,
    ReplaceShard,
    ReplaceStore,
    RemoveShard,
    RemoveStore,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 7] = [
        Kind::AddShard,
        Kind::AddStore,
        Kind::ReplaceCoordinator,
        Kind::ReplaceShard,
        Kind::ReplaceStore,
        Kind::RemoveShard,
        Kind::RemoveStore,
    ];

    /// As `simulate --changes` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::AddShard => "add-shard",
            Kind::AddStore => "add-store",
            Kind::ReplaceCoordinator => "replace-coordinator",
            Kind::ReplaceShard => "replace-shard",
            Kind::ReplaceStore => "replace-store",
            Kind::RemoveShard => "remove-shard",
            Kind::RemoveStore => "remove-store",
        }
    }

    fn draw(self, rng: &mut Rng, size: Size) -> Change {
        let down = Duration::from_millis(1 + rng.below(300));
        let mut one_of = |count: u16| rng.below(u64::from(count)) as u16;
        match self {
            Kind::AddShard => Change::AddShard,
            Kind::AddStore => Change::AddStore,
            Kind::ReplaceCoordinator => Change::Replace(NodeId::Coordinator, down),
            Kind::ReplaceShard => Change::Replace(NodeId::Shard(one_of(size.shards)), down),
            Kind::ReplaceStore => Change::Replace(NodeId::Store(one_of(size.stores)), down),
            Kind::RemoveShard => Change::RemoveShard,
            Kind::RemoveStore => Change::RemoveStore,
        }
    }
}

/// The changes that a cluster of today survives, each by itself.
pub const TODAY: &[Kind] = &[Kind::AddShard, Kind::ReplaceShard];

/// With which of the clients' calls something changes.
pub type Timed = (usize, Change);

/// Most changes of a run.
const CHANGES_MAX: u64 = 2;

/// Draws at least one change of these kinds.
pub fn draw(rng: &mut Rng, kinds: &[Kind], size: Size, calls: usize) -> Vec<Timed> {
    let count = 1 + rng.below(CHANGES_MAX);
    let mut changes: Vec<Timed> = (0..count)
        .map(|_| {
            let at = rng.below(calls as u64) as usize;
            let kind = kinds[rng.below(kinds.len() as u64) as usize];
            (at, kind.draw(rng, size))
        })
        .collect();
    changes.sort_by_key(|(at, _)| *at);
    changes
}
