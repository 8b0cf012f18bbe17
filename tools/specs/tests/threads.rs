//! The types that threads share, under many schedules.

use std::panic::catch_unwind;

use saker_specs::threads::{executor_hears_every_wake, seat_is_handed_over, slot_is_filled_once};

#[test]
fn the_seat_is_handed_over() {
    for callers in [2, 3, 4] {
        shuttle::check_random(move || seat_is_handed_over(callers, false), 30_000);
        shuttle::check_pct(move || seat_is_handed_over(callers, false), 30_000, 4);
    }
}

#[test]
fn a_slot_is_filled_once() {
    shuttle::check_dfs(slot_is_filled_once, None);
}

#[test]
fn the_executor_hears_every_wake() {
    shuttle::check_dfs(executor_hears_every_wake, Some(100_000));
}

/// A driver that waits without saying so is not woken by the poll's waker: found at once.
#[test]
fn a_lost_wake_up_is_found() {
    let found = catch_unwind(|| shuttle::check_random(|| seat_is_handed_over(2, true), 20_000));
    assert!(found.is_err());
}
