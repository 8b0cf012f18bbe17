//! Open handles: numbers that the kernel keeps and gives back.

use std::sync::{Mutex, MutexGuard, PoisonError};

use saker_runtime::telemetry::Gauge;
use saker_types::{Errno, Error, Result};

/// A table of `T` by handle number. A number is an index and the generation of its entry, so that
/// a handle that was released never names what took its place.
pub(crate) struct Handles<T> {
    slab: Mutex<Slab<T>>,
    /// How many are open.
    open: Gauge,
}

struct Slab<T> {
    entries: Vec<HandleEntry<T>>,
    /// Indices of empty entries.
    free: Vec<u32>,
}

struct HandleEntry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T: Clone> Handles<T> {
    /// An empty table; `open` counts what is put in.
    pub(crate) fn new(open: Gauge) -> Handles<T> {
        Handles { slab: Mutex::new(Slab { entries: Vec::new(), free: Vec::new() }), open }
    }

    /// Puts a value in and gives it a number.
    pub(crate) fn insert(&self, value: T) -> u64 {
        let mut slab = self.slab();
        let index = slab.free.pop().unwrap_or_else(|| {
            slab.entries.push(HandleEntry { generation: 0, value: None });
            (slab.entries.len() - 1) as u32
        });
        let entry = &mut slab.entries[index as usize];
        entry.value = Some(value);
        self.open.add(1);
        u64::from(entry.generation) << 32 | u64::from(index)
    }

    /// The value of a handle.
    ///
    /// # Errors
    /// EBADF when it is not open.
    pub(crate) fn get(&self, handle: u64) -> Result<T> {
        let mut slab = self.slab();
        let entry = slab.entry(handle)?;
        entry.value.clone().ok_or_else(bad)
    }

    /// Takes a value out; its number is not used again.
    ///
    /// # Errors
    /// EBADF when it is not open.
    pub(crate) fn remove(&self, handle: u64) -> Result<T> {
        let mut slab = self.slab();
        let entry = slab.entry(handle)?;
        let value = entry.value.take().ok_or_else(bad)?;
        entry.generation = entry.generation.wrapping_add(1);
        slab.free.push(handle as u32);
        self.open.add(-1);
        Ok(value)
    }

    /// All that is open.
    pub(crate) fn all(&self) -> Vec<T> {
        self.slab().entries.iter().filter_map(|entry| entry.value.clone()).collect()
    }

    /// Takes everything out.
    pub(crate) fn drain(&self) -> Vec<T> {
        let mut slab = self.slab();
        slab.free.clear();
        let left: Vec<T> = slab.entries.drain(..).filter_map(|entry| entry.value).collect();
        self.open.add(-(left.len() as i64));
        left
    }

    fn slab(&self) -> MutexGuard<'_, Slab<T>> {
        self.slab.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Slab<T> {
    fn entry(&mut self, handle: u64) -> Result<&mut HandleEntry<T>> {
        let generation = (handle >> 32) as u32;
        let entry = self.entries.get_mut(handle as u32 as usize).ok_or_else(bad)?;
        if entry.generation == generation { Ok(entry) } else { Err(bad()) }
    }
}

fn bad() -> Error {
    Error::new(Errno::EBADF)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_number_that_was_released_names_nothing() {
        let handles = Handles::new(Gauge::default());
        let a = handles.insert("a");
        let b = handles.insert("b");
        assert_eq!(handles.remove(a).unwrap(), "a");
        assert!(handles.get(a).is_err());
        let c = handles.insert("c");
        assert_eq!(c as u32, a as u32, "the entry is used again");
        assert_ne!(c, a);
        assert_eq!(handles.get(a).unwrap_err().errno(), Errno::EBADF);
        assert!(handles.remove(a).is_err());
        assert_eq!(handles.get(b).unwrap(), "b");
        assert_eq!(handles.get(c).unwrap(), "c");
        assert!(handles.get(999).is_err());
        assert_eq!(handles.all(), ["c", "b"]);
        assert_eq!(handles.open.get(), 2);
        assert_eq!(handles.drain(), ["c", "b"]);
        assert_eq!(handles.open.get(), 0);
        assert!(handles.get(b).is_err());
    }
}
