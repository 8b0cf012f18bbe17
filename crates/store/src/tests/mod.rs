#![allow(clippy::unwrap_used)]
//! A store's service, over segments.

mod aside;
mod attempts;
mod waiting;
