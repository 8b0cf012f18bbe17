//! Names and attributes. [`api::Namespace`] is what a namespace does; [`dispatch`] chooses the one that
//! serves a place, which [`fs`](mod@fs) asks.

pub(crate) mod api;
pub(crate) mod decoupled;
pub(crate) mod dispatch;
pub(crate) mod frozen;
pub(crate) mod fs;
pub(crate) mod listing;
pub(crate) mod path;
pub(crate) mod strict;
#[cfg(test)]
mod tests;
