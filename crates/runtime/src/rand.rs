//! Randomness: seeded, for whatever must replay; from the system, for ids and secrets.

use rand::rngs::{OsRng, StdRng};
use rand::{RngCore, SeedableRng, TryRngCore};

/// A seeded generator: the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Rng(StdRng);

impl Rng {
    /// A generator whose numbers depend on `seed` alone.
    pub fn seeded(seed: u64) -> Rng {
        Rng(StdRng::seed_from_u64(seed))
    }

    /// A generator seeded by the system.
    pub fn from_os() -> Rng {
        Rng::seeded(u64())
    }

    /// 64 random bits.
    pub fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, 0 when `bound` is 0. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True in `part` of `whole` cases.
    pub fn chance(&mut self, part: u64, whole: u64) -> bool {
        self.below(whole) < part
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        self.0.fill_bytes(out);
    }
}

/// 64 random bits from the system.
pub fn u64() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Fills `out` with random bytes from the system.
///
/// # Panics
/// When the system has no randomness: nothing that needs an id or a secret can go on then.
pub fn fill(out: &mut [u8]) {
    if crate::sim::fill(out) {
        return;
    }
    if let Err(error) = OsRng.try_fill_bytes(out) {
        panic!("the system gives no random numbers: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_replay_and_differ() {
        let draw = |seed| {
            let mut rng = Rng::seeded(seed);
            (0..8).map(|_| rng.u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn below_stays_below_and_reaches_all() {
        let mut rng = Rng::seeded(1);
        let mut seen = [false; 10];
        for _ in 0..1_000 {
            seen[rng.below(10) as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn the_system_does_not_repeat_itself() {
        assert_ne!(u64(), u64());
        let mut bytes = [0; 64];
        fill(&mut bytes);
        assert!(bytes.iter().any(|b| *b != 0));
    }
}
