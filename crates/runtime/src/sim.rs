//! What a simulation decides on the thread that it runs on: the time, the dice, where a node dies
//! (*failpoints*) and which rule of a protocol is broken on purpose (*mutations*).
//!
//! Without the feature `sim` nothing here exists at run time: every question is answered by a
//! constant. With it, a thread that never called [`start`] behaves as without.

/// Marks a step of a protocol at which the simulator may let the node die. Names are
/// `protocol.step`; CI fails if one is never passed.
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::sim::reached($name)
    };
}

#[cfg(feature = "sim")]
pub use on::*;

#[cfg(feature = "sim")]
mod on {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use crate::rand::Rng;
    use crate::time::Time;

    struct Sim {
        now: Time,
        wall_ns: i64,
        rng: Rng,
        mutation: Option<&'static str>,
        armed: Option<(String, u64)>,
        crash: Option<String>,
        hits: BTreeMap<&'static str, u64>,
    }

    thread_local! {
        static SIM: RefCell<Option<Box<Sim>>> = const { RefCell::new(None) };
    }

    fn with<T>(f: impl FnOnce(&mut Sim) -> T) -> Option<T> {
        SIM.with_borrow_mut(|sim| sim.as_deref_mut().map(f))
    }

    /// This thread is simulated from now on; all chance comes from `seed`.
    pub fn start(seed: u64) {
        let rng = Rng::seeded(seed);
        let sim = Sim {
            now: Time::ZERO,
            wall_ns: 0,
            rng,
            mutation: None,
            armed: None,
            crash: None,
            hits: BTreeMap::new(),
        };
        SIM.set(Some(Box::new(sim)));
    }

    /// This thread is real again.
    pub fn stop() {
        SIM.set(None);
    }

    /// Is this thread simulated?
    pub fn is_active() -> bool {
        SIM.with_borrow(Option::is_some)
    }

    /// Moves the clocks of this thread.
    pub fn set_time(now: Time, wall_ns: i64) {
        with(|sim| (sim.now, sim.wall_ns) = (now, wall_ns));
    }

    pub(crate) fn now() -> Option<Time> {
        with(|sim| sim.now)
    }

    pub(crate) fn wall_ns() -> Option<i64> {
        with(|sim| sim.wall_ns)
    }

    pub(crate) fn fill(out: &mut [u8]) -> bool {
        with(|sim| sim.rng.fill(out)).is_some()
    }

    /// Breaks one rule, by its name in [`mutation`], until the next call.
    pub fn mutate(name: Option<&'static str>) {
        with(|sim| sim.mutation = name);
    }

    /// Is this rule broken on purpose?
    pub fn mutation(name: &str) -> bool {
        with(|sim| sim.mutation == Some(name)).unwrap_or(false)
    }

    /// The node that passes the failpoint for the `nth` time from now (from 1) shall die there.
    pub fn arm(name: &str, nth: u64) {
        with(|sim| sim.armed = Some((name.to_owned(), nth)));
    }

    /// A failpoint is passed.
    pub fn reached(name: &'static str) {
        with(|sim| {
            *sim.hits.entry(name).or_default() += 1;
            if let Some((armed, left)) = &mut sim.armed
                && armed == name
            {
                *left -= 1;
                if *left == 0 {
                    sim.armed = None;
                    sim.crash = Some(format!("at {name}"));
                }
            }
        });
    }

    /// Why the running node must die now, if it must.
    pub fn take_crash() -> Option<String> {
        with(|sim| sim.crash.take()).flatten()
    }

    pub(crate) fn abort(why: &str) -> bool {
        with(|sim| sim.crash = Some(why.to_owned())).is_some()
    }

    /// Failpoints passed since the start, and how often.
    pub fn hits() -> BTreeMap<&'static str, u64> {
        with(|sim| sim.hits.clone()).unwrap_or_default()
    }
}

#[cfg(not(feature = "sim"))]
mod off {
    /// Is this thread simulated? Not in this build.
    #[inline(always)]
    pub const fn is_active() -> bool {
        false
    }

    #[inline(always)]
    pub(crate) const fn now() -> Option<crate::time::Time> {
        None
    }

    #[inline(always)]
    pub(crate) const fn wall_ns() -> Option<i64> {
        None
    }

    #[inline(always)]
    pub(crate) const fn fill(_: &mut [u8]) -> bool {
        false
    }

    /// Is this rule broken on purpose? Not in this build.
    #[inline(always)]
    pub const fn mutation(_: &str) -> bool {
        false
    }

    /// A failpoint is passed: nothing, in this build.
    #[inline(always)]
    pub const fn reached(_: &'static str) {}

    #[inline(always)]
    pub(crate) const fn abort(_: &str) -> bool {
        false
    }
}

#[cfg(not(feature = "sim"))]
pub(crate) use off::{abort, fill, now, wall_ns};
#[cfg(not(feature = "sim"))]
pub use off::{is_active, mutation, reached};

/// The process must not go on: what it holds in memory is no longer known to be right. In a
/// simulation the node dies when its step ends.
pub fn abort_process(why: &str) {
    tracing::error!("{why}; aborting");
    if !abort(why) {
        std::process::abort();
    }
}
