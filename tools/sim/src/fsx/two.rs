//! Two writers of one file, on two clients: each has every other stripe to itself.

use saker_client::Fallocate;

use super::{FsxReport, FsxTarget, difference, pattern};
use crate::generate::Random;

/// Whole pages, so that no page of the kernel's cache has bytes of both.
const STRIPE_BYTES: u64 = 64 << 10;
/// Of both together: more than two chunks.
const STRIPES: u64 = 140;

struct Writer<'a> {
    target: &'a mut dyn FsxTarget,
    rng: Random,
    /// 0 or 1.
    me: u64,
    /// Only its own stripes mean anything.
    model: Vec<u8>,
    report: FsxReport,
}

/// Runs so many operations on each of two open files that are one, at the same time; then each
/// opens it anew and must find what both have written.
///
/// # Errors
/// In words: the first difference.
pub fn run_two<T: FsxTarget + Send>(
    targets: &mut [T; 2],
    seed: u64,
    ops: u64,
) -> Result<(), String> {
    let size = STRIPES * STRIPE_BYTES;
    let told = |e: std::io::Error| format!("seed {seed}: {e}");
    targets[0].truncate(0).map_err(told)?;
    targets[0].truncate(size).map_err(told)?;
    let [first, second] = targets;
    first.reopen().map_err(told)?;
    second.reopen().map_err(told)?;
    let models = std::thread::scope(|scope| {
        let start = |me: u64, target: &'_ mut T| {
            let rng = Random::new(seed * 2 + me);
            let model = vec![0; size as usize];
            Writer { target, rng, me, model, report: FsxReport::default() }.all(ops)
        };
        let other = scope.spawn(move || start(1, second));
        let models = [start(0, first), other.join().unwrap_or(Err("it panicked".into()))];
        models.into_iter().collect::<Result<Vec<_>, String>>()
    });
    let models = models.map_err(|what| format!("seed {seed}: {what}"))?;
    let stripe = STRIPE_BYTES as usize;
    let parts = (0..STRIPES as usize).flat_map(|n| &models[n % 2][n * stripe..(n + 1) * stripe]);
    let whole: Vec<u8> = parts.copied().collect();
    for target in targets.iter_mut() {
        target.sync().map_err(told)?;
    }
    for (n, target) in targets.iter_mut().enumerate() {
        target.reopen().map_err(told)?;
        let got = target.read(0, size as usize + 1).map_err(told)?;
        if let Some(what) = difference(&got, &whole, 0) {
            return Err(format!("seed {seed}: client {n}: {what}"));
        }
    }
    Ok(())
}

impl Writer<'_> {
    fn all(mut self, ops: u64) -> Result<Vec<u8>, String> {
        for n in 0..ops {
            self.step(n).map_err(|what| format!("writer {}, operation {n}: {what}", self.me))?;
        }
        self.target.sync().map_err(|e| e.to_string())?;
        Ok(self.model)
    }

    /// A range in one of its stripes.
    fn range(&mut self) -> (u64, u64) {
        let stripe = self.rng.below(STRIPES as usize / 2) as u64 * 2 + self.me;
        let skip = self.rng.any() % STRIPE_BYTES;
        let len = 1 + self.rng.any() % (STRIPE_BYTES - skip);
        (stripe * STRIPE_BYTES + skip, len)
    }

    fn own(&mut self, at: u64, len: u64) -> &mut [u8] {
        &mut self.model[at as usize..(at + len) as usize]
    }

    fn step(&mut self, n: u64) -> Result<(), String> {
        let told = |e: std::io::Error| e.to_string();
        let (at, len) = self.range();
        match self.rng.below(100) {
            0..40 => {
                let data = pattern(n * 2 + self.me, at, len);
                self.target.write(at, &data).map_err(told)?;
                self.own(at, len).copy_from_slice(&data);
            }
            40..50 => {
                let data = pattern(n * 2 + self.me, at, len);
                self.target.map_write(at, &data).map_err(told)?;
                self.own(at, len).copy_from_slice(&data);
            }
            50..60 => {
                let how = *self.rng.pick(&[Fallocate::Punch, Fallocate::ZeroKeepSize]);
                self.target.fallocate(how, at, len).map_err(told)?;
                self.own(at, len).fill(0);
            }
            60..64 => self.target.fallocate(Fallocate::Grow, at, len).map_err(told)?,
            64..66 => self.target.sync().map_err(told)?,
            66..67 => self.target.reopen().map_err(told)?,
            _ => {
                let got = self.target.read(at, len as usize).map_err(told)?;
                self.report.compared_bytes += len;
                if let Some(what) = difference(&got, self.own(at, len), at) {
                    return Err(what);
                }
            }
        }
        Ok(())
    }
}
