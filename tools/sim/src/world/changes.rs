//! Nodes come, go and move while a run is under way. The coordinator is told by a newer map in its
//! journal, with which it starts again, as if an operator had written it.
//!
//! What of it the scripts do by themselves is [`TODAY`]. The rest is for `simulate --changes`, until
//! the cluster can do it (docs/simulation.md says what goes wrong).

use std::time::Duration;

use saker_runtime::rand::Rng;
use saker_types::NodeId;

use super::faults::WorldSize;

/// A change of the cluster's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
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
pub enum MemberChangeKind {
    AddShard,
    AddStore,
    ReplaceCoordinator,
    ReplaceShard,
    ReplaceStore,
    RemoveShard,
    RemoveStore,
}

impl MemberChangeKind {
    /// All of them.
    pub const ALL: [MemberChangeKind; 7] = [
        MemberChangeKind::AddShard,
        MemberChangeKind::AddStore,
        MemberChangeKind::ReplaceCoordinator,
        MemberChangeKind::ReplaceShard,
        MemberChangeKind::ReplaceStore,
        MemberChangeKind::RemoveShard,
        MemberChangeKind::RemoveStore,
    ];

    /// As `simulate --changes` calls it.
    pub fn name(self) -> &'static str {
        match self {
            MemberChangeKind::AddShard => "add-shard",
            MemberChangeKind::AddStore => "add-store",
            MemberChangeKind::ReplaceCoordinator => "replace-coordinator",
            MemberChangeKind::ReplaceShard => "replace-shard",
            MemberChangeKind::ReplaceStore => "replace-store",
            MemberChangeKind::RemoveShard => "remove-shard",
            MemberChangeKind::RemoveStore => "remove-store",
        }
    }

    fn draw(self, rng: &mut Rng, size: WorldSize) -> MemberChange {
        let down = Duration::from_millis(1 + rng.below(300));
        let mut one_of = |count: u16| rng.below(u64::from(count)) as u16;
        match self {
            MemberChangeKind::AddShard => MemberChange::AddShard,
            MemberChangeKind::AddStore => MemberChange::AddStore,
            MemberChangeKind::ReplaceCoordinator => {
                MemberChange::Replace(NodeId::Coordinator, down)
            }
            MemberChangeKind::ReplaceShard => {
                MemberChange::Replace(NodeId::Shard(one_of(size.shards)), down)
            }
            MemberChangeKind::ReplaceStore => {
                MemberChange::Replace(NodeId::Store(one_of(size.stores)), down)
            }
            MemberChangeKind::RemoveShard => MemberChange::RemoveShard,
            MemberChangeKind::RemoveStore => MemberChange::RemoveStore,
        }
    }
}

/// The changes that a cluster of today survives, each by itself.
pub const TODAY: &[MemberChangeKind] =
    &[MemberChangeKind::AddShard, MemberChangeKind::ReplaceShard];

/// With which of the clients' calls something changes.
pub type TimedChange = (usize, MemberChange);

/// Most changes of a run.
const CHANGES_MAX: u64 = 2;

/// Draws at least one change of these kinds.
pub fn draw(
    rng: &mut Rng,
    kinds: &[MemberChangeKind],
    size: WorldSize,
    calls: usize,
) -> Vec<TimedChange> {
    let count = 1 + rng.below(CHANGES_MAX);
    let mut changes: Vec<TimedChange> = (0..count)
        .map(|_| {
            let at = rng.below(calls as u64) as usize;
            let kind = kinds[rng.below(kinds.len() as u64) as usize];
            (at, kind.draw(rng, size))
        })
        .collect();
    changes.sort_by_key(|(at, _)| *at);
    changes
}
