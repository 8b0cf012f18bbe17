//! A value that one side fills and the other awaits, across threads.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::CallError;
use crate::frame::Frame;
use crate::sync::{Mutex, MutexGuard};

enum State<T> {
    Waiting(Option<Waker>),
    Filled(T),
    Taken,
}

/// Filled once.
struct Slot<T>(Mutex<State<T>>);

impl<T> Slot<T> {
    fn new() -> Arc<Slot<T>> {
        Arc::new(Slot(Mutex::new(State::Waiting(None))))
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills the slot, unless it was filled before, and wakes whoever waits.
    fn fill(&self, value: T) {
        let mut state = self.lock();
        let State::Waiting(waker) = &mut *state else { return };
        let waker = waker.take();
        *state = State::Filled(value);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(*self.lock(), State::Waiting(_))
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.lock();
        match &mut *state {
            State::Waiting(Some(waker)) => waker.clone_from(cx.waker()),
            State::Waiting(none) => *none = Some(cx.waker().clone()),
            State::Filled(_) => {
                if let State::Filled(value) = std::mem::replace(&mut *state, State::Taken) {
                    return Poll::Ready(value);
                }
            }
            State::Taken => panic!("polled after it was ready"),
        }
        Poll::Pending
    }
}

/// A call's end, as a future: the reply, whatever its status, or why there is none. Dropping it
/// does not cancel the request.
#[must_use = "the request is only sent when somebody waits"]
pub struct Call(Arc<Slot<Result<Frame, CallError>>>);

/// The side that ends a [`Call`]. Dropping it ends the call as `Disconnected`.
pub struct CallSlot(Arc<Slot<Result<Frame, CallError>>>);

impl Call {
    /// A call and the slot that ends it.
    pub fn new() -> (CallSlot, Call) {
        let slot = Slot::new();
        (CallSlot(slot.clone()), Call(slot))
    }
}

impl Future for Call {
    type Output = Result<Frame, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

impl CallSlot {
    /// Ends the call.
    pub fn complete(self, result: Result<Frame, CallError>) {
        self.0.fill(result);
    }

    /// Whether nobody waits for the result any more.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        if self.0.is_waiting() {
            self.0.fill(Err(CallError::Disconnected));
        }
    }
}

/// A pause, as a future.
#[must_use = "nothing sleeps until this is awaited"]
pub struct Sleep(Arc<Slot<()>>);

/// The side that ends a [`Sleep`]. Dropping it ends the sleep.
pub struct SleepSlot(Arc<Slot<()>>);

impl Sleep {
    /// A sleep and the slot that ends it.
    pub fn new() -> (SleepSlot, Sleep) {
        let slot = Slot::new();
        (SleepSlot(slot.clone()), Sleep(slot))
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll(cx)
    }
}

impl SleepSlot {
    /// Ends the sleep.
    pub fn complete(self) {
        // Dropping completes.
    }

    /// Whether nobody sleeps on it any more.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Drop for SleepSlot {
    fn drop(&mut self) {
        self.0.fill(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The result of `call`, which must be pending until `end` runs and be woken by it once.
    fn outcome(end: impl FnOnce(CallSlot)) -> Result<Frame, CallError> {
        let (slot, call) = Call::new();
        let wakes = Arc::new(Count::default());
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let mut call = pin!(call);
        assert!(call.as_mut().poll(&mut cx).is_pending());
        end(slot);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        match call.as_mut().poll(&mut cx) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("still pending"),
        }
    }

    #[test]
    fn a_call_ends_with_its_slot() {
        let empty = bytes::Bytes::new();
        let frame = Frame::request(1, 2, empty.clone(), empty);
        assert_eq!(outcome(|slot| slot.complete(Ok(frame.clone()))), Ok(frame));
        assert_eq!(outcome(|s| s.complete(Err(CallError::Timeout))), Err(CallError::Timeout));
        assert_eq!(outcome(drop), Err(CallError::Disconnected));
    }

    #[test]
    fn an_abandoned_slot_knows_it() {
        let (slot, call) = Call::new();
        assert!(!slot.is_abandoned());
        drop(call);
        assert!(slot.is_abandoned());
        let (slot, sleep) = Sleep::new();
        assert!(!slot.is_abandoned());
        drop(sleep);
        assert!(slot.is_abandoned());
    }
}
