//! Futures on one thread, in an order that depends on nothing but their own wakes.
//!
//! [`Executor`] runs `!Send` futures first in, first out; [`oneshot()`] hands one value from one to
//! another; [`Timers`] turns deadlines into wakes when its owner says what time it is. Nothing
//! here reads a clock or starts a thread, so that a run can be replayed.

mod executor;
pub mod oneshot;
mod timers;

pub use executor::{Executor, Spawner};
pub use oneshot::oneshot;
pub use timers::{SleepUntil, Timers};
