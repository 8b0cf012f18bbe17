//! Directory attributes as state, not deltas (SwitchFS §5; docs/protocol.md, rules 20 and 21): each
//! shard keeps absolute totals of the entries it owns in each directory; the directory's owner
//! collects them when somebody asks.

pub mod collect;
pub(crate) mod tracker;
pub mod update;
